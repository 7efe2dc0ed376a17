"""A run that is killed, a host that loses power, a cable that is cut: one more run gives the state of a clean one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import Popen, TimeoutExpired

import pytest
from harness import Rig, Run, wait_for
from machine import MARKS
from snapshot import Snapshot

pytestmark = MARKS
HOST = "gpu03"


@pytest.fixture(scope="module")
def clean(rig: Rig) -> tuple[Snapshot, float]:
    """Return what a run leaves that nothing interrupts, and how long it takes."""
    rig.put_back(HOST, "fresh")
    begun = time.monotonic()
    run = rig.pyinfra(HOST)
    assert run.status == 0, run.said
    return rig.snapshot(HOST), time.monotonic() - begun


def _is_as_after_a_clean_run(rig: Rig, clean: Snapshot, struck: list[str]) -> None:
    run = rig.pyinfra(HOST)
    assert run.status == 0, f"{struck}\n{run.said}"
    left = clean.difference(rig.snapshot(HOST))
    assert not left, f"{struck}\n{left}"
    rig.nothing_to_change(HOST)


def _package_work_ends(rig: Rig) -> None:
    """Wait until what a killed run has started in the host is at its end: it is not ours to kill."""
    busy = "pgrep -x 'apt-get|dpkg|ldconfig|update-alternati' >/dev/null"
    wait_for(lambda: rig.lab.run(HOST, busy, check=False).returncode != 0, 120, "apt and dpkg end")


def _strike(rig: Rig, duration: float, tenths: float, blow: Callable[[Popen[str]], None]) -> tuple[list[str], Run]:
    """Run on a fresh host and strike after so many tenths of the run; one that was quicker is begun anew.

    Return what was struck, and the run as it ended.
    """
    for _ in range(5):
        rig.put_back(HOST, "fresh")
        fresh = rig.snapshot(HOST)
        begun = time.monotonic()
        child = rig.start(rig.pyinfra_argv(HOST))
        after = duration * tenths / 10
        with suppress(TimeoutExpired):
            child.wait(after)  # it prints less than a pipe holds
        struck = child.poll() is None
        if struck:
            blow(child)
        run = rig.finish(child, 180)
        if struck and run.status != 0:
            found = sorted(fresh.difference(rig.snapshot(HOST)))
            return [f"after {after:.1f} s of {duration:.1f} s", f"{len(found)} differences", *found[:5]], run
        duration = time.monotonic() - begun
    raise AssertionError("every run was at its end before it was struck")


@pytest.mark.soak(sample=3)
@pytest.mark.parametrize("moment", range(10))
def test_killed(
    rig: Rig, clean: tuple[Snapshot, float], seed: str, moment: int, record_property: Callable[[str, object], None]
) -> None:
    snapshot, duration = clean
    # Each of the ten has a tenth of the run as its own.
    tenths = moment + random.Random(f"{seed} {moment}").random()
    struck, run = _strike(rig, duration, tenths, lambda child: os.killpg(child.pid, signal.SIGKILL))
    record_property("struck", struck)
    assert run.status == -signal.SIGKILL
    if moment % 2:
        _package_work_ends(rig)  # the other half meets it, and waits
    _is_as_after_a_clean_run(rig, snapshot, struck)


@pytest.mark.soak(sample=2)
@pytest.mark.parametrize("moment", range(6))
def test_power_lost(
    rig: Rig, clean: tuple[Snapshot, float], seed: str, moment: int, record_property: Callable[[str, object], None]
) -> None:
    snapshot, duration = clean

    def blow(child: Popen[str]) -> None:
        rig.lab.crash(HOST)
        child.wait(120)
        rig.lab.start(HOST)

    tenths = 3 + moment + random.Random(f"{seed} power {moment}").random()
    struck, run = _strike(rig, duration, tenths, blow)
    record_property("struck", struck)
    assert run.status == 1, run.said
    assert f"--limit {HOST}" in run.stderr
    _is_as_after_a_clean_run(rig, snapshot, struck)


def test_cable_cut(rig: Rig, clean: tuple[Snapshot, float], seed: str) -> None:
    snapshot, duration = clean
    begun = 0.0

    def blow(child: Popen[str]) -> None:
        nonlocal begun
        rig.lab.cut(HOST)
        begun = time.monotonic()

    struck, run = _strike(rig, duration, random.Random(f"{seed} cable").uniform(3, 8), blow)
    assert run.status == 1, run.said
    assert time.monotonic() - begun < 90, "a dead peer is given up in reasonable time"
    assert f"--limit {HOST}" in run.stderr
    gone = rig.pyinfra(HOST)
    assert (gone.status, f"[{HOST}] Could not connect" in gone.stderr) == (1, True), gone.said
    planned = rig.plan(HOST)
    assert (planned.status, planned.report["hosts"][HOST]["status"]) == (1, "unreachable")
    rig.lab.mend(HOST)
    _is_as_after_a_clean_run(rig, snapshot, struck)
