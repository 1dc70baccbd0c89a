"""`qmd delayed`: messages that are stored, and will be sent at a later time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.completion import destinations
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import ExitCode, Group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from qmd.client import QueueManager

COLUMNS = [
    ("DUE", "due_at"),
    ("ID", "id"),
    ("COPIES", "copies"),
    ("QUEUE", "destination"),
    ("LABEL", "label"),
    ("BYTES", "bytes"),
    ("SENT", "sent_at"),
]


@click.group(cls=Group)
def delayed() -> None:
    """List and cancel messages that are to be delivered at a later time."""


@delayed.command("list")
@click.argument("queue", required=False, default="", shell_complete=destinations)
@json_option
@pass_configuration
def list_(configuration: Configuration, queue: str, as_json: bool) -> None:
    """List the delayed messages, to QUEUE or to all; the earliest of each page first.

    QUEUE is a queue of this computer or another one, in any spelling.
    """
    import asyncio

    asyncio.run(print_delayed(configuration, queue, as_json=as_json))


async def print_delayed(configuration: Configuration, queue: str, *, as_json: bool) -> int:
    """Print the delayed messages; return their number."""
    from qmd.cli.output import print_json, print_rows

    count = 0
    async with configuration.connect() as qm:
        async for page in _pages(qm, queue):
            count += len(page)
            if as_json:
                for each in page:
                    print_json(each)
            else:
                print_rows(page, COLUMNS, as_json=False, none="no delayed messages")
    return count


async def _pages(qm: QueueManager, queue: str) -> AsyncIterator[list[dict[str, Any]]]:
    start: int | None = 0
    while start is not None:
        page = await qm.list_delayed(queue, start=start, limit=1000)
        rows = [_shown(each) for each in page["messages"]]
        rows.sort(key=lambda each: str(each["due_at"]))
        if rows or not start:
            yield rows
        start = page["next"]


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in message.items() if name != "body"}
    for name in ("due_at", "sent_at"):
        shown[name] = _time(shown.pop(f"{name}_ms"))
    return shown | {"copies": len(message["ids"])}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


@delayed.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@json_option
@pass_configuration
@click.pass_context
def cancel(
    context: click.Context,
    configuration: Configuration,
    ids: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Cancel delayed messages, given by their ids: they are removed, and never sent.

    An id of a copy cancels all copies of its message.  Exit code 3: at least one of the messages
    was not delayed any more.
    """
    from qmd.cli.output import print_json

    if not yes:
        confirm(f"Cancel {len(ids)} message{'' if len(ids) == 1 else 's'}")
    cancelled = configuration.ask(lambda qm: qm.cancel_delayed(*ids))
    late = [each for each in dict.fromkeys(ids) if each not in cancelled]
    if as_json:
        print_json({"cancelled": cancelled, "not_delayed": late})
    else:
        for each in cancelled:
            click.echo(f"cancelled {each}")
        for each in late:
            click.echo(f"qmd: {each} is not delayed: see `qmd why {each}`", err=True)
    if late:
        context.exit(ExitCode.NOT_FOUND)
