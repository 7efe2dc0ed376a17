"""sources.list(5): one-line files and deb822 files, read so that single entries can be taken out again.

Editing keeps every other line byte for byte: an entry of a one-line file is commented out, a deb822 stanza gets
`Enabled: no`, and a stanza that names several URIs loses only those that are meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from rackwright_facts._parse.model import Model

_DISABLED = b"# disabled by rackwright: "


class Entry(Model):
    """One entry: what to fetch from where. Options have the names of the one-line style ("signed-by")."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    enabled: bool = True
    line: int
    """First line in its file, counted from 1."""
    last_line: int


class SourceFile(Model):
    """One file of sources. `problem` says why apt cannot read it; then apt reads nothing at all."""

    path: str
    content: bytes
    style: Literal["list", "deb822"]
    entries: tuple[Entry, ...] = ()
    problem: str = ""


# deb822 field -> option name of the one-line style (sources.list(5), "OPTIONS IN THE DEB822-STYLE").
_FIELDS = {"architectures": "arch", "languages": "lang", "targets": "target"}


def parse(path: str, content: bytes) -> SourceFile:
    """Return the entries of a file; never raises. The name's ending decides the style, as for apt."""
    style: Literal["list", "deb822"] = "deb822" if path.endswith(".sources") else "list"
    text = content.decode("utf-8", errors="surrogateescape")
    try:
        entries = _deb822(text) if style == "deb822" else _one_line(text)
    except ValueError as error:
        return SourceFile(path=path, content=content, style=style, problem=str(error))
    return SourceFile(path=path, content=content, style=style, entries=tuple(entries))


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _one_line(text: str) -> list[Entry]:
    entries = []
    for number, line in enumerate(_lines(text), 1):
        body = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not body:
            continue
        match = re.match(r"^(deb|deb-src)\s+(?:\[\s*(.*?)\s*\]\s*)?(\S+)\s+(\S+)(?:\s+(.*))?$", body)
        if match is None:
            raise ValueError(f"line {number} is no entry: {body[:60]!r}")
        kind, options, uri, suite, components = match.groups()
        if not re.match(r"^[A-Za-z][A-Za-z0-9+.\-]*:", uri):
            raise ValueError(f"line {number} has no URI: {uri[:60]!r}")
        if not suite.endswith("/") and not components:
            raise ValueError(f"line {number} names no component for the suite {suite!r}")
        pairs = {
            name.rstrip("+-").lower(): value
            for name, _, value in (word.partition("=") for word in (options or "").split())
        }
        entries.append(
            Entry(
                types=(kind,),
                uris=(uri,),
                suites=(suite,),
                components=tuple((components or "").split()),
                options=pairs,
                line=number,
                last_line=number,
            )
        )
    return entries


def _deb822(text: str) -> list[Entry]:
    entries = []
    for first, last, fields in _stanzas(text):
        missing = [name for name in ("types", "uris", "suites") if not fields.get(name, "").strip()]
        if missing:
            raise ValueError(f"the stanza at line {first} has no {missing[0].capitalize()}")
        options = {
            _FIELDS.get(name, name): value
            for name, value in fields.items()
            if name not in ("types", "uris", "suites", "components", "enabled")
        }
        entries.append(
            Entry(
                types=tuple(fields["types"].split()),
                uris=tuple(fields["uris"].split()),
                suites=tuple(fields["suites"].split()),
                components=tuple(fields.get("components", "").split()),
                options=options,
                enabled=fields.get("enabled", "yes").strip().lower()
                not in ("no", "false", "without", "off", "disable"),
                line=first,
                last_line=last,
            )
        )
    return entries


def _stanzas(text: str) -> list[tuple[int, int, dict[str, str]]]:
    """Return (first line, last line, fields) of each stanza; field names in lower case."""
    stanzas: list[tuple[int, int, dict[str, str]]] = []
    fields: dict[str, str] = {}
    first = last = 0
    name = ""
    for number, line in enumerate([*_lines(text), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                stanzas.append((first, last, fields))
            fields, name = {}, ""
            continue
        if line[0] in " \t":
            if not name:
                raise ValueError(f"line {number} continues no field: {line.strip()[:60]!r}")
            fields[name] += "\n" + line.strip()
        else:
            name, colon, value = line.partition(":")
            name = name.strip().lower()
            if not colon or not re.fullmatch(r"[a-z0-9-]+", name):
                raise ValueError(f"line {number} is no field: {line.strip()[:60]!r}")
            if name in fields:
                raise ValueError(f"line {number} gives {name.capitalize()} twice")
            if not fields:
                first = number
            fields[name] = value.strip()
        last = number
    return stanzas


def normal_uri(uri: str) -> str:
    """Return a URI without what does not tell repositories apart: scheme, user, default port, needless slashes."""
    rest = re.sub(r"^(mirror\+|tor\+)+", "", uri.strip(), flags=re.IGNORECASE)
    try:
        parts = urlsplit(rest)
        port = parts.port
    except ValueError:
        return rest.rstrip("/").lower()
    if not parts.netloc:
        return re.sub(r"/+", "/", rest).rstrip("/")
    host = (parts.hostname or "").rstrip(".")
    shown = f"{host}:{port}" if port not in (None, 80, 443) else host
    path = re.sub(r"/+", "/", quote(unquote(parts.path), safe="/+~$:@!,=&;()*'"))
    return f"{shown}{path}".rstrip("/")


def list_prefix(uri: str) -> str:
    """Return how the files of this URI begin in /var/lib/apt/lists (apt-pkg's URItoFileName)."""
    rest = re.sub(r"^[a-z+]+://", "", uri.rstrip("/") + "/", flags=re.IGNORECASE)
    rest = rest.rpartition("@")[2]
    quoted = re.sub(r"[\\|{}\[\]<>\"^~_=!@#$%*]", lambda match: f"%{ord(match.group()):02x}", rest)
    return quoted.replace("/", "_")


def without_uris(file: SourceFile, match: Callable[[str], bool]) -> bytes | None:
    """Return the file's content with every enabled entry's matching URIs disabled; None when none is left enabled."""
    meant = [entry for entry in file.entries if entry.enabled and any(map(match, entry.uris))]
    partly = [entry for entry in meant if not all(map(match, entry.uris))]
    enabled = [entry for entry in file.entries if entry.enabled]
    if meant and len(meant) == len(enabled) and not partly:
        return None
    lines = file.content.split(b"\n")
    for entry in sorted(meant, key=lambda entry: entry.line, reverse=True):
        if file.style == "list":
            lines[entry.line - 1] = _DISABLED + lines[entry.line - 1]
        elif entry in partly:
            kept = " ".join(uri for uri in entry.uris if not match(uri))
            lines[entry.line - 1 : entry.last_line] = _with_uris(lines[entry.line - 1 : entry.last_line], kept)
        else:
            stanza = [
                line for line in lines[entry.line - 1 : entry.last_line] if not line.lower().startswith(b"enabled:")
            ]
            lines[entry.line - 1 : entry.last_line] = [*stanza, b"Enabled: no"]
    return b"\n".join(lines)


def _with_uris(stanza: list[bytes], uris: str) -> list[bytes]:
    """Return the stanza's lines with another value for URIs, which may have spread over several lines."""
    result: list[bytes] = []
    inside = False
    for line in stanza:
        if line.lower().startswith(b"uris:"):
            inside = True
            result.append(b"URIs: " + uris.encode())
        elif inside and line[:1] in (b" ", b"\t"):
            continue
        else:
            inside = False
            result.append(line)
    return result
