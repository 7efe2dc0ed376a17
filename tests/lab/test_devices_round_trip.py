"""What a machine is, what its nvidia-smi prints, and what the facts read out of that, are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_devices import GPU_PROFILES
from test_devices_smi import VERSIONS

from rackwright.lab.devices.catalogue import PRODUCTS, hardware
from rackwright.lab.devices.smi_device import View, cuda_version
from rackwright.lab.devices.smi_xml import xml
from rackwright_facts._parse import nvidia_smi_xml
from rackwright_facts._parse.gpu import Gpu
from rackwright_facts._parse.nvidia_smi_values import Missing

_COUNT = st.integers(0, 10**6)
_ERRORS = st.fixed_dictionaries(
    dict.fromkeys(("sram_correctable", "sram_parity", "sram_secded", "dram_correctable", "dram_uncorrectable"), _COUNT)
)
_CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "temperature_c": st.integers(0, 120),
    "memory_temperature_c": st.integers(0, 120),
    "power_w": st.decimals(0, 1500, places=2).map(float),
    "memory_used_mib": st.integers(0, 20000),
    "utilization_percent": st.integers(0, 100),
    "replays": _COUNT,
    "ecc": st.fixed_dictionaries({"volatile": _ERRORS, "aggregate": _ERRORS}),
    "remapped": st.fixed_dictionaries(
        {"correctable": _COUNT, "uncorrectable": _COUNT, "pending": st.booleans(), "failure": st.booleans()}
    ),
    "retired": st.fixed_dictionaries(
        {"single_bit": st.integers(0, 64), "double_bit": st.integers(0, 64), "pending": st.booleans()}
    ),
    "vbios": st.from_regex(r"[0-9A-F]{2}(\.[0-9A-F]{2}){4}", fullmatch=True),
    "processes": st.lists(
        st.fixed_dictionaries(
            {
                "pid": st.integers(1, 4194304),
                "name": st.text("abcdefg/<>&'\" .-").map(lambda name: f"/bin/{name}".strip()),
                "used_mib": st.integers(0, 4000),
            }
        ),
        max_size=2,
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("profile", GPU_PROFILES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_board_that_is_printed_and_read_is_the_same(profile: str, version: str, data: st.DataObject) -> None:
    gpu = hardware(profile, "gpu01")["gpus"][1]
    gpu.update(data.draw(st.fixed_dictionaries(_CHANGES)))
    until_boot = {"persistence": data.draw(st.booleans()), "power_limit_w": data.draw(st.integers(100, 1000))}
    fabric = data.draw(st.sampled_from([("Completed", "Success"), ("In Progress", "N/A"), ("N/A", "N/A")]))
    view = View(gpu, until_boot, version, fabric)
    log = nvidia_smi_xml.parse(xml([view], 8, version, "Thu Jan  1 00:00:00 2026"))
    assert (log.driver_version, log.cuda_version, log.attached_gpus) == (version, cuda_version(version), 8)
    (read,) = log.gpus
    board = PRODUCTS[gpu["product"]]
    _same_board(read, gpu)
    assert read.persistence_mode == ("Enabled" if until_boot["persistence"] else "Disabled")
    assert read.power_limit_w == until_boot["power_limit_w"]
    assert (read.power_limit_min_w, read.power_limit_default_w, read.power_limit_max_w) == board.power
    assert (read.memory_total_mib, read.memory_used_mib) == (board.memory, view.used_mib)
    _same_errors(read, view)
    assert read.clock_reasons is not None and not isinstance(read.clock_reasons, Missing)
    assert bool(read.clock_reasons.active) == (not view.busy)
    if view.at_least(530):
        assert isinstance(read.fabric.state, Missing) if fabric[0] == "N/A" else read.fabric.state == fabric[0]
    assert not isinstance(read.processes, Missing)
    found = [(one.pid, one.name, one.used_memory_mib) for one in read.processes or ()]
    assert found == [(one["pid"], one["name"], one["used_mib"]) for one in gpu["processes"]]


def _same_board(read: Gpu, gpu: dict[str, Any]) -> None:
    board = PRODUCTS[gpu["product"]]
    assert (read.name, read.brand, read.architecture) == (board.name, board.brand, board.architecture)
    assert (read.uuid, read.bus_id, read.minor_number) == (gpu["uuid"], gpu["bus_id"], gpu["minor"])
    assert (read.vbios_version, read.temperature_c) == (gpu["vbios"], gpu["temperature_c"])
    assert (read.power_draw_w, read.utilization_gpu_pct) == (gpu["power_w"], gpu["utilization_percent"])
    assert read.pcie.replays == gpu["replays"]
    assert read.clocks.max_graphics_mhz == board.clocks[0]
    if board.is_data_center:
        assert (read.serial, read.memory_temperature_c) == (gpu["serial"], gpu["memory_temperature_c"])
    else:
        assert isinstance(read.serial, Missing)
        assert isinstance(read.memory_temperature_c, Missing)


def _same_errors(read: Gpu, view: View) -> None:
    if view.has_ecc:
        assert read.ecc.mode_current == "Enabled"
        for span, counts in (("volatile", read.ecc.volatile), ("aggregate", read.ecc.aggregate)):
            own = view.gpu["ecc"][span]
            assert counts.corrected == own["sram_correctable"] + own["dram_correctable"]
            assert counts.uncorrected == own["sram_parity"] + own["sram_secded"] + own["dram_uncorrectable"]
    else:
        assert read.ecc.mode_current == "Disabled"
    remapped, retired = view.gpu["remapped"], view.gpu["retired"]
    if view.board.banks:
        rows = read.remapped_rows
        assert (rows.correctable, rows.uncorrectable) == (remapped["correctable"], remapped["uncorrectable"])
        assert (rows.pending, rows.failure) == (remapped["pending"], remapped["failure"])
    else:
        pages = read.retired_pages
        assert (pages.single_bit, pages.double_bit) == (retired["single_bit"], retired["double_bit"])
        assert pages.pending == retired["pending"]
