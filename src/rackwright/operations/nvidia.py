"""The NVIDIA driver: kernel prerequisites, one exact set, its rivals kept away, the running module.

Settings: `host.data.driver` ({"branch", "version", "kernel_module", "source", "gpu"} or None for unmanaged),
`host.data.cuda_source` (the repository that has it) and `host.data.rollout` (what may be disturbed).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from rackwright.change import Change, Decision, Reboot, Refusal, Run
from rackwright.operations import apt, exact_set, nvidia_packages
from rackwright.operations.common import MANAGED, file_change, unreadable, written
from rackwright.operations.cuda import repository_of
from rackwright.runtime import planned_operation
from rackwright.sources import CudaSource
from rackwright_facts._parse import debversion, driver_set, kernel_packages
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_driver import DriverState, Flavour, Initramfs, Loaded, Module
from rackwright_facts._parse.pci import PciDevice
from rackwright_facts.gpu import GPUS_AND_FABRIC
from rackwright_facts.look import Look, Section
from rackwright_facts.nvidia import BLACKLIST, DRIVER, INITRAMFS, PROCESSES, RIVALS
from rackwright_facts.packages import APT, INSTALLED, LISTS
from rackwright_facts.pci import PCI
from rackwright_facts.system import ARCHITECTURE, OS_RELEASE, SPACE, files
from rackwright_facts.systemd import Unit, units

PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
SETTINGS_UNIT = "rackwright-gpu-settings.service"
UNITS = units((PERSISTENCED, FABRIC_MANAGER, SETTINGS_UNIT))
_FILES = files((BLACKLIST,))
_INITRAMFS_TIMEOUT_S = 900


class Driver(TypedDict):
    """The driver as it is declared."""

    branch: int
    version: str
    kernel_module: str
    source: str
    gpu: Mapping[str, Any] | None


class Rollout(TypedDict):
    """What may be disturbed on this host."""

    allow_reboot: bool
    allow_disruption: bool
    max_unavailable: int
    reboot_timeout_s: int


def is_debian(look: Look) -> bool:
    """Return whether the node's packages bear Debian's names."""
    return (look[OS_RELEASE].value or {}).get("ID") == "debian"


def seen(look: Look) -> tuple[DriverState, tuple[PciDevice, ...]] | Refusal:
    """Return the driver's state and NVIDIA's devices on the PCI bus, or why they cannot be told."""
    state, devices = look[DRIVER], look[PCI]
    if not state.is_ok or state.value is None:
        return unreadable("which driver the node has", state, "see what uname, modinfo and mokutil say on the node")
    if not devices.is_ok or devices.value is None:
        return unreadable("which GPUs are on the PCI bus", devices, "see /sys/bus/pci/devices on the node")
    return state.value, devices.value


def tools_for(devices: Sequence[PciDevice]) -> tuple[str, ...]:
    """Return the stems of what a machine with NVSwitches needs beside the driver."""
    return ("nvidia-fabricmanager", "libnvidia-nscq") if any(device.is_nvswitch for device in devices) else ()


def repository_for(look: Look, driver: Driver, origin: CudaSource) -> apt.Repository | Refusal | None:
    """Return the repository that has the driver; None for the distribution's own sources."""
    return repository_of(look, origin) if driver["source"] == "nvidia" else None


BASE = (OS_RELEASE, ARCHITECTURE, APT, INSTALLED, LISTS, DRIVER, PCI, apt.own_files("cuda"))


def blacklist() -> bytes:
    """Return what keeps the other drivers away from the GPUs; `alias ... off` stops them by name too."""
    lines = [f"blacklist {name}\n" for name in (*RIVALS, "lbm-nouveau")]
    return (MANAGED + "".join(lines) + "options nouveau modeset=0\nalias nouveau off\nalias lbm-nouveau off\n").encode()


def _modules_reads(*, driver: Driver | None) -> tuple[Section[Any], ...]:
    return (_FILES, INITRAMFS, DRIVER) if driver else ()


