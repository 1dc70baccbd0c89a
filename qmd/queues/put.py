"""Putting messages into queues: the steps that are the same wherever a message comes from.

    put          count it, insert its row ──► (commit) ──► LocalQueue.deliver: readers get it
    put_express  count it ──► readers get it at once

The caller passes the messages to `LocalQueue.deliver` when the batch is durable: together, and
after the answers or acknowledgments that must leave first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.message.shared_packet import Held, Packet, SharedMessage, cut, part_of
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.control_protocol.messages import StoredMessage
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue
    from storage.engine.batch import Batch


def put(queue: LocalQueue, message: Held, batch: Batch, *, part_id: int | None = None) -> None:
    """Count a message in `queue`, and insert its row into the open batch.

    `part_id` is the id of a stored part that ends the complete packet of `message`: the row then
    refers to that part, and does not store its bytes again.
    """
    packet = message.packet
    queue.messages += 1
    queue.grow(len(packet))
    stored = message.stored if isinstance(message, SharedMessage) else message
    head, part = stored.packet, part_of(packet)
    if part_id is not None:
        head, part = cut(head, part_id)
    batch.insert_message(
        queue.id << LOOKUP_BITS | stored.lookup_id,
        head,
        stored.arrived_at_ms,
        stored.expires_at_s,
        stored.reason,
        part=part,
    )


def put_all(queue: LocalQueue, messages: Sequence[StoredMessage], batch: Batch) -> None:
    """Put many messages with whole packets, as `put` does."""
    base = queue.id << LOOKUP_BITS
    size = sum([len(message.packet) for message in messages])
    queue.count_in(len(messages), size)
    batch.insert_messages(
        [
            (
                base | message.lookup_id,
                message.arrived_at_ms,
                message.expires_at_s,
                message.reason,
                message.packet,
            )
            for message in messages
        ],
        size,
    )


def put_express(queue: LocalQueue, message: Held) -> None:
    """Count an express message in `queue`, which keeps it in memory, and let readers have it."""
    queue.messages += 1
    queue.grow(len(message.packet))
    queue.deliver_express(message)


def put_outgoing(
    queue: OutgoingQueue,
    keys: Sequence[int],
    packets: Sequence[bytes],
    batch: Batch,
    deadline_s: int | None,
) -> list[tuple[int, Packet, int | None]]:
    """Put recoverable messages outside its sequence into an outgoing queue, with one deadline.

    Call `OutgoingQueues.appended` with the result after the commit.
    """
    size, base = sum(map(len, packets)), queue.id << LOOKUP_BITS
    queue.others += len(packets)
    queue.grow(size)
    rows = [
        (base | key, deadline_s, packet, None, False)
        for key, packet in zip(keys, packets, strict=True)
    ]
    batch.outgoing.insert_many(rows, size)
    return [(key, packet, deadline_s) for key, packet in zip(keys, packets, strict=True)]
