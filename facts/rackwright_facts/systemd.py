"""systemd units of a node: loaded, enabled, active."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rackwright_facts._parse.model import Model
from rackwright_facts.look import Section, SectionFact


class Unit(Model):
    """One unit as systemd has it."""

    load: str
    """`loaded`, `not-found`, `masked` ..."""
    active: str
    """`active`, `inactive`, `failed`, `activating` ..."""
    file: str = ""
    """`enabled`, `disabled`, `static`, `masked`; empty when there is no file."""
    result: str = ""
    """`success`, or why it ended: `exit-code`, `timeout` ..."""

    @property
    def is_there(self) -> bool:
        """Return whether there is such a unit."""
        return self.load == "loaded"


def parse_units(text: str) -> Mapping[str, Unit]:
    """Read `systemctl show` paragraphs: name -> unit."""
    units = {}
    for paragraph in text.split("\n\n"):
        lines = (line.partition("=") for line in paragraph.splitlines())
        fields = {name: value for name, equals, value in lines if equals}
        if not fields:
            continue
        if "Id" not in fields or "LoadState" not in fields or "ActiveState" not in fields:
            raise ValueError(f"not what systemctl show prints: {paragraph[:120]!r}")
        units[fields["Id"]] = Unit(
            load=fields["LoadState"], active=fields["ActiveState"], file=fields.get("UnitFileState", ""),
            result=fields.get("Result", ""),
        )  # fmt: skip
    return units


def units(names: Sequence[str]) -> Section[Mapping[str, Unit]]:
    """The named units; absent where the node has no systemd."""
    return Section(
        key="systemd.units:" + ",".join(names),
        command="command -v systemctl >/dev/null || exit 127; systemctl show"
        f" -p Id,LoadState,ActiveState,UnitFileState,Result -- {' '.join(map(shlex.quote, names))}",
        parse=lambda data: parse_units(data.decode(errors="replace")),
    )


class Units(SectionFact):
    """Reading of name -> `Unit` for the named units (comma-separated)."""

    def command(self, names: str) -> str:
        """Ask for the comma-separated `names`."""
        return self.ask(units(names.split(",")))
