"""`qmd log`: the levels of the daemon's log."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def log() -> None:
    """Show and change the log of the daemon."""


@log.command()
@click.argument("name", required=False)
@click.argument(
    "level", required=False, type=click.Choice(("debug", "info", "warning", "error", "default"))
)
@json_option
@pass_configuration
def level(configuration: Configuration, name: str | None, level: str | None, as_json: bool) -> None:
    """Show the levels of the log, or give NAME another LEVEL while the daemon runs.

    NAME is a package or a module, such as qmd.peers, or default.  The LEVEL default takes the level
    of NAME back.  A restart takes all of them back.
    """
    from qmd.cli.output import print_json

    if name is not None and level is None:
        raise click.UsageError("give the level too: qmd log level NAME LEVEL")
    if name is None or level is None:
        found = configuration.ask(lambda qm: qm.log_levels())
    else:
        of, to = "" if name == "default" else name, "" if level == "default" else level
        found = configuration.ask(lambda qm: qm.set_log_level(to, of))
    if as_json:
        print_json(found)
        return
    for each, value in {"default": found["default"], **found["names"]}.items():
        click.echo(f"{each}: {value}")
