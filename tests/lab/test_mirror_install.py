"""The stand-in packages installed by real apt and dpkg, in the lab's base tree under a throw-away overlay."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackwright.lab import deb, mirror
from rackwright.lab.base import base_tree
from rackwright.lab.lab import cache_folder
from rackwright_facts._parse import apt_index, driver_set

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mount and chroot"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap, for the lab's base tree"),
]

_MOUNTS = """set -e
mount -t tmpfs tmpfs {room}; mkdir {room}/upper {room}/work {room}/root
mount -t overlay overlay -o lowerdir={tree},upperdir={room}/upper,workdir={room}/work {room}/root
mkdir -p {room}/root/mnt/www {room}/root/mnt/more; mount --bind {www} {room}/root/mnt/www
mount --bind {more} {room}/root/mnt/more
mount -t proc proc {room}/root/proc; mount --bind /dev {room}/root/dev
echo ready; exec sleep 900
"""
_REPOSITORY = "/mnt/www/developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"


_ARCHIVE = "/mnt/www/archive.mirror.lab/ubuntu-22.04"


class Tree:
    """A tree to install into; it is gone with the mount namespace of `holder`."""

    def __init__(self, holder: int, root: Path) -> None:
        self.holder, self.root = holder, root

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", "-m", "-t", str(self.holder), "chroot", str(self.root), "/bin/sh", "-c", command]
        env = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=env)

    def __call__(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    cache = cache_folder()
    base, built = base_tree(cache), mirror.build(cache)
    room, more = tmp_path / "room", tmp_path / "more"
    room.mkdir()
    more.mkdir()
    libtinfo5 = deb.Deb("libtinfo5", "6.4-4")
    (more / libtinfo5.filename).write_bytes(deb.build(libtinfo5))
    script = _MOUNTS.format(room=room, tree=base, www=built.www, more=more)
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        tree = Tree(holder.pid, room / "root")
        tree("dpkg -i /mnt/more/*.deb")
        tree(f"cp {_REPOSITORY}/3bf863cc.pub /etc/apt/lab.asc; rm -f /etc/apt/sources.list.d/*")
        tree(f"for r in {_REPOSITORY} {_ARCHIVE}; do echo \"deb [signed-by=/etc/apt/lab.asc] file:$r /\"; done"
             " >/etc/apt/sources.list")  # fmt: skip
        tree("apt-get update")
        yield tree
    finally:
        holder.kill()
        holder.wait()


def _install(*packages: str) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def test_toolkit_installs_links_and_assembles(tree: Tree) -> None:
    said = tree(_install("cuda-toolkit-12-2"))
    assert "using /usr/local/cuda-12.2 to provide /usr/local/cuda (cuda) in auto mode" in said
    assert "not an ELF file" not in said
    assert tree("readlink /usr/local/cuda /etc/alternatives/cuda").split() == [
        "/etc/alternatives/cuda",
        "/usr/local/cuda-12.2",
    ]
    assert tree("update-alternatives --query cuda | grep Priority").strip() == "Priority: 122"
    libraries = tree("ldconfig -p")
    for name in ("libcudart.so.12", "libcublas.so.12", "libcufft.so.11", "libnvJitLink.so.12"):
        assert f"{name} (libc6,x86-64) => /usr/local/cuda" in libraries
    assert tree("/usr/local/cuda/bin/nvcc --version").splitlines()[3].endswith("release 12.2, V12.2.140")
    assert tree("ls /usr/local/cuda/lib64/libcudart.so /usr/local/cuda/include/cuda_runtime.h")
    assert tree("dpkg --audit; dpkg --verify") == ""
    conffiles = tree("dpkg-query -W -f '${Conffiles}\\n' 'cuda-*' 'libcufile-*'")
    for path in (
        "/etc/ld.so.conf.d/000_cuda.conf",
        "/etc/ld.so.conf.d/988_cuda-12.conf",
        "/usr/local/cuda-12.2/gds/cufile.json",
    ):
        assert f" {path} " in conffiles


def test_a_toolkit_beside_takes_the_alternative_and_gives_it_back(tree: Tree) -> None:
    tree(_install("cuda-toolkit-12-2", "cuda-toolkit-12-4"))
    assert tree("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-12.4"
    assert tree("readlink -f /usr/local/cuda-12").strip() == "/usr/local/cuda-12.4"
    tree("update-alternatives --set cuda /usr/local/cuda-12.2")
    tree(_install("cuda-toolkit-13-0"))
    assert tree("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-12.2"
    tree("update-alternatives --auto cuda; apt-get purge -y '.*-13-0' '.*-12-4' '.*-12-4-config-common'")
    assert tree("readlink -f /usr/local/cuda /usr/local/cuda-12").split() == ["/usr/local/cuda-12.2"] * 2
    assert tree("dpkg --audit; dpkg --verify") == ""


def test_all_goes_without_a_trace(tree: Tree) -> None:
    tree(_install("cuda-toolkit-12-2"))
    tree("apt-get purge -y 'cuda-.*' 'lib.*-12-2' 'gds-.*' 'nsight-.*'")
    left = tree("ls -d /usr/local/cuda* /etc/ld.so.conf.d/*cuda* /etc/alternatives/cuda* 2>/dev/null || true")
    assert left == ""
    assert "cuda" not in tree("ldconfig; ldconfig -p")


def test_driver_branches_replace_each_other(tree: Tree) -> None:
    index = tree(f"cat {_REPOSITORY}/Packages")
    exact = driver_set.Offer(apt_index.parse_packages(index)).resolve("535.183.01", "open", debian=False)
    tree(_install(*(f"{name}={version}" for name, version in exact.items())))
    assert tree("nvidia-smi || echo $?").splitlines()[-1] == "9"
    assert tree("test -f /lib/systemd/system/nvidia-persistenced.service && echo there") == "there\n"
    clash = tree.run(f"dpkg -i {_REPOSITORY}/nvidia-utils-580_580.95.05-0ubuntu1_amd64.deb")
    assert clash.returncode != 0
    assert "conflicting packages" in clash.stderr
    tree(_install("cuda-12-2"))
    installed = tree("dpkg-query -W -f '${db:Status-Status} ${Package}\n'").splitlines()
    assert "installed nvidia-utils" in installed
    assert "installed nvidia-utils-535" not in installed


def test_keyring_package_trips_over_the_pin_file_of_the_guide(tree: Tree) -> None:
    pin = "/etc/apt/preferences.d/cuda-repository-pin-600"
    tree(f"(cat {_REPOSITORY}/cuda-ubuntu2204.pin; echo) >{pin}")
    asked = tree.run(_install("cuda-keyring"))
    assert asked.returncode == 100
    assert "end of file on stdin at conffile prompt" in asked.stdout + asked.stderr
    tree("apt-get purge -y cuda-keyring")
    assert tree.run(f"test -e {pin}").returncode == 1
    tree(_install("cuda-keyring"))
    assert tree("cat /etc/apt/sources.list.d/cuda-ubuntu2204-x86_64.list") == (
        "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
        "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /\n"
    )
    assert "Pin: release l=NVIDIA CUDA" in tree(f"cat {pin}")
    ours = tree("gpg --show-keys --with-colons /etc/apt/lab.asc 2>/dev/null | grep ^fpr")
    assert tree("gpg --show-keys --with-colons /usr/share/keyrings/cuda-archive-keyring.gpg | grep ^fpr") == ours
