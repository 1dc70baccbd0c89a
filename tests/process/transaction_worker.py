"""An application that lives dangerously: transactions until `in` is empty, and a log of its own.

    python -m tests.process.transaction_worker SOCKET DESTINATION...

Each transaction receives one message from `in`, sends its body to every destination and a reply to
the local queue `out`.  One in ten is aborted on purpose.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from qmd.client import NotConnected, TransactionAborted, connect


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


async def main() -> None:
    """It may begin in a moment when the daemon is down."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return await work(sys.argv[1], sys.argv[2:])
        except NotConnected:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
