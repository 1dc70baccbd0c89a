"""`qmd peek`: look at messages without removing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.messages import Wanted, end, reading_options
from qmd.cli.parameters import lookup_id

if TYPE_CHECKING:
    from qmd.cli.messages import Printer
    from qmd.client import Message

BATCH_MESSAGES = 256


@click.command()
@reading_options
@click.option(
    "--start", type=lookup_id, metavar="LOOKUP-ID", default="0", help="The lookup id to begin with."
)
@click.option(
    "--delayed",
    is_flag=True,
    help="List the messages that are to be delivered later instead, as `qmd delayed list`.",
)
@pass_configuration
@click.pass_context
def peek(
    context: click.Context,
    configuration: Configuration,
    queue: str,
    wanted: Wanted,
    start: int,
    delayed: bool,
) -> None:
    """Look at messages without removing them.

    Shows the first message, or more with --all, --count or --follow.  Exit code 6 when there were
    fewer than requested.
    """
    import asyncio

    if delayed:
        from qmd.cli.delayed import print_delayed

        asyncio.run(print_delayed(configuration, queue, as_json=wanted.as_json))
        return

    from qmd.cli.messages import Printer

    printer = Printer(wanted)
    interrupted = asyncio.run(_peek(configuration, queue, wanted, printer, start))
    end(context, wanted, printer.count, interrupted=interrupted)


async def _peek(
    configuration: Configuration, queue: str, wanted: Wanted, printer: Printer, start: int
) -> bool:
    """Print the messages; return whether it was interrupted."""
    from qmd.cli.interrupt import Interrupt

    with Interrupt() as interrupt:
        async with configuration.connect() as qm:
            where = "" if wanted.choice is None else wanted.choice.where
            while (left := wanted.left(printer.count, BATCH_MESSAGES)) and not interrupt:
                limit = left if wanted.choice is None else BATCH_MESSAGES
                messages = await interrupt.unless(
                    qm.peek(queue, start, limit, timeout_s=wanted.timeout_s, where=where)
                )
                if not messages:
                    break
                start = messages[-1].lookup_id + 1
                printer.print(_meant(messages, wanted, printer.count))
        printer.end()
        return bool(interrupt)


def _meant(messages: list[Message], wanted: Wanted, printed: int) -> list[Message]:
    """Return the messages that match the options, and no more than are still wanted."""
    if wanted.choice is None:
        return messages
    meant = [message for message in messages if message.is_among(wanted.choice)]
    return meant[: wanted.left(printed, len(meant))]
