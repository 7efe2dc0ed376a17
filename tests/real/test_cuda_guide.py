"""A host that was built by a circulating guide's own commands is brought to the declared state, and stays there."""

from __future__ import annotations

import pytest
from faults import URL
from harness import Rig
from machine import MARKS

pytestmark = MARKS
HOST = "gpu03"
_NAME = "archive_uri-https_developer_download_nvidia_com_compute_cuda_repos_ubuntu2204_x86_64_-jammy.list"
_SOURCE = f"/etc/apt/sources.list.d/{_NAME}"
_PIN = "/etc/apt/preferences.d/cuda-repository-pin-600"

# What every Ubuntu server has and the lab's tree has not. gpg's fetcher wants to know of a name server, whoever it is.
_PREPARED = """export DEBIAN_FRONTEND=noninteractive
apt-get -qq -y install --no-install-recommends software-properties-common >/dev/null
echo nameserver 127.0.0.1 >/etc/resolv.conf"""

# As the guide has it, less sudo (shared/reference/guide.txt, 3.1).
_GUIDE = f"""set -e
cd $(mktemp -d)
wget -q {URL}/cuda-ubuntu2204.pin
mv cuda-ubuntu2204.pin {_PIN}
apt-key adv --fetch-keys {URL}/3bf863cc.pub
add-apt-repository -y "deb {URL}/ /"
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get -y install cuda-12-2
"""


@pytest.mark.soak(sample=2)
@pytest.mark.parametrize("hand", ["", "apt-get -y install cuda-keyring", f"rm {_SOURCE}; apt-get update"],
                         ids=["as-it-says", "with-the-keyring-package-on-top", "whose-source-is-gone"])  # fmt: skip
def test_the_guides_host(rig: Rig, hand: str) -> None:
    if not rig.has(HOST, "guide"):
        rig.put_back(HOST, "fresh")
        rig.sh(HOST, _PREPARED, timeout=300)
        rig.sh(HOST, _GUIDE, timeout=300)
        rig.keep(HOST, "guide")
    rig.put_back(HOST, "guide")
    rig.sh(HOST, hand)
    guide = rig.snapshot(HOST)
    assert {"cuda-12-2", "cuda-runtime-12-2", "nvidia-driver"} <= set(guide.packages)
    assert {"/etc/apt/trusted.gpg", _PIN} <= set(guide.files)

    plan, after = rig.converge(HOST)
    gone = {change["what"].removeprefix("package ") for change in plan["changes"]
            if change["what"].startswith("package ") and change["to"] is None}  # fmt: skip
    assert gone - {"cuda-keyring"} == {"cuda-12-2", "cuda-runtime-12-2", "cuda-demo-suite-12-2"}
    # The driver is not this deploy's: neither moved, nor the next thing that autoremove takes.
    for name in ("nvidia-driver", "nvidia-utils", "libnvidia-compute"):
        assert after.packages[name] == guide.packages[name]
    assert "Remv" not in rig.sh(HOST, "apt-get -s autoremove")
    assert not {"/etc/apt/trusted.gpg", _SOURCE} & set(after.files)
    assert "NVIDIA" not in rig.sh(HOST, f"cat {_PIN} 2>&1", check=False)
    assert rig.sh(HOST, f"grep -rhE '^[^#]*{URL[8:30]}' /etc/apt --include=*.list --include=*.sources").count("\n") == 1
    assert "cuda-toolkit-12-2" in after.held()
    rig.nothing_to_change(HOST)

    # What a fresh host has of CUDA, this one has too, file for file.
    rig.put_back(HOST, "fresh")
    assert rig.pyinfra(HOST).status == 0
    fresh = rig.snapshot(HOST)
    places = ("/usr/local/", "/etc/apt/", "/etc/profile.d/", "/etc/ld.so.conf")
    ours = {path for path in fresh.files if path.startswith(places)}
    assert ours <= set(after.files)
    assert not {path: after.files[path] for path in ours if after.files[path] != fresh.files[path]}
    assert fresh.held() == after.held()
    assert all(fresh.packages[name] == after.packages[name] for name in fresh.held())
