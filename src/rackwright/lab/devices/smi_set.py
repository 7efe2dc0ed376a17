"""What nvidia-smi sets: until the next boot in /run, ECC for the next boot and Ampere's MIG mode in the hardware."""

from __future__ import annotations

import os
from collections.abc import Callable

from .smi_device import View
from .smi_rows import on_off
from .state import Answer, Machine

# Spelling -> what it sets.
NAMES = {
    "-pm": "persistence", "--persistence-mode": "persistence", "-pl": "power", "--power-limit": "power",
    "-e": "ecc", "--ecc-config": "ecc", "-p": "reset_ecc", "--reset-ecc-errors": "reset_ecc", "-c": "compute",
    "--compute-mode": "compute", "-lgc": "graphics_clocks", "--lock-gpu-clocks": "graphics_clocks",
    "-rgc": "no_graphics_clocks", "--reset-gpu-clocks": "no_graphics_clocks", "-lmc": "memory_clocks",
    "--lock-memory-clocks": "memory_clocks", "-rmc": "no_memory_clocks", "--reset-memory-clocks": "no_memory_clocks",
    "-mig": "mig", "--multi-instance-gpu": "mig", "-r": "reset", "--gpu-reset": "reset",
}  # fmt: skip
BARE = ("no_graphics_clocks", "no_memory_clocks", "reset")
_COMPUTE = {
    "0": "Default", "DEFAULT": "Default", "2": "Prohibited", "PROHIBITED": "Prohibited", "3": "Exclusive_Process",
    "EXCLUSIVE_PROCESS": "Exclusive_Process",
}  # fmt: skip
_INVALID, _NOT_SUPPORTED, _PERMISSION, _OTHER = 2, 3, 4, 255
_EARLY = "Terminating early due to previous errors.\n"
_SWITCH = {"0": False, "DISABLED": False, "1": True, "ENABLED": True}
_BUSY = (
    "{0} is currently being used by one or more other processes (e.g. CUDA application or a monitoring application "
    "such as another instance of nvidia-smi). Please first kill all processes using the device and retry the command "
    "or reboot the system to make MIG mode effective.\n"
)


