"""A queue opened for one kind of use, and cursors, which walk through it.

async with qm.open("orders", share="deny_receive") as orders:
    cursor = orders.cursor()
    while message := await cursor.next():
        if message.label == "urgent":
            await cursor.receive()
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal, Unpack

from qmd.client.caller import Caller
from qmd.client.choice import chosen
from qmd.client.connection import Connection
from qmd.client.errors import AccessDenied, NotConnected
from qmd.client.message import Message
from qmd.client.new_message import Body, Properties
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import Choice

if TYPE_CHECKING:
    from qmd.client.queue_manager import QueueManager

Access = Literal["send", "receive", "peek", "admin"]
Share = Literal["all", "deny_receive"]
Place = Literal["first", "last", "next", "previous", "this"]

_ALLOWED = {
    "send": {"send"},
    "receive": {"receive", "peek"},
    "peek": {"peek"},
    "admin": {"admin", "peek"},
}


class Queue:
    """An open queue, made by `QueueManager.open`; a context manager."""

    def __init__(
        self, qm: QueueManager, caller: Caller, name: str, access: Access, share: Share
    ) -> None:
        if access not in _ALLOWED:
            raise ValueError(f"access is {access!r}; it must be one of {', '.join(_ALLOWED)}")
        if share not in ("all", "deny_receive"):
            raise ValueError(f'share is {share!r}; it must be "all" or "deny_receive"')
        self._qm = qm
        self._caller = caller
        self.name = name
        self.access = access
        self.share = share
        self._held_by: Connection | None = None  # the connection that has exclusive access

    async def __aenter__(self) -> Queue:
        if self.access != "send":
            await self._qm.show_queue(self.name)  # raises unless it is local
        await self._hold()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        connection, self._held_by = self._held_by, None
        is_ours = not self._caller.home.is_elsewhere
        if connection is not None and not connection.is_lost and is_ours:
            # The end of a connection closes it as well.
            with contextlib.suppress(NotConnected):
                await connection.ask(frames.CloseExclusive, self.name)

    async def send(self, body: Body = b"", **properties: Unpack[Properties]) -> str:
        self._check("send")
        return await self._qm.send(self.name, body, **properties)

    async def receive(self, *, timeout_s: float | None = 0.0, where: str = "") -> Message | None:
        self._check("receive")
        await self._hold()
        return await self._qm.receive(self.name, timeout_s=timeout_s, where=where)

    async def receive_chosen(
        self, choice: Choice, *, limit: int = 1, timeout_s: float | None = 0.0
    ) -> list[Message]:
        self._check("receive")
        await self._hold()
        return await self._qm.receive_chosen(self.name, choice, limit=limit, timeout_s=timeout_s)

    async def peek(self, *, timeout_s: float | None = 0.0) -> Message | None:
        """Return the first message, or None."""
        self._check("peek")
        messages = await self._qm.peek(self.name, timeout_s=timeout_s)
        return messages[0] if messages else None

    async def peek_from(
        self, lookup_id: int, *, timeout_s: float | None = 0.0, where: str = ""
    ) -> Message | None:
        """Return the first message from a lookup id on, or None.

        `where`: the first one that matches this selector.
        """
        self._check("peek")
        messages = await self._qm.peek(self.name, lookup_id, timeout_s=timeout_s, where=where)
        return messages[0] if messages else None

    async def look(self, which: Place, lookup_id: int = 0) -> Message | None:
        self._check("peek")
        return await self._qm.look(self.name, which, lookup_id)

    async def purge(self) -> int:
        self._check("admin")
        return await self._qm.purge_queue(self.name)

    def cursor(self, where: str = "") -> Cursor:
        """Return a cursor before the first message; it stops at those that match a selector."""
        self._check("peek")
        return Cursor(self, where)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Peek at every message, from the first on; nothing is received."""
        self._check("peek")
        return self._qm.peek_each(self.name)

    def _check(self, use: str) -> None:
        if use not in _ALLOWED[self.access]:
            raise AccessDenied(
                f"{self.name} was opened to {self.access}, not to {use}",
                "open it for that use",
                code="not_opened_for_that",
            )

    async def _hold(self) -> None:
        """Acquire exclusive access, also again after each reconnect."""
        if self.share == "all":
            return
        connection = await self._caller.connection()
        if connection is not self._held_by:
            await connection.ask(frames.OpenExclusive, self.name)
            self._held_by = connection


class Cursor:
    """A position in a queue.  It does not see messages that arrive before it."""

    def __init__(self, queue: Queue, where: str = "") -> None:
        self._queue = queue
        self._where = where
        self._lookup_id: int | None = None

    async def next(self, *, timeout_s: float | None = 0.0) -> Message | None:
        """Go on to the next message and return it; None when none came within `timeout_s`."""
        start = 0 if self._lookup_id is None else self._lookup_id + 1
        message = await self._queue.peek_from(start, timeout_s=timeout_s, where=self._where)
        if message is not None:
            self._lookup_id = message.lookup_id
        return message

    async def current(self) -> Message | None:
        """Return the message at the position; None when it was received meanwhile."""
        if self._lookup_id is None:
            return await self.next()
        return await self._queue.look("this", self._lookup_id)

    async def receive(self) -> Message | None:
        """Receive the message at the position; None when another receiver has it."""
        if self._lookup_id is None and await self.next() is None:
            return None
        assert self._lookup_id is not None
        found = await self._queue.receive_chosen(chosen(lookup_ids=[self._lookup_id]))
        return found[0] if found else None
