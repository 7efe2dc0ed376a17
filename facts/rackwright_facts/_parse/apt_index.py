"""Packages indexes of apt repositories (deb-control(5) paragraphs)."""

from __future__ import annotations

from rackwright_facts._parse.model import Model


class Available(Model):
    """One version of one package that a repository has."""

    name: str
    version: str
    architecture: str = ""
    depends: str = ""
    pre_depends: str = ""
    installed_size_kib: int = 0
    """`Installed-Size`: KiB on disk once unpacked."""
    size: int = 0
    """`Size`: bytes of the .deb."""


def parse_packages(text: str) -> tuple[Available, ...]:
    """Return the packages of an index, or of some of its paragraphs and fields."""
    found = []
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        last = ""
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t"):
                fields[last] = f"{fields.get(last, '')} {line.strip()}"
                continue
            last, colon, value = line.partition(":")
            last = last.strip().lower()
            if not colon:
                raise ValueError(f"not a line of a Packages index: {line[:120]!r}")
            fields[last] = value.strip()
        if not fields:
            continue
        if "package" not in fields or "version" not in fields:
            raise ValueError(f"a paragraph without package and version: {paragraph[:120]!r}")
        found.append(
            Available(
                name=fields["package"],
                version=fields["version"],
                architecture=fields.get("architecture", ""),
                depends=fields.get("depends", ""),
                pre_depends=fields.get("pre-depends", ""),
                installed_size_kib=int(fields.get("installed-size") or 0),
                size=int(fields.get("size") or 0),
            )
        )
    return tuple(found)
