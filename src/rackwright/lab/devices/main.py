"""The entry of all stand-ins: which tool is called is the caller's word, what it is asked stands in sys.argv."""

from __future__ import annotations

import signal
import sys

from .state import Answer, Machine, fail

_WRITERS = ("boot", "modprobe", "rmmod", "dkms", "nv-fabricmanager", "fault")


def answer(machine: Machine, tool: str, words: list[str]) -> Answer:
    """Return what a tool answers to a command line on a machine."""
    if tool in _WRITERS and words[:1] != ["status"]:
        try:
            with machine.changing():
                return _answer(machine, tool, words)
        except PermissionError:
            return fail(f"{tool}: ERROR: Operation not permitted")
    return _answer(machine, tool, words)


def _answer(machine: Machine, tool: str, words: list[str]) -> Answer:
    # Each tool imports only what it needs: uname is called by the hundred, and must start fast.
    if tool == "nvidia-smi":
        from .smi import nvidia_smi

        return nvidia_smi(machine, words)
    if tool in ("modprobe", "rmmod"):
        from . import kmod

        found = kmod.modprobe(machine, words) if tool == "modprobe" else kmod.rmmod(machine, words)
        return kmod.real_tool(tool, words) if found is None else found
    if tool == "boot":
        from .kernel import boot

        return boot(machine)
    if tool == "dkms":
        from .dkms import dkms

        return dkms(machine, words)
    from . import tools

    others = {
        "mokutil": tools.mokutil,
        "uname": tools.uname,
        "fault": tools.fault,
        "nv-fabricmanager": tools.fabricmanager,
    }
    return others[tool](machine, words)


def main(tool: str) -> None:
    """Answer the command line in the name of a tool, and exit with its status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as C programs end when nobody reads on
    machine = Machine()
    found = answer(machine, tool, sys.argv[1:])
    sys.stdout.write(found.out)
    sys.stdout.flush()
    sys.stderr.write(found.err)
    if tool == "nv-fabricmanager" and not found.code and sys.argv[2:] not in (["-v"], ["--version"]):
        _serve(machine)
    raise SystemExit(found.code)


def _serve(machine: Machine) -> None:
    """Stay, as a daemon in the foreground does, until a signal ends it; then the fabric has no manager."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)
    machine.run("fabricmanager").unlink(missing_ok=True)
