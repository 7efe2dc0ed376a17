"""How plans and states are shown: tables on a terminal, tab-separated lines elsewhere, equal hosts grouped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import click

from rackwright.plan import HostPlan

_COLORS = {"unchanged": "green", "pending": "yellow", "refused": "red", "unreachable": "red"}


def on_terminal() -> bool:
    """Return whether standard output is a terminal that may be given columns."""
    return sys.stdout.isatty()


def colored(text: str, color: str | None) -> str:
    """Return `text` in `color` on a terminal without NO_COLOR (no-color.org)."""
    plain = color is None or not on_terminal() or bool(os.environ.get("NO_COLOR"))
    return text if plain else click.style(text, fg=color)


def ranges(names: Iterable[str]) -> str:
    """Return host names in short, as the settings write them: gpu[01-03,05].example.net."""
    parts: dict[tuple[str, str, int], list[int]] = {}
    rest: list[str] = []
    for name in names:
        match = re.match(r"^([a-zA-Z-]*)(\d+)(.*)$", name)
        if match:
            head, digits, tail = match.groups()
            parts.setdefault((head, tail, len(digits)), []).append(int(digits))
        else:
            rest.append(name)
    shown = []
    for (head, tail, width), numbers in parts.items():
        runs = []
        for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
            run = [number for _, number in group]
            first, last = f"{run[0]:0{width}}", f"{run[-1]:0{width}}"
            runs.append(first if first == last else f"{first}-{last}")
        inner = runs[0] if len(numbers) == 1 else f"[{','.join(runs)}]"
        shown.append(f"{head}{inner}{tail}")
    return ", ".join([*shown, *rest])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines on a terminal, tab-separated ones elsewhere."""
    if not on_terminal():
        return ["\t".join(row) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (header, *rows)]  # fmt: skip


def plan_lines(plans: Sequence[HostPlan], command: str) -> list[str]:
    """Return a plan for a reader: equal hosts together, the outcome last."""
    groups: dict[object, list[HostPlan]] = {}
    for one in plans:
        same = (
            one.status,
            tuple((call.operation, change.what, change.before, change.after) for call, change in one.changes),
            tuple(one.refusals) if one.status != "unreachable" else one.name,
        )
        groups.setdefault(same, []).append(one)
    lines: list[str] = []
    for alike in groups.values():
        first = alike[0]
        count = f" ({len(alike)} hosts)" if len(alike) > 1 else ""
        lines.append(f"{ranges(one.name for one in alike)}{count}: {colored(first.status, _COLORS[first.status])}")
        for call, pairs in groupby(first.changes, key=lambda pair: pair[0]):
            lines.append(f"  {call.title} ({call.operation})")
            lines += [f"    {_change_line(change)}" for _, change in pairs]
        for refusal in first.refusals:
            lines += [f"  {line}" for line in str(refusal).splitlines()]
        lines += [f"  {note}" for note in first.notes]
        lines += [f"  not planned, since it is not an operation of rackwright: {name}" for name in first.not_planned]
        lines.append("")
    counts: dict[str, int] = {}
    for one in plans:
        counts[one.status] = counts.get(one.status, 0) + 1
    said = ", ".join(f"{counts[status]} {status}" for status in _COLORS if status in counts)
    changes = sum(len(one.changes) for one in plans if one.status == "pending")
    if changes:
        lines.append(f"to do it: {command}")
    lines.append(f"{said}; {changes} changes" if changes else f"{said}; nothing to change")
    return lines


def _change_line(change: object) -> str:
    before, after = getattr(change, "before", None), getattr(change, "after", None)
    mark = "+" if before is None else "-" if after is None else "~"
    color = {"+": "green", "-": "red", "~": "yellow"}[mark]
    what = getattr(change, "what", "")
    cost = getattr(change, "cost", ())
    tail = f"  [{', '.join(cost)}]" if cost else ""
    if not getattr(change, "known", True):
        tail += "  (known only after an earlier step)"
    return f"{colored(mark, color)} {what}: {before or 'absent'} -> {after or 'absent'}{tail}"


def plan_rows(plans: Sequence[HostPlan]) -> list[str]:
    """Return a plan for a script: one tab-separated line a change or refusal."""
    rows = ["host\tstatus\toperation\twhat\tfrom\tto\tcost"]
    for one in plans:
        for call, change in one.changes:
            cells = (one.name, one.status, call.operation, change.what, change.before, change.after)
            rows.append("\t".join([*(cell or "-" for cell in cells), ",".join(change.cost) or "-"]))
        for refusal in one.refusals:
            rows.append("\t".join([one.name, one.status, "-", refusal.what, refusal.where, refusal.fix, "-"]))
        if not one.changes and not one.refusals:
            rows.append("\t".join([one.name, one.status, "-", "-", "-", "-", "-"]))
    return rows


def exit_code(statuses: Mapping[str, int] | Iterable[str]) -> int:
    """Return the exit code for the statuses of all hosts: a failed or refused one counts before a pending one."""
    seen = set(statuses)
    if seen & {"refused", "unreachable"}:
        return 1
    return 3 if "pending" in seen else 0
