"""`qmd why` and `qmd trace`: what became of a message, in sentences or line by line."""

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
    @click.option("--queue", default="", help="The queue that a lookup id is of.  [default: any]")
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
    """Say where a message is, what happened to it, and what to do.

    The queue manager at the other end is asked as well, where that is possible; this takes two
    seconds at most.  Exit code 3: neither of them knows the message.
    """
    from qmd.cli.output import print_json

    told = configuration.ask(lambda qm: qm.why(message, queue=queue, ask=not only_here))
    if as_json:
        print_json(told)
    else:
        _print(told)
    if not _is_known(told):
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
    """Print the history of a message, one line for each event, here and at the other end.

    The two computers' clocks may differ.  Exit code 3: nothing is known of the message.
    """
    from qmd.cli.output import print_json

    told = configuration.ask(lambda qm: qm.why(message, queue=queue, ask=not only_here))
    events = [*told["events"], *(event for peer in told["peers"] for event in peer["events"])]
    events.sort(key=lambda event: int(event["at_ms"]))
    if as_json:
        for event in events:
            print_json(event)
    else:
        print_events(events)
    for side in (told, *told["peers"]):
        if side["events_left_out"]:
            click.echo(f"qmd: not all events of {side['host']} are shown", err=True)
    if told["sides"]:
        click.echo(f"qmd: {_line(told['sides'])}", err=True)
    if not events:
        context.exit(ExitCode.NOT_FOUND)


def print_events(events: Sequence[Facts], *, heading: bool = True) -> None:
    """A table: time, host, what, where, with whom, position, why."""
    from qmd.cli.output import shown

    columns = ("TIME", "HOST", "KIND", "QUEUE", "PEER", "POSITION", "MESSAGE", "REASON")
    if heading and events:
        click.secho(_row(columns), bold=True)
    for event in events:
        queue = shown(event["queue"])
        if event["to_queue"]:
            queue = f"{queue} -> {shown(event['to_queue'])}"
        reason = shown(event["reason"])
        if event["class"]:
            reason = shown(event["class"]) if reason == "-" else f"{event['class']}: {reason}"
        cells = (
            shown(event["time"]),
            shown(event["host"]),
            shown(event["kind"]),
            queue,
            shown(event["peer"]),
            shown(event["sequence_number"]),
            shown(event["message_id"].rpartition("\\")[2]),
            reason,
        )
        click.echo(_row(cells))


def _row(cells: Sequence[str]) -> str:
    time, host, kind, queue, peer, position, message, reason = cells
    return (
        f"{time:24}  {host:12}  {kind:20}  {queue:32}  {peer:36}  {position:>8}  {message:>10}"
        f"  {reason}"
    )


def _print(told: Facts) -> None:
    click.secho(f"{_line(told['message_id'])}: {_line(told['state']).replace('_', ' ')}", bold=True)
    _print_side(told)
    for peer in told["peers"]:
        if peer["answered"]:
            name = _line(peer["host"])
            click.secho(f"At {name} ({_line(peer['address'])}):", bold=True)
            _print_side(peer)
    if told["sides"]:
        click.echo(_line(told["sides"]))


def _print_side(side: Facts) -> None:
    for sentence in side["sentences"]:
        click.echo(f"  {_line(sentence)}")
    for remedy in side["remedies"]:
        click.echo(f"  What to do: {_line(remedy)}")


def _line(text: Any) -> str:
    from qmd.cli.output import printable

    return printable(str(text))


def _is_known(told: Facts) -> bool:
    states = [told["state"], *(peer["state"] for peer in told["peers"] if peer["answered"])]
    return any(state not in ("unknown", "not_told") for state in states)
