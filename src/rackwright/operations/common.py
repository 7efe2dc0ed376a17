"""What decisions share: refusing on what cannot be read, files of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackwright.change import Change, Refusal, Run, Write
from rackwright_facts._parse.model import Reading
from rackwright_facts.system import ABSENT, FileState

MANAGED = "# Written by rackwright: changes made here are undone by its next run.\n"


def unreadable(what: str, reading: Reading[Any], fix: str) -> Refusal:
    """Return the refusal for a reading that is neither there nor absent: unknown never means "not there"."""
    lines = [line for line in reading.reason.splitlines() if line.strip()]
    why = lines[-1].strip() if lines else reading.status
    return Refusal(what=f"cannot tell {what}: {why}", where=f"{reading.status}: {reading.reason}", fix=fix)


def is_as_written(state: FileState | None, content: bytes, mode: int = 0o644) -> bool:
    """Return whether a file stands exactly as it would be written."""
    return (
        state is not None
        and state.kind == "file"
        and state.content == content
        and state.mode == mode
        and state.owner == "root:root"
    )


def file_change(
    path: str, state: FileState | None, content: bytes | None, *, mode: int = 0o644, secret: bool = False
) -> Change | None:
    """Return the change that brings one file of ours to `content` (None: away), if it needs one."""
    state = state or ABSENT
    if content is None:
        if state.kind == "absent":
            return None
        return Change(f"file {path}", "present", None, commands=(Run(("rm", "-f", path)),))
    if is_as_written(state, content, mode):
        return None
    before = None
    if state.kind != "absent":
        before = "other content" if state.content != content else f"{state.owner} {state.mode:04o}"
        if state.kind != "file":
            before = f"a {state.kind}"
    return Change(f"file {path}", before, "as declared", commands=(Write(path, content, mode, secret),))


def written(files: Mapping[str, FileState], contents: Mapping[str, bytes | None]) -> dict[str, FileState]:
    """Return the files as they will be once `contents` (path -> content, None: removed) are in place."""
    after = dict(files)
    for path, content in contents.items():
        if content is None:
            after.pop(path, None)
        else:
            after[path] = FileState(kind="file", mode=0o644, owner="root:root", content=content)
    return after
