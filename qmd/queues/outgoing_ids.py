"""Ids of outgoing queues and of their sequences: few, and given only for as long as needed.

An id has 15 bits, and stands in the keys of messages.  When all are given, queues that are idle and
empty are forgotten, those that were used longest ago first, and their ids given again.  A queue is
idle when it holds nothing, waits for nothing, and has nothing that an operator has set; and
forgotten only if nothing in the process refers to it any more: whoever holds it (an application's
transaction, a commit that is under way, a session) may still put messages into it.

A sequence may be forgotten when it is over, if the next one to its destination has a greater id:
the receiver takes that for a new one, and refuses a lesser one for ever.  [MS-MQQB] 3.1.5.8.6
The greatest one that was ever used is therefore kept.  Sequences get theirs with the first message,
because ids count seconds: queues for plain messages alone, of which peers can cause any number,
would use up those of the years to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from protocol.identifiers import sequence_id
from qmd.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services

log = structlog.get_logger()

FORGOTTEN_PART = 16  # so that looking for idle ones costs each new queue next to nothing
VAIN_S = 2.0  # where none was idle, nobody looks again so soon
ORDINAL_BYTES = 3  # of the random one that a sequence begins with
TIMESTAMP_LATEST = 0xFFFF0000  # in the year 2106; they have 32 bits


class QueueTable(Protocol):
    """All of them: `Outgoing` of outgoing_queues.py."""

    @property
    def count(self) -> int: ...
    @property
    def queues(self) -> list[OutgoingQueue]: ...

    def forget(self, key: str) -> int | None: ...
    def know_sequence(self, queue: OutgoingQueue) -> None: ...


class OutgoingIds:
    """Of the queues that `Outgoing` has."""

    def __init__(self, services: Services, *, destinations_max: int) -> None:
        self._services = services
        self._max = destinations_max
        self._free: list[int] = []
        self._next = 1
        self._look_at = 0.0
        self._last_timestamp = 0
        self.unconfirmed: set[int] = set()  # ids that a late final ack may still ask for

    def connect(self, outgoing: QueueTable, forget_ways: Callable[[], None]) -> None:
        """Name the queues, and what drops references to them that are only kept for speed."""
        self._outgoing = outgoing
        self._forget_ways = forget_ways

    # Start-up.

    def restore(self, last_timestamp: int, unconfirmed: set[int]) -> None:
        self._last_timestamp = max(self._last_timestamp, last_timestamp)
        self.unconfirmed = unconfirmed

    def restored(self, queue: OutgoingQueue) -> None:
        """It has its id, and its sequence if that was used."""
        self._next = max(self._next, queue.id + 1)
        if queue.has_sequence:
            self._last_timestamp = max(self._last_timestamp, queue.sequence.sequence_id >> 32)

    # Ids of queues.

    def take(self, *, for_acknowledgments: bool) -> int:
        """An id for a new queue.  Raises Refusal.

        Peers can make us send acknowledgments to names of their choice, and so may use up only
        a half of all ids.
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
        """No queue came of it."""
        self._free.append(id_)

    def _forget_idle(self) -> int:
        """How many queues are forgotten with the open batch."""
        now = self._services.loop.time()
        if now < self._look_at:
            return 0
        self._forget_ways()
        # Keys, because a reference to a queue would keep it.  Last those that know an address for
        # acknowledgments that may be due in days.
        idle = sorted(
            (queue.is_order_queue, queue.used_at, queue.key)
            for queue in self._outgoing.queues
            if queue.is_idle and queue.id not in self.unconfirmed
        )
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
        else:
            self._look_at = now + VAIN_S
        return len(ids)

    # Ids of sequences.

    def begin_sequence(self, queue: OutgoingQueue) -> None:
        """Its first transactional message since the start is about to get its number."""
        queue.sequence.begin_anew(self.next_sequence_id(), queue.sequence.next_number - 1)
        self._outgoing.know_sequence(queue)

    def next_sequence_id(self) -> int:
        """Greater than all before, also after a restored backup if the clock is right.

        [MS-MQQB] 3.1.1.5
        """
        wall_s = int(self._services.environment.time())
        if wall_s >= TIMESTAMP_LATEST:
            wall_s = 1  # the clock is wrong, and would use up all that there are
        self._last_timestamp = max(wall_s, self._last_timestamp + 1)
        # Many queues are ahead of the clock.  A backup of theirs comes to the same time stamps, and
        # must not come to the same sequences: one that it is behind of is found out.
        ordinal = 1 + int.from_bytes(self._services.environment.urandom(ORDINAL_BYTES), "big")
        return sequence_id(self._last_timestamp, ordinal)
