"""Building the vendor mirror: the same bytes again, builders side by side, killed half-way, missing tools."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rackwright.errors import HostFailure
from rackwright.lab import mirror
from rackwright.lab.mirror import NVIDIA_HOST, Mirror
from rackwright.lab.system import wait

REPOS = "compute/cuda/repos"


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_built_again_it_is_the_same_to_the_byte_and_kept_it_is_instant(cache: Path) -> None:
    first = mirror.build(cache)
    digests = _digests(first.www)
    started = time.monotonic()
    assert mirror.build(cache) == first
    assert time.monotonic() - started < 1
    shutil.rmtree(first.www)
    assert mirror.build(cache) == first
    assert _digests(first.www) == digests


def test_two_builders_at_once_agree_and_leave_nothing_behind(cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(mirror.build, (cache, cache))
    assert first == second
    assert not list(cache.glob("*-new-*"))


@pytest.mark.parametrize("delay_s", [0.15, 0.6, 1.5, 2.5])
def test_killed_builder_leaves_nothing_half_done(tmp_path: Path, delay_s: float) -> None:
    program = "import sys, pathlib; from rackwright.lab import mirror; mirror.build(pathlib.Path(sys.argv[1]))"
    builder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    time.sleep(delay_s)
    builder.kill()
    builder.wait()
    done = mirror.build(tmp_path)
    assert (done.www / NVIDIA_HOST / REPOS / "debian12/x86_64/InRelease").exists()
    assert (done.www / "html.mirror.lab").exists()
    assert not list(tmp_path.glob("*-new-*"))


def test_mirror_of_another_recipe_stays_while_it_may_be_served(cache: Path) -> None:
    used, forgotten = cache / "mirror-used", cache / "mirror-forgotten"
    for path in (used, forgotten):
        path.mkdir()
    os.utime(forgotten, (0, 0))
    mirror.build(cache)
    assert used.exists()
    assert not forgotten.exists()


def test_missing_gpg_is_said_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostFailure) as caught:
        mirror.build(tmp_path / "cache")
    assert caught.value.problems[0].fix == "apt-get install gnupg"


def test_no_package_index_is_said_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(HostFailure) as caught:
        mirror.build(tmp_path / "cache")
    problem = caught.value.problems[0]
    assert problem.what.startswith("pip cannot fetch nvidia-cuda-nvcc-cu12==12.2.140")
    assert f"put the wheel's ptxas at {tmp_path / 'cache/ptxas-12.2.140'}" in problem.fix


def test_cache_with_a_long_path(cache: Path, tmp_path: Path) -> None:
    long = cache.rename(tmp_path / ("long" * 25))
    assert (mirror.build(long).www / NVIDIA_HOST).is_dir()


def test_no_agent_of_gpg_is_left_running(built: Mirror) -> None:
    def agents() -> list[bytes]:
        said = map(_read, Path("/proc").glob("[0-9]*/cmdline"))
        return [one for one in said if b"gpg-agent" in one and b"rackwright-" in one]

    wait(lambda: not agents(), 20)  # another test's build may be at work
    assert not agents()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_wrong_ptxas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ptxas-12.2.140").write_bytes(b"not ptxas")
    with pytest.raises(HostFailure, match="this is not the ptxas of"):
        mirror.build(tmp_path)
