"""The command `rackwright VERB [INVENTORY]`: each verb lives in a module of its own, loaded when it is used."""

from __future__ import annotations

import importlib
import sys

import click

from rackwright import __version__
from rackwright.errors import RackwrightError

_VERBS = {
    "validate": ("rackwright.cli.settings", "validate"),
    "init": ("rackwright.cli.settings", "init"),
    "doctor": ("rackwright.cli.doctor", "doctor"),
    "plan": ("rackwright.cli.plan", "plan"),
    "verify": ("rackwright.cli.verify", "verify"),
    "inspect": ("rackwright.cli.inspect", "inspect"),
    "parse": ("rackwright.cli.parse", "parse"),
    "lab": ("rackwright.cli.lab", "lab"),
}


class _LazyGroup(click.Group):
    """Importing pyinfra costs 0.3 s: `rackwright validate` must not pay for `plan`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, attribute = _VERBS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rackwright")
def _rackwright() -> None:
    """Bring up and keep up GPU clusters: an exact plan, a safe change, a proof at the end."""


def main() -> None:
    """Entry point: `RackwrightError` becomes text on stderr and an exit code, Ctrl-C becomes 130."""
    try:
        _rackwright.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except RackwrightError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
