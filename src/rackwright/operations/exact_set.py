"""An exact set of packages in one transaction: simulated first, stopped when apt would do anything else.

What is wanted comes from the set's own module (`cuda_packages`, `nvidia_packages`); this one asks apt and says what
will be done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rackwright.change import Change, Refusal, Run
from rackwright.operations import apt
from rackwright.operations.common import unreadable
from rackwright.operations.packages import broken_elsewhere
from rackwright.operations.pins import Pins
from rackwright.shell import LOCK_WAIT_S
from rackwright_facts._parse import debversion, dpkg, driver_set
from rackwright_facts._parse.apt_preferences import PreferencesFile
from rackwright_facts._parse.apt_simulate import Simulation, Step
from rackwright_facts._parse.apt_sources import SourceFile
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look
from rackwright_facts.packages import APT, INSTALLED, LISTS, Repository, simulate
from rackwright_facts.system import SPACE

_INSTALL = (
    "apt-get", "install", "-y", "-q", "--no-install-recommends", "--allow-downgrades",
    "--allow-change-held-packages", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S}",
    "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
)  # fmt: skip
_INSTALL_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Wanted:
    """What a set comes to on one node."""

    versions: Mapping[str, str]
    """Package -> exact version, of all of it."""
    incomplete: bool
    """Some of it is not there."""
    damaged: tuple[str, ...]
    """Packages that are there, and whose files are not as shipped: they are installed again."""
    lacking: tuple[str, ...]
    """What installed parts need of the distribution and do not have: apt does nothing before it is there."""
    obsolete: tuple[str, ...]
    """Installed packages that cannot stay beside it: they go."""
    pins: Pins
    offer: Repository | None
    """What the repository has; asked only when something is missing."""


def transaction(look: Look, repository: apt.Repository | None, wanted: Wanted) -> tuple[Change, ...] | Refusal:
    """Return the package changes of the one transaction, as apt simulated it, or why it must not run."""
    if not (wanted.incomplete or wanted.damaged or wanted.obsolete):
        return ()
    request, apt_files = apt.request_of(look, repository), look[APT].value
    if isinstance(request, Refusal) or apt_files is None:
        return request if isinstance(request, Refusal) else unreadable("apt's configuration", look[APT], "see /etc/apt")
    asked = _asked(wanted, look[INSTALLED].value or {})
    install = (*(f"{name}={wanted.versions[name]}" for name in asked), *wanted.lacking)
    configuration = apt.edited(apt_files, wanted.pins.files_after(look, repository, wanted.versions))
    simulation = look[
        simulate(
            request,
            sources=_contents(configuration.sources, leave_out=(repository.source,) if repository else ()),
            preferences=_contents(configuration.preferences),
            install=install,
            purge=wanted.obsolete,
            reinstall=bool(wanted.damaged),
            refresh_all=not apt.has_lists(look[LISTS].value or frozenset()),
        )
    ]
    if not simulation.is_ok or simulation.value is None:
        return unreadable("what apt would do", simulation, "see whether the node reaches its package sources")
    installed = look[INSTALLED].value or {}
    wrong = _unasked(simulation.value, wanted, installed) or _too_big(look, simulation.value, wanted.offer)
    if wrong is not None:
        return wrong
    return _moves(simulation.value, install, wanted, installed)


def _asked(wanted: Wanted, installed: Mapping[str, Package]) -> tuple[str, ...]:
    """Return what apt is asked for: the set, or where parts have to be installed again, what is not in order."""
    if not wanted.damaged:
        return tuple(sorted(wanted.versions))
    sound = {name for name in installed if installed[name].installed and name not in wanted.damaged}
    return tuple(
        name for name, exact in sorted(wanted.versions.items()) if name not in sound or installed[name].version != exact
    )


def _unasked(simulation: Simulation, wanted: Wanted, installed: Mapping[str, Package]) -> Refusal | None:
    """Return the refusal when apt would not do exactly what was asked."""
    if simulation.errors:
        broken = tuple(re.findall(r"package (\S+) needs to be reinstalled", " ".join(simulation.errors)))
        if broken:
            return broken_elsewhere(broken)
        return Refusal(
            what="apt finds no way to install the set",
            where="; ".join(simulation.errors[:4]),
            fix="run `apt-get -f install` or see which package is in the way; nothing was changed",
        )
    said: list[str] = []
    beside = driver_set.beside(wanted.versions, {step.name: step.new for step in simulation.installs})
    for step in simulation.installs:
        exact = wanted.versions.get(step.name)
        if exact is not None and step.new != exact:
            said.append(f"{step.name} {step.new} instead of {exact}")
        elif exact is None and step.old not in (None, step.new):
            said.append(f"{step.name} moved from {step.old} to {step.new}")
        elif exact is None and driver_set.is_driver(step.name, step.new) and step.name not in beside:
            said.append(f"the driver package {step.name} {step.new} installed")
    said += [f"{step.name} removed" for step in simulation.removals if step.name not in wanted.obsolete]
    done = {step.name for step in simulation.installs}
    said += [
        f"{name} left at {installed[name].version}"
        for name, exact in wanted.versions.items()
        if name not in done and name in installed and installed[name].version != exact
    ]
    if not said:
        return None
    return Refusal(
        what=f"apt would do more than was asked: {'; '.join(said[:6])}{' ...' if len(said) > 6 else ''}",
        where="apt-get -s install " + " ".join(f"{n}={v}" for n, v in sorted(wanted.versions.items())[:3]) + " ...",
        fix="see which other package or pin wants that (apt-cache policy NAME); remove it, or pin it, and plan again",
    )


def _too_big(look: Look, simulation: Simulation, offer: Repository | None) -> Refusal | None:
    space = look[SPACE].value or {}
    sizes = {(package.name, package.version): package for package in (offer.packages if offer else ())}
    new = [sizes[step.name, step.new] for step in simulation.installs if (step.name, step.new) in sizes]
    needed: dict[str, int] = {}
    places = (
        (
            "/usr/local" if "/usr/local" in space else "/usr",
            sum(package.installed_size_kib for package in new),
        ),
        ("/var/cache/apt", sum(package.size for package in new) // 1024),
    )
    for path, kib in places:
        if path in space:
            needed[space[path].mount] = needed.get(space[path].mount, 0) + kib
    for path, _ in places:
        if path in space and needed[space[path].mount] > space[path].available_kib:
            return Refusal(
                what=f"the set needs {needed[space[path].mount] // 1024 + 1} MiB on {space[path].mount}, "
                f"which has {space[path].available_kib // 1024} MiB",
                where=path,
                fix="make room there (`apt-get clean`, old toolkits), then run again",
            )
    return None


def _moves(
    simulation: Simulation, install: Sequence[str], wanted: Wanted, installed: Mapping[str, Package]
) -> tuple[Change, ...]:
    reinstall = ("--reinstall",) if wanted.damaged else ()
    commands = [
        Run((*_INSTALL, *reinstall, *install, *(f"{name}-" for name in wanted.obsolete)),
            packages=True, timeout_s=_INSTALL_TIMEOUT_S),
    ]  # fmt: skip
    if wanted.lacking:
        commands.append(Run(("apt-mark", "auto", *wanted.lacking), packages=True))
    kept = _left_behind(wanted, installed)
    if kept:
        # What the meta-packages brought (the driver above all) would be next to go at `apt autoremove`.
        commands.insert(0, Run(("apt-mark", "manual", *kept), packages=True))
    changes = [Change(f"package {step.name}", step.old, None) for step in simulation.removals]
    changes += [
        Change(f"package {step.name}", "damaged" if step.old == step.new else step.old, step.new)
        for step in simulation.installs
        if not _comes_before(step, installed)
    ]
    if not changes:
        return ()
    first = changes[0]
    return (Change(first.what, first.before, first.after, commands=tuple(commands)), *changes[1:])


def _comes_before(step: Step, installed: Mapping[str, Package]) -> bool:
    """Return whether an earlier operation will have brought this package: apt was asked before that."""
    package = installed.get(step.name)
    return step.old is None and package is not None and package.installed and package.version == step.new


def _left_behind(wanted: Wanted, installed: Mapping[str, Package]) -> list[str]:
    names = {
        relation.name
        for name in wanted.obsolete
        for group in dpkg.parse_depends(installed[name].depends)
        for relation in group
    }
    return sorted(
        name
        for name in names
        if name in installed and installed[name].installed
        and name not in wanted.obsolete and name not in wanted.versions
    )  # fmt: skip


def _contents(files: Iterable[SourceFile | PreferencesFile], leave_out: Sequence[str] = ()) -> dict[str, bytes]:
    """Return file name -> content, unique below one folder."""
    return {file.path.rpartition("/")[2]: file.content for file in files if file.path not in leave_out}


def after(look: Look, repository: apt.Repository | None, wanted: Wanted, moves: Sequence[Change]) -> Look:
    """Return the look as it will be: the set installed and held, its pins in place, what drags drivers gone."""
    installed = {
        name: package for name, package in (look[INSTALLED].value or {}).items() if name not in wanted.obsolete
    }
    for move in moves:
        name = move.what.removeprefix("package ")
        if move.after is not None and name not in wanted.versions:  # what the set needs of the distribution
            installed[name] = Package(name=name, version=move.after, architecture="", want="install", state="installed")
    for name, version in wanted.versions.items():
        known = installed.get(name)
        depends = next(
            (
                package.depends
                for package in (wanted.offer.packages if wanted.offer else ())
                if (package.name, package.version) == (name, version)
            ),
            known.depends if known else "",
        )
        installed[name] = Package(
            name=name, version=version, architecture="", want="hold", state="installed", depends=depends
        )
    return wanted.pins.after(look.having(INSTALLED, Reading.ok(installed)), repository, wanted.versions)


def from_distribution(
    look: Look, repository: apt.Repository | None, names: Sequence[str]
) -> tuple[Change, ...] | Refusal:
    """Return the changes that bring packages (`name` or `name=version`) of the distribution, as apt simulated them.

    What they need may be upgraded with them (a compiler takes the libraries of its own build), but nothing is removed,
    set back, or moved that is held, a kernel or a driver. `repository` is the vendor's, whose other entries are as they
    will be.
    """
    request, apt_files = apt.request_of(look, repository), look[APT].value
    if isinstance(request, Refusal) or apt_files is None:
        return request if isinstance(request, Refusal) else unreadable("apt's configuration", look[APT], "see /etc/apt")
    simulation = look[
        simulate(
            request,
            sources=_contents(apt_files.sources, leave_out=(repository.source,) if repository else ()),
            preferences=_contents(apt_files.preferences),
            install=names,
            refresh_all=not apt.has_lists(look[LISTS].value or frozenset()),
        )
    ]
    if not simulation.is_ok or simulation.value is None:
        return unreadable("what apt would do", simulation, "see whether the node reaches its package sources")
    installed = look[INSTALLED].value or {}
    moved = [step.name for step in simulation.value.removals]
    moved += [step.name for step in simulation.value.installs if not _may_move(step, installed)]
    if simulation.value.errors or moved:
        said = "; ".join(simulation.value.errors[:3]) or f"apt would move {', '.join(moved[:4])}"
        return Refusal(
            what=f"{', '.join(name.partition('=')[0] for name in names)} cannot be had: {said}",
            where="apt-get -s install " + " ".join(names),
            fix="give the node a package source that still has them (a mirror or snapshot of its release), or move it "
            "to a newer kernel and reboot it first; rackwright never upgrades a kernel by itself",
        )
    changes = [Change(f"package {step.name}", step.old, step.new) for step in simulation.value.installs]
    if not changes:
        return ()
    command = Run((*_INSTALL, *names), packages=True, timeout_s=_INSTALL_TIMEOUT_S)
    return (Change(changes[0].what, changes[0].before, changes[0].after, commands=(command,)), *changes[1:])


def _may_move(step: Step, installed: Mapping[str, Package]) -> bool:
    """Return whether a package may come, or move on, for the sake of another one."""
    if step.old is None:
        return True
    package = installed.get(step.name)
    is_kept = (package is not None and package.held) or step.name.startswith("linux-image-")
    return not is_kept and not driver_set.is_part(step.name) and debversion.compare(step.new, step.old) > 0
