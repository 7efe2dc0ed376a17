"""Tables on a terminal, tab-separated lines elsewhere; colour only where it is wanted. Imports nothing of pyinfra."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

import click


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
