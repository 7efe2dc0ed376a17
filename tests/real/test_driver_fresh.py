"""The driver on hosts that have none: what it leaves by other means than our facts, an exact plan, a second run."""

from __future__ import annotations

import pytest
from drivers import is_one, parts
from harness import Rig
from machine import MARKS

pytestmark = MARKS


def test_a_fresh_host_gets_the_whole_driver_and_a_second_run_changes_nothing(gpu_rig: Rig) -> None:
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    assert "nouveau" in rig.sh("gpu01", "ls /sys/module")
    plan, after = rig.converge("gpu01")
    assert [change["what"] for change in plan["changes"] if change["operation"] == "nvidia.running"] == [
        "module nouveau", "module nvidia",
    ]  # fmt: skip
    is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
    assert set(parts(after)) <= after.held()
    assert "linux-image-generic" in after.held()
    assert rig.sh("gpu01", "systemctl is-active nvidia-persistenced nvidia-fabricmanager").split() == ["active"] * 2
    assert rig.sh("gpu01", "nvidia-smi -q | grep -c 'State  *: Completed'") == "8\n"
    assert "libnvidia-nscq" in after.packages
    rig.nothing_to_change("gpu01")


@pytest.mark.parametrize(
    ("host", "profile", "driver", "version", "gpus", "license_"),
    [
        ("gpu03", "rtx4090x2", {"branch": 535}, "535.183.01", 2, "NVIDIA"),  # GeForce below 545
        ("gpu03", "rtx4090x2", {"branch": 595}, "595.80", 2, "Dual MIT/GPL"),
        ("gpu06", "a100x4", {"branch": 580}, "580.126.16", 4, "Dual MIT/GPL"),  # Debian's names
    ],
)
def test_the_module_by_board_and_branch(
    gpu_rig: Rig, host: str, profile: str, driver: dict[str, object], version: str, gpus: int, license_: str
) -> None:
    rig = gpu_rig
    # CUDA 12.2 is not to be had on each of these systems, and not what is asked here.
    declared = {f"profiles/rehearsal-{profile}": {"driver": driver}}
    with rig.borrowed(host), rig.settings_of(host, declared):
        rig.converge(host)
        is_one(rig, host, version, gpus, license_)
        rig.nothing_to_change(host)


def test_nothing_is_done_on_a_host_for_which_no_driver_is_declared(gpu_rig: Rig) -> None:
    gpu_rig.put_back("gpu01", "fresh")
    with gpu_rig.settings_of("unmanaged", {"profiles/rehearsal-h100x8": {"cuda": None}}):
        gpu_rig.nothing_to_change("gpu01")
