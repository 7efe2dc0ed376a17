"""Hosts with a driver: how tests come by one, and what proves by the tools themselves that it is whole."""

from __future__ import annotations

from collections.abc import Mapping

from harness import Rig
from snapshot import Snapshot

H100X8 = "profiles/rehearsal-h100x8"
LATEST = "580.126.16"
"""The newest of branch 580 in the lab's mirror."""


def declared(driver: Mapping[str, object], **rollout: object) -> dict[str, object]:
    """Return the settings of a driver for the hosts with eight H100, and nothing else."""
    return {H100X8: {"driver": driver}, **({"rollout": rollout} if rollout else {})}


def with_driver(rig: Rig, version: str, *hosts: str) -> None:
    """Give the hosts a disk with this driver and nothing else, as a run leaves it; they are booted from it."""
    for host in hosts:
        rig.prepare(host, version, declared({"branch": int(version.partition(".")[0]), "version": version}))


def parts(after: Snapshot) -> dict[str, str]:
    """Return name -> upstream version of the installed packages of a driver, by dpkg's own file."""
    return {
        name: package.version.rpartition("-")[0]
        for name, package in after.packages.items()
        if "nvidia" in name and "cuda" not in name and package.state == "installed"
    }


def is_one(rig: Rig, host: str, version: str, gpus: int, license_: str) -> None:
    """Prove by the tools themselves that packages, module, libraries and nvidia-smi are one driver for all GPUs."""
    assert set(parts(rig.snapshot(host)).values()) == {version}
    said = rig.sh(
        host,
        "nvidia-smi --query-gpu=driver_version,persistence_mode --format=csv,noheader; modinfo -F version nvidia;"
        "modinfo -F license nvidia; sed -n 's/.* \\([0-9.]*\\)  .*/\\1/p;q' /proc/driver/nvidia/version;"
        "readlink /usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ).splitlines()
    assert said[:gpus] == [f"{version}, Enabled"] * gpus
    assert said[gpus:] == [version, license_, said[gpus + 2], f"libcuda.so.{version}"]
    assert version in rig.sh(host, "cat /proc/driver/nvidia/version")
