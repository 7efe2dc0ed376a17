"""An NVIDIA driver as one exact set of packages, followed through the vendor's metadata.

Parts of one driver ask for each other by `=`, metas for the driver by `>=`; a package is told by what it depends on,
never by its version: Ubuntu's last 535 packages are dummies that bring 580.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rackwright_facts._parse import debversion, dpkg
from rackwright_facts._parse.apt_index import Available
from rackwright_facts._parse.dpkg import Package, Relation
from rackwright_facts._parse.nvidia_driver import Flavour

# What belongs to a driver, under Ubuntu's and under Debian's names.
_FAMILY = re.compile(
    r"^(cuda-drivers|nvidia-|libnvidia-|libcuda1$|libnvcuvid1$|firmware-nvidia-|xserver-xorg-video-nvidia)"
)
# NVIDIA's other packages, which have versions of their own; those of the tools look like a driver's.
_OTHERS = re.compile(
    r"^(lib)?nvidia-(container|docker|cuda|settings|modprobe|xconfig|prime|dcgm|gds|fs)"
    r"|^libnvidia-egl-(wayland|gbm|xcb|xlib)|^libnvidia-ml-dev|^nvidia-driver-pinning-"
)
# What bears a driver's version: Debian's nvidia-kernel-common, for one, has a date.
_VERSION = re.compile(r"^\d{3}\.\d+(\.\d+)?$")
_PINNING = re.compile(r"^nvidia-driver-pinning-")
_FOLLOWS_LATEST = re.compile(r"^(cuda-drivers|nvidia-open)(-\d+)?$")
_BUILDS_MODULE = re.compile(r"^(nvidia-dkms|nvidia-kernel-(open-)?dkms|nvidia-open-kernel-dkms|linux-modules-nvidia-)")
PERSISTENCED = "nvidia-persistenced"
"""Debian packages it apart, with a version of its own; NVIDIA's repository for Debian with the driver."""
TOOLS = ("nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex")
"""Stems of the packages that have to be of the driver's version where a machine needs them."""


def is_part(name: str) -> bool:
    """Return whether a package belongs to a driver, its metas among them."""
    return _FAMILY.match(name) is not None and _OTHERS.match(name) is None


def is_driver(name: str, version: str) -> bool:
    """Return whether a package belongs to a driver and bears its version."""
    return is_part(name) and _VERSION.match(debversion.upstream(version)) is not None


def is_meta(name: str) -> bool:
    """Return whether this meta-package names no exact driver: `cuda-drivers`, `cuda-drivers-535`, `nvidia-open`."""
    return _FOLLOWS_LATEST.match(name) is not None


def is_pinning(name: str) -> bool:
    """Return whether this package brings pins for a driver (`nvidia-driver-pinning-595`)."""
    return _PINNING.match(name) is not None


