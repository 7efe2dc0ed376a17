"""Names, settings and the command line of the lab: what needs neither root nor hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rackwright.cli.lab import lab as command
from rackwright.config import load
from rackwright.errors import HostFailure, RackwrightError, UsageMistake
from rackwright.inventory import pyinfra_groups
from rackwright.lab import HostSpec, Lab, papers, system
from rackwright.lab.base import FLAVOURS, os_release
from rackwright.lab.mirror import Mirror
from rackwright.lab.system import Process
from rackwright_facts._parse import os_release as os_release_parser


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKWRIGHT_LAB_DIR", str(tmp_path / "labs"))
    monkeypatch.setenv("RACKWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RACKWRIGHT_LAB", raising=False)


def test_which_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Lab().name == "lab"
    monkeypatch.setenv("RACKWRIGHT_LAB", "other")
    assert Lab().name == "other"
    assert Lab("named").name == "named"
    assert Lab("named").switch.startswith("rw-named-")  # a lab of this name in the usual place is another
    monkeypatch.delenv("RACKWRIGHT_LAB_DIR")
    assert Lab("named").switch == "rw-named"


@pytest.mark.parametrize("name", ["../x", "a/b", "a.b", "-a", "ä", "a" * 25, "a b"])
def test_what_is_no_lab_name(name: str) -> None:
    with pytest.raises(UsageMistake, match="is no lab name"):
        Lab(name)


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ([], "no host is named"),
        ([HostSpec("gpu01"), HostSpec("gpu01")], "gpu01 is named twice"),
        ([HostSpec("../x")], "is no host name"),
        ([HostSpec("gpu01", "ubuntu-18.04")], "there is no lab system"),
    ],
)
def test_what_up_refuses(wanted: list[HostSpec], what: str) -> None:
    with pytest.raises(UsageMistake, match=what):
        Lab().up(wanted)


def test_a_host_of_no_lab() -> None:
    for act in (Lab().run, Lab().root, Lab().cut, Lab().crash, Lab().start, Lab().ssh_argv):
        with pytest.raises(UsageMistake, match=r"no host 'gpu01' in the lab lab[^$]*rackwright lab up 3 --name lab"):
            act(*(["gpu01", "true"] if act.__name__ == "run" else ["gpu01"]))  # type: ignore[operator]
    with pytest.raises(UsageMistake, match="is not up"):
        Lab().enter()


def test_the_labs_settings_load(tmp_path: Path) -> None:
    key = tmp_path / "vendor.asc"
    vendors = Mirror(www=tmp_path, keys=tmp_path, fingerprints={"vendor": "EB693B3035CD5710E231E123A4B469963BF863CC"})
    state = {"gpu01": (1, HostSpec("gpu01")), "gpu02": (2, HostSpec("gpu02", "debian-12"))}
    known = tmp_path / "known_hosts"
    settings = tmp_path / "cluster.yaml"
    settings.write_text(papers.cluster_yaml("alpha", state, tmp_path / "key", known, vendors))
    hosts = pyinfra_groups(load(settings))["rehearsal"]
    assert [(name, data["ssh_hostname"]) for name, data in hosts] == [("gpu01", "10.77.0.11"), ("gpu02", "10.77.0.12")]
    assert {data["ssh_known_hosts_file"] for _, data in hosts} == {str(known)}
    assert hosts[0][1]["cuda_source"]["key"] == str(key)
    assert papers.known_hosts(state, {"gpu01": "ssh-ed25519 AA", "gpu02": "ssh-ed25519 BB"}) == (
        "10.77.0.11,gpu01 ssh-ed25519 AA\n10.77.0.12,gpu02 ssh-ed25519 BB\n"
    )
    hosts_file = papers.hosts_file(state, ["vendor.example"]).splitlines()
    assert "10.77.0.1 controller vendor.example" in hosts_file
    assert "10.78.0.12 gpu02-fabric" in hosts_file


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_os_release_says_the_system_and_that_it_is_a_rehearsal(flavour: str) -> None:
    said = os_release_parser.parse(os_release(flavour))
    assert f"{said['ID']}-{said['VERSION_ID']}" == flavour
    assert "VARIANT_ID=rackwright-lab\n" in os_release(flavour)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("hosts: 3\n", "no hosts are named"),
        ("hosts: {gpu01: {os: ubuntu-18.04}}\n", "'ubuntu-18.04' is no os"),
        ("hosts: {gpu01: {gpus: 8}}\n", "8 is no gpus"),
        ("hosts: {gpu01: {gpu: h100x8}}\n", "takes other keys"),
        ("hosts: {gpu01: {disks: many}}\n", "disks has a wrong value"),
        ("hosts: {gpu01: {nics: -1}}\n", "nics has a wrong value"),
        ("hosts: {gpu01: {bmc: 1}}\n", "bmc has a wrong value"),
        ("hosts: {gpu01: debian-12}\n", "takes other keys"),
        ("hosts: {'gpu[03-01]': }\n", "runs backwards"),
        ("hosts: {gpu01: , 'gpu[01-02]': }\n", "gpu01 is named twice"),
    ],
)
def test_mistakes_in_a_lab_file(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    done = CliRunner().invoke(command, ["up", "--file", str(path)])
    assert isinstance(done.exception, RackwrightError)
    assert done.exception.exit_code == 2
    assert what in str(done.exception)


def test_up_needs_a_number_or_a_file() -> None:
    for arguments in (["up"], ["up", "3", "--file", "x.yaml"]):
        assert isinstance(CliRunner().invoke(command, arguments).exception, UsageMistake)


def test_status_of_no_lab() -> None:
    done = CliRunner().invoke(command, ["status"])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "lab lab: not up\n")
    done = CliRunner().invoke(command, ["status", "--json"])
    assert (done.exit_code, done.stdout) == (1, '{\n "schema": 1,\n "lab": "lab",\n "hosts": []\n}\n')


def test_what_a_machine_lacks_is_said_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "_FILESYSTEMS", tmp_path / "filesystems")
    monkeypatch.setattr(system, "DEBIAN_KEYRING", tmp_path / "none.gpg")
    (tmp_path / "filesystems").write_text("nodev\tproc\n\text4\n")
    with pytest.raises(HostFailure) as caught:
        system.require(free_mib=1 << 40, folder=tmp_path / "not" / "yet")
    said = str(caught.value)
    for cure in ("systemd-container", "debootstrap", "debian-archive-keyring", "modprobe overlay", "make room there"):
        assert cure in said


def test_the_inventory_says_the_cure_and_exits_2() -> None:
    inventory = Path(__file__).parents[2] / "inventories" / "lab.py"
    done = subprocess.run([sys.executable, str(inventory)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "fix: rackwright lab up 3 --name lab" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_number_that_another_process_has_now_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        there = Process.of(child.pid)
        assert there is not None
        Process(there.pid, there.started - 1).write(tmp_path / "pid")
        assert Process.read(tmp_path / "pid") is None
        recorded = Process.recorded(tmp_path / "pid")
        assert recorded is not None
        recorded.kill()
        assert there.alive()
        there.kill()
        child.wait()
        assert not there.alive()
    for broken in ("", "12", "x y"):
        (tmp_path / "pid").write_text(broken)
        assert Process.read(tmp_path / "pid") is None
