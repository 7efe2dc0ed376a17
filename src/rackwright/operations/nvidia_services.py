"""What runs beside the driver: persistence, fabric manager, GPU settings at boot; and the proof of the whole."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rackwright.change import Change, Decision, Refusal, Run
from rackwright.operations.common import MANAGED, file_change, unreadable, written
from rackwright.operations.nvidia import (
    FABRIC_MANAGER,
    PERSISTENCED,
    SETTINGS_UNIT,
    UNITS,
    Driver,
    Rollout,
    parts_version,
    seen,
)
from rackwright.runtime import planned_operation
from rackwright_facts._parse import debversion, driver_set
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_driver import DriverState
from rackwright_facts._parse.pci import PciDevice
from rackwright_facts.gpu import GPUS_AND_FABRIC
from rackwright_facts.look import Look, Section
from rackwright_facts.nvidia import DRIVER, PROCESSES
from rackwright_facts.packages import INSTALLED
from rackwright_facts.pci import PCI
from rackwright_facts.system import FileState, files
from rackwright_facts.systemd import Unit

_DROP_IN = f"/etc/systemd/system/{PERSISTENCED}.d/rackwright.conf"
_SETTINGS_FILE = f"/etc/systemd/system/{SETTINGS_UNIT}"
_SETTINGS_SCRIPT = "/usr/local/sbin/rackwright-gpu-settings"
_FILES = files((_DROP_IN, _SETTINGS_FILE, _SETTINGS_SCRIPT))
_COMPUTE_MODES = {"default": 0, "exclusive_process": 3, "prohibited": 2}

# The package's unit has --no-persistence-mode; ExecStart is set anew by emptying it first (systemd.service(5)).
_PERSISTENCE = f"""{MANAGED}[Service]
ExecStart=
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode --verbose
"""
_SETTINGS = f"""{MANAGED}[Unit]
Description=GPU settings that a reboot forgets, as rackwright declares them
After={PERSISTENCED} {FABRIC_MANAGER}
Before=docker.service slurmd.service nvidia-cdi-refresh.service nvidia-dcgm.service
ConditionPathExists=/proc/driver/nvidia/version

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={_SETTINGS_SCRIPT}

