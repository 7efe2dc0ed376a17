"""What cannot be had, or must not be trusted, is refused before anything changes; and a bad host fails alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness import Rig
from machine import MARKS

pytestmark = MARKS

_URL = "profiles/rehearsal/cuda"
_SYSTEMS = {
    "mint-22": ('ID=linuxmint\nVERSION_ID="22"\nID_LIKE="ubuntu debian"\nUBUNTU_CODENAME=noble\nPRETTY_NAME="Mint 22"',
                "which has 12.5.1, 12.6.3"),
    "rocky": ('ID=rocky\nVERSION_ID="9.4"\nID_LIKE="rhel centos fedora"\nPRETTY_NAME="Rocky Linux 9.4"',
              "Rocky Linux 9.4 is not supported yet"),
    "ubuntu-20.04": ('ID=ubuntu\nVERSION_ID="20.04"\nPRETTY_NAME="Ubuntu 20.04.6 LTS"',
                     "Ubuntu 20.04.6 LTS is not supported yet"),
    "garbage": ("<html>", "not supported yet"),
}  # fmt: skip


def _refused(rig: Rig, host: str, *said: str) -> None:
    """Prove that plan and run refuse the host with these words, and that neither changes it."""
    before = rig.snapshot(host)
    planned = rig.plan(host)
    told = planned.report["hosts"][host]
    assert (planned.status, told["status"], told["changes"]) == (1, "refused", []), planned.said
    text = " ".join(part for refusal in told["refusals"] for part in refusal.values())
    for words in said:
        assert words in text, (words, text)
    assert all(refusal["what"] and refusal["where"] and refusal["fix"] for refusal in told["refusals"])
    run = rig.pyinfra(host)
    assert run.status == 1, run.said
    for words in said:
        assert words in run.stderr, run.said
    assert "Traceback" not in run.stderr
    assert not before.difference(rig.snapshot(host)), "a refused host was changed"


@pytest.mark.parametrize(("host", "has"), [("gpu04", "12.5.1, 12.6.3"), ("gpu05", "12.3.2, 12.4.1")])
def test_cuda_12_2_where_its_repository_never_had_it(rig: Rig, host: str, has: str) -> None:
    rig.put_back(host, "fresh")
    _refused(rig, host, f"CUDA 12.2 is not in this repository, which has {has}", "Ubuntu 22.04")


@pytest.mark.parametrize(
    ("mirror", "said"),
    [
        ("rogue.mirror.lab", "the repository is not signed by the declared key"),
        ("old.mirror.lab", "the repository is not signed by the declared key"),
        ("expired.mirror.lab", "the repository is out of date"),
        ("half.mirror.lab", "needs cuda-nvprune-12-2"),
        ("html.mirror.lab", "what answers there is no repository, but a page"),
        ("nowhere.mirror.lab", "the repository cannot be had"),
    ],
)
def test_mirrors_that_must_not_be_used(rig: Rig, mirror: str, said: str) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of(mirror, {"sources/cuda/url": f"http://{mirror}/compute/cuda/repos"}):
        _refused(rig, "gpu01", said, mirror)


def test_a_key_that_is_not_the_declared_one(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of("other-key", {"sources/cuda/fingerprint": "A" * 40}):
        _refused(rig, "gpu01", "the key is not the declared one", "A" * 40, "vendor.asc")
    # Without settings it is NVIDIA's own key that has to lie at NVIDIA's address: the lab's is refused.
    with rig.settings_of("vendor", {"sources/cuda": None}):
        _refused(
            rig, "gpu01", "the key is not the declared one", "EB693B3035CD5710E231E123A4B469963BF863CC", "3bf863cc.pub"
        )


def test_the_vendors_address_gives_the_key_when_its_fingerprint_is_declared(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of("fetched", {"sources/cuda/key": None}):
        rig.converge("gpu01")
        rig.nothing_to_change("gpu01")


@pytest.mark.parametrize("system", _SYSTEMS)
def test_systems_that_are_not_supported(rig: Rig, system: str) -> None:
    fields, said = _SYSTEMS[system]
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", f"cat >/etc/os-release <<'E'\n{fields}\nE")
    _refused(rig, "gpu01", said)


def test_a_derivative_goes_by_the_release_that_it_is_made_of(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "cat >/etc/os-release <<'E'\nID=linuxmint\nVERSION_ID=\"21.3\"\nID_LIKE=\"ubuntu debian\"\n"
                    "UBUNTU_CODENAME=jammy\nE")  # fmt: skip
    rig.converge("gpu01")


def test_no_room_for_the_set(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "mount -t tmpfs -o size=8m tmpfs /usr/local")
    _refused(rig, "gpu01", "the set needs", "/usr/local")


def test_a_package_that_apt_would_have_to_move(rig: Rig) -> None:
    """Another pin forces a part to another release: apt would do something else than was asked, so nothing is done."""
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install libtinfo5 >/dev/null;"
                    " printf 'Package: libtinfo5\\nPin: release *\\nPin-Priority: -10\\n' >/etc/apt/preferences.d/no;"
                    " dpkg --force-all --purge libtinfo5")  # fmt: skip
    _refused(rig, "gpu01", "apt finds no way to install the set", "libtinfo5")


@contextmanager
def _cut(rig: Rig) -> Iterator[str]:
    rig.lab.cut("gpu02")
    try:
        yield "unreachable"
    finally:
        rig.lab.mend("gpu02")


@contextmanager
def _hanging(rig: Rig) -> Iterator[str]:
    rig.sh("gpu02", "mv /usr/bin/dpkg-query /usr/bin/dpkg-query.real; printf '#!/bin/sh\\nexec sleep 3600\\n'"
                    " >/usr/bin/dpkg-query; chmod +x /usr/bin/dpkg-query")  # fmt: skip
    yield "no answer within"
    rig.sh("gpu02", "mv /usr/bin/dpkg-query.real /usr/bin/dpkg-query")


@contextmanager
def _full(rig: Rig) -> Iterator[str]:
    rig.sh("gpu02", "mount -t tmpfs -o size=8m tmpfs /usr/local")
    yield "the set needs"
    rig.sh("gpu02", "umount /usr/local")


@contextmanager
def _broken(rig: Rig) -> Iterator[str]:
    """A package of somebody else whose configuration never ends well."""
    rig.sh(
        "gpu02",
        r"""d=$(mktemp -d); mkdir -p $d/p/DEBIAN
