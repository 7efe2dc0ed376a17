"""What a lab could leave behind on this machine, read by other means than the lab's own; and whether it can run one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rackwright.errors import HostFailure
from rackwright.lab import system
from rackwright.lab.debian import debian_mirror


def _lacks() -> str | None:
    try:
        system.require(free_mib=4000, folder=Path("/var"))
        debian_mirror()
    except HostFailure as failure:
        return "; ".join(f"{problem.what}: {problem.where} ({problem.fix})" for problem in failure.problems)
    return None


LACKS = _lacks()
MARKS = [pytest.mark.real, pytest.mark.skipif(LACKS is not None, reason=f"this machine runs no lab: {LACKS}")]

# Counters and what the kernel sets by itself.
_VOLATILE = ("nf_conntrack_count", "netdev_budget", "bpf_")


def footprint(lab: str) -> dict[str, object]:
    """Return this machine's network settings and mounts, and all that bears the name of the lab."""
    return {
        "links": [(link["ifname"], link["operstate"], link.get("address")) for link in _ip("link")],
        "addresses": [(link["ifname"], [one["local"] for one in link["addr_info"]]) for link in _ip("address")],
        "routes": [_ip("route", "show", "table", "all"), _ip("rule")],
        "sysctls": _sysctls(),
        "firewall": _firewall(),
        "mounts": _mounts(lab),
        "namespaces": [path.name for path in _listed("/run/netns") if lab in path.name],
        "processes": _processes(lab),
        "cgroups": sorted(str(path) for path in _cgroups() if lab in path.name),
        "run": sorted(path.name for path in _listed("/run/systemd")),
    }


def _ip(*arguments: str) -> list[dict[str, object]]:
    said = subprocess.run(["ip", "-j", *arguments], capture_output=True, text=True, check=True).stdout
    found = json.loads(said or "[]")
    assert isinstance(found, list)
    return found


def _listed(folder: str) -> list[Path]:
    return list(Path(folder).iterdir()) if Path(folder).exists() else []


def _sysctls() -> dict[str, str]:
    found = {}
    for path in Path("/proc/sys/net").rglob("*"):
        if path.is_file() and not path.name.startswith(_VOLATILE):
            try:
                found[str(path)] = path.read_text()
            except OSError:
                continue
    return found


def _firewall() -> list[str]:
    tables = [Path(f"/proc/net/{name}") for name in ("ip_tables_names", "ip6_tables_names")]
    return [path.read_text() for path in tables if path.exists()]


def _mounts(lab: str) -> list[str]:
    """Return mount points; the namespaces of other labs, which tests beside this one may have, do not count."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted({point for point in points if "/run/netns" not in point or lab in point})


def _cgroups() -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [path for depth in ("*", "*/*") for path in top.glob(depth) if path.is_dir()]


def _processes(lab: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) == os.getpid():
            continue
        try:
            text = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (path / "cgroup").read_text()
        except OSError:
            continue
        if text and (lab in text or lab in group):  # without a command line it is a zombie: an exit code, no process
            found.append(f"{path.name} {text[:120]}")
    return found
