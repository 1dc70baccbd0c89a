"""An application that sends the messages of the source document's example, repeatedly.

    python -m tests.process.many_worker SOCKET Q1 Q2 Q3 COUNT

Each transaction sends M1 to Q1 and Q2, M2 to Q2 and Q3, and M3 to Q2; it is done once and in
order, in spite of any failure.

"""

from __future__ import annotations

import asyncio
import sys
import time

from qmd.client import NotConnected, OutcomeUnknown, QueueManager, TransactionAborted, connect
from tests.patience import END_S


async def example(qm: QueueManager, queues: list[str], round_: int) -> None:
    """Send three messages in one transaction; the request for its outcome gives its number."""
    q1, q2, q3 = queues
    while True:
        try:
            async with qm.transaction() as transaction:
                await transaction.send(f"{q1},{q2}", b"M1 %d " % round_ + bytes(1000))
                await transaction.send(f"{q2},{q3}", b"M2 %d " % round_ + bytes(1000))
                await transaction.send(q2, b"M3 %d " % round_ + bytes(1000))
            return
        except (TransactionAborted, NotConnected):
            await asyncio.sleep(0.05)
        except OutcomeUnknown as unknown:
            while True:
                try:
                    if await qm.outcome(unknown.token) is not None:
                        return
                    break
                except NotConnected:
                    await asyncio.sleep(0.05)


async def main() -> None:
    socket, *queues, count = sys.argv[1:]
    deadline = time.monotonic() + END_S
    done = 0
    while done < int(count):
        try:
            async with connect(socket) as qm:
                while done < int(count):
                    await example(qm, queues, done)
                    done += 1
        except NotConnected:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
