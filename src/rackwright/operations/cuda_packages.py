"""The package side of a CUDA toolkit: which exact set is wanted, and what apt would do for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rackwright.change import Change, Refusal, Run
from rackwright.operations import apt, cuda_pins
from rackwright.operations.common import unreadable, written
from rackwright.operations.packages import broken_elsewhere
from rackwright.shell import LOCK_WAIT_S
from rackwright_facts._parse import cuda_set, debversion, dpkg
from rackwright_facts._parse.apt_preferences import PreferencesFile
from rackwright_facts._parse.apt_simulate import Simulation
from rackwright_facts._parse.apt_sources import SourceFile
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.model import Reading
from rackwright_facts.cuda import proof as proof_of
from rackwright_facts.look import Look
from rackwright_facts.packages import APT, INSTALLED, LISTS, Repository, damaged, index, owners, simulate
from rackwright_facts.system import SPACE

# Meta-packages that would drag in a driver of their own choice: cuda, cuda-12-2, cuda-runtime-12-2, ...
_DRAGS_DRIVER = re.compile(r"^cuda(-\d+(-\d+)?)?$|^cuda-(runtime|demo-suite)-\d+-\d+$")
_DRIVER = re.compile(r"^(cuda-drivers|nvidia-|libnvidia-)")

_INSTALL = (
    "apt-get", "install", "-y", "-q", "--no-install-recommends", "--allow-downgrades",
    "--allow-change-held-packages", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S}",
    "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
)  # fmt: skip
_INSTALL_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Wanted:
    """What the toolkits of a node come to."""

    versions: Mapping[str, str]
    """Package -> exact version, of all declared toolkits."""
    incomplete: bool
    """Some of it is not there."""
    damaged: tuple[str, ...]
    """Packages that are there, and whose files are not as shipped: they are installed again."""
    lacking: tuple[str, ...]
    """What installed parts need of the distribution and do not have: apt does nothing before it is there."""
    obsolete: tuple[str, ...]
    """Installed packages that would drag in a driver: they go."""
    offer: Repository | None
    """What the repository has; asked only when something is missing."""


def want(look: Look, repository: apt.Repository, declared: Sequence[str]) -> Wanted | Refusal:
    """Return the exact set for the `declared` versions ("12.2" or "12.2.2").

    A whole set that is there satisfies an open version; a set that is not whole is restored to the version that
    our pins recorded, or else resolved to the newest that the repository has.
    """
    reading = look[INSTALLED]
    if not reading.is_ok or reading.value is None:
        return unreadable("which packages are installed", reading, "see `dpkg --audit`")
    installed = reading.value
    recorded = cuda_pins.recorded(look)
    whole = {version: _whole(installed, version, recorded) for version in declared}
    versions: dict[str, str] = {}
    for packages in whole.values():
        _add(versions, packages or {})
    offer: Repository | None = None
    missing = [version for version, packages in whole.items() if packages is None]
    if missing:
        offered = _offer(look, repository, declared)
        if isinstance(offered, Refusal):
            return offered
        offer = offered
        for version in missing:
            resolved = _resolve(offer, version, installed, recorded, repository)
            if isinstance(resolved, Refusal):
                return resolved
            _add(versions, resolved)
    lacking = tuple(sorted({name for version in declared for name in cuda_set.lacking(installed, version)}))
    return Wanted(
        versions=versions,
        incomplete=bool(missing),
        lacking=lacking,
        damaged=_half_installed(installed, (*versions, *lacking)) if missing else _damaged(look, whole),
        obsolete=tuple(
            sorted(name for name, package in installed.items() if _DRAGS_DRIVER.match(name) and package.installed)
        ),
        offer=offer,
    )


def _whole(installed: Mapping[str, Package], version: str, recorded: Mapping[str, str]) -> dict[str, str] | None:
    """Return the installed set, if it is whole and what we recorded of this very release.

    Some parts are asked for without a version: of these only the record tells what belongs to the set.
    """
    packages = cuda_set.installed_set(installed, version)
    meta = cuda_set.toolkit(version)
    if packages is None or recorded.get(meta) != packages[meta]:
        return packages
    return packages if all(recorded.get(name, exact) == exact for name, exact in packages.items()) else None


def _add(versions: dict[str, str], more: Mapping[str, str]) -> None:
    for name, version in more.items():
        if name not in versions or debversion.compare(versions[name], version) < 0:
            versions[name] = version


def _offer(look: Look, repository: apt.Repository, declared: Sequence[str]) -> Repository | Refusal:
    key = apt.key_of(look, repository)
    if isinstance(key, Refusal):
        return key
    suffixes = sorted({cuda_set.suffix(version) for version in declared})
    names = (*(f".*-{suffix}" for suffix in suffixes), "nsight-.*", "cuda-toolkit-.*")
    reading = look[index(repository.request(key), names)]
    if reading.is_ok and reading.value is not None:
        return reading.value
    return _not_had(repository, reading.reason or reading.status)


# What apt says (apt-pkg/deb/debmetaindex.cc, methods/gpgv.cc) -> what it means, and the cure; the first that fits.
_NOT_HAD = (
    (
        r"NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|BADSIG|REVKEYSIG|ERRSIG|couldn't be verified",
        "the repository is not signed by the declared key",
        "declared is {fingerprint}; ask the vendor or the mirror's owner, and never trust it unsigned",
    ),
    (
        r"NOSPLIT|Clearsigned file isn't valid|NODATA",
        "what answers there is no repository, but a page",
        "see that address in a browser: a proxy's log-in, or a mirror that has no such system",
    ),
    (
        r"is expired|not valid yet",
        "the repository is out of date",
        "see the mirror's last synchronisation, and the clock",
    ),
    (r"is not signed", "the repository is not signed", "ask the mirror's owner, and never trust it unsigned"),
    (
        r"",
        "the repository cannot be had",
        "see whether the node reaches it (proxy, firewall, name), or declare a mirror in sources.cuda",
    ),
)


def _not_had(repository: apt.Repository, said: str) -> Refusal:
    pattern, what, fix = next(one for one in _NOT_HAD if re.search(one[0], said))
    lines = [line for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if re.search(pattern, line)), lines[-1] if lines else "")
    where = f"{repository.uri} (key {repository.keyring}): {telling.strip()}"
    return Refusal(what, where, fix.format(fingerprint=repository.fingerprint))


def _resolve(
    offer: Repository,
    version: str,
    installed: Mapping[str, Package],
    pinned: Mapping[str, str],
    repository: apt.Repository,
) -> dict[str, str] | Refusal:
    meta = cuda_set.toolkit(version)
    offered = [
        package.version
        for package in offer.packages
        if package.name == meta and cuda_set.is_release(package.version, version)
    ]
    if not offered:
        others = ", ".join(cuda_set.available_releases(offer.packages)) or "no toolkit at all"
        return Refusal(
            what=f"CUDA {version} is not in this repository, which has {others}",
            where=repository.uri,
            fix="declare one of those in cuda.versions for this node, or put a system on it whose repository has it "
            "(CUDA 12.2: Ubuntu 22.04), or run CUDA in a container",
        )
    recorded = pinned.get(meta)
    chosen = recorded if recorded in offered else max(offered, key=debversion.key)
    try:
        return cuda_set.resolve(offer.packages, meta, chosen, installed)
    except ValueError as error:
        return Refusal(
            what=f"{meta} {chosen} is not whole in this repository: {error}",
            where=repository.uri,
            fix="the mirror may be half synchronised: wait for it, or declare another patch level",
        )


def _half_installed(installed: Mapping[str, Package], names: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that dpkg was unpacking when it was stopped; apt takes them for installed."""
    return tuple(sorted(name for name in names if name in installed and installed[name].reinst_required))


