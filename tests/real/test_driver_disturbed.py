"""After each kind of disturbance of the driver one run restores the very same state, and the next changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from driver_faults import FAULTS, VERSION, drawn
from drivers import declared, is_one, with_driver
from faults import Fault
from harness import Rig
from machine import MARKS
from snapshot import Snapshot

pytestmark = MARKS
HOST = "gpu02"


@pytest.fixture(scope="module")
def alone(gpu_rig: Rig) -> Iterator[Rig]:
    """Return the lab with a driver declared and nothing else: the toolkit has its own faults."""
    with gpu_rig.settings_of("driver-disturbed", declared({"branch": 580}, allow_reboot=True)):
        yield gpu_rig


@pytest.fixture(scope="module")
def reference(alone: Rig) -> Snapshot:
    """Return what a host is that was never struck."""
    with_driver(alone, VERSION, HOST)
    return alone.snapshot(HOST)


@pytest.mark.soak(sample=5)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_one_run_restores_the_driver(
    alone: Rig, reference: Snapshot, seed: str, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    if reference.difference(alone.snapshot(HOST)):
        alone.put_back(HOST, VERSION)  # the test before this one failed, or its fault has left something
    assert not reference.difference(alone.snapshot(HOST))
    script = drawn(fault, seed)
    alone.sh(HOST, script, timeout=300)
    if fault.name.endswith("-reboot"):
        alone.lab.reboot(HOST)
    struck = reference.difference(alone.snapshot(HOST))
    record_property("struck", sorted(struck))
    assert struck or fault.name == "nouveau-in-the-initramfs", f"{script!r} struck nothing"
    _, mended = alone.converge(HOST)
    left = reference.difference(mended)
    assert set(left) == set(fault.leaves), left
    is_one(alone, HOST, VERSION, 8, "Dual MIT/GPL")
    alone.nothing_to_change(HOST)