@planned_operation(reads=_modules_reads)
def modules(look: Look, *, driver: Driver | None) -> Decision:
    """nouveau and nova blacklisted, in the initramfs too: one that holds them and not the blacklist is built anew."""
    if driver is None:
        return Decision(look)
    own, images = look[_FILES], look[INITRAMFS]
    if not own.is_ok:
        return Decision(look, refusals=(unreadable("the blacklist", own, "see /etc/modprobe.d"),))
    if not images.is_ok and not images.is_absent:
        fix = "see `lsinitramfs` for the image that it names; `update-initramfs -u -k all` builds them anew"
        return Decision(look, refusals=(unreadable("what the initramfs holds", images, fix),))
    change = file_change(BLACKLIST, (own.value or {}).get(BLACKLIST), blacklist())
    changes = [change] if change else []
    found = images.value or ()
    stale = [image for image in found if not image.is_clean or (image.rivals and change is not None)]
    for image in stale:
        build = Run(("update-initramfs", "-u", "-k", image.release), packages=True, timeout_s=_INITRAMFS_TIMEOUT_S)
        holds = "cannot be read" if image.broken else f"holds {', '.join(image.rivals)}"
        changes.append(Change(f"initramfs of {image.release}", holds, "with the blacklist", commands=(build,)))
    clean = tuple(
        Initramfs(release=image.release, rivals=image.rivals, blacklisted=image.blacklisted or image in stale)
        for image in found
    )
    after = look.having(_FILES, Reading.ok(written(own.value or {}, {BLACKLIST: blacklist()})))
    return Decision(after.having(INITRAMFS, Reading.ok(clean)) if images.is_ok else after, tuple(changes))


def _driver_reads(*, driver: Driver | None, origin: CudaSource, rollout: Rollout) -> tuple[Section[Any], ...]:
    return (*BASE, SPACE, PROCESSES, UNITS, nvidia_packages.PINS.file) if driver else ()


@planned_operation(reads=_driver_reads)
def packages(look: Look, *, driver: Driver | None, origin: CudaSource, rollout: Rollout) -> Decision:
    """The whole driver at one exact version, from one origin, in one transaction, held and pinned.

    The transaction is simulated first; the module is built for the running and the next kernel before anything is
    replaced; a host whose GPUs are at work is stopped before the first package, unless its disruption is allowed.
    """
    if driver is None:
        return Decision(look)
    have, repository = seen(look), repository_for(look, driver, origin)
    for refusal in (have, repository):
        if isinstance(refusal, Refusal):
            return Decision(look, refusals=(refusal,))
    assert not isinstance(have, Refusal) and not isinstance(repository, Refusal)
    state, devices = have
    if state.runfile:
        return Decision(look, refusals=(_runfile(state),))
    kind = nvidia_packages.flavour(devices, driver["branch"], driver["kernel_module"])
    if isinstance(kind, Refusal):
        return Decision(look, refusals=(kind,))
    wanted = nvidia_packages.want(
        look, repository, branch=driver["branch"], version=driver["version"], kind=kind, debian=is_debian(look),
        tools=tools_for(devices),
    )  # fmt: skip
    if isinstance(wanted, Refusal):
        return Decision(look, refusals=(wanted,))
    moves = exact_set.transaction(look, repository, wanted)
    if isinstance(moves, Refusal):
        return Decision(look, refusals=(moves,))
    if moves:
        brought = {move.what.removeprefix("package "): move.after for move in moves if move.after is not None}
        more = driver_set.beside(wanted.versions, brought)
        wanted = replace(wanted, versions={**wanted.versions, **more})
        against = _stands_against(look, state, rollout, by_dkms=any("dkms" in name for name in wanted.versions))
        if against is not None:
            return Decision(look, refusals=(against,))
        moves = (_built_first(moves[0], wanted.versions, state), *moves[1:])
    metas = kernel_packages.followed(look[INSTALLED].value or {})
    held = _kernel_holds(look, metas)
    built = _missing_modules(state, wanted.versions) if not moves else ()
    changes = (*moves, *built, *wanted.pins.changes(look, repository, wanted.versions, moves), *held)
    if not changes:
        return Decision(look)
    after = exact_set.after(look, repository, wanted, moves)
    if held:
        after = after.having(INSTALLED, Reading.ok(_with_holds(after[INSTALLED].value or {}, metas)))
    if moves or built:
        after = after.having(DRIVER, Reading.ok(_driver_after(state, wanted.versions, kind)))
        after = after.having(GPUS_AND_FABRIC, Reading.unknown("after nvidia.packages"))
        # Packages start and stop their services themselves: how these stand now is only a guess at how they will.
        there = Reading(status="unknown", value=look[UNITS].value, reason="after nvidia.packages")
        after = after.having(UNITS, there)
    return Decision(after, changes)


def _runfile(state: DriverState) -> Refusal:
    return Refusal(
        what=f"a driver from a .run file is installed: {', '.join(state.runfile[:3])}",
        where="files that no package owns",
        fix="take it away with `nvidia-uninstall --silent` (its GPUs must be idle), then run again; packages are never "
        "laid over it",
    )


