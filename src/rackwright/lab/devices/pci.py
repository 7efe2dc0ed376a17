"""The PCI tree of a machine, as files that lspci and udev's readers take for /sys/bus/pci/devices.

Config space: PCI Local Bus Specification 3.0, 6.1; its PCI Express capability: Base Specification 5.0, 7.5.3.
"""

from __future__ import annotations

import shutil
import struct
from typing import NamedTuple

from .catalogue import JSON
from .faults import fold
from .state import Machine, product, write

_SPEEDS = {
    1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe",
}  # fmt: skip
_CAPABILITY = 0x78


class Device(NamedTuple):
    """One function: ids and class in hexadecimal digits, `link` the generation and lanes that it can and has."""

    bus_id: str
    vendor: str
    device: str
    pci_class: str
    subsystem: tuple[str, str]
    driver: str
    link: tuple[int, int, int, int]
    vpd: str = ""


def devices(hardware: JSON, present: list[str] | None = None) -> list[Device]:
    """Return every function of a machine in the order of the bus; GPUs that are not `present` are not on it."""
    found = [Device("0000:00:00.0", "8086", "09a2", "0880", ("8086", "0000"), "", (4, 8, 4, 8))]
    for gpu in hardware["gpus"]:
        board = product(gpu)
        if present is not None and gpu["bus_id"] not in present:
            continue
        link = (board.link_gen, 16, gpu.get("link_gen", board.link_gen), gpu.get("link_width", 16))
        found.append(Device(gpu["bus_id"], "10de", board.device, board.pci_class, ("10de", board.subsystem), "", link))
        if board.pci_class == "0300":
            bus_id = gpu["bus_id"][:-1] + "1"
            found.append(Device(bus_id, "10de", "22ba", "0403", ("10de", board.subsystem), "snd_hda_intel", link))
    for one in (*hardware["nvswitches"], *hardware["nics"], *hardware["disks"]):
        gen = {"0680": 2, "0108": 4, "0200": 2}.get(one["class"], 5)
        lanes = {"0680": 2, "0108": 4, "0200": 4}.get(one["class"], 16)
        subsystem = (one["vendor"], one.get("subsystem", "0000"))
        found.append(
            Device(
                one["bus_id"], one["vendor"], one["device"], one["class"], subsystem, one["driver"],
                (gen, lanes, gen, lanes), one.get("vpd", ""),
            )
        )  # fmt: skip
    if hardware["bmc"]:
        found.append(Device("0000:03:00.0", "1a03", "2000", "0300", ("1a03", "2000"), "ast", (1, 1, 1, 1)))
    return sorted(found)


def plant(machine: Machine) -> None:
    """Write the tree anew, inside the folder that stays: it may be mounted elsewhere."""
    hardware = fold(machine.hardware)
    kernel = machine.kernel
    bound = {bus_id: name for name, one in kernel.get("modules", {}).items() for bus_id in one["drives"]}
    lost = {gpu["bus_id"] for gpu in hardware["gpus"] if gpu["lost"]}
    tree = machine.run("pci")
    tree.mkdir(parents=True, exist_ok=True)
    wanted = devices(hardware, kernel.get("present"))
    for old in tree.iterdir():
        if old.name not in {one.bus_id for one in wanted}:
            shutil.rmtree(old)
    for irq, device in enumerate(wanted, 32):
        _plant(machine, device, irq, bound.get(device.bus_id, device.driver), device.bus_id in lost)


