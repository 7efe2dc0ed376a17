"""Who holds the locks of the package manager: lines of `PATH PID COMMAND`."""

from __future__ import annotations

from rackwright_facts._parse.model import Model


class Lock(Model):
    """One lock that is held."""

    path: str
    pid: int
    command: str = ""


def parse(text: str) -> tuple[Lock, ...]:
    """Return the held locks."""
    found = []
    for line in text.splitlines():
        path, _, rest = line.strip().partition(" ")
        pid, _, command = rest.partition(" ")
        if not path:
            continue
        if not pid.isascii() or not pid.isdigit():
            raise ValueError(f"no process id in {line[:120]!r}")
        found.append(Lock(path=path, pid=int(pid), command=command.strip()))
    return tuple(found)
