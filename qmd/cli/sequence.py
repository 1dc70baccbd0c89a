"""`qmd sequence`: the transactional sequences of both directions."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def sequence() -> None:
    """Show transactional sequences."""


@sequence.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the sequences of both directions, with their positions."""
    from qmd.cli.output import print_rows

    sequences = configuration.ask(lambda qm: qm.list_sequences())
    columns = [
        ("DIRECTION", "direction"),
        ("PEER", "peer"),
        ("QUEUE", "queue"),
        ("SEQUENCE", "id"),
        ("NUMBER", "number"),
        ("ACKNOWLEDGED", "acknowledged"),
        ("REJECTED", "rejected"),
        ("CONTRADICTIONS", "contradictions"),
        ("EXPLANATION", "explanation"),
    ]
    print_rows(sequences, columns, as_json=as_json, none="no sequences")
