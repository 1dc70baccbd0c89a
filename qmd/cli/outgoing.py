"""`qmd outgoing`: what waits for other computers, and why."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.group()
def outgoing() -> None:
    """Manage messages on their way to others.

    An outgoing queue holds what waits for one queue of another computer.
    """


@outgoing.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the outgoing queues."""
    from qmd.cli.output import print_rows

    queues = configuration.ask(lambda qm: qm.list_outgoing())
    columns = [
        ("DESTINATION", "destination"),
        ("ADDRESS", "address"),
        ("STATE", "state"),
        ("MESSAGES", "messages"),
        ("BYTES", "bytes"),
        ("UNACKNOWLEDGED", "unacknowledged"),
        ("EXPLANATION", "explanation"),
    ]
    print_rows(queues, columns, as_json=as_json, none="no outgoing queues")


@outgoing.command()
@click.argument("destination")
@json_option
@pass_configuration
def show(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Show one outgoing queue: its sequence, and how its connection fared."""
    from qmd.cli.output import print_facts

    facts = configuration.ask(lambda qm: qm.show_outgoing(destination))
    print_facts(facts, as_json=as_json)


@outgoing.command()
@click.argument("destination")
@json_option
@pass_configuration
def pause(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Keep messages for DESTINATION here until it is resumed."""
    configuration.ask(lambda qm: qm.pause_outgoing(destination))
    _done("paused", destination, as_json=as_json)


@outgoing.command()
@click.argument("destination")
@json_option
@pass_configuration
def resume(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Send messages for DESTINATION again."""
    configuration.ask(lambda qm: qm.resume_outgoing(destination))
    _done("resumed", destination, as_json=as_json)


@outgoing.command()
@click.argument("destination")
@json_option
@pass_configuration
def kick(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Connect now, and send everything unacknowledged again."""
    configuration.ask(lambda qm: qm.kick_outgoing(destination))
    _done("kicked", destination, as_json=as_json)


def _done(what: str, destination: str, *, as_json: bool) -> None:
    from qmd.cli.output import print_json, printable

    if as_json:
        print_json({"destination": destination, what: True})
    else:
        click.echo(f"{what} {printable(destination)}")
