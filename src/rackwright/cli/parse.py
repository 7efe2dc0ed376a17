"""`rackwright parse [KIND] FILE|-`: the model of a saved output of a tool, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click

from rackwright.errors import Problem, UsageMistake
from rackwright_facts._parse import nvidia_smi
from rackwright_facts._parse.model import Model

_KINDS: dict[str, Callable[[str], Model]] = {"nvidia-smi": nvidia_smi.parse}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] FILE|-")
def parse(words: tuple[str, ...]) -> None:
    """Print what a saved output of a tool tells, as JSON (schema 1). KIND is guessed where it is not given.

    Kinds: nvidia-smi (-q -x, -q, -L, --query-gpu as CSV, the table, nvlink -s, topo -m, --version, its failures).
    """
    *kind, name = words
    if len(kind) > 1 or (kind and kind[0] not in _KINDS):
        raise UsageMistake(Problem(f"there is no kind {' '.join(kind)!r}", "KIND", f"one of: {', '.join(_KINDS)}"))
    text = _text(name)
    problems = []
    for one in kind or _KINDS:
        try:
            model = _KINDS[one](text)
        except ValueError as error:
            problems.append(f"{one}: {error}")
            continue
        click.echo(json.dumps({"schema": 1, "kind": one, "data": model.to_json()}, indent=1))
        return
    fix = "give the whole output as the tool printed it; `nvidia-smi -q -x >FILE` tells most"
    raise UsageMistake(Problem("; ".join(problems), name, fix))


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageMistake(Problem(f"cannot be read: {error.strerror}", name, "name a file, or - for input")) from None
    return data.decode("utf-8", errors="replace")
