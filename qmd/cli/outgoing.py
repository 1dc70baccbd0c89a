"""`qmd outgoing`: messages that wait for other computers, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qmd.cli.completion import outgoing as outgoing_names
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import Group

if TYPE_CHECKING:
    from qmd.client import QueueManager


@click.group(cls=Group)
def outgoing() -> None:
    """Manage messages on their way to other computers.

    An outgoing queue holds the messages for one queue of another computer.
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
        ("AWAITING", "awaiting"),
        ("EXPLANATION", "explanation"),
    ]
    print_rows(queues, columns, as_json=as_json, none="no outgoing queues")


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@json_option
@pass_configuration
def show(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Show one outgoing queue.

    With the figures of exactly-once delivery, and the history of its connection in words.
    """
    from qmd.cli.output import print_facts, print_json

    facts = configuration.ask(lambda qm: qm.show_outgoing(destination))
    if as_json:
        print_json(facts)
        return
    nested = ("sequence", "connection_history")
    print_facts({key: facts[key] for key in facts if key not in nested}, as_json=False)
    click.secho("exactly-once delivery", bold=True)
    print_facts(_delivery(facts["sequence"]), as_json=False)
    click.secho("connection history, the latest first", bold=True)
    for attempt in facts["connection_history"]:
        click.echo(f"  {_attempt(attempt)}")
    if not facts["connection_history"]:
        click.echo("no attempt to connect was made since the daemon was started")


@outgoing.command()
@click.argument("destination", required=False, default="", shell_complete=outgoing_names)
@click.option("--find", "text", default="", help="Only messages with this text in label or id.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop after this many messages.",
)
@json_option
@pass_configuration
def messages(
    configuration: Configuration, destination: str, text: str, count: int, as_json: bool
) -> None:
    """List messages that wait for DESTINATION, or for any.

    STATE is waiting, or unacknowledged: sent, but not acknowledged yet.  `qmd why` explains each
    of them by its id.
    """
    from datetime import UTC, datetime

    from qmd.cli.output import print_rows

    def time(at_ms: int) -> str:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")

    rows, is_complete = configuration.ask(lambda qm: _waiting(qm, destination, text, count))
    for row in rows:
        for name in ("sent", "expires"):
            at_ms = row.pop(f"{name}_at_ms")
            row[name] = None if at_ms is None else time(at_ms)
    columns = [
        ("SENT", "sent"),
        ("DESTINATION", "destination"),
        ("STATE", "state"),
        ("NUMBER", "sequence_number"),
        ("BYTES", "bytes"),
        ("ID", "id"),
        ("LABEL", "label"),
    ]
    print_rows(rows, columns, as_json=as_json, none="no such messages wait")
    if not is_complete:
        click.echo(f"qmd: more follow after {counted(count, 'message')}: use --count", err=True)


async def _waiting(
    qm: QueueManager, destination: str, text: str, count: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return messages that wait for one destination or all, and whether these are all of them."""
    names = [destination]
    if not destination:
        names = [each["destination"] for each in await qm.list_outgoing() if each["messages"]]
    rows: list[dict[str, Any]] = []
    for name in names:
        start: int | None = 0
        while start is not None:
            page = await qm.peek_outgoing(name, start, count + 1 - len(rows), text=text)
            rows += [{"destination": name, **each} for each in page["messages"]]
            if len(rows) > count:
                return rows[:count], False
            start = page["next"]
    return rows, True


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@json_option
@pass_configuration
def awaiting(configuration: Configuration, destination: str, as_json: bool) -> None:
    """List messages that wait for confirmation by DESTINATION.

    They have arrived there, and were not received yet.  Transactional messages that request
    confirmation are kept here until then; see docs/confirmation.md.
    """
    from qmd.cli.output import print_rows

    rows = configuration.ask(lambda qm: _all_awaiting(qm, destination))
    columns = [
        ("ID", "id"),
        ("NUMBER", "number"),
        ("LABEL", "label"),
        ("BYTES", "bytes"),
        ("WAITS SINCE (S)", "waits_since_s"),
        ("GIVEN UP IN (S)", "given_up_in_s"),
    ]
    print_rows(rows, columns, as_json=as_json, none="no messages wait for confirmation")


async def _all_awaiting(qm: QueueManager, destination: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while page := await qm.list_awaiting(destination, rows[-1]["lookup_id"] + 1 if rows else 0):
        rows += page
    return rows


@outgoing.command("give-up")
@click.argument("destination", shell_complete=outgoing_names)
@yes_option
@json_option
@pass_configuration
def give_up(configuration: Configuration, destination: str, yes: bool, as_json: bool) -> None:
    """Stop waiting for confirmation by DESTINATION.

    Messages that arrived there and were not confirmed as received become dead letters here.  Asks
    first, or needs --yes.
    """
    from qmd.cli.output import print_json, printable

    if not yes:
        confirm(f"give up waiting for {destination}")
    count = configuration.ask(lambda qm: qm.give_up_awaiting(destination))
    if as_json:
        print_json({"destination": destination, "given_up": count})
    else:
        click.echo(f"gave up waiting for {counted(count, 'message')} at {printable(destination)}")


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@json_option
@pass_configuration
def pause(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Keep messages for DESTINATION here until it is resumed."""
    configuration.ask(lambda qm: qm.pause_outgoing(destination))
    _done("paused", destination, as_json=as_json)


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@json_option
@pass_configuration
def resume(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Send messages for DESTINATION again."""
    configuration.ask(lambda qm: qm.resume_outgoing(destination))
    _done("resumed", destination, as_json=as_json)


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@click.argument("address", required=False, default="")
@click.option("--undo", is_flag=True, help="Restore the address of the name.")
@click.option(
    "--to-another",
    is_flag=True,
    help="Allow another queue manager than the one that may have some messages: they arrive twice.",
)
@json_option
@pass_configuration
def redirect(
    configuration: Configuration,
    destination: str,
    address: str,
    undo: bool,
    to_another: bool,
    as_json: bool,
) -> None:
    """Redirect messages for DESTINATION to another ADDRESS.

    DESTINATION is the name of an outgoing queue, or a host (host:port) for all queues to it;
    ADDRESS is host or host:port.  For a host with a new address: it does not accept messages twice
    that it already has, and the order stays.
    """
    from qmd.cli.output import print_json, printable

    if bool(address) == undo:
        raise click.UsageError("Give either an ADDRESS or --undo.")
    queues = configuration.ask(
        lambda qm: qm.redirect_outgoing(destination, address, to_another=to_another)
    )
    if as_json:
        print_json({"destination": destination, "queues": queues})
        return
    for each in queues:
        click.echo(
            f"{printable(each['destination'])}: {each['messages']} messages go to"
            f" {printable(each['address'])}"
        )


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@json_option
@pass_configuration
def kick(configuration: Configuration, destination: str, as_json: bool) -> None:
    """Connect now, and send everything unacknowledged again."""
    configuration.ask(lambda qm: qm.kick_outgoing(destination))
    _done("kicked", destination, as_json=as_json)


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@click.option(
    "--send-again",
    is_flag=True,
    help="Also send messages that may have been delivered: some may arrive twice.",
)
@yes_option
@json_option
@pass_configuration
def restart(
    configuration: Configuration, destination: str, send_again: bool, yes: bool, as_json: bool
) -> None:
    """Restart the transactional sequence to DESTINATION.  Asks first, or needs --yes.

    For a computer that was restored from a backup, or with messages that a receiver rejects
    permanently.  Messages that may have been delivered become dead letters with that reason;
    messages that were never sent follow, in order.  The receiver needs no command, unless it
    refuses sessions (two_of_one_identity of `qmd status`): there, `qmd session forget` with the
    GUID of this queue manager.
    """
    from qmd.cli.output import print_json, printable

    if not yes:
        sent = configuration.ask(lambda qm: qm.show_outgoing(destination))["sequence"]
        what = "send again" if send_again else "end as dead letters"
        waiting = counted(sent["unacknowledged"], "unacknowledged message")
        confirm(f"{what} those of {waiting} that may have reached {destination}")
    done = configuration.ask(lambda qm: qm.restart_outgoing(destination, send_again=send_again))
    if as_json:
        print_json(done)
        return
    count = counted(done["in_doubt"], "message")
    what = "sent again" if send_again else "became dead letters (qmd dead-letter list)"
    click.echo(
        f"restarted: {printable(destination)}; {count} that may have been delivered {what}; "
        f"{counted(done['messages'], 'message')} to be sent"
    )


@outgoing.command()
@click.argument("destination", shell_complete=outgoing_names)
@click.option("--dry-run", is_flag=True, help="Only print how many messages would be removed.")
@yes_option
@json_option
@pass_configuration
def purge(
    configuration: Configuration, destination: str, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove messages for DESTINATION, sent or not.  Asks first, or needs --yes.

    Removes all messages that wait for DESTINATION, or for its acknowledgment.  They become dead
    letters.  Messages that were transmitted may have arrived nevertheless.
    """
    from qmd.cli.output import print_json, printable

    messages = 0
    if dry_run or not yes:
        messages = configuration.ask(lambda qm: qm.show_outgoing(destination))["messages"]
    if not dry_run and not yes and messages:
        confirm(f"purge {counted(messages, 'message')} for {destination}")
    if not dry_run:
        messages = configuration.ask(lambda qm: qm.purge_outgoing(destination))
    if as_json:
        print_json({"destination": destination, "purged": not dry_run, "messages": messages})
    else:
        would = "would purge" if dry_run else "purged"
        click.echo(f"{would} {counted(messages, 'message')} for {printable(destination)}")


def _delivery(sequence: dict[str, Any]) -> dict[str, Any]:
    """Return the figures in the terms of MSMQ administration."""
    unacknowledged = sequence["unacknowledged"]
    first, last = sequence["first_unacknowledged"], sequence["last_unacknowledged"]
    resend = "-"
    if sequence["resend_time"] is not None:
        resend = f"{sequence['resend_time']}, in {sequence['resend_in_s']:g} s"
    acknowledged = "none since the daemon was started or the sequence began"
    if sequence["last_ack"] is not None:
        count = sequence["last_ack_count"]
        times = "" if count == 1 else f", which came {count} times"
        acknowledged = f"{sequence['last_ack']} at {sequence['last_ack_time']}{times}"
    return {
        "  sequence": f"{sequence['id']} (timestamp {sequence['timestamp']},"
        f" ordinal {sequence['ordinal']})",
        "  last ack": acknowledged,
        "  unacknowledged": f"{unacknowledged} ({sequence['sent_unacknowledged']} of them sent)",
        "  first, last unacknowledged": "-" if first is None else f"{first}, {last}",
        "  next number": sequence["next_number"],
        "  delivered, receipt unconfirmed": sequence["unconfirmed"],
        "  resends since all was acknowledged": sequence["resends"],
        "  resend interval": f"{sequence['resend_interval_s']:g} s",
        "  next resend": resend,
    }


def _attempt(attempt: dict[str, Any]) -> str:
    """Return an attempt to connect as a line: time, address, result."""
    from qmd.cli.output import printable

    result, status = attempt["result"], attempt["status"]
    where = attempt["address"] or "the other queue manager"
    connected = result == "connected"
    what = f"a session with {where} was opened" if connected else f"{where}: {result}"
    error = "" if int(attempt["error"], 16) == 0 else f" {attempt['error']}"
    what += f" [{status}{error}]"
    if attempt["times"] > 1:
        what += f" ({attempt['times']} times since {attempt['first_time']})"
    return printable(f"{attempt['time']} ({attempt['ago_s']:g} s ago)  {what}")


def _done(what: str, destination: str, *, as_json: bool) -> None:
    from qmd.cli.output import print_json, printable

    if as_json:
        print_json({"destination": destination, what: True})
    else:
        click.echo(f"{what} {printable(destination)}")
