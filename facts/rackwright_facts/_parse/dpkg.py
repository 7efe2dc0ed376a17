"""Packages as dpkg holds them, and the relations between packages (deb-control(5))."""

from __future__ import annotations

import re
from typing import Literal

from rackwright_facts._parse import debversion
from rackwright_facts._parse.model import Model

Want = Literal["install", "hold", "deinstall", "purge", "unknown"]
State = Literal[
    "installed", "half-installed", "half-configured", "unpacked", "config-files", "not-installed",
    "triggers-awaited", "triggers-pending",
]  # fmt: skip


class Package(Model):
    """One package as dpkg knows it."""

    name: str
    version: str
    architecture: str
    want: Want
    state: State
    reinst_required: bool = False
    depends: str = ""
    provides: str = ""
    maintainer: str = ""
    """Who packaged it; only kept where an origin has to be told."""

    @property
    def installed(self) -> bool:
        """Whether its files are there and configured."""
        return self.state in ("installed", "triggers-awaited", "triggers-pending")

    @property
    def held(self) -> bool:
        """Whether it is on hold."""
        return self.want == "hold"


class Relation(Model):
    """`name (op version)`; `op` is empty when any version will do."""

    name: str
    op: Literal["", "<<", "<=", "=", ">=", ">>"] = ""
    version: str = ""


def parse_query(text: str, native: str = "") -> dict[str, Package]:
    r"""Read `dpkg-query -W -f='${Package}\t${Version}\t${Architecture}\t${db:Status-Want}\t...` lines.

    The fields are package, version, architecture, want, status, error flag, depends, provides and maintainer. A package
    of another architecture than `native` is keyed `name:arch`.
    """
    packages = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 9:
            raise ValueError(f"not a line of dpkg-query: {line[:120]!r}")
        name, version, architecture, want, state, flag, depends, provides, maintainer = fields
        foreign = native and architecture not in (native, "all", "")
        packages[f"{name}:{architecture}" if foreign else name] = Package(
            name=name, version=version, architecture=architecture,
            want=want, state=state, reinst_required=flag == "reinstreq",  # type: ignore[arg-type]
            depends=depends, provides=provides, maintainer=maintainer,
        )  # fmt: skip
    return packages


_RELATION = re.compile(
    r"^([a-zA-Z0-9][a-zA-Z0-9+.\-]*)(?::[a-z0-9\-]+)?\s*(?:\(\s*(<<|<=|=|>=|>>|<|>)\s*([^\s)]+)\s*\))?"
)
_OLD_OPS = {"<": "<=", ">": ">="}  # deb-control(5): the deprecated spellings


def parse_depends(text: str) -> tuple[tuple[Relation, ...], ...]:
    """Return the groups of alternatives: `a, b | c` is ((a,), (b, c)). What is no relation is a `ValueError`."""
    groups = []
    for group in text.split(","):
        if not group.strip():
            continue
        relations = []
        for alternative in group.split("|"):
            match = _RELATION.match(alternative.strip())
            if match is None:
                raise ValueError(f"not a package relation: {alternative.strip()!r}")
            name, op, version = match.groups()
            relations.append(
                Relation(name=name, op=_OLD_OPS.get(op or "", op or ""), version=version or "")  # type: ignore[arg-type]
            )
        groups.append(tuple(relations))
    return tuple(groups)


def satisfied(relation: Relation, version: str) -> bool:
    """Return whether `version` fulfils the relation."""
    if not relation.op:
        return True
    order = debversion.compare(version, relation.version)
    return {
        "<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0,
    }[relation.op]  # fmt: skip
