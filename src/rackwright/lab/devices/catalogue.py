"""Which machines there are: the boards' published figures, and a machine made of them by profile and name.

The figures come from the vendors' data sheets, from pci.ids, and from what nvidia-smi prints on such boards.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

JSON = dict[str, Any]
KERNEL = "5.15.0-119-generic"
_VOLATILE = ("sram_correctable", "sram_parity", "sram_secded", "dram_correctable", "dram_uncorrectable")


class Product(NamedTuple):
    """A GPU board: MiB, W, MHz and °C; `first` and `last` are the driver branches that know it."""

    name: str
    brand: str
    architecture: str
    device: str
    subsystem: str
    pci_class: str
    compute: str
    memory: int
    reserved: int
    bar1: int
    power: tuple[int, int, int]  # least, default, most
    idle_w: float
    vbios: str
    board_part: str
    gpu_part: str
    inforom: tuple[str, str, str]  # image, OEM object, ECC object
    link_gen: int
    clocks: tuple[int, int, int]  # most graphics, most memory, most video
    idle_clocks: tuple[int, int, int]
    limits: tuple[int, int, int]  # shutdown, slowdown, most for work
    nvlinks: int
    nvlink_gbs: str
    banks: int  # for row remapping; 0: no remapper, pages are retired instead
    first: int
    last: int
    mig: bool

    @property
    def is_data_center(self) -> bool:
        """Return whether the board is none of GeForce or workstation, which the open modules refused before 545."""
        return self.brand not in ("GeForce", "Quadro", "NVIDIA RTX")


_NEVER = 9999
PRODUCTS: dict[str, Product] = {
    board.name: board
    for board in (
        Product(
            "NVIDIA H100 80GB HBM3", "NVIDIA", "Hopper", "2330", "16c1", "0302", "9.0", 81559, 551, 131072,
            (200, 700, 700), 71.0, "96.00.89.00.01", "692-2G520-0200-000", "2330-885-A1",
            ("G520.0200.00.05", "2.1", "7.16"), 5, (1980, 2619, 1545), (345, 2619, 765), (92, 90, 87),
            18, "26.562", 2560, 520, _NEVER, True,
        ),
        Product(
            "NVIDIA A100-SXM4-40GB", "NVIDIA", "Ampere", "20b0", "134f", "0302", "8.0", 40960, 518, 65536,
            (100, 400, 400), 52.0, "92.00.45.00.06", "692-2G506-0200-003", "20B0-884-A1",
            ("G506.0200.00.04", "2.0", "6.16"), 4, (1410, 1215, 1290), (210, 1215, 585), (92, 89, 85),
            12, "25", 640, 450, _NEVER, True,
        ),
        Product(
            "NVIDIA GeForce RTX 4090", "GeForce", "Ada Lovelace", "2684", "167c", "0300", "8.9", 24564, 346, 32768,
            (150, 450, 450), 19.0, "95.02.3C.40.B1", "N/A", "2684-300-A1",
            ("G002.0000.00.03", "2.0", "6.16"), 4, (3105, 10501, 2415), (210, 405, 1185), (90, 87, 83),
            0, "", 192, 525, _NEVER, False,
        ),
        Product(
            "Tesla V100-SXM2-32GB", "Tesla", "Volta", "1db5", "1249", "0302", "7.0", 32768, 259, 32768,
            (150, 300, 300), 42.0, "88.00.80.00.01", "900-2G503-0010-000", "1DB5-895-A1",
            ("G503.0204.00.02", "1.1", "5.0"), 3, (1530, 877, 1372), (135, 877, 555), (90, 87, 83),
            6, "25.781", 0, 396, 580, False,
        ),
        Product(
            "NVIDIA B200", "NVIDIA", "Blackwell", "2901", "1999", "0302", "10.0", 183359, 728, 262144,
            (200, 1000, 1000), 143.0, "97.00.B9.00.69", "692-2G525-0220-500", "2901-886-A1",
            ("G525.0220.00.03", "2.1", "7.16"), 5, (1965, 3996, 1965), (120, 3996, 600), (93, 91, 88),
            18, "50", 3840, 570, _NEVER, True,
        ),
    )
}  # fmt: skip

_SXM8 = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
# profile -> (board, the buses of its GPUs, of its NVSwitches, how many NICs and disks)
_PROFILES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], int, int]] = {
    "h100x8": ("NVIDIA H100 80GB HBM3", _SXM8, ("07", "08", "09", "0a"), 8, 8),
    "a100x4": ("NVIDIA A100-SXM4-40GB", ("01", "41", "81", "c1"), (), 2, 4),
    "rtx4090x2": ("NVIDIA GeForce RTX 4090", ("21", "4b"), (), 0, 2),
    "v100x8": ("Tesla V100-SXM2-32GB", ("15", "16", "3a", "3b", "89", "8a", "b2", "b3"), (), 4, 4),
    "b200x8": ("NVIDIA B200", _SXM8, ("07", "08"), 8, 8),
    "none": ("", (), (), 2, 2),
}
PROFILES = tuple(_PROFILES)


def hardware(
    profile: str,
    name: str,
    *,
    nvswitches: int | None = None,
    nics: int | None = None,
    disks: int | None = None,
    bmc: bool = True,
    kernel: str = KERNEL,
) -> JSON:
    """Return the machine `name` of a profile, the same at every call; counts that are not given are the profile's.

    `nics` counts the fast ones (InfiniBand or RoCE); each machine has a plain one for its management besides.
    """
    if profile not in _PROFILES:
        raise ValueError(f"no profile {profile!r}: there are {', '.join(PROFILES)}")
    board, buses, switches, own_nics, own_disks = _PROFILES[profile]
    count = len(switches) if nvswitches is None else nvswitches
    return {
        "profile": profile,
        "name": name,
        "gpus": [_gpu(PRODUCTS[board], name, index, bus) for index, bus in enumerate(buses)],
        "nvswitches": [_switch(index, PRODUCTS[board].architecture if board else "") for index in range(count)],
        "nics": [
            {"bus_id": "0000:02:00.0", "vendor": "8086", "device": "1521", "class": "0200", "driver": "igb"},
            *(
                {
                    "bus_id": f"0000:{0xA0 + index:02x}:00.0", "vendor": "15b3", "device": "1021", "class": "0207",
                    "driver": "mlx5_core",
                }
                for index in range(own_nics if nics is None else nics)
            ),
        ],
        "disks": [
            {
                "bus_id": f"0000:{0x70 + index:02x}:00.0", "vendor": "144d", "device": "a80a", "class": "0108",
                "driver": "nvme", "serial": "S64G" + _hash(name, "disk", index)[:10].upper(),
            }
            for index in range(own_disks if disks is None else disks)
        ],
        "bmc": bmc,
        "kernel": kernel,
        "secure_boot": False,
        "mok_enrolled": False,
        "faults": {},
    }  # fmt: skip


def _gpu(product: Product, name: str, index: int, bus: str) -> JSON:
    digest = _hash(name, "gpu", index)
    has_serial = product.is_data_center
    return {
        "index": index,
        "product": product.name,
        "bus_id": f"0000:{bus}:00.0",
        "uuid": f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
        "serial": f"165{int(digest[32:42], 16) % 10**10:010d}" if has_serial else "N/A",
        "pdi": f"0x{digest[42:58]}",
        "minor": index,
        "module_id": index + 1,
        "vbios": product.vbios,
        # The spread over a chassis is real, and lets a test tell one board from the next.
        "temperature_c": 27 + int(digest[58], 16) % 8,
        "memory_temperature_c": 33 + int(digest[59], 16) % 8,
        "power_w": round(product.idle_w + int(digest[60:62], 16) / 64, 2),
        "memory_used_mib": 0,
        "utilization_percent": 0,
        "replays": 0,
        "ecc": {"volatile": dict.fromkeys(_VOLATILE, 0), "aggregate": dict.fromkeys(_VOLATILE, 0)},
        "remapped": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "retired": {"single_bit": 0, "double_bit": 0, "pending": False},
        "lost": False,
        "processes": [],
        "settings": {"ecc": has_serial, "ecc_pending": has_serial, "mig": False},
    }


def _switch(index: int, architecture: str) -> JSON:
    """Return an NVSwitch: a bridge of NVIDIA's own, or on Blackwell the ConnectX bridge whose VPD says SW_MNG."""
    device = {"bus_id": f"0000:{7 + index:02x}:00.0"}
    if architecture == "Blackwell":
        return {**device, "vendor": "15b3", "device": "1021", "class": "0207", "driver": "mlx5_core", "vpd": "SW_MNG"}
    return {
        **device,
        "vendor": "10de",
        "device": "1af1" if architecture == "Ampere" else "22a3",
        "class": "0680",
        "driver": "",
    }


def _hash(*parts: object) -> str:
    """Return 64 hexadecimal digits that depend on the parts alone."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
