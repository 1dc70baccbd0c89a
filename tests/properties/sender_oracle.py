"""What has to become of transactional messages that are sent, from the specification alone.

It shares no code with the queue manager.  [MS-MQQB] 3.1.5.6, 3.1.5.7, 3.1.7.1.3
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

RECEIVED = 0x4000
NEGATIVE = 0x8000
OF_A_QUEUE = 0x4000  # in a class: the message was in its queue


@dataclass
class Sent:
    """A message of our application."""

    body: bytes
    wants_journal: bool
    wants_dead_letter: bool
    is_on: Literal["its way", "the other side", ""] = "its way"
    place: tuple[int, int] | None = None  # sequence and number, once it was seen
    message_id: int = 0


class Sender:
    """Messages to one queue elsewhere, in the order of their commits."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self.journal: Counter[bytes] = Counter()
        self.dead_letters: Counter[bytes] = Counter()
        self._acknowledged = (0, 0)  # the last place that an order ack spoke of
        self._before = (0, 0)  # the place that came last in this session

    @property
    def on_their_way(self) -> list[Sent]:
        return [each for each in self.messages if each.is_on == "its way"]

    @property
    def waiting(self) -> list[Sent]:
        """Those whose end their source waits to hear of."""
        return [each for each in self.messages if each.is_on == "the other side"]

    @property
    def seen(self) -> list[Sent]:
        return [each for each in self.messages if each.place is not None]

    def session_begins(self) -> None:
        self._before = (0, 0)

    def arrives(self, body: bytes, message_id: int, place: tuple[int, int], previous: int) -> None:
        """The other side reads a message: is it one that may come now, and said right?"""
        (sent,) = (each for each in self.messages if each.body == body)
        known = {each.place: each for each in self.seen}
        if sent.place is None:
            assert place not in known, "two messages have one place in their sequence"
            last = max((each.place for each in self.seen if each.place), default=(0, 0))
            assert place > last, "a place that is before one that was given"
            sent.place, sent.message_id = place, message_id
        assert (sent.place, sent.message_id) == (place, message_id), "it has another place now"
        sequence_id, number = place
        assert previous < number
        held = [n for of, n in (self._before, self._acknowledged) if of == sequence_id]
        assert previous <= max(held, default=0), "a receiver without memory would wait for ever"
        self._before = place
        missing = [
            each
            for each in self.messages[: self.messages.index(sent)]
            if each.is_on == "its way" and (each.place is None or each.place[1] > previous)
        ]
        assert not missing, f"it jumps over {[each.body for each in missing]}"

    def order_ack(self, place: tuple[int, int]) -> None:
        """The other side holds everything of the sequence up to this number."""
        self._acknowledged = max(self._acknowledged, place)
        for each in self.seen:
            assert each.place is not None
            if each.is_on == "its way" and each.place[0] == place[0] and each.place <= place:
                is_waited_for = each.wants_journal or each.wants_dead_letter
                each.is_on = "the other side" if is_waited_for else ""

    def final_ack(self, sent: Sent, message_class: int) -> None:
        """It was received, or refused, or will never be received."""
        if message_class & OF_A_QUEUE and sent.place is not None and sent.is_on == "its way":
            self.order_ack(sent.place)  # it was in its queue
        if not sent.is_on:
            return
        if message_class == RECEIVED and sent.wants_journal:
            self.journal[sent.body] += 1
        elif message_class & NEGATIVE and sent.wants_dead_letter:
            self.dead_letters[sent.body] += 1
        sent.is_on = ""
