"""Ids of outgoing queues and of their sequences.

The id of a queue has 15 bits, and is part of the keys of messages. When all ids are assigned,
outgoing queues that are idle and empty are forgotten, the least recently used first, and their ids
are assigned again. A queue is idle when it holds no message, waits for none, and has no setting of
an operator. It is forgotten only if nothing in the process refers to it: a transaction of an
application, a commit that is under way or a session with a reference may still add messages.

An ended sequence may be forgotten if the next sequence to its destination has a greater id: the
receiver takes that for a new sequence, and refuses a smaller id for ever. [MS-MQQB] 3.1.5.8.6. The
greatest id that was ever assigned is therefore stored. A sequence gets its id with its first
message, because ids count seconds: peers can cause any number of queues for plain messages only,
which would use up the ids of future years.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from protocol.identifiers import sequence_id
from qmd.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services

log = structlog.get_logger()

# One search forgets this part of all queues, so that it costs each new queue next to nothing.
FORGOTTEN_PART = 16
SEARCH_AGAIN_S = 2.0  # the pause after a search that found no idle queue
ORDINAL_BYTES = 3  # of the random ordinal of a new sequence
TIMESTAMP_LATEST = 0xFFFF0000  # in the year 2106; timestamps have 32 bits


class QueueTable(Protocol):
    """The outgoing queues: `OutgoingQueues` of outgoing_queues.py."""

    @property
    def count(self) -> int: ...
    @property
    def queues(self) -> list[OutgoingQueue]: ...

    def find(self, key: str) -> OutgoingQueue | None: ...
    def forget(self, key: str) -> int | None: ...
    def know_sequence(self, queue: OutgoingQueue) -> None: ...


class OutgoingIds:
    """Assigns the ids of outgoing queues and of their sequences."""

    def __init__(self, services: Services, *, destinations_max: int) -> None:
        self._services = services
        self._max = destinations_max
        self._free: list[int] = []
        self._next = 1
        self._search_at = 0.0  # no search for idle queues before
        self._last_timestamp = 0
        self.unconfirmed: set[int] = set()  # queue ids that a late final ack may refer to

    def connect(self, outgoing: QueueTable, forget_ways: Callable[[], None]) -> None:
        """Set the queues, and the function that drops references to them in caches."""
        self._outgoing = outgoing
        self._forget_ways = forget_ways

    # Start-up.

    def restore(self, last_timestamp: int, unconfirmed: set[int]) -> None:
        """Load the greatest timestamp of a sequence, and the ids of `unconfirmed`."""
        self._last_timestamp = max(self._last_timestamp, last_timestamp)
        self.unconfirmed.update(unconfirmed)

    def restored(self, queue: OutgoingQueue) -> None:
        """Reserve the ids of a restored queue and of its sequence."""
        self._next = max(self._next, queue.id + 1)
        if queue.has_sequence:
            self._last_timestamp = max(self._last_timestamp, queue.sequence.sequence_id >> 32)

    # Ids of queues.

    def take(self, *, for_acknowledgments: bool) -> int:
        """Assign an id to a new queue. Raises Refusal if all ids are in use.

        Peers can cause acknowledgments to names of their choice. Queues `for_acknowledgments`
        therefore get at most half of all ids.
        """
        limit = self._max // 2 if for_acknowledgments else self._max
        if self._outgoing.count >= limit and not self._forget_idle():
            raise Refusal(
                "too_many_destinations",
                f"there are {limit} outgoing queues, and none of them is idle and empty; no further"
                " destination can be added",
            )
        if not self._free:
            if self._next <= self._max:
                self._next += 1
                return self._next - 1
            taken = {queue.id for queue in self._outgoing.queues}
            self._free = [each for each in range(self._max, 0, -1) if each not in taken]
        return self._free.pop()

    def give_back(self, id_: int) -> None:
        """Take an id back; its queue was not created."""
        self._free.append(id_)

    def _forget_idle(self) -> int:
        """Forget idle queues with the open batch; return how many."""
        now = self._services.loop.time()
        if now < self._search_at:
            return 0
        forgotten = self._forget(self._outgoing.queues)
        if not forgotten:
            self._search_at = now + SEARCH_AGAIN_S
        return forgotten

    def forget_idle(self, keys: Collection[str]) -> int:
        """Forget the idle queues among those with these names; return how many."""
        # No local variable may refer to a queue, because that would keep it.
        return self._forget(list(filter(None, map(self._outgoing.find, keys))))

    def _forget(self, queues: list[OutgoingQueue]) -> int:
        """Forget the idle queues of a list, and clear the list; return how many."""
        self._forget_ways()
        # Keys, because a reference to a queue would keep it. The queues that contain an address
        # for final acks come last: such an ack may be due days later.
        idle = sorted(
            (queue.is_order_queue, queue.used_at, queue.key)
            for queue in queues
            if queue.is_idle and queue.id not in self.unconfirmed
        )
        queues.clear()
        wanted = max(1, self._max // FORGOTTEN_PART)
        ids: list[int] = []
        for _, _, key in idle:
            id_ = self._outgoing.forget(key)
            if id_ is not None:
                ids.append(id_)
                if len(ids) == wanted:
                    break
        if ids:
            self._services.storage.batch.outgoing.forget_queues(ids, self._last_timestamp)
            self._free = ids + self._free
            log.info("idle_destinations_forgotten", count=len(ids))
        return len(ids)

    # Ids of sequences.

    def begin_sequence(self, queue: OutgoingQueue) -> None:
        """Begin a new sequence, before the first transactional message since the start."""
        queue.sequence.begin_anew(self.next_sequence_id(), queue.sequence.next_number - 1)
        self._outgoing.know_sequence(queue)

    def next_sequence_id(self) -> int:
        """Return a sequence id that is greater than all before. [MS-MQQB] 3.1.1.5

        That also holds after a restored backup, if the clock is right.
        """
        wall_s = int(self._services.environment.time())
        if wall_s >= TIMESTAMP_LATEST:
            wall_s = 1  # the clock is wrong, and would use up all timestamps
        self._last_timestamp = max(wall_s, self._last_timestamp + 1)
        # With many queues the timestamps are ahead of the clock. A restored backup then assigns the
        # same timestamps again, and must not assign the same sequence ids, so that peers detect
        # that it is out of date.
        ordinal = 1 + int.from_bytes(self._services.environment.urandom(ORDINAL_BYTES), "big")
        return sequence_id(self._last_timestamp, ordinal)
