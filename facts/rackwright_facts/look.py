"""All that a deploy needs to know of a node, in one exec.

A `Section` is one question: a shell command and the pure function that reads its answer. `script` joins sections
into one bash script that runs them side by side, each with its own time-out; `answers` reads what it prints, one
line an answer: `<section> <exit status> <base64 stdout> <base64 stderr>`, which nothing in an output can forge.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pyinfra.api.facts import FactBase

from rackwright_facts._parse.model import Reading

T = TypeVar("T")

_GRACE_S = 5  # how much longer than its slowest section a look may take before it is given up
_TIMED_OUT = (124, 137)  # timeout(1): the command ran out of time, or had to be killed
_NOT_FOUND = 127  # POSIX sh: the command does not exist


@dataclass(frozen=True)
class Section(Generic[T]):
    """One question to a node. `key` names it and its arguments; equal keys are the same question.

    `command` is run by `bash -c` with `LC_ALL=C` and no standard input. `parse` turns its standard output into
    the value and raises `ValueError` when it cannot. Exit status 127 means absent, and so do those in `absent`.
    """

    key: str
    command: str = field(compare=False)
    parse: Callable[[bytes], T] = field(compare=False)
    timeout_s: int = field(default=20, compare=False)
    absent: tuple[int, ...] = field(default=(), compare=False)
    elsewhere: bool = field(default=False, compare=False)
    """The answer is about something else than the node, such as a repository: what runs on the node leaves it true."""

    @property
    def token(self) -> str:
        """The key as one word, which names the answer."""
        return quote(self.key, safe="/:,+")

    def read(self, status: int, stdout: bytes, stderr: bytes) -> Reading[T]:
        """Turn one answer into a reading; never raises."""
        if status in _TIMED_OUT:
            return Reading.timeout(f"no answer within {self.timeout_s} s")
        said = stderr.decode(errors="replace").strip()
        if status == _NOT_FOUND or status in self.absent:
            return Reading.absent(said)
        if status != 0:
            return Reading.error(f"exit status {status}: {said}" if said else f"exit status {status}")
        try:
            return Reading.ok(self.parse(stdout))
        except ValueError as error:
            return Reading.error(f"cannot read the answer: {error}")


class NotLooked(LookupError):
    """A decision asked for a section that this look does not hold: it is taken, and the decision asked again."""

    def __init__(self, section: Section[Any]) -> None:
        super().__init__(section.key)
        self.section = section


@dataclass(frozen=True)
class Look:
    """What is seen of one node at one time: a reading for each section that was asked."""

    readings: Mapping[str, Reading[Any]] = field(default_factory=dict)

    def __getitem__(self, section: Section[T]) -> Reading[T]:
        if section.key not in self.readings:
            raise NotLooked(section)
        return self.readings[section.key]

    def __contains__(self, section: Section[Any]) -> bool:
        return section.key in self.readings

    def having(self, section: Section[Any], reading: Reading[Any]) -> Look:
        """This look with another reading for one section: how a decision says what will be."""
        return Look({**self.readings, section.key: reading})

    def merged(self, other: Look) -> Look:
        """This look and what another one adds; where both answer, this one stands."""
        return Look({**other.readings, **self.readings})


_PRELUDE = r"""
export LC_ALL=C LANGUAGE=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
umask 077
w=$(mktemp -d /run/rackwright.XXXXXXXX 2>/dev/null || mktemp -d "${TMPDIR:-/tmp}/rackwright.XXXXXXXX") || exit 97
trap 'rm -rf "$w"' EXIT
trap 'exit 98' HUP INT TERM PIPE
mkfifo "$w/done" && exec 3<>"$w/done" || exit 97
ask() {
  ( timeout -k 1 "$2" bash -c "$3" >"$w/$1.out" 2>"$w/$1.err" </dev/null 3>&-
    echo $? >"$w/$1.rc"; echo "$1" >&3 ) >/dev/null 2>&1 &
}
"""

# The loop ends when every section has answered or the whole time is over, whichever comes first: a tool in
# uninterruptible sleep cannot be killed, and must not hold up the others.
_COLLECT = r"""
left=$n
end=$((SECONDS + limit))
while [ $left -gt 0 ]; do
  more=$((end - SECONDS)); [ $more -gt 0 ] || break
  read -r -t "$more" -u 3 _ || break
  left=$((left - 1))
