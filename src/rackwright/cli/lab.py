"""`rackwright lab ...`: a cluster to rehearse on, made of this machine alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rackwright import report_table as report
from rackwright.errors import Problem, UsageMistake
from rackwright.lab import HostSpec, Lab
from rackwright.lab.base import FLAVOURS
from rackwright.settings import hosts as ranges
from rackwright.settings import yaml_lines

_name = click.option("--name", metavar="NAME", help="Which lab; by default $RACKWRIGHT_LAB, else `lab`.")


@click.group()
def lab() -> None:
    """Rehearse on real hosts: systemd, sshd, apt and dpkg in namespaces of this machine.

    No virtual machines, no cloud, no GPUs. Ubuntu hosts are Debian's tree under Ubuntu's os-release, and the vendors'
    packages are stand-ins with the vendors' names, versions and dependencies.
    """


@lab.command()
@click.argument("count", type=click.IntRange(1, 200), required=False)
@_name
@click.option("--os", "system", type=click.Choice(FLAVOURS), default="ubuntu-22.04", show_default=True)
@click.option("--file", "file", type=click.Path(path_type=Path), help="Mixed hosts: `hosts: {gpu[01-02]: {os: ...}}`.")
def up(count: int | None, name: str | None, system: str, file: Path | None) -> None:
    """Bring up COUNT hosts, gpu01, gpu02, ... What is up already stays as it is."""
    if (count is None) == (file is None):
        raise UsageMistake(
            Problem("give either a number of hosts or --file", "rackwright lab up", "rackwright lab up 3")
        )
    wanted = _from_file(file) if file else [HostSpec(f"gpu{index:02}", system) for index in range(1, (count or 0) + 1)]
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
        settings: Any = {} if body is None else body
        system = settings.get("os", "ubuntu-22.04") if isinstance(settings, dict) else None
        if system not in FLAVOURS or set(settings) - {"os"}:
            raise UsageMistake(Problem("a lab host has one key, os", where, f"os: one of {', '.join(FLAVOURS)}"))
        try:
            wanted += [HostSpec(name, system) for name in ranges.expand(pattern)]
        except ValueError as error:
            raise UsageMistake(
                Problem(f"{pattern!r} is no host or range: {error}", where, "write gpu[01-03]")
            ) from None
    return wanted


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
        rows = [(h.name, "up" if h.up else "down", h.os, h.address, h.fabric_address) for h in hosts]
        for line in report.table(("host", "state", "system", "management", "fabric"), rows):
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
@click.option("--purge", is_flag=True, help="Forget the hosts' disks too.")
def down(name: str | None, purge: bool) -> None:
    """Stop the lab. Its disks stay, and `up` continues with them, unless --purge is given."""
    one = Lab(name)
    one.down(purge=purge)
    click.echo(f"lab {one.name}: down{' and purged' if purge else ''}")
