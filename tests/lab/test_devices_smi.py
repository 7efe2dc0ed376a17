"""nvidia-smi's answers, settings and refusals; fabric manager, uname and the faults that a tool shows."""

from __future__ import annotations

import csv
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_devices import GPU_PROFILES, host, install, tell

from rackwright.lab import devices
from rackwright.lab.devices.state import Machine

VERSIONS = ("525.147.05", "535.183.01", "550.90.07", "570.148.08", "580.95.05", "595.80")


def booted(root: Path, profile: str = "h100x8", version: str = "580.95.05") -> Machine:
    old = profile == "v100x8" or (profile == "rtx4090x2" and version < "545")
    machine = host(root, profile, version, "proprietary" if old else "open")
    tell(machine, "boot")
    return machine


@pytest.mark.parametrize(
    ("profile", "version"),
    [
        (profile, version)
        for profile in GPU_PROFILES
        for version in VERSIONS
        if not (profile == "b200x8" and version < "570") and not (profile == "v100x8" and version > "590")
    ],
)
def test_every_report_of_every_generation(tmp_path: Path, profile: str, version: str) -> None:
    machine = booted(tmp_path, profile, version)
    gpus = machine.hardware["gpus"]
    root = ElementTree.fromstring(tell(machine, "nvidia-smi -q -x"))
    assert root.findtext("driver_version") == version
    assert [gpu.findtext("uuid") for gpu in root.findall("gpu")] == [gpu["uuid"] for gpu in gpus]
    new_names = version >= "535"
    assert (root.find("gpu/clocks_event_reasons") is not None) == new_names
    assert (root.find("gpu/gpu_power_readings") is not None) == new_names
    text = tell(machine, "nvidia-smi -q")
    assert text.count("    GPU UUID") == len(gpus)
    assert tell(machine, "nvidia-smi -L").count("UUID: GPU-") == len(gpus)
    table = tell(machine, "nvidia-smi").splitlines()
    assert len({len(line) for line in table[1:] if line}) == 1, "the frame is straight"
    names = "index,name,uuid,memory.total,temperature.gpu,power.draw,ecc.errors.uncorrected.volatile.total"
    rows = list(csv.reader(tell(machine, f"nvidia-smi --query-gpu={names} --format=csv").splitlines()))
    assert len(rows) == len(gpus) + 1
    assert {len(row) for row in rows} == {7}
    assert rows[0][3] == " memory.total [MiB]"


def recorded(name: str) -> str:
    corpus = os.environ.get("RACKWRIGHT_CORPUS")
    if not corpus:
        pytest.skip("$RACKWRIGHT_CORPUS is not set: the recordings are not here")
    return Path(corpus, "recordings/nvidia-smi", name).read_text()


def elements(parent: ElementTree.Element, depth: int = 0) -> Iterator[str]:
    for child in parent:
        yield "  " * depth + child.tag
        if child.tag not in ("supported_clocks", "processes", "accounted_processes"):
            yield from elements(child, depth + 1)


@pytest.mark.parametrize(
    ("profile", "version", "name"),
    [
        ("h100x8", "580.105.08", "qx-hw-h100.xml"),
        ("b200x8", "580.105.08", "qx-hw-b200.xml"),
        ("a100x4", "570.148.08", "qx-hw-a100.xml"),
    ],
)
def test_the_xml_has_the_elements_of_a_real_one_in_their_order(
    tmp_path: Path, profile: str, version: str, name: str
) -> None:
    real = ElementTree.fromstring(recorded(name))
    own = ElementTree.fromstring(tell(booted(tmp_path, profile, version), "nvidia-smi -q -x"))
    first, second = real.find("gpu"), own.find("gpu")
    assert first is not None and second is not None
    assert list(difflib.unified_diff(list(elements(first)), list(elements(second)), lineterm="")) == []


