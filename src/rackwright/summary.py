"""The last lines of a pyinfra run: each host's outcome, the reason of each failure, and the command to retry.

pyinfra prints what each operation did; it has no list of hosts that failed, and none to resume with.
"""

from __future__ import annotations

import atexit
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from pyinfra.api.host import Host
from pyinfra.api.state import BaseStateCallback, State


@dataclass
class _Failure:
    what: str
    fix: str = ""


@dataclass
class _Watch:
    state: State | None = None
    failures: dict[str, list[_Failure]] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)


_watch = _Watch()


class _OperationErrors(BaseStateCallback):
    @staticmethod
    def operation_host_error(
        state: State, host: Host, op_hash: str, retry_count: int = 0, max_retries: int = 0
    ) -> None:
        if host.name not in _watch.failures:  # a refusal has said more than the name of its operation
            names = ", ".join(sorted(state.get_op_meta(op_hash).names))
            _watch.failures[host.name] = [_Failure(f"failed in: {names}", "see its output above")]


def watch(state: State) -> None:
    """Print the summary when this process ends; may be called for each host and each deploy file."""
    if _watch.state is state:
        return
    if _watch.state is None:
        atexit.register(_print)
    _watch.state = state
    state.add_callback_handler(_OperationErrors())


def note_failure(host: Host, what: str, fix: str) -> None:
    """Remember why a host failed."""
    _watch.failures.setdefault(host.name, []).append(_Failure(what, fix))


def note_waiting(host: Host, what: str) -> None:
    """Remember what of a host waits for a reboot."""
    if what not in _watch.waiting.setdefault(host.name, []):
        _watch.waiting[host.name].append(what)


def _print() -> None:
    state = _watch.state
    if state is None or not state.is_executing:
        return
    for line in lines(state):
        click.echo(line, err=True)


def lines(state: State) -> list[str]:
    """Return the summary of a finished run, the most important line last."""
    wanted = [host for host in state.inventory if state.is_host_in_limit(host)]
    unreachable = [host for host in wanted if host not in state.activated_hosts]
    failed = [host for host in wanted if host in state.failed_hosts and host not in unreachable]
    changed = [
        host
        for host in wanted
        if host not in failed and any(data.operation_meta._commands for data in state.ops[host].values())
    ]
    unchanged = len(wanted) - len(unreachable) - len(failed) - len(changed)
    out = ["", "--> Hosts:"]
    for host in unreachable:
        out.append(f"    {host.name}: unreachable")
    for host in failed:
        for failure in _watch.failures.get(host.name, [_Failure("failed")]):
            out.append(f"    {host.name}: {failure.what}")
            if failure.fix:
                out.append(f"      fix: {failure.fix}")
    waiting = [host for host in wanted if host.name in _watch.waiting and host not in failed]
    out += [f"    {host.name}: reboot pending: {'; '.join(_watch.waiting[host.name])}" for host in waiting]
    bad = [*unreachable, *failed]
    if bad:
        out.append(f"    retry: {_retry(sys.argv, [host.name for host in bad])}")
    counts = {
        "changed": len(changed), "unchanged": unchanged, "failed": len(failed), "unreachable": len(unreachable),
    }  # fmt: skip
    out.append("    " + ", ".join(f"{count} {word}" for word, count in counts.items() if count))
    if waiting:
        out.append(f"    reboot pending on {len(waiting)} (rollout.allow_reboot: true reboots them one by one)")
    elif not bad and not changed:
        out.append("    nothing to change")
    return out


def _retry(argv: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the command that was given, limited to `hosts`."""
    kept: list[str] = []
    rest = iter(argv[1:])
    for argument in rest:
        if argument == "--limit":
            next(rest, None)
        elif not argument.startswith("--limit="):
            kept.append(argument)
    limits = [part for host in hosts for part in ("--limit", host)]
    return shlex.join([Path(argv[0]).name, *kept, *limits])
