"""A run over driver and reboot that is killed, loses power or its cable: one more run gives the clean state."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from subprocess import Popen, TimeoutExpired
from time import monotonic

import pytest
from drivers import declared, is_one, with_driver
from harness import Rig, wait_for
from machine import MARKS
from snapshot import Snapshot

pytestmark = MARKS
HOST = "gpu01"
_OLD = "535.183.01"
# A host that does not come back from its reboot is given up before a test's own patience ends.
_NEW = declared({"branch": 580}, allow_reboot=True, reboot_timeout_s=90)
_PATIENCE_S = 300


@pytest.fixture(scope="module")
def moving(gpu_rig: Rig) -> Iterator[tuple[Rig, Snapshot, float]]:
    """Return the lab whose host is to go from 535 to 580, what a run leaves that nothing interrupts, and its length."""
    rig = gpu_rig
    with_driver(rig, _OLD, HOST)
    with rig.settings_of("interrupted-new", _NEW):
        begun = monotonic()
        run = rig.pyinfra(HOST)
        assert run.status == 0, run.said
        yield rig, rig.snapshot(HOST), monotonic() - begun


def _strike(rig: Rig, after: float, blow: object) -> list[str]:
    """Begin the move from 535, strike after so many seconds, and return what differs then from before.

    A run that was quicker, and a blow that struck nothing yet, do not count: they are tried again.
    """
    for _ in range(5):
        rig.put_back(HOST, _OLD)
        old = rig.snapshot(HOST)
        child = rig.start(rig.pyinfra_argv(HOST))
        try:
            child.wait(after)
            after *= 0.85
            continue
        except TimeoutExpired:
            blow(child)  # type: ignore[operator]
        rig.finish(child, _PATIENCE_S)
        try:
            struck = sorted(old.difference(rig.snapshot(HOST)))
        except FileNotFoundError:
            return ["dpkg is at work"]  # what the run has begun goes on, and moves files meanwhile
        if struck:
            return struck
        after *= 1.2
    raise AssertionError("nothing was struck")


def _is_as_after_a_clean_run(rig: Rig, clean: Snapshot, struck: list[str]) -> None:
    run = rig.pyinfra(HOST, timeout=600)
    assert run.status == 0, f"{struck[:5]}\n{run.said}"
    left = clean.difference(rig.snapshot(HOST))
    assert not left, f"{struck[:5]}\n{left}"
    is_one(rig, HOST, "580.126.16", 8, "Dual MIT/GPL")
    rig.nothing_to_change(HOST)


@pytest.mark.soak(sample=2)
@pytest.mark.parametrize("moment", range(10))
def test_killed(moving: tuple[Rig, Snapshot, float], seed: str, moment: int) -> None:
    rig, clean, duration = moving
    # What comes before the first command only looks: the moments are those of the rest.
    share = 0.45 + 0.5 * (moment + random.Random(f"{seed} driver {moment}").random()) / 10
    struck = _strike(rig, duration * share, lambda child: os.killpg(child.pid, signal.SIGKILL))
    _is_as_after_a_clean_run(rig, clean, struck)


@pytest.mark.soak(sample=1)
@pytest.mark.parametrize("moment", range(5))
def test_power_lost(moving: tuple[Rig, Snapshot, float], seed: str, moment: int) -> None:
    rig, clean, duration = moving

    def blow(child: Popen[str]) -> None:
        rig.lab.crash(HOST)
        child.wait(_PATIENCE_S)
        rig.lab.start(HOST)

    share = 0.5 + 0.35 * (moment + random.Random(f"{seed} driver power {moment}").random()) / 5
    _is_as_after_a_clean_run(rig, clean, _strike(rig, duration * share, blow))


def test_cable_cut(moving: tuple[Rig, Snapshot, float], seed: str) -> None:
    rig, clean, duration = moving
    share = random.Random(f"{seed} driver cable").uniform(0.5, 0.8)
    struck = _strike(rig, duration * share, lambda _: rig.lab.cut(HOST))
    rig.lab.mend(HOST)
    _is_as_after_a_clean_run(rig, clean, struck)


def test_a_lock_that_is_held_is_waited_for(moving: tuple[Rig, Snapshot, float]) -> None:
    rig, clean, _ = moving
    rig.put_back(HOST, _OLD)
    hold = (
        "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        " open('/run/held', 'w').close(); time.sleep(12)"
    )
    rig.sh(HOST, f'setsid python3 -c "{hold}" >/dev/null 2>&1 &')
    wait_for(lambda: (rig.lab.root(HOST) / "run/held").exists(), 20, "the lock is held")
    _is_as_after_a_clean_run(rig, clean, [])
