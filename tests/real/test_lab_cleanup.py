"""The lab leaves nothing behind, whatever is killed and when. State is read by other means than the lab's own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import machine
import pytest

from rackwright.lab import HostSpec, Lab, base
from rackwright.lab.cgroup import Cgroup
from rackwright.lab.lab import labs_folder
from rackwright.lab.service import Service
from rackwright.lab.system import Process, greets, wait

pytestmark = machine.MARKS
NAME = f"clean-{os.getpid()}"
_UP = """
import os, sys
from rackwright.lab import HostSpec, Lab
from rackwright.lab.system import Process
name, owner = sys.argv[1:]
Lab(name).up([HostSpec(f"gpu0{n}") for n in (1, 2, 3)], owner=Process.of(int(owner) or os.getpid()))
"""
_DOWN = "import sys; from rackwright.lab import Lab; Lab(sys.argv[1]).down(purge=True)"


@pytest.fixture(scope="module", autouse=True)
def _base_tree_is_built() -> None:
    lab = Lab(NAME)
    lab.up([HostSpec("gpu01")], owner=Process.of(os.getpid()))
    lab.down(purge=True)


@pytest.fixture
def before() -> Iterator[dict[str, object]]:
    yield machine.footprint(NAME)
    Lab(NAME).down(purge=True)


def _start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def _finish(script: str, *arguments: str) -> float:
    began = time.monotonic()
    with _start(script, *arguments) as child:
        _, said = child.communicate(timeout=200)
    assert child.returncode == 0, said.decode()
    return time.monotonic() - began


def _killed(script: str, *arguments: str, after: float) -> bool:
    """Start a script, kill it after a while, and return whether that struck it at work."""
    with _start(script, *arguments) as child:
        time.sleep(after)
        child.kill()
        child.communicate(timeout=30)
        return child.returncode == -signal.SIGKILL


def _clean(before: dict[str, object]) -> None:
    assert machine.footprint(NAME) == before
    assert not [path for path in labs_folder().iterdir() if NAME in path.name]


def test_up_and_down(before: dict[str, object]) -> None:
    me = str(os.getpid())
    clock = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    _finish(_UP, NAME, me)
    during = machine.footprint(NAME)
    for what in ("namespaces", "processes", "cgroups"):
        assert during[what], f"nothing to see of {what}: this test would see nothing left either"
    for what in ("links", "addresses", "routes", "sysctls", "firewall", "run"):
        assert during[what] == before[what]
    assert abs(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - clock) < 1
    _finish(_DOWN, NAME)
    _clean(before)


def test_down_without_purge_keeps_the_disks(before: dict[str, object]) -> None:
    lab = Lab(NAME)
    lab.up([HostSpec("gpu01")])
    lab.run("gpu01", "echo kept >/root/kept")
    lab.down()
    after = machine.footprint(NAME)
    assert after == before
    assert lab.up([HostSpec("gpu01")]) == ["gpu01"]
    assert lab.run("gpu01", "cat /root/kept").stdout == "kept\n"
    lab.down(purge=True)
    _clean(before)


@pytest.mark.parametrize("then", ["up", "down"])
def test_up_killed_at_any_moment(before: dict[str, object], then: str) -> None:
    me = str(os.getpid())
    whole = _finish(_UP, NAME, me)
    _finish(_DOWN, NAME)
    moments = random.Random(f"moments {then}")
    struck: list[float] = []
    for _ in range(40):
        if len(struck) == 8:
            break
        after = moments.uniform(0.1, whole)
        if not _killed(_UP, NAME, me, after=after):
            Lab(NAME).down(purge=True)
            continue
        struck.append(after)
        if then == "up":
            lab = Lab(NAME)
            lab.up([HostSpec(f"gpu0{n}") for n in (1, 2, 3)], owner=Process.of(os.getpid()))
            assert [host.up for host in lab.hosts()] == [True] * 3
            assert all(greets(lab.switch, host.address) for host in lab.hosts())
            lab.run("gpu01", "ping -c1 -W2 gpu03-fabric && apt-get update", timeout=200)
            assert len([line for line in machine.footprint(NAME)["processes"] if "systemd-nspawn" in line]) == 3  # type: ignore[attr-defined]
        _finish(_DOWN, NAME)
        _clean(before)
    assert len(struck) == 8


def test_down_killed_at_any_moment(before: dict[str, object]) -> None:
    me = str(os.getpid())
    _finish(_UP, NAME, me)
    whole = _finish(_DOWN, NAME)
    moments = random.Random("down")
    struck = 0
    for turn in range(20):
        if struck == 4:
            break
        _finish(_UP, NAME, me)
        if _killed(_DOWN, NAME, after=moments.uniform(0.1, whole)):
            struck += 1
            if turn % 2:
                _finish(_UP, NAME, me)
        _finish(_DOWN, NAME)
        _clean(before)
    assert struck == 4


def test_the_owner_killed_at_any_moment(before: dict[str, object]) -> None:
    """Nobody calls `down`: the reaper does it."""
    whole = _finish(_UP, NAME, str(os.getpid()))
    _finish(_DOWN, NAME)
    moments = random.Random("owner")
    for _ in range(4):
        _killed(_UP, NAME, "0", after=moments.uniform(0.2, whole))
        assert wait(lambda: machine.footprint(NAME) == before, 30, 0.2), machine.footprint(NAME)["processes"]


def test_owner_and_reaper_killed(before: dict[str, object]) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        _finish(_UP, NAME, str(owner.pid))
        reaper = Process.read(Lab(NAME).folder / "reaper.pid")
        assert reaper is not None
        reaper.kill()
        owner.kill()
    assert machine.footprint(NAME)["processes"]
    other = Lab(f"other-{os.getpid()}")
    other.up([HostSpec("gpu01")], owner=Process.of(os.getpid()))
    other.down(purge=True)
    _clean(before)


def test_a_lab_without_owner_outlives_who_started_it(before: dict[str, object]) -> None:
    subprocess.run(
        [sys.executable, "-m", "rackwright", "lab", "up", "1", "--name", NAME], check=True, capture_output=True
    )
    assert [host.up for host in Lab(NAME).hosts()] == [True]
    subprocess.run(
        [sys.executable, "-m", "rackwright", "lab", "down", "--purge", "--name", NAME], check=True, capture_output=True
    )
    _clean(before)


def test_up_finishes_what_was_half_made(before: dict[str, object]) -> None:
    """The states between two system calls, which a kill at a random moment seldom meets."""
    lab = Lab(NAME)
    netns = Path("/run/netns")
    (netns / f"{lab.switch}.gpu01").touch()  # made by `ip netns add`, and not yet mounted over
    (lab.folder / "hosts/.new-gpu01/upper/etc/ssh").mkdir(parents=True)
    subprocess.run(["ip", "netns", "add", lab.switch], check=True)
    subprocess.run(["ip", "-n", lab.switch, "link", "add", "mgmt", "type", "bridge"], check=True)
    lab.up([HostSpec("gpu01"), HostSpec("gpu02")], owner=Process.of(os.getpid()))
    lab.run("gpu01", "ping -c1 -W2 gpu02; ping -c1 -W2 gpu02-fabric; ls /etc/ssh/ssh_host_ed25519_key")
    lab.down(purge=True)
    for name in (lab.switch, f"{lab.switch}.gpu01"):
        (netns / name).touch()
    Cgroup(f"{lab.switch}/relay").make()
    lab.down(purge=True)  # of a lab that has no folder yet
    _clean(before)


def _services(pattern: str) -> list[Process]:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout.split()
    return [process for process in map(Process.of, map(int, found)) if process is not None]


def test_a_service_that_was_started_and_not_recorded(tmp_path: Path) -> None:
    service = Service(tmp_path, "one", Cgroup(f"rw-{NAME}-service/one"))
    service.start(["sleep", "54001"])
    assert wait(lambda: len(_services("^sleep 54001")) == 1, 5)
    (tmp_path / "one.pid").unlink()  # as if the starter had been killed before it wrote it
    service.start(["sh", "-c", "sleep 54002 & sleep 54002"])
    assert wait(lambda: len(_services("^sleep 54002")) == 2, 5)
    assert not _services("^sleep 54001")
    service.stop()
    assert not _services("^sleep 5400")
    Cgroup(f"rw-{NAME}-service").remove()
    assert not Cgroup(f"rw-{NAME}-service").exists()


def test_a_service_that_comes_late_ends_by_itself(tmp_path: Path) -> None:
    """Its starter was killed, and `down` or another `up` was quicker than it."""
    from rackwright.lab import service as module

    group = Cgroup(f"rw-{NAME}-late")
    folders = [str(folder) for folder in group.folders()]
    late = ["/bin/sh", "-c", module._ENTER, "sh", "stale", str(tmp_path / "one.token"), *folders, "--", "sleep", "9"]
    assert subprocess.run(late, capture_output=True, timeout=5).returncode == 1  # after `down`
    service = Service(tmp_path, "one", group)
    service.start(["sleep", "54003"])
    assert subprocess.run(late, capture_output=True, timeout=5).returncode == 1  # after another `up`
    assert service.process() is not None
    service.stop()
    assert not group.exists()


def test_a_base_tree_whose_builder_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKWRIGHT_CACHE_DIR", str(tmp_path))
    before = machine.footprint(NAME)
    script = "import pathlib, sys; from rackwright.lab import base; base.base_tree(pathlib.Path(sys.argv[1]))"
    with _start(script, str(tmp_path)) as builder:
        assert wait(lambda: any(tmp_path.glob("base-new-*/debootstrap/*")), 60)
        assert _services(f"debootstrap .*{tmp_path}")
        builder.kill()
    Lab(NAME).down()
    assert not _services(f"debootstrap .*{tmp_path}")
    assert not [path for path in tmp_path.glob("base-*") if path.is_dir()]
    assert machine.footprint(NAME) == before


def test_a_base_tree_stays_while_a_lab_uses_it(tmp_path: Path) -> None:
    used, unused, lab = tmp_path / "base-1", tmp_path / "base-2", tmp_path / "lab"
    for folder in (used, unused, lab):
        folder.mkdir()
    base.keep_for(used, lab)
    base.keep_for(used, lab)
    for tree in (used, unused):
        os.utime(tree, (0, 0))
    base.clear_unfinished(tmp_path)
    assert used.exists()
    assert not unused.exists()
    lab.rmdir()
    base.clear_unfinished(tmp_path)
    assert not used.exists()


def test_on_a_machine_with_cgroup_version_2_alone(before: dict[str, object]) -> None:
    """A mount namespace in which /sys/fs/cgroup is the one tree of version 2."""
    python = f"{sys.executable} -m rackwright lab"
    script = f"""set -e
mount --make-rprivate /; umount -R -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
{python} up 1 --name {NAME}; {python} reboot gpu01 --name {NAME}; {python} status --name {NAME}
{python} ssh --name {NAME} gpu01 systemctl is-system-running
{python} down --purge --name {NAME}; ! ls -d /sys/fs/cgroup/*{NAME}*"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nrunning\n" in done.stdout
    _clean(before)