done
i=0
while [ $i -lt $n ]; do
  rc=124; [ -s "$w/$i.rc" ] && read -r rc <"$w/$i.rc"
  printf '%s %s %s %s\n' "${name[i]}" "$rc" "=$(base64 -w0 <"$w/$i.out")" "=$(tail -c 2000 "$w/$i.err" | base64 -w0)"
  i=$((i + 1))
done
"""

# A package manager at work is a moving picture: a look that is going to be acted on waits for it. The holder is read
# from /proc/locks (fcntl locks: flock(1) does not see them).
_WAIT_FOR_LOCK = r"""
for f in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock; do
  [ -e "$f" ] || continue
  inode=$(stat -c %i "$f")
  while [ $SECONDS -lt {wait_s} ] && grep -q ":$inode 0 EOF" /proc/locks; do sleep 1; done
done
"""


def script(sections: Sequence[Section[Any]], *, wait_for_packages_s: int = 0) -> str:
    """Return the bash script that asks `sections` side by side.

    With `wait_for_packages_s` it first waits, at most so many seconds, until nobody holds the dpkg lock.
    """
    limit = max((section.timeout_s for section in sections), default=0) + _GRACE_S
    wait = _WAIT_FOR_LOCK.replace("{wait_s}", str(wait_for_packages_s)) if wait_for_packages_s else ""
    names = " ".join(shlex.quote(section.token) for section in sections)
    asks = "".join(
        f"ask {index} {section.timeout_s} {shlex.quote(section.command)}\n" for index, section in enumerate(sections)
    )
    return f"{wait}{_PRELUDE}n={len(sections)} limit={limit} name=({names})\n{asks}{_COLLECT}"


def script_limit_s(sections: Sequence[Section[Any]], *, wait_for_packages_s: int = 0) -> int:
    """Return the number of seconds after which the script of these sections has ended, if the node works at all."""
    return max((section.timeout_s for section in sections), default=0) + wait_for_packages_s + 6 * _GRACE_S


def answers(sections: Sequence[Section[Any]], lines: Iterable[str]) -> Look:
    """Read what `script(sections)` printed. A section without a line of its own reads as an error."""
    readings: dict[str, Reading[Any]] = {section.key: Reading.error("the node gave no answer") for section in sections}
    asked = {section.token: section for section in sections}
    for line in lines:
        parts = line.split(" ")
        if len(parts) != 4 or parts[0] not in asked or not parts[1].isdigit():
            continue  # a login banner, or the like
        section = asked[parts[0]]
        try:
            stdout, stderr = (base64.b64decode(part[1:], validate=True) for part in parts[2:])
        except binascii.Error:
            readings[section.key] = Reading.error("the answer came mangled")
            continue
        readings[section.key] = section.read(int(parts[1]), stdout, stderr)
    return Look(readings)


class SectionFact(FactBase[Reading[Any]]):
    """A section as a pyinfra fact of its own: `pyinfra INVENTORY fact rackwright_facts.MODULE.NAME --json`.

    A subclass defines `command(self, ...)` and returns `self.ask(SECTION)` from it.
    """

    shell_executable = "bash"
    _asked: Section[Any]

    def ask(self, section: Section[Any]) -> str:
        """Return the command that asks this one section."""
        self._asked = section
        return script([section])

    def process(self, output: list[str]) -> Reading[Any]:
        """Read the one answer."""
        return answers([self._asked], output)[self._asked]

    @staticmethod
    def default() -> Reading[Any]:
        """What stands when the node gave no output at all: never "nothing there"."""
        return Reading.error("the node gave no answer")