def _damaged(look: Look, whole: Mapping[str, Mapping[str, str] | None]) -> tuple[str, ...]:
    """Return the packages of those toolkits that do not work and whose files are not as they were shipped."""
    names: set[str] = set()
    for version, packages in whole.items():
        proof = look[proof_of(".".join(version.split(".")[:2]))]
        works = proof.is_ok and proof.value is not None and proof.value.mode != "failed"
        if works or proof.is_unknown or proof.status == "timeout" or not packages:
            continue
        verified = look[damaged(tuple(sorted(packages)))].value
        if verified is not None and verified.changed:
            names |= set((look[owners(verified.changed)].value or {}).values()) & set(packages)
    return tuple(sorted(names))


def transaction(look: Look, repository: apt.Repository, wanted: Wanted) -> tuple[Change, ...] | Refusal:
    """Return the package changes of the one transaction, as apt simulated it, or why it must not run."""
    if not (wanted.incomplete or wanted.damaged or wanted.obsolete):
        return ()
    key, apt_files = apt.key_of(look, repository), look[APT].value
    if isinstance(key, Refusal) or apt_files is None:
        return key if isinstance(key, Refusal) else unreadable("apt's configuration", look[APT], "see /etc/apt")
    asked = _asked(wanted, look[INSTALLED].value or {})
    install = (*(f"{name}={wanted.versions[name]}" for name in asked), *wanted.lacking)
    configuration = apt.edited(apt_files, cuda_pins.files_after(look, repository, wanted.versions))
    simulation = look[
        simulate(
            repository.request(key),
            sources=_contents(configuration.sources, leave_out=(repository.source,)),
            preferences=_contents(configuration.preferences),
            install=install,
            purge=wanted.obsolete,
            reinstall=bool(wanted.damaged),
            refresh_all=not apt.has_lists(look[LISTS].value or frozenset()),
        )
    ]
    if not simulation.is_ok or simulation.value is None:
        return unreadable("what apt would do", simulation, f"see whether the node reaches {repository.uri}")
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
    for step in simulation.installs:
        exact = wanted.versions.get(step.name)
        if exact is not None and step.new != exact:
            said.append(f"{step.name} {step.new} instead of {exact}")
        elif exact is None and step.old not in (None, step.new):
            said.append(f"{step.name} moved from {step.old} to {step.new}")
        elif exact is None and _DRIVER.match(step.name):
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
    ]
    if not changes:
        return ()
    first = changes[0]
    return (Change(first.what, first.before, first.after, commands=tuple(commands)), *changes[1:])


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


def after(look: Look, repository: apt.Repository, wanted: Wanted, moves: Sequence[Change]) -> Look:
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
    contents = cuda_pins.files_after(look, repository, wanted.versions)
    configuration = look[APT].value
    result = look.having(INSTALLED, Reading.ok(installed)).having(
        cuda_pins.FILE, Reading.ok(written({}, {cuda_pins.PATH: contents[cuda_pins.PATH]}))
    )
    return result.having(APT, Reading.ok(apt.edited(configuration, contents))) if configuration else result
