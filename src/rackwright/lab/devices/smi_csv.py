"""`nvidia-smi --query-gpu` and `--query-compute-apps`: columns by name, with units and brackets as the real ones."""

from __future__ import annotations

import socket
from collections.abc import Callable

from .smi_device import NA, UNKNOWN, View
from .smi_rows import DEPRECATED, ecc_modes, mig_texts, on_off, yes_no
from .smi_tree import REASONS

_Column = tuple[str, Callable[[View], str]]
# Old and short names -> the name in the header.
_ALIASES = {
    "gpu_name": "name", "gpu_serial": "serial", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics", "clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video", "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}  # fmt: skip
_BITS = {name: 1 << bit for bit, (name, _) in enumerate(REASONS)}


class UnknownField(ValueError):
    """A column that this driver does not have."""


def _reason(name: str) -> Callable[[View], str]:
    return lambda view: "Active" if name in view.throttle else "Not Active"


def _errors(span: str, *names: str) -> Callable[[View], str]:
    return lambda view: str(sum(view.gpu["ecc"][span][name] for name in names)) if view.has_ecc else NA


def _remapped(name: str) -> Callable[[View], str]:
    def value(view: View) -> str:
        found = view.gpu["remapped"][name]
        return NA if not view.board.banks else yes_no(found) if isinstance(found, bool) else str(found)

    return value


def _retired(name: str) -> Callable[[View], str]:
    def value(view: View) -> str:
        found = view.gpu["retired"][name]
        return NA if view.board.banks else yes_no(found) if isinstance(found, bool) else str(found)

    return value


_COLUMNS: dict[str, Callable[[View], str]] = {
    "driver_version": lambda view: view.driver,
    "name": lambda view: view.board.name,
    "serial": lambda view: str(view.gpu["serial"]),
    "uuid": lambda view: str(view.gpu["uuid"]),
    "pci.bus_id": lambda view: view.bus_id,
    "pci.domain": lambda view: f"0x{view.bus_id[4:8]}",
    "pci.bus": lambda view: f"0x{view.bus_id[9:11]}",
    "pci.device": lambda view: f"0x{view.bus_id[12:14]}",
    "pci.device_id": lambda view: f"0x{view.board.device.upper()}10DE",
    "pci.sub_device_id": lambda view: f"0x{view.board.subsystem.upper()}10DE",
    "pcie.link.gen.current": lambda view: str(view.gpu.get("link_gen", view.board.link_gen)),
    "pcie.link.gen.max": lambda view: str(view.board.link_gen),
    "pcie.link.gen.gpumax": lambda view: str(view.board.link_gen),
    "pcie.link.width.current": lambda view: str(view.gpu.get("link_width", 16)),
    "pcie.link.width.max": lambda view: "16",
    "index": lambda view: str(view.gpu["index"]),
    "display_mode": lambda view: DEPRECATED if view.at_least(580) else on_off(view.board.is_data_center),
    "display_active": lambda view: "Disabled",
    "persistence_mode": lambda view: on_off(bool(view.settings.get("persistence"))),
    "accounting.mode": lambda view: "Disabled",
    "vbios_version": lambda view: str(view.gpu["vbios"]),
    "inforom.img": lambda view: view.board.inforom[0],
    "inforom.oem": lambda view: view.board.inforom[1],
    "inforom.ecc": lambda view: view.board.inforom[2],
    "fan.speed": lambda view: NA if view.board.is_data_center else "0 %",
    "pstate": lambda view: view.pstate,
    "clocks_event_reasons.supported": lambda view: "0x00000000000001FF",
    "clocks_event_reasons.active": lambda view: f"0x{sum(_BITS[name] for name in view.throttle):016X}",
    **{f"clocks_event_reasons.{name}": _reason(name) for name, _ in REASONS[:-1]},
    "memory.total": lambda view: f"{view.board.memory} MiB",
    "memory.reserved": lambda view: f"{view.board.reserved} MiB",
    "memory.used": lambda view: f"{view.used_mib} MiB",
    "memory.free": lambda view: f"{view.free_mib} MiB",
    "compute_mode": lambda view: str(view.settings.get("compute_mode", "Default")),
    "compute_cap": lambda view: view.board.compute,
    "utilization.gpu": lambda view: NA if view.mig and view.mig[0] else view.text_of(_load(view)),
    "utilization.memory": lambda view: NA if view.mig and view.mig[0] else view.text_of("0 %"),
    "ecc.mode.current": lambda view: ecc_modes(view)[0],
    "ecc.mode.pending": lambda view: ecc_modes(view)[1],
    **{
        f"ecc.errors.{kind}.{span}.{place}": _errors(span, *names)
        for span in ("volatile", "aggregate")
        for kind, place, names in (
            ("corrected", "device_memory", ("dram_correctable",)),
            ("corrected", "dram", ("dram_correctable",)),
            ("corrected", "sram", ("sram_correctable",)),
            ("corrected", "total", ("dram_correctable", "sram_correctable")),
            ("uncorrected", "device_memory", ("dram_uncorrectable",)),
            ("uncorrected", "dram", ("dram_uncorrectable",)),
            ("uncorrected", "sram", ("sram_parity", "sram_secded")),
            ("uncorrected", "total", ("dram_uncorrectable", "sram_parity", "sram_secded")),
        )
    },
    "retired_pages.single_bit_ecc.count": _retired("single_bit"),
    "retired_pages.double_bit.count": _retired("double_bit"),
    "retired_pages.pending": _retired("pending"),
    "remapped_rows.correctable": _remapped("correctable"),
    "remapped_rows.uncorrectable": _remapped("uncorrectable"),
    "remapped_rows.pending": _remapped("pending"),
    "remapped_rows.failure": _remapped("failure"),
    "temperature.gpu": lambda view: view.text_of(str(view.gpu["temperature_c"])),
    "temperature.memory": lambda view: str(view.gpu["memory_temperature_c"]) if view.board.is_data_center else NA,
    "power.management": lambda view: DEPRECATED if view.at_least(580) else "Enabled",
    "power.draw": lambda view: view.text_of(f"{view.gpu['power_w']:.2f} W"),
    "power.draw.average": lambda view: view.text_of(f"{view.gpu['power_w']:.2f} W"),
    "power.draw.instant": lambda view: view.text_of(f"{view.gpu['power_w']:.2f} W"),
    "power.limit": lambda view: f"{view.power_limit_w:.2f} W",
    "enforced.power.limit": lambda view: f"{view.power_limit_w:.2f} W",
    "power.default_limit": lambda view: f"{view.board.power[1]:.2f} W",
    "power.min_limit": lambda view: f"{view.board.power[0]:.2f} W",
    "power.max_limit": lambda view: f"{view.board.power[2]:.2f} W",
    "clocks.current.graphics": lambda view: f"{view.clocks_mhz[0]} MHz",
    "clocks.current.sm": lambda view: f"{view.clocks_mhz[0]} MHz",
    "clocks.current.memory": lambda view: f"{view.clocks_mhz[1]} MHz",
    "clocks.current.video": lambda view: f"{view.clocks_mhz[2]} MHz",
    "clocks.max.graphics": lambda view: f"{view.board.clocks[0]} MHz",
    "clocks.max.sm": lambda view: f"{view.board.clocks[0]} MHz",
    "clocks.max.memory": lambda view: f"{view.board.clocks[1]} MHz",
    "mig.mode.current": lambda view: mig_texts(view)[0],
    "mig.mode.pending": lambda view: mig_texts(view)[1],
    "gsp.mode.current": lambda view: on_off(view.is_ampere_or_newer),
    "fabric.state": lambda view: view.fabric[0],
    "fabric.status": lambda view: view.fabric[1],
    "hostname": lambda view: socket.gethostname(),
}
_UNITS = {
    "memory.": "MiB", "utilization.": "%", "fan.speed": "%", "power.draw": "W", "power.limit": "W",
    "enforced.power": "W", "power.default": "W", "power.min": "W", "power.max": "W", "clocks.current": "MHz",
    "clocks.max": "MHz",
}  # fmt: skip
_SINCE = {"fabric.": (530,), "power.draw.": (530,), "power.draw.average": (530,)}
# NVML leaves these two without brackets.
_BARE = ("temperature.memory", "fabric.state", "fabric.status")


