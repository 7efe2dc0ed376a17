"""README's first command in a bare Debian tree: what `make` installs is all that the demo needs, and a second run
changes nothing. The developer's machine, with whatever it has, proves no list of packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackwright.lab.debian import debian_mirror
from rackwright.lab.lab import cache_folder

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mount and chroot"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap, for the bare tree"),
]

_REPOSITORY = Path(__file__).parents[2]
# What README says is needed beforehand, and certificates: pip speaks https.
_BEFOREHAND = "python3,python3-venv,git,make,ca-certificates"
_LAB = f"bare-{os.getpid()}"

# The overlay's upper folder cannot hold another overlay's: the lab's folders are the tmpfs's own.
_ROOM = """set -e
mount -t tmpfs -o size=6g tmpfs {room}; cd {room}; mkdir upper work root lib cache
mount -t overlay overlay -o lowerdir={tree},upperdir={room}/upper,workdir={room}/work root; cd root
mkdir -p var/lib/rackwright var/cache/bare
mount --bind {room}/lib var/lib/rackwright; mount --bind {room}/cache var/cache/bare
cp /etc/resolv.conf etc/; cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/
mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount -t tmpfs tmpfs run
git clone -q {repository} src
exec chroot . env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
  PIP_CERT=/etc/ssl/certs/ca-certificates.crt RACKWRIGHT_CACHE_DIR=/var/cache/bare RACKWRIGHT_LAB={lab} \\
  bash -c 'cd /src && {command}'
"""


@pytest.fixture(scope="module")
def bare_tree() -> Path:
    """A minimal Debian with what README asks for, built once."""
    tree = cache_folder() / "bare-tree-1"
    if not tree.exists():
        unfinished = Path(tempfile.mkdtemp(dir=cache_folder(), prefix="bare-new-"))
        unfinished.chmod(0o755)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={_BEFOREHAND}", "bookworm", unfinished, debian_mirror()],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        unfinished.rename(tree)
    return tree


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_the_demo_runs_in_a_bare_tree_and_again_changes_nothing(bare_tree: Path, room: Path) -> None:
    command = f"make demo && echo SECOND && make demo && .venv/bin/rackwright lab down --purge --name {_LAB}"
    script = _ROOM.format(room=room, tree=bare_tree, repository=_REPOSITORY, lab=_LAB, command=command)
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script],
        capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    first, _, second = done.stdout.partition("SECOND")
    for output in (first, second):
        for host in ("gpu01", "gpu02", "gpu03"):
            assert f"{host}\tok\tUbuntu 22.04" in output
        assert output.count("nvcc 12.2.140, assembled only") == 3
        assert output.count("driver: NVIDIA driver 580.126.16 (open): 8/8 GPUs, fabric completed") == 3
        assert output.count("\tH100 80GB HBM3\t580.126.16\t13.0\t") == 24
        assert "stop the lab:" in output
    assert "3 changed" in done.stderr
    assert "nothing to change" in done.stderr.rpartition("3 changed")[2]
