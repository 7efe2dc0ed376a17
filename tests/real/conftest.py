"""One lab for all tests on real hosts of a pytest process, and gone with it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from harness import Rig

from rackwright.lab import HostSpec, Lab
from rackwright.lab.system import Process

HOSTS = (
    HostSpec("gpu01"), HostSpec("gpu02"), HostSpec("gpu03"), HostSpec("gpu04", "ubuntu-24.04"),
    HostSpec("gpu05", "debian-12"),
)  # fmt: skip


@pytest.fixture(scope="session")
def seed() -> int:
    """Return the seed of all random choices; $RACKWRIGHT_SEED repeats those of an earlier run."""
    return int(os.environ.get("RACKWRIGHT_SEED") or random.SystemRandom().randrange(10**6))


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return the lab with its hosts, all of them up, whose disks are kept as `fresh`."""
    lab = Lab(f"t-cuda-{os.getpid()}")
    owner = Process.of(os.getpid())
    assert owner is not None
    lab.up(HOSTS, owner=owner)
    try:
        # The disks that are kept lie beside the lab's own: a copy is then a matter of one filesystem.
        folder = lab.folder / "kept"
        folder.mkdir()
        rig = Rig(lab, folder)
        for host in HOSTS:
            rig.keep(host.name, "fresh")
        yield rig
    finally:
        lab.down(purge=True)
