"""What a node is and holds: distribution, architecture, free space, cloud-init, files."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from rackwright_facts._parse import os_release
from rackwright_facts._parse.model import Model
from rackwright_facts.look import Section, SectionFact


class Space(Model):
    """Free space below one path."""

    mount: str
    """Mount point of the filesystem that holds the path."""
    available_kib: int


class FileState(Model):
    """One path as it stands. `content` is what reading it gives, through a link too; None for what is no file."""

    kind: Literal["file", "directory", "symlink", "other", "absent"]
    mode: int = 0
    owner: str = ""
    content: bytes | None = None
    target: str = ""
    """Where a symbolic link points to."""


ABSENT = FileState(kind="absent")


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()


def _space(data: bytes) -> Mapping[str, Space]:
    lines = _text(data).splitlines()
    found = {}
    for line in lines:
        path, _, _, _, available, _, mount = line.split(None, 6)
        found[path] = Space(mount=mount, available_kib=int(available))
    return found


_KINDS: Mapping[str, Literal["file", "directory", "symlink"]] = {
    "regular file": "file",
    "regular empty file": "file",
    "directory": "directory",
    "symbolic link": "symlink",
}

# One line a path: PATH (base64), type, mode (octal), owner, content (base64; - for none), target of a link (base64).
READ_FILE = r"""
read_file() {
  [ -e "$1" ] || [ -L "$1" ] || return 0
  content=-; [ -f "$1" ] && content="=$(base64 -w0 <"$1")"
  printf '%s\t%s\t%s\t%s\n' "$(printf %s "$1" | base64 -w0)" "$(stat -c '%F	%a	%U:%G' "$1")" "$content" \
    "$(readlink -n "$1" | base64 -w0)"
}
"""


def parse_files(data: bytes) -> Mapping[str, FileState]:
    """Read the lines that `read_file` prints: path -> state; paths that do not exist have no line."""
    found = {}
    for line in data.decode().splitlines():
        path, kind, mode, owner, content, target = line.split("\t")
        found[base64.b64decode(path).decode(errors="surrogateescape")] = FileState(
            kind=_KINDS.get(kind, "other"),
            mode=int(mode, 8),
            owner=owner,
            content=base64.b64decode(content[1:]) if content.startswith("=") else None,
            target=base64.b64decode(target).decode(errors="surrogateescape"),
        )
    return found


OS_RELEASE: Section[Mapping[str, str]] = Section(
    key="system.os_release",
    command="cat /etc/os-release 2>/dev/null || cat /usr/lib/os-release",
    parse=lambda data: os_release.parse(data.decode(errors="replace")),
)

ARCHITECTURE: Section[str] = Section(
    key="system.architecture",
    command="dpkg --print-architecture",
    parse=_text,
)

# -P: one line a filesystem whatever the length of its name (POSIX). Only paths that exist are asked.
SPACE: Section[Mapping[str, Space]] = Section(
    key="system.space",
    command=(
        "for p in /boot /run /usr /usr/local /var/cache/apt /var/lib/dpkg; do"
        ' [ -d "$p" ] && echo "$p $(df -Pk "$p" | tail -n 1)"; done; true'
    ),
    parse=_space,
)

CLOUD_INIT: Section[str] = Section(
    key="system.cloud_init",
    command="command -v cloud-init >/dev/null || exit 127; cloud-init status | sed -n 's/^status: *//p'",
    parse=_text,
)


def files(paths: Sequence[str]) -> Section[Mapping[str, FileState]]:
    """The named paths as they stand; one that does not exist is missing in the mapping."""
    names = " ".join(shlex.quote(path) for path in paths)
    return Section(
        key="system.files:" + ":".join(paths),
        command=f'{READ_FILE}\nfor f in {names}; do read_file "$f" || exit 1; done',
        parse=parse_files,
    )


class OsRelease(SectionFact):
    """Reading of the fields of os-release(5)."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(OS_RELEASE)


class FreeSpace(SectionFact):
    """Reading of path -> `Space` for the paths that package management fills."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(SPACE)


class Files(SectionFact):
    """Reading of path -> `FileState` for the named paths (colon-separated)."""

    def command(self, paths: str) -> str:
        """Ask for the colon-separated `paths`."""
        return self.ask(files(paths.split(":")))
