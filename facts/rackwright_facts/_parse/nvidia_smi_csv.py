"""`nvidia-smi --query-gpu=... --format=csv`: rows of cells, each a value or what stands in its place."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse.gpu import SmiCsv
from rackwright_facts._parse.nvidia_smi_values import Missing

_COLUMN = re.compile(r"^[A-Za-z][A-Za-z0-9_.]*( \[[A-Za-z%/]+\])?$")
# Numbers that are names: an id, a version, a time of day.
_TEXT = re.compile(
    r"version|compute_cap|uuid|serial|name|timestamp|bus_id|id$|domain|^pci\.|inforom|pdi|vbios|pstate|mode|capabilit"
)
Cell = str | int | float | Missing


def parse(text: str, columns: Sequence[str] | None = None) -> SmiCsv:
    """Return the rows; without a header (`noheader`) the asked `columns` have to be given, in their order.

    Columns are named with the unit that the header, or without one the cells, give: `memory.used [MiB]`.
    A row with another number of cells than the header is told in `unreadable`, and hides no other; so is a last row
    that may have been cut off. What is no such answer is a `ValueError`.
    """
    lines = text.splitlines()
    notes = [
        line.strip() for line in lines if line.strip() and "," not in line and line.startswith(("WARNING", "Note"))
    ]
    rest = [line for line in lines if line.strip() and line.strip() not in notes]
    first = _cells(rest[0]) if rest else []
    if columns is None or [_name(cell) for cell in first] == [_name(column) for column in columns]:
        if not first or not all(map(_COLUMN.match, first)) or (len(rest) == 1 and not text.endswith("\n")):
            raise ValueError("no whole header of nvidia-smi --query-gpu in the first line")
        columns, rest = first, rest[1:]
    else:
        table = [cells for line in rest if len(cells := _cells(line)) == len(columns)]
        columns = [_with_unit(name, [cells[at] for cells in table]) for at, name in enumerate(columns)]
    if not columns or len(set(columns)) != len(columns):
        raise ValueError("no columns, or one of them twice")
    rows: list[dict[str, Cell]] = []
    unreadable: list[str] = []
    for index, line in enumerate(rest):
        cells = _cells(line)
        cut = index == len(rest) - 1 and not text.endswith("\n") and not values.is_whole(cells[-1] if cells else "")
        if len(cells) != len(columns) or cut:
            unreadable.append(line)
            continue
        rows.append({name: _cell(name, cell) for name, cell in zip(columns, cells, strict=True)})
    if not rows and unreadable and len(unreadable) == len(rest):
        raise ValueError(f"no row has the header's {len(columns)} cells: {unreadable[0][:120]!r}")
    return SmiCsv(columns=tuple(columns), rows=tuple(rows), unreadable=tuple(unreadable), notes=tuple(notes))


def _name(column: str) -> str:
    return column.partition(" [")[0]


def _with_unit(column: str, cells: Sequence[str]) -> str:
    units = {match[1] for cell in cells if (match := re.fullmatch(r"-?[0-9.]+ ([A-Za-z%/]+)", cell))}
    return f"{column} [{units.pop()}]" if len(units) == 1 and " [" not in column else column


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader(io.StringIO(line), skipinitialspace=True), [])]


def _cell(column: str, cell: str) -> Cell:
    """Return a cell: its number without the unit that the header names, or its text, or what its word means."""
    lacking = values.missing(cell)
    if lacking is not None:
        return lacking
    name, _, unit = column.partition(" [")
    unit = unit.rstrip("]")
    if unit:
        number = values.real(cell, unit, "")
        if isinstance(number, Missing):
            return number
        if name.startswith("utilization.") and number > 100:
            return values.error(cell)  # a driver's "no value" as a number
        return int(number) if float(number).is_integer() and "." not in cell else number
    if _TEXT.search(name) or not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,9})?", cell, flags=re.ASCII):
        return cell
    return float(cell) if "." in cell else int(cell)
