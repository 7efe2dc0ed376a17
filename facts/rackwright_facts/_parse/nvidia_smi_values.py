"""The one place that reads a value as nvidia-smi prints it, and the one table of its words for "no value".

N/A, an error and "not supported" stay different things (`Missing.kind`); zero never stands in for missing. A value
that is neither a known word nor of the wanted form is `Missing(kind="error")` with its own text: it hides nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeVar

from rackwright_facts._parse.model import Model

T = TypeVar("T")
Kind = Literal["not_available", "unsupported", "error"]


class Missing(Model):
    """A field that the driver prints, without a value in it.

    `not_available`: there is none here; `unsupported`: this board, mode or driver does not offer it; `error`: the
    driver could not tell, which is a finding about that GPU.
    """

    kind: Kind
    text: str
    """The driver's own word, with its brackets."""


# The words of nvidia-smi and of NVML's nvmlErrorString(), lower case, without brackets. What a word means comes from
# the return codes in nvml.h and, for the table's "ERR!", from `man nvidia-smi`.
_WORDS: dict[str, Kind] = {
    "": "not_available",  # an empty cell of --format=csv
    "n/a": "not_available",
    "-": "not_available",
    "not available": "not_available",
    "not found": "not_available",
    "no data": "not_available",
    "not supported": "unsupported",
    "unsupported": "unsupported",
    "function not found": "unsupported",
    "not implemented": "unsupported",
    "requested functionality has been deprecated": "unsupported",
    "err!": "error",
    "error": "error",
    "unknown": "error",
    "unknown error": "error",
    "gpu requires reset": "error",
    "reset required": "error",
    "gpu is lost": "error",
    "insufficient permissions": "error",
    "no permission": "error",
    "timeout": "error",
    "driver not loaded": "error",
    "uninitialized": "error",
}
_BEGINNINGS: dict[str, Kind] = {
    "deprecated, see": "unsupported",  # --version of 610: Deprecated, see "KMD version" instead
    "gpu is lost": "error",  # "GPU is lost.  Reboot the system to recover this GPU"
    "gpu requires reset": "error",
    "insufficient ": "error",
    "unable to ": "error",
    "failed to ": "error",
}

# NVML's "no value" of 32 and 64 bits, which drivers print as a number (nvml.h: NVML_VALUE_NOT_AVAILABLE).
_SENTINELS = frozenset({2**32 - 1, 2**63 - 1, 2**64 - 1})
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z%][A-Za-z%/()]*)?", re.ASCII)

# Bits of clocks_event_reasons.active, before 535 clocks_throttle_reasons.active (nvml.h: nvmlClocksEventReason*).
_CLOCK_REASON_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_CLOCK_REASON_SPELLINGS = {"idle": "gpu_idle", "display_clocks_setting": "display_clock_setting"}

_FLAGS = {
    "yes": True, "no": False, "true": True, "false": False, "active": True, "not active": False,
    "enabled": True, "disabled": False, "1": True, "0": False,
}  # fmt: skip


def missing(text: str) -> Missing | None:
    """Return what a word for "no value" means, or None when `text` is a value."""
    shown = text.strip()
    word = shown[1:-1].strip() if shown.startswith("[") and shown.endswith("]") else shown
    word = " ".join(word.lower().rstrip(".").split())
    kind: Kind | None = _WORDS.get(word)
    if kind is None:
        kind = next((kind for beginning, kind in _BEGINNINGS.items() if word.startswith(beginning)), None)
    return None if kind is None else Missing(kind=kind, text=shown)


def error(text: str) -> Missing:
    """Return a value that cannot be read as what it should be."""
    return Missing(kind="error", text=text.strip())


def word(text: str) -> str | Missing:
    """Return a name, a version, a mode: text as it stands."""
    return missing(text) or text.strip()


def flag(text: str) -> bool | Missing:
    """Return what Yes and No, Active and Not Active, Enabled and Disabled say."""
    said = _FLAGS.get(text.strip().lower())
    return (missing(text) or error(text)) if said is None else said


def _digits(text: str, units: tuple[str, ...]) -> str | Missing:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        none = text.strip().lower() == "none"
        return missing(text) or (Missing(kind="not_available", text=text.strip()) if none else error(text))
    number, unit = match.groups()
    return error(text) if (unit or "") not in units or int(number.split(".")[0]) in _SENTINELS else str(number)


