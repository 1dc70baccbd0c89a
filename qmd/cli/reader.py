"""`qmd reader`: readers of queues in batches, and the messages reserved for them."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def reader() -> None:
    """Show readers of data pipelines, and release their messages."""


@reader.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List readers with their queues, positions and reserved messages."""
    from qmd.cli.output import print_rows

    readers = configuration.ask(lambda qm: qm.pipeline.list_readers())
    columns = [
        ("READER", "reader"),
        ("QUEUE", "name"),
        ("CONSUMED TO", "position"),
        ("RESERVED TO", "reserved"),
        ("RESERVED", "messages"),
        ("READY", "ready"),
        ("QUIET FOR S", "quiet_s"),
    ]
    print_rows(readers, columns, as_json=as_json, none="no readers")


@reader.command()
@click.argument("name")
@click.option("--queue", default="", help="Only its reserved messages of this queue.")
@click.option(
    "--forget",
    is_flag=True,
    help="Forget the reader; a new reader of that name starts from the beginning.",
)
@click.option("--dry-run", is_flag=True, help="Only print how many messages would be released.")
@pass_configuration
def release(
    configuration: Configuration, name: str, queue: str, forget: bool, dry_run: bool
) -> None:
    """Release the messages that are reserved for reader NAME.

    Every receiver can receive them again. Requests of a pipeline that still runs as this reader are
    refused from now on, and its checkpoint cannot continue if it has to read a batch again.
    """
    released = configuration.ask(
        lambda qm: qm.pipeline.release_reader(name, queue, dry_run=dry_run, forget=forget)
    )
    would = "would be " if dry_run else ""
    click.echo(f"{released.messages} messages {would}ready again")
