"""Receiving of chosen messages, at any place of the queue: by lookup id, by id, by correlation id,
or by content.

    choose ─► hold ─► is it still on disk? ─► taken, as if it had been the first
                          └► no: another reader has removed it; choose again
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import Choice, Piece, StoredMessage
from qmd.errors import Refusal
from qmd.message.shared_packet import Held, whole_message
from qmd.operations.receive import stored_message
from qmd.queues.groups import GroupPass, Groups, group_of
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.queues.scout import Scout
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    from qmd.operations.selection import Selection
    from qmd.runtime.services import Services

FIRST, LAST, NEXT, PREVIOUS, THIS = "first", "last", "next", "previous", "this"


class SelectiveReceiver:
    """Receiving of chosen messages, and exclusive access to queues (MQ_DENY_RECEIVE_SHARE)."""

    def __init__(self, services: Services, selection: Selection) -> None:
        self._services = services
        self._selection = selection
        self._exclusive: dict[LocalQueue, Hashable] = {}

    async def take(
        self, reader: Reader, queue: LocalQueue, choice: Choice, limit: int, wait_s: float
    ) -> list[StoredMessage]:
        """Take the first `limit` messages of `choice`; wait for one of them.  Raises Refusal.

        After `wait_s` seconds, return none; a negative time has no end.
        """
        loop = self._services.loop
        deadline = None if wait_s < 0 else loop.time() + wait_s
        scout = Scout()
        queue.scouts.add(scout)
        try:
            while True:
                watcher: asyncio.Future[None] = loop.create_future()
                queue.watchers.add(watcher)
                try:
                    # The caller may be cancelled meanwhile: messages must not stay held.
                    work = loop.create_task(self._take_once(reader, queue, choice, limit, scout))
                    messages = await asyncio.shield(work)
                    if messages or wait_s == frames.NO_WAIT or queue.deleted:
                        return messages
                    async with asyncio.timeout_at(deadline):
                        await watcher
                except TimeoutError:
                    return []
                finally:
                    queue.watchers.discard(watcher)
        finally:
            queue.scouts.discard(scout)

    async def _take_once(
        self, reader: Reader, queue: LocalQueue, choice: Choice, limit: int, scout: Scout
    ) -> list[StoredMessage]:
        """Take chosen messages at the places that the scout has noted."""
        start, noted = scout.places()
        if noted and (choice.lookup_ids or (start is not None and queue.groups is not None)):
            # Ids that the choice names are looked up at once. In a group no message may overtake.
            start, noted = min(start or 0, noted[0]), []
        if noted:
            taken = await self._take_now(reader, queue, choice, limit, scout, among=noted)
            if taken:
                return taken
        if start is None or queue.deleted:
            return []
        return await self._take_now(reader, queue, choice, limit, scout, start=start)

    async def _take_now(
        self,
        reader: Reader,
        queue: LocalQueue,
        choice: Choice,
        limit: int,
        scout: Scout,
        *,
        start: int = 0,
        among: Sequence[int] = (),
    ) -> list[StoredMessage]:
        while True:
            groups, returns = queue.groups, queue.returns
            admits = None if groups is None else GroupPass(groups, reader, scout).admits
            try:
                chosen = await self._selection.choose(
                    queue, choice, Piece(limit, start), among=among, admits=admits
                )
            except Refusal as refusal:
                if refusal.code in ("no_such_message", "message_taken"):
                    return []  # it may arrive later, or be given back
                raise
            if groups is not None:
                if queue.returns != returns:
                    # A message is ready again that this pass has passed: none may overtake it.
                    start, among = 0, ()
                    continue
                if (freed := scout.pending_start()) is not None:
                    # The same for one that was left out, and of which the group is free now.
                    start, among = min(among[0] if among else start, freed), ()
                    continue
            picker = Reader()  # `reader` gets only messages that are known to be on disk
            held = [
                each
                for each in chosen.messages
                if _may_take(groups, reader, each, scout)
                and queue.hold(picker, each.lookup_id)
                and _claim(groups, reader, each)
            ]
            found = await self._still_there(queue, held)
            taken: list[StoredMessage] = []
            for message in held:
                lookup_id = message.lookup_id
                is_express = lookup_id in queue.express
                if not is_express and lookup_id not in found:
                    queue.let_go(message, is_there=False)
                elif reader.has_left:
                    queue.let_go(found.get(lookup_id, message), is_there=True)
                else:
                    queue.taken[lookup_id] = found.get(lookup_id, message)
                    reader.taken.setdefault(queue, set()).add(lookup_id)
                    reader.took_at_s = self._services.clock.now_s
                    queue.takers.add(reader)
                    taken.append(queue.taken[lookup_id])
            if held and not taken:
                queue.wake_readers()
            if taken or not chosen.messages or reader.has_left:
                return taken

    async def _still_there(
        self, queue: LocalQueue, held: list[StoredMessage]
    ) -> dict[int, StoredMessage]:
        """Return the held messages that no commit has removed yet, as they are on disk."""
        keys = [queue.id << LOOKUP_BITS | each.lookup_id for each in held]
        rows: asyncio.Future[list[MessageRow]] = self._services.loop.create_future()
        # Not on a connection for reading, which may see an earlier state of the database.
        self._services.storage.batch.read_after(
            partial(message_rows.find_all, keys=keys), partial(_settle, rows)
        )
        found = await rows
        return {message.lookup_id: message for message in map(stored_message, found)}

    async def look(self, queue: LocalQueue, which: str, lookup_id: int) -> StoredMessage | None:
        """Return the message at a place or beside it, taken or not; None: there is none.

        `which` is first, last, next, previous or this.  Raises Refusal.
        """
        if which not in (FIRST, LAST, NEXT, PREVIOUS, THIS):
            raise Refusal(
                "no_such_place",
                f"there is no place {which!r}",
                "It is first, last, next, previous or this.",
            )
        backwards = which in (LAST, PREVIOUS)
        row = await self._services.storage.read(
            partial(
                message_rows.beside,
                queue_id=queue.id,
                lookup_id=None if which in (FIRST, LAST) else lookup_id,
                backwards=backwards,
                inclusive=which == THIS,
            )
        )
        candidates: dict[int, Held] = dict(queue.express)
        if row is not None and row.is_whole:
            message = stored_message(row)
            candidates[message.lookup_id] = message
        places = [
            place
            for place in candidates
            if which in (FIRST, LAST)
            or (which == NEXT and place > lookup_id)
            or (which == PREVIOUS and place < lookup_id)
            or (which == THIS and place == lookup_id)
        ]
        if not places:
            return None
        return whole_message(candidates[max(places) if backwards else min(places)])

    # Exclusive access.

    def open(self, queue: LocalQueue, owner: Hashable) -> None:
        """Open a queue exclusively: no other connection may receive from it.  Raises Refusal."""
        other = self._exclusive.get(queue)
        if other is owner:
            return
        if other is not None or queue.reserved.unready or queue.waiters:
            raise _sharing_violation(queue)
        self._exclusive[queue] = owner

    def close(self, queue: LocalQueue, owner: Hashable) -> None:
        """End the exclusive access of a connection, if it has it."""
        if self._exclusive.get(queue) is owner:
            del self._exclusive[queue]

    def check_share(self, queue: LocalQueue, owner: Hashable) -> None:
        """Raise Refusal if another connection has opened the queue exclusively."""
        if self._exclusive and self._exclusive.get(queue, owner) is not owner:
            raise _sharing_violation(queue)

    def leave(self, owner: Hashable) -> None:
        """End all exclusive access of a connection that has ended."""
        for queue in [queue for queue, other in self._exclusive.items() if other is owner]:
            del self._exclusive[queue]


def _may_take(groups: Groups | None, reader: Reader, message: StoredMessage, scout: Scout) -> bool:
    """Return whether no other reader owns the group of a message."""
    if groups is None or groups.may_take(group := group_of(message.packet), reader):
        return True
    scout.skip(group, message.lookup_id)
    return False


def _claim(groups: Groups | None, reader: Reader, message: StoredMessage) -> bool:
    """Make a reader the owner of the group of a message that is held for it."""
    if groups is not None:
        groups.claim(message.lookup_id, group_of(message.packet), reader)
    return True


def _sharing_violation(queue: LocalQueue) -> Refusal:
    return Refusal(
        "sharing_violation",
        f"an application receives from {queue.name}, and does not share it",
        "Wait until it is done, or let both open the queue to be shared.",
    )


def _settle(rows: asyncio.Future[list[MessageRow]], found: list[MessageRow]) -> None:
    if not rows.done():
        rows.set_result(found)
