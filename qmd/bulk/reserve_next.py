"""The reservation of a queue's next messages for a reader, in the order of their arrival.

    choose ──► take in memory ──► (commit: positions, and express messages) ──► answer

A message that is received between the choice and the commit gets no position.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.bulk.read_notes import PIECE_BYTES, PIECE_MESSAGES
from qmd.bulk.reader import ReaderQueue
from qmd.core.number_set import Run
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.message.shared_packet import whole_message
from storage.tables import reservation_choice, reservations
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_BITS, LOOKUP_MASK
from storage.tables.reservation_choice import Limits
from storage.tables.runs import Run as KeyRun
from storage.tables.runs import runs_of

if TYPE_CHECKING:
    from qmd.bulk.range_read import Ranges
    from qmd.events.recorder import Recorder
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services


#: Messages that one commit reserves: it only looks whether they exist.
STEP_MESSAGES = 32_768


class _Candidates(NamedTuple):
    """Messages in the order of arrival, as runs of lookup ids."""

    runs: list[Run]
    messages: int
    bytes: int  # of their packets


class Bounds(NamedTuple):
    """The last messages that a request may reserve."""

    arrival: int = ARRIVAL_MAX
    at_ms: int | None = None  # the time of arrival, since 1970


UNBOUNDED = Bounds()


class ReservedPiece(NamedTuple):
    """The messages that one commit has reserved."""

    messages: int
    bytes: int
    arrival: int  # later pieces begin behind this arrival number


class Reserver:
    """The part that reserves the next messages of a queue."""

    def __init__(self, services: Services, ranges: Ranges, recorder: Recorder) -> None:
        self._services = services
        self._ranges = ranges
        self._recorder = recorder

    async def reserve(
        self,
        held: ReaderQueue,
        after: int,
        messages_max: int,
        bytes_max: int,
        *,
        one_always: bool,
        bounds: Bounds = UNBOUNDED,
    ) -> ReservedPiece:
        """Reserve the next messages that arrived after the number `after`, in one commit.

        With `one_always` the first message may be larger than `bytes_max`.  Messages beyond
        `bounds` are not reserved.  Raises Refusal if the queue was deleted.
        """
        queue = held.queue
        while True:
            found = await self._choose(held, after, messages_max, bytes_max, bounds)
            if not one_always and found.bytes > bytes_max:
                return ReservedPiece(0, 0, after)  # `_choose` always returns one message
            if queue.deleted:
                raise queue_deleted(held.reader.name, queue.name)
            taken = queue.reserved.add_stored(found.runs, shared=held.shared)
            if not taken:
                return ReservedPiece(0, 0, after)
            count, size, arrival = await self._commit(held, found, taken)
            if count:
                return ReservedPiece(count, size, arrival)
            # All of them were received since the choice: choose again.
            after = max(after, held.arrival)

    async def _commit(
        self, held: ReaderQueue, found: _Candidates, taken: list[Run]
    ) -> tuple[int, int, int]:
        """Reserve messages that are taken in memory; return number, bytes and last arrival."""
        queue = held.queue
        base = queue.id << LOOKUP_BITS
        express = self._store_express(queue, taken)
        now_s = int(self._services.environment.time())
        arrival = taken[-1][1] & ARRIVAL_MAX
        done = await self._services.storage.batch.run(
            partial(
                reservations.reserve,
                reader_queue_id=held.id,
                candidates=[KeyRun(base | first, base | last) for first, last in taken],
                at_s=now_s,
                arrival=arrival if held.shared else None,
            )
        )
        for lookup_id in express:
            queue.reserved.now_stored(lookup_id)
        count = sum([last - first for first, last in done.runs]) + len(done.runs)
        size = found.bytes
        held.next, held.reserved_at_s = done.position + count, now_s
        if held.shared:
            held.arrival = arrival
        if done.missing:
            queue.reserved.release(
                [(first & LOOKUP_MASK, last & LOOKUP_MASK) for first, last in done.missing],
                are_there=False,
            )
        if count < found.messages:
            size = await self._services.storage.read(partial(reservations.bytes_of, runs=done.runs))
        return count, size, arrival

    def _store_express(self, queue: LocalQueue, taken: list[Run]) -> list[int]:
        """Write taken express messages to disk with the open batch; return their lookup ids.

        A reader may request them again after a crash.
        """
        if not queue.express:
            return []
        base = queue.id << LOOKUP_BITS
        messages = [
            whole_message(queue.express[each]) for each in queue.reserved.begin_storing(taken)
        ]
        for message in messages:
            self._services.storage.batch.insert_message(
                base | message.lookup_id,
                message.packet,
                message.arrived_at_ms,
                message.expires_at_s,
                message.reason,
            )
        lookup_ids = [message.lookup_id for message in messages]
        self._recorder.record(
            EventHeader(Kind.STORED, queue=queue.name),
            [message.packet for message in messages],
            places=lookup_ids,
        )
        return lookup_ids

    async def _choose(
        self, held: ReaderQueue, after: int, messages_max: int, bytes_max: int, bounds: Bounds
    ) -> _Candidates:
        """Return ready messages in the order of arrival, stored and express ones.

        At least one message is returned if there is one, also if it is larger than `bytes_max`.
        """
        queue = held.queue
        until = min(await self._ranges.frontier(), bounds.arrival)
        now_s = self._services.clock.now_s
        rows_max = min(messages_max, STEP_MESSAGES)
        if queue.express:  # the commit may have to store them
            rows_max, bytes_max = min(rows_max, PIECE_MESSAGES), min(bytes_max, PIECE_BYTES)
        # Before the read, which may not see the row of one that is stored meanwhile.
        express = [
            (lookup_id, len(message.packet))
            for lookup_id, message in queue.express.items()
            if after < lookup_id & ARRIVAL_MAX <= until
            and (message.expires_at_s is None or message.expires_at_s >= now_s)
            and (bounds.at_ms is None or message.arrived_at_ms <= bounds.at_ms)
        ]
        found = await self._services.storage.read(
            partial(
                reservation_choice.choose,
                queue_id=queue.id,
                limits=Limits(rows_max, bytes_max, now_s, bounds.at_ms, stop_at_busy=held.shared),
                busy=queue.reserved.busy(shared=held.shared),
                after=after,
                until=until,
                with_sizes=bool(queue.express),
            )
        )
        if found.sizes is None:
            runs = [(first & LOOKUP_MASK, last & LOOKUP_MASK) for first, last in found.runs]
            return _Candidates(runs, found.messages, found.bytes)
        sizes = {key & LOOKUP_MASK: size for key, size in found.sizes.items()}
        within = ARRIVAL_MAX
        if found.messages == rows_max or found.bytes >= bytes_max:
            within = found.runs[-1].last & ARRIVAL_MAX
        if found.stop is not None:
            within = min(within, found.stop & ARRIVAL_MAX)
        _add_express(sizes, express, held, within)
        return _first(sizes, rows_max, bytes_max)


def _add_express(
    sizes: dict[int, int], express: list[tuple[int, int]], held: ReaderQueue, within: int
) -> None:
    """Add express messages up to the arrival number `within` to the sizes of stored ones.

    A shared reader may have those of other readers.  It gets nothing behind one that it cannot
    have now, because it would never get that one.
    """
    queue = held.queue
    for lookup_id, size in express:
        if lookup_id & ARRIVAL_MAX > within:
            continue
        is_shared = held.shared and lookup_id in queue.reserved
        if queue.is_busy_with(lookup_id) and not is_shared:
            if held.shared:
                within = (lookup_id & ARRIVAL_MAX) - 1
        elif held.shared or lookup_id in queue.express:  # or another reader has stored it
            sizes[lookup_id] = size
    if held.shared:
        for lookup_id in [each for each in sizes if each & ARRIVAL_MAX > within]:
            del sizes[lookup_id]


def _first(sizes: dict[int, int], rows_max: int, bytes_max: int) -> _Candidates:
    """Return the first messages by arrival within the limits, but at least one.

    `sizes` are the sizes of the packets by lookup id.
    """
    in_order = sorted(sizes, key=lambda each: each & ARRIVAL_MAX)
    chosen, size = list[int](), 0
    for lookup_id in in_order[:rows_max]:
        if chosen and size + sizes[lookup_id] > bytes_max:
            break
        chosen.append(lookup_id)
        size += sizes[lookup_id]
    return _Candidates([*runs_of(chosen)], len(chosen), size)


def queue_deleted(reader: str, queue: str) -> Refusal:
    """Return the refusal for a queue that was deleted while a reader had it open."""
    return Refusal(
        "no_such_queue",
        f"{queue}, which reader {reader} reads, was deleted",
        "A queue that was created again with its name is another queue: begin with a new"
        " checkpoint.",
    )
