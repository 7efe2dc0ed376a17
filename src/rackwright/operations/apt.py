"""One apt repository, declared once: its key by fingerprint, one entry, and nothing else that speaks for it.

`converge` is the decision that every vendor's repository shares. Other entries for the same repository, in any
file and any spelling, are disabled (files are renamed to *.disabled, which apt ignores; unrelated lines stay).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rackwright.change import Change, Decision, Refusal, Run, Write
from rackwright.operations.common import MANAGED, file_change, unreadable, written
from rackwright_facts._parse import apt_preferences, apt_sources, openpgp
from rackwright_facts._parse.apt_preferences import PreferencesFile, Stanza
from rackwright_facts._parse.apt_sources import SourceFile
from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look, Section
from rackwright_facts.packages import APT, INSTALLED, LISTS, AptConfiguration, Request, conffiles, fetched
from rackwright_facts.system import FileState, files

_KEYRINGS = "/etc/apt/keyrings"


class _Paths(NamedTuple):
    """Where a repository's files stand on a node, whatever the system."""

    folder: str
    keyring: str
    list: str
    sources: str
    pin: str
    proxy: str


def _paths(name: str) -> _Paths:
    return _Paths(
        _KEYRINGS,
        f"{_KEYRINGS}/rackwright-{name}.gpg",
        f"/etc/apt/sources.list.d/rackwright-{name}.list",
        f"/etc/apt/sources.list.d/rackwright-{name}.sources",
        f"/etc/apt/preferences.d/rackwright-{name}",
        f"/etc/apt/apt.conf.d/90rackwright-{name}-proxy",
    )


def own_files(name: str) -> Section[Mapping[str, FileState]]:
    """Return the section that reads the files we write for the repository of this name."""
    return files(_paths(name))


@dataclass(frozen=True)
class Repository:
    """A repository as it is wanted on a node."""

    name: str
    """Names our files: `rackwright-NAME`."""
    uri: str
    fingerprint: str
    owns: Callable[[str], bool]
    """Whether a normalised URI is this repository, or one that must not stand beside it."""
    suite: str = "/"
    components: tuple[str, ...] = ()
    deb822: bool = False
    key_file: str | None = None
    key_url: str | None = None
    retired: tuple[str, ...] = ()
    """Fingerprints of the vendor's earlier keys."""
    label: str = ""
    """`Label` of the vendor's Release file, as pins name it."""
    vendor_files: tuple[str, ...] = ()
    """Base names under sources.list.d that recipes for this repository write; replaced when they do not parse."""
    keyring_package: str | None = None
    """The vendor's package that brings a source of its own."""
    proxy: str | None = None

    @property
    def keyring(self) -> str:
        """Return where the key lies."""
        return _paths(self.name).keyring

    @property
    def source(self) -> str:
        """Return where the one entry stands, in the style that the release uses."""
        return _paths(self.name).sources if self.deb822 else _paths(self.name).list

    @property
    def other_style(self) -> str:
        """Return where the entry stands on releases of the other style."""
        return _paths(self.name).list if self.deb822 else _paths(self.name).sources

    @property
    def pin(self) -> str:
        """Return the file that keeps this repository from replacing the distribution's packages."""
        return _paths(self.name).pin

    @property
    def proxy_file(self) -> str:
        """Return the file that gives apt the proxy for this repository's host."""
        return _paths(self.name).proxy

    def entry(self) -> bytes:
        """Return the content of the source file."""
        words = (self.suite, *self.components)
        if not self.deb822:
            return f"{MANAGED}deb [signed-by={self.keyring}] {self.uri} {' '.join(words)}\n".encode()
        components = f"Components: {' '.join(self.components)}\n" if self.components else ""
        return (
            f"{MANAGED}Types: deb\nURIs: {self.uri}\nSuites: {self.suite}\n{components}Signed-By: {self.keyring}\n"
        ).encode()

    def pins(self) -> bytes:
        """Return the pin: available, and never preferred to what the distribution ships (500)."""
        return f"{MANAGED}Package: *\nPin: release l={self.label}\nPin-Priority: 100\n".encode()

    def proxies(self) -> bytes | None:
        """Return apt's proxy setting for this repository's host alone."""
        if not self.proxy:
            return None
        host = urlsplit(self.uri).hostname or ""
        return "".join(f'Acquire::{method}::Proxy::{host} "{self.proxy}";\n' for method in ("http", "https")).encode()

    def own_files(self) -> Section[Mapping[str, FileState]]:
        """Return the section that reads the files we write."""
        return own_files(self.name)

    def request(self, key: bytes) -> Request:
        """Return the repository as `packages.index` and `packages.simulate` ask it."""
        return Request(uri=self.uri, suite=self.suite, components=self.components, key=key, proxy=self.proxy)


