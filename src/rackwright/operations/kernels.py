"""What a kernel module needs of the distribution: headers and the very compiler of each kernel, and dkms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackwright.change import Decision, Refusal
from rackwright.operations import exact_set
from rackwright.operations.common import unreadable
from rackwright.operations.nvidia import BASE, Driver, parts_version, repository_for, seen
from rackwright.runtime import planned_operation
from rackwright.sources import CudaSource
from rackwright_facts._parse import driver_set, kernel_packages
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_driver import Kernel, Module
from rackwright_facts.look import Look, Section
from rackwright_facts.nvidia import DRIVER
from rackwright_facts.packages import INSTALLED


def _prerequisites_reads(*, driver: Driver | None, origin: CudaSource) -> tuple[Section[Any], ...]:
    return BASE if driver else ()


@planned_operation(reads=_prerequisites_reads)
def prerequisites(look: Look, *, driver: Driver | None, origin: CudaSource) -> Decision:
    """Headers and the very compiler of the running kernel and of the next one, dkms; headers that follow kernels."""
    if driver is None:
        return Decision(look)
    have = seen(look)
    repository = repository_for(look, driver, origin)
    for refusal in (have, repository):
        if isinstance(refusal, Refusal):
            return Decision(look, refusals=(refusal,))
    assert not isinstance(have, Refusal) and not isinstance(repository, Refusal)
    state, _ = have
    if not look[INSTALLED].is_ok:
        return Decision(look, refusals=(unreadable("the packages", look[INSTALLED], "see `dpkg --audit`"),))
    installed = look[INSTALLED].value or {}
    needed = ["dkms"] if not _is_there(installed, "dkms") else []
    for release in dict.fromkeys((state.running, state.next_boot)):
        kernel = state.kernel(release)
        if not kernel.headers:
            needed.append(f"linux-headers-{release}")
        if kernel.compiler and not kernel.compiler_installed:
            needed.append(kernel.compiler)
    needed += [
        f"{meta}={version}"
        for meta, version in kernel_packages.headers_metas(installed).items()
        if not _is_there(installed, meta)
    ]
    if not needed:
        return Decision(look)
    changes = exact_set.from_distribution(look, repository, tuple(dict.fromkeys(needed)))
    if isinstance(changes, Refusal):
        return Decision(look, refusals=(changes,))
    ready = [_with_headers(one, look) for one in state.kernels]
    added = {
        name: Package(name=name, version=change.after or "", architecture="", want="install", state="installed")
        for change in changes
        if (name := change.what.removeprefix("package "))
    }
    after = look.having(DRIVER, Reading.ok(state.model_copy(update={"kernels": tuple(ready)})))
    return Decision(after.having(INSTALLED, Reading.ok({**installed, **added})), changes)


def _with_headers(kernel: Kernel, look: Look) -> Kernel:
    """Return a kernel once its headers and compiler are there: dkms then builds what it has for it (its hook)."""
    version = parts_version(look)
    built = kernel.module
    if built is None and not kernel.headers and version is not None:
        built = Module(version=version, license=_license(look))
    return kernel.model_copy(update={"headers": True, "compiler_installed": True, "module": built})


def _license(look: Look) -> str:
    parts = driver_set.installed_parts(look[INSTALLED].value or {})
    is_open = any("dkms" in name and driver_set.flavour_of(name) == "open" for name in parts)
    return "Dual MIT/GPL" if is_open else "NVIDIA"


def _is_there(installed: Mapping[str, Package], name: str) -> bool:
    return name in installed and installed[name].installed
