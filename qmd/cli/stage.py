"""`qmd stage`: rows that data pipelines have staged and not published."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def stage() -> None:
    """Show rows that are staged for publication, and discard them."""


@stage.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the staged rows, one entry per attempt."""
    from qmd.cli.output import print_rows

    stages = configuration.ask(lambda qm: qm.pipeline.list_stages())
    columns = [
        ("QUERY", "query"),
        ("EPOCH", "epoch"),
        ("PARTITION", "partition"),
        ("ATTEMPT", "attempt"),
        ("ROWS", "rows"),
        ("BYTES", "bytes"),
    ]
    print_rows(stages, columns, as_json=as_json, none="nothing is staged")


@stage.command()
@click.argument("query", default="")
@click.option(
    "--older-than",
    "older_than_s",
    type=int,
    default=0,
    help="Only stages of at least this age in seconds.",
)
@pass_configuration
def discard(configuration: Configuration, query: str, older_than_s: int) -> None:
    """Remove staged rows of QUERY, or of a minimum age."""
    gone = configuration.ask(
        lambda qm: qm.pipeline.discard_stages(query, older_than_s=older_than_s)
    )
    click.echo(f"removed {gone['rows']} rows of {gone['stages']} attempts")
