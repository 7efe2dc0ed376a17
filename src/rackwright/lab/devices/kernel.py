"""The kernel's side: which modules a boot or modprobe loads, why not, and what /proc and /sys then show.

The words are the kernel's, kmod's and the NVIDIA driver's own.
"""

from __future__ import annotations

import lzma
import re
import shutil
import uuid
from pathlib import Path

from .catalogue import JSON
from .faults import fold, settle_at_boot
from .modfile import module_file as module_file
from .modfile import read_module
from .show import DEPENDS, RIVALS, publish
from .state import Answer, Machine, fail, numbers, product, write

_CONF_FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
# Keys that the firmware or the distribution's shim trusts without enrolment.
_TRUSTED = re.compile(r"Canonical Ltd\.|Debian Secure Boot|Red Hat")
_SECURE_BOOT = "efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def find_module(machine: Machine, name: str, release: str) -> Path | None:
    """Return the file of a module under /lib/modules/RELEASE, updates/ before the rest as depmod orders them."""
    folder = machine.path(f"/lib/modules/{release}")
    spellings = (name, name.replace("-", "_"))
    found = sorted(
        path for one in set(spellings) for suffix in (".ko", ".ko.xz") for path in folder.rglob(one + suffix)
    )
    found.sort(key=lambda path: "updates" not in path.relative_to(folder).parts)
    return found[0] if found else None


def is_blacklisted(root: Path, name: str) -> bool:
    """Return whether modprobe's configuration under a root keeps a module from being loaded by its alias."""
    wanted = name.replace("-", "_")
    for line in _conf_lines(root):
        words = line.split()
        if len(words) < 2 or words[1].replace("-", "_") != wanted:
            continue
        if words[0] == "blacklist" or (words[0] == "alias" and words[2:] == ["off"]):
            return True
        if words[0] == "install" and words[2:3] in (
            ["/bin/false"],
            ["/bin/true"],
            ["/usr/bin/false"],
            ["/usr/bin/true"],
        ):
            return True
    return False


def _conf_lines(root: Path) -> list[str]:
    files = [path for folder in _CONF_FOLDERS for path in sorted((root / folder.lstrip("/")).glob("*.conf"))]
    return [line.strip() for path in files for line in path.read_text(errors="replace").splitlines()]


