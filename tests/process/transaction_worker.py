"""An application with transactions until `in` is empty, and a log of its own; it may be killed.

    python -m tests.process.transaction_worker SOCKET DESTINATION... [--dsn DSN]

Each transaction receives one message from `in`, sends its body to every destination and a reply to
the local queue `out`; with a database it writes the number there too.  One in ten is aborted on
purpose.

"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from qmd.client import ClientError, Database, NotConnected, TransactionAborted, connect
from tests.patience import END_S


class _OnPurpose(Exception):
    pass


async def work(socket: str, destinations: list[str], dsn: str | None) -> None:
    database = _database(dsn)
    # On a busy machine, a daemon that is killed repeatedly runs only for moments.
    async with connect(socket, reconnect_s=120) as qm:
        while True:
            try:
                async with qm.transaction() as transaction:
                    message = await transaction.receive("in", timeout_s=2)
                    if message is None:
                        if database is not None:
                            await database.recover(qm)
                        return
                    if database is not None:
                        connection = await transaction.enlist(database)
                        number = int(message.body)
                        connection.execute("INSERT INTO sale (number) VALUES (%s)", [number])
                    for destination in destinations:
                        await transaction.send(destination, message.body)
                    await transaction.send("out", message.body)
                    if random.random() < 0.1:
                        raise _OnPurpose
            except (TransactionAborted, _OnPurpose):
                continue
            except Exception as error:
                if dsn is None or not _is_the_databases(error):
                    raise
                await asyncio.sleep(0.05)


def _database(dsn: str | None) -> Database | None:
    if dsn is None:
        return None
    import psycopg

    return Database("shop", lambda: psycopg.connect(dsn))


def _is_the_databases(error: Exception) -> bool:
    """Return whether the database was killed, or cannot get the decision yet."""
    import psycopg

    return isinstance(error, psycopg.Error | ClientError)


async def main() -> None:
    """Run the application; it may start while the daemon is down."""
    parser = argparse.ArgumentParser(prog="python -m tests.process.transaction_worker")
    parser.add_argument("socket")
    parser.add_argument("destinations", nargs="*")
    parser.add_argument("--dsn")
    chosen = parser.parse_args()
    deadline = time.monotonic() + END_S
    while True:
        try:
            return await work(chosen.socket, chosen.destinations, chosen.dsn)
        except NotConnected:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