@pytest.mark.parametrize(
    ("profile", "version", "name"),
    [
        ("h100x8", "535.161.08", "q-h100x8-535.161.08.txt"),
        ("rtx4090x2", "535.154.05", "q-4090x8-535.154.05-b.txt"),
        ("h100x8", "590.48.01", "idle-q-h200-590.txt"),
    ],
)
def test_the_text_has_the_labels_of_a_real_one_in_their_columns(
    tmp_path: Path, profile: str, version: str, name: str
) -> None:
    def labels(text: str) -> list[str]:
        block = text.split("\nGPU 0000")[1].split("\n", 1)[1]
        return [f"{line.partition(': ')[0].rstrip()}{line.find(': ')}" for line in block.splitlines() if line.strip()]

    own = tell(booted(tmp_path, profile, version), "nvidia-smi -q -i 0")
    assert list(difflib.unified_diff(labels(recorded(name)), labels(own), lineterm="")) == []


def test_the_table_is_framed_as_a_real_one(tmp_path: Path) -> None:
    real = recorded("table-550.90.07.txt").splitlines()
    own = tell(booted(tmp_path, version="550.90.07"), "nvidia-smi").splitlines()
    assert own[1:8] == real[1:8]
    frame = [["".join("x" if char.isalnum() else char for char in line) for line in text[8:11]] for text in (own, real)]
    assert [[len(line), line.count("|")] for line in frame[0]] == [[len(line), line.count("|")] for line in frame[1]]
    assert own[-6:] == real[-6:]


def test_why_it_does_not_answer(tmp_path: Path) -> None:
    machine = host(tmp_path)
    tell(machine, "boot")
    tell(machine, "fault library_apart")
    assert tell(machine, "nvidia-smi", 18) == (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    )
    assert machine.run("sys-module/nvidia/version").read_text() == "580.95.04\n"
    tell(machine, "boot")
    tell(machine, "nvidia-smi")
    # The natural way to it: a new library is there, the module is the old one.
    install(machine, "580.126.16")
    assert "NVML library version: 580.126\n" in tell(machine, "nvidia-smi -L", 18)
    tell(machine, "modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia")
    assert tell(machine, "nvidia-smi", 9).startswith("NVIDIA-SMI has failed because it couldn't communicate")
    tell(machine, "modprobe nvidia")
    assert "580.126.16" in tell(machine, "nvidia-smi")
    machine.path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink()
    assert "couldn't find libnvidia-ml.so" in tell(machine, "nvidia-smi", 12)


