"""`qmd session`: the connections with other queue managers."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.group()
def session() -> None:
    """Look at sessions with other queue managers."""


@session.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the sessions that are open now."""
    from qmd.cli.output import print_rows

    sessions = configuration.ask(lambda qm: qm.list_sessions())
    columns = [
        ("PEER", "peer"),
        ("ADDRESS", "address"),
        ("DIALLED", "dialled"),
        ("STATE", "state"),
        ("SENT", "sent"),
        ("RECEIVED", "received"),
        ("UNACKNOWLEDGED", "unacknowledged"),
        ("BYTES SENT", "bytes_sent"),
        ("BYTES RECEIVED", "bytes_received"),
        ("AGE (s)", "age_s"),
    ]
    print_rows(sessions, columns, as_json=as_json, none="no sessions")
