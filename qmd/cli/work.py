"""`qmd receive --transaction`: each message in its own transaction, optionally with a program.

begin ─► receive ─► the program, or printing ─► success: commit
                                              └► failure: abort, the message returns
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import click

from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from qmd.cli.configuration import Configuration
    from qmd.cli.interrupt import Interrupt
    from qmd.cli.messages import Printer, Wanted
    from qmd.client import Message, Transaction

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0


class _Failed(Exception):
    """The program failed; the message is in its queue again."""


async def work(
    configuration: Configuration, queue: str, wanted: Wanted, printer: Printer, program: str | None
) -> bool:
    """Process messages; return whether it was interrupted.  Raises Failure when a program failed.

    With --follow a program that failed is run again for the same message, after increasing delays.
    """
    from qmd.cli.interrupt import Interrupt
    from qmd.client import TransactionAborted

    delay_s = RETRY_FIRST_S
    with Interrupt() as interrupt:
        async with configuration.connect() as qm:
            while wanted.left(printer.count, 1) and not interrupt:
                try:
                    async with qm.transaction() as transaction:
                        message = await interrupt.unless(_next(transaction, queue, wanted))
                        if message is None:
                            await transaction.abort("there was no message")
                            break
                        await _handle(message, transaction, printer, program)
                    delay_s = RETRY_FIRST_S
                except TransactionAborted as aborted:
                    click.echo(f"qmd: {aborted}", err=True)
                except _Failed as failed:
                    if not wanted.follow:
                        raise Failure(ExitCode.FAILED, str(failed), "program_failed") from failed
                    click.echo(f"qmd: {failed}; retry in {delay_s:.0f} s", err=True)
                    await _pause(interrupt, delay_s)
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
        printer.end()
        return bool(interrupt)


async def _next(transaction: Transaction, queue: str, wanted: Wanted) -> Message | None:
    if wanted.choice is None:
        return await transaction.receive(queue, timeout_s=wanted.timeout_s)
    found = await transaction.receive_chosen(queue, wanted.choice, timeout_s=wanted.timeout_s)
    return found[0] if found else None


async def _handle(
    message: Message, transaction: Transaction, printer: Printer, program: str | None
) -> None:
    if program is None:
        printer.print([message])  # printed, then removed: maybe printed twice, never lost
        return
    process = await asyncio.create_subprocess_shell(
        program,
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | environment(message),
        start_new_session=True,  # Ctrl-C is for this process: the program may finish
    )
    try:
        await process.communicate(message.body)
    except BaseException:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        raise
    if process.returncode != 0:
        raise _Failed(
            f"the program ended with {_ending(process.returncode)}; message {message.lookup_id} "
            f"is back in its queue (abort count: {message.abort_count + 1})"
        )
    printer.count += 1


def environment(message: Message) -> dict[str, str]:
    """Return the properties of a message, other than its body, as environment variables."""
    properties = {
        "ID": message.id,
        "LOOKUP_ID": str(message.lookup_id),
        "LABEL": message.label,
        "PRIORITY": str(message.priority),
        "DELIVERY": message.delivery,
        "CLASS": message.message_class,
        "BODY_TYPE": str(message.body_type),
        "CORRELATION_ID": message.correlation_id or "",
        "APPLICATION_TAG": str(message.application_tag),
        "RESPONSE_QUEUE": message.response_queue or "",
        "ADMIN_QUEUE": message.admin_queue or "",
        "SOURCE": message.source,
        "SENT_AT": message.sent_at.isoformat(),
        "ARRIVED_AT": message.arrived_at.isoformat(),
        "ABORT_COUNT": str(message.abort_count),
        "MOVE_COUNT": str(message.move_count),
        "REASON": message.reason or "",
    }
    # A variable cannot contain a null character, and a label from a peer may.
    return {f"QMD_{name}": value.replace("\0", "") for name, value in properties.items()}


async def _pause(interrupt: Interrupt, seconds: float) -> None:
    await interrupt.unless(asyncio.sleep(seconds))


def _ending(code: int | None) -> str:
    assert code is not None
    return f"signal {-code}" if code < 0 else f"exit code {code}"
