"""Stand-in packages of the distribution that a driver needs: kernels with headers, compilers, dkms.

Two kernels of each line, so that a host can be given a newer one; Ubuntu 22.04 has its HWE line beside it, which was
built with another compiler than the system's. Images run nothing: the machine's own kernel does, under their name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rackwright.lab.deb import Deb
from rackwright.lab.devices.modfile import module_file
from rackwright.lab.recipes_driver import DEVICES

Files = dict[str, tuple[bytes, int]]


@dataclass(frozen=True)
class Line:
    """A line of kernels, whose newest one its meta-packages follow."""

    kernels: tuple[str, ...]
    """`uname -r` of each, oldest first."""
    compiler: str
    """As `CONFIG_CC_VERSION_TEXT` has it."""
    metas: Mapping[str, tuple[str, ...]]
    """Meta-package -> what it depends on; `K` is the kernel."""
    versions: tuple[str, ...]
    """Package versions of the kernels."""


_UBUNTU_METAS = {
    "linux-image-generic@": ("linux-image-K",),
    "linux-headers-generic@": ("linux-headers-K",),
    "linux-generic@": ("linux-image-generic@", "linux-headers-generic@"),
}


def _metas(suffix: str) -> dict[str, tuple[str, ...]]:
    return {
        name.replace("@", suffix): tuple(need.replace("@", suffix) for need in needs)
        for name, needs in _UBUNTU_METAS.items()
    }


LINES: Mapping[str, tuple[Line, ...]] = {
    "ubuntu-22.04": (
        Line(
            ("5.15.0-119-generic", "5.15.0-122-generic"), "gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", _metas(""),
            ("5.15.0-119.129", "5.15.0-122.132"),
        ),
        Line(
            ("6.8.0-40-generic", "6.8.0-45-generic"),
            "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", _metas("-hwe-22.04"),
            ("6.8.0-40.40~22.04.3", "6.8.0-45.45~22.04.1"),
        ),
    ),
    "ubuntu-24.04": (
        Line(
            ("6.8.0-41-generic", "6.8.0-45-generic"),
            "x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0", _metas(""), ("6.8.0-41.41", "6.8.0-45.45"),
        ),
    ),
    "debian-12": (
        Line(
            ("6.1.0-25-amd64", "6.1.0-28-amd64"), "gcc-12 (Debian 12.2.0-14) 12.2.0",
            {"linux-image-amd64": ("linux-image-K",), "linux-headers-amd64": ("linux-headers-K",)},
            ("6.1.106-3", "6.1.119-1"),
        ),
    ),
}  # fmt: skip
_COMPILERS = {
    "ubuntu-22.04": {"11": "11.4.0-1ubuntu1~22.04", "12": "12.3.0-1ubuntu1~22.04"},
    "ubuntu-24.04": {"13": "13.2.0-23ubuntu4"},
    "debian-12": {"12": "12.2.0-14+lab"},
}
_DKMS_VERSION = "3.0.11-1ubuntu13+lab"
_DKMS = f'#!/bin/sh\n# Rehearsal stand-in: modules are of the lab\'s devices.\nexec {DEVICES}/dkms "$@"\n'
_DKMS_HOOK = """#!/bin/sh
[ -x /usr/sbin/dkms ] || exit 0
[ -e "/lib/modules/$1/build" ] || { echo "dkms: WARNING: Linux headers are missing for $1" >&2; exit 0; }
dkms autoinstall -k "$1"
"""
# For each kernel that has headers; one that has none is passed over with a word, as dkms's own does.
_DKMS_COMMON = """#!/bin/sh
set -e
name=$1 version=$2
dkms add -m "$name" -v "$version" >/dev/null 2>&1 || true
for folder in /lib/modules/*/; do
  kernel=$(basename "$folder")
  if [ -e "$folder/build" ]; then
    dkms build -m "$name" -v "$version" -k "$kernel" && dkms install -m "$name" -v "$version" -k "$kernel" --force
  else
    echo "Module build for kernel $kernel was skipped since the"
    echo "kernel headers for this kernel do not seem to be installed."
  fi
done
"""
# As the distributions' images do: hooks first, dkms and initramfs-tools among them.
_IMAGE_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
depmod {kernel} || true
run-parts --arg={kernel} --arg=/boot/vmlinuz-{kernel} /etc/kernel/postinst.d
"""
_IMAGE_POSTRM = '#!/bin/sh\nset -e\n[ "$1" != purge ] || rm -rf /lib/modules/{kernel} /boot/initrd.img-{kernel}\n'
_HEADERS_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] && [ -d /etc/kernel/header_postinst.d ] || exit 0
run-parts --arg={kernel} /etc/kernel/header_postinst.d
"""
_CC = "#!/bin/sh\necho '{name} (rehearsal stand-in) {version}'\n"


def installed(flavour: str) -> list[str]:
    """Return what a fresh host has, as apt takes it: the first line's older kernel with its meta, and no headers."""
    line = LINES[flavour][0]
    meta = next(name for name in line.metas if name.startswith("linux-image-"))
    return [f"linux-image-{line.kernels[0]}", f"{meta}={line.versions[0]}"]


def repository(flavour: str) -> Iterator[Deb]:
    """Yield the packages of one system."""
    for line in LINES[flavour]:
        for kernel, version in zip(line.kernels, line.versions, strict=True):
            yield _image(kernel, version, line.compiler)
            yield _headers(kernel, version, line.compiler)
            for meta, needs in line.metas.items():
                depends = [
                    f"{need.replace('K', kernel)}" + ("" if "K" in need else f" (= {version})") for need in needs
                ]
                yield Deb(meta, version, fields={"Section": "kernel", "Depends": ", ".join(depends)})
    for major, version in _COMPILERS[flavour].items():
        path = f"/usr/bin/gcc-{major}"
        text = _CC.format(name=f"gcc-{major}", version=version.partition("-")[0])
        links = {f"/usr/bin/x86_64-linux-gnu-gcc-{major}": f"gcc-{major}"}
        yield Deb(
            f"gcc-{major}", version, fields={"Section": "devel"}, files={path: (text.encode(), 0o755)}, links=links
        )
    yield Deb(
        "dkms", _DKMS_VERSION, "all", fields={"Section": "kernel"},
        files={
            "/usr/sbin/dkms": (_DKMS.encode(), 0o755),
            "/usr/lib/dkms/common.postinst": (_DKMS_COMMON.encode(), 0o755),
            "/etc/kernel/postinst.d/dkms": (_DKMS_HOOK.encode(), 0o755),
            "/etc/kernel/header_postinst.d/dkms": (_DKMS_HOOK.encode(), 0o755),
        },
    )  # fmt: skip


def _config(compiler: str) -> bytes:
    return f'CONFIG_CC_VERSION_TEXT="{compiler}"\nCONFIG_RD_GZIP=y\nCONFIG_MODULES=y\n'.encode()


def _image(kernel: str, version: str, compiler: str) -> Deb:
    folder = f"/lib/modules/{kernel}"
    nouveau = module_file("nouveau", "", "GPL and additional rights", kernel)
    files: Files = {
        f"/boot/vmlinuz-{kernel}": (f"rehearsal stand-in of the kernel {kernel}\n".encode(), 0o644),
        f"/boot/config-{kernel}": (_config(compiler), 0o644),
        f"/boot/System.map-{kernel}": (b"", 0o600),
        f"{folder}/kernel/drivers/gpu/drm/nouveau/nouveau.ko": (nouveau, 0o644),
        f"{folder}/modules.builtin": (b"", 0o644),
        f"{folder}/modules.order": (b"kernel/drivers/gpu/drm/nouveau/nouveau.ko\n", 0o644),
    }
    scripts = {
        "postinst": _IMAGE_POSTINST.format(kernel=kernel), "postrm": _IMAGE_POSTRM.format(kernel=kernel),
    }  # fmt: skip
    return Deb(f"linux-image-{kernel}", version, fields={"Section": "kernel"}, files=files, scripts=scripts)


def _headers(kernel: str, version: str, compiler: str) -> Deb:
    folder = f"/usr/src/linux-headers-{kernel}"
    files: Files = {
        f"{folder}/.config": (_config(compiler), 0o644),
        f"{folder}/include/generated/utsrelease.h": (f'#define UTS_RELEASE "{kernel}"\n'.encode(), 0o644),
    }
    return Deb(
        f"linux-headers-{kernel}", version, fields={"Section": "devel"}, files=files,
        links={f"/lib/modules/{kernel}/build": folder},
        scripts={"postinst": _HEADERS_POSTINST.format(kernel=kernel)},
    )  # fmt: skip
