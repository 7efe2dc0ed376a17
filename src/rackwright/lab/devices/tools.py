"""The small tools: mokutil, uname, fabric manager, and `fault`, which is the lab's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from . import faults
from .catalogue import JSON
from .kernel import find_module, load_driver
from .modfile import module_file, read_module
from .show import older, publish, seen_modules
from .state import Answer, Machine, fail, write

_FOREIGN = "nvidia-utils-535"
_RUNFILE = "/var/log/nvidia-installer.log"
# Tells the module file that a fault put there from one that a package owns.
_SIGNER = "rehearsal fault"


def mokutil(machine: Machine, words: list[str]) -> Answer:
    """Answer `mokutil --sb-state` and `--test-key FILE` in the words of mokutil 0.6."""
    hardware = faults.fold(machine.hardware)
    if words == ["--sb-state"]:
        return Answer(f"SecureBoot {'enabled' if hardware['secure_boot'] else 'disabled'}\n")
    if len(words) == 2 and words[0] in ("--test-key", "-t"):
        if not machine.path(words[1]).is_file():
            return fail(f"Failed to open {words[1]}", 255)
        if hardware.get("mok_enrolled"):
            # The real tool says so with status 1, and "is not enrolled" with 0.
            return Answer(f"{words[1]} is already enrolled\n", code=1)
        return Answer(f"{words[1]} is not enrolled\n")
    if words == ["--list-enrolled"]:
        return Answer(
            "[key 1]\nSubject: CN=DKMS module signing key\n" if hardware.get("mok_enrolled") else "MokListRT is empty\n"
        )
    return fail("mokutil: unrecognized option", 255)


def uname(machine: Machine, words: list[str]) -> Answer:
    """Answer uname, with the kernel of the machine in place of the lab's."""
    letters = ""
    long = {
        "--kernel-name": "s", "--nodename": "n", "--kernel-release": "r", "--kernel-version": "v", "--machine": "m",
        "--processor": "p", "--hardware-platform": "i", "--operating-system": "o", "--all": "a",
    }  # fmt: skip
    for word in words:
        if word in long:
            letters += long[word]
        elif word.startswith("-") and not word.startswith("--") and set(word[1:]) <= set("snrvmpioa"):
            letters += word[1:]
        else:
            return fail(f"uname: extra operand '{word}'\nTry 'uname --help' for more information.")
    real = os.uname()
    values = {
        "s": "Linux", "n": socket.gethostname(), "r": str(machine.hardware.get("kernel", real.release)),
        "v": "#1 SMP rehearsal lab", "m": "x86_64", "p": "x86_64", "i": "x86_64", "o": "GNU/Linux",
    }  # fmt: skip
    order = "snrvmpio" if "a" in letters else "".join(letter for letter in "snrvmpio" if letter in letters) or "s"
    return Answer(" ".join(values[letter] for letter in order) + "\n")


def fabricmanager(machine: Machine, words: list[str]) -> Answer:
    """Answer `nv-fabricmanager VERSION [-c FILE | -v]`, as the package's own program calls it: whether it may run.

    An answer of 0 to anything but -v means that it runs: a file holds its version until `main` takes it away.
    """
    if not words:
        return fail("usage: nv-fabricmanager VERSION [-c FILE | -v]", 2)
    hardware = faults.fold(machine.hardware)
    other: JSON | None = hardware["faults"].get("fabricmanager_version")
    version = words[0] if other is None else other.get("version") or older(words[0])
    if words[1:] in (["-v"], ["--version"]):
        return Answer(f"Fabric Manager version is : {version}\n")
    if not hardware["nvswitches"]:
        return fail(
            "request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do "
            "[NV_WARN_NOTHING_TO_DO]"
        )
    module = seen_modules(machine).get("nvidia")
    if module is None:
        return fail("failed to initialize the NVIDIA driver interface: the NVIDIA kernel module is not loaded.", 1)
    if module["version"] != version:
        return fail(
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
            f"{module['version']}. Please update with matching NVIDIA driver package.",
            1,
        )
    write(machine.run("fabricmanager"), version + "\n")
    return Answer("Successfully configured all the available NVSwitches to route GPU NVLink traffic.\n")


