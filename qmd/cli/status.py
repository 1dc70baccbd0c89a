"""`qmd status`: the queue manager in one look."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.command()
@json_option
@pass_configuration
def status(configuration: Configuration, as_json: bool) -> None:
    """Show the queue manager in one look.

    Its name, version, uptime and addresses, and how much it holds.
    """
    from qmd.cli.output import print_facts

    facts = configuration.ask(lambda qm: qm.status())
    print_facts(facts, as_json=as_json)
