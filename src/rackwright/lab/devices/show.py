"""What /proc, /sys/module and the PCI tree show of the loaded modules, as files that the lab mounts there."""

from __future__ import annotations

import shutil

from .catalogue import JSON
from .faults import fold
from .pci import plant
from .state import Machine, product, write

OURS = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem", "nouveau", "nova-core", "nova-drm")
DEPENDS = {
    "nvidia-uvm": "nvidia",
    "nvidia-modeset": "nvidia",
    "nvidia-drm": "nvidia-modeset",
    "nvidia-peermem": "nvidia",
    "nova-drm": "nova-core",
}
RIVALS = ("nouveau", "nova-core")
_SIZES = {
    "nvidia": 104173568,
    "nvidia-uvm": 4939776,
    "nvidia-modeset": 1691648,
    "nvidia-drm": 147456,
    "nouveau": 2777088,
}


def publish(machine: Machine) -> None:
    """Write what /proc, /sys/module and the PCI tree show of the modules; folders and files stay, they are mounted."""
    modules = seen_modules(machine)
    hardware = fold(machine.hardware)
    order = [name for name in OURS if name in modules]
    lines = []
    for name in reversed(order):
        spelled = name.replace("-", "_")
        users = [other.replace("-", "_") for other in order if DEPENDS.get(other) == name]
        taint = "" if name in RIVALS else " (OE)" if modules[name]["flavour"] == "open" else " (POE)"
        uses = f"{len(users)} {','.join(users)}," if users else "0 -"
        lines.append(f"{spelled} {_SIZES.get(name, 65536)} {uses} Live 0x0000000000000000{taint}\n")
    listing = machine.run("modules")
    listing.parent.mkdir(parents=True, exist_ok=True)
    # In place: a file that is mounted elsewhere is its inode, which a rename would leave behind.
    listing.write_text("".join(lines))
    for name in OURS:
        folder = machine.run(f"sys-module/{name.replace('-', '_')}")
        shutil.rmtree(folder, ignore_errors=True)
        if name in modules:
            write(folder / "initstate", "live\n")
            users = [other for other in order if DEPENDS.get(other) == name]
            write(folder / "refcnt", f"{len(users) + (name in hardware['faults'])}\n")
            write(folder / "taint", ("OE\n" if modules[name]["flavour"] == "open" else "POE\n"))
            if modules[name]["version"]:
                write(folder / "version", modules[name]["version"] + "\n")
    _publish_proc(machine, modules.get("nvidia"), hardware)
    plant(machine)


def seen_modules(machine: Machine) -> JSON:
    """Return the loaded modules as they show: the fault library_apart makes the driver's another version."""
    apart = machine.hardware.get("faults", {}).get("library_apart")
    modules: JSON = machine.modules
    if apart is not None:
        for name, one in modules.items():
            if name.startswith("nvidia"):
                one["version"] = apart.get("version") or older(one["version"])
    return modules


def older(version: str) -> str:
    """Return a version of the same branch that is not this one: what a host runs when its packages moved on."""
    parts = version.split(".")
    parts[-1] = f"{(int(parts[-1]) - 1) % 100:0{len(parts[-1])}d}"
    return ".".join(parts)


def _publish_proc(machine: Machine, nvidia: JSON | None, hardware: JSON) -> None:
    proc = machine.run("proc-driver")
    proc.mkdir(parents=True, exist_ok=True)
    for name in ("nvidia", "nvidia-nvswitch"):
        shutil.rmtree(proc / name, ignore_errors=True)
    if nvidia is None:
        return
    version = nvidia["version"]
    if nvidia["flavour"] == "open":
        what = f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@U22-I3-AE18-23-3)"
    else:
        what = f"NVIDIA UNIX x86_64 Kernel Module  {version}"
    write(
        proc / "nvidia/version",
        f"NVRM version: {what}  Tue Sep 23 09:55:41 UTC 2025\nGCC version:  gcc version 12.3.0\n",
    )
    write(proc / "nvidia/params", "EnableMSI: 1\nModifyDeviceFiles: 1\n")
    for gpu in hardware["gpus"]:
        if gpu["bus_id"] in nvidia["drives"]:
            firmware = "N/A" if product(gpu).architecture == "Volta" else version
            write(
                proc / f"nvidia/gpus/{gpu['bus_id']}/information", _INFORMATION.format(gpu["product"], firmware, **gpu)
            )
    for switch in hardware["nvswitches"]:
        if switch["vendor"] == "10de":
            text = f"Driver version: {version}\nDevice minor: {int(switch['bus_id'][5:7], 16) - 7}\n"
            write(proc / f"nvidia-nvswitch/devices/{switch['bus_id']}/information", text)


_INFORMATION = """\
Model: \t\t {0}
IRQ:   \t\t 64
GPU UUID: \t {uuid}
Video BIOS: \t {vbios}
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bus_id}
Device Minor: \t {minor}
GPU Firmware: \t {1}
GPU Excluded:\t No
"""
