"""profile + range + single name -> node: merging as the schema's rules say, and the checks on the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rackwright import sources
from rackwright.config import Cluster, Node, Rollout, Settings, Sources, Ssh
from rackwright.errors import Problem, UsageMistake
from rackwright.settings import hosts, mistakes, yaml_lines
from rackwright.settings.yaml_lines import Document, Key


def merged(path: Path) -> Cluster:
    """Return the cluster that a file describes, or raise `UsageMistake` with every mistake in it."""
    document = yaml_lines.read(path)
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise UsageMistake(Problem(f"the file is {kind}", f"{path}:1", "begin with `cluster: NAME` and `nodes:`"))
    problems = [*document.problems, *_written(document)]
    nodes = _Nodes(document)
    found = nodes.build()
    problems += nodes.problems
    problems += _unknown_disruption(document, nodes)
    if problems:
        raise UsageMistake(*dict.fromkeys(problems))
    data = document.data
    return Cluster(
        name=data["cluster"],
        ssh=Ssh.model_validate(data.get("ssh", {})),
        sources=Sources.model_validate(data.get("sources", {})),
        rollout=Rollout.model_validate(data.get("rollout", {})),
        nodes=tuple(found),
        folder=path.resolve().parent,
        warnings=tuple(_warnings(found)),
    )


def _written(document: Document) -> list[Problem]:
    """Return what is wrong with the file as it is written."""
    try:
        Settings.model_validate(document.data)
    except ValidationError as error:
        return mistakes.problems(error, Settings, document.where, skip=_is_for_the_merged)
    return []


def _is_for_the_merged(detail: Any) -> bool:
    """A profile or node may leave out what another layer gives, and unset it by null: that is judged when merged."""
    layered = len(detail["loc"]) > 2 and detail["loc"][0] in ("profiles", "nodes")
    return layered and (detail["type"] == "missing" or detail["input"] is None)


def _layer(data: Any, *key: str) -> Mapping[str, Any]:
    """Return a mapping out of the raw data; what is no mapping has been reported, and counts as empty."""
    for part in key:
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _unknown_disruption(document: Document, nodes: _Nodes) -> Iterator[Problem]:
    patterns = _layer(document.data, "rollout").get("allow_disruption")
    for index, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
        where = document.where(("rollout", "allow_disruption", index))
        try:
            unknown = [name for name in hosts.expand(str(pattern)) if name not in nodes.owner]
        except ValueError as error:
            yield Problem(f"not a host or range: {error}", where, "write a node's name or a range of them")
            continue
        if unknown:
            yield Problem(f"{unknown[0]!r} is no node", where, mistakes.did_you_mean(unknown[0], nodes.owner))


def _warnings(nodes: list[Node]) -> Iterator[str]:
    branches = sorted({node.driver.branch for node in nodes if node.driver is not None})
    for branch in branches:
        end = sources.DRIVER_BRANCH_ENDS.get(branch)
        if end is not None and end < "2026-12":
            yield (
                f"driver branch {branch} had its last release in {end}: "
                "580 is supported until 2028-06, and runs CUDA 12.2"
            )


@dataclass
class _Owner:
    """Which lines of the file speak for one host."""

    range: str | None = None
    single: str | None = None


@dataclass
class _Nodes:
    document: Document
    owner: dict[str, _Owner] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = _layer(self.document.data, "nodes")
        if not nodes and isinstance(self.document.data.get("nodes"), dict):
            self.problems.append(Problem("no node is declared", self.document.where(("nodes",)), "name at least one"))
        for pattern in nodes:
            where = self.document.where(("nodes", pattern))
            try:
                names = hosts.expand(pattern)
            except ValueError as error:
                fix = "write names such as gpu01.example.net, or ranges such as gpu[01-08].example.net"
                self.problems.append(Problem(f"{pattern!r} is no host or range: {error}", where, fix))
                continue
            self._claim(pattern, names, where)

    def _claim(self, pattern: str, names: list[str], where: str) -> None:
        kind = "range" if "[" in pattern else "single"
        for name in names:
            owner = self.owner.setdefault(name, _Owner())
            other = getattr(owner, kind)
            if other is not None:
                other_line = self.document.where(("nodes", other)).partition("  ")[0]
                self.problems.append(
                    Problem(
                        f"{name} is in two ranges: {other!r} and {pattern!r}",
                        f"{where} and {other_line}",
                        "let each host be in one range; what differs goes under its own name",
                    )
                )
                return
            setattr(owner, kind, pattern)

    def build(self) -> list[Node]:
        """Return the nodes, collecting problems; equal inputs are validated once."""
        found, templates = [], dict[tuple[str | None, str | None], Node | None]()
        for name, owner in self.owner.items():
            key = (owner.range, owner.single)
            if key not in templates:
                templates[key] = self._node(name, owner)
            template = templates[key]
            if template is not None:
                found.append(self._named(template, name))
        return found

    def _named(self, template: Node, name: str) -> Node:
        raw_address = self._address(name)
        short = name.partition(".")[0]
        fill: Callable[[str], str] = lambda text: text.replace("{name}", name).replace("{short}", short)  # noqa: E731
        update: dict[str, Any] = {"name": name, "address": fill(raw_address or name)}
        if template.bmc is not None:
            update["bmc"] = template.bmc.model_copy(update={"address": fill(template.bmc.address)})
        return template.model_copy(update=update)

    def _address(self, name: str) -> str | None:
        owner = self.owner[name]
        for pattern in (owner.single, owner.range):
            address = _layer(self.document.data, "nodes", pattern).get("address") if pattern else None
            if address:
                return str(address)
        return None

    def _node(self, name: str, owner: _Owner) -> Node | None:
        data = self.document.data
        profiles = _layer(data, "profiles")
        layers: list[tuple[Key, Mapping[str, Any]]] = [
            (("nodes", pattern), _layer(data, "nodes", pattern)) for pattern in (owner.range, owner.single) if pattern
        ]
        profile, profile_at = None, layers[-1][0]
        for at, layer in layers:
            if layer.get("profile") is not None:
                profile, profile_at = layer["profile"], (*at, "profile")
        if profile is None:
            fix = f"add `profile: NAME`; there are: {', '.join(profiles) or 'none yet (profiles:)'}"
            self.problems.append(Problem(f"{name} has no profile", self.document.where(profile_at), fix))
            return None
        if not isinstance(profile, str) or profile not in profiles:
            where = self.document.where(profile_at)
            self.problems.append(
                Problem(f"there is no profile {profile!r}", where, mistakes.did_you_mean(str(profile), profiles))
            )
            return None
        result: dict[str, Any] = {}
        origin: dict[Key, Key] = {}
        for at, layer in [(("profiles", profile), _layer(data, "profiles", profile)), *layers]:
            _merge(result, layer, (), at, origin)
        result.update(name=name, profile=profile, address=str(result.get("address") or name))
        try:
            return Node.model_validate(result)
        except ValidationError as error:
            # A mistake of the node as a whole stands where the file speaks of it.
            whole = layers[-1][0]
            self.problems += mistakes.problems(
                error, Node, lambda key: self.document.where(_origin(key, origin) if key else whole)
            )
            return None


def _merge(into: dict[str, Any], layer: Mapping[str, Any], key: Key, at: Key, origin: dict[Key, Key]) -> None:
    """Mappings by key; lists and scalars replace; null unsets."""
    for name, value in layer.items():
        here, there = (*key, name), (*at, name)
        origin[here] = there
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            base = into.get(name)
            copy = dict(base) if isinstance(base, dict) else {}
            into[name] = copy
            _merge(copy, value, here, there, origin)
        else:
            into[name] = value


def _origin(key: Key, origin: dict[Key, Key]) -> Key:
    for end in range(len(key), 0, -1):
        if key[:end] in origin:
            return (*origin[key[:end]], *key[end:])
    return key
