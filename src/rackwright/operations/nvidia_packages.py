"""The package side of the NVIDIA driver: which module a node's GPUs take, and which exact set is wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rackwright import sources
from rackwright.change import Refusal
from rackwright.operations import apt, distribution
from rackwright.operations.common import unreadable
from rackwright.operations.exact_set import Wanted
from rackwright.operations.pins import Pins
from rackwright_facts._parse import cuda_set, debversion, driver_set
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.nvidia_driver import Flavour
from rackwright_facts._parse.nvidia_products import generation, is_before
from rackwright_facts._parse.pci import PciDevice
from rackwright_facts.look import Look
from rackwright_facts.packages import INSTALLED, Repository, index

PINS = Pins("driver", "the NVIDIA driver")
_NAMES = ("nvidia-.*", "libnvidia-.*", "libcuda1", "libnv.*", "firmware-nvidia-.*", "xserver-xorg-video-nvidia.*",
          "cuda-drivers.*", "lib(egl|gles|gl|glx)-nvidia.*", "libgl.*-nvidia.*")  # fmt: skip
_RULES = "nvidia driver documentation, kernel modules: open from Turing on, Blackwell open only, Volta ends with 580"


def flavour(devices: Sequence[PciDevice], branch: int, declared: str) -> Flavour | Refusal:
    """Return which kernel module the node's GPUs take at this branch, or why none does."""
    gpus = [device for device in devices if device.is_gpu]
    old = [gpu for gpu in gpus if is_before(generation(gpu.device_id), "turing")]
    new = [gpu for gpu in gpus if generation(gpu.device_id) == "blackwell"]
    # 515 to 544: "only ready for use on Data Center GPUs" (open-gpu-kernel-modules; lifted in 545.23.06).
    desktop = [gpu for gpu in gpus if gpu.is_display and branch < 545]
    if old and new:
        return _contradiction(f"{_names(old)} need the proprietary module, {_names(new)} the open one")
    if old and branch > 580:
        return _contradiction(
            f"branch {branch} does not drive {_names(old)}: Volta and older end with 580", "branch 580"
        )
    if new and branch < 570:
        return _contradiction(f"branch {branch} does not drive {_names(new)}", "a branch of 570 or newer")
    # Without a GPU to judge by, the vendor's default of the branch: open from 560 on.
    if old or (desktop and declared != "open") or branch < 515 or (not gpus and declared == "auto" and branch < 560):
        fitting: Flavour = "proprietary"
    else:
        fitting = "proprietary" if declared == "proprietary" and not new else "open"
    if declared == "open" and (old or desktop or branch < 515):
        return _contradiction(f"the open module does not drive {_names(old or desktop or gpus)} at branch {branch}")
    if declared == "proprietary" and new:
        return _contradiction(f"the proprietary module does not drive {_names(new)}")
    return fitting


def _names(devices: Sequence[PciDevice]) -> str:
    return ", ".join(f"{device.address} (10de:{device.device_id:04x})" for device in devices[:3]) or "this node's GPUs"


def _contradiction(what: str, cure: str = "driver.kernel_module: auto") -> Refusal:
    return Refusal(what, _RULES, f"declare {cure} for this node")


def want(
    look: Look,
    repository: apt.Repository | None,
    *,
    branch: int,
    version: str,
    kind: Flavour,
    debian: bool,
    tools: Sequence[str],
) -> Wanted | Refusal:
    """Return the exact set for a branch and version ("latest-in-branch" or "580.95.05").

    A whole set of the branch satisfies an open version; a broken one is restored to what our pins recorded.
    """
    reading = look[INSTALLED]
    if not reading.is_ok or reading.value is None:
        return unreadable("which packages are installed", reading, "see `dpkg --audit`")
    installed = reading.value
    strangers = _strangers(
        installed, debian=debian, own="debian" if debian else "ubuntu", vendor=repository is not None
    )
    if strangers is not None:
        return strangers
    there = driver_set.installed_parts(installed)
    more = [stem for stem in driver_set.TOOLS if any(re.fullmatch(rf"{stem}(-\d+)?", name) for name in there)]
    wanted_tools = sorted({*tools, *more})
    recorded = PINS.recorded(look)
    whole = driver_set.installed_set(installed, kind, debian=debian, tools=wanted_tools)
    if whole is not None and not _fits(whole, branch, version, recorded, installed):
        whole = None
    offer = None
    if whole is None:
        request = apt.request_of(look, repository)
        if isinstance(request, Refusal):
            return request
        sources_ = None if repository is not None else distribution.with_components(look)
        answer = look[index(request, _NAMES, sources=sources_)]
        if not answer.is_ok or answer.value is None:
            where = repository.uri if repository else "its distribution's sources"
            return unreadable("what the repository has", answer, f"see whether the node reaches {where}")
        offer = answer.value
        resolved = _resolve(
            driver_set.Offer(offer.packages), repository, branch, version, kind, debian, wanted_tools, recorded
        )
        if isinstance(resolved, Refusal):
            return resolved
        versions = resolved
    else:
        versions = whole
    if repository is None and debian and driver_set.PERSISTENCED not in versions:
        versions = {**versions, **_persistenced(installed, offer)}
    obsolete = {
        name
        for name, package in installed.items()
        if package.installed and name not in versions
        and (driver_set.is_driver(name, package.version) or driver_set.is_pinning(name) or cuda_set.drags_driver(name))
    }  # fmt: skip
    broken = tuple(sorted(name for name in versions if name in installed and installed[name].reinst_required))
    return Wanted(
        versions=versions, incomplete=whole is None, damaged=broken, lacking=(), obsolete=tuple(sorted(obsolete)),
        pins=PINS, offer=offer,
    )  # fmt: skip