[Install]
WantedBy=multi-user.target
"""


def settings_script(gpu: Mapping[str, Any]) -> bytes:
    """Return the script that puts the declared settings in place, each only where it differs: POSIX sh."""
    lines = ["#!/bin/sh", MANAGED.strip(), "set -e"]
    if gpu["ecc"] is not None:
        lines.append(f"nvidia-smi -e {int(gpu['ecc'])} >/dev/null  # pending until the next reboot")
    if gpu["compute_mode"] is not None:
        lines.append(f"nvidia-smi -c {_COMPUTE_MODES[gpu['compute_mode']]} >/dev/null")
    if gpu["power_limit_w"] is not None:
        lines.append(f"nvidia-smi -pl {gpu['power_limit_w']} >/dev/null")
    if gpu["graphics_clocks_mhz"] is not None:
        lines.append(f"nvidia-smi -lgc {','.join(map(str, gpu['graphics_clocks_mhz']))} >/dev/null")
    if gpu["mig"] is not None:
        lines += _mig(gpu["mig"])
    return ("\n".join(lines) + "\n").encode()


def _mig(profiles: Sequence[str]) -> list[str]:
    """MIG mode survives a reboot on Ampere alone, its instances never: what is there already is let be."""
    mode = int(bool(profiles))
    state = ("Disabled", "Enabled")[mode]
    current = "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader"
    lines = [f"{current} | grep -qvx {state} && nvidia-smi -mig {mode} >/dev/null || true"]
    if profiles:
        names = ",".join(profiles)
        lines.append(f"nvidia-smi -L | grep -q MIG- || nvidia-smi mig -cgi {shlex.quote(names)} -C >/dev/null")
    return lines


def _services_reads(*, driver: Driver | None, rollout: Rollout) -> tuple[Section[Any], ...]:
    return (DRIVER, PCI, INSTALLED, PROCESSES, _FILES, UNITS) if driver else ()


@planned_operation(reads=_services_reads)
def services(look: Look, *, driver: Driver | None, rollout: Rollout) -> Decision:
    """Persistence by drop-in, fabric manager where there is an NVSwitch, declared GPU settings at each boot.

    Nothing here stops a fabric manager that runs: its version goes with the driver's packages.
    """
    if driver is None:
        return Decision(look)
    have = seen(look)
    if isinstance(have, Refusal):
        return Decision(look, refusals=(have,))
    state, devices = have
    if not any(device.is_gpu for device in devices):
        return Decision(look)
    own, there = look[_FILES], look[UNITS]
    for reading, what in ((own, "rackwright's units"), (there, "what systemd runs")):
        if not reading.is_ok and not reading.is_unknown:
            return Decision(look, refusals=(unreadable(what, reading, "see systemctl on the node"),))
    wanted = _wanted_files(driver)
    now = dict(there.value or {})
    changes = _no_longer(driver, now)
    changes += _file_changes(own.value or {}, wanted)
    if any(change.what in (f"file {_DROP_IN}", f"file {_SETTINGS_FILE}") for change in changes):
        changes.append(Change("systemd", "older units", "read anew", commands=(Run(("systemctl", "daemon-reload")),)))
    rewritten = {change.what.removeprefix("file ") for change in changes}
    refused = _settings_at_work(look, driver, rewritten, rollout)
    if refused is not None:
        return Decision(look, refusals=(refused,))
    if is_current(state):  # until the reboot that brings the module, none of them can start
        for unit, restart in _wanted_units(driver, devices, rewritten).items():
            step = _unit_change(unit, now.get(unit), restart=restart, known=there.is_ok)
            if step is not None:
                changes.append(step)
                now[unit] = Unit(load="loaded", active="active", file="enabled", result="success")
    if not changes:
        return Decision(look)
    after = look.having(_FILES, Reading.ok(_after(own.value or {}, wanted))).having(UNITS, Reading.ok(now))
    return Decision(after.having(GPUS_AND_FABRIC, Reading.unknown("after nvidia.services")), tuple(changes))


def _no_longer(driver: Driver, now: dict[str, Unit]) -> list[Change]:
    """Take the unit of GPU settings away when none are declared; what it has set stays until the next boot."""
    unit = now.get(SETTINGS_UNIT)
    if driver["gpu"] or unit is None or unit.file != "enabled":
        return []
    now[SETTINGS_UNIT] = Unit(load="not-found", active="inactive")
    disable = Run(("systemctl", "disable", "--now", SETTINGS_UNIT))
    return [Change(f"unit {SETTINGS_UNIT}", f"{unit.active}, {unit.file}", None, commands=(disable,))]


def is_current(state: DriverState) -> bool:
    """Return whether the running module is the one that is installed for the running kernel."""
    module = state.kernel(state.running).module
    return state.loaded is not None and module is not None and state.loaded.version == module.version


def _wanted_files(driver: Driver) -> dict[str, bytes | None]:
    gpu = driver["gpu"]
    return {
        _DROP_IN: _PERSISTENCE.encode(),
        _SETTINGS_FILE: _SETTINGS.encode() if gpu else None,
        _SETTINGS_SCRIPT: settings_script(gpu) if gpu else None,
    }


def _mode(path: str) -> int:
    return 0o755 if path == _SETTINGS_SCRIPT else 0o644


def _file_changes(own: Mapping[str, FileState], wanted: Mapping[str, bytes | None]) -> list[Change]:
    steps = (file_change(path, own.get(path), content, mode=_mode(path)) for path, content in wanted.items())
    return [step for step in steps if step is not None]


def _after(own: Mapping[str, FileState], wanted: Mapping[str, bytes | None]) -> dict[str, FileState]:
    after = written(own, wanted)
    return {path: state.model_copy(update={"mode": _mode(path)}) for path, state in after.items()}


def _settings_at_work(look: Look, driver: Driver, rewritten: set[str], rollout: Rollout) -> Refusal | None:
    """MIG and ECC take GPUs away from who uses them."""
    gpu = driver["gpu"]
    if not gpu or _SETTINGS_SCRIPT not in rewritten or (gpu["mig"] is None and gpu["ecc"] is None):
        return None
    processes = look[PROCESSES]
    if rollout["allow_disruption"] or (processes.is_ok and not processes.value):
        return None
    if not processes.is_ok:
        return unreadable("whether GPUs are at work", processes, "see nvidia-smi on the node")
    return Refusal(
        what=f"MIG or ECC is to change, and GPUs are at work: {'; '.join(map(str, (processes.value or ())[:5]))}",
        where="driver.gpu",
        fix="let it end (drain the node), or name this host in rollout.allow_disruption",
    )


def _wanted_units(driver: Driver, devices: Sequence[PciDevice], rewritten: set[str]) -> dict[str, bool]:
    """Return unit -> whether it has to be restarted for what was written."""
    wanted = {PERSISTENCED: _DROP_IN in rewritten}
    if any(device.is_nvswitch for device in devices):
        wanted[FABRIC_MANAGER] = False
    if driver["gpu"]:
        wanted[SETTINGS_UNIT] = bool(rewritten & {_SETTINGS_FILE, _SETTINGS_SCRIPT})
    return wanted


def _unit_change(name: str, unit: Unit | None, *, restart: bool, known: bool) -> Change | None:
    """`known` is False when packages that are yet to come may enable and start the unit themselves."""
    before = f"{unit.active}, {unit.file or 'not enabled'}" if unit else None
    commands = []
    if unit is None or unit.file != "enabled":
        commands.append(Run(("systemctl", "enable", name)))
    if restart and unit is not None and unit.active == "active":
        return Change(
            f"unit {name}", before, "restarted", (f"restart:{name}",), known,
            commands=(*commands, Run(("systemctl", "restart", name))),
        )  # fmt: skip
    if unit is None or unit.active != "active":
        commands += [Run(("systemctl", "reset-failed", name)), Run(("systemctl", "start", name), timeout_s=600)]
        if unit is None or unit.active != "failed":
            commands.remove(Run(("systemctl", "reset-failed", name)))
    if not commands:
        return None
    return Change(f"unit {name}", before, "active, enabled", known=known, commands=tuple(commands))


_TIERS = {"entry": 1, "professional": 2, "enterprise": 8}
"""GPUs of the guide's tiers: one RTX 4090, two A100, eight H100."""


