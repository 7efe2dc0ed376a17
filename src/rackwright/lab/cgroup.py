"""Control groups, version 1, 2 or both: what is started in one can be found and ended, whatever it forked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem
from rackwright.lab.system import Process, wait

_ROOT = Path("/sys/fs/cgroup")
_END_S = 15


def hierarchies() -> list[Path]:
    """Return the top folder of each hierarchy of this machine: one with version 2, several with version 1."""
    if (_ROOT / "cgroup.procs").exists():
        return [_ROOT]
    # systemd links `cpu` to `cpu,cpuacct`: one hierarchy under two names.
    tops = (path for path in _ROOT.iterdir() if not path.is_symlink())
    return sorted(path for path in tops if (path / "cgroup.procs").exists())


@dataclass(frozen=True)
class Cgroup:
    """A control group by its path below the top, in every hierarchy."""

    name: str

    def folders(self) -> list[Path]:
        """Return its folder in each hierarchy, whether it is there or not."""
        return [top / self.name for top in hierarchies()]

    def exists(self) -> bool:
        """Return whether something of it is there."""
        return any(folder.exists() for folder in self.folders())

    def make(self) -> None:
        """Create it and the groups above it."""
        for top in hierarchies():
            folder = top
            for part in Path(self.name).parts:
                parent, folder = folder, folder / part
                folder.mkdir(exist_ok=True)
                # cpuset of version 1 begins empty, and takes no process before it has processors and memory.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if (folder / "tasks").exists() and (folder / file).exists():
                        (folder / file).write_text((parent / file).read_text())

    def processes(self) -> list[Process]:
        """Return what runs in it or below."""
        pids: set[int] = set()
        for folder in self.folders():
            for below, _, _ in os.walk(folder):  # which passes over folders that go meanwhile, where rglob raises
                try:
                    pids.update(map(int, (Path(below) / "cgroup.procs").read_text().split()))
                except OSError:  # it went meanwhile
                    continue
        return [process for process in map(Process.of, sorted(pids)) if process is not None]

    def remove(self) -> None:
        """Kill what runs in it or below, and remove it."""

        def gone() -> bool:
            for process in self.processes():
                process.kill()
            left = [folder for folder in self.folders() if not _removed(folder)]
            return not left

        if not wait(gone, _END_S):
            left = ", ".join(f"{process.pid} {process.command()}" for process in self.processes())
            fix = "see what they wait for (/proc/PID/stack), and run again"
            raise HostFailure(Problem(f"processes cannot be ended: {left}", f"cgroup {self.name}", fix))


def _removed(folder: Path) -> bool:
    try:
        below = [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return not folder.exists()
    if [path for path in below if not _removed(path)]:
        return False
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True
