"""`rackwright lab ...`: a cluster to rehearse on, made of this machine alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rackwright import report_table as report
from rackwright.errors import Problem, UsageMistake
from rackwright.lab import HostSpec, Lab
from rackwright.lab.base import FLAVOURS
from rackwright.lab.devices.catalogue import PROFILES
from rackwright.settings import hosts as ranges
from rackwright.settings import yaml_lines

_name = click.option("--name", metavar="NAME", help="Which lab; by default $RACKWRIGHT_LAB, else `lab`.")


@click.group()
def lab() -> None:
    """Rehearse on real hosts: systemd, sshd, apt and dpkg in namespaces of this machine.

    No virtual machines, no cloud, no GPUs: devices are stand-ins that answer as the real tools do. Ubuntu hosts are
    Debian's tree under Ubuntu's os-release, and the vendors' packages are stand-ins with the vendors' names, versions
    and dependencies.
    """


@lab.command()
@click.argument("count", type=click.IntRange(1, 200), required=False)
@_name
@click.option("--os", "system", type=click.Choice(FLAVOURS), default="ubuntu-22.04", show_default=True)
@click.option("--gpus", type=click.Choice(PROFILES), default="none", show_default=True, help="Which GPUs they have.")
@click.option(
    "--file", "file", type=click.Path(path_type=Path), help="Mixed hosts: `hosts: {gpu[01-02]: {os: ..., gpus: ...}}`."
)
def up(count: int | None, name: str | None, system: str, gpus: str, file: Path | None) -> None:
    """Bring up COUNT hosts, gpu01, gpu02, ... What is up already stays as it is."""
    if (count is None) == (file is None):
        raise UsageMistake(
            Problem("give either a number of hosts or --file", "rackwright lab up", "rackwright lab up 3")
        )
    names = [f"gpu{index:02}" for index in range(1, (count or 0) + 1)]
    wanted = _from_file(file) if file else [HostSpec(host, system, gpus) for host in names]
    one = Lab(name)
    started = one.up(wanted, say=lambda text: click.echo(f"lab {one.name}: {text}", err=True))
    click.echo(f"lab {one.name}: started {', '.join(started)}" if started else f"lab {one.name}: nothing to change")


def _from_file(path: Path) -> list[HostSpec]:
    document = yaml_lines.read(path)
    hosts = document.data.get("hosts") if isinstance(document.data, dict) else None
    if not isinstance(hosts, dict) or not hosts:
        raise UsageMistake(
            Problem("no hosts are named", document.where(()), "write `hosts: {gpu[01-02]: {os: debian-12}}`")
        )
    wanted = []
    for pattern, body in hosts.items():
        where = document.where(("hosts", pattern))
        spec = _spec({} if body is None else body, document, ("hosts", pattern))
        try:
            wanted += [replace(spec, name=name) for name in ranges.expand(pattern)]
        except ValueError as error:
            raise UsageMistake(
                Problem(f"{pattern!r} is no host or range: {error}", where, "write gpu[01-03]")
            ) from None
    return wanted


_COUNTS = ("nvswitches", "nics", "disks")


def _spec(settings: Any, document: yaml_lines.Document, key: tuple[str, str]) -> HostSpec:
    """Return what a host of the file is: system, GPUs, counts of NVSwitches, adapters and disks, a BMC or none."""
    where = document.where(key)
    known = ("os", "gpus", *_COUNTS, "bmc")
    if not isinstance(settings, dict) or set(settings) - set(known):
        raise UsageMistake(Problem("a lab host takes other keys", where, f"one of {', '.join(known)}"))
    system, gpus = settings.get("os", "ubuntu-22.04"), settings.get("gpus", "none")
    for name, value, values in (("os", system, FLAVOURS), ("gpus", gpus, PROFILES)):
        if value not in values:
            raise UsageMistake(Problem(f"{value!r} is no {name}", where, f"{name}: one of {', '.join(values)}"))
    counts = {name: settings[name] for name in _COUNTS if name in settings}
    wrong = next((name for name, value in counts.items() if type(value) is not int or not 0 <= value <= 32), None)
    if wrong is not None or not isinstance(settings.get("bmc", True), bool):
        raise UsageMistake(
            Problem(f"{wrong or 'bmc'} has a wrong value", where, "counts are 0 to 32, bmc true or false")
        )
    return HostSpec("", system, gpus, bmc=settings.get("bmc", True), **counts)


@lab.command()
@_name
@click.option("--json", "as_json", is_flag=True)
def status(name: str | None, as_json: bool) -> None:
    """Show the hosts. Exit code 1 when the lab is not up, or one of its hosts is down."""
    one = Lab(name)
    hosts = one.hosts()
    if as_json:
        click.echo(json.dumps({"schema": 1, "lab": one.name, "hosts": [asdict(host) for host in hosts]}, indent=1))
    elif not hosts:
        click.echo(f"lab {one.name}: not up", err=True)
    else:
        rows = [(h.name, "up" if h.up else "down", h.os, h.gpus, h.address, h.fabric_address) for h in hosts]
        for line in report.table(("host", "state", "system", "gpus", "management", "fabric"), rows):
            click.echo(line)
    sys.exit(0 if hosts and all(host.up for host in hosts) else 1)


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name
@click.option("--user", default="root", show_default=True)
@click.argument("host")
@click.argument("command", nargs=-1)
def ssh(name: str | None, user: str, host: str, command: tuple[str, ...]) -> None:
    """Open a shell on HOST, or run COMMAND there, by ssh."""
    one = Lab(name)
    argv = one.ssh_argv(host, *command, user=user)
    one.enter()
    os.execvp(argv[0], argv)


def _verb(verb: str, text: str) -> None:
    @lab.command(name=verb, help=text)
    @_name
    @click.argument("host")
    def act(name: str | None, host: str) -> None:
        getattr(Lab(name), verb)(host)
        click.echo(f"{host}: {verb}: done")


for _one, _text in {
    "cut": "Pull the cables of HOST.",
    "mend": "Plug the cables of HOST in again.",
    "crash": "Cut the power of HOST; `start` brings it back.",
    "stop": "Shut HOST down; `start` brings it back.",
    "start": "Start HOST after a crash or stop.",
    "reboot": "Reboot HOST in order.",
}.items():
    _verb(_one, _text)


@lab.command()
@_name
@click.argument("host")
@click.argument("words", nargs=-1, metavar="[KIND [NAME=VALUE]... | clear [KIND]]")
def fault(name: str | None, host: str, words: tuple[str, ...]) -> None:
    """Let a device of HOST fail, or `clear` that; without KIND list the kinds and mark those that are on."""
    said = Lab(name).fault(host, *words)
    click.echo(said.rstrip() if said else f"{host}: fault {' '.join(words)}: done")


@lab.command()
@_name
@click.option("--purge", is_flag=True, help="Forget the hosts' disks too.")
def down(name: str | None, purge: bool) -> None:
    """Stop the lab. Its disks stay, and `up` continues with them, unless --purge is given."""
    one = Lab(name)
    one.down(purge=purge)
    click.echo(f"lab {one.name}: down{' and purged' if purge else ''}")
