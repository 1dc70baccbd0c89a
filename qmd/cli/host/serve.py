"""`qmd init` and `qmd serve`: create a queue manager, and run it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.command()
@click.option(
    "--doors",
    is_flag=True,
    help="Serve clients of other protocols too, by the enabled doors in processes of their own.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="If another daemon has the data folder, wait until it ends, then serve in its place.",
)
@pass_configuration
@click.pass_context
def serve(context: click.Context, configuration: Configuration, doors: bool, standby: bool) -> None:
    """Run the queue manager.

    It stays in the foreground, until SIGTERM or Ctrl-C.
    """
    from qmd.serve import serve as run

    context.exit(run(configuration.path, configuration.settings, doors=doors, standby=standby))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:1801",
    show_default=True,
    help="The address at which other queue managers reach this one.",
)
@click.option(
    "--name",
    default="",
    help="The name of this computer for other computers.  [default: the host name]",
)
@json_option
def init(folder: Path, listen: str, name: str, as_json: bool) -> None:
    """Write the configuration of a new queue manager.

    Writes FOLDER/qmd.toml; the queue manager keeps all of its data in FOLDER.  A configuration that
    root creates allows the daemon to run as root; others do not.
    """
    from qmd.cli.output import print_json
    from qmd.config.file import write_default_config

    # Files that root creates cannot be used by other users, so the daemon must run as root.
    is_root = os.geteuid() == 0
    path = write_default_config(folder, listen=listen, name=name, run_as_root=is_root)
    if is_root:
        click.echo(
            "qmd: created by root, for root: run_as_root = true was written. The daemon needs "
            "no privilege of root; create it as a separate user if possible.",
            err=True,
        )
    if as_json:
        print_json({"config": str(path)})
    else:
        click.echo(f"wrote {path}")
        click.echo(f"Start it: qmd --config {path} serve", err=True)
