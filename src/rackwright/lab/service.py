"""Processes of a lab that outlive the command that started them, and of which nothing is ever left over.

Each lives in a cgroup of its own. Whoever is killed between starting one and recording it leaves no stray: the process
enters its cgroup, and then goes on only if its token is still the valid one.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem
from rackwright.lab.cgroup import Cgroup
from rackwright.lab.system import Process

_ENTER = """token=$1 valid=$2; shift 2
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift
[ "$(cat "$valid")" = "$token" ] || exit 1
exec "$@"
"""


_PLAIN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"}


@dataclass(frozen=True)
class Service:
    """A process that stays: NAME.pid, NAME.token and NAME.log in the folder, and a cgroup."""

    folder: Path
    name: str
    cgroup: Cgroup

    @property
    def log(self) -> Path:
        """Return the file of its output."""
        return self.folder / f"{self.name}.log"

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def _token_file(self) -> Path:
        return self.folder / f"{self.name}.token"

    def process(self) -> Process | None:
        """Return the process, if it lives."""
        return Process.read(self._pid_file)

    def start_module(self, module: str, *arguments: str) -> None:
        """Start a Python module of this package, with this process's environment."""
        # Paths of this Python may be relative to the working directory, which is not to be held on to.
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
        self.start([sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": paths})

    def start(self, argv: Sequence[str], environment: Mapping[str, str] = _PLAIN) -> None:
        """Start it, after whatever there was of it before has been ended."""
        self.stop()
        self.cgroup.make()
        token = secrets.token_hex(8)
        self._token_file.write_text(token)
        enter = [token, str(self._token_file), *map(str, self.cgroup.folders()), "--"]
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _ENTER, "sh", *enter, *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd="/", env=dict(environment),
            )  # fmt: skip
        process = Process.of(child.pid)
        if process is None:
            raise HostFailure(Problem(f"{self.name} ended at once", " ".join(argv), f"see {self.log}"))
        process.write(self._pid_file)

    def stop(self) -> None:
        """Kill it with all that it started."""
        self._token_file.unlink(missing_ok=True)
        process = self.process()
        if process is not None:
            process.kill()
        if self.cgroup.exists():
            self.cgroup.remove()
        self._pid_file.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return the end of its output."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return ""
        return " / ".join(lines[-3:])
