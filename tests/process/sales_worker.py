"""An application that books orders in PostgreSQL: receive, insert, send, as one transaction.

    python -m tests.process.sales_worker SOCKET DSN DESTINATION

Ends when `orders` has been empty for two seconds.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import psycopg

from qmd.client import ClientError, Database, NotConnected, TransactionAborted, connect
from tests.patience import END_S


async def work(socket: str, dsn: str, destination: str) -> None:
    database = Database("shop", lambda: psycopg.connect(dsn))
    # On a busy machine, a daemon that is killed repeatedly runs only for moments.
    async with connect(socket, reconnect_s=120) as qm:
        while True:
            try:
                async with qm.transaction() as transaction:
                    order = await transaction.receive("orders", timeout_s=2)
                    if order is None:
                        await database.recover(qm)
                        return
                    connection = await transaction.enlist(database)
                    connection.execute("INSERT INTO sale (number) VALUES (%s)", [int(order.body)])
                    await transaction.send(destination, order.body)
                    if random.random() < 0.05:
                        raise TransactionAborted("on purpose")
            except (ClientError, psycopg.Error) as error:
                print(f"again: {error}", flush=True)
                database = Database("shop", lambda: psycopg.connect(dsn))
                await asyncio.sleep(0.05)


async def main() -> None:
    """Run the application; it may start while the daemon is down."""
    deadline = time.monotonic() + END_S
    while True:
        try:
            return await work(*sys.argv[1:])
        except NotConnected:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
