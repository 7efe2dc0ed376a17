"""What holds for any answer of nvidia-smi: cut anywhere it tells nothing false, and nothing in it hides the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackwright_facts._parse import nvidia_smi, nvidia_smi_csv, nvidia_smi_lists, nvidia_smi_text, nvidia_smi_xml
from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse.gpu import Gpu, SmiCsv
from rackwright_facts._parse.model import Model
from rackwright_facts._parse.nvidia_smi_values import Missing

_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.1.2</driver_version>
<gpu id="00010000:1B:00.0"><product_name>Board A</product_name>
<clocks_event_reasons><clocks_event_reason_gpu_idle>N/A</clocks_event_reason_gpu_idle></clocks_event_reasons>
<retired_pages><pending_blacklist>Yes</pending_blacklist><pending_retirement>No</pending_retirement></retired_pages>
<processes><process_info><pid>41</pid><process_name>python</process_name></process_info></processes></gpu>
</nvidia_smi_log>
"""
_TABLE = """Mon Jan 20 10:18:26 2025
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 515.1        Driver Version: 515.1        CUDA Version: ERR!     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  Board A             Off  | 00000000:07:00.0 Off |                   12 |
|ERR!   30C    P0   ERR! / 400W |     38MiB / 40960MiB |     N/A   E. Process |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+
|   1  Board T 16GB        On   | 00000000:08:00.0 Off |                  Off |
|104%   30C    P8    N/A /  70W |      0MiB / 16384MiB |      7%      Default |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| MIG devices:                                                                |
|=============================================================================|
|  0    1   0   0  |     19MiB / 19968MiB | 42      0 |  3   0    2    0    0 |
+------------------+----------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|=============================================================================|
|    0    1    0      12345      C   python train.py                    17MiB |
|    1                  678      G   /usr/lib/Xorg                        N/A |
+-----------------------------------------------------------------------------+
WARNING: infoROM is corrupted at gpu 0000:08:00.0
"""
_UUID = "GPU-00000000-0000-0000-0000-000000000001"
_LINKS = f"GPU 0: A (UUID: {_UUID})\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n"
_MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPXB\t0-55\t0\t\tN/A\nGPU1\tNV18\t X \tN/A\t0-55\t\t\tN/A\nNIC0\tPXB\tN/A\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_4\n\n"
)
_VERSION = (
    "NVIDIA-SMI version  : 610.57.04\nNVML version  : 610.57\nKMD version  : 610.57.04\nCUDA UMD version : 13.3\n"
)


def _kind(value: object) -> str:
    assert isinstance(value, Missing), value
    return value.kind


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return every value in a model's JSON that says something, by its place."""
    if isinstance(value, dict) and set(value) != {"kind", "text"}:
        return {at: leaf for key, one in value.items() for at, leaf in _leaves(one, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {at: leaf for key, one in enumerate(value) for at, leaf in _leaves(one, f"{path}.{key}").items()}
    return {} if value is None or isinstance(value, dict) or path.startswith(".notes") else {path: value}


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (nvidia_smi_xml.parse, _XML), (nvidia_smi_lists.parse_table, _TABLE), (nvidia_smi_lists.parse_nvlink, _LINKS),
        (nvidia_smi_lists.parse_topology, _MATRIX), (nvidia_smi_lists.parse_version, _VERSION),
    ],
)  # fmt: skip
def test_what_is_cut_off_tells_nothing_false(parser: Callable[[str], Model], text: str) -> None:
    whole = _leaves(parser(text).to_json())
    told = 0
    for cut in range(len(text)):
        try:
            part = _leaves(parser(text[:cut]).to_json())
        except ValueError:
            continue
        told += 1
        # "inactive for all" and the like have a value before they are told of: those are the models' own defaults.
        assert {at: leaf for at, leaf in part.items() if leaf is not False and whole.get(at) != leaf} == {}, cut
    assert told < len(text)


@settings(max_examples=200)
@given(text=st.text() | st.text(alphabet="<>/&;!?[]ab \n|+-=:GPU0123456789.,%", max_size=80))
def test_any_text_is_a_model_or_a_value_error(text: str) -> None:
    for around in (text, _XML.replace("python", text), _TABLE.replace("Board A", text), f"index, name\n0, {text}\n"):
        try:
            model = nvidia_smi.parse(around)
        except ValueError:
            continue
        assert isinstance(model.to_json(), dict)


@settings(max_examples=100)
@given(
    name=st.text(alphabet=st.characters(blacklist_characters="\r\n")).filter(lambda name: "process_name" not in name)
)
def test_a_process_may_be_called_anything(name: str) -> None:
    try:
        log = nvidia_smi_xml.parse(_XML.replace("python", name))
    except ValueError:
        assert "]" in name or "<!" in name or "<nvidia_smi_log" in name  # what would be XML of its own
        return
    assert log.gpus[0].name == "Board A"
    assert isinstance(log.gpus[0].processes, tuple) and log.gpus[0].processes[0].pid == 41


def test_an_unescaped_name_is_kept() -> None:
    log = nvidia_smi_xml.parse(_XML.replace("python", "x < y &amp; z & \x01"))
    assert isinstance(log.gpus[0].processes, tuple) and log.gpus[0].processes[0].name == "x < y & z & \ufffd"


