"""What stands against a driver: told before the first package, with the cure; and hosts on which something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from drivers import LATEST, declared, is_one, with_driver
from harness import Rig
from machine import MARKS

pytestmark = MARKS


@pytest.fixture(scope="module")
def alone(gpu_rig: Rig) -> Iterator[Rig]:
    """Return the lab with a driver declared and nothing else."""
    with gpu_rig.settings_of("driver-alone", declared({"branch": 580})):
        yield gpu_rig


@pytest.fixture
def installed(alone: Rig) -> Rig:
    """Return the lab with gpu01 as declared."""
    with_driver(alone, LATEST, "gpu01")
    return alone


def _refused(rig: Rig, what: str, cure: str) -> None:
    """Prove that plan and run refuse the host for this, with this cure, and change nothing of it."""
    before = rig.snapshot("gpu01")
    planned = rig.plan("gpu01")
    host = planned.report["hosts"]["gpu01"]
    assert (planned.status, host["status"]) == (1, "refused"), planned.said
    said = " ".join(refusal["what"] for refusal in host["refusals"])
    assert what in said, said
    assert cure in " ".join(refusal["fix"] for refusal in host["refusals"])
    run = rig.pyinfra("gpu01")
    assert run.status == 1
    assert what in run.stderr
    assert not before.difference(rig.snapshot("gpu01"))


def test_a_driver_of_a_run_file(alone: Rig) -> None:
    alone.put_back("gpu01", "fresh")
    alone.lab.fault("gpu01", "runfile")
    _refused(alone, "a driver from a .run file is installed: ", "nvidia-uninstall")
    alone.lab.fault("gpu01", "clear")


def test_secure_boot_without_an_enrolled_key(alone: Rig) -> None:
    alone.put_back("gpu01", "fresh")
    alone.lab.fault("gpu01", "secure_boot")
    _refused(alone, "Secure Boot is on", "update-secureboot-policy --enroll-key")
    alone.lab.fault("gpu01", "clear")


def test_packages_of_another_origin(alone: Rig) -> None:
    alone.put_back("gpu01", "fresh")
    alone.lab.fault("gpu01", "foreign_packages")
    _refused(alone, "a driver from another origin is installed: nvidia-utils-535", "apt-get purge nvidia-utils-535")


@pytest.mark.parametrize(
    ("driver", "what"),
    [
        ({"branch": 550}, "no whole open driver of branch 550 is in this repository, which has 535, 580, 595"),
        ({"branch": 535, "version": "535.309.01"}, "no whole open driver of version 535.309.01"),  # only transitional
        ({"branch": 580, "version": "580.1.2"}, "has 535, 580, 595 (580.95.05, 580.126.16 of that branch)"),
    ],
)
def test_what_the_repository_does_not_have_whole(gpu_rig: Rig, driver: dict[str, object], what: str) -> None:
    gpu_rig.put_back("gpu01", "fresh")
    with gpu_rig.settings_of("not-had", declared(driver)):
        _refused(gpu_rig, what, "driver.branch")


def test_a_module_that_does_not_build_stops_the_host_before_anything_is_replaced(installed: Rig) -> None:
    rig = installed
    rig.lab.fault("gpu01", "dkms_fails")
    before = rig.snapshot("gpu01")
    with rig.settings_of("newer", declared({"branch": 595})):
        run = rig.pyinfra("gpu01")
        assert run.status == 1
        assert "the module 595.80 does not build for 5.15.0-119-generic; nothing was replaced" in run.stderr
        assert "error: initialization of" in run.stderr  # the end of make.log
        assert before.packages == rig.snapshot("gpu01").packages
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
    rig.lab.fault("gpu01", "clear")


def _at_work(rig: Rig) -> str:
    """Let a process of the host's be at work on GPU 3, and return its id."""
    pid = rig.sh("gpu01", "setsid sleep 900 >/dev/null 2>&1 & echo $!").strip()
    path = rig.lab.root("gpu01") / "var/lib/rackwright-lab/hardware.json"
    hardware = json.loads(path.read_text())
    hardware["gpus"][3]["processes"] = [{"pid": int(pid), "name": "sleep", "type": "C", "used_mib": 1000}]
    path.write_text(json.dumps(hardware))
    return pid


