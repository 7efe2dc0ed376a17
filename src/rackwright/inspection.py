"""What the GPUs of all hosts are: a table of host x GPU, the odd one marked against the majority. No pyinfra here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rackwright_facts._parse.gpu import Gpu, NvLinks, NvLinkStatus, SmiLog
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_smi_values import Missing
from rackwright_facts._parse.pci import PciDevice

ODD = "*"
"""Stands behind a value that is not the majority's."""


@dataclass(frozen=True)
class Column:
    """One column: its title, and whether its values are to be alike on all GPUs."""

    title: str
    alike: bool = False


COLUMNS = (
    Column("host"), Column("gpu"), Column("model", True), Column("driver", True), Column("cuda", True),
    Column("vbios", True), Column("memory MiB"), Column("temp C"), Column("power W"), Column("ecc", True),
    Column("uncorrected", True), Column("pcie", True), Column("nvlink", True), Column("fabric", True),
    Column("note"),
)  # fmt: skip


_MODEL = 2


@dataclass(frozen=True)
class Row:
    """One GPU, or a host that gave none; `odd` are the columns whose value is not the majority's."""

    cells: tuple[str, ...]
    odd: frozenset[int] = field(default_factory=frozenset)

    def shown(self) -> tuple[str, ...]:
        """Return the cells with the odd ones marked."""
        return tuple(f"{cell} {ODD}" if index in self.odd else cell for index, cell in enumerate(self.cells))


@dataclass(frozen=True)
class Host:
    """One host as it was looked at; `failure` says why nothing is known of it."""

    name: str
    gpus: Reading[SmiLog]
    pci: Reading[tuple[PciDevice, ...]]
    failure: str = ""
    links: Reading[NvLinkStatus] = field(default_factory=lambda: Reading(status="not_asked"))


def rows(hosts: Sequence[Host]) -> list[Row]:
    """Return the table's rows, with what differs from the majority of its column marked."""
    plain = [cells for host in hosts for cells in _host(host)]
    odd: dict[int, set[int]] = {}
    models = {cells[_MODEL] for cells in plain}
    for column, kind in enumerate(COLUMNS):
        # Boards of different models have a VBIOS, links and a fabric of their own kind.
        groups = [[i for i, cells in enumerate(plain) if cells[_MODEL] == model] for model in models]
        for group in groups if kind.alike and column > _MODEL else [list(range(len(plain)))] if kind.alike else []:
            usual = _majority([plain[index][column] for index in group])
            for index in group:
                if usual is not None and plain[index][column] not in ("", "-", usual):
                    odd.setdefault(index, set()).add(column)
    return [Row(cells, frozenset(odd.get(index, ()))) for index, cells in enumerate(plain)]


def _majority(values: Sequence[str]) -> str | None:
    """Return the value that most have; None where none has the majority, and so none is the odd one."""
    (usual, count), *rest = Counter(value for value in values if value not in ("", "-")).most_common(2) or [("", 0)]
    return None if not count or (rest and rest[0][1] == count) else usual


def _host(host: Host) -> list[tuple[str, ...]]:
    if host.failure:
        return [_note(host.name, host.failure)]
    on_bus = {device.address for device in host.pci.value or () if device.is_gpu}
    log = host.gpus.value
    if not host.gpus.is_ok or log is None:
        if host.gpus.is_absent:
            why = "no driver is installed" if on_bus else "no GPU, no driver"
        else:
            lines = [line.strip() for line in host.gpus.reason.splitlines() if line.strip()]
            why = lines[-1] if lines else host.gpus.status
        count = f"{len(on_bus)} GPUs on the PCI bus: " if on_bus else ""
        return [_note(host.name, count + why)]
    links = {one.uuid: one for one in (host.links.value.gpus if host.links.value else ())}
    found = [_gpu(host.name, index, gpu, log, links.get(str(gpu.uuid))) for index, gpu in enumerate(log.gpus)]
    unseen = sorted(on_bus - {str(gpu.bus_id) for gpu in log.gpus})
    found += [_note(host.name, f"{address} is on the bus, not seen by the driver") for address in unseen]
    return found or [_note(host.name, "no GPU")]


def _note(name: str, text: str) -> tuple[str, ...]:
    return (name, *("-" for _ in COLUMNS[1:-1]), text)


def _gpu(host: str, index: int, gpu: Gpu, log: SmiLog, links: NvLinks | None) -> tuple[str, ...]:
    pcie = gpu.pcie
    notes = [*_notes(gpu)]
    return (
        host,
        str(index),
        _text(gpu.name).removeprefix("NVIDIA "),
        _text(log.driver_version),
        _text(log.cuda_version),
        _text(gpu.vbios_version),
        f"{_text(gpu.memory_used_mib)}/{_text(gpu.memory_total_mib)}",
        _text(gpu.temperature_c),
        f"{_text(gpu.power_draw_w)}/{_text(gpu.power_limit_w)}",
        _text(gpu.ecc.mode_current),
        _text(gpu.ecc.volatile.uncorrected),
        f"{_text(pcie.generation_max)}x{_text(pcie.width_current)}",
        _links(links),
        _text(gpu.fabric.state),
        "; ".join(notes) or "-",
    )


def _links(links: NvLinks | None) -> str:
    """Return how many NVLinks are up of how many there are."""
    if links is None or not (links.links or links.all_inactive):
        return "-"
    if links.all_inactive:
        return "all down"
    up = sum(1 for link in links.links if not isinstance(link.speed_gb_s, Missing))
    return f"{up}/{len(links.links)}"


def _notes(gpu: Gpu) -> list[str]:
    """Return what calls for a person: an idle link may run at a lower generation, never with fewer lanes."""
    found = []
    width, full = gpu.pcie.width_current, gpu.pcie.width_max
    if isinstance(width, int) and isinstance(full, int) and width < full:
        found.append(f"PCIe x{width} of x{full}")
    if gpu.remapped_rows.failure is True:
        found.append("row remapping failed: replace it")
    elif gpu.remapped_rows.pending is True:
        found.append("a remapped row waits for a reset")
    if isinstance(gpu.recovery_action, str) and gpu.recovery_action != "None":
        found.append(f"the driver asks for: {gpu.recovery_action}")
    return found


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Missing):
        return "-" if value.kind != "error" else value.text
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def to_json(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return all that is known of the hosts, schema 1."""
    return {
        "schema": 1,
        "hosts": {
            host.name: {
                "failure": host.failure,
                "gpus": host.gpus.to_json(),
                "pci": host.pci.to_json(),
                "nvlinks": host.links.to_json(),
            }
            for host in hosts
        },
    }
