"""Stand-in packages of drivers: the vendor's files as a deploy sees them, kernel modules by dkms, units, libraries.

What makes a machine of them (nvidia-smi's answers, modules that load) is in `rackwright.lab.devices`, which a host
has when its hardware was declared; without it nvidia-smi says that there is no driver, as the real one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rackwright.lab import vendor_driver
from rackwright.lab.deb import Deb
from rackwright.lab.elf import shared_library
from rackwright.lab.vendor_driver import Driver

Files = dict[str, tuple[bytes, int]]

DEVICES = "/usr/lib/rackwright-lab"
"""Where a host with declared hardware keeps what answers for its devices."""
_LIB = "/usr/lib/x86_64-linux-gnu"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE (cuda.h)."""

_NVIDIA_SMI = f"""#!/bin/sh
# Rehearsal stand-in: a host of the lab with declared hardware answers by it.
[ -x {DEVICES}/nvidia-smi ] && exec {DEVICES}/nvidia-smi "$@"
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. \
Make sure that the latest NVIDIA driver is installed and running."
echo
exit 9
"""
_PERSISTENCED = f"""#!/bin/sh
# Rehearsal stand-in for nvidia-persistenced.
mode=1
for word; do [ "$word" = --no-persistence-mode ] && mode=0; done
[ -x {DEVICES}/nvidia-smi ] || exit 1
{DEVICES}/nvidia-smi -pm $mode >/dev/null || {{ echo 'nvidia-persistenced failed to initialize' >&2; exit 1; }}
exec sleep infinity
"""
# As Ubuntu's package has it: the daemon runs, and keeps nothing persistent.
_PERSISTENCED_UNIT = b"""[Unit]
Description=NVIDIA Persistence Daemon
ConditionPathExists=/proc/driver/nvidia/version

[Service]
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose

[Install]
WantedBy=multi-user.target
"""
_FABRIC_MANAGER = """#!/bin/sh
# Rehearsal stand-in for the fabric manager of {version}.
[ -x {devices}/nv-fabricmanager ] && exec {devices}/nv-fabricmanager {version} "$@"
echo 'NV_WARN_NOTHING_TO_DO: no NVSwitch devices' >&2
exit 1
"""
_FABRIC_MANAGER_UNIT = b"""[Unit]
Description=NVIDIA fabric manager service
After=network-online.target

[Service]
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
"""
_IMEX_UNIT = b"""[Unit]
Description=NVIDIA IMEX service

[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""
_DKMS_CONF = """PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
AUTOINSTALL="yes"
# rackwright-lab: flavour={flavour}
"""
_DKMS_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
/usr/lib/dkms/common.postinst nvidia {version}
"""
_DKMS_PRERM = "#!/bin/sh\nset -e\ndkms remove -m nvidia -v {version} --all >/dev/null 2>&1 || true\n"
_INITRAMFS = """#!/bin/sh
set -e
if [ "$1" = configure ] && command -v update-initramfs >/dev/null; then update-initramfs -u; fi
"""
_LINKER_TRIGGER = {"triggers": "activate-noawait ldconfig\n"}
_ENABLE = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload; systemctl enable -q {unit} || true; systemctl restart {unit} || true
fi
"""
_STOP = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop {unit} || true; fi
"""
# Soname's number -> the libraries of a driver's compute part.
_COMPUTE = ("libnvidia-ml.so.1", "libcuda.so.1")


def repository(directory: str) -> Iterator[Deb]:
    """Yield the driver packages of a repository."""
    debian = directory.startswith("debian")
    drivers = vendor_driver.DRIVERS[directory]
    for driver in drivers:
        yield from (_debian_set if debian else _ubuntu_set)(driver)
        yield from _tools(driver)
        yield from _metas(driver, debian=debian)
    for branch in sorted({driver.branch for driver in drivers if driver.branch >= vendor_driver.UNVERSIONED_TOOLS}):
        yield _pinning(str(branch), f"{branch}.*", f"{branch}-1ubuntu1")
    for driver in drivers:
        if driver.branch >= vendor_driver.UNVERSIONED:
            yield _pinning(driver.version, f"{driver.version}*", driver.full)
    if not debian and any(driver.branch == 535 for driver in drivers):
        yield from _transitional()


def _meta(name: str, version: str, depends: list[str], more: Mapping[str, str] | None = None) -> Deb:
    return Deb(name, version, fields={"Section": "multiverse/devel", "Depends": ", ".join(depends), **(more or {})})


