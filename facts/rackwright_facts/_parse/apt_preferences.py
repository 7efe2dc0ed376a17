"""apt_preferences(5): which version of which package apt prefers, read so that stanzas can be taken out again."""

from __future__ import annotations

from collections.abc import Sequence

from rackwright_facts._parse.model import Model


class Stanza(Model):
    """One record. `package` holds names, globs and /regular expressions/."""

    package: tuple[str, ...]
    pin: str
    priority: int
    line: int
    """First line in its file, counted from 1; comments and explanations before it included."""
    last_line: int


class PreferencesFile(Model):
    """One file of preferences. `problem` says why apt cannot read it."""

    path: str
    content: bytes
    stanzas: tuple[Stanza, ...] = ()
    problem: str = ""


def parse(path: str, content: bytes) -> PreferencesFile:
    """Return the stanzas of a file; never raises."""
    stanzas = []
    fields: dict[str, str] = {}
    name = ""
    first = 0
    lines = content.decode("utf-8", errors="surrogateescape").split("\n")
    try:
        for number, line in enumerate([*lines, ""], 1):
            if line.startswith("#"):
                first = first or number
                continue
            if not line.strip():
                if fields:
                    stanzas.append(_stanza(fields, first, number - 1))
                fields, name, first = {}, "", 0
                continue
            first = first or number
            if line[0] in " \t" and name:
                fields[name] += f" {line.strip()}"
                continue
            name, colon, value = line.partition(":")
            name = name.strip().lower()
            if not colon:
                raise ValueError(f"line {number} is no field: {line.strip()[:60]!r}")
            fields[name] = f"{fields[name]} {value.strip()}" if name in fields else value.strip()
    except ValueError as error:
        return PreferencesFile(path=path, content=content, problem=str(error))
    return PreferencesFile(path=path, content=content, stanzas=tuple(stanzas))


def _stanza(fields: dict[str, str], first: int, last: int) -> Stanza:
    for name in ("package", "pin", "pin-priority"):
        if name not in fields:
            raise ValueError(f"the record at line {first} has no {name.capitalize()}")
    try:
        priority = int(fields["pin-priority"])
    except ValueError:
        raise ValueError(f"the record at line {first} has no number as Pin-Priority") from None
    return Stanza(
        package=tuple(fields["package"].split()), pin=" ".join(fields["pin"].split()), priority=priority,
        line=first, last_line=last,
    )  # fmt: skip


def without(file: PreferencesFile, stanzas: Sequence[Stanza]) -> bytes | None:
    """Return the file's content less these stanzas; None when no stanza is left."""
    if len(stanzas) == len(file.stanzas):
        return None
    lines = file.content.split(b"\n")
    for stanza in sorted(stanzas, key=lambda stanza: stanza.line, reverse=True):
        end = stanza.last_line
        if end < len(lines) and not lines[end].strip():
            end += 1  # the empty line that closed the record
        del lines[stanza.line - 1 : end]
    return b"\n".join(lines)