def test_gpus_at_work_stop_a_driver_change_and_are_named(installed: Rig) -> None:
    rig = installed
    pid = _at_work(rig)
    uuid = rig.sh("gpu01", "nvidia-smi -L | sed -n 's/^GPU 3.*UUID: \\(.*\\))/\\1/p'").strip()
    rig.nothing_to_change("gpu01")  # who is as declared is left alone
    with rig.settings_of("newer", declared({"branch": 595}, allow_reboot=True)):
        _refused(rig, f"pid {pid} (root: sleep 900) on {uuid}", "rollout.allow_disruption")
    with rig.settings_of("allowed", declared({"branch": 595}, allow_reboot=True, allow_disruption=["gpu01"])):
        run = rig.pyinfra("gpu01")
        assert run.status == 0, run.said
        is_one(rig, "gpu01", "595.80", 8, "Dual MIT/GPL")


def test_a_driver_that_does_not_answer_fails_its_host_alone(installed: Rig) -> None:
    rig = installed
    rig.put_back("gpu02", "fresh")
    rig.lab.fault("gpu01", "smi_hangs")
    run = rig.pyinfra("gpu01", "gpu02", timeout=400)
    assert run.status == 1
    summary = run.stderr[run.stderr.index("--> Hosts:") :]
    assert "gpu01: cannot tell whether the GPUs work: " in summary
    assert "the driver does not answer: nvidia-smi said nothing for 30 s" in summary
    assert "gpu02: " not in summary
    is_one(rig, "gpu02", "580.126.16", 8, "Dual MIT/GPL")
    rig.lab.fault("gpu01", "clear")


def test_a_lost_gpu_is_told_by_its_bus_id(installed: Rig) -> None:
    rig = installed
    rig.lab.fault("gpu01", "gpu_lost", "gpu=2")
    planned = rig.plan("gpu01")
    assert planned.status == 1
    said = planned.report["hosts"]["gpu01"]["refusals"][0]["what"]
    assert "0000:52:00.0" in said or "GPU is lost" in said, said
    rig.lab.fault("gpu01", "clear")


def test_a_host_that_comes_back_with_the_old_module_is_found(installed: Rig) -> None:
    rig = installed
    rig.lab.fault("gpu01", "library_apart")
    planned = rig.plan("gpu01")
    waiting = planned.report["hosts"]["gpu01"]["waiting"]
    assert planned.status == 3, planned.said
    assert waiting[0].startswith("the running module is 580.126.15, installed is 580.126.16")
    with rig.settings_of("allowed", declared({"branch": 580}, allow_reboot=True)):
        run = rig.pyinfra("gpu01")
        assert run.status == 0, run.said
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")


def test_nouveau_that_the_console_holds_waits_for_a_reboot(alone: Rig) -> None:
    rig = alone
    rig.put_back("gpu01", "fresh")
    rig.lab.fault("gpu01", "nouveau")
    run = rig.pyinfra("gpu01")
    assert run.status == 0, run.said
    assert "reboot pending: the running module is nouveau, installed is 580.126.16" in run.stderr
    rig.lab.reboot("gpu01")
    assert "nouveau" not in rig.sh("gpu01", "ls /sys/module")
    assert rig.pyinfra("gpu01").status == 0
    is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")


def test_gpu_settings_come_back_with_each_boot(installed: Rig) -> None:
    rig = installed
    gpu = {"power_limit_w": 500, "compute_mode": "exclusive_process"}
    with rig.settings_of("settings", declared({"branch": 580, "gpu": gpu})):
        rig.converge("gpu01")
        asked = "nvidia-smi --query-gpu=power.limit,compute_mode --format=csv,noheader | sort -u"
        assert rig.sh("gpu01", asked) == "500.00 W, Exclusive_Process\n"
        rig.nothing_to_change("gpu01")
        rig.lab.reboot("gpu01")
        assert rig.sh("gpu01", asked) == "500.00 W, Exclusive_Process\n"
        rig.nothing_to_change("gpu01")
    rig.converge("gpu01")  # what is declared no more is taken away
    assert rig.sh("gpu01", "ls /etc/systemd/system/rackwright-gpu-settings.service", check=False) == ""
    rig.nothing_to_change("gpu01")
