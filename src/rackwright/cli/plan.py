"""`rackwright plan`: what a deploy would do, exactly, with nothing done."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

import click
import pyinfra_cli.main  # noqa: F401 -- patches the standard library for gevent, before anything opens a socket

from rackwright import report, report_table
from rackwright.inventories import default_inventory, open_deploy, open_inventory
from rackwright.plan import plan as make_plan


@click.command()
@click.argument("inventory", required=False)
@click.option("--deploy", metavar="FILE", help="Deploy file; by default deploys/cluster.py, else deploys/cuda.py.")
@click.option("--limit", multiple=True, metavar="PATTERN", help="Only these hosts (name, group or glob).")
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON (schema 1) on standard output.")
def plan(inventory: str | None, deploy: str | None, limit: Sequence[str], as_json: bool) -> None:
    """Show what a deploy would change, host by host. Changes nothing.

    Exit code 0: nothing to change; 3: changes pending; 1: a host refused or unreachable; 2: a mistake in the settings.
    """
    path = open_deploy(deploy)
    plans = make_plan(open_inventory(inventory), path, limit=limit)
    if as_json:
        click.echo(json.dumps({"schema": 1, "hosts": {one.name: one.to_json() for one in plans}}, indent=1))
    elif report_table.on_terminal():
        limits = [part for pattern in limit for part in ("--limit", pattern)]
        command = shlex.join(["pyinfra", inventory or default_inventory(), str(path), *limits, "-y"])
        for line in report.plan_lines(plans, command):
            click.echo(line)
    else:
        for line in report.plan_rows(plans):
            click.echo(line)
    sys.exit(report.exit_code({one.status for one in plans}))