def _plant(machine: Machine, device: Device, irq: int, driver: str, is_lost: bool) -> None:
    folder = machine.run(f"pci/{device.bus_id}")
    generation, lanes, has_generation, has_lanes = device.link
    files = {
        "vendor": f"0x{device.vendor}",
        "device": f"0x{device.device}",
        "class": f"0x{device.pci_class}00",
        "revision": "0xff" if is_lost else "0xa1",
        "subsystem_vendor": f"0x{device.subsystem[0]}",
        "subsystem_device": f"0x{device.subsystem[1]}",
        "irq": str(irq),
        "numa_node": "0" if int(device.bus_id[5:7], 16) < 0x80 else "1",
        "enable": "1",
        "current_link_speed": "Unknown" if is_lost else _SPEEDS[has_generation],
        "current_link_width": "63" if is_lost else str(has_lanes),
        "max_link_speed": _SPEEDS[generation],
        "max_link_width": str(lanes),
        "resource": "\n".join(_resource(device)),
        "modalias": _modalias(device),
    }
    # A device that fell off the bus reads as ones: lspci shows it as (rev ff).
    space = b"\xff" * 256 if is_lost else config(device, irq)
    known = folder / "config"
    # The rest follows from it: a module that comes or goes changes the link to its driver alone.
    if not known.is_file() or known.read_bytes() != space:
        for name, value in files.items():
            write(folder / name, value + "\n")
        if device.vpd:
            write(folder / "vpd", _vpd(device.vpd))
        write(known, space)
    link = folder / "driver"
    link.unlink(missing_ok=True)
    if driver:
        link.symlink_to(f"../../../bus/pci/drivers/{driver}")


def _modalias(device: Device) -> str:
    ids = zip(("v", "d", "sv", "sd"), (device.vendor, device.device, *device.subsystem), strict=True)
    named = "".join(f"{letter}0000{one.upper()}" for letter, one in ids)
    return f"pci:{named}bc{device.pci_class[:2]}sc{device.pci_class[2:]}i00"


def _bars(device: Device) -> tuple[tuple[int, int, int], ...]:
    """Return (address, size, flags of the kernel's ioport.h) of the regions; a GPU's second is its 64-bit window."""
    base = 0x9000_0000 + (int(device.bus_id[5:7], 16) << 20)
    if device.vendor == "10de" and device.pci_class.startswith("03"):
        window = 0x2000_0000_0000 + (int(device.bus_id[5:7], 16) << 38)
        return (base, 1 << 24, 0x40200), (window, 1 << 37, 0x14220C)
    return ((base, 1 << 20, 0x40200),)


def _resource(device: Device) -> list[str]:
    rows = [f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}" for start, size, flags in _bars(device)]
    return rows + [" ".join([f"0x{0:016x}"] * 3)] * (13 - len(rows))


def config(device: Device, irq: int) -> bytes:
    """Return 256 bytes of config space: a type 0 header and the PCI Express capability."""
    space = bytearray(256)
    vendor, one, kind = int(device.vendor, 16), int(device.device, 16), int(device.pci_class, 16)
    struct.pack_into("<HHHHBBHBBBB", space, 0, vendor, one, 0x0406, 0x0010, 0xA1, 0, kind, 16, 0, 0, 0)
    offset = 0x10
    for start, _, flags in _bars(device):
        wide = bool(flags & 0x100000)
        struct.pack_into("<Q" if wide else "<I", space, offset, start | (0xC if wide else 0))
        offset += 8 if wide else 4
    struct.pack_into("<HH", space, 0x2C, *(int(part, 16) for part in device.subsystem))
    space[0x34] = _CAPABILITY
    space[0x3C], space[0x3D] = irq & 0xFF, 1
    generation, lanes, has_generation, has_lanes = device.link
    # Version 2, an endpoint; then device capabilities, control and status, and the link's.
    struct.pack_into(
        "<BBHIHHIHH", space, _CAPABILITY, 0x10, 0, 0x0002, 0x8FE1, 0x2930, 0x0000,
        generation | lanes << 4, 0x0040, has_generation | has_lanes << 4,
    )  # fmt: skip
    struct.pack_into("<I", space, _CAPABILITY + 0x2C, (2 << generation) - 2)
    return bytes(space)


def _vpd(mark: str) -> bytes:
    """Return vital product data whose keyword V3 says what the bridge is for (PCI 3.0, appendix I)."""
    name = b"NVIDIA ConnectX-7 management bridge"
    field = b"V3" + bytes([len(mark)]) + mark.encode()
    check = b"RV\x01"
    body = field + check
    start = b"\x82" + struct.pack("<H", len(name)) + name + b"\x90" + struct.pack("<H", len(body) + 1) + body
    return start + bytes([-sum(start) & 0xFF]) + b"\x78"
