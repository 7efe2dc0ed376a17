"""The one shape of a mistake: what, where, fix. Everything a user can get wrong is raised as this.

The command line prints it and exits 2 (`UsageMistake`) or 1 (`HostFailure`); no traceback reaches a user.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake: `what` is wrong, `where` it stands (file:line and path, or host), how to `fix` it."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        if self.where:
            lines.append(f"  --> {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class RackwrightError(Exception):
    """Any error that is shown to the user as text; carries one or more `Problem`."""

    exit_code = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems: tuple[Problem, ...] = problems


class UsageMistake(RackwrightError):
    """Settings or command line are wrong: exit code 2."""

    exit_code = 2


class HostFailure(RackwrightError):
    """A host, or this machine, could not do what was asked: exit code 1."""

    exit_code = 1
