"""Ways to a host: sudo with and without a password, proxies with and without credentials."""

from __future__ import annotations

import shlex

from harness import Rig
from machine import MARKS

from rackwright.lab.base import SUDO_PASSWORD
from rackwright.lab.relay import PROXY_PASSWORD, PROXY_USER

pytestmark = MARKS

_SECRET = {"LAB_SUDO": SUDO_PASSWORD, "LAB_PROXY": PROXY_PASSWORD}


def test_sudo_with_a_password_full_of_shell(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    wanted = {"ssh/user": "ubuntu", "ssh/sudo": True, "ssh/sudo_password": "env:LAB_SUDO"}
    with rig.settings_of("sudo-password", wanted):
        before = rig.snapshot("gpu01")
        planned = rig.plan("gpu01", more=_SECRET)
        assert planned.status == 3, planned.said
        run = rig.pyinfra("gpu01", more=_SECRET)
        assert run.status == 0, run.said
        said = planned.stdout + planned.stderr + run.stdout + run.stderr
        assert SUDO_PASSWORD not in said
        assert shlex.quote(SUDO_PASSWORD) not in said
        assert "cuda-toolkit-12-2" in rig.snapshot("gpu01").held()
        assert before.difference(rig.snapshot("gpu01"))
        rig.nothing_to_change("gpu01", more=_SECRET)


def test_sudo_without_a_password(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of("sudo", {"ssh/user": "rack", "ssh/sudo": True}):
        assert rig.pyinfra("gpu01").status == 0
        rig.nothing_to_change("gpu01")


def test_a_sudo_password_that_is_wrong_or_not_there_is_told_and_nothing_changes(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    before = rig.snapshot("gpu01")
    wrong = {"ssh/user": "ubuntu", "ssh/sudo": True, "ssh/sudo_password": "env:LAB_SUDO"}
    none = {"ssh/user": "ubuntu", "ssh/sudo": True}
    for name, settings, more, said in (
        ("none", none, {}, "sudo needs a password here"),
        ("wrong", wrong, {"LAB_SUDO": "hunter2"}, "sudo did not take the password"),
        ("unset", wrong, {}, "the environment variable LAB_SUDO is not set"),
    ):
        with rig.settings_of(f"sudo-{name}", settings):
            planned = rig.plan("gpu01", more=more)
            assert (planned.status, planned.report["hosts"]["gpu01"]["status"]) == (1, "refused"), planned.said
            assert said in planned.stdout
            run = rig.pyinfra("gpu01", more=more)
            assert run.status == 1, run.said
            assert said in run.stderr
            assert "Traceback" not in run.stderr
            assert "hunter2" not in run.stderr + run.stdout + planned.stdout
    changed = before.difference(rig.snapshot("gpu01"))
    assert not changed


def _closed(rig: Rig) -> None:
    """Take the vendor's names away from the host: what it fetches now comes by the proxy or not at all."""
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "sed -i 's/ controller .*/ controller/' /etc/hosts")
    assert rig.plan("gpu01").status == 1


def test_one_declared_proxy_serves_key_lists_and_packages(rig: Rig) -> None:
    _closed(rig)
    with rig.settings_of("proxy", {"sources/proxy": "http://10.77.0.1:3128", "sources/cuda/key": None}):
        _, after = rig.converge("gpu01")
        file = "/etc/apt/apt.conf.d/90rackwright-cuda-proxy"
        # For this repository's host alone: the distribution's mirror is reached as before.
        assert rig.sh("gpu01", f"cat {file}").splitlines() == [
            f'Acquire::{method}::Proxy::developer.download.nvidia.com "http://10.77.0.1:3128";'
            for method in ("http", "https")
        ]
        assert file in after.files
        rig.nothing_to_change("gpu01")
    assert "CONNECT developer.download.nvidia.com" in rig.lab.access_log.read_text()


def test_a_proxys_credentials_are_for_root_alone_and_never_shown(rig: Rig) -> None:
    _closed(rig)
    proxy = {"url": "http://10.77.0.1:3129", "user": PROXY_USER, "password": "env:LAB_PROXY"}
    with rig.settings_of("proxy-credentials", {"sources/proxy": proxy}):
        planned = rig.plan("gpu01", more=_SECRET)
        run = rig.pyinfra("gpu01", more=_SECRET)
        assert (planned.status, run.status) == (3, 0), planned.said + run.said
        said = planned.stdout + planned.stderr + run.stdout + run.stderr
        assert PROXY_PASSWORD not in said
        assert "s3cret" not in said
        assert rig.sh("gpu01", "stat -c %a:%U /etc/apt/apt.conf.d/90rackwright-cuda-proxy") == "600:root\n"
        rig.nothing_to_change("gpu01", more=_SECRET)
        refused = rig.plan("gpu01", more={"LAB_PROXY": "wrong"})
        assert "s3cret" not in refused.stdout + refused.stderr
