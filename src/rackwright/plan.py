"""The planner: the same deploy file, the same decisions, one look at each node, nothing changed.

The deploy file is executed under a recorder; the decisions that it names are folded over the look, each on what the
one before it will have left. Operations that are not ours are listed as not planned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, cast

import gevent
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.api.exceptions import ConnectError, NoGroupError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State, StateStage
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state
from pyinfra_cli.util import exec_file

from rackwright.change import Call, Change, LookFailed, Refusal, first_sections, fold, recording
from rackwright.errors import Problem, UsageMistake
from rackwright.looking import take
from rackwright_facts.look import Look, Section

Status = Literal["unchanged", "pending", "refused", "unreachable"]


@dataclass
class HostPlan:
    """What would happen on one host."""

    name: str
    status: Status = "unchanged"
    changes: list[tuple[Call, Change]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """What is only true after a reboot that is not allowed."""
    not_planned: list[str] = field(default_factory=list)
    look: Look = field(default_factory=Look)

    def to_json(self) -> dict[str, Any]:
        """Return the host's part of the plan, schema 1."""
        return {
            "status": self.status,
            "look_sha256": look_sha256(self.look),
            "changes": [{"operation": call.operation, **change.to_json()} for call, change in self.changes],
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "waiting": self.waiting,
            "not_planned": self.not_planned,
        }


def look_sha256(look: Look) -> str:
    """Return a digest of what was seen, the same for the same state."""
    shown = {key: reading.to_json() for key, reading in look.readings.items()}
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()


def plan(inventory: Inventory, deploy: Path, *, limit: Sequence[str] = ()) -> list[HostPlan]:
    """Return what `deploy` would do on each host of `inventory` (or those that `limit` names), in its order."""
    state = _state(inventory, limit)
    hosts = [host for host in inventory if state.is_host_in_limit(host)]
    jobs = [state.pool.spawn(_plan_host, state, host, deploy) for host in hosts]
    gevent.joinall(jobs)
    return [job.get() for job in jobs]


@dataclass(frozen=True)
class Seen:
    """One host as it was looked at: what it answered, or why it gave no answer."""

    name: str
    look: Look
    refusal: Refusal | None = None


def looks(inventory: Inventory, sections: Sequence[Section[Any]], *, limit: Sequence[str] = ()) -> list[Seen]:
    """Ask `sections` of each host of `inventory` (or those that `limit` names), side by side, in one exec each."""
    state = _state(inventory, limit)
    hosts = [host for host in inventory if state.is_host_in_limit(host)]
    jobs = [state.pool.spawn(_see, state, host, sections) for host in hosts]
    gevent.joinall(jobs)
    return [job.get() for job in jobs]


def _see(state: State, host: Host, sections: Sequence[Section[Any]]) -> Seen:
    try:
        host.connect(show_errors=False, raise_exceptions=True)
    except ConnectError as error:
        return Seen(host.name, Look(), Refusal(str(error), host.name, "see `rackwright doctor`"))
    try:
        with ctx_config.use(state.config.copy()), ctx_host.use(host):
            return Seen(host.name, take(host, sections, _connector_arguments(state, host)))
    except LookFailed as failed:
        return Seen(host.name, Look(), failed.refusal)
    finally:
        host.disconnect()


def _connector_arguments(state: State, host: Host) -> dict[str, Any]:
    arguments = pop_global_arguments(state, host, {})[0]
    return {key: value for key, value in arguments.items() if key in CONNECTOR_ARGUMENT_KEYS}


def _state(inventory: Inventory, limit: Sequence[str]) -> State:
    state = cast("State", ctx_state.get())
    ctx_inventory.set(inventory)
    state.init(inventory, ctx_config.get(), initial_limit=matching(inventory, limit) if limit else None)
    state.set_stage(StateStage.Prepare)
    return state


def matching(inventory: Inventory, patterns: Iterable[str]) -> list[Host]:
    """Return the hosts that the patterns (names, groups, globs) mean, as pyinfra's --limit does."""
    found: dict[str, Host] = {}
    for pattern in patterns:
        try:
            hosts = list(inventory.get_group(pattern))
        except NoGroupError:
            hosts = [host for host in inventory if fnmatch(host.name, pattern)]
        if not hosts:
            raise UsageMistake(
                Problem(
                    f"no host and no group matches {pattern!r}",
                    "--limit",
                    "see the names with `rackwright validate`",
                )
            )
        found.update({host.name: host for host in hosts})
    return list(found.values())


def _plan_host(state: State, host: Host, deploy: Path) -> HostPlan:
    result = HostPlan(host.name)
    try:
        host.connect(show_errors=False, raise_exceptions=True)
    except ConnectError as error:
        fix = "see `rackwright doctor`, then run the same command again for it"
        result.status, result.refusals = "unreachable", [Refusal(str(error), host.name, fix)]
        return result
    try:
        _decide(state, host, deploy, result)
    except LookFailed as failed:
        result.status, result.refusals = "refused", [failed.refusal]
        if failed.unreachable:
            result.status = "unreachable"
    finally:
        host.disconnect()
    return result


def _decide(state: State, host: Host, deploy: Path, result: HostPlan) -> None:
    with ctx_config.use(state.config.copy()), ctx_host.use(host):
        with recording() as recorded:
            exec_file(str(deploy))
        arguments = _connector_arguments(state, host)
        result.not_planned = [name for op in state.ops[host] for name in state.get_op_meta(op).names]
        result.look = take(host, first_sections(recorded.calls), arguments)
        for call, decision in fold(recorded.calls, result.look, lambda wanted: take(host, wanted, arguments)):
            result.changes += [(call, change) for change in decision.changes]
            result.refusals += decision.refusals
            result.notes += decision.notes
            result.waiting += decision.waiting
    if result.refusals:
        result.changes = []  # a refused host is not touched at all: what could have come is no plan
    result.status = "refused" if result.refusals else "pending" if result.changes or result.waiting else "unchanged"