def load(machine: Machine, name: str) -> Answer:
    """Load a module into the running kernel, with what it depends on: what modprobe then prints and exits with."""
    if name in machine.modules:
        return Answer()
    release = fold(machine.hardware)["kernel"]
    path = find_module(machine, name, release)
    if path is None:
        return fail(f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{release}")
    if name in DEPENDS:
        first = load(machine, DEPENDS[name])
        if first.code:
            return first
    content = path.read_bytes()
    info = read_module(lzma.decompress(content) if path.suffix == ".xz" else content)
    reason = _refusal(machine, name, info, release)
    if reason:
        return fail(f"modprobe: ERROR: could not insert '{name.replace('-', '_')}': {reason}")
    kernel = machine.kernel
    held = {bus_id for one in machine.modules.values() for bus_id in one["drives"]}
    drives = [bus_id for bus_id in _drivable(machine, name, info) if bus_id not in held]
    flavour = "open" if info.get("license", "").startswith("Dual") else "proprietary"
    kernel.setdefault("modules", {})[name] = {
        "version": info.get("version", ""), "flavour": flavour if name.startswith("nvidia") else "", "drives": drives,
    }  # fmt: skip
    machine.kernel = kernel
    if name == "nvidia":
        _log_nvidia(machine, info["version"], flavour)
    publish(machine)
    return Answer()


def unload(machine: Machine, name: str, *, tool: str = "modprobe") -> Answer:
    """Take a module out of the running kernel; refused while another or a process uses it."""
    spelled = name.replace("-", "_")
    if name not in machine.modules:
        if tool == "rmmod":
            return fail(f"rmmod: ERROR: Module {spelled} is not currently loaded")
        return Answer()
    users = [other.replace("-", "_") for other, need in DEPENDS.items() if need == name and other in machine.modules]
    busy = name in ("nvidia", "nvidia-uvm") and any(gpu["processes"] for gpu in machine.hardware["gpus"])
    daemon = name == "nvidia" and machine.run("fabricmanager").exists()
    console = name in machine.hardware["faults"]  # nouveau as a fault: the console holds it
    if users and tool == "rmmod":
        return fail(f"rmmod: ERROR: Module {spelled} is in use by: {' '.join(users)}")
    if users or busy or daemon or console:
        text = f"Module {spelled} is in use"
        return fail(f"rmmod: ERROR: {text}" if tool == "rmmod" else f"modprobe: FATAL: {text}.")
    kernel = machine.kernel
    del kernel["modules"][name]
    machine.kernel = kernel
    if name == "nvidia":
        machine.settings = {}
        machine.log("nvidia-nvlink: Unregistered Nvlink Core, major device number 235")
    publish(machine)
    return Answer()


def _refusal(machine: Machine, name: str, info: dict[str, str], release: str) -> str:
    """Return the kernel's reason against inserting a module, "" where there is none; the log has the details."""
    spelled, hardware = name.replace("-", "_"), fold(machine.hardware)
    magic = info.get("vermagic", "")
    if magic.split()[:1] != [release]:
        machine.log(f"{spelled}: version magic '{magic}' should be '{release} SMP mod_unload modversions '")
        return "Exec format error"
    signer = info.get("signer", "")
    # The kernel's own modules are signed by whoever built it.
    is_foreign = name not in RIVALS and not _TRUSTED.search(signer)
    if hardware["secure_boot"] and is_foreign and not (signer and hardware["mok_enrolled"]):
        kind = "module with unavailable key" if signer else "unsigned module"
        machine.log(f"Lockdown: modprobe: {kind} loading is restricted; see man kernel_lockdown.7")
        machine.log(f"Loading of {kind} is rejected")
        return "Key was rejected by service"
    if name == "nvidia":
        return _refusal_nvidia(machine, info)
    if name == "nvidia-peermem" and not any(nic["vendor"] == "15b3" for nic in hardware["nics"]):
        return "Invalid argument"
    return ""


def _refusal_nvidia(machine: Machine, info: dict[str, str]) -> str:
    gpus = _gpus_on_the_bus(machine)
    machine.log("nvidia-nvlink: Nvlink Core is being initialized, major device number 235")
    if not gpus:
        machine.log("NVRM: No NVIDIA GPU found.")
        return "No such device"
    rival = next((name for name in RIVALS if machine.modules.get(name, {}).get("drives")), None)
    if rival is not None:
        machine.log(
            *(f"NVRM: GPU {gpu['bus_id']} is already bound to {rival}." for gpu in gpus),
            f"NVRM: The NVIDIA probe routine was not called for {len(gpus)} device(s).",
            "NVRM: This can occur when another driver was loaded and ",
            "NVRM: obtained ownership of the NVIDIA device(s).",
            "NVRM: Try unloading the conflicting kernel module (and/or",
            "NVRM: reconfigure your kernel without the conflicting",
            "NVRM: driver(s)), then try loading the NVIDIA kernel module",
            "NVRM: again.",
            "NVRM: No NVIDIA devices probed.",
        )
        return "No such device"
    reasons = [_probe(gpu, info) for gpu in gpus]
    for reason in reasons:
        machine.log(*reason)
    if all(reason and reason[-1].startswith("nvidia: probe of") for reason in reasons):
        machine.log(f"NVRM: The NVIDIA probe routine failed for {len(gpus)} device(s).")
        machine.log("NVRM: None of the NVIDIA devices were initialized.")
        machine.log("nvidia-nvlink: Unregistered Nvlink Core, major device number 235")
        return "No such device"
    return ""


def _probe(gpu: JSON, info: dict[str, str]) -> tuple[str, ...]:
    """Return what the driver says of a GPU that it does not drive; () for one that it drives.

    A probe that failed ends with the kernel's own line; else the module stays, and nvidia-smi finds no device.
    """
    board, version = product(gpu), info["version"]
    branch, is_open = numbers(version)[0], info.get("license", "").startswith("Dual")
    bus_id = gpu["bus_id"]
    begin = (f"NVRM: The NVIDIA GPU {bus_id} (PCI ID: 10de:{board.device})",)
    failed = f"nvidia: probe of {bus_id} failed with error -1"
    if branch > board.last:
        return (
            f"NVRM: The NVIDIA {board.name} GPU installed in this system is",
            f"NVRM:  supported through the NVIDIA {board.last}.xx Legacy drivers. Please",
            "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
            f"NVRM:  information.  The {version} NVIDIA driver will ignore",
            "NVRM:  this GPU.  Continuing probe...",
            failed,
        )
    if branch < board.first:
        return (
            *begin,
            "NVRM: installed in this system is not supported by the",
            f"NVRM: NVIDIA {version} driver release.",
            failed,
        )
    if is_open and board.architecture == "Volta":
        return (
            *begin,
            "NVRM: installed in this system is not supported by open",
            "NVRM: nvidia.ko because it does not include the required GPU",
            "NVRM: System Processor (GSP).",
            "NVRM: Please see the 'Open Linux Kernel Modules' and 'GSP",
            "NVRM: Firmware' sections in the driver README, available on",
            "NVRM: the Linux graphics driver download page at",
            "NVRM: www.nvidia.com.",
            failed,
        )
    if is_open and not board.is_data_center and numbers(version) < (545, 23, 6):
        return (
            "NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.",
            "NVRM: To force use of Open nvidia.ko on other GPUs, see the",
            "NVRM: 'OpenRmEnableUnsupportedGpus' kernel module parameter described",
            "NVRM: in the README.",
            f"NVRM: GPU {bus_id}: RmInitAdapter failed! (0x22:0x56:884)",
            f"NVRM: GPU {bus_id}: rm_init_adapter failed, device minor number {gpu['minor']}",
        )
    if not is_open and board.architecture == "Blackwell":
        return (
            *begin,
            "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
            f"NVRM: GPU {bus_id}: RmInitAdapter failed! (0x22:0x56:884)",
            f"NVRM: GPU {bus_id}: rm_init_adapter failed, device minor number {gpu['minor']}",
        )
    return ()


def _drivable(machine: Machine, name: str, info: dict[str, str]) -> list[str]:
    gpus = _gpus_on_the_bus(machine)
    if name == "nvidia":
        return [gpu["bus_id"] for gpu in gpus if not _probe(gpu, info)]
    if name in RIVALS and not any(
        re.fullmatch(rf"options\s+{name.replace('-', '[-_]')}\s.*\bmodeset=0\b.*", line)
        for line in _conf_lines(machine.path("/"))
    ):
        # nova knows boards with a system processor only; nouveau takes all.
        return [gpu["bus_id"] for gpu in gpus if name == "nouveau" or product(gpu).architecture != "Volta"]
    return []


def _gpus_on_the_bus(machine: Machine) -> list[JSON]:
    present = machine.kernel.get("present", [])
    return [gpu for gpu in fold(machine.hardware)["gpus"] if gpu["bus_id"] in present and not gpu["lost"]]


def _log_nvidia(machine: Machine, version: str, flavour: str) -> None:
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    machine.log(f"NVRM: loading NVIDIA UNIX {kind}  {version}  Release Build  (dvs-builder@U22-I3-AE18-23-3)")


def _default_kernel(machine: Machine) -> str:
    """Return the kernel that a boot loader takes by default: the newest image, else what the hardware names."""
    images = [path.name.removeprefix("vmlinuz-") for path in machine.path("/boot").glob("vmlinuz-*")]
    found: str = max(images, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], default="")
    return found or machine.hardware["kernel"]