def fault(machine: Machine, words: list[str]) -> Answer:
    """Answer `fault`, `fault KIND [NAME=VALUE...]`, `fault clear [KIND]`: change the machine, and all that shows it."""
    hardware = machine.hardware
    if not words:
        lines = [f"{'*' if kind in hardware['faults'] else ' '} {kind}: {text}" for kind, text in faults.KINDS.items()]
        return Answer("\n".join(lines) + "\n")
    before = set(hardware["faults"])
    try:
        if words[0] == "clear":
            faults.clear(hardware, *words[1:2])
        else:
            faults.apply(hardware, words[0], **dict(_pair(word) for word in words[1:]))
    except ValueError as error:
        return fail(f"fault: {error}", 2)
    machine.hardware = hardware
    after = set(hardware["faults"])
    for kind in sorted(before ^ after):
        _leave_files(machine, kind, hardware, begins=kind in after)
    if machine.kernel:
        publish(machine)
        _secure_boot(machine)
    return Answer()


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"{word!r} is not NAME=VALUE")
    return name, value


def _secure_boot(machine: Machine) -> None:
    folder = machine.run("firmware/efi/efivars")
    for path in folder.glob("SecureBoot-*"):
        write(path, path.read_bytes()[:4] + bytes([faults.fold(machine.hardware)["secure_boot"]]))


def _leave_files(machine: Machine, kind: str, hardware: JSON, *, begins: bool) -> None:
    if kind == "foreign_packages":
        _foreign_package(begins=begins)
    elif kind == "nouveau":
        _nouveau(machine, hardware, begins=begins)
    elif kind == "runfile":
        version = (hardware["faults"].get(kind) or {}).get("version", "550.54.14")
        files: dict[str, tuple[bytes, int]] = {
            "/usr/bin/nvidia-uninstall": (
                b"#!/bin/sh\necho 'Uninstallation of existing driver: rehearsal stand-in'\n",
                0o755,
            ),
            f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}": (b"\x7fELF rehearsal stand-in\n", 0o755),
            _RUNFILE: (
                f"nvidia-installer log file '{_RUNFILE}'\nnvidia-installer version: {version}\n".encode(),
                0o644,
            ),
        }
        if begins:
            for name, (content, mode) in files.items():
                write(machine.path(name), content, mode)
        else:
            _take_away_runfile(machine)


def _foreign_package(*, begins: bool) -> None:
    """Install, by the host's own dpkg, a package as Ubuntu's archive names and marks it; or remove it."""
    import subprocess
    import tempfile

    if not begins:
        subprocess.run(["dpkg", "--purge", _FOREIGN], capture_output=True, check=False)
        return
    with tempfile.TemporaryDirectory() as folder:
        control = (
            f"Package: {_FOREIGN}\nVersion: 535.183.01-0ubuntu0.22.04.1\nArchitecture: amd64\n"
            "Maintainer: Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>\n"
            "Description: rehearsal stand-in\n"
        )
        write(Path(folder) / "package/DEBIAN/control", control)
        deb = f"{folder}/package.deb"
        subprocess.run(["dpkg-deb", "-b", f"{folder}/package", deb], capture_output=True, check=True)
        subprocess.run(["dpkg", "-i", deb], capture_output=True, check=True)


def _take_away_runfile(machine: Machine) -> None:
    log = machine.path(_RUNFILE)
    if log.is_file():
        version = log.read_text().rpartition("nvidia-installer version: ")[2].strip()
        machine.path(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}").unlink(missing_ok=True)
    for name in ("/usr/bin/nvidia-uninstall", _RUNFILE):
        machine.path(name).unlink(missing_ok=True)


def _nouveau(machine: Machine, hardware: JSON, *, begins: bool) -> None:
    """Put nouveau's module there and load it in the driver's place, as a boot without a blacklist does; or undo it."""
    release = hardware["kernel"]
    path = machine.path(f"/lib/modules/{release}/kernel/drivers/gpu/drm/nouveau/nouveau.ko")
    kernel = machine.kernel
    if begins and find_module(machine, "nouveau", release) is None:
        write(path, module_file("nouveau", "", "GPL and additional rights", release, _SIGNER))
    elif not begins and path.is_file() and read_module(path.read_bytes()).get("signer") == _SIGNER:
        path.unlink()
    if kernel:
        present = [gpu["bus_id"] for gpu in hardware["gpus"] if gpu["bus_id"] in kernel["present"]]
        nouveau = {"version": "", "flavour": "", "drives": present}
        machine.kernel = {**kernel, "modules": {"nouveau": nouveau} if begins else {}}
        if not begins:
            load_driver(machine)
