"""What keeps an exact set of packages where it is: our pins, nobody else's, and a hold on each package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rackwright.change import Change, Run
from rackwright.operations import apt
from rackwright.operations.common import MANAGED, file_change, written
from rackwright_facts._parse.apt_preferences import Stanza
from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look, Section
from rackwright_facts.packages import APT, INSTALLED
from rackwright_facts.system import FileState, files


@dataclass(frozen=True)
class Pins:
    """The pins of one set."""

    name: str
    """Names our file: `rackwright-NAME-versions`."""
    what: str
    """What the set is, in words."""

    @property
    def path(self) -> str:
        """Return where our pins stand."""
        return f"/etc/apt/preferences.d/rackwright-{self.name}-versions"

    @property
    def file(self) -> Section[Mapping[str, FileState]]:
        """Return the section that reads our file."""
        return files((self.path,))

    def content(self, versions: Mapping[str, str]) -> bytes:
        """Return the preferences that keep each package at its exact version (above 1000: even against an upgrade)."""
        stanzas = "\n".join(
            f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n"
            for name, version in sorted(versions.items())
        )
        return f"{MANAGED}{stanzas}".encode()

    def recorded(self, look: Look) -> dict[str, str]:
        """Return what our pins say: package -> version. This is what a set was resolved to before."""
        configuration = look[APT].value
        return {
            name: stanza.pin.removeprefix("version ").strip()
            for file in (configuration.preferences if configuration else ())
            if file.path == self.path
            for stanza in file.stanzas
            if stanza.pin.startswith("version ")
            for name in stanza.package
        }

    def files_after(
        self, look: Look, repository: apt.Repository | None, versions: Mapping[str, str]
    ) -> dict[str, bytes | None]:
        """Return the preferences that will be written: path -> content, None for a file that is set aside."""
        foreign = {edit.path: edit.content for edit in self._foreign(look, repository, versions)}
        return {**foreign, self.path: self.content(versions)}

    def _foreign(self, look: Look, repository: apt.Repository | None, versions: Mapping[str, str]) -> list[apt.Edit]:
        configuration = look[APT].value
        if configuration is None:
            return []

        def ours(stanza: Stanza) -> bool:
            return any(fnmatchcase(name, glob) for glob in stanza.package if glob != "*" for name in versions)

        return apt.disabled_pins(configuration, repository, ours, f"another pin for {self.what}", ours=(self.path,))

    def changes(
        self, look: Look, repository: apt.Repository | None, versions: Mapping[str, str], moves: Sequence[Change]
    ) -> tuple[Change, ...]:
        """Return the changes of pins and holds; `moves` are the package changes that come before them."""
        found = [edit.change() for edit in self._foreign(look, repository, versions)]
        pin = file_change(self.path, (look[self.file].value or {}).get(self.path), self.content(versions))
        if pin is not None:
            found.append(pin)
        installed = look[INSTALLED].value or {}
        moved = {change.what.removeprefix("package ") for change in moves}
        # dpkg forgets a hold when it unpacks the package anew.
        unheld = sorted(name for name in versions if name in moved or name not in installed or not installed[name].held)
        if unheld:
            hold = Run(("apt-mark", "hold", *unheld), packages=True)
            found.append(Change(f"hold on {_some(unheld)}", "not held", "held", commands=(hold,)))
        return tuple(found)

    def after(self, look: Look, repository: apt.Repository | None, versions: Mapping[str, str]) -> Look:
        """Return the look as it will be once the pins stand."""
        contents = self.files_after(look, repository, versions)
        configuration = look[APT].value
        result = look.having(self.file, Reading.ok(written({}, {self.path: contents[self.path]})))
        return result.having(APT, Reading.ok(apt.edited(configuration, contents))) if configuration else result


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
