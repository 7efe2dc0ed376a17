"""nvidia-smi's outputs: real recordings with the values that must come out, and small ones of each generation."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rackwright.cli.parse import parse as command
from rackwright.errors import UsageMistake
from rackwright_facts._parse import nvidia_smi, nvidia_smi_csv, nvidia_smi_lists, nvidia_smi_text, nvidia_smi_xml
from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse.gpu import NvLinkStatus, SmiCsv, SmiFailure, SmiLog, SmiVersion, Topology
from rackwright_facts._parse.nvidia_smi_values import Missing

CORPUS = os.environ.get("RACKWRIGHT_CORPUS", "")


def _recordings() -> list[tuple[str, str]]:
    if not CORPUS:
        return []
    with Path(CORPUS, "recordings/manifest.tsv").open(newline="") as file:
        return [
            (row["file"], row["right_values"])
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if row["kind"] == "nvidia-smi"
        ]


RECORDINGS = _recordings()


def _shown(value: Any) -> str:
    if isinstance(value, Missing):
        return value.text
    return "-" if value is None else str(value)


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in text.split(";"))]


@pytest.mark.skipif(not RECORDINGS, reason="$RACKWRIGHT_CORPUS is not set: the recordings are not here")
@pytest.mark.parametrize(("name", "right"), RECORDINGS or [("", "")], ids=[name for name, _ in RECORDINGS] or ["none"])
def test_recordings_give_the_values_of_their_manifest(name: str, right: str) -> None:
    model = nvidia_smi.parse(Path(CORPUS, "recordings", name).read_text(errors="replace"))
    checks = {
        SmiLog: _check_log, SmiCsv: _check_csv, NvLinkStatus: _check_links, Topology: _check_topology,
        SmiVersion: _check_version, SmiFailure: _check_failure,
    }  # fmt: skip
    checks[type(model)](model, right)  # type: ignore[index]


def _check_log(log: SmiLog, right: str) -> None:
    if right.startswith("gpus=8; pairs"):
        wanted = re.findall(r"(\d+)/(\d+)/(Yes|No)", right)
        pages = [gpu.retired_pages for gpu in log.gpus]
        assert [(str(p.single_bit), str(p.double_bit), "Yes" if p.pending else "No") for p in pages] == wanted
        assert str(log.gpus[0].bus_id) == "0001:00:00.0"
        return
    if right.startswith("gpus="):  # -L and the table
        gpus = re.match(r"gpus=(\d+)(?: (Quadro.*))?", right)
        assert gpus is not None
        assert len(log.gpus) == int(gpus[1])
        assert gpus[2] is None or {gpu.name for gpu in log.gpus} == {gpus[2]}
        if profiles := re.search(r"MIG profiles=(\S+)", right):
            assert [device.profile for device in log.gpus[0].mig_devices] == profiles[1].split(",")
        if table := re.search(r"(\d+) MiB each, driver (\S+), cuda (\S+)", right):
            assert {gpu.memory_total_mib for gpu in log.gpus} == {int(table[1])}
            assert (log.driver_version, log.cuda_version) == (table[2], table[3])
        return
    first = log.gpus[0]
    draw = first.power_draw_w
    tell = {
        "driver": log.driver_version, "cuda": log.cuda_version, "gpu0 name": first.name, "uuid": first.uuid,
        "minor": first.minor_number, "vbios": first.vbios_version, "ecc": first.ecc.mode_current,
        "recovery": first.recovery_action, "fabric": first.fabric.state,
    }  # fmt: skip
    seen = 0
    for key, value in _pairs(right):
        seen += 1
        if key in ("gpu elements", "gpus printed"):
            printed, attached = re.findall(r"\d+", value.replace("attached_gpus=", "").replace("Attached GPUs=", ""))
            assert (len(log.gpus), log.attached_gpus) == (int(printed), int(attached))
        elif key == "bus":
            domain, _, rest = value.lower().partition(":")
            assert first.bus_id == f"{int(domain, 16):04x}:{rest}"
        elif key in ("mem_total", "fb total"):
            assert f"{first.memory_total_mib} MiB" == value
        elif key == "temp":
            assert f"{first.temperature_c} C" == value
        elif key == "mig":
            mode, devices = value.split(" mig_devices(all gpus)=")
            assert _shown(first.mig_mode_current) == mode
            assert sum(len(gpu.mig_devices) for gpu in log.gpus) == int(devices)
        elif key.endswith("average_power_draw"):
            assert _watts(first.power_average_w) == value
        elif key.endswith("power_draw"):
            assert _watts(draw) == value
        elif key == "last gpu uuid":
            uuid, minor = value.split(" minor=")
            assert (log.gpus[-1].uuid, str(log.gpus[-1].minor_number)) == (uuid, minor)
        else:
            assert _shown(tell[key]) == ("-" if value == "None" and tell[key] is None else value), key
    assert seen >= 7


def _watts(value: Any) -> str:
    return value.text if isinstance(value, Missing) else f"{value:.2f} W"


def _check_csv(found: SmiCsv, right: str) -> None:
    head, *pairs = right.split(";")
    assert [len(found.columns), len(found.rows)] == [int(number) for number in re.findall(r"\d+", head)]
    (row,) = found.rows
    for key, value in _pairs(";".join(pairs)):
        if key == "deprecated cells":
            words = [cell for cell in row.values() if isinstance(cell, Missing) and "deprecated" in cell.text]
            assert len(words) == int(value)
            assert {cell.kind for cell in words} == {"unsupported"}
        else:
            unit = re.search(r"\[(\S+)\]$", key)
            shown = f"{_shown(row[key])}" if isinstance(row[key], Missing) or not unit else (
                f"{row[key]} {unit[1]}" if isinstance(row[key], int) else f"{row[key]:.2f} {unit[1]}")  # fmt: skip
            assert shown == value, key


def _check_links(found: NvLinkStatus, right: str) -> None:
    if "inactive" in right:
        assert [(gpu.index, gpu.all_inactive, gpu.links) for gpu in found.gpus] == [(6, True, ())]
        return
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", right)]
    gpus, links, speed = (1.0, *numbers[1:]) if right.startswith("GPU 0") else numbers
    assert len(found.gpus) == gpus
    assert {len(gpu.links) for gpu in found.gpus} == {links}
    assert {link.speed_gb_s for gpu in found.gpus for link in gpu.links} == {speed}


def _check_topology(found: Topology, right: str) -> None:
    assert "1 GPU: GPU0 X, CPU affinity 0-23, NUMA 0, GPU NUMA N/A" in right
    (row,) = found.rows
    assert (row.name, row.paths, row.cpu_affinity, row.numa_affinity) == ("GPU0", {"GPU0": "X"}, "0-23", "0")
    assert row.gpu_numa_id == Missing(kind="not_available", text="N/A")


def _check_version(found: SmiVersion, right: str) -> None:
    driver, cuda = (
        re.search(r"(?:driver|KMD version)=(\S+?);? ", f"{right} "),
        re.search(r"(?:cuda|UMD version)=(\S+)", right),
    )
    assert driver and cuda
    assert (found.driver_version, found.cuda_version) == (driver[1], cuda[1])


def _check_failure(found: SmiFailure, right: str) -> None:
    assert (right, found.kind) == ("state: driver not loaded", "driver_not_loaded")


V11 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
<driver_version>470.82.01</driver_version><cuda_version>11.4</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:3B:00.0"><product_name>Tesla V100-SXM2-32GB</product_name><uuid>GPU-1</uuid>
<minor_number>2</minor_number><pci><pci_bus_id>00000000:3B:00.0</pci_bus_id></pci>
<clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
<clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap></clocks_throttle_reasons>
<fb_memory_usage><total>32510 MiB</total><used>3 MiB</used><free>32507 MiB</free></fb_memory_usage>
<ecc_errors><volatile><single_bit><total>4</total></single_bit><double_bit><total>1</total></double_bit></volatile>
</ecc_errors><remapped_rows>N/A</remapped_rows>
<temperature><gpu_temp>41 C</gpu_temp><gpu_temp_max_threshold>90 C</gpu_temp_max_threshold></temperature>
<power_readings><power_draw>61.20 W</power_draw><power_limit>300.00 W</power_limit></power_readings>
<processes><process_info><pid>4711</pid><type>C</type><process_name>python3</process_name>
<used_memory>1024 MiB</used_memory></process_info></processes></gpu>
</nvidia_smi_log>
"""
V13 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><uuid>GPU-2</uuid>
<gpu_recovery_action>None</gpu_recovery_action>
<clocks_event_reasons><clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown></clocks_event_reasons>
<utilization><gpu_util>N/A</gpu_util></utilization>
<ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
<sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_correctable>7</dram_correctable>
<dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_unc>2</remapped_row_unc><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>
<temperature><gpu_temp>[Unknown Error]</gpu_temp><gpu_temp_tlimit>58 C</gpu_temp_tlimit></temperature>
<gpu_power_readings><average_power_draw>N/A</average_power_draw><instant_power_draw>68.92 W</instant_power_draw>
<current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
<fabric><state>In Progress</state></fabric><processes></processes></gpu>
</nvidia_smi_log>
"""


def test_generations_are_told_by_their_elements() -> None:
    old, new = (nvidia_smi_xml.parse(text).gpus[0] for text in (V11, V13))
    assert (old.bus_id, old.memory_total_mib, old.power_draw_w, old.power_limit_w) == (
        "0000:3b:00.0",
        32510,
        61.2,
        300.0,
    )
    assert (old.ecc.volatile.corrected, old.ecc.volatile.uncorrected) == (4, 1)
    assert old.clock_reasons is not None
    assert getattr(old.clock_reasons, "active", None) == ("sw_power_cap",)
    assert isinstance(old.remapped_rows.pending, Missing)
    assert isinstance(old.processes, tuple)
    assert (old.processes[0].pid, old.processes[0].used_memory_mib) == (4711, 1024)
    assert (new.power_draw_w, new.power_limit_w, new.fabric.state, new.processes) == (68.92, 700.0, "In Progress", ())
    assert (new.ecc.volatile.corrected, new.ecc.volatile.uncorrected) == (7, 3)  # what is not there does not count
    assert (new.remapped_rows.uncorrectable, new.remapped_rows.pending) == (2, True)
    assert new.temperature_c == Missing(kind="error", text="[Unknown Error]")
    assert new.utilization_gpu_pct == Missing(kind="not_available", text="N/A")


@pytest.mark.parametrize("text", [V11, V13], ids=["v11", "v13"])
def test_a_log_cut_anywhere_is_no_log(text: str) -> None:
    whole = nvidia_smi_xml.parse(text)
    end = text.index("</nvidia_smi_log>") + len("</nvidia_smi_log>")
    for cut in range(len(text)):
        if cut >= end:
            assert nvidia_smi_xml.parse(text[:cut]) == whole
            continue
        with pytest.raises(ValueError, match=r"."):
            nvidia_smi_xml.parse(text[:cut])


def test_a_text_log_cut_anywhere_never_gives_a_wrong_value() -> None:
    text = (
        "\n==============NVSMI LOG==============\n\nDriver Version : 535.104.05\nAttached GPUs : 1\n"
        "GPU 00000000:1B:00.0\n    Product Name : NVIDIA A10\n    FB Memory Usage\n        Total : 23028 MiB\n"
        "    Temperature\n        GPU Current Temp : 33 C\n    Processes : None\n"
    )
    whole = nvidia_smi_text.parse(text).gpus[0]
    assert (whole.memory_total_mib, whole.temperature_c, whole.processes) == (23028, 33, ())
    for cut in range(len(text)):
        try:
            log = nvidia_smi_text.parse(text[:cut])
        except ValueError:
            continue
        assert log.driver_version in (None, "535.104.05")
        for gpu in log.gpus:
            assert gpu.name in (None, "NVIDIA A10")
            assert gpu.memory_total_mib in (None, 23028)
            assert gpu.temperature_c in (None, 33)


def test_a_csv_cut_anywhere_never_gives_a_wrong_value() -> None:
    text = "index, name, memory.total [MiB], temperature.gpu\n0, NVIDIA A10, 23028 MiB, 33\n1, NVIDIA A10, [N/A], 41\n"
    whole = nvidia_smi_csv.parse(text)
    assert whole.rows[0] == {"index": 0, "name": "NVIDIA A10", "memory.total [MiB]": 23028, "temperature.gpu": 33}
    assert whole.rows[1]["memory.total [MiB]"] == Missing(kind="not_available", text="[N/A]")
    for cut in range(len(text)):
        try:
            part = nvidia_smi_csv.parse(text[:cut])
        except ValueError:
            continue
        for row, right in zip(part.rows, whole.rows, strict=False):
            assert all(right[name] == cell for name, cell in row.items())


def test_case_mon_na_values_break_parser() -> None:
    """N/A and errors in a row are told apart, and one bad row never hides the others."""
    columns = ["index", "uuid", "utilization.gpu", "memory.used", "temperature.gpu", "mig.mode.current"]
    text = "0, GPU-aaaa, [N/A], [N/A], 33, Enabled\n1, GPU-bbbb, 41, 30211, [Unknown Error], Disabled\n2, GPU-cccc\n"
    found = nvidia_smi_csv.parse(text, columns)
    assert [row["uuid"] for row in found.rows] == ["GPU-aaaa", "GPU-bbbb"]
    assert found.rows[0]["utilization.gpu"] == Missing(kind="not_available", text="[N/A]")
    assert found.rows[1]["temperature.gpu"] == Missing(kind="error", text="[Unknown Error]")
    assert (found.rows[1]["utilization.gpu"], found.rows[1]["memory.used"]) == (41, 30211)
    assert found.unreadable == ("2, GPU-cccc",)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n",
            "version_mismatch",
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure\n",
            "driver_not_loaded",
        ),
        ("No devices were found\n", "no_devices"),
        ("Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system\n", "gpu_lost"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", "library_missing"),
        ("Failed to initialize NVML: Unknown Error\n", "other"),
    ],
)
def test_failures(text: str, kind: str) -> None:
    found = nvidia_smi.parse(text)
    assert isinstance(found, SmiFailure)
    assert found.kind == kind
    if kind == "version_mismatch":
        assert found.library_version == "535.183"
    if kind == "gpu_lost":
        assert found.bus_id == "0000:1b:00.0"


def test_a_bomb_is_refused() -> None:
    bomb = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>'
    with pytest.raises(ValueError, match="entities"):
        nvidia_smi_xml.parse(bomb)


_PARSERS = (
    nvidia_smi.parse, nvidia_smi_xml.parse, nvidia_smi_text.parse, nvidia_smi_csv.parse, nvidia_smi_lists.parse_list,
    nvidia_smi_lists.parse_table, nvidia_smi_lists.parse_nvlink, nvidia_smi_lists.parse_topology,
    nvidia_smi_lists.parse_version, nvidia_smi_lists.failure,
)  # fmt: skip
_LIKE = st.text() | st.lists(
    st.sampled_from([*V11.split("\n"), "==NVSMI LOG==", "GPU 00000000:1B:00.0", "    PCI", "  a : 1 MiB",
                     "a, b [W]", "1, [N/A]",
                     "GPU 0: x (UUID: GPU-1)", "\tGPU0\tNIC0\t", "GPU0\tX \t", "\t Link 0: 5 GB/s"]) | st.text()
).map("\n".join)  # fmt: skip


@pytest.mark.parametrize("parser", _PARSERS)
@settings(max_examples=60)
@given(text=_LIKE)
def test_any_text_is_a_model_or_a_value_error(parser: Any, text: str) -> None:
    try:
        parser(text)
    except ValueError:
        return


def test_the_command_prints_the_model(tmp_path: Path) -> None:
    path = tmp_path / "smi.xml"
    path.write_text(V13)
    for words in ([str(path)], ["nvidia-smi", str(path)]):
        done = CliRunner().invoke(command, words)
        data = json.loads(done.output)
        assert (data["schema"], data["kind"], data["data"]["driver_version"]) == (1, "nvidia-smi", "580.95.05")
    assert json.loads(CliRunner().invoke(command, ["-"], input=V11).output)["data"]["gpus"][0]["uuid"] == "GPU-1"


def test_mistakes_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "cut.xml"
    path.write_text(V13[:500])
    for words, what in (
        ([str(path)], "does not come to its end"),
        (["nvidia-sm", str(path)], "there is no kind"),
        ([str(tmp_path / "nothing")], "cannot be read"),
    ):
        done = CliRunner().invoke(command, words)
        assert isinstance(done.exception, UsageMistake)
        assert what in str(done.exception)


def test_case_mon_row_remap_severity() -> None:
    """Counted, waiting for a reset, failed and not offered are four things; how bad each is, health says."""
    text = (
        "\n==============NVSMI LOG==============\n\nAttached GPUs : 4\n"
        + "".join(
            f"GPU 0000000{index}:1B:00.0\n    Remapped Rows\n        Correctable Error : 0\n"
            f"        Uncorrectable Error : {errors}\n        Pending : {pending}\n"
            f"        Remapping Failure Occurred : {failed}\n"
            for index, (errors, pending, failed) in enumerate(((4, "Yes", "No"), (2, "No", "No"), (9, "No", "Yes")))
        )
        + "GPU 00000003:1B:00.0\n    Remapped Rows : N/A\n"
    )
    rows = [gpu.remapped_rows for gpu in nvidia_smi_text.parse(text).gpus]
    assert [(row.uncorrectable, row.pending, row.failure) for row in rows[:3]] == [
        (4, True, False), (2, False, False), (9, False, True),
    ]  # fmt: skip
    assert rows[3].failure == Missing(kind="not_available", text="N/A")


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        ("0x0000000000000001", ("gpu_idle",)),
        ("0x0000000000000004", ("sw_power_cap",)),
        ("0x0000000000000040", ("hw_thermal_slowdown",)),
        ("0x0000000000000080", ("hw_power_brake_slowdown",)),
        ("0x0000000000000000", ()),
        ("0x0000000000000048", ("hw_slowdown", "hw_thermal_slowdown")),
    ],
)
def test_case_mon_throttle_false_alarm(mask: str, reasons: tuple[str, ...]) -> None:
    """A reason is read by its bit: an idle GPU and one in a power brake are not both "throttled"."""
    assert values.clock_reasons(mask) == reasons
