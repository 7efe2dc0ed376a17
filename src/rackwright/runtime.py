"""Decisions run by pyinfra: `@planned_operation`, `refusals`, and the one look at a node that they share.

A look is kept until anything has run on that host. A refusal fails its host alone, before anything is changed:
each deploy begins with `refusals()`, which folds every operation that was registered for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast
from weakref import WeakKeyDictionary

from pyinfra import logger
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, all_global_arguments
from pyinfra.api.arguments_typed import PyinfraOperation
from pyinfra.api.command import PyinfraCommand, StringCommand
from pyinfra.api.hiddenvalue import HiddenValue
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from rackwright import summary
from rackwright.change import Call, Command, Decision, LookFailed, Reads, Reboot, Refusal, Run, fold, recorder, settle
from rackwright.change import first_sections as _first_sections
from rackwright.looking import take
from rackwright.reboots import RebootCommand
from rackwright.shell import KEPT_CONFFILE, LOCK_WAIT_S, run_text, write_text
from rackwright_facts.look import Look, Section

P = ParamSpec("P")


@dataclass
class _HostRun:
    """What is known of one host during one run of pyinfra."""

    calls: list[Call] = field(default_factory=list)
    look: Look | None = None
    elsewhere: Look = field(default_factory=Look)
    """What was learnt of repositories: no change of the host makes it old."""
    key: tuple[object, ...] = ()
    commands: int = 0
    """Commands that our operations gave to pyinfra so far."""
    ours: set[str] = field(default_factory=set)
    """pyinfra's names (hashes) of our operations."""
    planned: Look | None = None
    """Prepare stage: what the operations before this one will have left."""


_runs: WeakKeyDictionary[Host, _HostRun] = WeakKeyDictionary()


