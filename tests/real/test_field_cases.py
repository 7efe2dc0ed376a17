"""Failures from the field, one test each, with the right behaviour; each holds its own small input.

`test_case_<id>` is the case of that id. Parts about Docker, containers, md arrays, canaries and cluster-wide stages
come with what they are about.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest
import yaml
from harness import Rig, wait_for
from machine import MARKS

from rackwright.lab.base import SUDO_PASSWORD

pytestmark = MARKS

_URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
_D = "/etc/apt/sources.list.d"
_DONE = ("apt-repo", "pkg-run", "orchestration", "proxy-airgap", "driver-version", "driver-kernel", "monitor-gpu")


def _only_entry(rig: Rig, host: str) -> None:
    """Prove by apt itself that one entry is left for the repository, with our key, and that apt reads all sources."""
    said = rig.sh(host, "apt-get indextargets --format '$(REPO_URI) $(SOURCESENTRY)' | grep nvidia | sort -u")
    assert said == f"{_URL}/ {_D}/rackwright-cuda.list:2\n"
    assert "[signed-by=/etc/apt/keyrings/rackwright-cuda.gpg]" in rig.sh(host, f"cat {_D}/rackwright-cuda.list")
    rig.sh(host, "apt-get update -qq")


def test_case_apt_signed_by_conflict_docker(rig: Rig) -> None:
    """The same repository twice with two keys: apt reads no source at all, and every package step fails."""
    rig.put_back("gpu03", "fresh")
    rig.sh(
        "gpu03",
        f"echo 'deb http://10.77.0.1/debian bookworm main  # the site mirror' >{_D}/cuda-hand.list;"
        f"echo 'deb [arch=amd64 signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {_URL} /'"
        f" >>{_D}/cuda-hand.list;"
        f"echo 'deb [arch=amd64] {_URL}/ /' >{_D}/developer_download_nvidia_com.list",
    )
    assert "Conflicting values set for option Signed-By" in rig.lab.run("gpu03", "apt-get update", check=False).stderr
    plan, after = rig.converge("gpu03")
    told = [change["what"] for change in plan["changes"]]
    assert f"another source for cuda in {_D}/cuda-hand.list" in told
    assert f"another source for cuda in {_D}/developer_download_nvidia_com.list" in told
    assert f"{_D}/developer_download_nvidia_com.list.disabled" in after.files
    kept = rig.sh("gpu03", f"cat {_D}/cuda-hand.list").splitlines()
    assert kept[0] == "deb http://10.77.0.1/debian bookworm main  # the site mirror"
    assert kept[1].startswith("# disabled by rackwright: deb [arch=amd64 signed-by=")
    _only_entry(rig, "gpu03")
    rig.nothing_to_change("gpu03")


def test_case_apt_cuda_key_rotated(rig: Rig) -> None:
    """Only the retired key is trusted, by apt-key, and the list file is the old one."""
    rig.put_back("gpu03", "fresh")
    rig.sh(
        "gpu03",
        f"wget -qO- {_URL}/7fa2af80.pub | gpg --dearmor >/etc/apt/trusted.gpg; chmod 644 /etc/apt/trusted.gpg;"
        f"echo 'deb {_URL} /' >{_D}/cuda.list",
    )
    assert "NO_PUBKEY" in rig.lab.run("gpu03", "apt-get update", check=False).stderr
    # The lab's retired key is not NVIDIA's; that key by key it is taken out is shown by the parser's tests.
    rig.converge("gpu03")
    _only_entry(rig, "gpu03")
    rig.nothing_to_change("gpu03")
    # An unknown key is told by its id, with URL and file, and never worked around.
    with rig.settings_of("unknown-key", {"sources/cuda/url": "http://rogue.mirror.lab/compute/cuda/repos"}):
        rig.put_back("gpu03", "fresh")
        (refusal,) = rig.plan("gpu03").report["hosts"]["gpu03"]["refusals"]
        assert re.search(r"NO_PUBKEY [0-9A-F]{16}", refusal["where"])
        assert "http://rogue.mirror.lab" in refusal["where"]
        assert "/etc/apt/keyrings/rackwright-cuda.gpg" in refusal["where"]
        assert "trusted=yes" not in rig.sh("gpu03", "cat /etc/apt/sources.list /etc/apt/sources.list.d/*", check=False)


def test_case_pyinfra_facts_before_changes(rig: Rig) -> None:
    """A fact whose program is not there yet is absent, and no failure; what was decided on is looked at again."""
    rig.put_back("gpu03", "fresh")
    for fact in ("rackwright_facts.cuda.Default", "rackwright_facts.cuda.ToolkitProof release=12.2"):
        run = rig.finish(
            rig.start(["pyinfra", "inventories/lab.py", "--json", "--limit", "gpu03", "fact", *fact.split()])
        )
        assert run.status == 0, run.said
        (answers,) = run.report.values()
        assert answers["gpu03"]["status"] == "absent"
    # Between plan and run somebody else does the work: the run sees it, and does not do it again.
    planned = rig.plan("gpu03")
    assert any(c["what"] == "package cuda-toolkit-12-2" for c in planned.report["hosts"]["gpu03"]["changes"])
    assert any(not c["known"] for c in planned.report["hosts"]["gpu03"]["changes"])  # said: known only afterwards
    assert rig.pyinfra("gpu03").status == 0
    again = rig.pyinfra("gpu03")
    assert (again.status, again.changed("gpu03")) == (0, [])


def test_case_apt_dpkg_lock_first_boot(rig: Rig) -> None:
    """The locks of dpkg, and then of apt's lists, are held by somebody else: waited for, told, and never removed."""
    rig.put_back("gpu03", "fresh")
    holder = (
        "import fcntl,time\n"
        "for name, seconds in (('/var/lib/dpkg/lock-frontend', 12), ('/var/lib/apt/lists/lock', 12)):\n"
        "    with open(name, 'w') as lock:\n"
        "        fcntl.lockf(lock, fcntl.LOCK_EX); open('/run/held', 'a').write(name); time.sleep(seconds)\n"
    )
    hold = threading.Thread(target=lambda: rig.lab.run("gpu03", ["python3", "-c", holder], timeout=60))
    hold.start()
    wait_for(lambda: rig.sh("gpu03", "cat /run/held", check=False), 10, "the lock is held")
    planned = rig.rackwright("verify", "inventories/lab.py", "--deploy", "deploys/cuda.py", "--limit", "gpu03")
    assert planned.status == 4
    locks = rig.finish(rig.start(
        ["pyinfra", "inventories/lab.py", "--json", "--limit", "gpu03", "fact", "rackwright_facts.packages.Locks"]
    ))  # fmt: skip
    (held,) = next(iter(locks.report.values()))["gpu03"]["value"]
    assert (held["path"], held["command"]) == ("/var/lib/dpkg/lock-frontend", "python3")
    start = time.monotonic()
    run = rig.pyinfra("gpu03")
    hold.join()
    assert run.status == 0, run.said
    assert time.monotonic() - start > 3  # it has waited
    rig.nothing_to_change("gpu03")


