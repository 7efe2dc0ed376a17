"""How a plan is shown: equal hosts together, the outcome last; or one line a change, for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rackwright.change import Change
from rackwright.plan import HostPlan
from rackwright.report_table import colored, ranges

_COLORS = {"unchanged": "green", "pending": "yellow", "refused": "red", "unreachable": "red"}


def plan_lines(plans: Sequence[HostPlan], command: str) -> list[str]:
    """Return a plan for a reader: equal hosts together, the outcome last."""
    groups: dict[object, list[HostPlan]] = {}
    for one in plans:
        same = (
            one.status,
            tuple((call.operation, change.what, change.before, change.after) for call, change in one.changes),
            tuple(one.refusals) if one.status != "unreachable" else one.name,
            tuple(one.waiting),
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
        lines += [f"  {colored('reboot pending', 'yellow')}: {what}" for what in first.waiting]
        lines += [f"  {note}" for note in first.notes]
        lines += [f"  not planned, since it is not an operation of rackwright: {name}" for name in first.not_planned]
        lines.append("")
    counts: dict[str, int] = {}
    for one in plans:
        counts[one.status] = counts.get(one.status, 0) + 1
    said = ", ".join(f"{counts[status]} {status}" for status in _COLORS if status in counts)
    changes = sum(len(one.changes) for one in plans if one.status == "pending")
    if waiting := sum(1 for one in plans if one.waiting):
        said += f"; reboot pending on {waiting}"
    if changes:
        lines.append(f"to do it: {command}")
    lines.append(f"{said}; {changes} changes" if changes else f"{said}; nothing to change")
    return lines


def _change_line(change: Change) -> str:
    mark = "+" if change.before is None else "-" if change.after is None else "~"
    color = {"+": "green", "-": "red", "~": "yellow"}[mark]
    tail = f"  [{', '.join(change.cost)}]" if change.cost else ""
    if not change.known:
        tail += "  (known only after an earlier step)"
    return f"{colored(mark, color)} {change.what}: {change.before or 'absent'} -> {change.after or 'absent'}{tail}"


def plan_rows(plans: Sequence[HostPlan]) -> list[str]:
    """Return a plan for a script: one tab-separated line a change or refusal."""
    rows = ["host\tstatus\toperation\twhat\tfrom\tto\tcost"]
    for one in plans:
        for call, change in one.changes:
            cells = (one.name, one.status, call.operation, change.what, change.before, change.after)
            rows.append("\t".join([*(cell or "-" for cell in cells), ",".join(change.cost) or "-"]))
        for refusal in one.refusals:
            rows.append("\t".join([one.name, one.status, "-", refusal.what, refusal.where, refusal.fix, "-"]))
        rows += ["\t".join([one.name, one.status, "-", "reboot", what, "-", "reboot"]) for what in one.waiting]
        if not one.changes and not one.refusals and not one.waiting:
            rows.append("\t".join([one.name, one.status, "-", "-", "-", "-", "-"]))
    return rows


def exit_code(statuses: Iterable[str]) -> int:
    """Return the exit code for the statuses of all hosts: a failed or refused one counts before a pending one."""
    seen = set(statuses)
    if seen & {"refused", "unreachable"}:
        return 1
    return 3 if "pending" in seen else 0