class _Refused(Exception):
    """A board that does not take a value: the words and the exit status."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


def apply(machine: Machine, chosen: list[View], settings: list[tuple[str, str]]) -> Answer:
    """Set each value on each chosen GPU, and say so; the first board that refuses ends it."""
    out = ""
    with machine.changing():
        for setting, value in settings:
            for view in chosen:
                if os.geteuid() != 0:
                    text = f"Unable to set {setting} for GPU {view.bus_id}: Insufficient Permissions\n"
                    return Answer(out + text + _EARLY, code=_PERMISSION)
                try:
                    out += _ACTIONS[setting](machine, view, value)
                except _Refused as refused:
                    return Answer(out + refused.text + _EARLY, code=refused.code)
            out += "All done.\n"
            if setting == "ecc":
                out += "Reboot required.\n"
    return Answer(out)


def keep(machine: Machine, view: View, **values: object) -> None:
    """Remember values of a GPU until the next boot; None forgets one."""
    every = machine.settings
    mine = every.setdefault(view.gpu["uuid"], {})
    for name, value in values.items():
        if value is None:
            mine.pop(name, None)
        else:
            mine[name] = value
    machine.settings = every
    view.settings.update(mine)


def _keep_in_hardware(machine: Machine, view: View, name: str, value: bool) -> None:
    hardware = machine.hardware
    hardware["gpus"][view.gpu["index"]]["settings"][name] = value
    machine.hardware = hardware


def _switch(value: str, option: str) -> bool:
    if value.upper() not in _SWITCH:
        raise _Refused(f"Invalid value for {option}: {value}. Please run 'nvidia-smi -h' for help.\n", _INVALID)
    return _SWITCH[value.upper()]


def _persistence(machine: Machine, view: View, value: str) -> str:
    wanted = _switch(value, "-pm")
    if bool(view.settings.get("persistence")) == wanted:
        return f"Persistence mode is already {on_off(wanted)} for GPU {view.bus_id}.\n"
    keep(machine, view, persistence=wanted)
    return f"{on_off(wanted)} persistence mode for GPU {view.bus_id}.\n"


def _power(machine: Machine, view: View, value: str) -> str:
    try:
        wanted = float(value)
    except ValueError:
        raise _Refused(f"Invalid power limit: {value}\n", _INVALID) from None
    least, default, most = view.board.power
    if not least <= wanted <= most:
        raise _Refused(
            f"Provided power limit {wanted:.2f} W is not a valid power limit which should be between {least:.2f} W and "
            f"{most:.2f} W for GPU {view.bus_id}\n",
            _INVALID,
        )
    # The real tool names the default as the value before, whatever was set.
    text = f"Power limit for GPU {view.bus_id} was set to {wanted:.2f} W from {default:.2f} W.\n"
    if not view.settings.get("persistence"):
        text += (
            f"\nWarning: persistence mode is disabled on GPU {view.bus_id}. See the Known Issues section of the "
            "nvidia-smi(1) man page for more information. Run with [--help | -h] switch to get more information on how "
            "to enable persistence mode.\n\n"
        )
    keep(machine, view, power_limit_w=wanted)
    return text


def _ecc(machine: Machine, view: View, value: str) -> str:
    wanted = _switch(value, "-e")
    if not view.board.banks and not view.board.is_data_center:
        raise _Refused(f"ECC is not supported for GPU {view.bus_id}.\n", _NOT_SUPPORTED)
    _keep_in_hardware(machine, view, "ecc_pending", wanted)
    return f"{on_off(wanted)} ECC support for GPU {view.bus_id}.\n"


def _reset_ecc(machine: Machine, view: View, value: str) -> str:
    if value.upper() not in ("0", "VOLATILE", "1", "AGGREGATE"):
        raise _Refused(f"Invalid value for -p: {value}\n", _INVALID)
    span = "volatile" if value.upper() in ("0", "VOLATILE") else "aggregate"
    hardware = machine.hardware
    counts = hardware["gpus"][view.gpu["index"]]["ecc"]
    counts[span] = dict.fromkeys(counts[span], 0)
    machine.hardware = hardware
    return f"Reset {span} ECC errors to zero for GPU {view.bus_id}.\n"


def _compute(machine: Machine, view: View, value: str) -> str:
    mode = _COMPUTE.get(value.upper())
    if mode is None:
        raise _Refused(f"Invalid compute mode: {value}\n", _INVALID)
    keep(machine, view, compute_mode=mode)
    return f"Set compute mode to {mode.upper()} for GPU {view.bus_id}.\n"


def _range(value: str) -> list[int]:
    parts = value.split(",")
    if len(parts) > 2 or not all(part.strip().isdigit() for part in parts):
        raise _Refused(f"Invalid clocks: {value}\n", _INVALID)
    return [int(parts[0]), int(parts[-1])]


def _graphics_clocks(machine: Machine, view: View, value: str) -> str:
    low, high = _range(value)
    keep(machine, view, graphics_clocks=[low, high])
    return f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high})" for GPU {view.bus_id}\n'


def _memory_clocks(machine: Machine, view: View, value: str) -> str:
    low, high = _range(value)
    keep(machine, view, memory_clocks=[low, high])
    return f'Memory clocks set to "(memClkMin {low}, memClkMax {high})" for GPU {view.bus_id}\n'


def _no_graphics_clocks(machine: Machine, view: View, value: str) -> str:
    keep(machine, view, graphics_clocks=None)
    return f"All done with resetting GPU clocks for GPU {view.bus_id}\n"


def _no_memory_clocks(machine: Machine, view: View, value: str) -> str:
    keep(machine, view, memory_clocks=None)
    return f"All done with resetting memory clocks for GPU {view.bus_id}\n"


def _mig(machine: Machine, view: View, value: str) -> str:
    wanted = _switch(value, "-mig")
    if view.mig is None:
        raise _Refused(f"Unable to enable MIG Mode for GPU {view.bus_id}: Not Supported\n", _NOT_SUPPORTED)
    if view.gpu["processes"]:
        keep(machine, view, mig_pending=wanted)
        state = "enable" if wanted else "disable"
        text = f"Warning: MIG mode is in pending {state} state for GPU {view.bus_id}:In use by another client\n"
        return text + _BUSY.format(view.bus_id)
    _keep_in_hardware(machine, view, "mig", wanted)
    keep(machine, view, mig_pending=None, mig_instances=None)
    return f"{on_off(wanted)} MIG Mode for GPU {view.bus_id}\n"


def _reset(machine: Machine, view: View, value: str) -> str:
    if view.gpu["processes"] or (machine.run("fabricmanager").exists() and not view.is_hopper_or_newer):
        raise _Refused(
            f"GPU {view.bus_id} is currently in use by another process.\n\n1 device is currently being used by one or "
            "more other processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, "
            "or a monitoring application such as another instance of nvidia-smi). Please first kill all processes "
            "using this device and all compute applications running in the system.\n",
            _OTHER,
        )
    keep(machine, view, power_limit_w=None, graphics_clocks=None, memory_clocks=None, mig_instances=None)
    return f"GPU {view.bus_id} was successfully reset.\n"


_ACTIONS: dict[str, Callable[[Machine, View, str], str]] = {
    "persistence": _persistence, "power": _power, "ecc": _ecc, "reset_ecc": _reset_ecc, "compute": _compute,
    "graphics_clocks": _graphics_clocks, "no_graphics_clocks": _no_graphics_clocks, "memory_clocks": _memory_clocks,
    "no_memory_clocks": _no_memory_clocks, "mig": _mig, "reset": _reset,
}  # fmt: skip
