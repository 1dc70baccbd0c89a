"""Receive, write to PostgreSQL, send a reply: once, in all three, with a kill at any point."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from qmd.client import (
    Database,
    NoSuchQueue,
    QueueManager,
    QueueManagerError,
    TransactionDoomed,
    connect,
)
from qmd.control_protocol import transactions as transaction_frames
from tests.patience import END_S
from tests.process import postgresql
from tests.process.command_line import ROOT
from tests.process.harness import Daemon, Hosts, body
from tests.process.test_two_daemons import QUICK, direct, texts, wait_count

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = pytest.mark.skipif(
    postgresql.initdb() is None, reason="PostgreSQL is not installed on this machine"
)
COUNT = 200


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    server = postgresql.Server()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def sales(server: postgresql.Server) -> postgresql.Server:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(f"ROLLBACK PREPARED '{gid}'")
        connection.execute("DROP TABLE IF EXISTS sale")
        connection.execute("CREATE TABLE sale (place serial, number integer)")
    return server


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    daemon = hosts.daemon(delivery=QUICK)
    daemon.create("orders", "replies", transactional=True)
    return daemon


class _Changed(Exception):
    """The application has decided to abort."""


def sold(server: postgresql.Server) -> list[int]:
    with psycopg.connect(server.dsn) as connection:
        rows = connection.execute("SELECT number FROM sale ORDER BY place").fetchall()
    return [number for (number,) in rows]


def prepared(server: postgresql.Server) -> int:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
    return int(row[0])  # type: ignore[index]


def with_client(daemon: Daemon, work: Callable[[QueueManager], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with connect(daemon.folder / "qmd.sock") as qm:
            await work(qm)

    asyncio.run(run())


async def book(qm: QueueManager, database: Database, number: int) -> None:
    async with qm.transaction() as transaction:
        assert await transaction.receive("orders") is not None
        connection = await transaction.enlist(database)
        connection.execute("INSERT INTO sale (number) VALUES (%s)", [number])
        await transaction.send("replies", b"%d" % number)


def test_receive_row_and_reply_commit_together(daemon: Daemon, sales: postgresql.Server):
    daemon.send_all("orders", texts(1, 2))
    database = Database("shop", lambda: psycopg.connect(sales.dsn))

    async def work(qm: QueueManager) -> None:
        await book(qm, database, 1)
        with contextlib.suppress(_Changed):
            async with qm.transaction() as transaction:
                await transaction.receive("orders")
                connection = await transaction.enlist(database)
                connection.execute("INSERT INTO sale (number) VALUES (99)")
                raise _Changed
        assert await qm.list_branches() == []

    with_client(daemon, work)
    assert sold(sales) == [1]
    assert prepared(sales) == 0
    assert daemon.bodies("replies") == [b"1"]
    assert daemon.peek("orders")[0]["abort_count"] == 1


def test_work_of_the_client_inside_is_part_of_the_transaction(
    daemon: Daemon, sales: postgresql.Server
):
    daemon.send_all("orders", texts(1, 2))
    database = Database("shop", lambda: psycopg.connect(sales.dsn))

    async def sell(qm: QueueManager, number: int, then: Callable[[], object]) -> None:
        async with qm.transaction() as transaction:
            assert await qm.receive("orders") is not None
            connection = await transaction.enlist(database)
            connection.execute("INSERT INTO sale (number) VALUES (%s)", [number])
            await qm.send("replies", b"%d" % number)
            then()

    def change() -> None:
        raise _Changed

    async def fail(qm: QueueManager) -> None:
        async with qm.transaction() as transaction:
            assert await qm.receive("orders") is not None
            connection = await transaction.enlist(database)
            connection.execute("INSERT INTO sale (number) VALUES (98)")
            await qm.send("replies", b"98")
            with contextlib.suppress(NoSuchQueue):
                await qm.send("nowhere", b"")

    async def work(qm: QueueManager) -> None:
        await sell(qm, 1, lambda: None)
        with contextlib.suppress(_Changed):
            await sell(qm, 99, change)
        with pytest.raises(TransactionDoomed):
            await fail(qm)
        assert await qm.list_branches() == []

    with_client(daemon, work)
    assert sold(sales) == [1]
    assert prepared(sales) == 0
    assert daemon.bodies("replies") == [b"1"]
    assert daemon.peek("orders")[0]["abort_count"] == 2


def test_a_database_that_cannot_prepare_aborts_the_transaction(
    daemon: Daemon, sales: postgresql.Server
):
    daemon.send_all("orders", texts(1, 1))
    database = Database("shop", lambda: psycopg.connect(sales.dsn))
    with psycopg.connect(sales.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE sale")
        connection.execute(
            "CREATE TABLE sale (place serial, number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        connection.execute("INSERT INTO sale (number) VALUES (1)")

    async def work(qm: QueueManager) -> None:
        with pytest.raises(psycopg.errors.UniqueViolation):
            await book(qm, database, 1)

    with_client(daemon, work)
    assert sold(sales) == [1]
    assert daemon.count("orders") == 1
    assert daemon.count("replies") == 0


def test_an_async_driver_works_as_well(daemon: Daemon, sales: postgresql.Server):
    daemon.send_all("orders", texts(1, 1))
    database = Database("shop", lambda: psycopg.AsyncConnection.connect(sales.dsn))

    async def work(qm: QueueManager) -> None:
        async with qm.transaction() as transaction:
            await transaction.receive("orders")
            connection = await transaction.enlist(database)
            await connection.execute("INSERT INTO sale (number) VALUES (1)")

    with_client(daemon, work)
    assert sold(sales) == [1]


def test_a_database_that_dies_before_the_decision_gets_it_in_the_next_transaction(
    daemon: Daemon, sales: postgresql.Server
):
    """The program continues with the same `Database`."""
    daemon.send_all("orders", texts(1, 2))
    deaths = iter([True])

    class Connection(psycopg.Connection[Any]):
        def tpc_commit(self, xid: Any = None) -> None:
            if next(deaths, False):
                sales.kill()
                sales.start()
            super().tpc_commit(xid)

    database = Database("shop", lambda: Connection.connect(sales.dsn))

    async def work(qm: QueueManager) -> None:
        await book(qm, database, 1)
        assert prepared(sales) == 1
        (doubtful,) = await qm.list_branches()
        assert doubtful["decision"] == "commit"
        await book(qm, database, 2)
        assert await qm.list_branches() == []

    with_client(daemon, work)
    assert sold(sales) == [1, 2]
    assert prepared(sales) == 0
    assert daemon.bodies("replies") == [b"1", b"2"]


@pytest.mark.parametrize("decision", ["commit", "roll back"])
def test_a_transaction_in_doubt_is_listed_and_recovered(
    daemon: Daemon, sales: postgresql.Server, decision: str
):
    daemon.send_all("orders", texts(1, 1))

    async def die(qm: QueueManager) -> None:
        """Kill the application after it has prepared, or after its commit."""
        transaction = qm.transaction()
        await transaction.begin()
        await transaction.receive("orders")
        database = Database("shop", lambda: psycopg.connect(sales.dsn))
        connection = await transaction.enlist(database)
        connection.execute("INSERT INTO sale (number) VALUES (1)")
        (branch,) = transaction._branches
        await branch.prepare()
        if decision == "commit":
            assert transaction._connection is not None
            await transaction._connection.ask(transaction_frames.Commit, transaction.id)
        await branch.leave()

    with_client(daemon, die)
    assert prepared(sales) == 1
    assert sold(sales) == []
    daemon.kill()
    daemon.start()
    (doubtful,) = daemon.json("transaction", "list")
    assert (doubtful["state"], doubtful["resource"]) == ("in doubt", "shop")
    assert doubtful["decision"] == decision

    recovered = daemon.json("transaction", "recover", "shop", "--dsn", sales.dsn)
    assert recovered[0][decision.replace(" ", "_")] == [doubtful["transaction"]]
    assert prepared(sales) == 0
    assert sold(sales) == ([1] if decision == "commit" else [])
    assert daemon.count("orders") == (0 if decision == "commit" else 1)
    assert daemon.json("transaction", "list") == []


def test_an_operator_can_resolve_an_unrecoverable_transaction(
    daemon: Daemon, sales: postgresql.Server
):
    daemon.send_all("orders", texts(1, 1))

    async def die(qm: QueueManager) -> None:
        transaction = qm.transaction()
        await transaction.begin()
        connection = await transaction.enlist(Database("shop", lambda: psycopg.connect(sales.dsn)))
        connection.close()

    with_client(daemon, die)
    (doubtful,) = daemon.json("transaction", "list")
    asked = daemon.cli("transaction", "resolve", doubtful["transaction"], "shop", check=False)
    assert asked.returncode != 0, "without --yes it asks, and standard input is empty"
    daemon.cli("transaction", "resolve", doubtful["transaction"], "shop", "--yes")
    assert daemon.json("transaction", "list") == []
    again = daemon.cli(
        "transaction", "resolve", doubtful["transaction"], "shop", "--yes", check=False
    )
    assert again.returncode == 3


@pytest.mark.parametrize("victim", ["the application", "the daemon", "PostgreSQL"])
def test_every_order_is_booked_and_answered_once_with_any_kill(
    hosts: Hosts, daemon: Daemon, sales: postgresql.Server, victim: str
):
    far = hosts.daemon(delivery=QUICK)
    far.create("answers", transactional=True)
    daemon.send_all("orders", texts(1, COUNT))
    dice = random.Random(victim)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.process.sales_worker"),
                *(str(daemon.folder / "qmd.sock"), sales.dsn, direct(far, "answers")),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )

    worker = start()
    for _ in range(6):
        time.sleep(dice.uniform(0.2, 0.6))
        if victim == "the application":
            worker.kill()
            worker.wait()
            worker = start()
        elif victim == "the daemon":
            daemon.kill()
            daemon.start()
        else:
            sales.kill()
            sales.start()
    assert worker.wait(END_S) == 0

    assert sold(sales) == list(range(1, COUNT + 1))
    assert prepared(sales) == 0
    assert daemon.count("orders") == 0
    wait_count(far, "answers", COUNT)
    assert [body(message) for message in far.peek("answers")] == texts(1, COUNT)
    assert daemon.json("transaction", "list") == []


def test_a_branch_is_not_deleted_while_its_transaction_is_open(
    daemon: Daemon, sales: postgresql.Server
):
    async def forget_too_early(qm: QueueManager) -> None:
        async with qm.transaction() as transaction:
            await transaction.enlist(Database("shop", lambda: psycopg.connect(sales.dsn)))
            with pytest.raises(QueueManagerError, match="under way"):
                await qm.forget_branch(transaction.id, "shop")

    with_client(daemon, forget_too_early)


@pytest.mark.parametrize("decision", ["commit", "roll back"])
def test_a_branch_that_prepared_after_its_deletion_is_recovered(
    daemon: Daemon, sales: postgresql.Server, decision: str
):
    """A recovery preceded its application: the queue manager has deleted the record."""
    reported: dict[str, list[str]] = {}

    async def prepare_unknown_to_all(qm: QueueManager) -> None:
        database = Database("shop", lambda: psycopg.connect(sales.dsn))
        transaction = qm.transaction()
        await transaction.begin()
        await transaction.send("orders", b"1")
        with contextlib.closing(psycopg.connect(sales.dsn)) as connection:
            connection.tpc_begin(database.xid(connection, qm.id, transaction.id))
            connection.execute("INSERT INTO sale (number) VALUES (1)")
            connection.tpc_prepare()
            if decision == "commit":
                await transaction.commit()
            else:
                await transaction.abort("thought again")
            assert await qm.list_branches() == []
        reported.update(await database.recover(qm), transaction=[transaction.id.hex()])

    with_client(daemon, prepare_unknown_to_all)

    assert reported[decision] == reported["transaction"]
    assert prepared(sales) == 0
    assert sold(sales) == ([1] if decision == "commit" else [])
    assert daemon.count("orders") == (1 if decision == "commit" else 0)
