"""`rackwright inspect`: the GPUs of all hosts in one table, as nvidia-smi shows those of one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import click
import pyinfra_cli.main  # noqa: F401 -- patches the standard library for gevent, before anything opens a socket
from pyinfra.api.inventory import Inventory

from rackwright import inspection, report_table
from rackwright.inventories import open_inventory
from rackwright.plan import looks
from rackwright_facts._parse.model import Reading
from rackwright_facts.gpu import GPUS, NVLINKS
from rackwright_facts.look import Look
from rackwright_facts.pci import PCI


@click.command()
@click.argument("inventory", required=False)
@click.option("--limit", multiple=True, metavar="PATTERN", help="Only these hosts (name, group or glob).")
@click.option("--json", "as_json", is_flag=True, help="All that the driver tells, as JSON (schema 1).")
@click.option(
    "--watch", type=click.FloatRange(min=1), is_flag=False, flag_value=5, metavar="[SECONDS]",
    help="Look again and again, every 5 seconds by default, until Ctrl-C.",
)  # fmt: skip
def inspect(inventory: str | None, limit: Sequence[str], as_json: bool, watch: float | None) -> None:
    """Show each GPU of each host; a value that is not the majority's bears a star. Changes nothing.

    Exit code 1: a host or its driver gave no answer; 2: a mistake in the settings; 130: ended by Ctrl-C.
    """
    while True:
        hosts = _hosts(open_inventory(inventory), limit)
        if as_json:
            click.echo(json.dumps(inspection.to_json(hosts), indent=1))
        else:
            _show(hosts, clear=watch is not None)
        if watch is None:
            break
        time.sleep(watch)
    sys.exit(1 if any(host.failure or host.gpus.status in ("error", "timeout") for host in hosts) else 0)


def _hosts(inventory: Inventory, limit: Sequence[str]) -> list[inspection.Host]:
    found = []
    for seen in looks(inventory, (GPUS, PCI, NVLINKS), limit=limit):
        failure = seen.refusal.what if seen.refusal else ""
        unknown: Reading[object] = Reading(status="not_asked")
        look = seen.look if not failure else Look(dict.fromkeys((GPUS.key, PCI.key, NVLINKS.key), unknown))
        found.append(inspection.Host(seen.name, look[GPUS], look[PCI], failure, look[NVLINKS]))
    return found


def _show(hosts: Sequence[inspection.Host], *, clear: bool) -> None:
    if clear and report_table.on_terminal():
        click.clear()
    rows = inspection.rows(hosts)
    for line in report_table.table([column.title for column in inspection.COLUMNS], [row.shown() for row in rows]):
        click.echo(line)
    if any(row.odd for row in rows):
        click.echo(f"{inspection.ODD} is not what the majority has", err=True)