def converge(look: Look, repository: Repository) -> Decision:
    """Bring key, entry, pin and lists of one repository to the declared state, and retire what competes."""
    apt, own = look[APT], look[repository.own_files()]
    installed, lists = look[INSTALLED], look[LISTS]
    for reading, what in (
        (apt, "apt's configuration"),
        (own, "rackwright's files"),
        (installed, "the packages"),
    ):
        if not reading.is_ok:
            return Decision(look, refusals=(unreadable(what, reading, "see why these files cannot be read"),))
    assert apt.value is not None and own.value is not None and installed.value is not None
    found = key_of(look, repository)
    if isinstance(found, Refusal):
        return Decision(look, refusals=(found,))
    package = installed.value.get(repository.keyring_package or "")
    goes_with_package: frozenset[str] = frozenset()
    changes: list[Change] = []
    if package is not None and package.state != "not-installed":
        name = package.name
        goes_with_package = look[conffiles(name)].value or frozenset()
        purge = Run(("dpkg", "--purge", name), packages=True)
        changes.append(Change(f"package {name}", package.version, None, commands=(purge,)))
    competing = [
        *_sources(apt.value, repository, goes_with_package),
        *_preferences(apt.value, repository, goes_with_package),
        *_trusted(apt.value, repository),
    ]
    refusals = [step for step in competing if isinstance(step, Refusal)]
    if refusals:
        return Decision(look, refusals=tuple(refusals))
    edits = [step for step in competing if isinstance(step, Edit)]
    changes += [edit.change() for edit in edits]
    wanted: dict[str, bytes | None] = {
        repository.keyring: found,
        repository.source: repository.entry(),
        repository.other_style: None,
        repository.pin: repository.pins(),
    }
    folder = _readable_by_all(own.value.get(_KEYRINGS))
    own_changes = [folder]
    own_changes += [file_change(path, own.value.get(path), content) for path, content in wanted.items()]
    # A proxy may carry a password: its file is for root alone, and its content is not shown.
    proxies = repository.proxies()
    own_changes.append(
        file_change(repository.proxy_file, own.value.get(repository.proxy_file), proxies, mode=0o600, secret=True)
    )
    changes += [change for change in own_changes if change is not None]
    own_after = written(own.value, {**wanted, repository.proxy_file: proxies})
    if folder is not None:
        own_after[_KEYRINGS] = own.value[_KEYRINGS].model_copy(update={"mode": 0o755})
    if proxies is not None:
        own_after[repository.proxy_file] = own_after[repository.proxy_file].model_copy(update={"mode": 0o600})
    have = lists.value or frozenset()
    prefix = apt_sources.list_prefix(repository.uri)
    if changes or not any(name.startswith(prefix) and "Packages" in name for name in have):
        before = "stale" if any(name.startswith(prefix) for name in have) else None
        changes.append(
            Change(f"package lists of {repository.uri}", before, "current", commands=(refresh(repository, have),))
        )
        have |= {f"{prefix}Packages"}
    after = (
        look.having(APT, Reading.ok(_after(apt.value, repository, edits, goes_with_package, proxies)))
        .having(repository.own_files(), Reading.ok(own_after))
        .having(LISTS, Reading.ok(have))
    )
    if package is not None:
        rest = {name: other for name, other in installed.value.items() if name != package.name}
        after = after.having(INSTALLED, Reading.ok(rest))
    return Decision(after, tuple(changes))


