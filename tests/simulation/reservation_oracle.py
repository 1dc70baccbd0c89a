"""The oracle of reservations: what the readers of pipelines were given, by their positions.

This file knows nothing of qmd's code.  A reader reports each answer, and then:

    a position has one message for ever, and a message one position at a time
    the positions of a range have no gap, and streams keep their order
    a new run begins where the last one has consumed to, and has what that one had reserved
    a consumed message is never given again; a released one comes back at a later position
    no application is given a reserved message, and no reader one that an application has taken
    each reader of a shared queue has seen a message before it is removed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.oracle_state import OracleState

_Queue = tuple[str, str]  # host, and queue there


@dataclass(slots=True, eq=False)
class Positions:
    """The positions of one reader in one queue, as it was notified of them."""

    state: OracleState
    name: str  # of the reader, for failures
    host: str
    shared: bool
    is_order_of_plain_kept: bool
    numbers: dict[int, int] = field(default_factory=dict)  # position -> message
    known: dict[int, int] = field(default_factory=dict)  # message -> position, not released
    consumed: int = 0  # surely up to this position
    reserved: int = 0  # likewise
    consuming: int = 0  # perhaps up to this one
    is_releasing: bool = False  # perhaps all is released, and perhaps forgotten
    _last: dict[str, int] = field(default_factory=dict)  # stream -> rank of its last message

    def opened(self, position: int, reserved: int) -> list[int]:
        """Check the begin of a run; return the messages that were consumed without an answer."""
        if self.is_releasing and position > max(self.consumed, self.consuming):
            self.released()
            self.consumed = self.consuming = position
            self.reserved = max(self.reserved, reserved)
            return []
        self.is_releasing = False
        if not self.consumed <= position <= max(self.consumed, self.consuming):
            self._fail(
                f"begins at {position}, and has consumed up to {self.consumed} to {self.consuming}"
            )
        if reserved < self.reserved:
            self._fail(f"has reserved up to {reserved}, which was {self.reserved}")
        self.reserved = max(self.reserved, reserved)
        return self.consumed_to(position)

    def was_reserved(self, start: int, end: int, messages_max: int) -> None:
        """Check the end of a reservation behind `start`."""
        if end < min(self.reserved, start + messages_max) and end != self.reserved:
            self._fail(f"reserves {start} to {end}, and had reserved up to {self.reserved}")
        self.reserved = max(self.reserved, end)

    def read(self, after: int, until: int, rows: Sequence[tuple[int, int]]) -> None:
        """Check the messages of a range: (position, number)."""
        positions = [position for position, _ in rows]
        if positions != list(range(after + 1, until + 1)):
            missing = sorted(set(range(after + 1, until + 1)).difference(positions))
            self._fail(
                f"reads {after + 1} to {until}, and gets {len(positions)} messages:"
                f" {missing[:3]} are missing"
            )
        for position, number in rows:
            before = self.numbers.get(position)
            if before is None:
                self._assigned(position, number)
            elif before != number:
                self._fail(f"gets message {number} at {position}, which was {before}")

    def _assigned(self, position: int, number: int) -> None:
        message = self.state.messages[number]
        another = self.known.get(number)
        is_again = another is not None
        # A daemon that has died may get an express message again.
        if is_again and message.delivery != "express":
            self._fail(f"gets message {number} at {position}, and had it at {another}")
        has_order = message.is_ordered and (
            message.delivery == "transactional" or self.is_order_of_plain_kept
        )
        rank = message.rank or number
        if has_order and not is_again and rank < self._last.get(message.stream, 0):
            self._fail(f"gets {number} of {message.stream} after {self._last[message.stream]}")
        self._last[message.stream] = max(self._last.get(message.stream, 0), rank)
        self.numbers[position], self.known[number] = number, position

    def begin_consume(self, end: int) -> list[int]:
        """Record that a consumption is requested; return its messages."""
        self.consuming = end
        return [self.numbers[position] for position in range(self.consumed + 1, end + 1)]

    def consumed_to(self, end: int) -> list[int]:
        """Record that everything up to a position is consumed; return those messages."""
        positions = range(self.consumed + 1, end + 1)
        self.consumed = self.consuming = end
        return [self.numbers[position] for position in positions if position in self.numbers]

    def released(self) -> None:
        """Record that the reserved messages are ready again."""
        self.is_releasing = False
        self.known = {
            number: position for number, position in self.known.items() if position <= self.consumed
        }
        # They come back at later positions, in their order.
        self._last.clear()
        for number in self.known:
            message = self.state.messages[number]
            rank = message.rank or number
            self._last[message.stream] = max(self._last.get(message.stream, 0), rank)

    @property
    def held(self) -> set[int]:
        """The messages that are surely reserved."""
        if self.is_releasing:
            return set()
        after = max(self.consumed, self.consuming)
        return {number for number, position in self.known.items() if position > after}

    def has_consumed(self, number: int) -> bool:
        return 0 < self.known.get(number, 0) <= self.consumed

    def _fail(self, what: str) -> None:
        self.state.fail(f"{self.name} {what}")


class ReservationOracle:
    """The positions of all readers, and the messages that other applications have taken."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self.is_order_of_plain_kept = True
        # (host, queue, reader, life of the disk, id of the queue) -> positions
        self._positions: dict[tuple[str, str, str, int, str], Positions] = {}
        self._current: dict[_Queue, dict[str, Positions]] = defaultdict(dict)
        self._taken: dict[_Queue, dict[int, int]] = defaultdict(dict)  # message -> daemon's life

    def add_reader(self, host: str, queue: str, reader: str) -> None:
        """Record that a shared queue has this reader."""
        self._current[host, queue][reader] = Positions(
            self._state, f"{reader} of {host}", host, True, self.is_order_of_plain_kept
        )

    def positions(
        self, host: str, queue: str, reader: str, queue_id: str, *, shared: bool
    ) -> Positions:
        """Return the positions of a reader; those of a lost disk or a deleted queue are others."""
        key = host, queue, reader, self._state.disk_lives[host], queue_id
        found = self._positions.get(key)
        if found is None:
            found = self._positions[key] = Positions(
                self._state, f"{reader} of {host}", host, shared, self.is_order_of_plain_kept
            )
        self._current[host, queue][reader] = found
        return found

    def forgot(self, host: str, queue: str, reader: str, queue_id: str) -> None:
        """Record that a reader is forgotten: its positions begin again."""
        del self._positions[host, queue, reader, self._state.disk_lives[host], queue_id]
        self._current[host, queue].pop(reader, None)

    def given(self, host: str, queue: str, numbers: Iterable[int]) -> None:
        """Check that no application has messages that a reader is given for the first time."""
        taken, life = self._taken[host, queue], self._state.life_of(host)
        for number in numbers:
            if taken.get(number) == life and self._state.messages[number].delivery != "express":
                self._state.fail(f"message {number} of {queue}@{host} is reserved and taken")

    def taken(self, host: str, queue: str, numbers: Iterable[int]) -> None:
        """Check that no reader has reserved messages that an application has taken."""
        numbers, life = list(numbers), self._state.life_of(host)
        for positions in self._current[host, queue].values():
            for number in positions.held.intersection(numbers):
                if self._state.messages[number].delivery != "express":
                    self._state.fail(
                        f"message {number} of {queue}@{host} is given to an application, and"
                        f" reserved for {positions.name}"
                    )
        self._taken[host, queue] |= dict.fromkeys(numbers, life)

    def settling(self, host: str, queue: str, numbers: Iterable[int]) -> None:
        """Record that an application is about to remove or return messages."""
        for number in numbers:
            self._taken[host, queue].pop(number, None)

    def was_seen_by_all(self, host: str, queue: str, number: int) -> bool:
        """Return whether all readers of a shared queue have consumed a message."""
        return all(each.has_consumed(number) for each in self._current[host, queue].values())
