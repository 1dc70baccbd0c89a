"""`qmd topic`: names of which messages go to the queues of all subscriptions that match them."""

from __future__ import annotations

from typing import Any

import click

from qmd.cli.completion import queues
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted, printable
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import Group


@click.group(cls=Group)
def topic() -> None:
    """Manage topics.  Send to one: qmd send topic:NAME BODY."""


@topic.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the topics."""
    from qmd.cli.output import print_rows

    found = configuration.ask(lambda qm: qm.topics.list_all())
    rows = [
        each | {"count": len(each["subscriptions"]), "others": each["unmatched"] or "refused"}
        for each in found
    ]
    columns = [("NAME", "name"), ("SUBSCRIPTIONS", "count"), ("OTHER MESSAGES", "others")]
    none = "no topics; create one: qmd topic create NAME"
    print_rows(found if as_json else rows, columns, as_json=as_json, none=none)


@topic.command()
@click.argument("name")
@json_option
@pass_configuration
def show(configuration: Configuration, name: str, as_json: bool) -> None:
    """Show the subscriptions of a topic."""
    _print(configuration.ask(lambda qm: qm.topics.show(name)), as_json=as_json)


@topic.command()
@click.argument("name")
@click.option(
    "--unmatched",
    default="",
    metavar="QUEUE",
    help="The queue for messages that no subscription takes.  [default: they are refused]",
)
@json_option
@pass_configuration
def create(configuration: Configuration, name: str, unmatched: str, as_json: bool) -> None:
    """Create the topic NAME, or change --unmatched of one that exists."""
    from qmd.cli.output import print_json

    made = configuration.ask(lambda qm: qm.topics.create(name, unmatched=unmatched))
    if as_json:
        print_json(made)
    else:
        click.echo(printable(made["destination"]))


@topic.command()
@click.argument("name")
@yes_option
@json_option
@pass_configuration
def delete(configuration: Configuration, name: str, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME with its subscriptions.  Asks first, or needs --yes.  Queues stay."""
    from qmd.cli.output import print_json

    if not yes:
        shown = configuration.ask(lambda qm: qm.topics.show(name))
        count = counted(len(shown["subscriptions"]), "subscription")
        confirm(f"delete topic {printable(shown['name'])} with {count}")
    deleted = configuration.ask(lambda qm: qm.topics.delete(name))
    if as_json:
        print_json(deleted)
    else:
        click.echo(f"deleted {printable(deleted['name'])}")


@topic.command()
@click.argument("topic_name", metavar="TOPIC")
@click.argument("queue", shell_complete=queues)
@click.option(
    "--name", default="", metavar="NAME", help="The name of the subscription.  [default: QUEUE]"
)
@click.option(
    "--where",
    default="",
    metavar="SELECTOR",
    help="Only messages that match, such as \"region = 'east'\".  [default: all]",
)
@json_option
@pass_configuration
def subscribe(
    configuration: Configuration, topic_name: str, queue: str, name: str, where: str, as_json: bool
) -> None:
    """Let messages of TOPIC go to QUEUE, here or elsewhere; or change that subscription."""
    changed = configuration.ask(
        lambda qm: qm.topics.subscribe(topic_name, name or _name_of(queue), queue, where=where)
    )
    _print(changed, as_json=as_json)


@topic.command()
@click.argument("topic_name", metavar="TOPIC")
@click.argument("name")
@json_option
@pass_configuration
def unsubscribe(configuration: Configuration, topic_name: str, name: str, as_json: bool) -> None:
    """Remove the subscription NAME of TOPIC.  Its queue stays."""
    changed = configuration.ask(lambda qm: qm.topics.unsubscribe(topic_name, name))
    _print(changed, as_json=as_json)


def _name_of(queue: str) -> str:
    """Return a name for the subscription of a queue: names have no commas and backslashes."""
    for sign in ",;\\":
        queue = queue.replace(sign, "/")
    return queue[:100]


def _print(topic: dict[str, Any], *, as_json: bool) -> None:
    from qmd.cli.output import print_json, print_rows

    if as_json:
        print_json(topic)
        return
    rows = [each | {"where": each["where"] or "all messages"} for each in topic["subscriptions"]]
    columns = [("SUBSCRIPTION", "name"), ("QUEUE", "destination"), ("MESSAGES", "where")]
    none = f"topic {printable(topic['name'])} has no subscriptions"
    print_rows(rows, columns, as_json=False, none=none)
