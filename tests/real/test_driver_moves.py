"""Upgrade and downgrade between the mirror's drivers; reboots by one gate."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from drivers import declared, is_one, with_driver
from harness import Rig
from machine import MARKS

from rackwright.lab import vendor_driver

pytestmark = MARKS
_VERSIONS = [driver.version for driver in vendor_driver.DRIVERS["ubuntu2204"]]
_PAIRS = list(permutations(_VERSIONS, 2))


def _goes_to(version: str, **rollout: object) -> dict[str, object]:
    return declared({"branch": int(version.split(".")[0]), "version": version}, allow_reboot=True, **rollout)


@pytest.mark.soak(sample=2)
@pytest.mark.parametrize(("before", "after"), _PAIRS, ids=lambda version: version)
def test_from_one_version_to_another_and_through_the_reboot(gpu_rig: Rig, before: str, after: str) -> None:
    rig = gpu_rig
    with_driver(rig, before, "gpu01")
    with rig.settings_of("after", _goes_to(after)):
        plan, _ = rig.converge("gpu01")
        costs = {change["operation"]: change["cost"] for change in plan["changes"] if change["cost"]}
        assert costs == {"nvidia.running": ["reboot"]}
        is_one(rig, "gpu01", after, 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")


def test_reboots_go_through_one_gate_and_one_that_does_not_return_stops_the_others(gpu_rig: Rig) -> None:
    rig = gpu_rig
    hosts = ("gpu01", "gpu02")
    with_driver(rig, "580.95.05", *hosts)
    with rig.settings_of("one-by-one", _goes_to("580.126.16", max_unavailable=1)):
        run = rig.pyinfra(*hosts)
        assert run.status == 0, run.said
        events = re.findall(r"\[(gpu0\d)\] (reboots|is back)", run.stderr)
        assert [word for _, word in events] == ["reboots", "is back"] * 2
        assert events[0][0] == events[1][0]
        for host in hosts:
            is_one(rig, host, "580.126.16", 8, "Dual MIT/GPL")
    # Now neither would answer after a reboot: whoever goes first is lost, and the other one stays up.
    with_driver(rig, "580.95.05", *hosts)
    for host in hosts:
        rig.sh(host, "systemctl disable -q ssh")
    with rig.settings_of("lost", _goes_to("580.126.16", max_unavailable=1, reboot_timeout_s=60)):
        run = rig.pyinfra(*hosts)
        assert run.status == 1
        first, second = sorted(hosts, key=lambda host: f"[{host}] reboots" not in run.stderr)
        assert f"[{second}] reboots" not in run.stderr
        assert f"{first}: has not come back within 60 s" in run.stderr
        assert f"{second}: not rebooted: {first} has not come back" in run.stderr
    for host in hosts:
        rig.put_back(host, "580.95.05")