def _stands_against(look: Look, state: DriverState, rollout: Rollout, *, by_dkms: bool) -> Refusal | None:
    if by_dkms and state.secure_boot and not state.key_enrolled:
        return Refusal(
            what="Secure Boot is on, and the key that dkms signs with is not enrolled: the module would not load",
            where="mokutil --sb-state; /var/lib/shim-signed/mok/MOK.der",
            fix="enrol it (`update-secureboot-policy --enroll-key`, then confirm at the console or BMC on the next "
            "boot), or leave `driver` out and take the distribution's signed modules, or turn Secure Boot off",
        )
    processes = look[PROCESSES]
    if not processes.is_ok:
        return unreadable("whether GPUs are at work", processes, "see nvidia-smi and /proc/*/fd on the node")
    if processes.value and not rollout["allow_disruption"]:
        shown = "; ".join(map(str, processes.value[:5])) + (" ..." if len(processes.value) > 5 else "")
        return Refusal(
            what=f"GPUs are at work, and a driver change would end it: {shown}",
            where="nvidia-smi --query-compute-apps, /proc/*/fd",
            fix="let it end (drain the node), or name this host in rollout.allow_disruption",
        )
    return None


# The source is fetched and built aside, for each kernel: what fails there fails before a package is touched.
_TRIAL = """set -e
t=$(mktemp -d /var/tmp/rackwright-dkms.XXXXXXXX); trap 'rm -rf "$t"' EXIT; cd "$t"; chmod 0755 "$t"
package=$1; shift
apt-get download -q -o APT::Sandbox::User=root "$package"
mkdir unpacked tree; dpkg-deb -x ./*.deb unpacked
name=$(basename unpacked/usr/src/nvidia*); version=${name##*-}; name=${name%-*}
for kernel; do
  dkms add --sourcetree "$t/unpacked/usr/src" --dkmstree "$t/tree" -m "$name" -v "$version" >/dev/null || true
  dkms build --sourcetree "$t/unpacked/usr/src" --dkmstree "$t/tree" -m "$name" -v "$version" -k "$kernel" || {
    echo "the module $version does not build for $kernel; nothing was replaced" >&2
    tail -n 20 "$t"/tree/"$name"/"$version"/build/make.log >&2; exit 1
  }
done"""


def _built_first(move: Change, versions: Mapping[str, str], state: DriverState) -> Change:
    """Return the first package change with the module's trial build before it."""
    source = next(
        (name for name in versions if re.match(r"^nvidia-(kernel-source|kernel-(open-)?dkms|open-kernel-dkms)", name)),
        None,
    )
    if source is None:
        return move  # prebuilt modules
    kernels = tuple(dict.fromkeys((state.running, state.next_boot)))
    trial = Run(
        ("bash", "-c", _TRIAL, "trial", f"{source}={versions[source]}", *kernels),
        packages=True,
        timeout_s=3600,
    )
    return Change(move.what, move.before, move.after, move.cost, move.known, (trial, *move.commands))


def _missing_modules(state: DriverState, versions: Mapping[str, str]) -> tuple[Change, ...]:
    """Build what the packages' own scripts have left out, for the running kernel and the next one."""
    if not any("dkms" in name for name in versions):
        return ()
    wanted = debversion.upstream(next(iter(versions.values())))
    kernels = [state.kernel(release) for release in dict.fromkeys((state.running, state.next_boot))]
    return tuple(
        Change(
            f"module nvidia for {kernel.release}",
            kernel.module.version if kernel.module else None,
            wanted,
            commands=(Run(("dkms", "autoinstall", "-k", kernel.release), packages=True, timeout_s=3600),),
        )
        for kernel in kernels
        if kernel.headers and (kernel.module is None or kernel.module.version != wanted)
    )


def _kernel_holds(look: Look, metas: Mapping[str, str]) -> tuple[Change, ...]:
    """A new kernel would become the boot default without a module that was built for it: its metas are held."""
    installed = look[INSTALLED].value or {}
    loose = sorted(name for name in metas if not installed[name].held)
    if not loose:
        return ()
    return (Change(f"hold on {', '.join(loose)}", "not held", "held",
                   commands=(Run(("apt-mark", "hold", *loose), packages=True),)),)  # fmt: skip


def _with_holds(installed: Mapping[str, Package], names: Mapping[str, str]) -> dict[str, Package]:
    return {
        name: package.model_copy(update={"want": "hold"}) if name in names else package
        for name, package in installed.items()
    }


def _driver_after(state: DriverState, versions: Mapping[str, str], kind: Flavour) -> DriverState:
    """Return the driver as it will be: modules for all kernels with headers, libraries; what runs still runs."""
    upstream = debversion.upstream(next(iter(versions.values())))
    license_ = "Dual MIT/GPL" if kind == "open" else "NVIDIA"
    kernels = tuple(
        one.model_copy(update={"module": Module(version=upstream, license=license_)}) if one.headers else one
        for one in state.kernels
    )
    libraries = {"libcuda": upstream, "libnvidia-ml": upstream}
    if any(name.startswith("libnvidia-nscq") for name in versions):
        libraries["libnvidia-nscq"] = upstream
    return state.model_copy(update={"kernels": kernels, "libraries": libraries})


