"""Debian version numbers, compared as dpkg does (Debian Policy 5.6.12)."""

from __future__ import annotations

from functools import cmp_to_key
from itertools import zip_longest


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream_part, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch) if epoch.isdigit() else 0, upstream_part, revision


def upstream(version: str) -> str:
    """Return the version without epoch and Debian revision: "12.2.2" of "12.2.2-1"."""
    return _split(version)[1]


def _order(char: str) -> int:
    # "~" sorts before the end of a part, letters before everything else.
    if char == "~":
        return -1
    if char == "":
        return 0
    return ord(char) if char.isalpha() else ord(char) + 256


def _parts(text: str) -> list[tuple[str, int]]:
    """Return (non-digits, number) pairs."""
    parts: list[tuple[str, int]] = []
    position = 0
    while position < len(text):
        start = position
        while position < len(text) and text[position] not in "0123456789":
            position += 1
        letters, digits = text[start:position], position
        while position < len(text) and text[position] in "0123456789":
            position += 1
        parts.append((letters, int(text[digits:position] or "0")))
    return parts


def _compare_text(one: str, other: str) -> int:
    for (letters, number), (other_letters, other_number) in zip_longest(_parts(one), _parts(other), fillvalue=("", 0)):
        for char, other_char in zip_longest(letters, other_letters, fillvalue=""):
            if _order(char) != _order(other_char):
                return -1 if _order(char) < _order(other_char) else 1
        if number != other_number:
            return -1 if number < other_number else 1
    return 0


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1: whether `one` is older than, the same as or newer than `other`."""
    epoch, upstream_part, revision = _split(one)
    other_epoch, other_upstream, other_revision = _split(other)
    if epoch != other_epoch:
        return -1 if epoch < other_epoch else 1
    return _compare_text(upstream_part, other_upstream) or _compare_text(revision, other_revision)


key = cmp_to_key(compare)
"""Sort key: `sorted(versions, key=debversion.key)` is oldest first."""
