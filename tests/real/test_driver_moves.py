"""Upgrade and downgrade between the mirror's drivers; reboots by one gate."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from harness import Rig
from machine import MARKS
from test_driver_fresh import is_one

from rackwright.lab import vendor_driver

pytestmark = MARKS
_VERSIONS = [driver.version for driver in vendor_driver.DRIVERS["ubuntu2204"]]
_PAIRS = list(permutations(_VERSIONS, 2))


def _declared(version: str, **rollout: object) -> dict[str, object]:
    driver = {"branch": int(version.split(".")[0]), "version": version}
    return {"profiles/rehearsal-h100x8": {"driver": driver}, "rollout": {"allow_reboot": True, **rollout}}


def _stands_at(rig: Rig, host: str, version: str) -> None:
    """Bring the host to a version: from a disk that was kept, or from the fresh one."""
    if rig.has(host, version):
        rig.put_back(host, version)
        return
    rig.put_back(host, "fresh")
    run = rig.pyinfra(host)
    assert run.status == 0, run.said
    rig.keep(host, version)


@pytest.mark.soak(sample=2)
@pytest.mark.parametrize(("before", "after"), _PAIRS, ids=lambda version: version)
def test_from_one_version_to_another_and_through_the_reboot(gpu_rig: Rig, before: str, after: str) -> None:
    rig = gpu_rig
    with rig.settings_of("before", _declared(before)):
        _stands_at(rig, "gpu01", before)
    with rig.settings_of("after", _declared(after)):
        plan, _ = rig.converge("gpu01")
        costs = {change["operation"]: change["cost"] for change in plan["changes"] if change["cost"]}
        assert costs == {"nvidia.running": ["reboot"]}
        is_one(rig, "gpu01", after, 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")


def test_reboots_go_through_one_gate_and_one_that_does_not_return_stops_the_others(gpu_rig: Rig) -> None:
    rig = gpu_rig
    hosts = ("gpu01", "gpu02")
    with rig.settings_of("before", _declared("580.95.05")):
        for host in hosts:
            _stands_at(rig, host, "580.95.05")
    with rig.settings_of("one-by-one", _declared("580.126.16", max_unavailable=1)):
        run = rig.pyinfra(*hosts)
        assert run.status == 0, run.said
        events = re.findall(r"\[(gpu0\d)\] (reboots|is back)", run.stderr)
        assert [word for _, word in events] == ["reboots", "is back"] * 2
        assert events[0][0] == events[1][0]
        for host in hosts:
            is_one(rig, host, "580.126.16", 8, "Dual MIT/GPL")
    # Now neither would answer after a reboot: whoever goes first is lost, and the other one stays up.
    with rig.settings_of("before", _declared("580.95.05")):
        for host in hosts:
            _stands_at(rig, host, "580.95.05")
            rig.sh(host, "systemctl disable -q ssh")
    with rig.settings_of("lost", _declared("580.126.16", max_unavailable=1, reboot_timeout_s=60)):
        run = rig.pyinfra(*hosts)
        assert run.status == 1
        first, second = sorted(hosts, key=lambda host: f"[{host}] reboots" not in run.stderr)
        assert f"[{second}] reboots" not in run.stderr
        assert f"{first}: has not come back within 60 s" in run.stderr
        assert f"{second}: not rebooted: {first} has not come back" in run.stderr
    for host in hosts:
        rig.put_back(host, "580.95.05")
