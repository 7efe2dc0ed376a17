"""One lab for all tests on real hosts of a pytest process, and gone with it."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator, Sequence

import pytest
from harness import Rig

from rackwright.lab import HostSpec, Lab
from rackwright.lab.system import Process

HOSTS = (
    HostSpec("gpu01"), HostSpec("gpu02"), HostSpec("gpu03"), HostSpec("gpu04", "ubuntu-24.04"),
    HostSpec("gpu05", "debian-12"),
)  # fmt: skip


# The workers of one run share the name of that run, so that all of them draw alike.
SEED = os.environ.get("RACKWRIGHT_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(4)


@pytest.fixture(scope="session")
def seed() -> str:
    """Return the seed of all random choices; $RACKWRIGHT_SEED repeats those of an earlier run."""
    return SEED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of each group of trials that is marked `soak(sample=N)`; all of them for a soak."""
    if os.environ.get("RACKWRIGHT_SOAK") or "soak" in str(config.getoption("markexpr")):
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("soak")
        if mark is not None and "sample" in mark.kwargs:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: list[pytest.Item] = []
    for name, group in groups.items():
        size = group[0].get_closest_marker("soak").kwargs["sample"]  # type: ignore[union-attr]
        if len(group) > size:  # one that was named on the command line is not drawn for
            kept = random.Random(f"{SEED} {name}").sample(group, size)
            left_out += [item for item in group if item not in kept]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what repeats this run's random choices."""
    terminalreporter.write_line(f"real hosts: RACKWRIGHT_SEED={SEED}; RACKWRIGHT_SOAK=1 runs all trials")


# One kind of machine each; the last two are where a name, a flavour or an origin of packages differs.
GPU_HOSTS = (
    HostSpec("gpu01", gpus="h100x8"), HostSpec("gpu02", gpus="h100x8"), HostSpec("gpu03", gpus="rtx4090x2"),
    HostSpec("gpu04", gpus="v100x8"), HostSpec("gpu05", "ubuntu-24.04", gpus="b200x8"),
    HostSpec("gpu06", "debian-12", gpus="a100x4"), HostSpec("gpu07", "debian-12"),
)  # fmt: skip


def _lab(name: str, hosts: Sequence[HostSpec], *, up: int) -> Iterator[Rig]:
    """Yield a lab with these hosts, whose disks are kept as `fresh`; the first `up` of them are running."""
    lab = Lab(f"t-{name}-{os.getpid()}")
    owner = Process.of(os.getpid())
    assert owner is not None
    try:
        lab.up(hosts[:up], owner=owner)
        # The disks that are kept lie beside the lab's own: a copy is then a matter of one filesystem.
        folder = lab.folder / "kept"
        folder.mkdir()
        rig = Rig(lab, folder)
        for index, host in enumerate(hosts):
            # Others come up one by one: many at a time are more than a machine's inotify instances allow.
            if index >= up:
                lab.up([host], owner=owner)
            rig.keep(host.name, "fresh")
            if index >= up:
                lab.stop(host.name)
        yield rig
    finally:
        lab.down(purge=True)


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return the lab of hosts without GPUs."""
    yield from _lab("cuda", HOSTS, up=len(HOSTS))


@pytest.fixture(scope="session")
def gpu_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return the lab of hosts with GPUs; those after the second are borrowed (`Rig.borrowed`) by who needs them."""
    yield from _lab("gpu", GPU_HOSTS, up=2)
