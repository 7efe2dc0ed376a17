"""The table of `rackwright inspect`: what is odd, what is not seen, what could not be read."""

from __future__ import annotations

from typing import Any

from rackwright.inspection import COLUMNS, Host, rows, to_json
from rackwright_facts._parse.gpu import (
    Ecc,
    EccCounts,
    Fabric,
    Gpu,
    NvLink,
    NvLinks,
    NvLinkStatus,
    Pcie,
    RemappedRows,
    SmiLog,
)
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_smi_values import Missing
from rackwright_facts._parse.pci import PciDevice


def _gpu(index: int, **more: Any) -> Gpu:
    plain: dict[str, Any] = {
        "bus_id": f"0000:0{index}:00.0", "name": "NVIDIA H100 80GB HBM3", "vbios_version": "96.00.99.00.01",
        "memory_used_mib": 3, "memory_total_mib": 81559, "temperature_c": 30, "power_draw_w": 70.4,
        "power_limit_w": 700.0, "ecc": Ecc(mode_current="Enabled", volatile=EccCounts(uncorrected=0)),
        "pcie": Pcie(generation_max=5, width_current=16, width_max=16), "fabric": Fabric(state="Completed"),
    }  # fmt: skip
    return Gpu(**{**plain, **more})


def _host(name: str, *gpus: Gpu, driver: str = "580.126.16", on_bus: int | None = None) -> Host:
    count = len(gpus) if on_bus is None else on_bus
    bus = tuple(PciDevice(address=f"0000:0{index}:00.0", device_id=0x2330, pci_class=0x0302) for index in range(count))
    log = SmiLog(driver_version=driver, cuda_version="13.0", gpus=gpus)
    return Host(name, Reading.ok(log), Reading.ok(bus))


def _column(title: str) -> int:
    return [column.title for column in COLUMNS].index(title)


def test_equal_gpus_have_no_mark() -> None:
    found = rows([_host("gpu01", _gpu(0), _gpu(1)), _host("gpu02", _gpu(0))])
    assert [row.odd for row in found] == [frozenset()] * 3
    assert found[0].cells[:6] == ("gpu01", "0", "H100 80GB HBM3", "580.126.16", "13.0", "96.00.99.00.01")
    assert found[0].cells[6:9] == ("3/81559", "30", "70/700")


def test_the_odd_one_is_marked_against_the_majority_of_all_hosts() -> None:
    hosts = [
        _host("gpu01", _gpu(0), _gpu(1, vbios_version="96.00.74.00.0D")),
        _host("gpu02", _gpu(0), _gpu(1), driver="580.95.05"),
        _host("gpu03", _gpu(0), _gpu(1)),
    ]
    marked = {(row.cells[0], row.cells[1], column) for row in rows(hosts) for column in row.odd}
    assert marked == {
        ("gpu01", "1", _column("vbios")), ("gpu02", "0", _column("driver")), ("gpu02", "1", _column("driver")),
    }  # fmt: skip
    assert rows(hosts)[1].shown()[_column("vbios")] == "96.00.74.00.0D *"


def test_without_a_majority_nobody_is_odd_and_loads_differ_by_nature() -> None:
    hosts = [_host("gpu01", _gpu(0), driver="580.95.05"), _host("gpu02", _gpu(0, temperature_c=80))]
    assert not any(row.odd for row in rows(hosts))


def test_what_calls_for_a_person_is_said_in_words() -> None:
    bad = _gpu(
        0, pcie=Pcie(generation_max=5, width_current=8, width_max=16), recovery_action="Reset",
        remapped_rows=RemappedRows(failure=True),
    )  # fmt: skip
    (row,) = rows([_host("gpu01", bad)])
    assert row.cells[-1] == "PCIe x8 of x16; row remapping failed: replace it; the driver asks for: Reset"


def test_a_gpu_that_the_driver_does_not_see_has_a_line_of_its_own() -> None:
    found = rows([_host("gpu01", _gpu(0), on_bus=2)])
    assert [row.cells[-1] for row in found] == ["-", "0000:01:00.0 is on the bus, not seen by the driver"]


def test_hosts_that_tell_nothing_say_why() -> None:
    nothing: Reading[Any] = Reading(status="not_asked")
    bus = Reading.ok((PciDevice(address="0000:01:00.0", device_id=0x2330, pci_class=0x0302),))
    hosts = [
        Host("gpu01", nothing, nothing, "no answer: timed out"),
        Host("gpu02", Reading.absent(), bus),
        Host("gpu03", Reading.absent(), Reading.ok(())),
        Host("gpu04", Reading.error("exit status 9: NVIDIA-SMI has failed\nbecause"), bus),
    ]
    assert [row.cells[-1] for row in rows(hosts)] == [
        "no answer: timed out", "1 GPUs on the PCI bus: no driver is installed", "no GPU, no driver",
        "1 GPUs on the PCI bus: because",
    ]  # fmt: skip
    assert to_json(hosts)["hosts"]["gpu01"]["failure"] == "no answer: timed out"


def test_errors_are_shown_and_what_is_not_offered_is_a_dash() -> None:
    gpu = _gpu(0, temperature_c=Missing(kind="error", text="[Unknown Error]"),
               memory_used_mib=Missing(kind="unsupported", text="[Not Supported]"))  # fmt: skip
    (row,) = rows([_host("gpu01", gpu)])
    assert (row.cells[_column("temp C")], row.cells[_column("memory MiB")]) == ("[Unknown Error]", "-/81559")


def test_links_that_are_down_are_counted() -> None:
    up, down = (
        NvLink(link=0, speed_gb_s=25.0),
        NvLink(link=1, speed_gb_s=Missing(kind="not_available", text="inactive")),
    )
    links = NvLinkStatus(
        gpus=tuple(
            NvLinks(index=index, name="x", uuid=f"GPU-{index}", links=(up, second))
            for index, second in enumerate((up, up, down))
        )
    )
    one = _host("gpu01", *(_gpu(index, uuid=f"GPU-{index}") for index in range(3)))
    found = rows([Host(one.name, one.gpus, one.pci, links=Reading.ok(links))])
    assert [row.shown()[_column("nvlink")] for row in found] == ["2/2", "2/2", "1/2 *"]
