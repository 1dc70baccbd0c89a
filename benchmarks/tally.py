"""Sent and arrived messages, identified by their bodies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from qmd.client.new_message import DeliveryName

BODY_BYTES = 1024


@dataclass
class Tally:
    """The messages of one delivery, numbered from 0; each body contains its number."""

    delivery: DeliveryName
    total: int
    ids: list[str | None] = field(init=False)  # by number; None before it was confirmed
    kills_before: dict[int, int] = field(default_factory=dict)  # number -> kills before its sending
    arrivals: list[list[str]] = field(init=False)  # the ids of each number's arrivals
    sent: int = 0  # confirmed
    delivered: int = 0  # distinct messages, without duplicates
    out_of_order: list[int] = field(default_factory=list)  # arrived first after a later one
    altered: list[str] = field(default_factory=list)  # ids of messages that the demo did not send
    _last: int = -1

    def __post_init__(self) -> None:
        self.ids = [None] * self.total
        self.arrivals = [[] for _ in range(self.total)]

    def body(self, number: int) -> bytes:
        """Return the body: delivery and number in a line, then bytes unique to the message."""
        line = f"{self.delivery} {number}\n".encode()
        pattern = hashlib.blake2b(line).digest()
        return (line + pattern * (BODY_BYTES // len(pattern)))[:BODY_BYTES]

    def confirmed(self, number: int, message_id: str) -> None:
        self.ids[number] = message_id
        self.sent += 1

    def arrived(self, body: bytes, message_id: str) -> None:
        number = number_of(body)
        if not 0 <= number < self.total or body != self.body(number):
            self.altered.append(message_id)
            return
        self.arrivals[number].append(message_id)
        if len(self.arrivals[number]) == 1:
            self.delivered += 1
            if number < self._last:
                self.out_of_order.append(number)
            self._last = max(self._last, number)

    @property
    def missing(self) -> list[int]:
        """Numbers that were confirmed and did not arrive."""
        return [
            number
            for number, ids in enumerate(self.arrivals)
            if not ids and self.ids[number] is not None
        ]

    @property
    def doubled(self) -> list[int]:
        return [number for number, ids in enumerate(self.arrivals) if len(ids) > 1]

    def name(self, number: int) -> str:
        """Return a description with which an operator finds the message in a queue or a log."""
        return f"{self.delivery} message {number}, id {self.ids[number] or 'unknown'}"


def number_of(body: bytes) -> int:
    """Return the number in a body, or -1."""
    words = body.partition(b"\n")[0].split()
    return int(words[1]) if len(words) == 2 and words[1].isdigit() else -1


def delivery_of(body: bytes) -> str:
    return body.partition(b" ")[0].decode("ascii", "replace")
