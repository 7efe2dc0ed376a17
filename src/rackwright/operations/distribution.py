"""The distribution's components that hold NVIDIA's driver: Debian's non-free, Ubuntu's restricted and multiverse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackwright.change import Change, Decision, Refusal, Run
from rackwright.operations import apt
from rackwright.operations.common import MANAGED, file_change, unreadable, written
from rackwright.runtime import planned_operation
from rackwright_facts._parse import apt_sources
from rackwright_facts._parse.apt_sources import Entry
from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look, Section
from rackwright_facts.packages import APT, LISTS
from rackwright_facts.system import OS_RELEASE, files

SOURCE = "/etc/apt/sources.list.d/rackwright-distribution.list"
_FILE = files((SOURCE,))
_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "debian": ("contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("restricted", "multiverse"),
}
# Option of an entry that apt wants to be the same wherever the repository is named.
_OPTIONS = ("signed-by", "trusted", "arch")


def entry(look: Look) -> bytes | Refusal | None:
    """Return our source file: the missing components beside each entry of the distribution's main; None for none."""
    system, configuration = look[OS_RELEASE], look[APT]
    for reading, what in ((system, "which system this is"), (configuration, "apt's configuration")):
        if not reading.is_ok or reading.value is None:
            return unreadable(what, reading, "see /etc/os-release and /etc/apt on the node")
    fields, apt_files = system.value or {}, configuration.value
    assert apt_files is not None
    wanted = _COMPONENTS.get(fields.get("ID", ""), ())
    codename = fields.get("VERSION_CODENAME", "")
    entries = [
        one
        for file in apt_files.sources
        if file.path != SOURCE and not file.problem
        for one in file.entries
        if one.enabled and "deb" in one.types
    ]
    lines = []
    main = [one for one in entries if "main" in one.components and any(s.startswith(codename) for s in one.suites)]
    if not main or not codename:
        return Refusal(
            f"no enabled source of {codename or 'this system'} names the component main", "/etc/apt/sources.list",
            "give the node its distribution's package sources, or take driver.source: nvidia",
        )  # fmt: skip
    for one in main:
        for uri in one.uris:
            for suite in one.suites:
                there = {
                    c for other in entries if uri in other.uris and suite in other.suites for c in other.components
                }
                missing = [name for name in wanted if name not in there]
                if missing:
                    lines.append(f"deb {_options(one)}{uri} {suite} {' '.join(missing)}\n")
    return (MANAGED + "".join(dict.fromkeys(lines))).encode() if lines else None


def _options(one: Entry) -> str:
    shown = " ".join(f"{name}={one.options[name]}" for name in _OPTIONS if name in one.options)
    return f"[{shown}] " if shown else ""


def _reads(*, driver: Mapping[str, Any] | None) -> tuple[Section[Any], ...]:
    return (OS_RELEASE, APT, LISTS, _FILE) if driver is not None and driver["source"] == "distribution" else ()


@planned_operation(reads=_reads)
def components(look: Look, *, driver: Mapping[str, Any] | None) -> Decision:
    """The distribution's components that hold the driver are sources of the node, where `source: distribution` is."""
    if driver is None or driver["source"] != "distribution":
        return Decision(look)
    content = entry(look)
    if isinstance(content, Refusal):
        return Decision(look, refusals=(content,))
    own = look[_FILE]
    if not own.is_ok:
        return Decision(look, refusals=(unreadable("rackwright's source", own, "see /etc/apt/sources.list.d"),))
    change = file_change(SOURCE, (own.value or {}).get(SOURCE), content)
    configuration = look[APT].value
    if change is None or configuration is None:
        return Decision(look)
    update = Run(("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any"), packages=True)
    lists = Change("package lists of the distribution", "stale", "current", commands=(update,))
    after = look.having(_FILE, Reading.ok(written({}, {SOURCE: content})))
    return Decision(after.having(APT, Reading.ok(apt.edited(configuration, {SOURCE: content}))), (change, lists))


def with_components(look: Look) -> dict[str, bytes]:
    """Return the node's source files by name, as `packages.index` asks them."""
    configuration = look[APT].value
    found: tuple[apt_sources.SourceFile, ...] = configuration.sources if configuration else ()
    return {file.path.rpartition("/")[2]: file.content for file in found}
