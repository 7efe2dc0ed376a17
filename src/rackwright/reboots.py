"""Reboots, all through one gate: so many hosts at a time, and none after one that has not come back.

A host counts as back when it answers with another boot_id; uptime alone would not tell a host that never went down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from gevent.lock import BoundedSemaphore
from pyinfra import logger
from pyinfra.api.command import PyinfraCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from rackwright import summary
from rackwright.change import Reboot
from rackwright.connections import FAILURES, reconnect

_ASK_EVERY_S = 2
_BOOT_ID = StringCommand("cat /proc/sys/kernel/random/boot_id")
# Detached, so that the channel closes before the network goes.
_GO = StringCommand("(sleep 1; systemctl reboot) </dev/null >/dev/null 2>&1 &")
_SETTLES_S = 300
_SETTLED = StringCommand(f"timeout {_SETTLES_S} systemctl is-system-running --wait >/dev/null 2>&1; true")


@dataclass
class _Gate:
    places: BoundedSemaphore
    lost: list[str] = field(default_factory=list)
    """Hosts that did not come back."""


_gates: WeakKeyDictionary[State, _Gate] = WeakKeyDictionary()


class RebootCommand(PyinfraCommand):
    """Reboots its host when the gate lets it; the host fails alone when it does not come back."""

    def __init__(self, reboot: Reboot) -> None:
        super().__init__()
        self.reboot = reboot

    def __repr__(self) -> str:
        return "Reboot"

    def execute(self, state: State, host: Host, connector_arguments: Any) -> bool:
        """Reboot and wait for the host."""
        gate = _gates.setdefault(state, _Gate(BoundedSemaphore(self.reboot.at_a_time)))
        with gate.places:
            if gate.lost:
                what = f"not rebooted: {', '.join(gate.lost)} has not come back, and nobody else reboots after that"
                return _fail(host, what, "see that host's console first, then run again")
            before = _boot_id(host, connector_arguments)
            if not before:
                return _fail(
                    host, "not rebooted: it does not say its boot_id", "see whether it answers, then run again"
                )
            host.log("reboots")
            host.run_shell_command(_GO, print_output=False, print_input=state.print_input, **connector_arguments)
            if _comes_back(host, before, connector_arguments, self.reboot.timeout_s):
                host.log("is back")
                return True
            gate.lost.append(host.name)
        what = f"has not come back within {self.reboot.timeout_s} s of its reboot"
        return _fail(host, what, "see its console (BMC), then run again for it")


def _fail(host: Host, what: str, fix: str) -> bool:
    host.log_styled(what, fg="red", log_func=logger.error)
    summary.note_failure(host, what, fix)
    return False


def _ask(host: Host, command: StringCommand, arguments: Any, timeout_s: int) -> str | None:
    """Return what the command printed; None when it failed, or when the host is gone meanwhile."""
    limited = {**arguments, "_timeout": timeout_s}
    try:
        done, output = host.run_shell_command(command, print_output=False, print_input=False, **limited)
    except FAILURES:
        return None
    return output.stdout.strip() if done else None


def _boot_id(host: Host, arguments: Any) -> str:
    return _ask(host, _BOOT_ID, arguments, 30) or ""


def _comes_back(host: Host, before: str, arguments: Any, timeout_s: int) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        gevent.sleep(_ASK_EVERY_S)
        if not reconnect(host):
            continue
        now = _boot_id(host, arguments)
        if now and now != before and _ask(host, _SETTLED, arguments, _SETTLES_S + 10) is not None:
            return True
    return False
