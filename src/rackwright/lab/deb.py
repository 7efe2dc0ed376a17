"""Binary packages and flat repositories in plain Python: deb(5), deterministic, a millisecond a package."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

EPOCH = 1_700_000_000
"""The time stamp of everything inside a package: the same recipe gives the same bytes."""


@dataclass(frozen=True)
class Deb:
    """One package: control fields, files (path -> content, mode), maintainer scripts and conffiles."""

    name: str
    version: str
    architecture: str = "amd64"
    fields: Mapping[str, str] = field(default_factory=dict)
    """Depends, Conflicts, Section and so on."""
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    conffiles: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        """Return the file's name in a repository; an epoch is left out, as usual."""
        return f"{self.name}_{self.version.partition(':')[2] or self.version}_{self.architecture}.deb"

    def control(self) -> str:
        """Return the control paragraph."""
        size = sum(len(content) for content, _ in self.files.values()) // 1024 + 1
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "cudatools <cudatools@nvidia.com>",
            "Installed-Size": str(size),
            **self.fields,
            "Description": f"rehearsal stand-in for {self.name}",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _tar(entries: Mapping[str, tuple[bytes, int]], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folders: set[str] = set()
        for path in sorted({*entries, *links}):
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    tar.addfile(_info(f"./{folder}/", tarfile.DIRTYPE, 0o755))
            if path in links:
                info = _info(f"./{path.strip('/')}", tarfile.SYMTYPE, 0o777)
                info.linkname = links[path]
                tar.addfile(info)
            else:
                content, mode = entries[path]
                info = _info(f"./{path.strip('/')}", tarfile.REGTYPE, mode)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)


def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, EPOCH
    info.uname = info.gname = "root"
    return info


def build(deb: Deb) -> bytes:
    """Return the bytes of the .deb."""
    control: dict[str, tuple[bytes, int]] = {"control": (deb.control().encode(), 0o644)}
    sums = "".join(
        f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}  {path.strip('/')}\n"
        for path, (content, _) in sorted(deb.files.items())
    )
    control["md5sums"] = (sums.encode(), 0o644)
    if deb.conffiles:
        control["conffiles"] = ("".join(f"{path}\n" for path in deb.conffiles).encode(), 0o644)
    for name, text in deb.scripts.items():
        control[name] = (text.encode(), 0o755)
    members = (
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", _tar(control, {})),
        ("data.tar.gz", _tar(deb.files, deb.links)),
    )
    out = b"!<arch>\n"
    for name, content in members:
        header = f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += header + content + (b"\n" if len(content) % 2 else b"")
    return out


def paragraph(deb: Deb, content: bytes) -> str:
    """Return the package's paragraph of a Packages index."""
    return (
        f"{deb.control()}Filename: ./{deb.filename}\nSize: {len(content)}\n"
        f"MD5sum: {hashlib.md5(content, usedforsecurity=False).hexdigest()}\n"
        f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
    )


def release(files: Mapping[str, bytes], *, fields: Mapping[str, str]) -> str:
    """Return a Release file over the indexes `files`, laid out as NVIDIA/cuda-repo-management lays it out."""
    lines = [f"{name}: {value}" for name, value in fields.items()]
    for title, digest in (("MD5Sum", "md5"), ("SHA1", "sha1"), ("SHA256", "sha256")):
        lines.append(f"{title}:")
        for name, content in sorted(files.items()):
            value = hashlib.new(digest, content, usedforsecurity=False).hexdigest()
            lines.append(f" {value} {len(content):>16} {name}")
    return "\n".join((*lines, "Acquire-By-Hash: no")) + "\n"
