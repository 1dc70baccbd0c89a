"""`qmd peek`: look at messages and leave them where they are."""

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
@click.option("--start", type=lookup_id, metavar="LOOKUP-ID", default="0", help="Where to begin.")
@pass_configuration
@click.pass_context
def peek(
    context: click.Context, configuration: Configuration, queue: str, wanted: Wanted, start: int
) -> None:
    """Look at messages without removing them.

    The first message, unless --all, --count or --follow says more.  Exits with 6 when
    fewer were there than were asked for.
    """
    import asyncio

    from qmd.cli.messages import Printer

    printer = Printer(wanted)
    interrupted = asyncio.run(_peek(configuration, queue, wanted, printer, start))
    end(context, wanted, printer.count, interrupted=interrupted)


async def _peek(
    configuration: Configuration, queue: str, wanted: Wanted, printer: Printer, start: int
) -> bool:
    """Returns whether it was interrupted."""
    from qmd.cli.interrupt import Interrupt

    with Interrupt() as interrupt:
        async with configuration.connect() as qm:
            while (left := wanted.left(printer.count, BATCH_MESSAGES)) and not interrupt:
                limit = left if wanted.choice is None else BATCH_MESSAGES
                messages = await interrupt.unless(
                    qm.peek(queue, start, limit, timeout_s=wanted.timeout_s)
                )
                if not messages:
                    break
                start = messages[-1].lookup_id + 1
                printer.print(_meant(messages, wanted, printer.count))
        printer.end()
        return bool(interrupt)


def _meant(messages: list[Message], wanted: Wanted, printed: int) -> list[Message]:
    """Those of `messages` that the options mean, and no more than are still wanted."""
    if wanted.choice is None:
        return messages
    meant = [message for message in messages if message.is_among(wanted.choice)]
    return meant[: wanted.left(printed, len(meant))]
