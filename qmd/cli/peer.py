"""`qmd peer`: the identities of other queue managers."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import Group


@click.group(cls=Group)
def peer() -> None:
    """Show and decide which other queue manager has which GUID.

    A queue manager is known by facts: the key that it has proven (key:FINGERPRINT), an authority,
    or the address from which it connects.  Messages for its GUID go only to its primary origin,
    marked yes in the column PRIMARY.
    """


@peer.command("list")
@click.argument("queue_manager", required=False, default="")
@json_option
@pass_configuration
def list_(configuration: Configuration, queue_manager: str, as_json: bool) -> None:
    """List the known facts about all queue managers, or about the GUID QUEUE_MANAGER."""
    from qmd.cli.output import print_rows

    rows = configuration.ask(lambda qm: qm.list_peers(queue_manager))
    columns = [
        ("QUEUE MANAGER", "queue_manager"),
        ("FACT", "fact"),
        ("PRIMARY", "is_primary"),
        ("BOUND BY", "bound"),
        ("ADDRESS", "host"),
        ("QMD", "is_qmd"),
        ("SESSIONS", "sessions"),
        ("LAST SEEN", "last_seen"),
    ]
    print_rows(rows, columns, as_json=as_json, none="no queue managers are known")


@peer.command()
@click.argument("queue_manager")
@json_option
@pass_configuration
def show(configuration: Configuration, queue_manager: str, as_json: bool) -> None:
    """Show all facts about the GUID QUEUE_MANAGER, with public keys and times."""
    from qmd.cli.output import print_facts

    rows = configuration.ask(lambda qm: qm.list_peers(queue_manager))
    for number, row in enumerate(rows):
        if number and not as_json:
            click.echo()
        print_facts(row, as_json=as_json)
    if not rows:
        click.echo("it is not known", err=True)


@peer.command()
@click.argument("queue_manager")
@click.argument("fact")
@click.option(
    "--join",
    is_flag=True,
    help="It is the machine that is known already: FACT is its new address, or its new key.",
)
@json_option
@pass_configuration
def pin(
    configuration: Configuration, queue_manager: str, fact: str, join: bool, as_json: bool
) -> None:
    """Bind the GUID QUEUE_MANAGER to FACT, an address or key:FINGERPRINT.

    Only sessions with this fact get messages for the queue manager from now on; a fact that is not
    known yet is stored.  With --join they continue the sequences of the present primary origin.
    """
    from qmd.cli.output import print_json, printable

    row = configuration.ask(lambda qm: qm.pin_peer(queue_manager, fact, join=join))
    if as_json:
        print_json(row)
    else:
        click.echo(f"{row['queue_manager']} is bound to {printable(row['fact'])}")


@peer.command()
@click.argument("queue_manager")
@click.argument("fact", required=False, default="")
@yes_option
@json_option
@pass_configuration
def forget(
    configuration: Configuration, queue_manager: str, fact: str, yes: bool, as_json: bool
) -> None:
    """Forget FACT about the GUID QUEUE_MANAGER, or all facts.  Asks first, or needs --yes.

    The next queue manager that sends an accepted message with this GUID, or answers where this one
    connects, becomes its primary origin.  Without FACT its key for TLS, and that it has TLS, are
    forgotten too.
    """
    from qmd.cli.output import print_json, printable

    if not yes:
        confirm(f"forget {printable(fact) or 'all facts'} about {printable(queue_manager)}")
    done = configuration.ask(lambda qm: qm.forget_peer(queue_manager, fact))
    if as_json:
        print_json({"queue_manager": queue_manager, "forgotten": done})
    else:
        click.echo(f"forgot {done} {'fact' if done == 1 else 'facts'}")
