"""Machines of the catalogue, their faults and their PCI bus; `host` makes one for the other tests of devices."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rackwright.lab.devices import catalogue, faults, pci
from rackwright.lab.devices.kernel import module_file
from rackwright.lab.devices.main import answer
from rackwright.lab.devices.state import Answer, Machine, write

LIBRARIES = "usr/lib/x86_64-linux-gnu"
GPU_PROFILES = tuple(profile for profile in catalogue.PROFILES if profile != "none")


def host(
    root: Path, profile: str = "h100x8", version: str = "580.95.05", flavour: str = "open", *, signer: str | None = None
) -> Machine:
    """Return a machine with a driver on its disk, not yet booted."""
    machine = Machine(root)
    machine.hardware = catalogue.hardware(profile, "gpu01")
    install(machine, version, flavour, signer=signer)
    return machine


def install(machine: Machine, version: str, flavour: str = "open", *, signer: str | None = None) -> None:
    libraries = machine.path(f"/{LIBRARIES}")
    write(libraries / f"libnvidia-ml.so.{version}", b"")
    (libraries / "libnvidia-ml.so.1").unlink(missing_ok=True)
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    kernel = machine.hardware["kernel"]
    for name in ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"):
        path = machine.path(f"/lib/modules/{kernel}/updates/dkms/{name}.ko")
        write(path, module_file(name, version, flavour, kernel, signer))


def tell(machine: Machine, command: str, code: int = 0) -> str:
    """Return what a command prints, which must exit as said."""
    tool, *words = command.split()
    found: Answer = answer(machine, tool, words)
    assert found.code == code, found
    return found.out + found.err


@pytest.mark.parametrize("profile", catalogue.PROFILES)
def test_a_machine_is_the_same_each_time_and_no_other(profile: str) -> None:
    first, again = catalogue.hardware(profile, "gpu01"), catalogue.hardware(profile, "gpu01")
    assert first == again == json.loads(json.dumps(first))
    other = catalogue.hardware(profile, "gpu02")
    uuids = [gpu["uuid"] for gpu in (*first["gpus"], *other["gpus"])]
    assert len(set(uuids)) == len(uuids)
    buses = [one.bus_id for one in pci.devices(first)]
    assert len(set(buses)) == len(buses)
    assert sum(char.isdigit() for char in profile) == 0 or len(first["gpus"]) == int(profile[-1])


def test_counts_that_are_given_win_over_the_profile() -> None:
    found = catalogue.hardware("a100x4", "gpu01", nvswitches=6, nics=1, disks=0, bmc=False, kernel="6.1.0-1-amd64")
    ids = [(one.vendor, one.device, one.pci_class) for one in pci.devices(found)]
    assert ids.count(("10de", "1af1", "0680")) == 6
    assert ids.count(("15b3", "1021", "0207")) == 1
    assert not [one for one in ids if one[2] in ("0108", "0300")]
    assert found["kernel"] == "6.1.0-1-amd64"
    with pytest.raises(ValueError, match="there are h100x8"):
        catalogue.hardware("h200x8", "gpu01")


def test_a_fault_changes_what_is_seen_and_is_gone_when_cleared() -> None:
    hardware = catalogue.hardware("h100x8", "gpu01")
    for kind in faults.KINDS:
        before = json.loads(json.dumps(hardware))
        faults.apply(hardware, kind)
        assert faults.fold(hardware) != faults.fold(before)
        faults.clear(hardware, kind)
        assert hardware == before
    faults.apply(hardware, "ecc_errors", gpu=3, corrected=7)
    faults.apply(hardware, "row_remap_pending", gpu=2)
    counts = faults.fold(hardware)["gpus"][3]["ecc"]["volatile"]
    assert (counts["dram_correctable"], counts["dram_uncorrectable"]) == (7, 0)
    assert hardware["gpus"][3]["ecc"]["volatile"]["dram_correctable"] == 0
    booted = faults.settle_at_boot(hardware)
    assert not booted["faults"]
    assert booted["gpus"][3]["ecc"]["aggregate"]["dram_correctable"] == 7
    assert booted["gpus"][2]["remapped"] == {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": False}


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("gpu_gone", {}, "there are gpu_lost"),
        ("gpu_lost", {"gpu": 8}, "no GPU 8 among 8"),
        ("smi_hangs", {"gpu": 1}, "takes no gpu"),
        ("ecc_errors", {"gpu": "first"}, "invalid literal"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        faults.apply(catalogue.hardware("h100x8", "gpu01"), kind, **options)


def test_the_bus_of_a_booted_machine(tmp_path: Path) -> None:
    machine = host(tmp_path)
    tell(machine, "boot")
    tree = machine.run("pci")
    gpu = tree / "0000:1b:00.0"
    assert [(gpu / name).read_text().strip() for name in ("vendor", "device", "class")] == [
        "0x10de",
        "0x2330",
        "0x030200",
    ]
    assert (gpu / "driver").readlink().name == "nvidia"
    assert (gpu / "current_link_speed").read_text() == "32.0 GT/s PCIe\n"
    assert len((gpu / "resource").read_text().splitlines()) == 13
    assert [path.parent.name for path in sorted(tree.glob("*/device")) if path.read_text() == "0x22a3\n"] == [
        f"0000:0{digit}:00.0" for digit in "789a"
    ]
    folder = tree.stat().st_ino
    tell(machine, "fault gpu_lost gpu=0")
    assert (gpu / "config").read_bytes() == b"\xff" * 256
    tell(machine, "boot")
    assert not gpu.exists()
    assert tree.stat().st_ino == folder, "it is mounted on /sys/bus/pci/devices"
    tell(machine, "fault clear")
    tell(machine, "boot")
    assert (gpu / "config").read_bytes()[:4] == bytes.fromhex("de103023")


@pytest.mark.parametrize("profile", catalogue.PROFILES)
def test_lspci_reads_the_tree(tmp_path: Path, profile: str) -> None:
    lspci = shutil.which("lspci")
    if lspci is None:
        pytest.skip("no lspci (pciutils) on this machine")
    machine = host(tmp_path, profile, flavour="proprietary" if profile == "v100x8" else "open")
    tell(machine, "boot")
    bus = tmp_path / "bus"
    bus.mkdir()
    (bus / "devices").symlink_to(machine.run("pci"))

    def listed(*options: str) -> str:
        argv = [lspci, "-A", "linux-sysfs", "-O", f"sysfs.path={bus}", *options]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    rows = listed("-Dn").splitlines()
    assert [row.split()[0] for row in rows] == [one.bus_id for one in pci.devices(machine.hardware)]
    gpus = machine.hardware["gpus"]
    board = catalogue.PRODUCTS[gpus[0]["product"]] if gpus else None
    if board is None:
        assert [row for row in rows if " 0300: 1a03:2000" in row]
        assert " 10de:" not in "".join(rows)
        return
    assert sum(f" {board.pci_class}: 10de:{board.device}" in row for row in rows) == len(gpus)
    text = listed("-vvv", "-D", "-s", gpus[0]["bus_id"])
    speed = {3: "8GT/s", 4: "16GT/s", 5: "32GT/s"}[board.link_gen]
    assert f"LnkCap:\tPort #0, Speed {speed}, Width x16" in text
    assert f"LnkSta:\tSpeed {speed}" in text
    tell(machine, "fault gpu_lost gpu=0")
    assert "(rev ff)" in listed("-D", "-s", gpus[0]["bus_id"])
