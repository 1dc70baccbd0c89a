"""`qmd transaction`: what applications have begun and not ended."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.group()
def transaction() -> None:
    """Look at the transactions of applications."""


@transaction.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the transactions that are under way, the oldest first."""
    from qmd.cli.output import print_rows

    found = configuration.ask(lambda qm: qm.list_transactions())
    columns = [
        ("TRANSACTION", "transaction"),
        ("STATE", "state"),
        ("AGE S", "age_s"),
        ("IDLE S", "idle_s"),
        ("SENT", "sent"),
        ("RECEIVED", "received"),
    ]
    print_rows(found, columns, as_json=as_json, none="no transactions are under way")


@transaction.command()
@click.argument("transaction_id", metavar="TRANSACTION")
@json_option
@pass_configuration
def show(configuration: Configuration, transaction_id: str, as_json: bool) -> None:
    """Show one transaction: under way, or what became of it.

    Of one that has ended it is known for a while ([transactions] outcome_age) that it was
    committed.  Asking does not disturb one that is under way.
    """
    from qmd.cli.output import print_facts

    try:
        wanted = bytes.fromhex(transaction_id)
    except ValueError:
        raise click.UsageError(
            f"{transaction_id} is no transaction id: 32 hexadecimal digits"
        ) from None
    facts = next(
        (
            each
            for each in configuration.ask(lambda qm: qm.list_transactions())
            if each["transaction"] == wanted.hex()
        ),
        None,
    )
    if facts is None:
        ids = configuration.ask(lambda qm: qm.outcome(wanted))
        if ids is None:
            raise Failure(
                ExitCode.FAILED,
                f"nothing is known of transaction {wanted.hex()}: it was aborted, or never begun,"
                " or has ended long ago",
                "no_such_transaction",
            )
        facts = {"transaction": wanted.hex(), "state": "committed", "sent": ids}
    print_facts(facts, as_json=as_json)
