"""What a running queue manager has counted, against what there is: at any moment, not at the end.

The sums of its books must agree with each other whenever it does nothing, and with its database
whenever nothing waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation.oracle import Found, Totals
from tests.stored_packets import memory_bytes

if TYPE_CHECKING:
    from qmd.manager import QueueManager
    from qmd.packets import Packet


def check_sums(name: str, manager: QueueManager) -> Iterator[str]:
    """Where the parts are not the whole."""
    usage = manager.usage
    waiting = [queue.awaiting for queue in manager.outgoing.queues]
    parts = [*manager.queues.values(), *manager.outgoing.queues, *waiting]
    total = sum(queue.own_bytes for queue in manager.queues.values()) + sum(
        part.bytes for part in (*manager.outgoing.queues, *waiting)
    )
    # A queue that is being deleted is found no more, and has what is on its way into it.
    is_deleting = bool(manager.administration._deletions)
    if usage.bytes != total and not (is_deleting and usage.bytes > total):
        yield f"{name} has counted {usage.bytes} bytes in all, and {total} in its queues"
    others = sum(queue.bytes for queue in manager.outgoing.queues if queue.for_others)
    if manager.relaying.usage.bytes != others:
        held = manager.relaying.usage.bytes
        yield f"{name} has counted {held} bytes that it holds for others, and has {others}"
    express = memory_bytes(
        [packet for queue in manager.outgoing.queues for packet, _ in queue.express.values()]
        + [
            message.packet
            for queue in manager.queues.values()
            for message in queue.express.values()
        ]
    )
    if usage.express_bytes != express and not (is_deleting and usage.express_bytes > express):
        yield f"{name} has counted {usage.express_bytes} bytes of express messages of {express}"
    for part in parts:
        if part.bytes < 0 or part.messages < 0:
            yield f"{name} has counted {part.messages} messages, {part.bytes} bytes in a queue"
    for queue in manager.queues.values():
        # One that is held for its end has no packet there, and may be counted out already.
        taken = sum(1 for message in queue.taken.values() if message.packet)
        if queue.messages < taken:
            yield f"{name} has {queue.messages} messages in {queue.key}, {taken} taken"


def check_against(name: str, manager: QueueManager, found: Found) -> Iterator[str]:
    """Where the books differ from the database; it must be up to date."""
    for key, queue in manager.queues.items():
        size = queue.own_bytes - _bytes(message.packet for message in queue.express.values())
        counted = Totals(queue.messages - len(queue.express), size)
        if counted != found.queues.get(key):
            yield f"{name} has counted {counted} in {key}, and there is {found.queues.get(key)}"
    for outgoing in manager.outgoing.queues:
        size = outgoing.bytes - _bytes(packet for packet, _ in outgoing.express.values())
        counted = Totals(outgoing.messages - len(outgoing.express), size)
        stored = found.outgoing.get(outgoing.destination, Totals(0, 0))
        if counted != stored:
            yield f"{name} has counted {counted} for {outgoing.destination}, and there is {stored}"
        awaiting = Totals(outgoing.awaiting.messages, outgoing.awaiting.bytes)
        stored = found.awaiting.get(outgoing.destination, Totals(0, 0))
        if awaiting != stored:
            yield (
                f"{name} has counted {awaiting} that wait to be confirmed by"
                f" {outgoing.destination}, and there is {stored}"
            )


def check_waiters(name: str, manager: QueueManager) -> Iterator[str]:
    """Nobody waits for messages that are there; to be asked when nothing waits for the disk."""
    for queue in manager.queues.values():
        first = queue.window.peek()
        if queue.waiters and first is not None:
            yield f"{name} lets {len(queue.waiters)} wait for {queue.key}, which has {first[0]}"


def is_up_to_date(manager: QueueManager) -> bool:
    """Whether nothing waits for the disk, and all who wait for it have been told."""
    loop: Any = manager.loop
    return (
        manager.storage._writer._idle.is_set()
        and manager.releasing._release_timer is None  # what is released waits for company
        and not loop._ready
    )


def _bytes(packets: Iterable[Packet]) -> int:
    return sum(map(len, packets))
