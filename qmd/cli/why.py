"""`qmd why` and `qmd trace`: the history of a message, in sentences or line by line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode

Facts = Mapping[str, Any]


def _inquiry_options(command: Callable[..., None]) -> Callable[..., None]:
    @click.argument("message", metavar="MESSAGE-ID|LOOKUP-ID")
    @click.option("--queue", default="", help="The queue of a lookup id.  [default: any]")
    @click.option("--only-here", is_flag=True, help="Do not ask the other queue manager.")
    @json_option
    @functools.wraps(command)
    def with_options(*arguments: Any, **named: Any) -> None:
        from qmd.cli.parameters import system_queue

        named["queue"] = system_queue(named["queue"])
        command(*arguments, **named)

    return with_options


@click.command()
@_inquiry_options
@pass_configuration
@click.pass_context
def why(
    context: click.Context,
    configuration: Configuration,
    message: str,
    queue: str,
    only_here: bool,
    as_json: bool,
) -> None:
    """Show where a message is, what happened to it, and what to do.

    The queue manager at the other end is asked as well, if possible; this takes two seconds at
    most.  Exit code 3: neither of them knows the message.
    """
    from qmd.cli.output import print_json

    account = configuration.ask(lambda qm: qm.why(message, queue=queue, ask=not only_here))
    if as_json:
        print_json(account)
    else:
        print_account(account)
    if not _is_known(account):
        context.exit(ExitCode.NOT_FOUND)


@click.command()
@_inquiry_options
@pass_configuration
@click.pass_context
def trace(
    context: click.Context,
    configuration: Configuration,
    message: str,
    queue: str,
    only_here: bool,
    as_json: bool,
) -> None:
    """Print the history of a message, one line per event.

    It has the events of this computer and of the other end.  The clocks of the two computers may
    differ.  Exit code 3: the message is unknown.
    """
    from qmd.cli.output import print_json

    account = configuration.ask(lambda qm: qm.why(message, queue=queue, ask=not only_here))
    events = [*account["events"], *(event for peer in account["peers"] for event in peer["events"])]
    events.sort(key=lambda event: int(event["at_ms"]))
    if as_json:
        for event in events:
            print_json(event)
    else:
        EventTable().print(events)
    for side in (account, *account["peers"]):
        if side["events_left_out"]:
            click.echo(f"qmd: not all events of {side['host']} are shown", err=True)
    if account["sides"]:
        click.echo(f"qmd: {_line(account['sides'])}", err=True)
    if not events:
        for sentence in (*account["sentences"], *account["remedies"]):
            click.echo(f"qmd: {_line(sentence)}", err=True)
        context.exit(ExitCode.NOT_FOUND)


class EventTable:
    """Prints events as a table: time, host, kind, queue, peer, position, message, reason.

    Columns become wider with their contents: longer cells in later pages shift the columns.
    """

    HEADINGS = ("TIME", "HOST", "KIND", "QUEUE", "PEER", "POSITION", "MESSAGE", "REASON")

    def __init__(self) -> None:
        self._widths: list[int] = []

    def print(self, events: Sequence[Facts]) -> None:
        rows = [_cells(event) for event in events]
        is_first = not self._widths
        if not rows:
            return
        widths = (max(map(len, column)) for column in zip(self.HEADINGS, *rows, strict=True))
        self._widths = list(map(max, self._widths, widths)) if self._widths else list(widths)
        if is_first:
            click.secho(self._line(self.HEADINGS), bold=True)
        for row in rows:
            click.echo(self._line(row))

    def _line(self, cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()


def _cells(event: Facts) -> tuple[str, ...]:
    from qmd.cli.output import shown

    queue = shown(event["queue"])
    if event["to_queue"]:
        queue = f"{queue} -> {shown(event['to_queue'])}"
    reason = shown(event["reason"])
    if event["class"]:
        message_class = shown(event["class"])
        reason = message_class if reason == "-" else f"{message_class}: {reason}"
    return (
        shown(event["time"]),
        shown(event["host"]),
        shown(event["kind"]),
        queue,
        shown(event["peer"]),
        shown(event["sequence_number"]),
        shown(event["message_id"].rpartition("\\")[2]),
        reason,
    )


def print_account(account: Facts) -> None:
    answers = [peer for peer in account["peers"] if peer["answered"]]
    states = "; ".join(
        f"{_line(side['state']).replace('_', ' ')} ({_line(side['host'])})"
        for side in (account, *answers)
    )
    click.secho(f"{_line(account['message_id'])}: {states}", bold=True)
    _print_side(account, has_answers=bool(answers))
    for peer in answers:
        click.secho(f"At {_line(peer['host'])} ({_line(peer['address'])}):", bold=True)
        _print_side(peer, has_answers=True)
    if account["sides"]:
        click.echo(_line(account["sides"]))


def _print_side(side: Facts, *, has_answers: bool) -> None:
    for sentence in side["sentences"]:
        click.echo(f"  {_line(sentence)}")
    if has_answers and side["state"] == "delivered":
        return  # the remedy is to ask the other side, which was done
    for remedy in side["remedies"]:
        click.echo(f"  Remedy: {_line(remedy)}")


def _line(text: Any) -> str:
    from qmd.cli.output import printable

    return printable(str(text))


def _is_known(account: Facts) -> bool:
    states = [account["state"], *(peer["state"] for peer in account["peers"] if peer["answered"])]
    return any(state not in ("unknown", "not_told") for state in states)
