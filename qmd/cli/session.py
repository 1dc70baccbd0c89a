"""`qmd session`: the connections to other queue managers."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def session() -> None:
    """Show sessions with other queue managers."""


@session.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the open sessions."""
    from qmd.cli.output import print_rows

    sessions = configuration.ask(lambda qm: qm.list_sessions())
    columns = [
        ("PEER", "peer"),
        ("ADDRESS", "address"),
        ("DIALLED", "dialled"),
        ("TLS", "tls"),
        ("STATE", "state"),
        ("SENT", "sent"),
        ("RECEIVED", "received"),
        ("UNACKNOWLEDGED", "unacknowledged"),
        ("LIMITED", "limited"),
        ("BYTES SENT", "bytes_sent"),
        ("BYTES RECEIVED", "bytes_received"),
        ("AGE (s)", "age_s"),
    ]
    print_rows(sessions, columns, as_json=as_json, none="no sessions")


@session.command("forget")
@click.argument("queue_manager")
@json_option
@pass_configuration
def forget(configuration: Configuration, queue_manager: str, as_json: bool) -> None:
    """Forget the computer recorded for the GUID QUEUE_MANAGER.

    For use after a conflict of two machines with one identity was resolved: see two_of_one_identity
    of `qmd status`.  The next machine that connects with this GUID is accepted.
    """
    from qmd.cli.output import print_json, printable

    forgotten = configuration.ask(lambda qm: qm.forget_identity(queue_manager))
    if as_json:
        print_json({"queue_manager": queue_manager, "forgotten": forgotten})
    else:
        what = "forgotten" if forgotten else "it was not known"
        click.echo(f"{printable(queue_manager)}: {what}")
