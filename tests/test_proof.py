"""The program that proves CUDA on GPUs, compiled by a real nvcc where there is one; no GPU is needed for that."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rackwright_facts import cuda


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, to compile CUDA C++")
def test_the_program_compiles_and_counts_what_it_finds(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(cuda._PROGRAM)
    done = subprocess.run(["nvcc", "-o", "k", "k.cu"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = subprocess.run([str(tmp_path / "k")], capture_output=True, text=True)
    # Where there is no driver this is "@ ran 0 0 CUDA driver version is insufficient ...": a verdict, and no crash.
    assert ran.returncode == 0
    passed, devices = re.match(r"@ ran (\d+) (\d+) ", ran.stdout).groups()  # type: ignore[union-attr]
    assert passed == devices


@pytest.mark.parametrize(
    ("release", "isa", "target"), [("11.4", "7.4", "sm_70"), ("12.2", "8.2", "sm_90"), ("13.0", "9.0", "sm_90")]
)
def test_the_kernel_is_written_for_the_release(release: str, isa: str, target: str) -> None:
    command = cuda.proof(release).command
    assert f".version {isa}\n.target {target}" in command
    assert f"-arch={target}" in command
    assert f"/usr/local/cuda-{release}" in command
