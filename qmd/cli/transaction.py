"""`qmd transaction`: transactions of applications that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.client import QueueManager


@click.group(cls=Group)
def transaction() -> None:
    """Show the transactions of applications."""


@transaction.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List transactions under way, and those in doubt in a database."""
    from qmd.cli.output import print_rows

    found = configuration.ask(_all)
    columns = [
        ("TRANSACTION", "transaction"),
        ("STATE", "state"),
        ("AGE S", "age_s"),
        ("IDLE S", "idle_s"),
        ("SENT", "sent"),
        ("RECEIVED", "received"),
        ("DATABASE", "resource"),
        ("DECISION", "decision"),
    ]
    print_rows(found, columns, as_json=as_json, none="no transactions are under way")


async def _all(qm: QueueManager) -> list[dict[str, Any]]:
    """Return all transactions; undecided ones are shown as under way."""
    in_doubt = [
        {"state": "in doubt"} | branch
        for branch in await qm.list_branches()
        if branch["decision"] != "undecided"
    ]
    return await qm.list_transactions() + in_doubt


@transaction.command()
@click.argument("database")
@click.option(
    "--dsn",
    help="The connection string of PostgreSQL's libpq.  [default: the environment: PGHOST, ...]",
)
@click.option(
    "--dsn-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with it, so that no password appears in the list of processes.",
)
@json_option
@pass_configuration
def recover(
    configuration: Configuration,
    database: str,
    dsn: str | None,
    dsn_file: str | None,
    as_json: bool,
) -> None:
    """End transactions that wait in a PostgreSQL database.

    Each is committed or rolled back, as the queue manager decided.  DATABASE is its name in
    transactions.  Programs do the same when they begin; this command is for use without such a
    program, from a timer for example.
    """
    from pathlib import Path

    from qmd.cli.output import print_facts
    from qmd.client import Database

    if dsn is not None and dsn_file is not None:
        raise click.UsageError("give only one of --dsn and --dsn-file")
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise Failure(
            ExitCode.FAILED,
            "psycopg, the driver of PostgreSQL, is not installed: pip install '.[postgresql]'",
            "driver_missing",
        ) from error
    where = given_files.read_text(Path(dsn_file)).strip() if dsn_file else dsn or ""
    resource = Database(database, lambda: psycopg.connect(where))
    try:
        decided = configuration.ask(resource.recover)
    except psycopg.Error as error:
        raise Failure(
            ExitCode.UNREACHABLE, f"PostgreSQL reports: {error}", "database_unreachable"
        ) from error
    print_facts({key.replace(" ", "_"): ids for key, ids in decided.items()}, as_json=as_json)


@transaction.command()
@click.argument("transaction_id", metavar="TRANSACTION")
@click.argument("database")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_configuration
def resolve(configuration: Configuration, transaction_id: str, database: str, yes: bool) -> None:
    """Remove the record that a database is in doubt.

    Use it after you have ended the transaction there: `qmd transaction list` shows the decision; in
    PostgreSQL, `SELECT gid FROM pg_prepared_xacts` shows the waiting ones, and COMMIT PREPARED or
    ROLLBACK PREPARED ends one.
    """
    wanted = _parsed(transaction_id)
    if not yes:
        click.confirm(
            f"Has transaction {wanted.hex()} been ended in {database}?", abort=True, err=True
        )
    if not configuration.ask(lambda qm: qm.forget_branch(wanted, database)):
        raise Failure(
            ExitCode.NOT_FOUND,
            f"{database} is not in doubt about transaction {wanted.hex()}",
            "no_such_branch",
        )


def _parsed(transaction_id: str) -> bytes:
    try:
        return bytes.fromhex(transaction_id)
    except ValueError:
        raise click.UsageError(
            f"{transaction_id} is not a transaction id: 32 hexadecimal digits"
        ) from None


@transaction.command()
@click.argument("transaction_id", metavar="TRANSACTION")
@json_option
@pass_configuration
def show(configuration: Configuration, transaction_id: str, as_json: bool) -> None:
    """Show a transaction, or the outcome of one that has ended.

    A commit is remembered for a while ([transactions] outcome_age).  The query does not affect a
    transaction under way.
    """
    from qmd.cli.output import print_facts

    wanted = _parsed(transaction_id)
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
                f"transaction {wanted.hex()} is unknown: it was aborted, or never begun, or "
                "ended long ago",
                "no_such_transaction",
            )
        facts = {"transaction": wanted.hex(), "state": "committed", "sent": ids}
    print_facts(facts, as_json=as_json)