def _ubuntu_name(driver: Driver, stem: str, flavour: str) -> str:
    bare = stem.removesuffix("@")
    if bare == "nvidia-firmware" and driver.suffix:
        return f"nvidia-firmware-{driver.branch}-{driver.version}"  # the whole version is in the name
    return f"{bare}{driver.suffix}{'-open' if stem.endswith('@') and flavour == 'open' else ''}"


def _ubuntu_set(driver: Driver) -> Iterator[Deb]:
    for stem, needs in vendor_driver.UBUNTU.items():
        for flavour in ("proprietary", "open") if stem.endswith("@") else ("either",):
            name = _ubuntu_name(driver, stem, flavour)
            depends = [f"{_ubuntu_name(driver, need, flavour)} (= {driver.full})" for need in needs]
            bare = stem.removesuffix("@")
            # Two branches, and the two flavours, have the same files: they exclude each other by the stem.
            more = {"Conflicts": bare, "Replaces": bare}
            if name != bare:
                more["Provides"] = bare
            if bare == "nvidia-firmware":
                more = {}
            yield _part(bare, name, driver, depends, more, flavour)


def _debian_set(driver: Driver) -> Iterator[Deb]:
    for name, needs in vendor_driver.DEBIAN.items():
        depends = [" | ".join(f"{one} (= {driver.full})" for one in need.split("|")) for need in needs]
        flavour = "open" if "open" in name else "proprietary"
        more = {"Conflicts": "nvidia-kernel", "Provides": "nvidia-kernel"} if name.endswith("-dkms") else {}
        stem = _DEBIAN_STEMS.get(name, name)
        yield _part(stem, name, driver, depends, more, flavour)


_DEBIAN_STEMS = {
    "nvidia-kernel-dkms": "nvidia-dkms", "nvidia-kernel-open-dkms": "nvidia-dkms", "nvidia-smi": "nvidia-utils",
    "nvidia-persistenced": "nvidia-compute-utils",
}  # fmt: skip


def _part(
    stem: str, name: str, driver: Driver, depends: list[str], more: Mapping[str, str], flavour: str
) -> Deb:  # fmt: skip
    version = driver.version
    files: Files = {f"/usr/share/doc/{name}/copyright": (b"Rehearsal stand-in; holds no NVIDIA code.\n", 0o644)}
    links: dict[str, str] = {}
    scripts: dict[str, str] = {}
    sources = {f"/usr/src/nvidia-{version}/dkms.conf": _DKMS_CONF.format(version=version, flavour=flavour)}
    if stem == "nvidia-utils":
        files["/usr/bin/nvidia-smi"] = (_NVIDIA_SMI.encode(), 0o755)
    elif stem == "nvidia-compute-utils":
        files["/usr/bin/nvidia-persistenced"] = (_PERSISTENCED.encode(), 0o755)
        files["/lib/systemd/system/nvidia-persistenced.service"] = (_PERSISTENCED_UNIT, 0o644)
        scripts = _unit_scripts("nvidia-persistenced.service")
    elif stem in ("libnvidia-compute", "libcuda1", "libnvidia-ml1"):
        wanted = {"libcuda1": _COMPUTE[1:], "libnvidia-ml1": _COMPUTE[:1]}.get(stem, _COMPUTE)
        for soname in wanted:
            full = f"{soname.removesuffix('.1')}.{version}"
            functions = {"cuInit": _NO_DEVICE} if soname == "libcuda.so.1" else {}
            files[f"{_LIB}/{full}"] = (shared_library(soname, functions), 0o644)
            links[f"{_LIB}/{soname}"] = full
        scripts = dict(_LINKER_TRIGGER)
    elif stem == "nvidia-kernel-source":
        files |= {path: (text.encode(), 0o644) for path, text in sources.items()}
    elif stem == "nvidia-kernel-common":
        scripts = {"postinst": _INITRAMFS}
    elif stem == "nvidia-dkms":
        depends = [*depends, "dkms"]
        scripts = {"postinst": _DKMS_POSTINST.format(version=version), "prerm": _DKMS_PRERM.format(version=version)}
        if name.startswith("nvidia-kernel-"):  # Debian's holds its own source
            files |= {path: (text.encode(), 0o644) for path, text in sources.items()}
    fields = {"Section": "multiverse/devel", **more}
    if depends:
        fields["Depends"] = ", ".join(depends)
    return Deb(name, driver.full, fields=fields, files=files, links=links, scripts=scripts)