def test_case_pyinfra_partial_fleet_failure(rig: Rig) -> None:
    """One host cannot be reached and one is refused: the others are done, and the run says whom to run again."""
    for host in ("gpu01", "gpu03"):
        rig.put_back(host, "fresh")
    rig.lab.cut("gpu02")
    try:
        run = rig.pyinfra("gpu01", "gpu02", "gpu03", "gpu04")  # gpu04 is Ubuntu 24.04: no CUDA 12.2 there
    finally:
        rig.lab.mend("gpu02")
    assert run.status == 1
    lines = run.stderr[run.stderr.index("--> Hosts:") :].splitlines()
    assert any("gpu02: unreachable" in line for line in lines)
    assert any("gpu04: CUDA 12.2 is not in this repository" in line for line in lines)
    assert any("retry: pyinfra" in line and "--limit gpu02 --limit gpu04" in line for line in lines)
    assert any("2 changed, 1 failed, 1 unreachable" in line for line in lines)
    for host in ("gpu01", "gpu03"):
        rig.nothing_to_change(host)


def test_case_apt_key_binary_gone(rig: Rig) -> None:
    """apt-key is nobody's to call, /etc/apt/keyrings is not there, and a umask keeps everybody else out."""
    rig.put_back("gpu03", "fresh")
    # Debian 12's own apt still verifies by `apt-key verify`: all other calls are written down, and fail.
    rig.sh(
        "gpu03",
        "mv /usr/bin/apt-key /usr/bin/apt-key.real; printf '%s\\n' '#!/bin/sh' 'case \" $* \" in *\" verify \"*)"
        ' exec /usr/bin/apt-key.real "$@" ;; esac\' \'echo "$@" >>/apt-key-was-called; exit 127\' >/usr/bin/apt-key;'
        "chmod +x /usr/bin/apt-key; rm -rf /etc/apt/keyrings;"
        "echo 'umask 077' | tee -a /root/.bashrc >>/etc/profile",
    )
    _, after = rig.converge("gpu03")
    assert "/apt-key-was-called" not in after.files
    modes = rig.sh("gpu03", "stat -c %a /etc/apt/keyrings /etc/apt/keyrings/rackwright-cuda.gpg").split()
    assert modes == ["755", "644"]
    rig.sh("gpu03", "setpriv --reuid=_apt --clear-groups cat /etc/apt/keyrings/rackwright-cuda.gpg >/dev/null")
    _only_entry(rig, "gpu03")
    # A key that only root may read is mended: _apt cannot check signatures with it.
    rig.sh("gpu03", "chmod 600 /etc/apt/keyrings/rackwright-cuda.gpg")
    rig.converge("gpu03")
    rig.nothing_to_change("gpu03")