def _readable_by_all(folder: FileState | None) -> Change | None:
    """apt checks signatures as the user _apt, who has to get at the key."""
    if folder is None or folder.kind != "directory" or folder.mode & 0o055 == 0o055:
        return None
    commands = (Run(("chmod", "0755", _KEYRINGS)),)
    return Change(f"folder {_KEYRINGS}", f"{folder.mode:04o}", "0755", commands=commands)


def key_of(look: Look, repository: Repository) -> bytes | Refusal:
    """Return the repository's certificate: the one in place, or the declared file's, or the vendor's by the node."""
    own = look[repository.own_files()].value or {}
    stored = own.get(repository.keyring)
    if stored is not None and stored.content is not None:
        try:
            if openpgp.fingerprints(stored.content) == (repository.fingerprint,):
                return stored.content
        except ValueError:
            pass  # not a keyring any more: written anew
    if repository.key_file is not None:
        where = repository.key_file
        try:
            data = Path(repository.key_file).read_bytes()
        except OSError as error:
            return Refusal(f"the key file cannot be read: {error.strerror}", where, "put the vendor's public key there")
    else:
        assert repository.key_url is not None
        where = repository.key_url
        reading = look[fetched(repository.key_url, repository.proxy)]
        if not reading.is_ok or reading.value is None:
            return Refusal(
                what=f"the node cannot fetch the repository's key: {reading.reason or reading.status}",
                where=where,
                fix="open the way to it, or declare `proxy`, or a mirror's `url` with `key` and `fingerprint`",
            )
        data = reading.value
    try:
        return openpgp.only(data, repository.fingerprint)
    except ValueError as error:
        try:
            held = ", ".join(openpgp.fingerprints(data)) or "no key"
        except ValueError:
            held = f"no key ({error})"
        return Refusal(
            what=f"the key is not the declared one: it is {held}",
            where=where,
            fix=f"declared is {repository.fingerprint}; check with the vendor before you change the fingerprint",
        )


def request_of(look: Look, repository: Repository | None) -> Request | Refusal | None:
    """Return how a repository is asked; None stands for the distribution's own sources, which the node has."""
    if repository is None:
        return None
    key = key_of(look, repository)
    return key if isinstance(key, Refusal) else repository.request(key)


def refresh(repository: Repository, have: frozenset[str]) -> Run:
    """Return the command that fetches this repository's lists alone; all of them on a host that has none."""
    alone = (
        "-o", f"Dir::Etc::SourceList={repository.source}",
        "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", "APT::Get::List-Cleanup=0",
    )  # fmt: skip
    options = alone if has_lists(have) else ()
    return Run(("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any", *options), packages=True)


def has_lists(have: frozenset[str]) -> bool:
    """Return whether the host has package lists of anybody."""
    return any("Packages" in name for name in have)


@dataclass(frozen=True)
class Edit:
    """A file that says something else about the repository: its new content, or None to set it aside."""

    path: str
    what: str
    content: bytes | None

    def change(self) -> Change:
        """Return the edit as a change of the plan."""
        if self.content is not None:
            return Change(f"{self.what} in {self.path}", "present", None, commands=(Write(self.path, self.content),))
        aside = Run(("mv", "-f", self.path, f"{self.path}.disabled"))
        return Change(f"{self.what} in {self.path}", "present", f"{self.path}.disabled", commands=(aside,))


