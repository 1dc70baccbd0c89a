"""The next messages of a queue for a reader: chosen by arrival, taken, and reserved in one commit.

    choose ──► take in memory ──► (commit: positions, and express messages) ──► the reader's

A message that somebody receives between the choice and the commit gets no position.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.bulk.consume import PIECE_BYTES, PIECE_MESSAGES
from qmd.bulk.reader import ReaderQueue
from qmd.errors import Refusal
from qmd.events.recorder import Kind
from qmd.message.shared_packet import whole_message
from storage.tables import reservations
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_BITS, LOOKUP_MASK

if TYPE_CHECKING:
    from qmd.bulk.range_read import Ranges
    from qmd.events.recorder import Recorder
    from qmd.runtime.services import Services


class _Chosen(NamedTuple):
    """Lookup ids in the order of arrival, and the bytes of their packets."""

    lookup_ids: list[int]
    sizes: list[int]


async def reserve_piece(
    services: Services,
    ranges: Ranges,
    recorder: Recorder,
    held: ReaderQueue,
    after: int,
    messages_max: int,
    bytes_max: int,
    *,
    one_always: bool,
) -> tuple[int, int, int]:
    """Reserve the next messages that arrived after `after`, in one commit; how many, their
    bytes, and the arrival up to which was looked."""
    queue = held.queue
    chosen = await _choose(services, ranges, held, after, messages_max, min(bytes_max, PIECE_BYTES))
    lookup_ids, sizes = chosen.lookup_ids, chosen.sizes
    if not one_always and lookup_ids and sizes[0] > bytes_max:
        return 0, 0, after  # `_choose` always gives one
    if queue.deleted:
        raise gone(held.reader.name, queue.name)
    if held.shared or queue.express:
        mine: list[int] = []
        for lookup_id in lookup_ids:
            if queue.reserved.add(lookup_id, shared=held.shared):
                mine.append(lookup_id)
            elif held.shared:
                break  # somebody takes it just now: what is behind it has to wait
    else:
        mine = queue.reserved.add_stored(lookup_ids)
    if not mine:
        return 0, 0, after
    base = queue.id << LOOKUP_BITS
    batch = services.storage.batch
    express = [whole_message(queue.express[each]) for each in mine if each in queue.express]
    for message in express:
        # It may be asked for again after a crash.
        batch.insert_message(
            base | message.lookup_id,
            message.packet,
            message.arrived_at_ms,
            message.expires_at_s,
            message.reason,
        )
    recorder.record(
        Kind.STORED,
        [message.packet for message in express],
        queue=queue.name,
        places=[message.lookup_id for message in express],
    )
    now_s = int(services.environment.time())
    arrival = mine[-1] & ARRIVAL_MAX
    first, found = await batch.run(
        partial(
            reservations.reserve,
            reader_queue_id=held.id,
            candidates=[base | each for each in mine],
            at_s=now_s,
            arrival=arrival if held.shared else None,
        )
    )
    for message in express:
        queue.reserved.now_stored(message.lookup_id)
    size = sum(sizes)
    if len(found) < len(lookup_ids):
        there = {key & LOOKUP_MASK for key in found}
        queue.reserved.release([each for each in mine if each not in there], are_there=False)
        pairs = zip(lookup_ids, sizes, strict=True)
        size = sum(each for lookup_id, each in pairs if lookup_id in there)
    held.next, held.reserved_at_s = first + len(found), now_s
    if held.shared:
        held.arrival = arrival
    if not found:  # all were received since we looked: look again
        return await reserve_piece(
            services,
            ranges,
            recorder,
            held,
            max(after, held.arrival),
            messages_max,
            bytes_max,
            one_always=one_always,
        )
    return len(found), size, arrival


async def _choose(
    services: Services,
    ranges: Ranges,
    held: ReaderQueue,
    after: int,
    messages_max: int,
    bytes_max: int,
) -> _Chosen:
    """Messages that nobody has, by arrival: from the disk, and express ones from memory."""
    queue = held.queue
    until = await ranges.frontier()
    now_s = services.clock.now_s
    rows_max = min(messages_max, PIECE_MESSAGES)
    base = queue.id << LOOKUP_BITS
    if held.shared:  # what other shared readers have reserved it may have as well
        busy = {base | each for each in queue.taken if each not in queue.reserved}
    else:
        busy = {base | each for each in queue.taken}
    found, stop = await services.storage.read(
        partial(
            reservations.choose,
            queue_id=queue.id,
            after=after,
            until=until,
            busy=busy,
            stop_at_busy=held.shared,
            now_s=now_s,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
    )
    stored = _Chosen([key & LOOKUP_MASK for key, _ in found], [size for _, size in found])
    if not queue.express:
        return stored
    sizes = dict(zip(*stored, strict=True))
    within = ARRIVAL_MAX
    if len(found) == rows_max or sum(stored.sizes) >= bytes_max:
        within = found[-1][0] & ARRIVAL_MAX
    if stop is not None:
        within = min(within, stop & ARRIVAL_MAX)
    for lookup_id, message in queue.express.items():
        if (
            after < lookup_id & ARRIVAL_MAX <= min(within, until)
            and lookup_id not in queue.taken
            and (message.expires_at_s is None or message.expires_at_s >= now_s)
        ):
            sizes[lookup_id] = len(message.packet)
    in_order = sorted(sizes, key=lambda each: each & ARRIVAL_MAX)
    chosen, size = list[int](), 0
    for lookup_id in in_order[:rows_max]:
        if chosen and size + sizes[lookup_id] > bytes_max:
            break
        chosen.append(lookup_id)
        size += sizes[lookup_id]
    return _Chosen(chosen, [sizes[each] for each in chosen])


def gone(reader: str, queue: str) -> Refusal:
    return Refusal(
        "no_such_queue",
        f"{queue}, which reader {reader} reads, was deleted",
        "One that was made anew is another queue: begin with a new checkpoint.",
    )
