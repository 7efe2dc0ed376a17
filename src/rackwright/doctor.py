"""What keeps this control machine from reaching its hosts: each finding with its cure. Changes nothing.

Files, keys and secrets are looked at here; each host is greeted once (TCP, the ssh server's key), many side by side.
"""

from __future__ import annotations

import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import paramiko

from rackwright.config import resolve_secret
from rackwright.errors import RackwrightError
from rackwright_facts._parse import openpgp

_GREETING_S = 8.0
_SIDE_BY_SIDE = 64

Outcome = Literal["ok", "warn", "fail"]
HostData = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    status: Outcome
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the finding as plain JSON."""
        return {"what": self.what, "status": self.status, "detail": self.detail, "fix": self.fix}


def examine(hosts: Sequence[HostData]) -> list[Finding]:
    """Return all findings for these hosts, the control machine's own first."""
    found = [*_machine(), *_shared(hosts)]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        found += [finding for one in pool.map(lambda host: list(_host(*host)), hosts) for finding in one]
    return found


def _machine() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info >= (3, 10)
    yield Finding("python", "ok" if enough else "fail", python, "" if enough else "use Python 3.10 or newer")
    for package in ("pyinfra", "paramiko", "pydantic"):
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(package, "fail", "not installed", f"pip install {package}")


def _shared(hosts: Sequence[HostData]) -> Iterator[Finding]:
    """Look once at what many hosts have in common."""
    values: dict[tuple[str, str], None] = {}
    for _, data in hosts:
        source = data.get("cuda_source") or {}
        proxy = source.get("proxy") or {}
        for kind, value in (
            ("ssh key", data.get("ssh_key")),
            ("secret", data.get("rackwright_sudo_password")),
            ("secret", proxy.get("password")),
            ("secret", (data.get("bmc") or {}).get("password")),
        ):
            if value:
                values[kind, value] = None
        if source.get("key"):
            values["package key", f"{source['key']}\n{source['fingerprint']}"] = None
    for kind, value in values:
        if kind == "ssh key":
            yield _ssh_key(Path(value))
        elif kind == "secret":
            yield _secret(value)
        else:
            path, _, fingerprint = value.partition("\n")
            yield _package_key(Path(path), fingerprint)


def _ssh_key(path: Path) -> Finding:
    what = f"ssh key {path}"
    try:
        mode = path.stat().st_mode
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return Finding(
            what, "fail", error.strerror or "unreadable", f"ssh-keygen -t ed25519 -f {path}, or name another"
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Finding(what, "warn", f"others may read it ({stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
    return Finding(what, "ok", "readable")


def _secret(reference: str) -> Finding:
    try:
        resolve_secret(reference)
    except RackwrightError as error:
        problem = error.problems[0]
        return Finding(f"secret {reference}", "fail", problem.what, problem.fix)
    kind, _, name = reference.partition(":")
    if kind == "file" and Path(name).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Finding(f"secret {reference}", "warn", "others may read it", f"chmod 600 {name}")
    return Finding(f"secret {reference}", "ok", "there")


def _package_key(path: Path, fingerprint: str) -> Finding:
    what = f"package key {path}"
    try:
        held = openpgp.fingerprints(path.read_bytes())
    except OSError as error:
        return Finding(what, "fail", error.strerror or "unreadable", "put the vendor's public key there")
    except ValueError as error:
        return Finding(what, "fail", f"no public key: {error}", "put the vendor's public key there")
    if fingerprint not in held:
        detail = f"it holds {', '.join(held)}, and {fingerprint} is declared"
        return Finding(what, "fail", detail, "check with the vendor which of them is right")
    return Finding(what, "ok", f"holds {fingerprint}")


def _host(name: str, data: Mapping[str, Any]) -> Iterator[Finding]:
    address, port = str(data.get("ssh_hostname") or name), int(data.get("ssh_port") or 22)
    try:
        key = _greet(address, port)
    except (OSError, paramiko.SSHException, EOFError) as error:
        said = str(error) or type(error).__name__
        fix = f"see whether it is up, and whether a firewall lets port {port} through"
        yield Finding(f"host {name}", "fail", f"no ssh server at {address}:{port}: {said}", fix)
        return
    yield Finding(f"host {name}", "ok", f"ssh answers at {address}:{port}")
    yield _known(name, address, port, key, data)


def _greet(address: str, port: int) -> paramiko.PKey:
    """Return the key of the ssh server."""
    with socket.create_connection((address, port), timeout=_GREETING_S) as connection:
        transport = paramiko.Transport(connection)
        transport.banner_timeout = _GREETING_S
        try:
            transport.start_client(timeout=_GREETING_S)
            return transport.get_remote_server_key()
        finally:
            transport.close()


def _known(name: str, address: str, port: int, key: paramiko.PKey, data: Mapping[str, Any]) -> Finding:
    what = f"host key of {name}"
    file = Path(str(data.get("ssh_known_hosts_file") or "~/.ssh/known_hosts")).expanduser()
    entry = address if port == 22 else f"[{address}]:{port}"
    strict = data.get("ssh_strict_host_key_checking") == "yes"
    try:
        known = paramiko.HostKeys(str(file)) if file.exists() else paramiko.HostKeys()
    except (OSError, paramiko.SSHException) as error:
        return Finding(what, "fail", f"{file} cannot be read: {error}", "mend the file")
    kept = known.lookup(entry)
    if kept is None:
        add = f"compare its fingerprint at the console, then: ssh-keyscan -p {port} {address} >> {file}"
        return Finding(what, "fail" if strict else "warn", f"not in {file}", add)
    if key.get_name() in kept and kept[key.get_name()] != key:
        away = f"if the host was installed anew: ssh-keygen -R {entry!r} -f {file}"
        return Finding(what, "fail", f"another one than {file} holds", away)
    return Finding(what, "ok", "known")
