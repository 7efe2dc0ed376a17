"""What a machine's kernel loads and refuses, and what DKMS builds for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_devices import host, install, tell

from rackwright.lab.devices.catalogue import KERNEL
from rackwright.lab.devices.kernel import module_file
from rackwright.lab.devices.modfile import read_module
from rackwright.lab.devices.state import Machine, write

NOUVEAU = f"/lib/modules/{KERNEL}/kernel/drivers/gpu/drm/nouveau/nouveau.ko"


def put_nouveau(machine: Machine) -> None:
    write(machine.path(NOUVEAU), module_file("nouveau", "", "GPL and additional rights", KERNEL))


def test_a_boot_loads_the_driver_and_shows_it(tmp_path: Path) -> None:
    machine = host(tmp_path)
    tell(machine, "boot")
    assert list(machine.modules) == ["nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm"]
    listing = machine.run("modules").read_text()
    assert [line.split()[0] for line in listing.splitlines()] == [
        "nvidia_uvm",
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia",
    ]
    assert " 2 nvidia_modeset,nvidia_uvm, Live " in listing
    assert "Open Kernel Module for x86_64  580.95.05" in machine.run("proc-driver/nvidia/version").read_text()
    assert machine.run("sys-module/nvidia/version").read_text() == "580.95.05\n"
    assert len(list(machine.run("proc-driver/nvidia/gpus").iterdir())) == 8
    assert len(list(machine.run("proc-driver/nvidia-nvswitch/devices").iterdir())) == 4
    first = machine.kernel["boot_id"]
    inode = machine.run("modules").stat().st_ino
    tell(machine, "boot")
    assert machine.kernel["boot_id"] != first
    assert machine.run("modules").stat().st_ino == inode, "it is mounted on /proc/modules"


# profile, version, flavour -> what modprobe says ("" where it loads), and what the log tells.
@pytest.mark.parametrize(
    ("profile", "version", "flavour", "said", "log"),
    [
        ("v100x8", "580.95.05", "proprietary", "", "loading NVIDIA UNIX x86_64 Kernel Module"),
        ("v100x8", "580.95.05", "open", "No such device", "not supported by open"),
        ("v100x8", "595.80", "proprietary", "No such device", "580.xx Legacy drivers"),
        ("b200x8", "535.183.01", "open", "No such device", "NVIDIA 535.183.01 driver release"),
        ("none", "580.95.05", "open", "No such device", "No NVIDIA GPU found"),
        ("a100x4", "535.183.01", "open", "", "Open Kernel Module"),
        ("b200x8", "580.95.05", "open", "", "Open Kernel Module"),
        ("rtx4090x2", "545.23.06", "open", "", "Open Kernel Module"),
    ],
)
def test_which_module_drives_which_board(
    tmp_path: Path, profile: str, version: str, flavour: str, said: str, log: str
) -> None:
    machine = host(tmp_path, profile, version, flavour)
    tell(machine, "boot")
    assert ("nvidia" in machine.modules) == (not said)
    assert log in machine.run("dmesg").read_text()
    if said:
        assert tell(machine, "modprobe nvidia", 1) == f"modprobe: ERROR: could not insert 'nvidia': {said}\n"
        assert tell(machine, "modprobe nvidia-uvm", 1) == f"modprobe: ERROR: could not insert 'nvidia': {said}\n"
        assert not machine.run("proc-driver/nvidia").exists()
    else:
        assert "nvidia-smi" not in tell(machine, "nvidia-smi -L")


@pytest.mark.parametrize(
    ("profile", "version", "flavour", "log"),
    [
        ("rtx4090x2", "535.183.01", "open", "only ready for use on Data Center GPUs"),
        ("b200x8", "580.95.05", "proprietary", "requires use of the NVIDIA open kernel modules"),
    ],
)
def test_a_module_that_loads_and_drives_nothing(
    tmp_path: Path, profile: str, version: str, flavour: str, log: str
) -> None:
    machine = host(tmp_path, profile, version, flavour)
    tell(machine, "boot")
    assert "nvidia" in machine.modules
    assert log in machine.run("dmesg").read_text()
    assert tell(machine, "nvidia-smi", 6) == "No devices were found\n"


def test_secure_boot_takes_only_modules_of_known_keys(tmp_path: Path) -> None:
    machine = host(tmp_path, signer="DKMS module signing key")
    tell(machine, "fault secure_boot")
    tell(machine, "boot")
    assert tell(machine, "mokutil --sb-state") == "SecureBoot enabled\n"
    variable = next(machine.run("firmware/efi/efivars").glob("SecureBoot-*"))
    assert variable.read_bytes()[4:] == b"\x01"
    refused = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n"
    assert tell(machine, "modprobe nvidia", 1) == refused
    write(tmp_path / "mok.der", b"key")
    assert tell(machine, "mokutil --test-key /mok.der") == "/mok.der is not enrolled\n"
    machine.hardware = {**machine.hardware, "mok_enrolled": True}
    assert tell(machine, "mokutil --test-key /mok.der", 1) == "/mok.der is already enrolled\n"
    tell(machine, "modprobe nvidia")
    # An enrolled key helps nothing that it did not sign.
    tell(machine, "boot")
    tell(machine, "modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia")
    install(machine, "580.95.05")
    assert tell(machine, "modprobe nvidia", 1) == refused
    machine.hardware = {**machine.hardware, "mok_enrolled": False}
    install(machine, "580.95.05", signer="Canonical Ltd. Kernel Module Signing")
    tell(machine, "modprobe nvidia")
    tell(machine, "fault clear")
    assert variable.read_bytes()[4:] == b"\x00"


@pytest.mark.parametrize(
    ("folder", "line", "loads"),
    [
        ("/etc/modprobe.d", "blacklist nouveau", False),
        ("/usr/lib/modprobe.d", "blacklist nouveau", False),
        ("/etc/modprobe.d", "alias nouveau off", False),
        ("/etc/modprobe.d", "install nouveau /bin/false", False),
        ("/etc/modprobe.d", "# blacklist nouveau", True),
        ("/etc/modprobe.d", "blacklist nouveaux", True),
        ("/etc", "blacklist nouveau", True),
    ],
)
def test_nouveau_comes_first_where_nothing_keeps_it_out(tmp_path: Path, folder: str, line: str, loads: bool) -> None:
    machine = host(tmp_path)
    put_nouveau(machine)
    write(machine.path(f"{folder}/some.conf"), f"{line}\n")
    tell(machine, "boot")
    assert ("nouveau" in machine.modules) == loads
    assert ("nvidia" in machine.modules) != loads
    if loads:
        assert tell(machine, "modprobe nvidia", 1).endswith("could not insert 'nvidia': No such device\n")
        assert "already bound to nouveau" in machine.run("dmesg").read_text()
        assert machine.run("pci/0000:1b:00.0/driver").readlink().name == "nouveau"
        tell(machine, "modprobe -r nouveau")
        tell(machine, "modprobe nvidia")
    # modprobe by name takes no notice of a blacklist.
    tell(machine, "modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia")
    tell(machine, "modprobe nouveau")


def test_an_initramfs_with_nouveau_has_a_configuration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file in /etc does not help while the image that was made before it still loads nouveau."""
    tools, content = tmp_path / "tools", tmp_path / "image"
    for name, script in (
        ("lsinitramfs", 'cd "$RW_IMAGE" && find . -type f | sed "s,^./,,"'),
        ("unmkinitramfs", 'mkdir -p "$2/early" && cp -r "$RW_IMAGE" "$2/main"'),
    ):
        write(tools / name, f"#!/bin/sh\n{script}\n", 0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("RW_IMAGE", str(content))
    machine = host(tmp_path / "host")
    put_nouveau(machine)
    write(machine.path("/etc/modprobe.d/blacklist-nouveau.conf"), "blacklist nouveau\n")
    write(machine.path(f"/boot/initrd.img-{KERNEL}"), b"image")
    write(content / NOUVEAU.lstrip("/"), b"module")
    tell(machine, "boot")
    assert "nouveau" in machine.modules
    write(content / "etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\n")
    tell(machine, "boot")
    assert "nvidia" in machine.modules


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    machine = host(tmp_path)
    tell(machine, "boot")
    assert tell(machine, "rmmod nvidia", 1) == ("rmmod: ERROR: Module nvidia is in use by: nvidia_uvm nvidia_modeset\n")
    hardware = machine.hardware
    hardware["gpus"][0]["processes"] = [{"pid": 4711, "name": "python3", "used_mib": 500}]
    machine.hardware = hardware
    tell(machine, "modprobe -r nvidia_drm")
    assert tell(machine, "modprobe -r nvidia_uvm", 1) == "modprobe: FATAL: Module nvidia_uvm is in use.\n"
    hardware["gpus"][0]["processes"] = []
    machine.hardware = hardware
    tell(machine, "rmmod nvidia_uvm")
    assert "nvidia" in machine.modules
    tell(machine, "modprobe -r nvidia")
    assert machine.run("modules").read_text() == ""
    assert tell(machine, "rmmod nvidia", 1) == "rmmod: ERROR: Module nvidia is not currently loaded\n"
    tell(machine, "modprobe nvidia_uvm")
    assert list(machine.modules) == ["nvidia", "nvidia-uvm"]


def test_a_module_of_another_kernel_is_refused(tmp_path: Path) -> None:
    machine = host(tmp_path)
    shutil.rmtree(machine.path(f"/lib/modules/{KERNEL}"))
    tell(machine, "boot")
    assert tell(machine, "modprobe nvidia", 1) == (
        f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{KERNEL}\n"
    )
    path = machine.path(f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko")
    write(path, module_file("nvidia", "580.95.05", "open", "5.15.0-1-generic"))
    assert tell(machine, "modprobe nvidia", 1).endswith("Exec format error\n")
    assert "version magic '5.15.0-1-generic" in machine.run("dmesg").read_text()


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
@pytest.mark.parametrize("name", ["nvidia", "nvidia-uvm", "nvidia-peermem"])
def test_modinfo_reads_module_files(tmp_path: Path, flavour: str, name: str) -> None:
    content = module_file(name, "580.95.05", flavour, KERNEL, "a key")
    own = read_module(content)
    assert own["version"] == "580.95.05"
    assert own["license"] == {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}[flavour]
    modinfo = shutil.which("modinfo") or shutil.which("modinfo", path="/sbin:/usr/sbin")
    if modinfo is None:
        pytest.skip("no modinfo (kmod) on this machine")
    path = tmp_path / f"{name}.ko"
    path.write_bytes(content)
    for field, value in own.items():
        argv = [modinfo, "-F", field, str(path)]
        out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        assert (out[0] if out else "") == value


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no module at all, but long enough for a header" * 3])
def test_what_is_no_module_has_no_fields(content: bytes) -> None:
    assert read_module(content) == {}


def dkms_host(root: Path, flavour: str = "open", banner: str = "x86_64-linux-gnu-gcc-12 (Ubuntu) 12.3.0") -> Machine:
    machine = host(root)
    shutil.rmtree(machine.path(f"/lib/modules/{KERNEL}"))
    write(machine.path("/usr/src/nvidia-580.95.05/dkms.conf"), f"# rackwright-lab: flavour={flavour}\n")
    write(machine.path(f"/lib/modules/{KERNEL}/build/.config"), f'CONFIG_CC_VERSION_TEXT="{banner}"\n')
    write(machine.path("/usr/bin/gcc-12"), b"", 0o755)
    return machine


def test_dkms_from_source_to_a_loaded_module(tmp_path: Path) -> None:
    machine = dkms_host(tmp_path, "proprietary")
    assert tell(machine, "dkms status") == ""
    tell(machine, "dkms add -m nvidia -v 580.95.05")
    assert tell(machine, "dkms status") == "nvidia/580.95.05: added\n"
    assert "already contains" in tell(machine, "dkms add -m nvidia -v 580.95.05", 3)
    tell(machine, f"dkms build -m nvidia -v 580.95.05 -k {KERNEL}")
    assert tell(machine, "dkms status") == f"nvidia/580.95.05, {KERNEL}, x86_64: built\n"
    assert not machine.path(f"/lib/modules/{KERNEL}/updates").exists()
    tell(machine, f"dkms install nvidia/580.95.05 -k {KERNEL}")
    installed = f"nvidia/580.95.05, {KERNEL}, x86_64: installed\n"
    assert tell(machine, "dkms status -m nvidia -v 580.95.05") == installed
    assert tell(machine, "dkms status -m zfs") == ""
    module = machine.path(f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko")
    assert read_module(module.read_bytes())["license"] == "NVIDIA"
    tell(machine, "boot")
    assert "nvidia-uvm" in machine.modules
    tell(machine, "dkms remove -m nvidia -v 580.95.05 --all")
    assert tell(machine, "dkms status") == ""
    assert not module.exists()
    assert "There are no instances" in tell(machine, "dkms remove -m nvidia -v 580.95.05 --all", 3)


def test_dkms_autoinstall_for_a_new_kernel(tmp_path: Path) -> None:
    machine = dkms_host(tmp_path)
    tell(machine, "dkms install -m nvidia -v 580.95.05")
    assert "headers for kernel 6.8.0-1-generic cannot be found" in tell(
        machine, "dkms autoinstall -k 6.8.0-1-generic", 11
    )
    write(
        machine.path("/lib/modules/6.8.0-1-generic/build/.config"), 'CONFIG_CC_VERSION_TEXT="gcc-12 (Debian) 12.2.0"\n'
    )
    tell(machine, "dkms autoinstall -k 6.8.0-1-generic")
    assert tell(machine, "dkms status").count(": installed") == 2


@pytest.mark.parametrize("banner", ["x86_64-linux-gnu-gcc-13 (Ubuntu) 13.2.0", "gcc (Ubuntu) 11.4.0"])
def test_dkms_needs_the_compiler_of_the_kernel(tmp_path: Path, banner: str) -> None:
    machine = dkms_host(tmp_path, banner=banner)
    said = tell(machine, "dkms build -m nvidia -v 580.95.05", 10)
    assert f"Error! Bad return status for module build on kernel: {KERNEL} (x86_64)" in said
    log = machine.path("/var/lib/dkms/nvidia/580.95.05/build/make.log").read_text()
    name = "gcc-13" if "13" in banner else "gcc-11"
    assert f"{name}: not found" in log
    assert tell(machine, "dkms status") == "nvidia/580.95.05: added\n"
    write(machine.path(f"/usr/bin/{name}"), b"", 0o755)
    tell(machine, "dkms build -m nvidia -v 580.95.05")


def test_dkms_refusals(tmp_path: Path) -> None:
    machine = dkms_host(tmp_path)
    assert "does not exist" in tell(machine, "dkms add -m nvidia -v 1.0", 2)
    assert "headers for kernel 6.8.0-1-generic" in tell(machine, "dkms build nvidia/580.95.05 -k 6.8.0-1-generic", 21)
    tell(machine, "fault dkms_fails")
    assert "Bad return status" in tell(machine, "dkms install -m nvidia -v 580.95.05", 10)
    assert "error: " in machine.path("/var/lib/dkms/nvidia/580.95.05/build/make.log").read_text()
    tell(machine, "fault clear dkms_fails")
    tell(machine, "dkms install -m nvidia -v 580.95.05")