def test_what_is_not_told_is_not_none_active() -> None:
    gpu = nvidia_smi_xml.parse(_XML).gpus[0]
    assert _kind(gpu.clock_reasons) == "not_available"
    assert gpu.retired_pages.pending is True  # either of the two words
    assert gpu.bus_id == "10000:1b:00.0"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("N/A", "not_available"), ("[N/A]", "not_available"), ("", "not_available"), ("Not Found", "not_available"),
        ("[Not Supported]", "unsupported"), ("Requested functionality has been deprecated", "unsupported"),
        ("[Requested functionality has been deprecated]", "unsupported"),
        ('Deprecated, see "KMD version" instead', "unsupported"),
        ("ERR!", "error"), ("[Unknown Error]", "error"), ("[GPU requires reset]", "error"),
        ("[Insufficient Permissions]", "error"), ("[GPU is lost]", "error"),
    ],
)  # fmt: skip
def test_a_word_for_no_value_is_one_for_every_reader(said: str, kind: str) -> None:
    for read in (values.word, values.mib, values.watts, values.flag, values.count, values.bus_id, values.clock_reasons):
        assert read(said) == Missing(kind=kind, text=said)  # type: ignore[arg-type]


def test_numbers_that_are_none() -> None:
    for bad in ("815", "81559 KiB", "1.5 MiB", "-1 MiB", "٣ MiB", "nan MiB", f"{2**64 - 1} MiB", "9" * 5000):
        assert values.mib(bad) == Missing(kind="error", text=bad)
    for sentinel in (2**32 - 1, 2**63 - 1, 2**64 - 1):
        assert _kind(values.count(str(sentinel))) == "error"
    assert values.count(str(2**63 - 2)) == 2**63 - 2
    assert _kind(values.percent("101 %")) == "error" and values.fan("104 %") == 104
    rows = nvidia_smi_csv.parse(f"utilization.gpu [%], fan.speed [%]\n250 %, 104 %\n{2**63 - 1} %, 0 %\n").rows
    assert [_kind(row["utilization.gpu [%]"]) for row in rows] == ["error", "error"] and rows[0]["fan.speed [%]"] == 104


def test_csv_columns() -> None:
    asked = ["index", "memory.used", "compute_cap"]
    bare = nvidia_smi_csv.parse("0, 7 MiB, 9.0\n1, [N/A], 12.0\n", asked)
    assert bare.columns == ("index", "memory.used [MiB]", "compute_cap")
    assert bare.rows[0] == {"index": 0, "memory.used [MiB]": 7, "compute_cap": "9.0"}
    headed = nvidia_smi_csv.parse("index, memory.used [MiB], compute_cap\n0, 7 MiB, 9.0\n", asked)
    assert headed.rows == bare.rows[:1]
    assert isinstance(nvidia_smi.parse("name\nBoard A\n"), SmiCsv)
    for bad in ("index, index\n0, 0\n", "index, uui", "hello\n"):
        with pytest.raises(ValueError, match=r"."):
            nvidia_smi.parse(bad)


def test_the_table_tells_every_gpu_in_full() -> None:
    log = nvidia_smi_lists.parse_table(_TABLE)
    one, two = log.gpus
    assert _kind(log.cuda_version) == "error" and log.notes == ("WARNING: infoROM is corrupted at gpu 0000:08:00.0",)
    assert _kind(one.fan_pct) == _kind(one.power_draw_w) == "error"
    assert (one.power_limit_w, one.ecc.volatile.uncorrected, one.compute_mode) == (400, 12, "E. Process")
    assert (one.mig_mode_current, one.mig_devices[0].memory_total_mib, len(one.mig_devices)) == ("Enabled", 19968, 1)
    assert isinstance(one.processes, tuple)
    assert [(process.pid, process.name, process.used_memory_mib) for process in one.processes] == [
        (12345, "python train.py", 17)]  # fmt: skip
    assert (two.name, two.bus_id, two.fan_pct, two.memory_total_mib) == ("Board T 16GB", "0000:08:00.0", 104, 16384)
    assert _kind(two.power_draw_w) == _kind(two.ecc.volatile.uncorrected) == "not_available"
    assert isinstance(two.processes, tuple) and two.processes[0].gpu_instance_id is None
    with pytest.raises(ValueError, match="cannot be read"):
        nvidia_smi_lists.parse_table(_TABLE.replace("P8    N/A /  70W", "P8              "))


def test_the_matrix_names_no_affinity_that_it_cannot_tell() -> None:
    seen = nvidia_smi_lists.parse_topology(_MATRIX)
    assert seen.rows[0].cpu_affinity == "0-55" and seen.rows[1].paths["NIC0"] == "N/A"
    assert _kind(seen.rows[1].numa_affinity) == "error"  # two of three cells: which one is empty is not told
    assert seen.rows[2].cpu_affinity is None and seen.nics == {"NIC0": "mlx5_4"}


def test_a_warning_after_the_last_gpu_is_a_note() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:1b:00.0"
    gpu = "Attached GPUs : 1\nGPU 00000000:1B:00.0\n    Fan Speed : N/A\n"
    log = nvidia_smi_text.parse(f"==============NVSMI LOG==============\n\n{gpu}{warning}\n")
    assert log.notes == (warning,) and isinstance(log.gpus[0], Gpu) and _kind(log.gpus[0].fan_pct) == "not_available"
    assert nvidia_smi_xml.parse(f"{_XML}{warning}\n").notes == (warning,)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (6, "", "no_devices"), (9, "", "driver_not_loaded"), (12, "", "library_missing"), (137, "", "other"),
        (255, "Unable to determine the device handle for GPU 0000:4B:00.0: Unknown Error", "gpu_lost"),
        (4, "Failed to initialize NVML: Insufficient Permissions", "not_root"),
    ],
)  # fmt: skip
def test_why_it_failed(status: int, text: str, kind: str) -> None:
    failed = nvidia_smi_lists.failure(text, status)
    assert (failed.kind, failed.bus_id) == (kind, "0000:4b:00.0" if kind == "gpu_lost" else None)
    with pytest.raises(ValueError, match="no failure"):
        nvidia_smi_lists.failure("the rootfs is full")
