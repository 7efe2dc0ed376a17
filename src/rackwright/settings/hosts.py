"""Host names and host ranges: gpu[01-08,11].example.net."""

from __future__ import annotations

import re
from itertools import product

MAX_HOSTS = 100_000
_LABEL = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$")


def expand(pattern: str) -> list[str]:
    """Return the host names of a range, in its order; a plain name means itself. `ValueError` says what is wrong."""
    pieces: list[list[str]] = []
    count = 1
    position = 0
    while position < len(pattern):
        if pattern[position] == "[":
            end = pattern.find("]", position)
            if end < 0:
                raise ValueError("the bracket is not closed")
            numbers = _numbers(pattern[position + 1 : end])
            position = end + 1
        else:
            end = pattern.find("[", position)
            end = len(pattern) if end < 0 else end
            numbers = [pattern[position:end]]
            position = end
        count *= len(numbers)
        if count > MAX_HOSTS:
            raise ValueError(f"it means more than {MAX_HOSTS} hosts")
        pieces.append(numbers)
    names = ["".join(parts) for parts in product(*pieces)]
    for name in names[:1]:
        check(name)
    return names


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9}))?\s*", part, flags=re.ASCII)
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither a number nor FIRST-LAST")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(first) > int(last):
            raise ValueError(f"{first}-{last} runs backwards")
        if len(first) != len(last) and len(first) > 1 and first.startswith("0"):
            raise ValueError(f"{first} and {last} have not the same number of digits")
        if int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"it means more than {MAX_HOSTS} hosts")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def check(name: str) -> None:
    """Raise `ValueError` when `name` is no host name (RFC 1123: letters, digits and hyphens between dots)."""
    for column, char in enumerate(name, 1):
        if not (char.isascii() and (char.isalnum() or char in ".-")):
            raise ValueError(f"{char!r} at position {column} cannot be part of a host name")
    if len(name) > 253 or not all(_LABEL.match(label) for label in name.split(".")):
        raise ValueError("not a host name: labels of letters, digits and hyphens, 63 at most each, between dots")
