"""After each kind of disturbance one run restores the very same state, and the next one has nothing to change."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from faults import FAULTS, Fault
from harness import Rig
from machine import MARKS
from snapshot import Snapshot

pytestmark = MARKS
HOST = "gpu02"


@pytest.fixture(scope="module")
def reference(rig: Rig) -> Snapshot:
    """Return what a host is that was never struck, and keep its disk."""
    rig.put_back(HOST, "fresh")
    rig.converge(HOST)
    rig.keep(HOST, "installed")
    return rig.snapshot(HOST)


@pytest.mark.soak(sample=14)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_one_run_restores_the_state(
    rig: Rig, reference: Snapshot, seed: str, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    if reference.difference(rig.snapshot(HOST)):
        rig.put_back(HOST, "installed")  # the test before this one failed, or its fault has left something
    assert not reference.difference(rig.snapshot(HOST))
    script = fault.script(random.Random(f"{seed} {fault.name}"))
    rig.sh(HOST, script)
    struck = reference.difference(rig.snapshot(HOST))
    record_property("struck", sorted(struck))
    assert struck, f"{script!r} struck nothing"
    _, mended = rig.converge(HOST)
    left = reference.difference(mended)
    assert set(left) == set(fault.leaves), left
    rig.nothing_to_change(HOST)
