"""`rackwright validate` and `rackwright init`: settings, before any host is touched."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rackwright import report_table as report
from rackwright import site
from rackwright.config import Cluster, load, schema
from rackwright.settings.names import settings_file


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON Schema of cluster.yaml, for editors.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON (schema 1) on standard output.")
def validate(file: Path | None, as_schema: bool, as_json: bool) -> None:
    """Check FILE, with every mistake at once. Reads no other file and no variable.

    FILE is by default $RACKWRIGHT_CLUSTER, else inventories/cluster.yaml. Exit code 0: it is good; 2: it is not.
    """
    if as_schema:
        click.echo(json.dumps(schema(), indent=2))
        return
    cluster = load(settings_file(file))
    for warning in cluster.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        nodes = {node.name: node.profile for node in cluster.nodes}
        result = {"schema": 1, "cluster": cluster.name, "nodes": nodes, "warnings": cluster.warnings}
        click.echo(json.dumps(result, indent=1))
        return
    for line in report.table(("profile", "hosts", "nodes", "managed"), _rows(cluster)):
        click.echo(line)
    click.echo(f"{cluster.name}: {len(cluster.nodes)} hosts, no mistakes", err=True)


def _rows(cluster: Cluster) -> list[tuple[str, str, str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in cluster.nodes:
        managed = [name for name in ("driver", "cuda", "docker", "nccl", "scratch", "datasets") if getattr(node, name)]
        groups.setdefault((node.profile, ", ".join(managed) or "nothing"), []).append(node.name)
    return [(profile, str(len(names)), report.ranges(names), what) for (profile, what), names in groups.items()]


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write an example site into FOLDER: settings with comments, their schema, inventory and deploy files.

    Nothing that is there is overwritten.
    """
    for path in site.write(folder):
        click.echo(path)
    inside = f"cd {folder}; " if folder != Path() else ""
    click.echo(f"next: {inside}edit inventories/cluster.yaml; rackwright validate", err=True)
