"""validate, init, doctor and the inventories, as an engineer calls them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rackwright.config import load, schema
from rackwright.inventory import pyinfra_groups

_ROOT = Path(__file__).parents[2]
_SECRET = "hunter2-in-the-environment"


def _run(*argv: str, cwd: Path = _ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RACKWRIGHT_CL")}
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", *argv], cwd=cwd, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": paths, **more},
    )  # fmt: skip


def _yaml(folder: Path, more: str = "", host: str = "gpu01", **node: object) -> Path:
    path = folder / "cluster.yaml"
    body = {"profile": "p", **node}
    path.write_text(f"cluster: a\nprofiles: {{p: {{}}}}\nnodes: {{{host}: {json.dumps(body)}}}\n{more}")
    return path


def test_validate_shows_what_is_there_and_exits_with_0() -> None:
    done = _run("rackwright", "validate", "inventories/cluster.yaml")
    assert done.returncode == 0, done.stderr
    assert "hgx\t8\tgpu[01-08].example.net\tdriver, cuda, nccl" in done.stdout
    told = json.loads(_run("rackwright", "validate", "--json").stdout)
    assert told["schema"] == 1
    assert len(told["nodes"]) == 8


def test_validate_exits_with_2_and_no_traceback(tmp_path: Path) -> None:
    path = _yaml(tmp_path, "sshh: {}\n")
    for argv in (("validate", str(path)), ("plan", str(path)), ("verify", str(path)), ("doctor", str(path))):
        done = _run("rackwright", *argv)
        assert done.returncode == 2, (argv, done.stderr)
        assert "did you mean 'ssh'?" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_schema_that_is_shipped_is_the_current_one() -> None:
    shipped = json.loads((_ROOT / "inventories/cluster.schema.json").read_text())
    assert shipped == schema()
    assert json.loads(_run("rackwright", "validate", "--schema").stdout) == shipped


def test_init_writes_a_site_that_works_and_overwrites_nothing(tmp_path: Path) -> None:
    done = _run("rackwright", "init", "mysite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "mysite"
    assert _run("rackwright", "validate", cwd=site).returncode == 0
    listed = _run("pyinfra", "inventories/cluster.py", "debug-inventory", cwd=site)
    assert listed.returncode == 0, listed.stderr
    assert "gpu08.example.net" in listed.stderr
    (site / "deploys/cuda.py").write_text("mine\n")
    again = _run("rackwright", "init", "mysite", cwd=tmp_path)
    assert again.returncode == 2
    assert "mysite/deploys/cuda.py" in again.stderr
    assert (site / "deploys/cuda.py").read_text() == "mine\n"


def test_a_mistake_in_the_inventory_prints_and_exits_with_2(tmp_path: Path) -> None:
    path = _yaml(tmp_path, "sshh: {}\n")
    done = _run("pyinfra", "inventories/cluster.py", "debug-inventory", RACKWRIGHT_CLUSTER=str(path))
    assert done.returncode == 2
    assert "unknown key 'sshh'" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_secret_is_ever_printed(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2-in-a-file\n")
    path = _yaml(
        tmp_path,
        "ssh: {user: u, sudo: true, sudo_password: env:THE_PASSWORD}\n"
        "sources: {proxy: {url: 'http://proxy:1', user: me, password: 'file:password'}}\n",
        bmc={"address": "b", "password": "env:THE_PASSWORD"}, address="127.0.0.1",
    )  # fmt: skip
    cluster = load(path)
    shown = repr(cluster) + str(cluster) + cluster.model_dump_json() + json.dumps(pyinfra_groups(cluster))
    for argv in (
        ("pyinfra", "inventories/cluster.py", "debug-inventory"),
        ("pyinfra", "inventories/cluster.py", "debug-inventory", "--json"),
        ("rackwright", "validate", str(path), "--json"),
        ("rackwright", "doctor", str(path), "--json"),
        ("rackwright", "plan", str(path), "--json"),
    ):
        done = _run(*argv, RACKWRIGHT_CLUSTER=str(path), THE_PASSWORD=_SECRET)
        shown += done.stdout + done.stderr
    assert "env:THE_PASSWORD" in shown
    assert "hunter2" not in shown


def test_references_hold_from_any_working_directory(tmp_path: Path) -> None:
    more = "ssh: {user: u, sudo: true, sudo_password: 'file:password', key: keys/id, known_hosts: known}\n"
    (_, data), *_ = pyinfra_groups(load(_yaml(tmp_path, more)))["p"]
    assert data["rackwright_sudo_password"] == f"file:{tmp_path}/password"
    assert data["ssh_key"] == f"{tmp_path}/keys/id"
    assert data["ssh_known_hosts_file"] == f"{tmp_path}/known"
    assert data["_sudo"] is True


def test_doctor_tells_what_fails_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "open-key").write_text("key\n")
    (tmp_path / "open-key").chmod(0o644)
    (tmp_path / "no-key").write_text("nothing\n")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
        path = _yaml(
            tmp_path,
            "ssh: {user: u, sudo: true, sudo_password: env:NOT_SET_ANYWHERE, key: open-key, "
            f"port: {deaf.getsockname()[1]}}}\n"
            f"sources: {{cuda: {{url: 'https://x', key: no-key, fingerprint: {'A' * 40}}}}}\n",
            address="127.0.0.1",
        )
        done = _run("rackwright", "doctor", str(path), "--json")
    assert done.returncode == 1
    found = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert found[f"ssh key {tmp_path}/open-key"]["fix"] == f"chmod 600 {tmp_path}/open-key"
    assert found["secret env:NOT_SET_ANYWHERE"]["status"] == "fail"
    assert found[f"package key {tmp_path}/no-key"]["status"] == "fail"
    assert "no ssh server" in found["host gpu01"]["detail"]
    assert all(one["fix"] for one in found.values() if one["status"] != "ok")


def test_doctor_does_not_wait_for_a_host_that_never_speaks(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        path = _yaml(tmp_path, f"ssh: {{port: {silent.getsockname()[1]}}}\n", address="127.0.0.1")
        done = _run("rackwright", "doctor", str(path))
    assert done.returncode == 1
    assert "no ssh server" in done.stdout


@pytest.mark.parametrize("verb", ["plan", "verify", "doctor"])
def test_an_inventory_that_is_not_there_is_said(verb: str, tmp_path: Path) -> None:
    (tmp_path / "deploys").mkdir()
    (tmp_path / "deploys/cuda.py").write_text("")
    done = _run("rackwright", verb, cwd=tmp_path)
    assert done.returncode == 2
    assert "rackwright init" in done.stderr
