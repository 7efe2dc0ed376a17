"""`nvidia-smi -q -x` of every schema (DTD v9 to v13): told by the elements that are there, never by a version.

Driver 525 says v12 and prints v11's elements, 570 says v12 and prints v13's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse.gpu import (
    ClockReasons,
    Clocks,
    Ecc,
    EccCounts,
    Fabric,
    Gpu,
    MigDevice,
    Pcie,
    Process,
    RemappedRows,
    RetiredPages,
    SmiLog,
    TemperatureLimits,
)
from rackwright_facts._parse.nvidia_smi_values import Missing

T = TypeVar("T")

_ROOT = "nvidia_smi_log"
# Of a GPU that the driver could not open, nothing but this text stands in its element.
_POWER = ("gpu_power_readings", "power_readings")


def parse(text: str) -> SmiLog:
    """Return what the log tells; anything that is not a whole log is a `ValueError`."""
    start = text.find("<")
    if start < 0:
        raise ValueError("no XML in what nvidia-smi printed")
    body = text[start:]
    # No DTD is read, and a document with one inside would be a bomb: the tool only names its DTD.
    if re.search(r"<!(ENTITY|DOCTYPE[^>]*\[)", body):
        raise ValueError("the log declares entities of its own")
    end = body.rfind(f"</{_ROOT}>")
    if end < 0:
        raise ValueError("the log does not come to its end")
    end += len(_ROOT) + 3
    root = _root(body[:end])
    if root.tag != _ROOT:
        raise ValueError(f"not a log of nvidia-smi: {root.tag}")
    notes = (*text[:start].splitlines(), *body[end:].splitlines())
    return SmiLog(
        driver_version=_read(root, values.word, "driver_version"),
        cuda_version=_read(root, values.word, "cuda_version"),
        attached_gpus=_read(root, values.count, "attached_gpus"),
        gpus=tuple(map(gpu_of, root.findall("gpu"))),
        notes=tuple(line.strip() for line in notes if line.strip()),
    )


def _root(document: str) -> Element:
    try:
        return ElementTree.fromstring(document)  # noqa: S314 -- entities were refused before
    except (ElementTree.ParseError, ValueError) as error:
        # The name of a process is its user's own bytes: one that is not escaped must not hide the GPUs.
        mended = re.sub(r"(?<=<process_name>)[^\n]*(?=</process_name>)", lambda name: _escaped(name[0]), document)
        try:
            return ElementTree.fromstring(mended)  # noqa: S314 -- as above
        except (ElementTree.ParseError, ValueError):
            raise ValueError(f"not the XML of nvidia-smi: {error}") from None


def _escaped(name: str) -> str:
    printable = re.sub(r"[\x00-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", name)
    return re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+);)", "&amp;", printable).replace("<", "&lt;")


def _read(element: Element | None, reader: Callable[[str], T | Missing], *paths: str) -> T | Missing | None:
    """Return the first of the paths that is there and has a value; what is there without one is `Missing`."""
    if element is None:
        return None
    return values.first(_values(element, reader, paths))


def _values(
    element: Element, reader: Callable[[str], T | Missing], paths: Iterable[str]
) -> Iterable[T | Missing | None]:
    for path in paths:
        found = element.find(path)
        if found is not None and len(found) == 0:
            yield reader(found.text or "")
            continue
        # A whole block that the driver leaves out: <remapped_rows>N/A</remapped_rows>.
        above, _, _ = path.rpartition("/")
        parent = element.find(above) if above and found is None else None
        if parent is not None and len(parent) == 0 and (parent.text or "").strip():
            yield values.missing(parent.text or "")


def gpu_of(gpu: Element) -> Gpu:
    """Return one GPU out of its element."""

    def text(*paths: str) -> str | Missing | None:
        return _read(gpu, values.word, *paths)

    def mib(*paths: str) -> int | Missing | None:
        return _read(gpu, values.mib, *paths)

    def watts(*names: str) -> float | Missing | None:
        return _read(gpu, values.watts, *(f"{block}/{name}" for name in names for block in _POWER))

    return Gpu(
        minor_number=_read(gpu, values.count, "minor_number"),
        bus_id=_read(gpu, values.bus_id, "pci/pci_bus_id") or values.bus_id(gpu.get("id", "")),
        uuid=text("uuid"),
        name=text("product_name"),
        brand=text("product_brand"),
        architecture=text("product_architecture"),
        serial=text("serial"),
        vbios_version=text("vbios_version"),
        persistence_mode=text("persistence_mode"),
        mig_mode_current=text("mig_mode/current_mig"),
        mig_mode_pending=text("mig_mode/pending_mig"),
        mig_devices=tuple(map(_mig, gpu.findall("mig_devices/mig_device"))),
        compute_mode=text("compute_mode"),
        performance_state=text("performance_state"),
        recovery_action=text("gpu_recovery_action"),
        reset_required=_read(gpu, values.flag, "gpu_reset_status/reset_required"),
        memory_total_mib=mib("fb_memory_usage/total"),
        memory_used_mib=mib("fb_memory_usage/used"),
        memory_free_mib=mib("fb_memory_usage/free"),
        bar1_total_mib=mib("bar1_memory_usage/total"),
        bar1_used_mib=mib("bar1_memory_usage/used"),
        utilization_gpu_pct=_read(gpu, values.percent, "utilization/gpu_util"),
        utilization_memory_pct=_read(gpu, values.percent, "utilization/memory_util"),
        fan_pct=_read(gpu, values.fan, "fan_speed"),
        temperature_c=_read(gpu, values.celsius, "temperature/gpu_temp"),
        memory_temperature_c=_read(gpu, values.celsius, "temperature/memory_temp"),
        temperature_limits=_limits(gpu.find("temperature")),
        power_draw_w=watts("instant_power_draw", "power_draw", "average_power_draw"),
        power_average_w=watts("average_power_draw"),
        power_limit_w=watts("current_power_limit", "enforced_power_limit", "power_limit"),
        power_limit_default_w=watts("default_power_limit"),
        power_limit_min_w=watts("min_power_limit"),
        power_limit_max_w=watts("max_power_limit"),
        clocks=_clocks(gpu),
        clock_reasons=_reasons(gpu),
        ecc=_ecc(gpu),
        retired_pages=_retired(gpu),
        remapped_rows=_remapped(gpu),
        pcie=_pcie(gpu),
        fabric=_fabric(gpu),
        processes=_processes(gpu),
    )


def _mig(device: Element) -> MigDevice:
    memory = "fb_memory_usage/"
    return MigDevice(
        index=_read(device, values.count, "index"),
        gpu_instance_id=_read(device, values.count, "gpu_instance_id"),
        compute_instance_id=_read(device, values.count, "compute_instance_id"),
        uuid=_read(device, values.word, "uuid"),
        memory_total_mib=_read(device, values.mib, f"{memory}total"),
        memory_used_mib=_read(device, values.mib, f"{memory}used"),
        memory_free_mib=_read(device, values.mib, f"{memory}free"),
        sram_uncorrected=_read(device, values.count, "ecc_error_count/volatile_count/sram_uncorrectable"),
    )


def _limits(block: Element | None) -> TemperatureLimits:
    def celsius(*names: str) -> int | Missing | None:
        return _read(block, values.celsius, *names)

    return TemperatureLimits(
        shutdown_c=celsius("gpu_temp_max_threshold"),
        slowdown_c=celsius("gpu_temp_slow_threshold"),
        max_operating_c=celsius("gpu_temp_max_gpu_threshold"),
        target_c=celsius("gpu_target_temperature"),
        memory_max_operating_c=celsius("gpu_temp_max_mem_threshold"),
        tlimit_c=celsius("gpu_temp_tlimit"),
        shutdown_tlimit_c=celsius("gpu_temp_max_tlimit_threshold"),
        slowdown_tlimit_c=celsius("gpu_temp_slow_tlimit_threshold"),
        max_operating_tlimit_c=celsius("gpu_temp_max_gpu_tlimit_threshold"),
        memory_max_operating_tlimit_c=celsius("gpu_temp_max_mem_tlimit_threshold"),
    )


def _clocks(gpu: Element) -> Clocks:
    def mhz(*paths: str) -> int | Missing | None:
        return _read(gpu, values.mhz, *paths)

    return Clocks(
        graphics_mhz=mhz("clocks/graphics_clock"),
        sm_mhz=mhz("clocks/sm_clock"),
        memory_mhz=mhz("clocks/mem_clock"),
        video_mhz=mhz("clocks/video_clock"),
        applications_graphics_mhz=mhz("applications_clocks/graphics_clock"),
        applications_memory_mhz=mhz("applications_clocks/mem_clock"),
        max_graphics_mhz=mhz("max_clocks/graphics_clock"),
        max_sm_mhz=mhz("max_clocks/sm_clock"),
        max_memory_mhz=mhz("max_clocks/mem_clock"),
    )


def _reasons(gpu: Element) -> ClockReasons | Missing | None:
    block = next((gpu.find(name) for name in ("clocks_event_reasons", "clocks_throttle_reasons", "clocks_event_reason")
                  if gpu.find(name) is not None), None)  # fmt: skip
    if block is None:
        return None
    if len(block) == 0:
        return values.missing(block.text or "") or values.error(block.text or "")
    active, unreadable = [], []
    told = [(values.clock_reason(reason.tag), values.flag(reason.text or "")) for reason in block]
    lacking = [said for _, said in told if isinstance(said, Missing)]
    if len(lacking) == len(told):
        return lacking[0]  # of none of them it is known: that is not "none is active"
    for name, said in told:
        if said is True:
            active.append(name)
        elif isinstance(said, Missing) and said.kind == "error":
            unreadable.append(name)
    return ClockReasons(active=tuple(active), unreadable=tuple(unreadable))


def _ecc(gpu: Element) -> Ecc:
    errors = gpu.find("ecc_errors")

    def flag(*paths: str) -> bool | Missing | None:
        return _read(errors, values.flag, *paths)

    return Ecc(
        mode_current=_read(gpu, values.word, "ecc_mode/current_ecc"),
        mode_pending=_read(gpu, values.word, "ecc_mode/pending_ecc"),
        volatile=_counts(gpu, "volatile"),
        aggregate=_counts(gpu, "aggregate"),
        sram_threshold_exceeded=flag("aggregate/sram_threshold_exceeded"),
        channel_repair_pending=flag("channel_repair_pending"),
        tpc_repair_pending=flag("tpc_repair_pending"),
        unrepairable_memory=flag("unrepairable_memory"),
    )


def _counts(gpu: Element, period: str) -> EccCounts:
    def count(*names: str) -> int | Missing | None:
        return _read(gpu, values.count, *(f"ecc_errors/{period}/{name}" for name in names))

    split = [count("sram_uncorrectable_parity"), count("sram_uncorrectable_secded")]
    sram_uncorrected = values.total(split) if any(part is not None for part in split) else count("sram_uncorrectable")
    corrected = [count("sram_correctable"), count("dram_correctable")]
    uncorrected = [sram_uncorrected, count("dram_uncorrectable")]
    old = [count("single_bit/total"), count("double_bit/total")]
    return EccCounts(
        corrected=values.total(corrected) if any(part is not None for part in corrected) else old[0],
        uncorrected=values.total(uncorrected) if any(part is not None for part in uncorrected) else old[1],
        sram_corrected=corrected[0],
        sram_uncorrected=sram_uncorrected,
        dram_corrected=corrected[1],
        dram_uncorrected=uncorrected[1],
    )


def _retired(gpu: Element) -> RetiredPages:
    # One driver prints both words for the same thing: a page waits when either says so.
    words = [_read(gpu, values.flag, f"retired_pages/pending_{word}") for word in ("retirement", "blacklist")]
    return RetiredPages(
        single_bit=_read(gpu, values.count, "retired_pages/multiple_single_bit_retirement/retired_count"),
        double_bit=_read(gpu, values.count, "retired_pages/double_bit_retirement/retired_count"),
        pending=True if True in words else values.first(words),
    )


def _remapped(gpu: Element) -> RemappedRows:
    return RemappedRows(
        correctable=_read(gpu, values.count, "remapped_rows/remapped_row_corr"),
        uncorrectable=_read(gpu, values.count, "remapped_rows/remapped_row_unc"),
        pending=_read(gpu, values.flag, "remapped_rows/remapped_row_pending"),
        failure=_read(gpu, values.flag, "remapped_rows/remapped_row_failure"),
    )


def _pcie(gpu: Element) -> Pcie:
    link = "pci/pci_gpu_link_info/"
    return Pcie(
        generation_current=_read(gpu, values.count, f"{link}pcie_gen/current_link_gen"),
        generation_max=_read(gpu, values.count, f"{link}pcie_gen/max_link_gen"),
        width_current=_read(gpu, values.lanes, f"{link}link_widths/current_link_width"),
        width_max=_read(gpu, values.lanes, f"{link}link_widths/max_link_width"),
        replays=_read(gpu, values.count, "pci/replay_counter"),
    )


def _fabric(gpu: Element) -> Fabric:
    def text(*paths: str) -> str | Missing | None:
        return _read(gpu, values.word, *paths)

    return Fabric(
        state=text("fabric/state"),
        status=text("fabric/status"),
        clique_id=_read(gpu, values.count, "fabric/cliqueId", "fabric/clique_id"),
        cluster_uuid=text("fabric/clusterUuid", "fabric/cluster_uuid"),
        health=text("fabric/health/summary"),
    )


def _processes(gpu: Element) -> tuple[Process, ...] | Missing | None:
    block = gpu.find("processes")
    if block is None:
        return None
    if len(block) == 0:
        said = (block.text or "").strip()
        return values.missing(said) or () if said and said.lower() != "none" else ()
    return tuple(
        Process(
            pid=_read(one, values.count, "pid"),
            type=_read(one, values.word, "type"),
            name=_read(one, values.word, "process_name"),
            used_memory_mib=_read(one, values.mib, "used_memory"),
            gpu_instance_id=_read(one, values.count, "gpu_instance_id"),
            compute_instance_id=_read(one, values.count, "compute_instance_id"),
        )
        for one in block.findall("process_info")
    )
