"""State is data and an operation is a decision: `Change`, `Refusal`, `Decision`, and what settles them.

A decision is a pure function of what is seen (`Look`) and what is wanted. `runtime.planned_operation` makes a
pyinfra operation of it, and the planner folds the same functions: so a plan is exact. No pyinfra machinery here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rackwright_facts.look import Look, NotLooked, Section


@dataclass(frozen=True)
class Run:
    """A command to run on the host. `packages` marks one that needs the package manager's locks: it waits for them."""

    argv: tuple[str, ...]
    packages: bool = False
    timeout_s: int = 300

    def to_json(self) -> dict[str, Any]:
        """Return the command as the plan shows it."""
        return {"run": list(self.argv)}


@dataclass(frozen=True)
class Write:
    """A file to put in place: whole, by rename, with parents at 0755. `secret` content is never shown."""

    path: str
    content: bytes
    mode: int = 0o644
    secret: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the file as the plan shows it; binary content by its size."""
        if self.secret:
            shown = "(secret)"
        else:
            try:
                shown = self.content.decode()
            except UnicodeDecodeError:
                shown = f"({len(self.content)} bytes)"
        return {"write": self.path, "mode": f"{self.mode:04o}", "content": shown}


@dataclass(frozen=True)
class Reboot:
    """A reboot, `at_a_time` hosts of a run at most; it has failed when the host is not back after `timeout_s`."""

    at_a_time: int = 1
    timeout_s: int = 1800
    """HGX machines take up to half an hour."""

    def to_json(self) -> dict[str, Any]:
        """Return the reboot as the plan shows it."""
        return {"reboot": self.timeout_s}


Command: TypeAlias = "Run | Write | Reboot"


@dataclass(frozen=True)
class Change:
    """One thing that differs: `what`, from `before` to `after`, at what `cost`, by which `commands`.

    `known` is False when it rests on what an earlier step will bring. The commands of a transaction that
    changes several things stand at its first change.
    """

    what: str
    before: str | None
    after: str | None
    cost: tuple[str, ...] = ()
    known: bool = True
    commands: tuple[Command, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the change in the plan's schema 1, less the operation's name."""
        return {
            "what": self.what,
            "from": self.before,
            "to": self.after,
            "cost": list(self.cost),
            "known": self.known,
            "commands": [command.to_json() for command in self.commands],
        }


@dataclass(frozen=True)
class Refusal:
    """Why a host is not touched: what is wrong, where, and the cure."""

    what: str
    where: str
    fix: str

    def __str__(self) -> str:
        return f"refused: {self.what}\n  --> {self.where}\n  fix: {self.fix}"

    def to_json(self) -> dict[str, str]:
        """Return the refusal in the plan's schema 1."""
        return {"what": self.what, "where": self.where, "fix": self.fix}


@dataclass(frozen=True)
class Decision:
    """What to do, what stands against it, what will be seen afterwards, what is worth saying, and what waits."""

    after: Look
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """What is only true after a reboot that is not allowed here: the host ends as "reboot pending"."""


Reads: TypeAlias = Callable[..., Iterable[Section[Any]]]


@dataclass(frozen=True)
class Call:
    """One operation of a deploy as it stands for one host."""

    operation: str
    decide: Callable[..., Decision]
    reads: Reads
    kwargs: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    def sections(self) -> tuple[Section[Any], ...]:
        """Return the sections that the decision surely reads, so that one exec can take those of all calls."""
        return tuple(self.reads(**self.kwargs))


class LookFailed(Exception):
    """A node could not be looked at; `refusal` says why and what to do, `unreachable` that it gave no answer."""

    def __init__(self, refusal: Refusal, *, unreachable: bool = False) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal
        self.unreachable = unreachable


Fetch: TypeAlias = Callable[[Sequence[Section[Any]]], Look]

_ROUNDS = 8  # a decision asks in turn for an index, a simulation, a file check: more is a fault of the decision


def settle(call: Call, look: Look, fetch: Fetch) -> Decision:
    """Decide, fetching what the decision asks for and `look` lacks."""
    for _ in range(_ROUNDS):
        try:
            return call.decide(look, **call.kwargs)
        except NotLooked as need:
            missing = [section for section in call.sections() if section not in look]
            if need.section not in missing:
                missing.append(need.section)
            look = look.merged(fetch(missing))
    raise RuntimeError(f"{call.operation} asked for more than {_ROUNDS} looks")


def fold(calls: Sequence[Call], look: Look, fetch: Fetch) -> Iterator[tuple[Call, Decision]]:
    """Decide each call on what the one before it will have left; ends with the first that refuses."""
    for call in calls:
        decision = settle(call, look, fetch)
        yield call, decision
        if decision.refusals:
            return
        look = decision.after


def first_sections(calls: Sequence[Call]) -> list[Section[Any]]:
    """Return what all the calls are sure to read, each section once."""
    return list({section.key: section for call in calls for section in call.sections()}.values())


@dataclass
class Recorder:
    """Collects the calls of a deploy file that is executed for its plan."""

    calls: list[Call] = field(default_factory=list)


_recorder: ContextVar[Recorder | None] = ContextVar("rackwright_recorder", default=None)


def recorder() -> Recorder | None:
    """Return the recorder that is active, if a plan is being made."""
    return _recorder.get()


@contextmanager
def recording() -> Iterator[Recorder]:
    """While this is active, planned operations are only noted down."""
    active = Recorder()
    token = _recorder.set(active)
    try:
        yield active
    finally:
        _recorder.reset(token)
