"""Purging of queues: their messages end, piece by piece."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EVERY_MESSAGE, Choice, Piece
from qmd.operations.selection import PIECE_BYTES, PIECE_MESSAGES
from storage.tables import messages as message_rows
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_MASK, TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    from qmd.operations.selection import Selection
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services


class Purged(NamedTuple):
    """The messages that were ended, or in a dry run would be ended."""

    messages: int
    bytes: int  # of their packets
    taken: int  # messages that stay, because a reader has taken them

    def __add__(self, other: object) -> Purged:
        """Return the sums."""
        assert isinstance(other, Purged)
        return Purged(
            self.messages + other.messages, self.bytes + other.bytes, self.taken + other.taken
        )


NOTHING_PURGED = Purged(0, 0, 0)


class _Found(NamedTuple):
    """Lookup ids of messages to end; the other fields as in `selection.Chosen`."""

    places: list[int]
    bytes: int
    taken: int
    next: int | None
    until: int


class Purger:
    """Purging of queues, piece by piece; each piece is one commit."""

    def __init__(self, services: Services, dead_letters: DeadLetters, selection: Selection) -> None:
        self._services = services
        self._dead_letters = dead_letters
        self._selection = selection

    async def purge(
        self,
        queue: LocalQueue,
        choice: Choice = EVERY_MESSAGE,
        *,
        message_class: MessageClass = MessageClass.NACK_QUEUE_PURGED,
        dry_run: bool = False,
    ) -> Purged:
        """End the messages that are in the queue now and not taken, or those that `choice` selects.

        Their senders are notified if they requested it, except for messages in a journal or a
        dead-letter queue, which ended before they got there.  Raises Refusal.
        """
        purged = NOTHING_PURGED
        piece: Piece | None = Piece(PIECE_MESSAGES)
        while piece is not None:
            done, piece = await self._purge_piece(
                queue, choice, piece, message_class, dry_run=dry_run
            )
            purged += done
        return purged

    async def purge_piece(
        self, queue: LocalQueue, choice: Choice, piece: Piece, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """End one piece of the messages; return the answer to `PurgeQueue`.  Raises Refusal."""
        piece = Piece(max(1, min(piece.limit, PIECE_MESSAGES)), piece.start, piece.until)
        done, following = await self._purge_piece(
            queue, choice, piece, MessageClass.NACK_QUEUE_PURGED, dry_run=dry_run
        )
        places = (None, 0) if following is None else (following.start, following.until)
        return {**done._asdict(), "next": places[0], "until": places[1]}

    async def _purge_piece(
        self,
        queue: LocalQueue,
        choice: Choice,
        piece: Piece,
        message_class: MessageClass,
        *,
        dry_run: bool,
    ) -> tuple[Purged, Piece | None]:
        """End one piece of the messages; return the result, and the next piece."""
        found = await self._find(queue, choice, piece)
        if dry_run:
            done = Purged(len(found.places), found.bytes, found.taken)
        else:
            await self._wait_for_numbers(len(found.places))
            ended = await self._dead_letters.end_unreceived(queue, found.places, message_class)
            done = Purged(ended.messages, ended.bytes, found.taken)
        if found.next is None:
            return done, None
        return done, Piece(piece.limit, found.next, found.until)

    async def purge_deleted(self, family: list[LocalQueue]) -> Purged:
        """End all messages of deleted queues except those that readers have taken.

        Readers may still give back messages, and messages on their way into the queues may still
        arrive.  This ends them too.
        """
        purged = NOTHING_PURGED
        left = -1
        while True:
            ended = NOTHING_PURGED
            for each in family:
                ended += await self.purge(each, message_class=MessageClass.NACK_QUEUE_DELETED)
            purged += ended
            while any(each.is_settling for each in family) or not self._services.ids.suffice(
                3 * sum(each.reserved.unready for each in family)
            ):
                await self._services.storage.batch.barrier()
            # A reader may have given back messages meanwhile, which were not purged yet.
            before, left = left, sum(each.messages - each.reserved.unready for each in family)
            if not left or (left == before and not ended.messages):
                return purged

    def end_taken(self, queue: LocalQueue) -> None:
        """End the messages of a deleted queue that readers have taken, with the open batch."""
        taken = [(message.lookup_id, message.packet) for message in queue.taken.values()]
        if taken:
            self._dead_letters.end(queue, taken, MessageClass.NACK_QUEUE_DELETED)

    async def _find(self, queue: LocalQueue, choice: Choice, piece: Piece) -> _Found:
        """Find one piece of messages.  If all are purged, this reads sizes instead of packets."""
        if choice != EVERY_MESSAGE:
            chosen = await self._selection.choose(queue, choice, piece)
            places = [message.lookup_id for message in chosen.messages]
            return _Found(places, chosen.bytes, chosen.taken, chosen.next, chosen.until)
        until = piece.until or self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        found = await self._services.storage.read(
            partial(
                message_rows.sizes,
                queue_id=queue.id,
                from_lookup=piece.start,
                rows_max=piece.limit,
            )
        )
        rows: list[tuple[int, int]] = []
        total = 0
        for key, size in found:
            if rows and total + size > PIECE_BYTES:
                break
            rows.append((key & LOOKUP_MASK, size))
            total += size
        is_last = len(rows) < piece.limit and len(rows) == len(found)
        beyond = LOOKUP_MASK + 1 if is_last else rows[-1][0] + 1
        rows += [
            (lookup_id, len(message.packet))
            for lookup_id, message in queue.express.items()
            if piece.start <= lookup_id < beyond
        ]
        following = None if is_last else beyond
        if len(rows) > piece.limit:  # the disk has no part in the number of express messages
            rows = sorted(rows)[: piece.limit]
            following = rows[-1][0] + 1
        rows = [row for row in rows if row[0] & ARRIVAL_MAX < until]
        free = [row for row in rows if not queue.is_busy_with(row[0])]
        size = sum(size for _, size in free)
        return _Found(
            [lookup_id for lookup_id, _ in free], size, len(rows) - len(free), following, until
        )

    async def _wait_for_numbers(self, messages: int) -> None:
        """Wait until message numbers suffice for the outcomes of that many ended messages."""
        while not self._services.ids.suffice(3 * messages):
            await self._services.storage.batch.barrier()
