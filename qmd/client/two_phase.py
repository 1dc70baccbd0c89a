"""A database in a transaction: receive, write to it, send, exactly once across all of them.

    database = Database("shop", lambda: psycopg.connect(dsn))
    async with qm.transaction() as transaction:
        order = await transaction.receive("orders", timeout_s=30)
        connection = await transaction.enlist(database)
        connection.execute("INSERT INTO sale VALUES (%s)", [order.body])
        await transaction.send("invoices@hostb", invoice(order))

It takes any driver with the two-phase extension of the DB-API (PEP 249: xid, tpc_begin,
tpc_prepare, tpc_commit, tpc_rollback, tpc_recover), with or without `await`; psycopg for
PostgreSQL is what it is tested with.  The queue manager decides:

    tpc_begin ─► the work ─► tpc_prepare ─► commit of the queue manager ─► tpc_commit
                                             └► it was aborted ─► tpc_rollback

Whatever dies between two of these leaves the decision on the queue manager's disk, and a database
that waits for it; `recover` tells it.  That happens by itself when this program, or another one,
uses the same database again, and by `qmd transaction recover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from qmd.client.errors import ClientError
from qmd.control_protocol import messages as frames

if TYPE_CHECKING:
    from qmd.client.connection import Connection

FORMAT_ID = 0x716D64  # "qmd"; X/Open: tells our transactions from those of others
DECIDED = ("commit", "roll back")
# The global id is the queue manager's GUID and the transaction's id: 64 characters, the most that
# X/Open allows.
_MANAGER_DIGITS = 32


class Branches(Protocol):
    """The queue manager, as a database that takes part in its transactions sees it."""

    @property
    def id(self) -> str: ...

    async def list_branches(self) -> list[dict[str, Any]]: ...
    async def forget_branch(self, transaction: bytes, resource: str) -> bool: ...
    async def outcome(self, token: bytes) -> Any: ...


class Database:
    """One database, by the name that it has in transactions; always the same one.

    `connect` gives a new DB-API connection, or an awaitable of one.  Each transaction that enlists
    it gets a connection of its own, which is closed at its end.
    """

    def __init__(self, name: str, connect: Callable[[], Any]) -> None:
        self.name = name
        self._connect = connect
        self._is_recovered = False

    async def connect(self) -> Any:
        return await _called(self._connect)

    async def recover(self, qm: Branches) -> dict[str, list[str]]:
        """Tell the database how transactions ended that left it waiting.

        Returns their ids by what was decided: {"commit": [...], "roll back": [...]}.
        """
        told: dict[str, list[str]] = {decision: [] for decision in DECIDED}
        connection = await self.connect()
        try:
            # First what waits, then what was decided: what is enlisted in between is not touched.
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
                    told[branch["decision"]].append(branch["transaction"])
                elif not await self._has(connection, transaction, qm):
                    pass  # it never prepared, or has heard the decision
                else:
                    continue  # it has prepared meanwhile: the next time
                await qm.forget_branch(transaction, self.name)
            known = {each["transaction"] for each in branches if each["resource"] == self.name}
            for transaction, xid in waiting.items():
                # Forgotten before it had prepared, by a recovery that was faster.
                if transaction.hex() not in known:
                    is_done = await qm.outcome(transaction) is not None
                    decision = DECIDED[0] if is_done else DECIDED[1]
                    await self._finish(connection, qm, xid, decision)
                    told[decision].append(transaction.hex())
        finally:
            await _called(connection.close)
        self._is_recovered = True
        return told

    async def recover_first(self, qm: Branches) -> None:
        """Before its first use by a program, which an earlier one may have left in doubt; and
        after it could not be told what was decided."""
        if not self._is_recovered:
            await self.recover(qm)

    def left_in_doubt(self) -> None:
        """A transaction of this program could not end there: the next one recovers it first."""
        self._is_recovered = False

    def xid(self, connection: Any, qm_id: str, transaction: bytes) -> Any:
        """The transaction's name in the database."""
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
                return  # its application was faster
            raise ClientError(
                f"the database could not {decision} its part of transaction {xid[1]}: {error}",
                "it still waits for that; try again, or do it there yourself",
                code="database_in_doubt",
            ) from error


class Branch:
    """A database's part in one transaction."""

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
            await control.ask(frames.Enlist, transaction, database.name)
            await _called(connection.tpc_begin, xid)
        except BaseException:
            await _called(connection.close)
            raise
        return cls(database, connection)

    async def prepare(self) -> None:
        """From here on the database keeps its part until it is told what to do with it."""
        await _called(self.connection.tpc_prepare)

    async def end(self, qm: Branches, transaction: bytes, *, commit: bool) -> None:
        """Tell it what was decided.  What cannot be told now is told by `recover`."""
        try:
            finish = self.connection.tpc_commit if commit else self.connection.tpc_rollback
            await _called(finish)
            await qm.forget_branch(transaction, self.database.name)
        except Exception:
            self.database.left_in_doubt()
        await self._close()

    async def leave(self) -> None:
        """Of a database that was not told, nobody knows what was decided: it waits."""
        self.database.left_in_doubt()
        await self._close()

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            await _called(self.connection.close)


def _digits(qm_id: str) -> str:
    return qm_id.replace("-", "").lower()


async def _called(function: Callable[..., Any], *arguments: object) -> Any:
    """A driver's method: awaited where it is to be awaited, else called in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result