def test_a_gpu_that_fell_off_the_bus(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    tell(machine, "fault gpu_lost gpu=2")
    said = tell(machine, "nvidia-smi -L", 255)
    assert said.startswith("Unable to determine the device handle for GPU2: 0000:52:00.0: Unknown Error\nGPU 0:")
    assert said.count("UUID: GPU-") == 7
    tell(machine, "boot")
    assert tell(machine, "nvidia-smi -L").count("UUID: GPU-") == 7
    old = booted(tmp_path / "old", version="535.183.01")
    tell(old, "fault gpu_lost gpu=2")
    line = "Unable to determine the device handle for GPU0000:52:00.0: Unknown Error\n"
    assert tell(old, "nvidia-smi -q -x", 255) == line


@pytest.mark.parametrize(
    ("fault", "path", "before", "after"),
    [
        ("ecc_errors gpu=0 uncorrected=5", "ecc_errors/volatile/dram_uncorrectable", "0", "5"),
        ("row_remap_pending", "remapped_rows/remapped_row_pending", "No", "Yes"),
        ("row_remap_failure", "remapped_rows/remapped_row_failure", "No", "Yes"),
        ("thermal", "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown", "Not Active", "Active"),
        ("unknown_error", "utilization/gpu_util", "0 %", "Unknown Error"),
    ],
)
def test_faults_of_a_board_show_on_it_alone(tmp_path: Path, fault: str, path: str, before: str, after: str) -> None:
    machine = booted(tmp_path)

    def values() -> list[str | None]:
        return [gpu.findtext(path) for gpu in ElementTree.fromstring(tell(machine, "nvidia-smi -q -x")).findall("gpu")]

    assert values() == [before] * 8
    tell(machine, f"fault {fault}")
    assert values() == [after] + [before] * 7
    tell(machine, "fault clear")
    assert values() == [before] * 8


def query(machine: Machine, names: str, gpu: str = "0") -> list[str]:
    text = tell(machine, f"nvidia-smi -i {gpu} --query-gpu={names} --format=csv,noheader,nounits")
    return text.strip().split(", ")


def test_what_is_set_until_the_next_boot(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    names = "persistence_mode,power.limit,compute_mode,clocks.gr"
    idle = ["Disabled", "700.00", "Default", "345"]
    assert query(machine, names) == idle
    assert tell(machine, "nvidia-smi -pm 1").endswith("for GPU 00000000:DF:00.0.\nAll done.\n")
    assert "already Enabled" in tell(machine, "nvidia-smi -pm 1")
    assert "was set to 500.00 W from 700.00 W" in tell(machine, "nvidia-smi -i 0 -pl 500")
    tell(machine, "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS")
    tell(machine, "nvidia-smi -i 0 --lock-gpu-clocks=1200,1400")
    assert query(machine, names) == ["Enabled", "500.00", "Exclusive_Process", "1200"]
    assert query(machine, names, "1") == ["Enabled", *idle[1:]]
    tell(machine, "nvidia-smi -i 0 -rgc")
    assert query(machine, "clocks.gr") == ["345"]
    tell(machine, "boot")
    assert query(machine, names) == idle
    refused = tell(machine, "nvidia-smi -i 0 -pl 900", 2)
    assert refused.startswith(
        "Provided power limit 900.00 W is not a valid power limit which should be between 200.00 W"
    )
    assert query(machine, "power.limit") == ["700.00"]


def test_ecc_waits_for_a_boot(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    assert tell(machine, "nvidia-smi -i 1 -e 0").endswith("All done.\nReboot required.\n")
    assert query(machine, "ecc.mode.current,ecc.mode.pending", "1") == ["Enabled", "Disabled"]
    tell(machine, "boot")
    assert query(machine, "ecc.mode.current,ecc.mode.pending", "1") == ["Disabled", "Disabled"]
    assert query(machine, "ecc.errors.uncorrected.volatile.total", "1") == ["[N/A]"]


@pytest.mark.parametrize(("profile", "survives"), [("a100x4", True), ("h100x8", False)])
def test_mig(tmp_path: Path, profile: str, survives: bool) -> None:
    machine = booted(tmp_path, profile)
    assert tell(machine, "nvidia-smi mig -lgi", 6) == "No MIG-enabled devices found.\n"
    tell(machine, "nvidia-smi -i 0 -mig 1")
    assert query(machine, "mig.mode.current,utilization.gpu") == ["Enabled", "[N/A]"]
    assert tell(machine, "nvidia-smi mig -cgi 9,9 -C").count("Successfully created compute instance") == 2
    assert "Insufficient Resources" in tell(machine, "nvidia-smi mig -cgi 19,14", 19)
    assert tell(machine, "nvidia-smi -L").count("  MIG 3g.") == 2
    root = ElementTree.fromstring(tell(machine, "nvidia-smi -q -x"))
    assert len(root.findall("gpu/mig_devices/mig_device")) == 2
    assert "In use" in tell(machine, "nvidia-smi mig -dgi", 19)
    tell(machine, "nvidia-smi mig -dci")
    tell(machine, "nvidia-smi mig -dgi")
    tell(machine, "nvidia-smi mig -cgi 0")
    tell(machine, "boot")
    assert query(machine, "mig.mode.current") == ["Enabled" if survives else "Disabled"]
    assert "MIG" not in tell(machine, "nvidia-smi -L")


def test_mig_waits_while_a_board_is_in_use(tmp_path: Path) -> None:
    machine = booted(tmp_path, "a100x4")
    hardware = machine.hardware
    hardware["gpus"][0]["processes"] = [{"pid": 4711, "name": "python3", "used_mib": 500}]
    machine.hardware = hardware
    assert "in pending enable state" in tell(machine, "nvidia-smi -i 0 -mig 1")
    assert query(machine, "mig.mode.current,mig.mode.pending") == ["Disabled", "Enabled"]
    apps = tell(machine, "nvidia-smi --query-compute-apps=pid,used_memory --format=csv")
    assert apps == "pid, used_gpu_memory [MiB]\n4711, 500 MiB\n"
    assert "currently in use by another process" in tell(machine, "nvidia-smi -i 0 -r", 255)
    assert "Not Supported" in tell(booted(tmp_path / "old", "v100x8"), "nvidia-smi -mig 1", 3)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--query-gpu=index,nonsense --format=csv", 2, 'Field "nonsense" is not a valid field to query.'),
        ("--query-gpu=index", 2, '"--format=" is missing'),
        ("--nonsense", 2, "Invalid combination of input arguments"),
        ("-q -d NONSENSE", 2, "is not a valid display type"),
        ("-i 9 -q", 6, "No devices were found"),
        ("-pm", 2, "Missing argument"),
        ("-pm 2", 2, "Invalid value for -pm"),
    ],
)
def test_command_lines_that_it_does_not_take(tmp_path: Path, words: str, code: int, said: str) -> None:
    assert said in tell(booted(tmp_path), f"nvidia-smi {words}", code)


@pytest.mark.parametrize("name", ["3", "0000:61:00.0", "00000000:61:00.0", "uuid", "serial"])
def test_a_gpu_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    machine = booted(tmp_path)
    chosen = str(machine.hardware["gpus"][3].get(name, name))
    assert query(machine, "pci.bus_id", chosen) == ["00000000:61:00.0"]


def test_names_of_queries_by_generation(tmp_path: Path) -> None:
    old = booted(tmp_path / "old", version="525.147.05")
    assert query(old, "clocks_throttle_reasons.active") == ["0x0000000000000001"]
    assert "not a valid field" in tell(old, "nvidia-smi --query-gpu=clocks_event_reasons.active --format=csv", 2)
    new = booted(tmp_path / "new")
    out = tell(new, "nvidia-smi --query-gpu=clocks_throttle_reasons.active,gpu_uuid --format=csv")
    assert out.startswith("clocks_event_reasons.active, uuid\n0x0000000000000001, GPU-")


def test_sections_links_topology_and_version(tmp_path: Path) -> None:
    machine = booted(tmp_path, "a100x4")
    text = tell(machine, "nvidia-smi -q -d ECC,TEMPERATURE")
    assert "DRAM Uncorrectable" in text and "GPU Current Temp" in text
    assert "Product Name" not in text and "Processes" not in text
    assert tell(machine, "nvidia-smi nvlink -s").count(" Link ") == 48
    assert "GPU1\tNV12\t X \tNV12\tNV12\t" in tell(machine, "nvidia-smi topo -m")
    assert "NVML version        : 580.95\n" in tell(machine, "nvidia-smi --version")
    install(machine, "610.57.04")
    tell(machine, "boot")
    assert "KMD version         : 610.57.04\n" in tell(machine, "nvidia-smi --version")


def state_of_fabric(machine: Machine) -> str | None:
    return ElementTree.fromstring(tell(machine, "nvidia-smi -q -x -i 0")).findtext("gpu/fabric/state")


def test_fabric_manager(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    assert state_of_fabric(machine) == "In Progress"
    assert tell(machine, "nv-fabricmanager 580.126.16 -c /some.cfg", 1) == (
        "fabric manager NVIDIA GPU driver interface version 580.126.16 don't match with driver version 580.95.05. "
        "Please update with matching NVIDIA driver package.\n"
    )
    assert state_of_fabric(machine) == "In Progress"
    tell(machine, "nv-fabricmanager 580.95.05 -c /some.cfg")
    assert state_of_fabric(machine) == "Completed"
    tell(machine, "modprobe -r nvidia-drm nvidia-modeset nvidia-uvm")
    assert tell(machine, "modprobe -r nvidia", 1) == "modprobe: FATAL: Module nvidia is in use.\n"
    tell(machine, "boot")
    tell(machine, "fault fabricmanager_version")
    assert "don't match with driver version" in tell(machine, "nv-fabricmanager 580.95.05", 1)
    plain = booted(tmp_path / "plain", "a100x4")
    assert "NV_WARN_NOTHING_TO_DO" in tell(plain, "nv-fabricmanager 580.95.05", 1)
    assert state_of_fabric(plain) == "N/A"


def test_uname_and_the_files_of_a_run_driver(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    assert tell(machine, "uname -r") == "5.15.0-119-generic\n"
    assert tell(machine, "uname") == "Linux\n"
    assert tell(machine, "uname -sm") == "Linux x86_64\n"
    assert "5.15.0-119-generic" in tell(machine, "uname --all")
    tell(machine, "uname -z", 1)
    tell(machine, "fault runfile version=550.54.14")
    paths = [machine.path(name) for name in ("/usr/bin/nvidia-uninstall", "/var/log/nvidia-installer.log")]
    paths.append(machine.path("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"))
    assert all(path.is_file() for path in paths)
    tell(machine, "fault clear runfile")
    assert not any(path.exists() for path in paths)


def test_the_fault_nouveau_lasts_until_a_boot_that_keeps_it_out(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    tell(machine, "fault nouveau")
    assert tell(machine, "nvidia-smi", 9)
    assert list(machine.modules) == ["nouveau"]
    tell(machine, "fault clear")
    assert "nvidia" in machine.modules
    tell(machine, "nvidia-smi")


def start(root: Path, tool: str, *words: str) -> subprocess.Popen[str]:
    """Start a stand-in as a host does: isolated, under the name `devices`, with nothing of the project at hand."""
    code = f"import sys; sys.path.insert(0, {str(root / 'lib')!r}); from devices.main import main; main({tool!r})"
    link = root / "lib/devices"
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(str(devices.__file__)).parent)
    argv = [sys.executable, "-I", "-S", "-c", code, *words]
    environment = {"RACKWRIGHT_LAB_ROOT": str(root), "PATH": os.environ["PATH"]}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_the_tools_run_in_a_host_without_the_project(tmp_path: Path) -> None:
    machine = host(tmp_path)
    for tool, *words in (["boot"], ["nvidia-smi", "-L"], ["uname", "-r"], ["modprobe", "nvidia"], ["dkms", "status"]):
        done = start(tmp_path, tool, *words)
        out, err = done.communicate(timeout=30)
        assert (done.returncode, err) == (0, ""), (tool, err)
        assert tool != "nvidia-smi" or out.count("UUID: GPU-") == 8
    assert "nvidia" in machine.modules


def test_a_hanging_nvidia_smi_ends_by_kill_alone(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    tell(machine, "fault smi_hangs")
    hanging = start(tmp_path, "nvidia-smi")
    try:
        # SIGTERM may come before it is ignored: what counts is that the process, once it waits, does not end by it.
        time.sleep(1.5)
        hanging.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            hanging.communicate(timeout=1)
    finally:
        hanging.kill()
    assert hanging.wait(timeout=10) == -9


def test_fabric_manager_is_a_daemon_that_ends_by_a_signal(tmp_path: Path) -> None:
    machine = booted(tmp_path)
    daemon = start(tmp_path, "nv-fabricmanager", "580.95.05", "-c", "/some.cfg")
    try:
        deadline = time.monotonic() + 20
        while not machine.run("fabricmanager").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state_of_fabric(machine) == "Completed"
        daemon.terminate()
        assert daemon.wait(timeout=20) == 0
    finally:
        daemon.kill()
    assert state_of_fabric(machine) == "In Progress"