def is_debian_name(name: str) -> bool:
    """Return whether the name is Debian's, which Ubuntu's packages do not have."""
    return name in ("libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "nvidia-smi")


def branch_of(version: str) -> int:
    """Return 580 for "580.95.05-0ubuntu1"."""
    head = debversion.upstream(version).split(".")[0]
    return int(head) if head.isascii() and head.isdigit() else 0


def flavour_of(name: str) -> Flavour:
    """Return which kernel module a package of a driver is for."""
    return "open" if re.search(r"-open(-|$)", name) else "proprietary"


def roots(branch: int, flavour: Flavour, *, debian: bool) -> tuple[tuple[str, ...], ...]:
    """Return the packages that stand for a whole driver, as alternatives, the ones that name their branch first.

    Debian's `nvidia-driver` brings a display server; what computes is asked for by itself.
    """
    if debian:
        # NVIDIA's repository and Debian's own differ in the open module's name.
        modules = (
            ("nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms") if flavour == "open" else ("nvidia-kernel-dkms",)
        )
        return tuple((module, "libcuda1", "libnvidia-ml1", "nvidia-smi") for module in modules)
    ending = "-open" if flavour == "open" else ""
    return ((f"nvidia-driver-{branch}{ending}",), (f"nvidia-driver{ending}",))


class Offer:
    """What a repository has of drivers, by name."""

    def __init__(self, packages: Iterable[Available]) -> None:
        self._packages: dict[str, list[Available]] = {}
        for package in packages:
            self._packages.setdefault(package.name, []).append(package)

    def versions(self, name: str) -> list[Available]:
        """Return what there is of a package."""
        return self._packages.get(name, [])

    def exact(self, name: str, upstream: str) -> Available | None:
        """Return the newest revision of a package at one upstream version."""
        fitting = [one for one in self.versions(name) if debversion.upstream(one.version) == upstream]
        return max(fitting, key=lambda one: debversion.key(one.version), default=None)

    def upstreams(self, branch: int, flavour: Flavour, *, debian: bool) -> tuple[str, ...]:
        """Return the versions of the whole drivers of a branch, oldest first; dummies are none."""
        names = [name for alternative in roots(branch, flavour, debian=debian) for name in alternative]
        offered = {debversion.upstream(one.version) for name in names for one in self.versions(name)}
        found = []
        for upstream in sorted((one for one in offered if branch_of(one) == branch), key=debversion.key):
            try:
                self.resolve(upstream, flavour, debian=debian)
            except ValueError:
                continue
            found.append(upstream)
        return tuple(found)

    def branches(self, flavour: Flavour, *, debian: bool) -> tuple[int, ...]:
        """Return the branches of which there is a whole driver."""
        candidates = {branch_of(one.version) for packages in self._packages.values() for one in packages}
        return tuple(sorted(branch for branch in candidates if self.upstreams(branch, flavour, debian=debian)))

    def resolve(
        self, upstream: str, flavour: Flavour, *, debian: bool, tools: Sequence[str] = ()
    ) -> dict[str, str]:  # fmt: skip
        """Return name -> exact version of all the packages of one driver, with the `tools` (stems) that it needs.

        Raises `ValueError` when a part is not there at this version, or when nothing of it builds a module.
        """
        branch = branch_of(upstream)
        alternatives = roots(branch, flavour, debian=debian)
        chosen = next(
            (names for names in alternatives if all(self.exact(name, upstream) for name in names)), alternatives[-1]
        )
        more = [PERSISTENCED] if debian and self.exact(PERSISTENCED, upstream) else []
        todo = [*chosen, *more, *(self._tool(stem, branch, upstream) for stem in tools)]
        wanted: dict[str, str] = {}
        while todo:
            name = todo.pop()
            if name in wanted:
                continue
            package = self.exact(name, upstream)
            if package is None:
                raise ValueError(f"{name} {upstream} is not there")
            wanted[name] = package.version
            for group in dpkg.parse_depends(", ".join(filter(None, (package.depends, package.pre_depends)))):
                there = [relation.name for relation in group if self.exact(relation.name, upstream)]
                if there:
                    todo.append(next((one for one in there if flavour_of(one) == flavour), there[0]))
                elif any(_is_of(relation, upstream) for relation in group):
                    raise ValueError(f"{name} needs {group[0].name} {upstream}, which is not there")
        if not any(_BUILDS_MODULE.match(name) for name in wanted):
            raise ValueError(f"{chosen[0]} {upstream} brings no kernel module: it is a dummy")
        return wanted

    def _tool(self, stem: str, branch: int, upstream: str) -> str:
        """Return a tool's name: with its branch up to 575, without from 580 on; Ubuntu's archive keeps the branch."""
        names = (f"{stem}-{branch}", stem)
        return next((name for name in names if self.exact(name, upstream)), names[0] if branch < 580 else stem)


def _is_of(relation: Relation, upstream: str) -> bool:
    """Return whether a relation asks for exactly this driver."""
    return relation.op == "=" and debversion.upstream(relation.version) == upstream


def installed_parts(installed: Mapping[str, Package]) -> dict[str, Package]:
    """Return the installed packages that belong to a driver."""
    return {
        name: package for name, package in installed.items() if package.installed and is_driver(name, package.version)
    }


def installed_set(
    installed: Mapping[str, Package], flavour: Flavour, *, debian: bool, tools: Sequence[str] = ()
) -> dict[str, str] | None:
    """Return name -> version of the whole driver of this flavour on a node, or None.

    None also when a part is missing, not configured, or of another version than the driver's root.
    """
    parts = installed_parts(installed)
    for upstream in {debversion.upstream(package.version) for name, package in parts.items() if not is_meta(name)}:
        branch = branch_of(upstream)
        for names in roots(branch, flavour, debian=debian):
            whole = _whole(parts, [*names, *_installed_tools(parts, tools, branch)], upstream)
            if whole is not None and any(_BUILDS_MODULE.match(name) for name in whole):
                return whole | beside(whole, {name: package.version for name, package in parts.items()})
    return None


def beside(whole: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return the packages of `found` (name -> version) that are of the same driver: virtual packages brought them."""
    upstream = next((debversion.upstream(version) for version in whole.values()), "")
    return {
        name: version
        for name, version in found.items()
        if is_part(name) and not is_meta(name) and name not in whole and debversion.upstream(version) == upstream
    }


def _installed_tools(parts: Mapping[str, Package], tools: Sequence[str], branch: int) -> list[str]:
    return [f"{stem}-{branch}" if f"{stem}-{branch}" in parts else stem for stem in tools]


def _whole(parts: Mapping[str, Package], names: Iterable[str], upstream: str) -> dict[str, str] | None:
    whole: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in whole:
            continue
        package = parts.get(name)
        if package is None or package.reinst_required or debversion.upstream(package.version) != upstream:
            return None
        whole[name] = package.version
        for group in dpkg.parse_depends(package.depends):
            there = [
                relation.name
                for relation in group
                if relation.name in parts and debversion.upstream(parts[relation.name].version) == upstream
            ]
            if there:
                todo.append(there[0])
            elif any(_is_of(relation, upstream) for relation in group):
                return None
    return whole
