"""`nvidia-smi -q` as text, whole or in parts (`-d`): its labels under the names that the XML gives the same things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement

from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse import nvidia_smi_xml
from rackwright_facts._parse.gpu import SmiLog

_BANNER = re.compile(r"^=+NVSMI LOG=+$", re.MULTILINE)
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$")
_LINE = re.compile(r"^( *)(\S.*?)(?: *:(?: (.*))?)?$")

# Labels of the path that lead to a value -> where the XML has it. Sections first, by what their name is in the XML.
_SECTIONS = {
    "mig mode": "mig_mode", "mig device": "mig_devices/mig_device", "pci": "pci", "gpu link info": "pci_gpu_link_info",
    "pcie generation": "pcie_gen", "link width": "link_widths", "gpu reset status": "gpu_reset_status",
    "clocks event reasons": "clocks_event_reasons", "clocks throttle reasons": "clocks_throttle_reasons",
    "fb memory usage": "fb_memory_usage", "bar1 memory usage": "bar1_memory_usage", "utilization": "utilization",
    "ecc mode": "ecc_mode", "ecc errors": "ecc_errors", "volatile": "volatile", "aggregate": "aggregate",
    "single bit": "single_bit", "double bit": "double_bit", "retired pages": "retired_pages",
    "remapped rows": "remapped_rows", "temperature": "temperature", "gpu power readings": "gpu_power_readings",
    "power readings": "power_readings", "clocks": "clocks", "applications clocks": "applications_clocks",
    "max clocks": "max_clocks", "fabric": "fabric", "health": "health", "processes": "processes",
}  # fmt: skip
# (name of the section in the XML, label) -> name in the XML.
_FIELDS = {
    ("", "product name"): "product_name", ("", "product brand"): "product_brand",
    ("", "product architecture"): "product_architecture", ("", "persistence mode"): "persistence_mode",
    ("", "serial number"): "serial", ("", "gpu uuid"): "uuid", ("", "minor number"): "minor_number",
    ("", "vbios version"): "vbios_version", ("", "gpu recovery action"): "gpu_recovery_action",
    ("", "fan speed"): "fan_speed", ("", "performance state"): "performance_state",
    ("", "compute mode"): "compute_mode",
    ("mig_mode", "current"): "current_mig", ("mig_mode", "pending"): "pending_mig",
    ("mig_device", "index"): "index", ("mig_device", "gpu instance id"): "gpu_instance_id",
    ("mig_device", "compute instance id"): "compute_instance_id",
    ("gpu_reset_status", "reset required"): "reset_required",
    ("pci", "bus id"): "pci_bus_id", ("pci", "replays since reset"): "replay_counter",
    ("pcie_gen", "max"): "max_link_gen", ("pcie_gen", "current"): "current_link_gen",
    ("link_widths", "max"): "max_link_width", ("link_widths", "current"): "current_link_width",
    ("fb_memory_usage", "total"): "total", ("fb_memory_usage", "used"): "used", ("fb_memory_usage", "free"): "free",
    ("bar1_memory_usage", "total"): "total", ("bar1_memory_usage", "used"): "used",
    ("utilization", "gpu"): "gpu_util", ("utilization", "memory"): "memory_util",
    ("ecc_mode", "current"): "current_ecc", ("ecc_mode", "pending"): "pending_ecc",
    ("ecc_errors", "channel repair pending"): "channel_repair_pending",
    ("ecc_errors", "tpc repair pending"): "tpc_repair_pending",
    ("ecc_errors", "unrepairable memory"): "unrepairable_memory",
    ("single_bit", "total"): "total", ("double_bit", "total"): "total",
    ("retired_pages", "single bit ecc"): "multiple_single_bit_retirement/retired_count",
    ("retired_pages", "double bit ecc"): "double_bit_retirement/retired_count",
    ("retired_pages", "pending page blacklist"): "pending_blacklist",
    ("retired_pages", "pending"): "pending_retirement",
    ("remapped_rows", "correctable error"): "remapped_row_corr",
    ("remapped_rows", "uncorrectable error"): "remapped_row_unc", ("remapped_rows", "pending"): "remapped_row_pending",
    ("remapped_rows", "remapping failure occurred"): "remapped_row_failure",
    ("temperature", "gpu current temp"): "gpu_temp", ("temperature", "gpu t.limit temp"): "gpu_temp_tlimit",
    ("temperature", "gpu shutdown temp"): "gpu_temp_max_threshold",
    ("temperature", "gpu slowdown temp"): "gpu_temp_slow_threshold",
    ("temperature", "gpu max operating temp"): "gpu_temp_max_gpu_threshold",
    ("temperature", "gpu target temperature"): "gpu_target_temperature",
    ("temperature", "gpu shutdown t.limit temp"): "gpu_temp_max_tlimit_threshold",
    ("temperature", "gpu slowdown t.limit temp"): "gpu_temp_slow_tlimit_threshold",
    ("temperature", "gpu max operating t.limit temp"): "gpu_temp_max_gpu_tlimit_threshold",
    ("temperature", "memory current temp"): "memory_temp",
    ("temperature", "memory max operating temp"): "gpu_temp_max_mem_threshold",
    ("temperature", "memory max operating t.limit temp"): "gpu_temp_max_mem_tlimit_threshold",
    ("fabric", "state"): "state", ("fabric", "status"): "status", ("fabric", "cliqueid"): "cliqueId",
    ("fabric", "clusteruuid"): "clusterUuid", ("health", "summary"): "summary",
}  # fmt: skip
_POWER = {
    "power draw": "power_draw", "average power draw": "average_power_draw", "instantaneous power draw":
    "instant_power_draw", "current power limit": "current_power_limit", "power limit": "power_limit",
    "enforced power limit": "enforced_power_limit", "default power limit": "default_power_limit",
    "min power limit": "min_power_limit", "max power limit": "max_power_limit",
}  # fmt: skip
_CLOCKS = {"graphics": "graphics_clock", "sm": "sm_clock", "memory": "mem_clock", "video": "video_clock"}
_PROCESS = {
    "process id": "pid", "type": "type", "name": "process_name", "used gpu memory": "used_memory",
    "gpu instance id": "gpu_instance_id", "compute instance id": "compute_instance_id",
}  # fmt: skip


def parse(text: str) -> SmiLog:
    """Return what the log tells; text that is not such a log is a `ValueError`.

    A last line without its end may be cut off in a value: it does not count.
    """
    banner = _BANNER.search(text)
    if banner is None:
        raise ValueError("no NVSMI LOG in what nvidia-smi printed")
    body = text[banner.end() :]
    lines = body.splitlines() if body.endswith("\n") else body.splitlines()[:-1]
    head: dict[str, str] = {}
    gpus: list[tuple[str, list[str]]] = []
    notes = text[: banner.start()].splitlines()
    for line in lines:
        found = _GPU.match(line.rstrip())
        if line.startswith("WARNING"):
            notes.append(line)  # WARNING: infoROM is corrupted at gpu 0000:1b:00.0, after the last of them
        elif found:
            gpus.append((found.group(1), []))
        elif gpus:
            gpus[-1][1].append(line)
        else:
            label, _, value = line.partition(":")
            head[label.strip().lower()] = value.strip()
    if not gpus and "attached gpus" not in head:
        raise ValueError("the log does not come to its first GPU")
    return SmiLog(
        driver_version=values.word(head["driver version"]) if "driver version" in head else None,
        cuda_version=values.word(head["cuda version"]) if "cuda version" in head else None,
        attached_gpus=values.count(head["attached gpus"]) if "attached gpus" in head else None,
        gpus=tuple(nvidia_smi_xml.gpu_of(_element(bus_id, body)) for bus_id, body in gpus),
        notes=tuple(line.strip() for line in notes if line.strip()),
    )


def _element(bus_id: str, lines: list[str]) -> Element:
    """Return the GPU as the element that the XML has for it, as far as the model asks for it."""
    gpu = Element("gpu", {"id": bus_id})
    stack: list[tuple[int, Element | None]] = [(-1, gpu)]
    for depth, label, value in _labels(lines):
        while stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        if value is None:
            stack.append((depth, _section(gpu, parent, label)))
        elif label == "processes":
            SubElement(gpu, "processes").text = value
        elif parent is not None:
            _field(gpu, parent, label, value)
            # Two reasons of a slowdown stand below it, which has a value of its own.
            stack.append((depth, parent))
    return gpu


def _labels(lines: list[str]) -> Iterator[tuple[int, str, str | None]]:
    for line in lines:
        match = _LINE.match(line.rstrip())
        if match is not None:
            indent, label, value = match.groups()
            has_value = ":" in line[len(indent) + len(label) :]
            yield len(indent), label.strip().lower(), (value or "").strip() if has_value else None


def _section(gpu: Element, parent: Element | None, label: str) -> Element | None:
    """Return the element of a section; None for one of which the model wants nothing."""
    name = _SECTIONS.get(label)
    if name is None or parent is None:
        return None
    for part in name.split("/"):
        found = parent.find(part)
        parent = SubElement(parent, part) if found is None or part == "mig_device" else found
    return parent


def _field(gpu: Element, parent: Element, label: str, value: str) -> None:
    tag = "" if parent is gpu else parent.tag
    name: str | None
    if tag.endswith("power_readings"):
        name = _POWER.get(label)
    elif tag in ("clocks", "applications_clocks", "max_clocks"):
        name = _CLOCKS.get(label)
    elif tag in ("clocks_event_reasons", "clocks_throttle_reasons"):
        name = f"{tag.removesuffix('s')}_{re.sub(r'[^a-z]+', '_', label)}"
    elif tag in ("volatile", "aggregate"):
        name = re.sub(r"[^a-z]+", "_", label).replace("sec_ded", "secded")
    elif tag == "processes":
        name = _PROCESS.get(label)
        if name is not None:
            infos = parent.findall("process_info")
            parent = infos[-1] if infos and infos[-1].find(name) is None else SubElement(parent, "process_info")
    else:
        name = _FIELDS.get((tag, label))
        # A section that is not there at all: "Remapped Rows : N/A".
        if name is None and tag == "" and label in _SECTIONS:
            name = _SECTIONS[label]
    for part in name.split("/") if name else ():
        parent = SubElement(parent, part)
    if name:
        parent.text = value
