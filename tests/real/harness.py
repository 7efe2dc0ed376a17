"""A lab for the tests on real hosts: disks put back in a second, pyinfra and the plan run as their own processes.

`Rig.converge` is what nearly every test is made of: plan, run, and the proof that the two are the same (compare.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import compare
import snapshot
import yaml
from snapshot import Snapshot

from rackwright.lab import Lab

REPOSITORY = Path(__file__).parents[2]
_RUN_S = 300


@dataclass(frozen=True)
class Run:
    """A finished run of pyinfra or of rackwright."""

    status: int
    stdout: str = field(repr=False)
    stderr: str

    @property
    def said(self) -> str:
        """Return its output, for a message: the end of it, long lines cut."""
        lines = [*self.stdout.splitlines()[-80:], *self.stderr.splitlines()[-80:]]
        return "\n".join(line[:300] for line in lines)

    @property
    def report(self) -> dict[str, Any]:
        """Return its JSON."""
        assert self.stdout.strip().startswith("{"), self.said
        return json.loads(self.stdout)  # type: ignore[no-any-return]

    def changed(self, host: str) -> list[str]:
        """Return the names of the operations that pyinfra counts as changes of the host."""
        return [each["name"] for each in self.report["results"]["operations"] if host in each["success"]]

    def failed(self) -> set[str]:
        """Return the hosts that pyinfra counts as failed."""
        return set(self.report["results"]["failed_hosts"])


class Rig:
    """The lab, its saved disks, and the command lines."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.cluster: Path = lab.settings_path

    def settings(self, name: str, changes: Mapping[str, Any]) -> Path:
        """Write the lab's settings with `changes` (dotted path -> value, None: away) and return the file."""
        data = yaml.safe_load(self.lab.settings_path.read_text())
        for dotted, value in changes.items():
            at = data
            *parents, last = dotted.split("/")
            for key in parents:
                at = at.setdefault(key, {})
            if value is None:
                at.pop(last, None)
            else:
                at[last] = value
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return path

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
        ours = {"RACKWRIGHT_LAB": self.lab.name, "RACKWRIGHT_CLUSTER": str(self.cluster), "PYTHONPATH": paths}
        return {**os.environ, **ours, "NO_COLOR": "1", **more}

    def start(self, argv: Sequence[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start one of the commands, in a process group of its own."""
        script = Path(sys.executable).with_name(argv[0])
        program = [str(script)] if script.exists() else [sys.executable, "-m", argv[0]]
        return subprocess.Popen(
            [*program, *argv[1:]], cwd=REPOSITORY, env=self._environment(more or {}), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def finish(self, child: subprocess.Popen[str], timeout: float = _RUN_S) -> Run:
        """Wait for a command, and kill all of it when it does not end."""
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            raise AssertionError(f"no end after {timeout} s:\n{out}\n{err}") from None
        return Run(child.returncode, out, err)

    def pyinfra_argv(self, *hosts: str, deploy: str = "deploys/cuda.py") -> list[str]:
        """Return the command that an engineer gives, with the output that a test wants."""
        limits = [part for host in hosts for part in ("--limit", host)]
        return ["pyinfra", "inventories/lab.py", deploy, "-y", "-vv", "--json", *limits]

    def pyinfra(self, *hosts: str, more: Mapping[str, str] | None = None, timeout: float = _RUN_S) -> Run:
        """Run deploys/cuda.py on these hosts."""
        return self.finish(self.start(self.pyinfra_argv(*hosts), more), timeout)

    def rackwright(self, *argv: str, more: Mapping[str, str] | None = None) -> Run:
        """Run the project's command."""
        return self.finish(self.start(["rackwright", *argv], more))

    def plan(self, *hosts: str, more: Mapping[str, str] | None = None) -> Run:
        """Run `rackwright plan` for deploys/cuda.py on these hosts."""
        limits = [part for host in hosts for part in ("--limit", host)]
        argv = ["plan", "inventories/lab.py", "--deploy", "deploys/cuda.py", "--json", *limits]
        return self.rackwright(*argv, more=more)

    def snapshot(self, host: str) -> Snapshot:
        """Return what the host is now."""
        return snapshot.take(self.lab.root(host))

    def sh(self, host: str, script: str, *, timeout: float = 120, check: bool = True) -> str:
        """Run a shell script in the host as root, not by ssh, and return what it printed."""
        return self.lab.run(host, script, timeout=timeout, check=check).stdout

    def converge(
        self, host: str, *, more: Mapping[str, str] | None = None, files: bool = True
    ) -> tuple[dict[str, Any], Snapshot]:  # fmt: skip
        """Plan and run; prove that the plan changed nothing, and that the run did just what was planned.

        Return the host's plan and its snapshot afterwards.
        """
        before = self.snapshot(host)
        planned = self.plan(host, more=more)
        assert not before.difference(self.snapshot(host)), "the plan changed the host"
        plan = planned.report["hosts"][host]
        assert (plan["status"], planned.status) in (("unchanged", 0), ("pending", 3)), planned.said
        run = self.pyinfra(host, more=more)
        assert run.status == 0, run.said
        after = self.snapshot(host)
        compare.check(plan, before, after, run.changed(host), compare.commands(run.stderr, host), files=files)
        return plan, after

    def nothing_to_change(self, host: str, *, more: Mapping[str, str] | None = None) -> None:
        """Run once more, and prove that nothing is done: by pyinfra's count, by its words and by the host's disk."""
        before = self.snapshot(host)
        planned = self.plan(host, more=more)
        assert (planned.status, planned.report["hosts"][host]["changes"]) == (0, []), planned.said
        run = self.pyinfra(host, more=more)
        assert run.status == 0, run.said
        assert run.changed(host) == [], run.said
        assert compare.commands(run.stderr, host) == [], run.said
        assert "nothing to change" in run.stderr, run.said
        assert not before.difference(self.snapshot(host))

    def _disk(self, host: str) -> Path:
        return self.lab.folder / "hosts" / host / "upper"

    def has(self, host: str, label: str) -> bool:
        """Return whether the host's disk was kept under this name."""
        return (self.folder / f"{host}-{label}").exists()

    def keep(self, host: str, label: str) -> None:
        """Keep the host's disk as it is now; the host is shut down for it."""
        self.lab.stop(host)
        subprocess.run(["cp", "-a", str(self._disk(host)), str(self.folder / f"{host}-{label}")], check=True)
        self.lab.start(host)

    def put_back(self, host: str, label: str) -> None:
        """Give the host the disk that was kept, and power."""
        if any(one.name == host and one.up for one in self.lab.hosts()):
            self.lab.crash(host)
        shutil.rmtree(self._disk(host))
        subprocess.run(["cp", "-a", str(self.folder / f"{host}-{label}"), str(self._disk(host))], check=True)
        shutil.rmtree(self._disk(host).with_name("work"), ignore_errors=True)
        self._disk(host).with_name("work").mkdir()
        self.lab.start(host)

    def prepare(self, host: str, label: str, changes: Mapping[str, Any]) -> None:
        """Give the host the disk that a run with these settings leaves on a fresh one: made once, kept as `label`."""
        if self.has(host, label):
            self.put_back(host, label)
            return
        self.put_back(host, "fresh")
        with self.settings_of(label, changes):
            run = self.pyinfra(host)
            assert run.status == 0, run.said
        self.keep(host, label)

    @contextmanager
    def borrowed(self, *hosts: str) -> Iterator[None]:
        """Have hosts up for a while, each with its fresh disk."""
        try:
            for host in hosts:
                self.put_back(host, "fresh")
            yield
        finally:
            for host in hosts:
                self.lab.stop(host)

    @contextmanager
    def settings_of(self, name: str, changes: Mapping[str, Any]) -> Iterator[None]:
        """Use changed settings for a while."""
        former, self.cluster = self.cluster, self.settings(name, changes)
        try:
            yield
        finally:
            self.cluster = former


def wait_for(condition: Any, timeout: float, what: str) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited {timeout} s: {what}"
        time.sleep(0.05)
