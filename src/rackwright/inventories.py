"""Which hosts a command means: a pyinfra inventory file, a cluster.yaml, `@local` or a host list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyinfra
from pyinfra.api.config import Config
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.context import ctx_config, ctx_state
from pyinfra_cli.exceptions import CliError
from pyinfra_cli.inventory import make_inventory

from rackwright.config import load
from rackwright.errors import Problem, UsageMistake
from rackwright.inventory import pyinfra_groups


def default_inventory() -> str:
    """Return `$RACKWRIGHT_INVENTORY`, else the inventory file of the site in the working directory."""
    return os.environ.get("RACKWRIGHT_INVENTORY") or "inventories/cluster.py"


def open_inventory(name: str | None) -> Inventory:
    """Return the inventory, its context set up as in a run of pyinfra; a mistake in it is a `UsageMistake`."""
    pyinfra.is_cli = True  # what makes local.include work
    state = State(check_for_changes=False)
    state.cwd = str(Path.cwd())
    ctx_state.set(state)
    ctx_config.set(Config())
    name = name or default_inventory()
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        groups = pyinfra_groups(load(path))
        everyone = {host: data for hosts in groups.values() for host, data in hosts}
        members: dict[str, Any] = {group: ([host for host, _ in hosts], {}) for group, hosts in groups.items()}
        return Inventory((list(everyone.items()), {}), **members)
    if path.suffix == ".py" and not path.exists():
        raise UsageMistake(
            Problem(
                f"there is no inventory {name}",
                str(Path.cwd()),
                "name one, or make a site with `rackwright init`",
            )
        )
    try:
        inventory: Inventory = make_inventory(name, cwd=str(Path.cwd()))
    except (CliError, PyinfraError) as error:
        raise UsageMistake(Problem(f"the inventory cannot be read: {error}", name, "mend it and run again")) from error
    return inventory


def default_deploy() -> Path:
    """Return the deploy file of the whole bring-up where it exists, else the CUDA one."""
    cluster = Path("deploys/cluster.py")
    return cluster if cluster.exists() else Path("deploys/cuda.py")


def open_deploy(name: str | None) -> Path:
    """Return the deploy file; one that is missing is a `UsageMistake`."""
    path = Path(name) if name else default_deploy()
    if not path.is_file():
        raise UsageMistake(
            Problem(
                f"there is no deploy file {path}",
                str(Path.cwd()),
                "name one with --deploy, or run in a site's folder",
            )
        )
    return path
