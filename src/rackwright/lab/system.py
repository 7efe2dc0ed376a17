"""What the lab needs of Linux: namespaces, processes that cannot be mistaken, commands with a cure."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem

_CLONE_NEWNET = 0x40000000

# Program -> Debian package. `make` and CI install these; a user is told.
TOOLS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gpg": "gnupg",
    "openssl": "openssl",
    "mount": "mount",
}


def require(*, free_mib: int = 0, folder: Path = Path("/")) -> None:
    """Raise `HostFailure` with every cure when this machine cannot run a lab."""
    problems = []
    if os.geteuid() != 0:
        problems.append(
            Problem("the lab needs root", "this user", "run it with sudo; it touches only its own namespaces")
        )
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        problems.append(Problem("programs are missing", ", ".join(missing), f"apt-get install {' '.join(missing)}"))
    if "overlay" not in Path("/proc/filesystems").read_text() and subprocess.run(["modprobe", "overlay"]).returncode:
        problems.append(Problem("the kernel has no overlay filesystem", "/proc/filesystems", "modprobe overlay"))
    at = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(at).free >> 20
    if free < free_mib:
        problems.append(Problem(f"{free} MiB are free and {free_mib} are needed", str(at), "make room there"))
    if problems:
        raise HostFailure(*problems)


def run(
    *argv: str, check: bool = True, timeout: float = 120, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine; its failure is a `HostFailure` that quotes it."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, input=stdin)
    except FileNotFoundError:
        fix = f"apt-get install {TOOLS.get(argv[0], argv[0])}"
        raise HostFailure(Problem(f"{argv[0]} is not installed", "this machine", fix)) from None
    except subprocess.TimeoutExpired:
        raise HostFailure(Problem(f"no end after {timeout:.0f} s", " ".join(argv), "see what it waits for")) from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise HostFailure(Problem(said[-1] if said else f"exit status {done.returncode}", " ".join(argv), "see above"))
    return done


@dataclass(frozen=True)
class Process:
    """A process by number and start time: a number that was given to another process since is not it."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this number now."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the command's name may hold anything, spaces and ")" too
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """Return the process that a file names, if it still lives."""
        try:
            pid, started = map(int, path.read_text().split())
        except (OSError, ValueError):
            return None
        process = cls(pid, started)
        return process if process.alive() else None

    def write(self, path: Path) -> None:
        """Record the process."""
        path.write_text(f"{self.pid} {self.started}\n")

    def alive(self) -> bool:
        """Return whether it still runs."""
        return Process.of(self.pid) == self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, if it is still the same process."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def children(self) -> list[int]:
        """Return the numbers of its child processes."""
        found: list[int] = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
        return found


def wait(condition: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Wait until the condition holds, at most `timeout` seconds; return whether it does."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(interval)
    return True


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def enter_network(namespace: str) -> None:
    """Put the calling thread, and all that it starts, into a named network namespace (setns(2))."""
    with Path(f"/run/netns/{namespace}").open() as target:
        _setns(target.fileno())


@contextmanager
def network(namespace: str) -> Iterator[None]:
    """Be in a network namespace for a moment; sockets that are opened there stay there."""
    with Path("/proc/thread-self/ns/net").open() as home:
        enter_network(namespace)
        try:
            yield
        finally:
            _setns(home.fileno())


def answers(namespace: str, address: str, port: int = 22, *, timeout: float = 1.0) -> bool:
    """Return whether an ssh server greets at the address."""
    with network(namespace):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with connection:
        connection.settimeout(timeout)
        try:
            connection.connect((address, port))
            return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def start(argv: Sequence[str], log: Path) -> Process:
    """Start a process that outlives this one, its output in a file."""
    with log.open("ab") as out:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    process = Process.of(child.pid)
    if process is None:
        raise HostFailure(Problem("it ended at once", " ".join(argv), f"see {log}"))
    return process
