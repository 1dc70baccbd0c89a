"""`qmd receive`: take messages out of a queue and print them.

A batch is taken, then printed, then the messages that the reader of the output has read are
removed; the others return to the queue.  So neither a reader that ends (`receive --all | head -3`)
nor a full disk behind the output loses a message.  When the connection is lost between printing and
removing, a message is taken once more by its lookup id and removed, and not printed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.messages import Wanted, end, reading_options
from qmd.cli.output import counted

if TYPE_CHECKING:
    from qmd.cli.messages import Printer
    from qmd.client import QueueManager
    from qmd.client.receiver import Taken

BATCH_MESSAGES = 128


@click.command()
@reading_options
@click.option(
    "--transaction",
    "in_transaction",
    is_flag=True,
    help="Receive each message in its own transaction, committed when it is printed or "
    "--exec succeeds.",
)
@click.option(
    "--exec",
    "program",
    metavar="CMD",
    help="Run this shell command for each message, with the body as its standard input and the "
    "properties in its environment (QMD_LABEL, QMD_ID, ...); exit code 0 commits, any "
    "other aborts.",
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

    Receives one message, or more with --all, --count or --follow.  Exit code 6 when fewer arrived
    than requested.
    """
    import asyncio

    from qmd.cli.messages import Printer

    if program is not None and not in_transaction:
        raise click.UsageError("--exec needs --transaction: its exit code decides about the commit")
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
    """Receive and print the messages; return whether it was interrupted."""
    from qmd.cli.interrupt import Interrupt

    with Interrupt() as interrupt:
        async with configuration.connect() as qm:
            while (limit := wanted.left(printer.count, BATCH_MESSAGES)) and not interrupt:
                taken = await interrupt.unless(
                    qm.take(queue, limit, timeout_s=wanted.timeout_s, choice=wanted.choice)
                )
                if not taken:
                    break
                async with taken:
                    read = await printer.print_read(taken.messages, interrupt)
                    if read:
                        await _remove(qm, taken, read)
                if read < len(taken):
                    raise BrokenPipeError(32, "the reader of the output has ended")
        printer.end()
        return bool(interrupt)


async def _remove(qm: QueueManager, taken: Taken, count: int) -> None:
    """Remove the first `count` messages, which are printed, even if the connection is lost."""
    from qmd.client import NotTaken, Stopping, chosen

    printed = taken.messages[:count]
    while printed:
        try:
            await taken.remove(len(printed))
            return
        except (NotTaken, Stopping):  # they are in the queue again
            choice = chosen(lookup_ids=[message.lookup_id for message in printed])
            taken = await qm.take(taken.queue, len(printed), choice=choice)
            if missing := len(printed) - len(taken):
                click.echo(
                    f"qmd: {counted(missing, 'message')} were printed and are no longer in the "
                    "queue: the connection was lost before they were removed, and another "
                    "reader has taken them, or they were express messages and the daemon has "
                    "ended",
                    err=True,
                )
            printed = taken.messages
