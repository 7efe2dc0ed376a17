"""`update-alternatives --query NAME` (update-alternatives(1), "QUERY FORMAT")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rackwright_facts._parse.model import Model


class Alternative(Model):
    """One group of alternatives."""

    name: str
    link: str
    status: Literal["auto", "manual"]
    value: str
    """What it points to now, or "none"."""
    choices: Mapping[str, int]
    """Path -> priority."""


def parse_query(text: str) -> Alternative:
    """Return the group; text that is not a query's answer is a `ValueError`."""
    fields: dict[str, str] = {}
    choices: dict[str, int] = {}
    path = ""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon or name.startswith(" "):
            continue
        value = value.strip()
        if name == "Alternative":
            path = value
        elif name == "Priority" and path:
            choices[path] = int(value)
        else:
            fields.setdefault(name, value)
    status = fields.get("Status")
    if status not in ("auto", "manual") or "Name" not in fields:
        raise ValueError(f"not an answer of update-alternatives --query: {text[:120]!r}")
    return Alternative(
        name=fields["Name"], link=fields.get("Link", ""), status=status,  # type: ignore[arg-type]
        value=fields.get("Value", "none"), choices=choices,
    )  # fmt: skip