def test_case_pyinfra_sudo_password_locale(rig: Rig) -> None:
    """sudo asks in French: it is known from its exit status that a password is needed, before any host is changed."""
    for host in ("gpu01", "gpu03"):
        rig.put_back(host, "fresh")
    rig.sh(
        "gpu03",
        "apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install locales >/dev/null;"
        "localedef -i fr_FR -f UTF-8 fr_FR.UTF-8; echo LANG=fr_FR.UTF-8 >/etc/default/locale",
        timeout=300,
    )
    french = rig.sh("gpu03", "su - ubuntu -c 'LANG=fr_FR.UTF-8 LC_ALL=fr_FR.UTF-8 sudo -n true' 2>&1", check=False)
    assert "mot de passe" in french, french
    before = rig.snapshot("gpu03")
    wanted = {"ssh/user": "ubuntu", "ssh/sudo": True}
    with rig.settings_of("french", wanted):
        run = rig.pyinfra("gpu03", timeout=60)  # nobody is there to type one
        assert run.status == 1
        assert "sudo needs a password here" in run.stderr
        assert "ssh.sudo_password" in run.stderr
        assert not before.difference(rig.snapshot("gpu03"))
    with rig.settings_of("french-password", {**wanted, "ssh/sudo_password": "env:LAB_SUDO"}):
        run = rig.pyinfra("gpu03", more={"LAB_SUDO": SUDO_PASSWORD})
        assert run.status == 0, run.said
        assert SUDO_PASSWORD not in run.stderr + run.stdout


