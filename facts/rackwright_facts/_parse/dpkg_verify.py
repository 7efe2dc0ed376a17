"""`dpkg --verify` (rpm's format): files that are not as their package shipped them."""

from __future__ import annotations

import re

from rackwright_facts._parse.model import Model

_LINE = re.compile(r"^(missing|[.?\w]{9})\s+(?:(c)\s+)?(/.*?)(?: \(.*\))?$")


class Verify(Model):
    """The paths that differ; configuration files apart, since an administrator may change those."""

    changed: tuple[str, ...] = ()
    conffiles: tuple[str, ...] = ()


def parse(text: str) -> Verify:
    """Return the differing paths; other lines (warnings) are skipped."""
    changed: list[str] = []
    conffiles: list[str] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            (conffiles if match.group(2) else changed).append(match.group(3))
    return Verify(changed=tuple(changed), conffiles=tuple(conffiles))
