"""`qmd alias`: other names for queues, in the directory."""

from __future__ import annotations

import click

from qmd.cli.completion import queues
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import Group


@click.group(cls=Group)
def alias() -> None:
    """Manage queue aliases of the directory.

    alias:NAME can be used wherever a queue is named.
    """


@alias.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the aliases."""
    from qmd.cli.output import print_rows

    rows = configuration.ask(lambda qm: qm.directory.aliases())
    columns = [("NAME", "name"), ("STANDS FOR", "stands_for")]
    none = "no aliases; create one: qmd alias create NAME QUEUE"
    print_rows(rows, columns, as_json=as_json, none=none)


@alias.command()
@click.argument("name")
@json_option
@pass_configuration
def show(configuration: Configuration, name: str, as_json: bool) -> None:
    """Show the queue of an alias."""
    from qmd.cli.output import print_facts

    full = name if name.lower().startswith("alias:") else f"alias:{name}"
    print_facts(configuration.ask(lambda qm: qm.directory.lookup(full)), as_json=as_json)


@alias.command()
@click.argument("name")
@click.argument("queue", shell_complete=queues)
@json_option
@pass_configuration
def create(configuration: Configuration, name: str, queue: str, as_json: bool) -> None:
    """Create alias:NAME for QUEUE, which is one queue in any spelling."""
    from qmd.cli.output import print_facts

    made = configuration.ask(lambda qm: qm.directory.create_alias(name, queue))
    print_facts(made, as_json=as_json)


@alias.command()
@click.argument("name")
@yes_option
@json_option
@pass_configuration
def delete(configuration: Configuration, name: str, yes: bool, as_json: bool) -> None:
    """Delete an alias, but not its queue.  Asks first, or needs --yes.

    The alias is removed from lists that contain it by this name.
    """
    from qmd.cli.output import print_json

    if not yes:
        confirm(f"delete the alias {printable(name)}")
    done = configuration.ask(lambda qm: qm.directory.delete_alias(name))
    if as_json:
        print_json(done)
    else:
        click.echo(f"deleted {printable(done['name'])}")