def _running_reads(*, driver: Driver | None, rollout: Rollout) -> tuple[Section[Any], ...]:
    return (DRIVER, PCI, PROCESSES, INITRAMFS, UNITS) if driver else ()


@planned_operation(reads=_running_reads)
def running(look: Look, *, driver: Driver | None, rollout: Rollout) -> Decision:
    """The module that is installed is the one that runs: loaded, or by a reboot where that is needed and allowed."""
    if driver is None:
        return Decision(look)
    have = seen(look)
    if isinstance(have, Refusal):
        return Decision(look, refusals=(have,))
    state, devices = have
    if not any(device.is_gpu for device in devices):
        return Decision(look)
    here, after_boot = state.kernel(state.running).module, state.kernel(state.next_boot).module
    loaded = state.loaded
    if loaded and here and (loaded.version, loaded.flavour) == (here.version, here.flavour) and not state.rivals:
        return Decision(look)
    if loaded is None and here is not None and not any(state.rivals.values()):
        changes = [
            Change(f"module {rival}", "loaded", None, commands=(Run(("modprobe", "-r", rival.replace("_", "-"))),))
            for rival in state.rivals
        ]
        load = Run(("modprobe", "-a", "nvidia", "nvidia-uvm"))
        changes.append(Change("module nvidia", "not loaded", here.version, commands=(load,)))
        alone = state.model_copy(update={"rivals": {}})
        after = look.having(DRIVER, Reading.ok(_loaded(alone, here)))
        return Decision(after.having(GPUS_AND_FABRIC, Reading.unknown("after nvidia.running")), tuple(changes))
    if after_boot is None:
        return Decision(look, refusals=(_no_module(state),))
    before = loaded.version if loaded else ", ".join(state.rivals) or "no module for this kernel"
    what = f"the running module is {before}, installed is {after_boot.version}"
    if not rollout["allow_reboot"]:
        return Decision(look, waiting=(what,))
    against = _at_work(look, rollout)
    if against is not None:
        return Decision(look, refusals=(against,))
    booted = state.model_copy(update={"running": state.next_boot, "rivals": {}})
    after = (
        look.having(DRIVER, Reading.ok(_loaded(booted, after_boot)))
        .having(GPUS_AND_FABRIC, Reading.unknown("after the reboot"))
        .having(PROCESSES, Reading.ok(()))
        .having(UNITS, _booted(look[UNITS]))
    )
    reboot = Reboot(at_a_time=rollout["max_unavailable"], timeout_s=rollout["reboot_timeout_s"])
    change = Change("running module nvidia", before, after_boot.version, cost=("reboot",), commands=(reboot,))
    return Decision(after, (change,))


def _at_work(look: Look, rollout: Rollout) -> Refusal | None:
    processes = look[PROCESSES]
    if (processes.is_ok and not processes.value) or rollout["allow_disruption"]:
        return None
    if not processes.is_ok:
        return unreadable("whether GPUs are at work", processes, "see nvidia-smi on the node")
    return Refusal(
        what=f"a reboot is needed, and GPUs are at work: {'; '.join(map(str, (processes.value or ())[:5]))}",
        where="nvidia-smi --query-compute-apps, /proc/*/fd",
        fix="let it end (drain the node), or name this host in rollout.allow_disruption",
    )


def _booted(reading: Reading[Mapping[str, Unit]]) -> Reading[Mapping[str, Unit]]:
    """What is enabled starts with the system, where the module that it needs is there."""
    if not reading.is_ok or reading.value is None:
        return reading
    starts = {"active": "active", "result": "success"}
    return Reading.ok(
        {
            name: unit.model_copy(update=starts if unit.file == "enabled" else {"active": "inactive"})
            for name, unit in reading.value.items()
        }
    )


def _loaded(state: DriverState, module: Module) -> DriverState:
    return state.model_copy(update={"loaded": Loaded(version=module.version, flavour=module.flavour)})


def _no_module(state: DriverState) -> Refusal:
    return Refusal(
        what=f"there is no nvidia module for the kernel {state.next_boot}, which the next boot takes",
        where=f"modinfo -k {state.next_boot} nvidia",
        fix=f"see `dkms status` and /var/lib/dkms/nvidia/*/build/make.log; `dkms autoinstall -k {state.next_boot}`",
    )


def parts_version(look: Look) -> str | None:
    """Return the upstream version of the installed driver, None when there is none or it is split."""
    parts = driver_set.installed_parts(look[INSTALLED].value or {})
    versions = {
        debversion.upstream(package.version)
        for name, package in parts.items()
        if not driver_set.is_meta(name) and name != driver_set.PERSISTENCED  # Debian's has a version of its own
    }
    return next(iter(versions)) if len(versions) == 1 else None