def boot(machine: Machine) -> Answer:
    """Do what firmware and kernel do at power-on: find the devices, load the modules that the host's files ask for."""
    machine.hardware = {**settle_at_boot(machine.hardware), "kernel": _default_kernel(machine)}
    hardware = fold(machine.hardware)
    for name in ("kernel.json", "settings.json", "fabricmanager", "dmesg"):
        machine.run(name).unlink(missing_ok=True)
    machine.kernel = {
        "booted": True,
        "boot_id": str(uuid.uuid4()),
        "release": hardware["kernel"],
        "present": [gpu["bus_id"] for gpu in hardware["gpus"] if not gpu["lost"]],
        "modules": {},
    }
    machine.log(f"Linux version {hardware['kernel']} (rehearsal lab) #1 SMP")
    attributes = (0x06).to_bytes(4, "little")
    write(machine.run(f"firmware/{_SECURE_BOOT}"), attributes + bytes([hardware["secure_boot"]]))
    if hardware["secure_boot"]:
        machine.log("secureboot: Secure boot enabled")
    publish(machine)
    write(machine.run("release"), f"{hardware['kernel']}\n")
    for name in RIVALS:
        if hardware["gpus"] and _boot_loads_rival(machine, name, hardware["kernel"]):
            load(machine, name)
    load_driver(machine)
    return Answer()


def load_driver(machine: Machine) -> None:
    """Load NVIDIA's modules as udev does when it finds the boards, where they are there and nothing keeps them out."""
    for name in ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm"):
        if is_blacklisted(machine.path("/"), name) or not find_module(machine, name, machine.hardware["kernel"]):
            continue
        # The dependents are asked for only where the driver itself came up: each would try it, and log, again.
        if name == "nvidia" or "nvidia" in machine.modules:
            load(machine, name)


def _boot_loads_rival(machine: Machine, name: str, release: str) -> bool:
    """Return whether a boot loads nouveau or nova: early by the initramfs with its own configuration, or late."""
    if find_module(machine, name, release) is None:
        return False
    return _initramfs_loads(machine, name, release) or not is_blacklisted(machine.path("/"), name)


def _initramfs_loads(machine: Machine, name: str, release: str) -> bool:
    import subprocess  # at a boot with such an image only: the other tools start faster without
    import tempfile

    image = machine.path(f"/boot/initrd.img-{release}")
    lister, unpacker = shutil.which("lsinitramfs"), shutil.which("unmkinitramfs")
    if not image.exists() or lister is None or unpacker is None:
        return False
    listed = subprocess.run([lister, str(image)], capture_output=True, text=True, check=False).stdout
    if not re.search(rf"/{name.replace('-', '[-_]')}\.ko(\.\w+)?$", listed, re.MULTILINE):
        return False
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([unpacker, str(image), folder], capture_output=True, check=False)
        # An image with microcode before it unpacks into early/ and main/.
        main = Path(folder) / "main"
        return not is_blacklisted(main if main.is_dir() else Path(folder), name)
