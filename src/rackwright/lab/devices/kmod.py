"""modprobe and rmmod for the modules of GPUs; the host's own tools do the rest."""

from __future__ import annotations

import os
import re

from .kernel import load, unload
from .show import DEPENDS, OURS
from .state import Answer, Machine, fail


def modprobe(machine: Machine, words: list[str]) -> Answer | None:
    """Answer a modprobe command line; None where the module is none of ours, and the real tool must do it."""
    options, names = (
        [word for word in words if word.startswith("-")],
        [word for word in words if not word.startswith("-")],
    )
    if not names or set(options) & {"-c", "--showconfig", "-D", "--show-depends", "-n", "--dry-run"}:
        return None
    removes = any(option in ("-r", "--remove") or re.fullmatch("-[a-z]*r[a-z]*", option) for option in options)
    # Without -a the words after the first are the module's parameters.
    every = removes or any(option in ("-a", "--all") for option in options)
    chosen = [name.replace("_", "-") for name in (names if every else names[:1])]
    if not set(chosen) <= set(OURS):
        return None
    if not machine.kernel:
        return None
    quiet = any(option in ("-q", "--quiet") for option in options)
    for name in chosen:
        answer = unload(machine, name) if removes else load(machine, name)
        if removes and not answer.code and name in DEPENDS and _is_unused(machine, DEPENDS[name]):
            unload(machine, DEPENDS[name])
        if answer.code:
            return Answer(code=1) if quiet and "not found" in answer.err else answer
    return Answer()


def _is_unused(machine: Machine, name: str) -> bool:
    return not any(need == name and other in machine.modules for other, need in DEPENDS.items())


def rmmod(machine: Machine, words: list[str]) -> Answer | None:
    """Answer an rmmod command line; None where the module is none of ours."""
    names = [word.replace("_", "-") for word in words if not word.startswith("-")]
    if not names or not set(names) <= set(OURS):
        return None
    for name in names:
        answer = unload(machine, name, tool="rmmod")
        if answer.code:
            return answer
    return Answer()


def real_tool(name: str, words: list[str]) -> Answer:
    """Become the host's own tool: the one that the lab moved aside, or kmod, which is all of them by its argv[0]."""
    for path in (f"/usr/sbin/{name}.real", f"/usr/bin/{name}.real", "/usr/bin/kmod", "/bin/kmod"):
        if os.access(path, os.X_OK) and (path.endswith(".real") or name in ("modprobe", "rmmod")):
            os.execv(path, [name, *words])
    return fail(f"{name}: this host has no {name} of its own", 127)
