"""`rackwright verify`: what the hosts are now, against what they should be."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click
import pyinfra_cli.main  # noqa: F401 -- patches the standard library for gevent, before anything opens a socket

from rackwright import report_table
from rackwright import verify as verification
from rackwright.inventories import open_deploy, open_inventory
from rackwright.plan import plan


@click.command()
@click.argument("inventory", required=False)
@click.option("--deploy", metavar="FILE", help="Deploy file; by default deploys/cluster.py, else deploys/cuda.py.")
@click.option("--limit", multiple=True, metavar="PATTERN", help="Only these hosts (name, group or glob).")
@click.option("--json", "as_json", is_flag=True, help="The checks as JSON (schema 1) on standard output.")
def verify(inventory: str | None, deploy: str | None, limit: Sequence[str], as_json: bool) -> None:
    """Look at every host and say whether it is as declared, and whether CUDA works there. Changes nothing.

    Exit code 0: all is well; 4: a check failed or is unknown; 1: a host is unreachable; 2: a mistake in the settings.
    """
    plans = plan(open_inventory(inventory), open_deploy(deploy), limit=limit)
    if as_json:
        click.echo(json.dumps(verification.to_json(plans), indent=1))
        sys.exit(verification.exit_code(plans))
    rows = []
    for one in plans:
        found = verification.checks(one)
        bad = [check for check in found if check.status in ("fail", "unknown")]
        word = "unreachable" if one.status == "unreachable" else "unhealthy" if bad else "ok"
        details = "; ".join(f"{check.id}: {check.detail}" for check in (bad or found))
        rows.append((one.name, word, verification.system(one), details))
    for line in report_table.table(("host", "status", "system", "checks"), rows):
        click.echo(line)
    sys.exit(verification.exit_code(plans))
