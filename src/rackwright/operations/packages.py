"""dpkg in order: interrupted work finished, before anything else is asked of it."""

from __future__ import annotations

from rackwright.change import Change, Decision, Refusal, Run
from rackwright.operations.common import unreadable
from rackwright.runtime import planned_operation
from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look
from rackwright_facts.packages import INSTALLED, INTERRUPTED, LOCKS
from rackwright_facts.system import CLOUD_INIT

_CLOUD_INIT_WAIT_S = 900
_UNFINISHED = ("unpacked", "half-configured", "triggers-awaited", "triggers-pending")


@planned_operation(reads=lambda: (INSTALLED, INTERRUPTED, LOCKS, CLOUD_INIT))
def settled(look: Look) -> Decision:
    """No package is half installed and cloud-init is not at work.

    What `dpkg --configure -a` can finish is finished. A package that needs to be installed again, and is not
    rackwright's to install, refuses the host: every later apt command would fail on it.
    """
    installed, interrupted = look[INSTALLED], look[INTERRUPTED]
    for reading, what in ((installed, "the list of packages"), (interrupted, "dpkg's own state")):
        if not reading.is_ok:
            return Decision(look, refusals=(unreadable(what, reading, "dpkg must answer: see `dpkg --audit`"),))
    packages = installed.value or {}
    changes: list[Change] = []
    after = look
    cloud_init = look[CLOUD_INIT]
    if cloud_init.is_ok and cloud_init.value == "running":
        wait = Run(("cloud-init", "status", "--wait"), timeout_s=_CLOUD_INIT_WAIT_S)
        changes.append(Change("cloud-init", "running", "done", commands=(wait,)))
        after = after.having(CLOUD_INIT, Reading.ok("done"))
    open_ones = {name: package for name, package in packages.items() if package.state in _UNFINISHED}
    if open_ones or interrupted.value:
        names = ", ".join(f"{name} ({package.state})" for name, package in sorted(open_ones.items()))
        changes.append(
            Change(
                "interrupted package work",
                names or "dpkg was stopped in the middle",
                "configured",
                commands=(Run(("dpkg", "--configure", "-a"), packages=True, timeout_s=1800),),
            )
        )
        done = {name: package.model_copy(update={"state": "installed"}) for name, package in open_ones.items()}
        after = after.having(INSTALLED, Reading.ok({**packages, **done})).having(INTERRUPTED, Reading.ok(False))
    busy = look[LOCKS].value or ()
    notes = tuple(f"waits for {lock.command or 'a process'} (pid {lock.pid}), which holds {lock.path}" for lock in busy)
    return Decision(after, tuple(changes), notes=notes)


def broken_elsewhere(names: tuple[str, ...]) -> Refusal:
    """Return the refusal for packages that apt wants to have installed again, and that are not ours."""
    return Refusal(
        what=f"{', '.join(names)}: half installed, and apt does nothing before that is mended",
        where="dpkg --audit",
        fix=f"apt-get install --reinstall {' '.join(names)} (or remove them), then run again",
    )
