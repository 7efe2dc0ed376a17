"""A YAML file as plain data, with the line of every key and value.

Built from libyaml's events without recursion: deep nesting, huge files and alias bombs get an answer. Scalars follow
YAML 1.2's core schema: `no` is a text, `0644` too, and only `true`, `false`, `null`, numbers mean something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rackwright.errors import Problem, UsageMistake

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

Key = tuple["str | int", ...]

_MAX_BYTES = 16 * 1024 * 1024
_MAX_DEPTH = 50
_INT = re.compile(r"^[-+]?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


@dataclass
class Document:
    """The data of a file, and on which line each path begins."""

    path: Path
    data: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, key: Key) -> str:
        """Return `file:line  dotted.path` for a path, or for its nearest parent that the file has."""
        line = 1
        for end in range(len(key), -1, -1):
            if key[:end] in self.lines:
                line = self.lines[key[:end]]
                break
        dotted = ".".join(str(part) for part in key)
        return f"{self.path}:{line}  {dotted}" if dotted else f"{self.path}:{line}"


def read(path: Path) -> Document:
    """Read a file; raises `UsageMistake` when it is no YAML that settings can be. Duplicate keys are collected."""
    return parse(path, _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageMistake(
                Problem(f"the file is larger than {_MAX_BYTES >> 20} MiB", str(path), "name a cluster.yaml")
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageMistake(
            Problem("there is no such file", str(path), "make an example with `rackwright init`")
        ) from None
    except OSError as error:
        raise UsageMistake(
            Problem(f"the file cannot be read: {error.strerror}", str(path), "name a readable file")
        ) from None


def parse(path: Path, content: bytes) -> Document:
    """Read the content of a file."""
    text = _text(path, content)
    document = Document(path)
    try:
        _build(document, text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        fix = "see the line and the one above it: indentation, a colon without a space, a bracket or quote left open"
        raise UsageMistake(Problem(f"not YAML: {said}", line, fix)) from None
    if document.data is None and not document.problems:
        raise UsageMistake(Problem("the file is empty", f"{path}:1", "make an example with `rackwright init`"))
    return document


def _text(path: Path, content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageMistake(Problem("the file is UTF-16", f"{path}:1", "save it as UTF-8"))
    try:
        text = content.decode("utf-8-sig")  # a byte-order mark of UTF-8 is harmless, and goes
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageMistake(Problem("the file is not UTF-8", f"{path}:{line}", "save it as UTF-8")) from None
    for number, line_text in enumerate(text.split("\n"), 1):
        if "\t" in line_text[: len(line_text) - len(line_text.lstrip())]:
            raise UsageMistake(Problem("a tab in the indentation", f"{path}:{number}", "indent with spaces"))
        odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]", line_text)
        if odd:
            where = f"{path}:{number}, column {odd.start() + 1}"
            raise UsageMistake(Problem(f"a control character (U+{ord(odd.group()):04X})", where, "delete it"))
    return text


@dataclass
class _Open:
    """A mapping or list that is being read."""

    value: dict[str, Any] | list[Any]
    key: Key
    name: str | None = None
    """The key whose value comes next, in a mapping."""


def _build(document: Document, text: str) -> None:
    stack: list[_Open] = []
    documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1  # type: ignore[union-attr]  # libyaml sets it on every event
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise UsageMistake(
                    Problem(
                        "a second document begins",
                        f"{document.path}:{line}",
                        "keep one: delete the `---` line",
                    )
                )
        elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageMistake(
                Problem(
                    "anchors and aliases are not used in settings",
                    f"{document.path}:{line}",
                    "put what nodes share into a profile",
                )
            )
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            stack.pop()
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if len(stack) >= _MAX_DEPTH:
                where = f"{document.path}:{line}"
                raise UsageMistake(
                    Problem(f"nested deeper than {_MAX_DEPTH} levels", where, "see the example settings")
                )
            if stack and isinstance(stack[-1].value, dict) and stack[-1].name is None:
                raise UsageMistake(
                    Problem(
                        "a key that is itself a list or mapping",
                        f"{document.path}:{line}",
                        "use a plain name as key",
                    )
                )
            value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
            stack.append(_Open(value, _add(document, stack, value, line)))
        elif isinstance(event, yaml.ScalarEvent):
            _scalar(document, stack, event, line)


def _scalar(document: Document, stack: list[_Open], event: yaml.ScalarEvent, line: int) -> None:
    if stack and isinstance(stack[-1].value, dict) and stack[-1].name is None:
        top = stack[-1]
        key = (*top.key, event.value)
        if event.value in top.value:
            document.problems.append(
                Problem(
                    f"the key {event.value!r} is given twice",
                    f"{document.where(key)} and line {line}",
                    "keep one of them",
                )
            )
        else:
            document.lines[key] = line
        top.name = event.value
        return
    if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
        raise UsageMistake(
            Problem(
                f"the tag {event.tag!r} means nothing here",
                f"{document.path}:{line}",
                "write the plain value",
            )
        )
    plain = event.tag is None and event.style in (None, "")
    _add(document, stack, _value(event.value) if plain else event.value, line)


def _value(text: str) -> Any:
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.match(text) and len(text) < 30:
        return int(text)
    return float(text) if _FLOAT.match(text) and len(text) < 30 and not re.match(r"^[-+]?0[0-9]", text) else text


def _add(document: Document, stack: list[_Open], value: Any, line: int) -> Key:
    """Put a value where it belongs; return its path."""
    if not stack:
        document.data = value
        document.lines.setdefault((), line)
        return ()
    top = stack[-1]
    if isinstance(top.value, list):
        key: Key = (*top.key, len(top.value))
        document.lines[key] = line
        top.value.append(value)
        return key
    assert top.name is not None
    key = (*top.key, top.name)
    top.value.setdefault(top.name, value)  # of a key given twice the first stands, and the mistake is reported
    top.name = None
    return key
