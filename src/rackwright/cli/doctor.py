"""`rackwright doctor`: what this control machine lacks, with the cures."""

from __future__ import annotations

import json
import sys

import click
import pyinfra_cli.main  # noqa: F401 -- patches the standard library for gevent, before anything opens a socket

from rackwright import report_table as report
from rackwright.doctor import examine
from rackwright.inventories import open_inventory

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.argument("inventory", required=False)
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON (schema 1) on standard output.")
def doctor(inventory: str | None, as_json: bool) -> None:
    """Look at this machine, its keys and secrets, and greet every host of INVENTORY. Changes nothing.

    Exit code 0: all is well, or only warned of; 1: something fails; 2: a mistake in the settings.
    """
    opened = open_inventory(inventory)
    found = examine([(host.name, host.data.dict()) for host in opened])
    if as_json:
        click.echo(json.dumps({"schema": 1, "findings": [finding.to_json() for finding in found]}, indent=1))
    else:
        rows = [(finding.status, finding.what, finding.detail, finding.fix or "-") for finding in found]
        for line, status in zip(
            report.table(("status", "what", "detail", "fix"), rows), (None, *(row[0] for row in rows)), strict=True
        ):
            click.echo(report.colored(line, _COLORS.get(status or "")))
        failing = sum(finding.status == "fail" for finding in found)
        click.echo(f"{failing} of {len(found)} need a cure" if failing else "all is well", err=True)
    sys.exit(1 if any(finding.status == "fail" for finding in found) else 0)