printf 'Package: theirs\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' >$d/p/DEBIAN/control
printf '#!/bin/sh\necho "theirs: cannot be configured" >&2\nexit 1\n' >$d/p/DEBIAN/postinst
chmod 755 $d/p/DEBIAN/postinst; dpkg-deb -b $d/p $d/p.deb >/dev/null; dpkg -i $d/p.deb || true""",
    )
    yield "Packages: no interrupted work"
    rig.sh("gpu02", "dpkg --force-all --purge theirs")


@pytest.mark.parametrize("fault", [_cut, _hanging, _full, _broken], ids=lambda fault: fault.__name__)
def test_a_bad_host_fails_alone_with_its_reason_and_the_command_to_retry(rig: Rig, fault: object) -> None:
    for host in ("gpu01", "gpu02"):
        rig.put_back(host, "fresh")
    with fault(rig) as reason:  # type: ignore[operator]
        run = rig.pyinfra("gpu01", "gpu02")
        assert run.status == 1, run.said
        summary = run.stderr[run.stderr.index("--> Hosts:") :]
        assert "gpu02: " in summary
        assert reason in summary
        assert "gpu01: " not in summary
        assert "--limit gpu02" in summary
        assert "1 changed, 1 " in summary
        assert "Traceback" not in run.stderr
        assert "release 12.2" in rig.sh("gpu01", "bash -lc 'nvcc --version'")
    # Once the cause is gone, the command that was offered does the rest.
    assert rig.pyinfra("gpu02").status == 0
    rig.nothing_to_change("gpu02")