def test_case_apt_html_saved_as_list(rig: Rig) -> None:
    """An error page was saved as a list file on a derivative: ours is written here, theirs is named."""
    page = '<!DOCTYPE html>\n<html lang="en"> ...'
    mint = 'ID=linuxmint\nVERSION_ID="21.3"\nID_LIKE="ubuntu debian"\nUBUNTU_CODENAME=jammy'
    rig.put_back("gpu03", "fresh")
    rig.sh("gpu03", f"cat >/etc/os-release <<'E'\n{mint}\nE\nprintf '%s\\n' '{page}' >{_D}/cuda.list")
    plan, after = rig.converge("gpu03")
    assert f"unreadable source in {_D}/cuda.list" in [change["what"] for change in plan["changes"]]
    assert f"{_D}/cuda.list.disabled" in after.files
    _only_entry(rig, "gpu03")
    before = rig.snapshot("gpu03")
    rig.sh("gpu03", f"printf '%s\\n' '{page}' >{_D}/nvidia-container-toolkit.list")
    (refusal,) = rig.plan("gpu03").report["hosts"]["gpu03"]["refusals"]
    assert "apt cannot read" in refusal["what"]
    assert refusal["where"] == f"{_D}/nvidia-container-toolkit.list"
    assert rig.pyinfra("gpu03").status == 1
    assert set(before.difference(rig.snapshot("gpu03"))) == {f"{_D}/nvidia-container-toolkit.list"}


def test_case_apt_env_lost_through_sudo(rig: Rig) -> None:
    """sudo resets the environment, and a package asks about a configuration file that was changed: nobody is asked."""
    rig.put_back("gpu03", "fresh")
    by_sudo = {"ssh/user": "rack", "ssh/sudo": True}
    assert "env_reset" in rig.sh("gpu03", "cat /etc/sudoers")
    with rig.settings_of("older", {"profiles/rehearsal/cuda": {"versions": ["12.2.0"], "default": None}, **by_sudo}):
        assert rig.pyinfra("gpu03").status == 0
    (conffile, *_), *_ = (
        line.split()
        for line in rig.sh("gpu03", "dpkg-query -W -f='${Conffiles}\\n' libcufile-12-2").splitlines()
        if line
    )
    # As if the release before had shipped other content: dpkg would ask which one to take.
    rig.sh(
        "gpu03", f"echo '# mine' >>{conffile}; sed -i 's#^ {conffile} .*# {conffile} {'0' * 32}#' /var/lib/dpkg/status"
    )
    with rig.settings_of("newer", {"profiles/rehearsal/cuda": {"versions": ["12.2.2"], "default": None}, **by_sudo}):
        run = rig.pyinfra("gpu03")
        assert run.status == 0, run.said
        assert f"kept the changed {conffile} (the package's own is {conffile}.dpkg-dist)" in run.stderr, run.said
        assert rig.sh("gpu03", f"tail -n 1 {conffile}") == "# mine\n"
        rig.nothing_to_change("gpu03")


def test_case_proxy_repo_unreachable(rig: Rig) -> None:
    """Without the proxy nothing of the vendor's can be reached: told, per node, before a change; with it all can."""
    rig.put_back("gpu03", "fresh")
    rig.sh("gpu03", "sed -i 's/ controller .*/ controller/' /etc/hosts")
    before = rig.snapshot("gpu03")
    run = rig.pyinfra("gpu03")
    assert run.status == 1
    assert "the repository cannot be had" in run.stderr
    assert "proxy" in run.stderr
    assert not before.difference(rig.snapshot("gpu03"))
    wanted = {"sources/proxy": "http://10.77.0.1:3128", "sources/cuda/key": None}
    with rig.settings_of("by-proxy", wanted):
        rig.converge("gpu03")  # the key's download too
        rig.nothing_to_change("gpu03")


def test_every_case_of_what_is_done_has_its_test() -> None:
    corpus = os.environ.get("RACKWRIGHT_CORPUS")
    if not corpus:
        pytest.skip("$RACKWRIGHT_CORPUS is not set: the cases are not here")
    cases = yaml.safe_load(Path(corpus, "cases/field-failures.yaml").read_text())
    wanted = {f"test_case_{case['id'].replace('-', '_')}" for case in cases if case["kind"] in _DONE}
    assert len(wanted) == 24
    texts = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert wanted <= set(re.findall(r"^def (test_case_\w+)", texts, re.MULTILINE))
