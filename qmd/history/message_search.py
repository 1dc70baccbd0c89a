"""The search for a message: its events, and the places where it is now.

The event log says where the message was last; memory and disk show whether it is still there.  Only
if it is not, the tables are searched, in small pages and for a limited time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qmd.core.packet_fields import message_number, source_of
from qmd.history.places import (
    AHEAD_FEW,
    AHEAD_MAX,
    LocalPlaces,
    MessageId,
    OutgoingPlaces,
    Value,
    end_ms,
    wall_ms,
)
from qmd.message.shared_packet import head_of, whole_message
from qmd.queues.local_queue import LocalQueue
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import event_search, whereabouts
from storage.tables import events as event_rows
from storage.tables.keys import LOOKUP_BITS, queue_range

if TYPE_CHECKING:
    import sqlite3

    from qmd.operations.delayed import DelayedMessages
    from qmd.operations.transactions import Transactions
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.queues.way import Way
    from qmd.runtime.services import Services
    from qmd.transfer.release import OutgoingRelease
    from storage import Storage
    from storage.tables.event_search import FoundEvent

EVENTS_MAX = 1000  # of one message
BLOCKS_MAX = 20_000  # of the event log, read for one message
BLOCKS_FEW = 100  # the same for another queue manager's request
SEARCH_ROWS = 500  # read at once, because other readers wait for it
SEARCH_ROWS_MAX = 10_000_000
SEARCH_S_MAX = 10.0
LAST_EVENTS = 4  # among which an event says that a message is gone; others may follow it
CATCH_UP_S = 1.0
EXPRESS_AT_ONCE = 10_000  # messages that are compared before other tasks have their turn

T = TypeVar("T")


class MessageRecord(NamedTuple):
    """The record of a message on this queue manager: its places and its events."""

    places: list[Value]
    history: list[FoundEvent]
    has_gap: bool  # the history is longer, and its middle is left out
    searched_all: bool
    is_up_to_date: bool  # False: the disk is behind, and some of the last events are missing


class MessageSearch:
    """The search for messages in all queues of this queue manager."""

    def __init__(
        self,
        services: Services,
        queues: LocalQueues,
        outgoing: OutgoingQueues,
        local_places: LocalPlaces,
        outgoing_places: OutgoingPlaces,
        transactions: Transactions,
        outgoing_release: OutgoingRelease,
        delayed: DelayedMessages,
    ) -> None:
        self._services = services
        self._delayed = delayed
        self._queues = queues
        self._outgoing = outgoing
        self._local_places = local_places
        self._outgoing_places = outgoing_places
        self._transactions = transactions
        self._outgoing_release = outgoing_release

    async def find(self, source: bytes, number: int, *, thorough: bool = True) -> MessageRecord:
        """Return the places and events of a message.

        Without `thorough` only a part of a long history is read, express messages are not searched,
        and the search of the tables ends after `SEARCH_ROWS` rows: the request of another queue
        manager must not cost more than a message.
        """
        is_up_to_date = await catch_up(self._services.storage, self._outgoing_release)
        history, has_gap = await self._read(
            partial(
                event_search.of_message,
                source=source,
                number=number,
                events_max=EVENTS_MAX,
                blocks_max=BLOCKS_MAX if thorough else BLOCKS_FEW,
            )
        )
        ahead_max = AHEAD_MAX if thorough else AHEAD_FEW
        places: list[Value] = []
        for queue_id, lookup_id, is_outgoing in self._likely_keys(history):
            key = queue_id << LOOKUP_BITS | lookup_id
            found = await (
                self._outgoing_places.at_key(key, ahead_max)
                if is_outgoing
                else self._local_places.at_key(key, ahead_max)
            )
            if found is not None and found[0] == (source, number):
                places.append(found[1])
        places += await self._outside_queues(source, number)
        searched_all = True
        is_over = any(found.event.kind in _TERMINAL for found in history[-LAST_EVENTS:])
        if not places and not is_over and thorough:
            places = await self._express(source, number)
        if not places and not is_over:
            # The search begins in the queues that the history names.
            rows_max = SEARCH_ROWS_MAX if thorough else SEARCH_ROWS
            places, searched_all = await self._search(source, number, history, rows_max)
        return MessageRecord(places, history, has_gap, searched_all, is_up_to_date)

    async def ids_at(self, lookup_id: int, queue: LocalQueue | None) -> set[MessageId]:
        """Return the ids of the messages with this lookup id, in `queue` or in all queues.

        If none is there now, the event log is searched for one that was.
        """
        found = await self._ids_in_queues(lookup_id, queue)
        if not found:
            name = None if queue is None else queue.name
            known = await self._read(partial(event_rows.of_place, queue=name, lookup_id=lookup_id))
            found = set() if known is None else {(known.source, known.number)}
        return found

    async def _ids_in_queues(self, lookup_id: int, queue: LocalQueue | None) -> set[MessageId]:
        found: set[MessageId] = set()
        for each in [queue] if queue is not None else list(self._queues.by_key.values()):
            express = each.express.get(lookup_id)
            if express is not None:
                head = head_of(express.packet)
                found.add((source_of(head), message_number(head)))
        keys = [
            each.id << LOOKUP_BITS | lookup_id
            for each in ([queue] if queue is not None else self._queues.by_key.values())
        ]
        outgoing = [
            each.id << LOOKUP_BITS | lookup_id
            for each in (self._outgoing.queues if queue is None else ())
        ]

        def packets_at(db: sqlite3.Connection) -> list[bytes]:
            rows = [whereabouts.in_queue(db, key, 0) for key in keys]
            others = [whereabouts.in_outgoing(db, key, 0) for key in outgoing]
            return [each.row.packet for each in (*rows, *others) if each is not None]

        for packet in await self._read(packets_at):
            found.add((source_of(packet), message_number(packet)))
        return found

    def other_side(self, source: bytes, record: MessageRecord) -> tuple[Way | None, bytes | None]:
        """Return the link to, and the GUID of, the queue manager that also knows the message.

        That is its source, or the one to which it was sent.  Both are None if there is none.
        """
        if source != self._services.id:
            return None, source
        names = [place["queue"] for place in record.places]
        for event in (found.event for found in record.history):
            names += [event.queue, event.to_queue]
        for name in names:
            queue = self._outgoing.find(name.casefold())
            if queue is not None:
                is_unsent = any(
                    place["kind"] == "outgoing" and not place["connected"]
                    for place in record.places
                ) and not any(found.event.kind in _TRANSMITTED for found in record.history)
                return (None, None) if is_unsent else (queue.link, queue.link.remote_id)
        return None, None

    def _likely_keys(self, history: Iterable[FoundEvent]) -> list[tuple[int, int, bool]]:
        """Return the places that the events name: queue id, lookup id, whether it is outgoing."""
        queues = {queue.name.casefold(): queue.id for queue in self._queues.by_key.values()}
        keys: dict[tuple[int, int, bool], None] = {}
        for found in history:
            event = found.event
            queue_id = queues.get((event.to_queue or event.queue).casefold())
            if queue_id is not None and event.places:
                keys[queue_id, event.places[0], False] = None
            outgoing = self._outgoing.find(event.queue.casefold())
            if outgoing is None:
                continue
            sequence = outgoing.sequence
            if event.positions and event.sequence_id == sequence.sequence_id:
                key = TRANSACTIONAL_FIRST | (sequence.base + event.positions[0])
                keys[outgoing.id, key, True] = None
            for key, packet in outgoing.in_flight.items():
                if message_number(head_of(packet)) == event.numbers[0]:
                    keys[outgoing.id, key, True] = None
        return list(keys)

    async def _express(self, source: bytes, number: int) -> list[Value]:
        """Return the places of an express message, which only memory has."""
        places: list[Value] = []
        for queue in list(self._queues.by_key.values()):
            async for lookup_id, _ in _matching(
                queue.express, lambda message: head_of(message.packet), source, number
            ):
                if lookup_id in queue.express:
                    message = whole_message(queue.express[lookup_id])
                    places.append(self._local_places.of_express(queue, message))
        for outgoing in self._outgoing.queues:
            async for key, packet in _matching(
                outgoing.express, lambda each: head_of(each[0]), source, number
            ):
                if key in outgoing.express:
                    expires_at_s = outgoing.express[key][1]
                    places.append(
                        self._outgoing_places.place(outgoing, key, packet, None, expires_at_s)
                    )
        return places

    async def _search(
        self, source: bytes, number: int, history: list[FoundEvent], rows_max: int
    ) -> tuple[list[Value], bool]:
        """Search the tables, beginning with the last queue, until a place is found.

        Return the places, and False if the search ended early at `rows_max` or at the time limit.
        """
        places: list[Value] = []
        deadline = self._services.loop.time() + SEARCH_S_MAX
        rows_read = 0
        ranges = [
            (True, *queue_range(queue.id))
            for name in dict.fromkeys(found.event.queue.casefold() for found in reversed(history))
            if (queue := self._outgoing.find(name)) is not None
        ]
        everywhere = (0, (1 << 63) - 1)
        for is_outgoing, first, last in (*ranges, (True, *everywhere), (False, *everywhere)):
            start: int | None = first
            while start is not None and not places:
                if rows_read >= rows_max or self._services.loop.time() > deadline:
                    return places, False
                page = await self._read(
                    partial(
                        whereabouts.search,
                        table="outgoing" if is_outgoing else "message",
                        source=source,
                        number=number,
                        from_key=start,
                        to_key=last,
                        rows_max=SEARCH_ROWS,
                    )
                )
                for key in page.keys:
                    places_of = self._outgoing_places if is_outgoing else self._local_places
                    found = await places_of.at_key(key)
                    if found is not None:
                        places.append(found[1])
                rows_read += page.rows
                start = page.next_key
        return places, True

    async def _outside_queues(self, source: bytes, number: int) -> list[Value]:
        """Return the places of a message outside queues: set aside, uncommitted, or awaiting."""
        places: list[Value] = []
        for each in await self._read(partial(whereabouts.damaged, source=source, number=number)):
            places.append({"kind": "damaged", "queue": "", "since_ms": each.at_s * 1000})
        if source == self._services.id:
            places += self._uncommitted(number)
            delayed = await self._delayed.find(source, number)
            if delayed is not None:
                places.append(self._delayed.place(delayed))
            waiting = await self._read(partial(whereabouts.awaiting, number=number))
            if waiting is not None:
                queue = self._outgoing_places.queue_by_id(waiting.queue_id)
                places.append(
                    {
                        "kind": "awaiting",
                        "queue": "" if queue is None else queue.destination,
                        "address": "" if queue is None else queue.link.name,
                        "since_ms": wall_ms(self._services, waiting.since_s),
                        "until_ms": end_ms(self._services, waiting.expires_at_s),
                        "sequence_number": waiting.position,
                    }
                )
        return places

    def _uncommitted(self, number: int) -> list[Value]:
        """Return the place of a message of an open transaction, which only memory has."""
        return [
            {
                "kind": "transaction",
                "queue": transaction.messages[transaction.numbers.index(number)].destination,
                "transaction": transaction.id.hex(),
                "since_ms": int(
                    (
                        self._services.environment.time()
                        - self._services.loop.time()
                        + transaction.began_at
                    )
                    * 1000
                ),
            }
            for transaction in self._transactions.live
            if number in transaction.numbers
        ]

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await self._services.storage.read(read)


#: Kinds of events after which a message is in no queue of this queue manager.
_TERMINAL = frozenset(
    {
        *("received", "purged", "queue_deleted", "discarded", "session_acknowledged"),
        *("order_acknowledged", "confirmed", "lost", "refused", "cancelled", "vanished"),
    }
)
#: Kinds of events that show that a message was handed to another queue manager.
_TRANSMITTED = frozenset(
    {"transmitted", "retransmitted", "session_acknowledged", "order_acknowledged"}
)


async def catch_up(storage: Storage, outgoing_release: OutgoingRelease) -> bool:
    """Write pending events and releases to disk; return whether that was done in time.

    This takes at most CATCH_UP_S, because messages are also looked up while a disk hangs.  Raises
    StorageError.
    """
    outgoing_release.release()
    done = storage.batch.barrier()
    await asyncio.wait((done,), timeout=CATCH_UP_S)
    if done.done():
        done.result()
        return True
    done.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # retrieved, so that asyncio does not log it
    return False


async def _matching(
    express: dict[int, T], packet_of: Callable[[T], bytes], source: bytes, number: int
) -> Any:
    """Yield key and packet of each entry with this message; other tasks run in between."""
    entries = list(express.items())
    for at, (key, item) in enumerate(entries):
        if at and not at % EXPRESS_AT_ONCE:
            await asyncio.sleep(0)
        packet = packet_of(item)
        if message_number(packet) == number and source_of(packet) == source:
            yield key, packet
