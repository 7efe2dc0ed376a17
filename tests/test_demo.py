"""Without root the demo says what is missing, and offers hosts that need nothing: these really work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be somebody else")
def test_without_root_the_demo_offers_scripted_hosts() -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash"]
    script = (_ROOT / "tools/demo").read_text().replace('cd "$(dirname "$0")/.."', "cd /")
    done = subprocess.run(nobody, input=script, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1
    assert "needs root" in done.stdout
    assert "inventories/fake.py deploys/cuda.py --dry" in done.stdout


def test_scripted_hosts_show_what_a_run_would_change() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyinfra", "inventories/fake.py", "deploys/cuda.py", "--dry"],
        cwd=_ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CUDA: the toolkits" in done.stderr
    assert "@fake/gpu01" in done.stderr


def test_the_plan_of_scripted_hosts_tells_fresh_declared_and_refused_apart() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rackwright", "plan", "inventories/fake.py"],
        cwd=_ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # one is refused
    rows = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    statuses = {row[0]: row[1] for row in rows}
    assert statuses == {"@fake/gpu01": "pending", "@fake/gpu02": "unchanged", "@fake/gpu03": "refused"}
    assert any(row[3] == "package cuda-toolkit-12-2" and row[5] == "12.2.2-1" for row in rows)
    refusal = next(row for row in rows if row[1] == "refused")
    assert "12.5.1, 12.6.3" in refusal[3]