def _unit_scripts(unit: str) -> dict[str, str]:
    return {"postinst": _ENABLE.format(unit=unit), "prerm": _STOP.format(unit=unit)}


def _tools(driver: Driver) -> Iterator[Deb]:
    version = driver.version
    suffix = "" if driver.branch >= vendor_driver.UNVERSIONED_TOOLS else f"-{driver.branch}"
    more = {name: {"Conflicts": name, "Replaces": name, "Provides": name} if suffix else {}
            for name in vendor_driver.TOOLS}  # fmt: skip
    fields = {name: {"Section": "multiverse/libs", **more[name]} for name in vendor_driver.TOOLS}
    manager = _FABRIC_MANAGER.format(version=version, devices=DEVICES).encode()
    yield Deb(
        f"nvidia-fabricmanager{suffix}", f"{version}-1", fields=fields["nvidia-fabricmanager"],
        files={
            "/usr/bin/nv-fabricmanager": (manager, 0o755),
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": (b"ABORT_CUDA_JOBS_ON_FM_EXIT=1\n", 0o644),
            "/lib/systemd/system/nvidia-fabricmanager.service": (_FABRIC_MANAGER_UNIT, 0o644),
        },
        conffiles=(),
        scripts={"prerm": _STOP.format(unit="nvidia-fabricmanager.service")},
    )  # fmt: skip
    library = f"{_LIB}/libnvidia-nscq.so.{version}"
    yield Deb(
        f"libnvidia-nscq{suffix}", f"{version}-1", fields=fields["libnvidia-nscq"],
        files={library: (shared_library("libnvidia-nscq.so.2"), 0o644)},
        links={f"{_LIB}/libnvidia-nscq.so.2": library.rpartition("/")[2]}, scripts=_LINKER_TRIGGER,
    )  # fmt: skip
    yield Deb(
        f"nvidia-imex{suffix}", f"{version}-1", fields=fields["nvidia-imex"],
        files={"/lib/systemd/system/nvidia-imex.service": (_IMEX_UNIT, 0o644)},
    )  # fmt: skip


def _metas(driver: Driver, *, debian: bool) -> Iterator[Deb]:
    version, branch, meta = driver.version, driver.branch, f"{driver.version}-1"
    if debian:
        wanted = {"cuda-drivers": [name for name in vendor_driver.DEBIAN if "open" not in name],
                  "nvidia-open": [name for name in vendor_driver.DEBIAN if name != "nvidia-kernel-dkms"]}  # fmt: skip
    else:
        wanted = {"cuda-drivers": [_ubuntu_name(driver, "nvidia-driver@", "proprietary")],
                  "nvidia-open": [_ubuntu_name(driver, "nvidia-driver@", "open")]}  # fmt: skip
    for name, parts in wanted.items():
        if name == "nvidia-open" and not driver.has_open_metas:
            continue
        bounds = [f"{part} (>= {version})" for part in parts]
        if branch < vendor_driver.UNVERSIONED:
            yield _meta(f"{name}-{branch}", meta, bounds)
            bounds = [f"{name}-{branch} (= {meta})"]
        yield _meta(name, meta, bounds)


def _pinning(name: str, pin: str, version: str) -> Deb:
    path = f"/etc/apt/preferences.d/nvidia-driver-pinning-{name}"
    packages = "*nvidia* cuda-drivers* libcuda* firmware-nvidia*"
    text = f"Package: {packages}\nPin: version {pin}\nPin-Priority: 1000\n"
    alone = {"Conflicts": "nvidia-driver-pinning", "Provides": "nvidia-driver-pinning"}
    return Deb(
        f"nvidia-driver-pinning-{name}", version, "all", files={path: (text.encode(), 0o644)}, conffiles=(path,),
        fields={"Section": "multiverse/devel", **alone},
    )  # fmt: skip


def _transitional() -> Iterator[Deb]:
    """Yield the last 535 of Ubuntu's kind: dummies that bring 580."""
    *_, newest = (driver for driver in vendor_driver.DRIVERS["ubuntu2204"] if driver.branch == 580)
    for stem in ("nvidia-driver", "nvidia-utils", "libnvidia-compute", "nvidia-compute-utils", "nvidia-dkms"):
        yield _meta(f"{stem}-535", vendor_driver.TRANSITIONAL_535, [f"{stem}-580 (>= {newest.version})"])