def _sources(apt: AptConfiguration, repository: Repository, gone: frozenset[str]) -> list[Edit | Refusal]:
    steps: list[Edit | Refusal] = []
    for file in apt.sources:
        if file.path in gone or file.path in (repository.source, repository.other_style):
            continue
        if file.problem:
            if posixpath.basename(file.path) in repository.vendor_files:
                steps.append(Edit(file.path, "unreadable source", None))
            else:
                steps.append(
                    Refusal(
                        what=f"apt cannot read {file.path}: {file.problem}",
                        where=file.path,
                        fix="mend the file, or move it out of the way; apt does nothing while it stands there",
                    )
                )
        elif any(repository.owns(apt_sources.normal_uri(uri)) for entry in _enabled(file) for uri in entry.uris):
            content = apt_sources.without_uris(file, lambda uri: repository.owns(apt_sources.normal_uri(uri)))
            steps.append(Edit(file.path, f"another source for {repository.name}", content))
    return steps


def _enabled(file: SourceFile) -> list[apt_sources.Entry]:
    return [entry for entry in file.entries if entry.enabled]


def _preferences(apt: AptConfiguration, repository: Repository, gone: frozenset[str]) -> list[Edit]:
    host = urlsplit(repository.uri).hostname or ""
    named = re.compile(rf"\bl={re.escape(repository.label)}|origin\s+\"?{re.escape(host)}\"?\s*$")
    return disabled_pins(
        apt,
        repository,
        lambda stanza: named.search(stanza.pin) is not None,
        f"another pin for {repository.name}",
        gone,
    )


def disabled_pins(
    apt: AptConfiguration,
    repository: Repository | None,
    match: Callable[[Stanza], bool],
    what: str,
    gone: frozenset[str] = frozenset(),
    ours: Sequence[str] = (),
) -> list[Edit]:
    """Return the edits that take the matching stanzas out of everybody else's preferences."""
    edits = []
    for file in apt.preferences:
        if file.path in gone or file.path in ours or (repository is not None and file.path == repository.pin):
            continue
        stanzas = [stanza for stanza in file.stanzas if match(stanza)]
        if stanzas:
            edits.append(Edit(file.path, what, apt_preferences.without(file, stanzas)))
    return edits


def _trusted(apt: AptConfiguration, repository: Repository) -> list[Edit]:
    """A key that apt-key added is good for every repository: the vendor's keys go from there."""
    unwanted = {repository.fingerprint, *repository.retired}
    edits = []
    for path, content in apt.keyrings.items():
        try:
            held = openpgp.fingerprints(content)
        except ValueError:
            continue  # a format that apt ignores too
        here = sorted(unwanted & set(held))
        if here:
            rest = openpgp.without(content, here) if len(here) < len(held) else None
            edits.append(Edit(path, f"key {', '.join(name[-8:] for name in here)}, trusted for everything,", rest))
    return edits


def _after(
    apt: AptConfiguration,
    repository: Repository,
    edits: Sequence[Edit],
    gone: frozenset[str],
    proxies: bytes | None,
) -> AptConfiguration:
    contents: dict[str, bytes | None] = {edit.path: edit.content for edit in edits}
    contents.update(dict.fromkeys(gone))
    contents[repository.source] = repository.entry()
    contents[repository.other_style] = None
    contents[repository.pin] = repository.pins()
    return edited(apt, contents)


def edited(apt: AptConfiguration, contents: Mapping[str, bytes | None]) -> AptConfiguration:
    """Return apt's configuration once `contents` (path -> content, None: gone) are in place."""
    sources: dict[str, SourceFile] = {file.path: file for file in apt.sources}
    preferences: dict[str, PreferencesFile] = {file.path: file for file in apt.preferences}
    keyrings = dict(apt.keyrings)
    for path, content in contents.items():
        if content is None:
            for group in (sources, preferences, keyrings):
                group.pop(path, None)
        elif path.startswith("/etc/apt/sources.list"):
            sources[path] = apt_sources.parse(path, content)
        elif path.startswith("/etc/apt/preferences"):
            preferences[path] = apt_preferences.parse(path, content)
        else:
            keyrings[path] = content
    return AptConfiguration(
        sources=tuple(sources[path] for path in sorted(sources)),
        preferences=tuple(preferences[path] for path in sorted(preferences)),
        keyrings=keyrings,
    )
