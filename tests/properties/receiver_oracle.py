"""The oracle of a receiver, from the specification alone.

It shares no code with the queue manager.  It follows [MS-MQQB] 3.1.5.8 and 3.1.7.2.2, in the order
of `docs/protocol-notes.md`, and docs/decisions/0029 and 0031 for another message at the position
of an accepted one, at a skipped position or as the first one of a sequence, which the specification
does not define.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

RECEIVED = 0x4000
BAD_DESTINATION = 0x8000
DELETED = 0x8001
REACH_QUEUE_TIMEOUT = 0x8002
QUEUE_FULL = 0x8003
NOT_TRANSACTIONAL_QUEUE = 0x8009
NOT_TRANSACTIONAL_MESSAGE = 0x800A

KEPT = {BAD_DESTINATION, NOT_TRANSACTIONAL_QUEUE, NOT_TRANSACTIONAL_MESSAGE}
KEPT_IF_WANTED = {QUEUE_FULL, REACH_QUEUE_TIMEOUT}  # and if it is not transactional

# How many accepted messages of a sequence the receiver knows by their positions since its start: at
# least, and at most.
KNOWN_MIN = 64
KNOWN_MAX = 128

GAPS_MAX = 64  # skipped stretches of a sequence that the receiver knows since its start


class Position(NamedTuple):
    sequence_id: int
    number: int
    previous: int


@dataclass(frozen=True)
class Arriving:
    """A message as its sender built it."""

    source: bytes
    message_id: int
    queue: str
    body: bytes
    size: int  # of its packet, in bytes
    is_recoverable: bool
    position: Position | None = None
    is_late: bool = False
    is_for_another: bool = False  # computer
    wants_dead_letter: bool = False


@dataclass
class Queue:
    is_transactional: bool
    quota_bytes: int | None = None
    messages: list[Arriving] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.messages)


class Receiver:
    """Queues, their messages, and the acknowledgments that the senders must get."""

    def __init__(self, queues: dict[str, Queue]) -> None:
        self.queues = queues
        self.positions: dict[tuple[bytes, str], tuple[int, int]] = {}
        self.last: dict[tuple[bytes, str], tuple[int, int]] = {}  # number in sequence, message id
        self.taken: dict[tuple[bytes, str], list[tuple[int, int]]] = {}  # since the start
        #: The first message of each current sequence: its number in the sequence, its id.
        self.first: dict[tuple[bytes, str], tuple[int, int]] = {}
        self.gaps: dict[tuple[bytes, str], list[range]] = {}  # skipped numbers, since the start
        self.known: set[tuple[bytes, int]] = set()
        #: Their classes, by source and message id: the source made dead letters of them.
        self.refused: dict[tuple[bytes, int], int] = {}
        self.dead_letters: Counter[bytes] = Counter()  # by body
        self.final_acks: Counter[tuple[bytes, int, int]] = Counter()  # source, message id, class
        self.perhaps: Counter[tuple[bytes, int, int]] = Counter()  # further ones that are allowed

    def receive(self, arriving: Arriving) -> None:
        source, queue = arriving.source, self.queues.get(arriving.queue)
        key = source, arriving.message_id
        if arriving.position is None and key in self.known:
            return
        if arriving.position is None and arriving.is_late:
            self._refuse(arriving, REACH_QUEUE_TIMEOUT)
        elif queue is None or arriving.is_for_another:
            self._refuse(arriving, BAD_DESTINATION)
        elif arriving.position is None and queue.is_transactional:
            self._refuse(arriving, NOT_TRANSACTIONAL_MESSAGE)
        elif arriving.position is not None and not queue.is_transactional:
            self._refuse(arriving, NOT_TRANSACTIONAL_QUEUE)
        elif arriving.position is not None and not self._is_next(arriving):
            self._reject(arriving)
        elif arriving.is_late:
            self._refuse(arriving, REACH_QUEUE_TIMEOUT)
        elif self.refused.get(key, REACH_QUEUE_TIMEOUT) != REACH_QUEUE_TIMEOUT:
            self._refuse(arriving, self.refused[key])
        elif queue.quota_bytes is not None and queue.bytes + arriving.size > queue.quota_bytes:
            self._refuse(arriving, QUEUE_FULL)
        else:
            self._store(arriving, queue)

    def consume(self, name: str, limit: int) -> list[bytes]:
        """Receive messages; sources that asked for it get final acks.  [MS-MQQB] 3.1.7.2.2"""
        queue = self.queues[name]
        taken, queue.messages = queue.messages[:limit], queue.messages[limit:]
        for each in taken:
            if each.position is not None and each.wants_dead_letter:
                self.final_acks[each.source, each.message_id, RECEIVED] += 1
        return [each.body for each in taken]

    def lose_memory(self) -> None:
        """Restart the queue manager: messages in memory only are lost, and classes of refusals."""
        for queue in self.queues.values():
            queue.messages = [each for each in queue.messages if each.is_recoverable]
        self.taken.clear()
        self.gaps.clear()
        self.refused = dict.fromkeys(self.refused, QUEUE_FULL)  # the most frequent class

    def _is_next(self, arriving: Arriving) -> bool:
        """[MS-MQQB] 3.1.5.8.6"""
        assert arriving.position is not None
        stream = arriving.source, arriving.queue
        sequence_id, number, previous = arriving.position
        current_id, current = self.positions.get(stream, (0, 0))
        if sequence_id == current_id:
            return previous <= current < number
        return sequence_id > current_id and previous == 0 and number > 0

    def _reject(self, arriving: Arriving) -> None:
        """Reject a repeated or early message, without effect.

        Refuse another message at its position, at a skipped one, or as the first of its sequence.
        """
        assert arriving.position is not None
        stream = arriving.source, arriving.queue
        sequence_id, number, previous = arriving.position
        if stream not in self.last or sequence_id != self.positions[stream][0]:
            return
        first_number, first_id = self.first[stream]
        is_other_first = previous == 0 and (
            number < first_number or (number == first_number and arriving.message_id != first_id)
        )
        if is_other_first or any(number in gap for gap in self.gaps.get(stream, ())):
            self._refuse(arriving, DELETED)
            return
        taken = self.taken.get(stream) or [self.last[stream]]
        for age, (known, message_id) in enumerate(reversed(taken)):
            if known != number or message_id == arriving.message_id:
                continue
            if age < KNOWN_MIN:
                self._refuse(arriving, DELETED)
            elif age < KNOWN_MAX:
                self.perhaps[arriving.source, arriving.message_id, DELETED] += 1

    def _store(self, arriving: Arriving, queue: Queue) -> None:
        if arriving.position is None:
            self.known.add((arriving.source, arriving.message_id))
        else:
            stream = arriving.source, arriving.queue
            sequence_id, number, _ = arriving.position
            current_id, current = self.positions.get(stream, (0, 0))
            if sequence_id != current_id:
                self.first[stream] = number, arriving.message_id
                self.taken[stream], self.gaps[stream] = [], []
            elif number > current + 1:
                gaps = self.gaps.setdefault(stream, [])
                gaps.append(range(current + 1, number))
                del gaps[:-GAPS_MAX]
            self.positions[stream] = sequence_id, number
            self.last[stream] = number, arriving.message_id
            self.taken.setdefault(stream, []).append(self.last[stream])
        queue.messages.append(arriving)

    def _refuse(self, arriving: Arriving, message_class: int) -> None:
        key = arriving.source, arriving.message_id
        is_wanted = arriving.wants_dead_letter and arriving.position is None
        if key not in self.known and (
            message_class in KEPT or (message_class in KEPT_IF_WANTED and is_wanted)
        ):
            self.dead_letters[arriving.body] += 1
        self.known.add(key)
        if self.refused.get(key, REACH_QUEUE_TIMEOUT) == REACH_QUEUE_TIMEOUT:
            self.refused[key] = message_class
        # One that came too late expires at its source as well.
        if arriving.position is not None and message_class != REACH_QUEUE_TIMEOUT:
            self.final_acks[*key, message_class] += 1
