"""Databases in transactions: receive, write, and send exactly once across all of them.

    database = Database("shop", lambda: psycopg.connect(dsn))
    async with qm.transaction() as transaction:
        order = await transaction.receive("orders", timeout_s=30)
        connection = await transaction.enlist(database)
        connection.execute("INSERT INTO sale VALUES (%s)", [order.body])
        await transaction.send("invoices@hostb", invoice(order))

It accepts any driver with the two-phase extension of the DB-API (PEP 249: xid, tpc_begin,
tpc_prepare, tpc_commit, tpc_rollback, tpc_recover), with or without `await`; it is tested with
psycopg for PostgreSQL.  The queue manager decides:

    tpc_begin ─► the work ─► tpc_prepare ─► commit of the queue manager ─► tpc_commit
                                             └► it was aborted ─► tpc_rollback

A failure between two of these steps leaves the decision on the queue manager's disk, and a database
that waits for it; `recover` reports the decision to the database.  That happens automatically when
this program, or another one, uses the same database again, and by `qmd transaction recover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from qmd.client.errors import ClientError
from qmd.control_protocol import transactions as transaction_frames

if TYPE_CHECKING:
    from qmd.client.connection import Connection

FORMAT_ID = 0x716D64  # "qmd"; X/Open: distinguishes our transactions from those of others
DECIDED = ("commit", "roll back")
# The global id is the queue manager's GUID and the transaction's id: 64 characters, the most that
# X/Open allows.
_MANAGER_DIGITS = 32


class Branches(Protocol):
    """The verbs of the queue manager that a database in its transactions needs."""

    @property
    def id(self) -> str: ...

    async def list_branches(self) -> list[dict[str, Any]]: ...
    async def forget_branch(self, transaction: bytes, resource: str) -> bool: ...
    async def outcome(self, token: bytes) -> Any: ...


class Database:
    """A database, under a name that must always stay the same in transactions.

    `connect` returns a new DB-API connection, or an awaitable of one.  Each transaction that
    enlists the database gets a new connection, which is closed at its end.
    """

    def __init__(self, name: str, connect: Callable[[], Any]) -> None:
        self.name = name
        self._connect = connect
        self._is_recovered = False

    async def connect(self) -> Any:
        return await _called(self._connect)

    async def recover(self, qm: Branches) -> dict[str, list[str]]:
        """End the transactions that wait in the database, as the queue manager decided.

        Returns their ids by decision: {"commit": [...], "roll back": [...]}.
        """
        reported: dict[str, list[str]] = {decision: [] for decision in DECIDED}
        connection = await self.connect()
        try:
            # First list the waiting ones, then the decisions: transactions that are enlisted in
            # between are not touched.
            waiting = {
                bytes.fromhex(xid[1][_MANAGER_DIGITS:]): xid
                for xid in await _called(connection.tpc_recover)
                if self._is_ours(xid, qm)
            }
            branches = await qm.list_branches()
            for branch in branches:
                transaction = bytes.fromhex(branch["transaction"])
                if branch["resource"] != self.name or branch["decision"] not in DECIDED:
                    continue
                if transaction in waiting:
                    await self._finish(connection, qm, waiting[transaction], branch["decision"])
                    reported[branch["decision"]].append(branch["transaction"])
                elif not await self._has(connection, transaction, qm):
                    pass  # it never prepared, or knows the decision
                else:
                    continue  # it has prepared meanwhile: left for the next recovery
                await qm.forget_branch(transaction, self.name)
            known = {each["transaction"] for each in branches if each["resource"] == self.name}
            for transaction, xid in waiting.items():
                # Forgotten before it had prepared, by a concurrent recovery.
                if transaction.hex() not in known:
                    is_done = await qm.outcome(transaction) is not None
                    decision = DECIDED[0] if is_done else DECIDED[1]
                    await self._finish(connection, qm, xid, decision)
                    reported[decision].append(transaction.hex())
        finally:
            await _called(connection.close)
        self._is_recovered = True
        return reported

    async def recover_first(self, qm: Branches) -> None:
        """Recover before the first use by a program, and after a decision could not be delivered.

        An earlier program may have left transactions in doubt.
        """
        if not self._is_recovered:
            await self.recover(qm)

    def left_in_doubt(self) -> None:
        """Record that a transaction could not end there: the next transaction recovers it first."""
        self._is_recovered = False

    def xid(self, connection: Any, qm_id: str, transaction: bytes) -> Any:
        """Return the name of the transaction in the database."""
        return connection.xid(FORMAT_ID, _digits(qm_id) + transaction.hex(), self.name)

    def _is_ours(self, xid: Any, qm: Branches) -> bool:
        format_id, global_id, branch = xid[0], str(xid[1]), xid[2]
        return bool(
            format_id == FORMAT_ID and branch == self.name and global_id.startswith(_digits(qm.id))
        )

    async def _has(self, connection: Any, transaction: bytes, qm: Branches) -> bool:
        return any(
            self._is_ours(xid, qm) and str(xid[1]).endswith(transaction.hex())
            for xid in await _called(connection.tpc_recover)
        )

    async def _finish(self, connection: Any, qm: Branches, xid: Any, decision: str) -> None:
        try:
            if decision == "commit":
                await _called(connection.tpc_commit, xid)
            else:
                await _called(connection.tpc_rollback, xid)
        except Exception as error:
            if not await self._has(connection, bytes.fromhex(xid[1][_MANAGER_DIGITS:]), qm):
                return  # its application did it meanwhile
            raise ClientError(
                f"the database could not {decision} its part of transaction {xid[1]}: {error}",
                "the database still waits for that decision; try again, or carry it out in the "
                "database by hand",
                code="database_in_doubt",
            ) from error


class Branch:
    """The part of a database in one transaction."""

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self.connection = connection

    @classmethod
    async def begin(
        cls, database: Database, qm: Branches, control: Connection, transaction: bytes
    ) -> Branch:
        await database.recover_first(qm)
        connection = await database.connect()
        try:
            xid = database.xid(connection, qm.id, transaction)
            await control.ask(transaction_frames.Enlist, transaction, database.name)
            await _called(connection.tpc_begin, xid)
        except BaseException:
            await _called(connection.close)
            raise
        return cls(database, connection)

    async def prepare(self) -> None:
        """Prepare the part: from here on the database keeps it until it receives the decision."""
        await _called(self.connection.tpc_prepare)

    async def end(self, qm: Branches, transaction: bytes, *, commit: bool) -> None:
        """Deliver the decision; `recover` delivers it later if that fails."""
        try:
            finish = self.connection.tpc_commit if commit else self.connection.tpc_rollback
            await _called(finish)
            await qm.forget_branch(transaction, self.database.name)
        except Exception:
            self.database.left_in_doubt()
        await self._close()

    async def leave(self) -> None:
        """Leave the part prepared, because the decision is not known."""
        self.database.left_in_doubt()
        await self._close()

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            await _called(self.connection.close)


def _digits(qm_id: str) -> str:
    return qm_id.replace("-", "").lower()


async def _called(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a driver's method: await it if it is a coroutine function, else run it in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result
