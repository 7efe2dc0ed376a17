"""NVIDIA's GPUs by PCI device id: which generation one is, as the kernel module's flavour depends on it.

The ranges are those of NVIDIA's chips in pci.ids and in the open kernel modules' list of supported GPUs.
"""

from __future__ import annotations

from typing import Literal

Generation = Literal["older", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"]

# First device id of a chip family -> its generation; it holds up to the next one.
_FAMILIES: tuple[tuple[int, Generation], ...] = (
    (0x0000, "older"),
    (0x15F0, "pascal"),
    (0x1600, "older"),
    (0x1B00, "pascal"),
    (0x1D80, "volta"),
    (0x1E00, "turing"),
    (0x2080, "ampere"),
    (0x2100, "turing"),
    (0x2200, "ampere"),
    (0x2300, "hopper"),
    (0x2400, "ampere"),
    (0x2680, "ada"),
    (0x2900, "blackwell"),
)
_ORDER: tuple[Generation, ...] = ("older", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")


def generation(device_id: int) -> Generation:
    """Return the generation of a GPU; a chip that is newer than this list counts as the newest."""
    found: Generation = "older"
    for first, name in _FAMILIES:
        if first <= device_id:
            found = name
    return found


def is_before(one: Generation, other: Generation) -> bool:
    """Return whether a generation is older than another."""
    return _ORDER.index(one) < _ORDER.index(other)
