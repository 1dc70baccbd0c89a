"""An application that lives dangerously: transactions until `in` is empty, and a log of its own.

    python -m tests.process.transaction_worker SOCKET DESTINATION...

Each transaction receives one message from `in`, sends its body to every destination and a reply to
the local queue `out`.  One in ten is aborted on purpose.
"""

from __future__ import annotations

import asyncio
import random
import sys

from qmd.client import ClientError, TransactionAborted, connect


class _OnPurpose(Exception):
    pass


async def work(socket: str, destinations: list[str]) -> None:
    async with connect(socket) as qm:
        while True:
            try:
                async with qm.transaction() as transaction:
                    message = await transaction.receive("in", timeout_s=2)
                    if message is None:
                        return
                    for destination in destinations:
                        await transaction.send(destination, message.body)
                    await transaction.send("out", message.body)
                    if random.random() < 0.1:
                        raise _OnPurpose
            except (TransactionAborted, _OnPurpose):
                continue


if __name__ == "__main__":
    try:
        asyncio.run(work(sys.argv[1], sys.argv[2:]))
    except ClientError as error:
        sys.exit(f"{error}")