class RefusalCommand(PyinfraCommand):
    """A command that is never sent: it fails its host alone, with the reason, and without a traceback."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal

    def __repr__(self) -> str:
        return f"RefusalCommand({self.refusal.what})"

    def execute(self, state: State, host: Host, connector_arguments: Any) -> bool:
        """Say why, and fail."""
        for line in str(self.refusal).splitlines():
            host.log_styled(line, fg="red", log_func=logger.error)
        summary.note_failure(host, self.refusal.what, self.refusal.fix)
        return False


class _Command(StringCommand):
    """A command whose host fails alone when the connection ends, and whose kept configuration files are named."""

    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        try:
            done, output = super().execute(state, host, connector_arguments)
        except EOFError:  # paramiko's word for it, and one that pyinfra does not know: it would end all hosts' run
            raise ConnectionResetError("the connection has ended") from None
        for line in output.stdout_lines:
            if line.startswith(KEPT_CONFFILE):
                host.log_styled(line, fg="yellow", log_func=logger.warning)
        return done, output


def planned_operation(*, reads: Reads) -> Callable[[Callable[Concatenate[Look, P], Decision]], PyinfraOperation[P]]:
    """Make a pyinfra operation of a decision, and register its calls for `refusals` and for the planner.

    `reads(**kwargs)` names the sections that the decision surely reads, so that they come in one exec.
    """

    def decorate(decide: Callable[Concatenate[Look, P], Decision]) -> PyinfraOperation[P]:
        label = f"{decide.__module__.rpartition('.')[2]}.{decide.__name__}"

        @wraps(decide)
        def commands(*args: P.args, **kwargs: P.kwargs) -> Generator[PyinfraCommand, None, None]:
            yield from _perform(Call(label, decide, reads, dict(kwargs)))

        # inspect.signature follows __wrapped__, and would want the look among the arguments.
        del commands.__wrapped__
        inner = cast("Callable[..., Any]", operation()(commands))
        ours = {name for name, _ in all_global_arguments()}

        @wraps(decide)
        def planned(*args: P.args, **kwargs: P.kwargs) -> Any:
            own = {name: value for name, value in kwargs.items() if name not in ours}
            call = Call(label, decide, reads, own, title=str(kwargs.get("name") or label))
            active = recorder()
            if active is not None:
                active.calls.append(call)
                return None
            _run_of(_current()[0]).calls.append(call)
            return inner(*args, **kwargs)

        return cast("PyinfraOperation[P]", planned)

    return decorate


@operation()
def _refusals() -> Generator[PyinfraCommand, None, None]:
    host, state = _current()
    if not state.is_executing:
        return  # the calls below this one are not registered yet; `rackwright plan` is the preview
    run = _run_of(host)
    try:
        for _, decision in fold(run.calls, _look(host, state, run), _fetch(host, state, run)):
            yield from map(RefusalCommand, decision.refusals)
    except LookFailed as failed:
        yield RefusalCommand(failed.refusal)


def refusals() -> None:
    """Begin a deploy: what stands against any of its operations stops the host before the first change."""
    if recorder() is not None:
        return
    summary.watch(_current()[1])
    _refusals(name="Check that every step is possible")


def _current() -> tuple[Host, State]:
    """Return the host and the state that pyinfra is at; the objects, where `pyinfra.context` has stand-ins for them."""
    return cast("Host", ctx_host.get()), cast("State", ctx_state.get())


def _run_of(host: Host) -> _HostRun:
    return _runs.setdefault(host, _HostRun())


def _perform(call: Call) -> Generator[PyinfraCommand, None, None]:
    host, state = _current()
    run = _run_of(host)
    run.ours.add(str(host.current_op_hash))
    try:
        before = _look(host, state, run) if state.is_executing or run.planned is None else run.planned
        decision = settle(call, before, _fetch(host, state, run))
    except LookFailed as failed:
        yield RefusalCommand(failed.refusal)
        return
    if not state.is_executing:
        run.planned = decision.after
    if decision.refusals:
        yield from map(RefusalCommand, decision.refusals)
        return
    if not decision.changes:
        host.noop("as declared")
    for change in decision.changes:
        for command in change.commands:
            run.commands += 1
            yield pyinfra_command(command)
    if decision.changes:
        yield from _still_open(call, host, state, run)
    for note in decision.notes if state.is_executing else ():
        host.log(note)
    for what in decision.waiting if state.is_executing else ():
        host.log_styled(f"reboot pending: {what}", fg="yellow", log_func=logger.warning)
        summary.note_waiting(host, what)


def _still_open(call: Call, host: Host, state: State, run: _HostRun) -> Iterable[PyinfraCommand]:
    """Look again: a change that did not bring what it promised is a failure, not a success."""
    try:
        decision = settle(call, _look(host, state, run), _fetch(host, state, run))
    except LookFailed as failed:
        return [RefusalCommand(failed.refusal)]
    if decision.refusals:
        return map(RefusalCommand, decision.refusals)
    return [
        RefusalCommand(
            Refusal(
                what=f"{change.what} is still {change.before or 'absent'} after its change",
                where=f"{host.name}: {call.operation}",
                fix="see what the commands printed (pyinfra -vvv), and whether another tool manages the same thing",
            )
        )
        for change in decision.changes
    ]


def pyinfra_command(command: Command) -> PyinfraCommand:
    """Return a command as pyinfra runs it."""
    if isinstance(command, Run):
        return _Command(run_text(command))
    if isinstance(command, Reboot):
        return RebootCommand(command)
    before, content, after = write_text(command)
    shown = HiddenValue(content) if command.secret else content
    return _Command(before, shown, after, _separator="")


def _look(host: Host, state: State, run: _HostRun) -> Look:
    """Return the look that is kept, or take a new one of all that the deploy surely reads."""
    # Commands of our own operations are counted as they are given; those of others once their operation is done.
    others = sum(len(data.operation_meta._commands or ()) for op, data in state.ops[host].items() if op not in run.ours)
    key = (state.is_executing, others, run.commands, str(_arguments(host)))
    if run.look is None or run.key != key:
        run.look, run.key = run.elsewhere, key
        _fetch(host, state, run)(_first_sections(run.calls))
    return run.look


def _fetch(host: Host, state: State, run: _HostRun) -> Callable[[Sequence[Section[Any]]], Look]:
    """Return what takes sections of a host and adds them to the look that is kept."""
    wait = LOCK_WAIT_S if state.is_executing else 0

    def fetch(sections: Sequence[Section[Any]]) -> Look:
        taken = take(host, sections, _arguments(host), wait_for_packages_s=wait)
        run.look = taken.merged(run.look or Look())
        for section in sections:
            if section.elsewhere and taken[section].is_ok:
                run.elsewhere = run.elsewhere.having(section, taken[section])
        return taken

    return fetch


def _arguments(host: Host) -> dict[str, Any]:
    current: dict[str, Any] = dict(host.current_op_global_arguments or {})
    return {key: value for key, value in current.items() if key in CONNECTOR_ARGUMENT_KEYS}
