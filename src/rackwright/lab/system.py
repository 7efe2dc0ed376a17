"""What the lab needs of Linux: namespaces, processes that cannot be mistaken, commands with a cure."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem

_CLONE_NEWNET = 0x40000000

# Program -> Debian package.
TOOLS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gpg": "gnupg",
    "openssl": "openssl",
    "mount": "mount",
}
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_FILESYSTEMS = Path("/proc/filesystems")


def _not_root() -> list[Problem]:
    fix = "run it with sudo; it touches only its own namespaces"
    return [Problem("the lab needs root", "this user", fix)] if os.geteuid() != 0 else []


def require_root() -> None:
    """Raise `HostFailure` unless this is root."""
    if problems := _not_root():
        raise HostFailure(*problems)


def require(*, free_mib: int = 0, folder: Path = Path("/")) -> None:
    """Raise `HostFailure` with every cure when this machine cannot run a lab."""
    problems = _not_root()
    missing = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if not DEBIAN_KEYRING.exists():
        missing.add("debian-archive-keyring")
    if missing:
        names = sorted(missing)
        problems.append(Problem("the lab needs programs", ", ".join(names), f"apt-get install {' '.join(names)}"))
    if not _has_overlay():
        problems.append(Problem("the kernel has no overlay filesystem", str(_FILESYSTEMS), "modprobe overlay"))
    for kind in ("net", "time", "cgroup"):
        if not Path(f"/proc/self/ns/{kind}").exists():
            fix = "take a kernel of 5.6 or newer that has them"
            problems.append(Problem(f"the kernel has no {kind} namespaces", f"/proc/self/ns/{kind}", fix))
    at = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(at).free >> 20
    if free < free_mib:
        problems.append(Problem(f"{free} MiB are free and {free_mib} are needed", str(at), "make room there"))
    if problems:
        raise HostFailure(*problems)


def _has_overlay() -> bool:
    if "\toverlay\n" in _FILESYSTEMS.read_text():
        return True
    modprobe = shutil.which("modprobe")
    return modprobe is not None and not subprocess.run([modprobe, "overlay"], stderr=subprocess.DEVNULL).returncode


def run(
    *argv: str, check: bool = True, timeout: float = 120, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine; its failure is a `HostFailure` that quotes it."""
    shown = " ".join(argv)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, input=stdin)
    except FileNotFoundError:
        fix = f"apt-get install {TOOLS.get(argv[0], argv[0])}"
        raise HostFailure(Problem(f"{argv[0]} is not installed", "this machine", fix)) from None
    except subprocess.TimeoutExpired:
        fix = "see what it waits for, and run again"
        raise HostFailure(Problem(f"no end after {timeout:.0f} s", shown, fix)) from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise HostFailure(Problem(said, shown, "run it by hand to see more"))
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
    def recorded(cls, path: Path) -> Process | None:
        """Return the process that a file names, whether it lives or not."""
        try:
            pid, started = map(int, path.read_text().split())
        except (OSError, ValueError):
            return None
        return cls(pid, started)

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """Return the process that a file names, if it still lives."""
        process = cls.recorded(path)
        return process if process is not None and process.alive() else None

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

    def command(self) -> str:
        """Return the short name of its program; nothing when it is gone."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text().strip()
        except OSError:
            return ""

    def children(self) -> list[Process]:
        """Return its child processes."""
        found: list[int] = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
        return [child for child in map(Process.of, found) if child is not None]


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


def connect(namespace: str, address: str, port: int, *, timeout: float = 1.0) -> socket.socket | None:
    """Return a connection that was made inside a network namespace; None when nobody takes it."""
    try:
        with network(namespace):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    connection.settimeout(timeout)
    try:
        connection.connect((address, port))
    except OSError:
        connection.close()
        return None
    return connection


def greets(namespace: str, address: str) -> bool:
    """Return whether an ssh server greets at the address."""
    connection = connect(namespace, address, 22)
    if connection is None:
        return False
    with connection:
        try:
            return connection.recv(4) == b"SSH-"
        except OSError:
            return False
