"""`qmd init` and `qmd serve`: make a queue manager, and be it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.command()
@pass_configuration
@click.pass_context
def serve(context: click.Context, configuration: Configuration) -> None:
    """Run the queue manager.

    It stays in the foreground, until SIGTERM or Ctrl-C.
    """
    from qmd.daemon import main

    context.exit(main(configuration.settings()))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:1801",
    show_default=True,
    help="Where other queue managers reach this one.",
)
@click.option("--name", default="", help="This computer's name for others.  [default: the host's]")
@json_option
def init(folder: Path, listen: str, name: str, as_json: bool) -> None:
    """Write the configuration of a new queue manager.

    FOLDER/qmd.toml: the queue manager keeps everything in FOLDER.  Made by root, for
    root's own use, it says that the daemon may run as root; it does not otherwise.
    """
    from qmd.cli.output import print_json
    from qmd.config.file import write_default_config

    # What root makes is root's: nobody else could use it, and so it must say what it is.
    is_root = os.geteuid() == 0
    path = write_default_config(folder, listen=listen, name=name, run_as_root=is_root)
    if is_root:
        click.echo(
            "qmd: made by root, for root: run_as_root = true was written. The daemon needs no right"
            " of root's; make it as a user of its own where you can.",
            err=True,
        )
    if as_json:
        print_json({"config": str(path)})
    else:
        click.echo(f"wrote {path}")
        click.echo(f"Start it: qmd --config {path} serve", err=True)
