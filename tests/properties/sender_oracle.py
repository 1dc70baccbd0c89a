"""The oracle of a sender of transactional messages, from the specification alone.

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
    """A message of the application."""

    body: bytes
    wants_journal: bool
    wants_dead_letter: bool
    is_on: Literal["its way", "the other side", ""] = "its way"
    place: tuple[int, int] | None = None  # sequence and number, once it has arrived
    message_id: int = 0


class Sender:
    """Messages to one queue elsewhere, in the order of their commits."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self.journal: Counter[bytes] = Counter()
        self.dead_letters: Counter[bytes] = Counter()
        self._acknowledged = (0, 0)  # the last place that an order ack named
        self._before = (0, 0)  # the last place that arrived in this session

    @property
    def on_their_way(self) -> list[Sent]:
        return [each for each in self.messages if each.is_on == "its way"]

    @property
    def waiting(self) -> list[Sent]:
        """Messages that await their final ack."""
        return [each for each in self.messages if each.is_on == "the other side"]

    @property
    def seen(self) -> list[Sent]:
        return [each for each in self.messages if each.place is not None]

    def session_begins(self) -> None:
        self._before = (0, 0)

    def arrives(self, body: bytes, message_id: int, place: tuple[int, int], previous: int) -> None:
        """Check that a message may arrive now, with the right place and previous number."""
        (sent,) = (each for each in self.messages if each.body == body)
        known = {each.place: each for each in self.seen}
        if sent.place is None:
            assert place not in known, "two messages have the same place"
            last = max((each.place for each in self.seen if each.place), default=(0, 0))
            assert place > last, "a place before an earlier one"
            sent.place, sent.message_id = place, message_id
        assert (sent.place, sent.message_id) == (place, message_id), (
            "the message has changed its place"
        )
        sequence_id, number = place
        assert previous < number
        held = [n for of, n in (self._before, self._acknowledged) if of == sequence_id]
        assert previous <= max(held, default=0), "a receiver without state would wait without end"
        self._before = place
        missing = [
            each
            for each in self.messages[: self.messages.index(sent)]
            if each.is_on == "its way" and (each.place is None or each.place[1] > previous)
        ]
        assert not missing, f"it skips {[each.body for each in missing]}"

    def order_ack(self, place: tuple[int, int]) -> None:
        """Record that the receiver holds the sequence up to this place."""
        self._acknowledged = max(self._acknowledged, place)
        for each in self.seen:
            assert each.place is not None
            if each.is_on == "its way" and each.place[0] == place[0] and each.place <= place:
                is_waited_for = each.wants_journal or each.wants_dead_letter
                each.is_on = "the other side" if is_waited_for else ""

    def final_ack(self, sent: Sent, message_class: int) -> None:
        """Record that a message was received, refused or expired."""
        if message_class & OF_A_QUEUE and sent.place is not None:
            # It was in its queue, and all before it had been accepted; a refusal that the peer
            # reported before does not change that.
            self.order_ack(sent.place)
        if not sent.is_on:
            return
        if message_class == RECEIVED and sent.wants_journal:
            self.journal[sent.body] += 1
        elif message_class & NEGATIVE and sent.wants_dead_letter:
            self.dead_letters[sent.body] += 1
        sent.is_on = ""
