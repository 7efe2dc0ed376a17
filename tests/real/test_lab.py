"""The rehearsal lab: what its hosts are and do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import machine
import pytest

from rackwright.errors import HostFailure, UsageMistake
from rackwright.lab import HostSpec, Lab, system
from rackwright.lab.base import SUDO_PASSWORD
from rackwright.lab.relay import PROXY_PASSWORD, PROXY_USER
from rackwright.lab.system import Process

pytestmark = machine.MARKS
ROOT = Path(__file__).parents[2]
NAME = f"test-{os.getpid()}"
HELLO = "http://10.77.0.1/debian"
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    one = Lab(NAME)
    one.up([HostSpec("gpu01"), HostSpec("gpu02", "debian-12")], owner=Process.of(os.getpid()))
    yield one
    one.down(purge=True)


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rackwright", "lab", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300)


def _ssh(lab: Lab, host: str, command: str, *, user: str = "root") -> subprocess.CompletedProcess[str]:
    inside = ["nsenter", f"--net=/run/netns/{lab.switch}", *lab.ssh_argv(host, command, user=user)]
    return subprocess.run(inside, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def _facts(lab: Lab, host: str) -> tuple[str, float]:
    said = lab.run(host, "cat /proc/sys/kernel/random/boot_id /proc/uptime").stdout.split()
    return said[0], float(said[1])


def test_up_of_what_is_up_changes_nothing(lab: Lab) -> None:
    def state() -> dict[str, object]:
        leaders = {host.name: str((lab.root(host.name).parent / "ns/pid").readlink()) for host in lab.hosts()}
        files = {str(path): path.stat().st_mtime_ns for path in lab.folder.iterdir() if path.is_file()}
        return {"leaders": leaders, "files": files, "boots": [_facts(lab, host.name)[0] for host in lab.hosts()]}

    before = state()
    done = _command("up", "1", "--name", lab.name)
    assert (done.returncode, done.stdout) == (0, f"lab {lab.name}: nothing to change\n")
    assert state() == before


def test_a_host_of_another_system_is_refused(lab: Lab) -> None:
    done = _command("up", "2", "--name", lab.name)
    assert done.returncode == 2
    assert "gpu02 is there already, with debian-12" in done.stderr
    with pytest.raises(UsageMistake, match="is there already"):
        lab.up([HostSpec("gpu01")], owner=Process.of(os.getppid()))


def test_status(lab: Lab) -> None:
    hosts = json.loads(_command("status", "--json", "--name", lab.name).stdout)["hosts"]
    expected = {
        "name": "gpu02",
        "os": "debian-12",
        "address": "10.77.0.12",
        "fabric_address": "10.78.0.12",
        "up": True,
        "gpus": "none",
    }
    assert expected in hosts


@pytest.mark.parametrize(("host", "identity"), [("gpu01", "ubuntu 22.04 jammy"), ("gpu02", "debian 12 bookworm")])
def test_systems(lab: Lab, host: str, identity: str) -> None:
    said = lab.run(host, '. /etc/os-release; echo "$ID $VERSION_ID $VERSION_CODENAME $VARIANT_ID"; hostname').stdout
    assert said == f"{identity} rackwright-lab\n{host}\n"
    assert lab.run(host, "systemctl is-system-running; systemctl --failed --no-legend").stdout == "running\n"


def test_ssh_and_sudo(lab: Lab) -> None:
    assert _ssh(lab, "gpu01", "id -un").stdout == "root\n"
    assert _ssh(lab, "gpu01", "sudo -n id -un", user="rack").stdout == "root\n"
    refused = _ssh(lab, "gpu01", "sudo -n id -un", user="ubuntu")
    assert (refused.returncode, refused.stdout) == (1, "")
    for password, returned in ((SUDO_PASSWORD, 0), ("wrong", 1)):
        command = ["su", "ubuntu", "-c", "sudo -k -S -p '' id -un"]
        done = lab.run("gpu01", command, stdin=f"{password}\n", check=False)
        assert (done.returncode, done.stdout) == (returned, "root\n" if returned == 0 else "")
    assert _command("ssh", "--name", lab.name, "gpu01", "ls", "-d", "/root").stdout == "/root\n"


def test_a_host_key_that_is_not_the_hosts_is_refused(lab: Lab) -> None:
    keys = lab.known_hosts_path.read_text()
    first, second = (line.split()[2] for line in keys.splitlines())
    assert first != second
    lab.known_hosts_path.write_text(keys.replace(first, second))
    try:
        done = _ssh(lab, "gpu01", "true")
    finally:
        lab.known_hosts_path.write_text(keys)
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_two_networks_and_no_way_out(lab: Lab) -> None:
    for other in ("gpu02", "gpu02-fabric", "controller"):
        lab.run("gpu01", ["ping", "-c1", "-W2", other])
    assert "default" not in lab.run("gpu01", "ip route show table all; ip -6 route show table all").stdout
    for namespace in (lab.switch, f"{lab.switch}.gpu01"):
        with system.network(namespace):
            probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with probe, pytest.raises(OSError, match="Network is unreachable"):
            probe.connect(("192.0.2.1", 9))  # of a datagram socket: nothing is sent


def test_apt_by_the_relay(lab: Lab) -> None:
    lab.cut("gpu01")
    try:
        assert "Inst hello" in lab.run("gpu01", "apt-get -s install hello").stdout  # the lists are there already
    finally:
        lab.mend("gpu01")
    lab.run("gpu01", "rm -r /var/lib/apt/lists/*; apt-get update", timeout=300)
    lab.run("gpu01", "apt-get install -y hello", timeout=300)
    assert lab.run("gpu01", "hello").stdout == "Hello, world!\n"
    assert 'plain 10.77.0.11 "GET /debian/dists/bookworm/InRelease HTTP/1.1" 200' in lab.access_log.read_text()


def test_the_vendors_https_address_by_every_client(lab: Lab) -> None:
    key = f"wget -qO /etc/apt/lab.asc {CUDA}/3bf863cc.pub"
    lab.run("gpu01", f"{key} && echo 'deb [signed-by=/etc/apt/lab.asc] {CUDA} /' >/etc/apt/sources.list.d/cuda.list")
    python = f"import urllib.request as r; print(r.urlopen('{CUDA}/InRelease').status)"
    assert lab.run("gpu01", ["python3", "-c", python]).stdout == "200\n"
    only = "-o Dir::Etc::sourcelist=/etc/apt/sources.list.d/cuda.list -o Dir::Etc::sourceparts=-"
    for option, port in (
        ("", None),
        ("-o Acquire::https::Proxy=http://10.77.0.1:3128", "proxy"),
        (f"-o 'Acquire::https::Proxy=http://{PROXY_USER}:s3cret;$x@10.77.0.1:3129'", "proxy with credentials"),
    ):
        lab.access_log.write_text("")
        lab.run("gpu01", f"rm -f /var/lib/apt/lists/*nvidia*; apt-get update {only} {option}")
        assert "cuda-toolkit-12-2" in lab.run("gpu01", "apt-cache pkgnames cuda-toolkit-12-2").stdout
        log = lab.access_log.read_text()
        assert "/InRelease HTTP/1.1" in log
        assert (f"{port} 10.77.0.11 " in log) if port else ("tls 10.77.0.11 " in log)
    assert PROXY_PASSWORD == "s3cret;$x"
    lab.run("gpu01", "rm /etc/apt/sources.list.d/cuda.list /etc/apt/lab.asc")


@pytest.mark.parametrize("way", ["command", "inside"])
def test_reboot(lab: Lab, way: str) -> None:
    before, uptime = _facts(lab, "gpu01")
    lab.run("gpu01", "touch /root/kept /run/forgotten")
    if way == "command":
        lab.reboot("gpu01")
    else:
        _ssh(lab, "gpu01", "systemctl reboot")
        assert system.wait(lambda: _ssh(lab, "gpu01", "cat /proc/sys/kernel/random/boot_id").stdout.strip()
                           not in ("", before), 30, 0.2)  # fmt: skip
        assert lab.wait_ready("gpu01")
    after, again = _facts(lab, "gpu01")
    assert after != before
    assert 0 <= again < min(uptime + 1, 30)
    assert lab.run("gpu01", "ls /root/kept /run/forgotten", check=False).stdout == "/root/kept\n"


def test_cut_and_mend(lab: Lab) -> None:
    lab.cut("gpu02")
    try:
        assert not system.greets(lab.switch, "10.77.0.12")
        assert lab.run("gpu01", "ping -c1 -W1 gpu02-fabric", check=False).returncode != 0
        assert lab.run("gpu02", "hostname").stdout == "gpu02\n"  # it runs, and only cannot be reached
        assert lab.up([HostSpec("gpu02", "debian-12")]) == []
        assert not system.greets(lab.switch, "10.77.0.12")
    finally:
        lab.mend("gpu02")
    assert system.wait(lambda: system.greets(lab.switch, "10.77.0.12"), 5)
    lab.run("gpu01", "ping -c5 -i.4 -W2 gpu02-fabric")  # one answer is enough


def test_a_crash_says_no_goodbye_and_start_brings_the_host_back(lab: Lab) -> None:
    lab.run("gpu02", "echo precious >/root/precious")
    before = _facts(lab, "gpu02")[0]
    connection = system.connect(lab.switch, "10.77.0.12", 22)
    assert connection is not None
    with connection:
        while b"\n" not in connection.recv(1000):
            pass
        lab.crash("gpu02")
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert [host.up for host in lab.hosts()] == [True, False]
    done = _command("status", "--name", lab.name)
    assert done.returncode == 1
    assert "gpu02\tdown" in done.stdout
    with pytest.raises(HostFailure, match="gpu02 is not up"):
        lab.run("gpu02", "true")
    lab.start("gpu02")
    assert lab.run("gpu02", "cat /root/precious").stdout == "precious\n"
    assert _facts(lab, "gpu02")[0] != before
    lab.run("gpu01", "ping -c1 -W2 gpu02")  # neighbours find it at once


def test_stop_and_start(lab: Lab) -> None:
    unit = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/touch /root/in-order\n"
    lab.run("gpu02", "cat >/etc/systemd/system/witness.service; systemctl start witness", stdin=unit)
    lab.stop("gpu02")
    lab.start("gpu02")
    lab.run("gpu02", "ls /root/in-order")


def test_a_command_without_end_is_ended(lab: Lab) -> None:
    with pytest.raises(HostFailure, match="no end after 1 s"):
        lab.run("gpu01", "sleep 54321 & sleep 54321", timeout=1)
    assert lab.run("gpu01", "pgrep -fc '^sleep 54321'", check=False).stdout == "0\n"
    with pytest.raises(HostFailure, match="exit status 3: because"):
        lab.run("gpu01", "echo because >&2; exit 3")


def test_what_has_no_namespace_is_out_of_reach(lab: Lab) -> None:
    """Read from the capabilities alone: an attempt that succeeded would strike this machine, its clock for one."""
    show = "grep -h ^Cap /proc/1/status /proc/self/status"
    for said in (lab.run("gpu01", show).stdout, _ssh(lab, "gpu01", show).stdout):
        held = [int(line.split()[1], 16) for line in said.splitlines()]
        assert len(held) == 10
        for number in (16, 17, 25, 34):  # SYS_MODULE, SYS_RAWIO, SYS_TIME, SYSLOG (linux/capability.h)
            assert not [mask for mask in held if mask >> number & 1], said
        assert held[2] >> 21 & 1  # SYS_ADMIN: the masks are those of root
    assert str(os.getpid()) not in lab.run("gpu01", "ls /proc").stdout.split()


def test_pyinfra_by_the_inventory(lab: Lab) -> None:
    argv = [sys.executable, "-m", "pyinfra", "inventories/lab.py", "exec", "--", "hostname"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, "RACKWRIGHT_LAB": lab.name}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("gpu01", "gpu02"):
        assert f"[{host}] {host}" in done.stdout + done.stderr


def test_a_relay_that_died_is_started_again(lab: Lab) -> None:
    relay = Process.read(lab.folder / "relay.pid")
    assert relay is not None
    relay.kill()
    assert system.wait(lambda: system.connect(lab.switch, "10.77.0.1", 80) is None, 5)
    assert lab.up([HostSpec("gpu01")]) == []
    lab.run("gpu01", f"wget -qO- {CUDA}/InRelease >/dev/null")


def test_two_labs_at_once_with_the_same_addresses(lab: Lab, tmp_path: Path) -> None:
    other = Lab(f"{NAME}-b")
    try:
        other.up([HostSpec("gpu01", "ubuntu-24.04"), HostSpec("store01")], owner=Process.of(os.getpid()))
        other.run("gpu01", "echo other >/root/which")
        assert lab.run("gpu01", "ls /root/which", check=False).returncode == 2
        assert other.run("gpu01", "ping -c1 -W2 store01; . /etc/os-release; echo $VERSION_ID").stdout.endswith(
            "24.04\n"
        )
        assert _ssh(other, "gpu01", "cat /root/which").stdout == "other\n"
        assert [host.address for host in other.hosts()] == ["10.77.0.11", "10.77.0.12"]
        other.run("gpu01", f"wget -qO- {CUDA}/InRelease >/dev/null")
    finally:
        other.down(purge=True)
    assert _ssh(lab, "gpu01", "hostname").stdout == "gpu01\n"


def test_a_host_that_comes_later_is_known_to_all(lab: Lab) -> None:
    assert lab.up([HostSpec("gpu03")]) == ["gpu03"]
    lab.run("gpu01", "ping -c1 -W2 gpu03")
    assert "gpu03" in lab.settings_path.read_text()
    assert _ssh(lab, "gpu03", "hostname").stdout == "gpu03\n"