def _load(view: View) -> str:
    return f"{view.gpu['utilization_percent']} %"


def _column(name: str, view: View) -> _Column:
    name = _ALIASES.get(name, name)
    if name.startswith("clocks_throttle_reasons.") and view.at_least(535, 54):
        # The old names are still answered, under the new ones.
        name = name.replace("throttle", "event", 1)
    elif name.startswith("clocks_event_reasons.") and not view.at_least(535, 54):
        raise UnknownField(name)
    get = _COLUMNS.get(name.replace("clocks_throttle", "clocks_event", 1))
    if get is None or any(name.startswith(start) and not view.at_least(*v) for start, v in _SINCE.items()):
        raise UnknownField(name)
    unit = next((unit for start, unit in _UNITS.items() if name.startswith(start)), "")
    return (f"{name} [{unit}]" if unit else name), get


def query_gpu(found: list[View], names: list[str], now: str, formats: set[str]) -> str:
    """Return the rows of `--query-gpu`; a column that there is not is an UnknownField."""
    columns: list[_Column] = []
    for name in names:
        if name == "timestamp":
            columns.append((name, lambda view: now))
        elif name == "count":
            columns.append((name, lambda view: str(len(found))))
        else:
            columns.append(_column(name, found[0]))
    rows = [] if "noheader" in formats else [", ".join(header for header, _ in columns)]
    for view in found:
        rows.append(", ".join(_cell(header.split()[0], get(view), formats) for header, get in columns))
    return "".join(row + "\n" for row in rows)


def _cell(name: str, value: str, formats: set[str]) -> str:
    if value in (NA, UNKNOWN, DEPRECATED):
        return value if name in _BARE and value == NA else f"[{value}]"
    number, _, unit = value.partition(" ")
    return number if "nounits" in formats and unit in ("MiB", "W", "MHz", "%") else value


def query_apps(found: list[View], names: list[str], now: str, formats: set[str]) -> str:
    """Return the rows of `--query-compute-apps`: none where nothing computes."""
    known = {
        "timestamp": "timestamp", "gpu_name": "gpu_name", "gpu_bus_id": "gpu_bus_id", "gpu_serial": "gpu_serial",
        "gpu_uuid": "gpu_uuid", "pid": "pid", "process_name": "process_name", "name": "process_name",
        "used_gpu_memory": "used_gpu_memory [MiB]", "used_memory": "used_gpu_memory [MiB]",
    }  # fmt: skip
    for name in names:
        if name not in known:
            raise UnknownField(name)
    rows = [] if "noheader" in formats else [", ".join(known[name] for name in names)]
    for view in found:
        for one in view.gpu["processes"]:
            values = {
                "timestamp": now, "gpu_name": view.board.name, "gpu_bus_id": view.bus_id,
                "gpu_serial": str(view.gpu["serial"]), "gpu_uuid": str(view.gpu["uuid"]), "pid": str(one["pid"]),
                "process_name": one["name"], "used_gpu_memory": f"{one['used_mib']} MiB",
            }  # fmt: skip
            fields = (known[name].split()[0] for name in names)
            rows.append(", ".join(_cell(field, values[field], formats) for field in fields))
    return "".join(row + "\n" for row in rows)
