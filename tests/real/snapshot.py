"""What a host is at one moment, read from its disk: every file by walking its root, its packages from dpkg's files.

Nothing here runs in the host or asks rackwright's facts. `snapshot_ignore.txt` names what does not count, and why.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

IGNORE = Path(__file__).with_name("snapshot_ignore.txt")


def ignored() -> list[tuple[str, str]]:
    """Return (path, reason) of each line of the ignore list."""
    lines = [line for line in IGNORE.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(re.split(r"\s{2,}", line, maxsplit=1)) for line in lines]  # type: ignore[misc]


def _pattern() -> re.Pattern[str]:
    parts = []
    for path, _ in ignored():
        plain = translate(path.rstrip("/")).replace(".*", "[^/]*")
        parts.append(plain.removesuffix(r"\Z") + (r"/.*\Z" if path.endswith("/") else r"\Z"))
    return re.compile("|".join(f"(?:{part})" for part in parts))


_IGNORED = _pattern()
# (path on this machine, inode, size, mtime, ctime) -> digest: a file that was not written since is not read again.
_digests: dict[tuple[str, int, int, int, int], str] = {}


@dataclass(frozen=True)
class Installed:
    """A package in dpkg's status file."""

    version: str
    want: str
    state: str
    flag: str


@dataclass(frozen=True)
class Snapshot:
    """Path -> what is there; name -> package; names that apt holds for automatic."""

    files: Mapping[str, str] = field(repr=False)
    packages: Mapping[str, Installed] = field(repr=False)
    automatic: frozenset[str] = field(repr=False)
    owned: Mapping[str, frozenset[str]] = field(repr=False)
    """Name -> the paths that dpkg's list of the package names."""

    def difference(self, later: Snapshot) -> dict[str, tuple[object, object]]:
        """Return what differs: path, `package NAME` or `automatic NAME` -> (here, later)."""
        found: dict[str, tuple[object, object]] = {}
        for prefix, here, there in (("", self.files, later.files), ("package ", self.packages, later.packages)):
            for name in sorted({*here, *there}):
                if here.get(name) != there.get(name):
                    found[prefix + name] = (here.get(name), there.get(name))
        for name in sorted(self.automatic ^ later.automatic):
            found[f"automatic {name}"] = (name in self.automatic, name in later.automatic)
        return found

    def held(self) -> set[str]:
        """Return the names of the packages on hold."""
        return {name for name, package in self.packages.items() if package.want == "hold"}


def take(root: Path) -> Snapshot:
    """Return the snapshot of the host whose root folder this is."""
    files: dict[str, str] = {}
    _walk(str(root), "", files)
    # The host's files are read below its root: a link in it may point to this machine's.
    # What dpkg has not merged yet when it is stopped lies beside, in the order of its names.
    parts = [root / "var/lib/dpkg/status", *sorted((root / "var/lib/dpkg/updates").glob("[0-9]*"))]
    packages = _packages("\n\n".join(part.read_text(errors="surrogateescape") for part in parts))
    extended = root / "var/lib/apt/extended_states"
    automatic = _paragraphs(extended.read_text()) if extended.exists() else []
    names = frozenset(fields["Package"] for fields in automatic if fields.get("Auto-Installed") == "1")
    # Packages name /lib/..., which is /usr/lib/... where the two are merged.
    owned = {
        path.stem.partition(":")[0]: frozenset(
            re.sub(r"^/(bin|sbin|lib\w*)(?=/)", r"/usr/\1", line)
            for line in path.read_text(errors="surrogateescape").splitlines()
        )
        for path in (root / "var/lib/dpkg/info").glob("*.list")
    }
    return Snapshot(files, packages, names & set(packages), owned)


def _walk(root: str, folder: str, files: dict[str, str]) -> None:
    try:
        entries = list(os.scandir(root + (folder or "/")))
    except FileNotFoundError:
        return  # went away meanwhile
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if _IGNORED.match(path):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            files[path] = _describe(root + path, status)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            _walk(root, path, files)


def _describe(path: str, status: os.stat_result) -> str:
    mode = f"{stat.filemode(status.st_mode)} {stat.S_IMODE(status.st_mode):04o} {status.st_uid}:{status.st_gid}"
    if stat.S_ISLNK(status.st_mode):
        return f"{mode} -> {Path(path).readlink()}"
    if not stat.S_ISREG(status.st_mode):
        return mode
    key = (path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key not in _digests:
        with open(path, "rb") as content:  # noqa: PTH123 -- thousands of them
            _digests[key] = hashlib.sha256(content.read()).hexdigest()
    return f"{mode} {_digests[key]}"


def _paragraphs(text: str) -> list[dict[str, str]]:
    return [
        dict(re.findall(r"^([A-Za-z-]+): *(.*)$", paragraph, flags=re.MULTILINE))
        for paragraph in re.split(r"\n\s*\n", text)
        if paragraph.strip()
    ]


def _packages(text: str) -> dict[str, Installed]:
    found = {}
    for fields in _paragraphs(text):
        want, flag, state = fields["Status"].split()
        found[fields["Package"]] = Installed(fields.get("Version", ""), want, state, flag)
    return {name: package for name, package in found.items() if package.state != "not-installed"}
