"""Commands as shell text, run by a real shell: quoting, whole files, waiting for locks."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwright.change import Run, Write
from rackwright.runtime import pyinfra_command
from rackwright.shell import run_text, write_text

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files are given to root, logs lie in /run")

_NAMES = st.text(st.characters(blacklist_characters="/\x00", blacklist_categories=("Cs",)), min_size=1, max_size=40)


def _sh(text: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, env={**os.environ, **more}, timeout=60)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_NAMES.filter(lambda name: name not in (".", "..") and len(name.encode()) < 200), st.binary(max_size=300))
def test_any_name_and_any_content(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "new folder" / name
    done = _sh("".join(write_text(Write(str(path), content, 0o640))))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o7777 == 0o640
    assert (path.parent.stat().st_mode & 0o7777) == 0o755
    assert [one.name for one in path.parent.iterdir() if "rackwright-new" in one.name] == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    before, _, after = write_text(Write(str(path), b"new"))
    assert _sh(before + "'not base64!'" + after).returncode != 0
    assert path.read_text() == "old"


def test_a_secret_is_hidden_wherever_pyinfra_prints_its_commands() -> None:
    command = pyinfra_command(Write("/etc/apt/apt.conf.d/x", b"hunter2", secret=True))
    shown = f"{command} {command!r}"
    assert "aHVudGVyMg==" not in shown
    assert "hunter2" not in shown
    assert "aHVudGVyMg==" in command.get_raw_value()  # type: ignore[attr-defined]
    assert Write("/x", b"hunter2", secret=True).to_json()["content"] == "(secret)"


def test_argument_lists_are_quoted(tmp_path: Path) -> None:
    nasty = ["a b", "$(touch pwned)", "'", '"', "*", ";reboot", "", "\n"]
    done = _sh(f"cd {tmp_path}; " + run_text(Run(("printf", "<%s>", *nasty))))
    assert done.stdout == "".join(f"<{word}>" for word in nasty)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_hangs_is_ended() -> None:
    start = time.monotonic()
    assert _sh(run_text(Run(("sleep", "60"), timeout_s=1))).returncode == 124
    assert time.monotonic() - start < 20


def _program(folder: Path, text: str) -> str:
    path = folder / "apt-get"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def test_a_package_command_waits_for_the_lock_and_goes_on(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        f"""n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) >{tmp_path}/n
lock=/var/lib/dpkg/lock-frontend
[ "$n" -lt 2 ] && {{ echo "E: Could not get lock $lock. It is held by process 4076 (unattended-upgr)"; exit 100; }}
echo "$DEBIAN_FRONTEND $NEEDRESTART_MODE $LC_ALL"
""",
    )
    done = _sh(run_text(Run((program,), packages=True)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "noninteractive l C\n"
    assert (tmp_path / "n").read_text() == "3\n"


def test_another_failure_is_not_waited_for_and_says_why(tmp_path: Path) -> None:
    program = _program(tmp_path, "echo 'E: Unable to locate package x'; exit 100\n")
    start = time.monotonic()
    done = _sh(run_text(Run((program,), packages=True)))
    assert (done.returncode, done.stderr) == (100, "E: Unable to locate package x\n")
    assert time.monotonic() - start < 2


def test_a_package_command_never_reads_from_a_terminal_and_outlives_a_broken_pipe(tmp_path: Path) -> None:
    program = _program(tmp_path, f"read -r x && exit 1; seq 100000; sleep 1; echo ended >{tmp_path}/ended\n")
    with subprocess.Popen(["sh", "-c", run_text(Run((program,), packages=True))], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()  # what sshd does when the connection is gone
        child.wait(30)
    assert (tmp_path / "ended").read_text() == "ended\n"


def test_a_configuration_file_that_was_kept_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "daemon.json"
    kept.write_text("mine")
    Path(f"{kept}.dpkg-dist").write_text("theirs")
    program = _program(
        tmp_path,
        f"printf '%s\\r\\n' \"Configuration file '{kept}'\"; echo ' ==> Keeping old config file as default.'\n",
    )
    done = _sh(run_text(Run((program,), packages=True)))
    assert f"rackwright: kept the changed {kept} (the package's own is {kept}.dpkg-dist)" in done.stdout