def _persistenced(installed: Mapping[str, Package], offer: Repository | None) -> dict[str, str]:
    """Return Debian's persistence daemon, which has a version of its own."""
    name = driver_set.PERSISTENCED
    if name in installed and installed[name].installed:
        return {name: installed[name].version}
    offered = [one.version for one in (offer.packages if offer else ()) if one.name == name]
    return {name: max(offered, key=debversion.key)} if offered else {}


def _fits(
    whole: Mapping[str, str], branch: int, version: str, recorded: Mapping[str, str], installed: Mapping[str, Package]
) -> bool:  # fmt: skip
    """Return whether an installed set is what is declared.

    For an open version that is any whole set of the branch. One that is not held, though, was moved by somebody since
    our pins recorded another: that one is restored.
    """
    upstream = debversion.upstream(next(iter(whole.values())))
    if driver_set.branch_of(upstream) != branch:
        return False
    if version != "latest-in-branch":
        return upstream == version
    if all(installed[name].held for name in whole):
        return True
    former = {debversion.upstream(exact) for name, exact in recorded.items() if name in whole}
    return not former or former == {upstream} or driver_set.branch_of(next(iter(former))) != branch


def _resolve(
    offer: driver_set.Offer, repository: apt.Repository | None, branch: int, version: str, kind: Flavour, debian: bool,
    tools: Sequence[str], recorded: Mapping[str, str],
) -> dict[str, str] | Refusal:  # fmt: skip
    has = offer.upstreams(branch, kind, debian=debian)
    if version == "latest-in-branch":
        former = {debversion.upstream(exact) for exact in recorded.values()}
        chosen = next((one for one in has if one in former), has[-1] if has else "")
    else:
        chosen = version if version in has else ""
    if not chosen:
        others = ", ".join(map(str, offer.branches(kind, debian=debian))) or "no driver at all"
        shown = f"version {version}" if version != "latest-in-branch" else f"branch {branch}"
        versions = f" ({', '.join(has)} of that branch)" if has else ""
        return Refusal(
            what=f"no whole {kind} driver of {shown} is in this repository, which has {others}{versions}",
            where=repository.uri if repository else "the distribution's sources",
            fix="declare one of those in driver.branch and driver.version; packages that only bring another branch "
            "(transitional ones) are no driver",
        )
    try:
        return offer.resolve(chosen, kind, debian=debian, tools=tools)
    except ValueError as error:
        return Refusal(
            what=f"the driver {chosen} is not whole in this repository: {error}",
            where=repository.uri if repository else "the distribution's sources",
            fix="the mirror may be half synchronised: wait for it, or declare another version",
        )


def _strangers(installed: Mapping[str, Package], *, debian: bool, own: str, vendor: bool) -> Refusal | None:
    """Return the refusal when the node has a driver's packages that the declared origin did not bring."""
    wanted = "nvidia" if vendor else own
    foreign = {
        name: package.version
        for name, package in driver_set.installed_parts(installed).items()
        if sources.driver_origin(package.maintainer) not in ("", wanted)
        or (not debian and driver_set.is_debian_name(name))
    }
    if not foreign:
        return None
    first = ", ".join(f"{name} {version}" for name, version in sorted(foreign.items())[:3])
    other = "distribution" if vendor else "nvidia"
    return Refusal(
        what=f"a driver from another origin is installed: {first}{' ...' if len(foreign) > 3 else ''}",
        where="dpkg-query -W '*nvidia*'",
        fix=f"apt-get purge {' '.join(sorted(foreign))} (its GPUs must be idle), then run again: two origins are never "
        f"mixed; or declare driver.source: {other} to keep that one",
    )
