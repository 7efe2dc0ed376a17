"""What `LC_ALL=C apt-get -s` says it would do."""

from __future__ import annotations

import re

from rackwright_facts._parse.model import Model


class Step(Model):
    """One package that would be installed or removed."""

    name: str
    architecture: str = ""
    old: str | None = None
    """The version that is installed now."""
    new: str = ""
    """The version that it would have; empty for a removal."""
    origin: str = ""


class Simulation(Model):
    """All steps of a transaction, in apt's order, and what apt complained about."""

    installs: tuple[Step, ...] = ()
    removals: tuple[Step, ...] = ()
    errors: tuple[str, ...] = ()


# Inst NAME[:ARCH] [OLD] (NEW ORIGIN [ARCH]) [broken packages]; Remv NAME [OLD]; Purg NAME [OLD]
_STEP = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+)(?: ([^\[\])]*))?(?: ?\[([^\]]*)\])?\))?")


def parse(text: str) -> Simulation:
    """Return the steps of the output; text without any is a simulation that does nothing."""
    installs: list[Step] = []
    removals: list[Step] = []
    errors: list[str] = []
    unmet = False
    for line in text.splitlines():
        if line.startswith("E: "):
            errors.append(line[3:].strip())
            continue
        if line.startswith("The following packages have unmet dependencies"):
            unmet = True
            continue
        if unmet and line.startswith(" "):
            errors.append(line.strip())
            continue
        unmet = False
        match = _STEP.match(line)
        if match is None:
            continue
        verb, name, old, new, origin, architecture = match.groups()
        bare, _, qualifier = name.partition(":")
        step = Step(
            name=bare,
            architecture=architecture or qualifier,
            old=old,
            new=new or "",
            origin=(origin or "").strip(),
        )
        (installs if verb == "Inst" else removals).append(step)
    return Simulation(installs=tuple(installs), removals=tuple(removals), errors=tuple(errors))
