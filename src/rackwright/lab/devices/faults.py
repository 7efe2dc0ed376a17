"""Faults of a machine: data beside its hardware, folded in wherever a stand-in looks, and gone when cleared."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .catalogue import JSON
from .state import product

KINDS: Mapping[str, str] = {
    "gpu_lost": "a GPU falls off the bus, and is missing after the next boot (gpu=INDEX)",
    "smi_hangs": "nvidia-smi never answers, and ignores SIGTERM",
    "library_apart": "the loaded module is another version than the library, until the next boot (version=V)",
    "nouveau": "nouveau holds the GPUs, and the console holds nouveau, until the next boot",
    "dkms_fails": "a DKMS build fails in the compiler",
    "secure_boot": "Secure Boot is on",
    "fabricmanager_version": "fabric manager is another version than the module (version=V)",
    "ecc_errors": "a GPU counts memory errors (gpu=INDEX corrected=N uncorrected=N)",
    "runfile": "files that a .run driver leaves (version=V)",
    "foreign_packages": "a package of the distribution's own driver is installed",
    "row_remap_pending": "a GPU has a row to remap at the next boot (gpu=INDEX)",
    "row_remap_failure": "a GPU could not remap a row (gpu=INDEX)",
    "thermal": "a GPU is too hot and slows down (gpu=INDEX)",
    "unknown_error": "a GPU answers some questions with Unknown Error (gpu=INDEX)",
}
_OF_A_GPU = ("gpu_lost", "ecc_errors", "row_remap_pending", "row_remap_failure", "thermal", "unknown_error")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_OF_A_GPU, ("gpu",)),
    "ecc_errors": ("gpu", "corrected", "uncorrected"),
    "library_apart": ("version",),
    "fabricmanager_version": ("version",),
    "runfile": ("version",),
}


def apply(hardware: JSON, kind: str, **options: str | int) -> JSON:
    """Put a fault into the machine's data and return it; a mistake is a ValueError that says what there is."""
    if kind not in KINDS:
        raise ValueError(f"no fault {kind!r}: there are {', '.join(KINDS)}")
    wrong = sorted(set(options) - set(_OPTIONS.get(kind, ())))
    if wrong:
        raise ValueError(f"fault {kind} takes no {', '.join(wrong)}")
    values: JSON = {name: value if name == "version" else int(value) for name, value in options.items()}
    if kind in _OF_A_GPU:
        index = values.setdefault("gpu", 0)
        if not 0 <= index < len(hardware["gpus"]):
            raise ValueError(f"fault {kind}: no GPU {index} among {len(hardware['gpus'])}")
    hardware["faults"][kind] = values
    return hardware


def clear(hardware: JSON, kind: str | None = None) -> JSON:
    """Take one fault, or all, out of the machine's data and return it."""
    if kind is None:
        hardware["faults"].clear()
    elif kind not in KINDS:
        raise ValueError(f"no fault {kind!r}: there are {', '.join(KINDS)}")
    hardware["faults"].pop(kind, None)
    return hardware


def fold(hardware: JSON) -> JSON:
    """Return the machine as it is seen: its data with what its faults make of it."""
    seen: JSON = json.loads(json.dumps(hardware))
    found: JSON = seen.get("faults", {})
    seen["secure_boot"] = seen.get("secure_boot", False) or "secure_boot" in found
    for kind in _OF_A_GPU:
        if kind in found:
            _fold_gpu(seen["gpus"][found[kind]["gpu"]], kind, found[kind])
    return seen


def _fold_gpu(gpu: JSON, kind: str, options: JSON) -> None:
    if kind == "gpu_lost":
        gpu["lost"] = True
    elif kind == "ecc_errors":
        count_errors(gpu["ecc"]["volatile"], options)
        count_errors(gpu["ecc"]["aggregate"], options)
    elif kind == "row_remap_pending":
        gpu["remapped"]["pending"] = gpu["retired"]["pending"] = True
    elif kind == "row_remap_failure":
        gpu["remapped"]["failure"] = True
    elif kind == "thermal":
        gpu["temperature_c"] = product(gpu).limits[1] + 1
        gpu["throttle"] = ["hw_slowdown", "hw_thermal_slowdown"]
    else:
        gpu["unknown"] = True


def count_errors(counts: JSON, options: JSON) -> None:
    """Add a fault's memory errors to counters: three uncorrectable ones where it names no number."""
    named = "corrected" in options or "uncorrected" in options
    counts["dram_correctable"] += options.get("corrected", 0)
    counts["dram_uncorrectable"] += options.get("uncorrected", 0 if named else 3)


def settle_at_boot(hardware: JSON) -> JSON:
    """Change the machine as a boot does, and return it.

    ECC takes its pending mode, volatile counters begin at 0, a waiting row is remapped; the module is the one on disk.
    """
    found: JSON = hardware["faults"]
    errors, waiting = found.pop("ecc_errors", None), found.pop("row_remap_pending", None)
    found.pop("library_apart", None)
    found.pop("nouveau", None)
    if errors is not None:
        count_errors(hardware["gpus"][errors["gpu"]]["ecc"]["aggregate"], errors)
    if waiting is not None:
        gpu = hardware["gpus"][waiting["gpu"]]
        if product(gpu).banks:
            gpu["remapped"]["uncorrectable"] += 1
        else:
            gpu["retired"]["double_bit"] += 1
    for gpu in hardware["gpus"]:
        gpu["settings"]["ecc"] = gpu["settings"]["ecc_pending"]
        gpu["ecc"]["volatile"] = dict.fromkeys(gpu["ecc"]["volatile"], 0)
        gpu["remapped"]["pending"] = gpu["retired"]["pending"] = False
        gpu["processes"] = []
        # Only Ampere keeps the mode over a boot; no board keeps the instances.
        gpu["settings"]["mig"] = gpu["settings"]["mig"] and product(gpu).architecture == "Ampere"
    return hardware
