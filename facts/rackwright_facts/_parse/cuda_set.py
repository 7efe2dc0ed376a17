"""A CUDA toolkit as one exact set of packages, followed through the vendor's metadata.

The vendor's `cuda-toolkit-12-2` depends on its parts by `>=`, with the version of the very part that was released
with it as the bound (read from the repository's index). So the bounds name the exact set of a release, and
whether an installed set is whole can be told from dpkg alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rackwright_facts._parse import debversion, dpkg
from rackwright_facts._parse.apt_index import Available
from rackwright_facts._parse.dpkg import Package, Relation

# Shared by all toolkits on a node: the newest that any of them asks for.
_SHARED = re.compile(r"^cuda-toolkit(-\d+)?-config-common$")
# The vendor's own packages, as against what comes from the distribution.
_FAMILY = re.compile(r"^(cuda|nsight|gds|nvidia)-|-\d+-\d+$")
# cuda, cuda-12-2, cuda-runtime-12-2, ...
_DRAGS_DRIVER = re.compile(r"^cuda(-\d+(-\d+)?)?$|^cuda-(runtime|demo-suite)-\d+-\d+$")


def suffix(release: str) -> str:
    """Return `12-2` for "12.2" or "12.2.2": how packages of that release end."""
    major, minor, *_ = release.split(".")
    return f"{major}-{minor}"


def drags_driver(name: str) -> bool:
    """Return whether this meta-package would drag in a driver of its own choice."""
    return _DRAGS_DRIVER.match(name) is not None


def toolkit(release: str) -> str:
    """Return the name of the toolkit's meta-package."""
    return f"cuda-toolkit-{suffix(release)}"


def is_release(version: str, wanted: str) -> bool:
    """Return whether a package version such as "12.2.2-1" is the wanted "12.2" or "12.2.2"."""
    return f"{debversion.upstream(version)}.".startswith(f"{wanted}.")


def available_releases(packages: Iterable[Available]) -> tuple[str, ...]:
    """Return the toolkit versions that a repository has, oldest first, as "12.2.2"."""
    versions = {
        debversion.upstream(package.version)
        for package in packages
        if re.fullmatch(r"cuda-toolkit-\d+-\d+", package.name)
    }
    return tuple(sorted(versions, key=debversion.key))


def resolve(available: Sequence[Available], meta: str, version: str, others: Mapping[str, Package]) -> dict[str, str]:
    """Return name -> exact version of all the vendor's packages of one release.

    `others` are the packages on the node: a shared package must serve those of them that ask for it, too.
    Raises `ValueError` when the repository lacks a part.
    """
    offered: dict[str, list[Available]] = {}
    for package in available:
        offered.setdefault(package.name, []).append(package)
    wanted: dict[str, str] = {}
    todo = [(meta, version)]
    while todo:
        name, chosen = todo.pop()
        if name in wanted and debversion.compare(wanted[name], chosen) >= 0:
            continue
        wanted[name] = chosen
        package = next(package for package in offered[name] if package.version == chosen)
        for group in dpkg.parse_depends(", ".join(filter(None, (package.depends, package.pre_depends)))):
            relation = next((relation for relation in group if relation.name in offered), None)
            if relation is None:
                if not any(_FAMILY.search(relation.name) for relation in group):
                    continue  # the distribution's: apt finds it
                raise ValueError(f"{name} {chosen} needs {group[0].name}, which the repository does not have")
            bounds = [relation, *_asked(others.values(), relation.name)] if _SHARED.match(relation.name) else [relation]
            todo.append((relation.name, _smallest(offered[relation.name], bounds, name)))
    return wanted


def _smallest(offered: Iterable[Available], bounds: Sequence[Relation], asker: str) -> str:
    fitting = [
        package.version for package in offered if all(dpkg.satisfied(bound, package.version) for bound in bounds)
    ]
    if not fitting:
        asked = " and ".join(f"{bound.op} {bound.version}" for bound in bounds)
        raise ValueError(f"{asker} needs {bounds[0].name} {asked}, which the repository does not have")
    bounded = any(bound.op for bound in bounds)
    return (min if bounded else max)(fitting, key=debversion.key)


def _asked(packages: Iterable[Package], name: str) -> Iterator[Relation]:
    for package in packages:
        if package.installed and name in package.depends:
            for group in dpkg.parse_depends(package.depends):
                yield from (relation for relation in group if relation.name == name)


def installed_set(installed: Mapping[str, Package], release: str) -> dict[str, str] | None:
    """Return name -> version of the whole toolkit `release` ("12.2" or "12.2.2") on a node, or None.

    None also when a part is missing, not configured, or of another release than the meta-package names, and when
    what a part needs of the distribution is not there.
    """
    meta = toolkit(release)
    if meta not in installed or not is_release(installed[meta].version, release):
        return None
    if lacking(installed, release):
        return None
    whole: dict[str, str] = {}
    todo = [meta]
    while todo:
        name = todo.pop()
        if name in whole:
            continue
        package = installed.get(name)
        if package is None or not package.installed or package.reinst_required:
            return None
        whole[name] = package.version
        for group in dpkg.parse_depends(package.depends):
            family = [relation for relation in group if _FAMILY.search(relation.name)]
            if not family:
                continue
            relation = next((relation for relation in family if relation.name in installed), None)
            if relation is None or not _is_exact(relation, installed):
                return None
            todo.append(relation.name)
    return whole


def lacking(installed: Mapping[str, Package], release: str) -> tuple[str, ...]:
    """Return what a toolkit's installed parts need of the distribution and do not have; of alternatives the first."""
    provided = {
        relation.name
        for package in installed.values()
        if package.installed and package.provides
        for group in dpkg.parse_depends(package.provides)
        for relation in group
    }

    def is_there(relation: Relation) -> bool:
        package = installed.get(relation.name)
        if package is not None and package.installed and dpkg.satisfied(relation, package.version):
            return True
        return relation.name in provided

    todo, seen, found = [toolkit(release)], set[str](), set[str]()
    while todo:
        package = installed.get(todo.pop())
        if package is None or not package.installed or package.name in seen:
            continue
        seen.add(package.name)
        for group in dpkg.parse_depends(package.depends):
            if any(_FAMILY.search(relation.name) for relation in group):
                todo += [relation.name for relation in group]
            elif not any(map(is_there, group)):
                found.add(group[0].name)
    return tuple(sorted(found))


def _is_exact(relation: Relation, installed: Mapping[str, Package]) -> bool:
    """Return whether a part is the one that its asker was released with."""
    version = installed[relation.name].version
    bounds = [relation]
    if _SHARED.match(relation.name):
        bounds += _asked(installed.values(), relation.name)
    floors = [bound.version for bound in bounds if bound.op in (">=", "=")]
    if not floors:
        return all(dpkg.satisfied(bound, version) for bound in bounds)
    newest = max(floors, key=debversion.key)
    return newest in (version, debversion.upstream(version))
