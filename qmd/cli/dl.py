"""`qmd dl`: the distribution lists of the directory."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import Group

_MEMBERS_HELP = """

    A member is a queue in any spelling, or another list: orders@hostb, 'hostb\\orders',
    'PUBLIC=guid', list:NAME, alias:NAME.
"""


@click.group(cls=Group)
def dl() -> None:
    """Manage distribution lists.

    A list is named NAME, list:NAME or DL=guid.
    """


@dl.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the distribution lists."""
    from qmd.cli.output import print_rows

    rows = configuration.ask(lambda qm: qm.directory.lists())
    columns = [("NAME", "name"), ("MEMBERS", "members"), ("FORMAT NAME", "format_name")]
    print_rows(rows, columns, as_json=as_json, none="no lists; create one: qmd dl create NAME")


@dl.command(help="Create the list NAME." + _MEMBERS_HELP)
@click.argument("name")
@click.argument("members", nargs=-1)
@json_option
@pass_configuration
def create(
    configuration: Configuration, name: str, members: tuple[str, ...], as_json: bool
) -> None:
    from qmd.cli.output import print_json

    made = configuration.ask(lambda qm: qm.directory.create_list(name, members))
    if as_json:
        print_json(made)
    else:
        click.echo(printable(made["format_name"]))


@dl.command(help="Add members to the list NAME, all or none." + _MEMBERS_HELP)
@click.argument("name")
@click.argument("members", nargs=-1, required=True)
@json_option
@pass_configuration
def add(configuration: Configuration, name: str, members: tuple[str, ...], as_json: bool) -> None:
    _print(configuration.ask(lambda qm: qm.directory.add_members(name, members)), as_json=as_json)


@dl.command(help="Remove members from the list NAME, all or none." + _MEMBERS_HELP)
@click.argument("name")
@click.argument("members", nargs=-1, required=True)
@json_option
@pass_configuration
def remove(
    configuration: Configuration, name: str, members: tuple[str, ...], as_json: bool
) -> None:
    changed = configuration.ask(lambda qm: qm.directory.remove_members(name, members))
    _print(changed, as_json=as_json)


@dl.command()
@click.argument("name")
@json_option
@pass_configuration
def show(configuration: Configuration, name: str, as_json: bool) -> None:
    """Show a list and its direct members."""
    _print(configuration.ask(lambda qm: qm.directory.show_list(name)), as_json=as_json)


@dl.command()
@click.argument("name")
@json_option
@pass_configuration
def expand(configuration: Configuration, name: str, as_json: bool) -> None:
    """List the queues of a list and of its nested lists, each once."""
    from qmd.cli.output import print_rows

    rows = configuration.ask(lambda qm: qm.directory.expand_list(name))
    columns = [
        ("QUEUE", "name"),
        ("PATH", "path"),
        ("MACHINE", "machine"),
        ("ADDRESS", "address"),
        ("TRANSACTIONAL", "transactional"),
    ]
    print_rows(rows, columns, as_json=as_json, none="the list is empty")


@dl.command()
@click.argument("name")
@yes_option
@json_option
@pass_configuration
def delete(configuration: Configuration, name: str, yes: bool, as_json: bool) -> None:
    """Delete a list, but none of its queues.  Asks first, or needs --yes."""
    from qmd.cli.output import print_json

    if not yes:
        found = configuration.ask(lambda qm: qm.directory.show_list(name))
        confirm(f"delete the list {printable(name)} with {len(found['members'])} members")
    done = configuration.ask(lambda qm: qm.directory.delete_list(name))
    if as_json:
        print_json(done)
    else:
        click.echo(f"deleted {printable(done['name'])}")


def _print(found: dict[str, object], *, as_json: bool) -> None:
    from qmd.cli.output import print_facts

    print_facts(found, as_json=as_json)