def real(text: str, *units: str) -> float | Missing:
    """Return a number that carries one of `units`; without `units` it must carry none."""
    digits = _digits(text, units or ("",))
    return digits if isinstance(digits, Missing) else float(digits)


def whole(text: str, *units: str) -> int | Missing:
    """Return a whole number that carries one of `units`; without `units` it must carry none."""
    digits = _digits(text, units or ("",))
    if isinstance(digits, Missing):
        return digits
    return error(text) if "." in digits else int(digits)


def count(text: str) -> int | Missing:
    """Return a counter or another number without a unit, never below zero."""
    number = whole(text)
    return error(text) if not isinstance(number, Missing) and number < 0 else number


def mib(text: str) -> int | Missing:
    """Return memory in MiB; drivers before 331 say MB and mean MiB."""
    number = whole(text, "MiB", "MB")
    return error(text) if not isinstance(number, Missing) and number < 0 else number


def watts(text: str) -> float | Missing:
    """Return power in W."""
    return real(text, "W")


def celsius(text: str) -> int | Missing:
    """Return a temperature, or a margin below zero, in degrees Celsius."""
    return whole(text, "C")


def mhz(text: str) -> int | Missing:
    """Return a clock in MHz."""
    return whole(text, "MHz")


def percent(text: str) -> int | Missing:
    """Return a share of 0 to 100 in %; what is above is a driver's mistake, not a utilization."""
    number = whole(text, "%")
    return error(text) if not isinstance(number, Missing) and not 0 <= number <= 100 else number


def fan(text: str) -> int | Missing:
    """Return a fan's speed in % of the intended one, which it may exceed (`man nvidia-smi`)."""
    return whole(text, "%")


def lanes(text: str) -> int | Missing:
    """Return the width of a PCIe link in lanes, printed as `16x` or as `16`."""
    return whole(text, "x", "")


def bus_id(text: str) -> str | Missing:
    """Return a PCI address as sysfs spells it: lower case, the domain of at least four hexadecimal digits."""
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.strip().lower())
    if match is None:
        return missing(text) or error(text)
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def clock_reason(name: str) -> str:
    """Return the name of a clock reason as the bits have it, for what XML, text and CSV call it."""
    plain = re.sub(r"^clocks_(event|throttle)_reasons?[._]", "", name.strip().lower().replace(" ", "_"))
    return _CLOCK_REASON_SPELLINGS.get(plain, plain)


def clock_reasons(mask: str) -> tuple[str, ...] | Missing:
    """Return the names of the bits that are set in clocks_event_reasons.active, `0x0000000000000004`."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", mask.strip()):
        return missing(mask) or error(mask)
    bits = int(mask, 16)
    if bits == 2**64 - 1:
        return error(mask)
    known = tuple(name for bit, name in _CLOCK_REASON_BITS.items() if bits & bit)
    unknown = tuple(f"bit_{at:#x}" for at in (1 << shift for shift in range(9, 64)) if bits & at)
    return known + unknown


def first(values: Iterable[T | Missing | None]) -> T | Missing | None:
    """Return the first that is a value, else the first that is missing, else None: it was not printed."""
    lack: Missing | None = None
    for value in values:
        if isinstance(value, Missing):
            lack = lack or value
        elif value is not None:
            return value
    return lack


def total(parts: Iterable[int | Missing | None]) -> int | Missing | None:
    """Return the sum of the counters that exist; one that could not be read makes the whole sum unreadable."""
    printed = [part for part in parts if part is not None]
    lacking = [part for part in printed if isinstance(part, Missing)]
    numbers = [part for part in printed if not isinstance(part, Missing)]
    unreadable = next((part for part in lacking if part.kind == "error"), None)
    if unreadable is not None or not numbers:
        return unreadable or (lacking[0] if lacking else None)
    return sum(numbers)


def is_whole(text: str) -> bool:
    """Return whether a last value without a line's end after it cannot be the beginning of a longer one."""
    shown = text.strip()
    return bool(
        re.fullmatch(r"\[[^\[\]]+\]|-?[0-9.]+ ?(MiB|W|MHz|C|%|GB/s)", shown)
        or shown.lower() in ("yes", "enabled", "disabled", "default", "n/a", "not active", "completed", "success")
    )
