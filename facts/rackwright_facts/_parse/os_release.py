"""os-release(5): shell-like assignments that name the system."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$")


def parse(text: str) -> Mapping[str, str]:
    """Return the fields. A line that is no assignment is skipped, as os-release(5) asks of readers."""
    fields = {}
    for line in text.splitlines():
        match = _ASSIGNMENT.match(line.strip())
        if match is None:
            continue
        try:
            words = shlex.split(match.group(2))
        except ValueError:
            continue  # quotes that do not close
        fields[match.group(1)] = words[0] if words else ""
    return fields
