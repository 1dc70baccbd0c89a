"""`qmd receive`: take messages out of a queue and print them.

A batch is taken, then removed, then printed; what was taken and not removed goes
back.  Ctrl-C waits for the batch in hand, so nothing is removed and not printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.messages import Wanted, end, reading_options

if TYPE_CHECKING:
    from qmd.cli.messages import Printer

BATCH_MESSAGES = 128


@click.command()
@reading_options
@click.option(
    "--transaction",
    "in_transaction",
    is_flag=True,
    help="Each in a transaction of its own, committed when it is printed, or when --exec is done.",
)
@click.option(
    "--exec",
    "program",
    metavar="CMD",
    help="Run this shell command for each, with the body as its standard input and the properties"
    " in its environment (QMD_LABEL, QMD_ID, ...); exit code 0 commits, any other aborts.",
)
@pass_configuration
@click.pass_context
def receive(
    context: click.Context,
    configuration: Configuration,
    queue: str,
    wanted: Wanted,
    in_transaction: bool,
    program: str | None,
) -> None:
    """Receive messages: remove and print them.

    One message, unless --all, --count or --follow says more.  Exits with 6 when fewer
    came than were asked for.
    """
    import asyncio

    from qmd.cli.messages import Printer

    if program is not None and not in_transaction:
        raise click.UsageError("--exec needs --transaction: it decides whether it commits")
    printer = Printer(wanted)
    if in_transaction:
        from qmd.cli.work import work

        interrupted = asyncio.run(work(configuration, queue, wanted, printer, program))
    else:
        interrupted = asyncio.run(_receive(configuration, queue, wanted, printer))
    end(context, wanted, printer.count, interrupted=interrupted)


async def _receive(
    configuration: Configuration, queue: str, wanted: Wanted, printer: Printer
) -> bool:
    """Returns whether it was interrupted."""
    from qmd.cli.interrupt import Interrupt
    from qmd.client import NotTaken

    with Interrupt() as interrupt:
        async with configuration.connect() as qm:
            while (limit := wanted.left(printer.count, BATCH_MESSAGES)) and not interrupt:
                taken = await interrupt.unless(qm.take(queue, limit, timeout_s=wanted.timeout_s))
                if not taken:
                    break
                async with taken:
                    printer.check_reader()
                    try:
                        await taken.remove()
                    except NotTaken:
                        continue  # the connection was lost: they are in the queue again
                printer.print(taken.messages)
        printer.end()
        return bool(interrupt)
