"""Debian's own driver, NVIDIA's real one of non-free, on a host without a GPU: the real tool's own words are read."""

from __future__ import annotations

from drivers import parts
from harness import Rig
from machine import MARKS

from rackwright_facts._parse import nvidia_smi_lists

pytestmark = MARKS


def test_debians_own_driver_from_non_free(gpu_rig: Rig) -> None:
    rig = gpu_rig
    declared = {"profiles/rehearsal": {"driver": {"branch": 535, "source": "distribution"}}}
    with rig.borrowed("gpu07"), rig.settings_of("distribution", declared):
        _, after = rig.converge("gpu07", files=False)
        own = {name: version for name, version in parts(after).items() if version.startswith("535.")}
        assert {"nvidia-smi", "libnvidia-ml1", "libnvidia-cfg1", "nvidia-kernel-dkms"} <= set(own)
        assert (
            len({version for name, version in own.items() if name not in ("nvidia-persistenced", "nvidia-modprobe")})
            == 1
        )
        assert after.packages["libcuda1"].want == after.packages["nvidia-smi"].want == "hold"
        source = rig.sh("gpu07", "cat /etc/apt/sources.list.d/rackwright-distribution.list")
        assert source.endswith(" bookworm contrib non-free non-free-firmware\n")
        said = rig.lab.run("gpu07", "nvidia-smi", check=False)
        found = nvidia_smi_lists.failure(said.stdout + said.stderr, said.returncode)
        assert (said.returncode, found.kind) == (9, "driver_not_loaded")
        seen = rig.rackwright("inspect", "inventories/lab.py", "--limit", "gpu07")
        assert "couldn't communicate with the NVIDIA driver" in seen.stdout
        rig.nothing_to_change("gpu07")
