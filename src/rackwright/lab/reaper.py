"""Takes an ephemeral lab down when the process that owns it is gone, however it went: `reaper LAB PID STARTED`."""

from __future__ import annotations

import os
import select
import sys

from rackwright.lab.cgroup import hierarchies
from rackwright.lab.lab import Lab
from rackwright.lab.system import Process


def main(arguments: list[str]) -> None:
    """Wait for the owner's end, then take the lab down."""
    name, pid, started = arguments
    owner = Process(int(pid), int(started))
    try:
        handle = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        handle = -1
    if handle >= 0 and owner.alive():  # it is this very process that the handle means
        select.select([handle], [], [])
    for top in hierarchies():  # what `down` finds in the lab's own cgroups it kills
        (top / "cgroup.procs").write_text(str(os.getpid()))
    Lab(name).reap(owner)


if __name__ == "__main__":
    main(sys.argv[1:])
