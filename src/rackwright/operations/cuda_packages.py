"""The package side of a CUDA toolkit: which exact set is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rackwright.change import Refusal
from rackwright.operations import apt
from rackwright.operations.common import unreadable
from rackwright.operations.exact_set import Wanted
from rackwright.operations.pins import Pins
from rackwright_facts._parse import cuda_set, debversion
from rackwright_facts._parse.dpkg import Package
from rackwright_facts.cuda import proof as proof_of
from rackwright_facts.look import Look
from rackwright_facts.packages import INSTALLED, Repository, damaged, index, owners

PINS = Pins("cuda", "the CUDA toolkit")


def want(look: Look, repository: apt.Repository, declared: Sequence[str]) -> Wanted | Refusal:
    """Return the exact set for the `declared` versions ("12.2" or "12.2.2").

    A whole set that is there satisfies an open version; a set that is not whole is restored to the version that
    our pins recorded, or else resolved to the newest that the repository has.
    """
    reading = look[INSTALLED]
    if not reading.is_ok or reading.value is None:
        return unreadable("which packages are installed", reading, "see `dpkg --audit`")
    installed = reading.value
    recorded = PINS.recorded(look)
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
            sorted(name for name, package in installed.items() if package.installed and cuda_set.drags_driver(name))
        ),
        pins=PINS,
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