def _proof_reads(*, driver: Driver | None, tier: str | None) -> tuple[Section[Any], ...]:
    return (DRIVER, PCI, INSTALLED, GPUS_AND_FABRIC, UNITS) if driver else ()


@planned_operation(reads=_proof_reads)
def proof(look: Look, *, driver: Driver | None, tier: str | None) -> Decision:
    """The driver is one: module loaded, on disk, libraries, nvidia-smi and fabric manager; and drives every GPU."""
    if driver is None:
        return Decision(look)
    have = seen(look)
    if isinstance(have, Refusal):
        return Decision(look, refusals=(have,))
    state, devices = have
    gpus = [device for device in devices if device.is_gpu]
    declared = _TIERS.get(tier or "")
    if declared is not None and len(gpus) != declared:
        return Decision(look, refusals=(_count(f"{len(gpus)} GPUs are on the PCI bus, {declared} are declared", tier),))
    if not gpus:
        return Decision(look, notes=(f"NVIDIA driver {parts_version(look) or 'not whole'}: installed, no GPU",))
    if not is_current(state) or look[GPUS_AND_FABRIC].is_unknown:
        return Decision(look)
    wrong = _apart(look, state, devices)
    reading = look[GPUS_AND_FABRIC]
    if not reading.is_ok or reading.value is None:
        return Decision(
            look, refusals=(unreadable("whether the GPUs work", reading, "see nvidia-smi and dmesg (Xid)"),)
        )
    log = reading.value
    if log.driver_version != state.loaded.version if state.loaded else True:
        wrong.append(f"nvidia-smi says {log.driver_version}")
    if wrong:
        refusal = Refusal(
            f"the driver is not one: {'; '.join(wrong)}", "module, libraries, nvidia-smi, fabric manager",
            "run again; where another tool manages some of it, let one of them",
        )  # fmt: skip
        return Decision(look, refusals=(refusal,))
    if len(log.gpus) != len(gpus):
        lost = sorted({gpu.address for gpu in gpus} - {str(gpu.bus_id) for gpu in log.gpus})
        what = f"the driver sees {len(log.gpus)} of {len(gpus)} GPUs; not {', '.join(lost)}"
        return Decision(look, refusals=(_count(what, tier),))
    fabric = ""
    if any(device.is_nvswitch for device in devices):
        states = {str(gpu.fabric.state) if gpu.fabric else "absent" for gpu in log.gpus}
        has_state = any(gpu.fabric is not None and isinstance(gpu.fabric.state, str) for gpu in log.gpus)
        if has_state and states != {"Completed"}:
            refusal = Refusal(
                f"the NVLink fabric is not ready: {', '.join(sorted(states))}", f"nvidia-smi -q, {FABRIC_MANAGER}",
                f"see `journalctl -u {FABRIC_MANAGER}`",
            )  # fmt: skip
            return Decision(look, refusals=(refusal,))
        fabric = ", fabric completed" if has_state else ", fabric manager active"
    kind = state.loaded.flavour if state.loaded else ""
    return Decision(look, notes=(f"NVIDIA driver {log.driver_version} ({kind}): {len(gpus)}/{len(gpus)} GPUs{fabric}",))


def _count(what: str, tier: str | None) -> Refusal:
    return Refusal(
        what, "nvidia-smi, /sys/bus/pci/devices",
        "see dmesg for Xid 79, the board's power and seating" + (f", or another tier than {tier}" if tier else ""),
    )  # fmt: skip


def _apart(look: Look, state: DriverState, devices: Sequence[PciDevice]) -> list[str]:
    """Return what is of another version than the running module."""
    assert state.loaded is not None
    version = state.loaded.version
    wrong = [f"{name} is {found}" for name, found in state.libraries.items() if found != version]
    if parts_version(look) != version:
        wrong.append(f"the packages are {parts_version(look) or 'of several versions'}")
    installed = driver_set.installed_parts(look[INSTALLED].value or {})
    if any(device.is_nvswitch for device in devices):
        manager = next((one for name, one in installed.items() if name.startswith("nvidia-fabricmanager")), None)
        if manager is None or debversion.upstream(manager.version) != version:
            wrong.append(f"fabric manager is {manager.version if manager else 'absent'}")
        unit = (look[UNITS].value or {}).get(FABRIC_MANAGER)
        if look[UNITS].is_ok and (unit is None or unit.active != "active"):
            wrong.append(f"{FABRIC_MANAGER} is {unit.active if unit else 'absent'}")
    return [f"the running module is {version}, {one}" for one in wrong]
