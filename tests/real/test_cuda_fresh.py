"""deploys/cuda.py on hosts that have nothing: what it leaves, an exact plan, and a second run that does nothing."""

from __future__ import annotations

import pytest
from harness import Rig
from machine import MARKS

pytestmark = MARKS


def test_a_fresh_host_gets_cuda_and_a_second_run_changes_nothing(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    plan, after = rig.converge("gpu01")
    assert plan["status"] == "pending"
    assert after.packages["cuda-toolkit-12-2"].version == "12.2.2-1"
    assert not {"cuda", "cuda-12-2", "cuda-drivers", "nvidia-driver-535"} & set(after.packages)
    vendors = {name for name in after.packages if name.startswith(("cuda-", "nsight-")) or name.endswith("-12-2")}
    assert len(vendors) > 50
    assert vendors <= after.held()
    # As a login shell, the linker and a compiler's user see it, and nothing of rackwright is asked.
    seen = rig.sh("gpu01", "bash -lc 'command -v nvcc; nvcc --version; echo $CUDA_HOME'; readlink -f /usr/local/cuda")
    assert seen.startswith("/usr/local/cuda-12.2/bin/nvcc\n")
    assert "release 12.2, V12.2.140" in seen
    assert seen.endswith("/usr/local/cuda-12.2\n/usr/local/cuda-12.2\n")
    library = rig.sh("gpu01", "realpath $(ldconfig -p | awk '/libcublas.so.12 / { print $NF; exit }')")
    assert library.startswith("/usr/local/cuda-12.2/")
    rig.nothing_to_change("gpu01")


@pytest.mark.parametrize(("host", "version"), [("gpu04", "12.6"), ("gpu05", "12.4")])
def test_deb822_where_the_release_writes_it(rig: Rig, host: str, version: str) -> None:
    rig.put_back(host, "fresh")
    with rig.settings_of(f"newer-{host}", {f"nodes/{host}/cuda": {"versions": [version], "default": version}}):
        rig.converge(host)
        source = rig.sh(host, "cat /etc/apt/sources.list.d/rackwright-cuda.sources")
        assert "Signed-By: /etc/apt/keyrings/rackwright-cuda.gpg" in source
        assert f"release {version}" in rig.sh(host, "bash -lc 'nvcc --version'")
        rig.nothing_to_change(host)


def test_versions_side_by_side_with_the_default_as_declared(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    for default in ("12.2", "12.4", None):
        wanted = {"versions": ["12.2", "12.4"], "default": default}
        with rig.settings_of("both", {"profiles/rehearsal/cuda": wanted}):
            _, after = rig.converge("gpu01")
            assert {"cuda-toolkit-12-2", "cuda-toolkit-12-4"} <= after.held()
            rig.nothing_to_change("gpu01")
        there = rig.sh("gpu01", "bash -lc 'command -v nvcc'; readlink -f /usr/local/cuda", check=False).split()
        # Without a default the paths are ours no more, and the alternative is left as it is.
        last = f"/usr/local/cuda-{default or '12.4'}"
        assert there == ([f"{last}/bin/nvcc", last] if default else [last])


def test_unattended_upgrades_and_apt_upgrade_leave_the_set_alone(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of("older", {"profiles/rehearsal/cuda": {"versions": ["12.2.0"], "default": "12.2.0"}}):
        _, installed = rig.converge("gpu01")
        assert installed.packages["cuda-toolkit-12-2"].version == "12.2.0-1"
        rig.sh("gpu01", "DEBIAN_FRONTEND=noninteractive apt-get -y dist-upgrade && unattended-upgrade", timeout=300)
        moved = rig.snapshot("gpu01").packages  # the kernel is not ours to hold where no driver is declared
        assert {name: moved[name] for name in installed.held()} == {
            name: installed.packages[name] for name in installed.held()
        }
        rig.nothing_to_change("gpu01")
    # Any whole set of the branch satisfies the open version; an exact one moves it.
    rig.nothing_to_change("gpu01")
    with rig.settings_of("exact", {"profiles/rehearsal/cuda": {"versions": ["12.2.2"], "default": "12.2.2"}}):
        _, after = rig.converge("gpu01")
        assert after.packages["cuda-nvcc-12-2"].version == "12.2.140-1"
        rig.nothing_to_change("gpu01")


def test_absent_sections_are_unmanaged(rig: Rig) -> None:
    rig.put_back("gpu01", "fresh")
    with rig.settings_of("unmanaged", {"profiles/rehearsal/cuda": None}):
        rig.nothing_to_change("gpu01")
