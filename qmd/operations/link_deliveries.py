"""Deliveries of the links of doors: recorded with their messages, for links that resume.

A link belongs to its client: its id here is a digest of the client's name and the id that the door
gave it.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from qmd.operations.sealed_tokens import SealedTokens
from storage.tables import link_deliveries as rows

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Callable, Sequence

    from qmd.control_protocol.links import LinkDeliveries
    from qmd.control_protocol.messages import NewMessage
    from qmd.runtime.services import Services

    Send = Callable[[list[NewMessage], Callable[[list[object]], None], str], None]

LINKS_MAX = 10_000  # links for which messages of older connections are refused
OWNER_BYTES = 8
REASON = "its link was attached again"


class LinkRecords:
    """The recorded deliveries of links."""

    def __init__(self, services: Services, send: Send) -> None:
        """`send(messages, done, owner)` sends messages as `MessageSender.send`."""
        self._services = services
        self._send = send
        self._sealed = SealedTokens(LINKS_MAX)

    def send(
        self,
        messages: list[NewMessage],
        links: Sequence[LinkDeliveries],
        connection: int,
        done: Callable[[list[object]], None],
        owner: str,
    ) -> None:
        """Send messages as `MessageSender.send`, and record their deliveries in the same commit.

        `connection` is the number of the client's connection.  Raises Refusal, MustAsk.
        """
        ids = [_id_of(each.link, owner) for each in links]
        for link in ids:
            self._sealed.check(link, connection)
        self._send(messages, done, owner)
        # In the same turn of the event loop: in the batch of the messages.
        batch, now_s = self._services.storage.batch, self._services.clock.now_s
        for link, each in zip(ids, links, strict=True):
            encoded = msgspec.msgpack.encode(each.deliveries)
            batch.links.record(
                rows.LinkRow(_mark(owner), link, each.position, encoded, now_s, each.kept_from)
            )

    async def resume(self, link: bytes, connection: int, owner: str) -> object:
        """Return the next position of a link and its recorded deliveries; None: it has none.

        Raises StorageError.
        """
        found = await self._rows(link, connection, owner)
        position, deliveries = 0, []
        for first, encoded in found:
            of_row = msgspec.msgpack.decode(encoded)
            deliveries += of_row
            position = first + len(of_row)
        return [position, deliveries] if found else None

    async def forget(self, link: bytes, connection: int, owner: str) -> None:
        """Delete the recorded deliveries of a link.  Raises StorageError."""
        if await self._rows(link, connection, owner):
            await self._services.storage.batch.run(partial(rows.delete, link=_id_of(link, owner)))

    async def _rows(self, link: bytes, connection: int, owner: str) -> list[tuple[int, bytes]]:
        own = _id_of(link, owner)
        self._sealed.seal(own, connection, REASON)
        found: asyncio.Future[list[tuple[int, bytes]]] = self._services.loop.create_future()

        def settle(result: list[tuple[int, bytes]]) -> None:
            if not found.done():  # its caller may have been cancelled
                found.set_result(result)

        def read(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
            return rows.find(db, own)

        # After the open batch, which may have messages of this link.
        self._services.storage.batch.read_after(read, settle)
        return await found


def _id_of(link: bytes, owner: str) -> bytes:
    """Return the id of a link, which no other client can name."""
    return hashlib.sha256(b"link\0" + link + owner.encode()).digest()[:16]


def _mark(owner: str) -> bytes:
    return hashlib.sha256(owner.encode()).digest()[:OWNER_BYTES] if owner else b""
