"""Errors of the protocol package; each names one field, one offset and one rule."""

from __future__ import annotations


class ProtocolError(Exception):
    """The base class: bytes or text that the specification does not allow.

    `field` is dotted ("user.destination_queue.count"), `offset` counts from the start of the packet
    (bytes) or of the name (characters), `rule` states the requirement of the specification.
    """

    def __init__(self, field: str, offset: int, rule: str) -> None:
        super().__init__(field, offset, rule)
        self.field = field
        self.offset = offset
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.field} at offset {self.offset}: {self.rule}"


class MalformedPacket(ProtocolError):
    """Bytes of a packet that break a rule; `offset` is in bytes from the start of the packet."""


class InvalidName(ProtocolError):
    """An invalid name; `offset` is a character index."""


class ReadOnlyElement(InvalidName):
    """A destination list with a queue that accepts no sends; `place` is its position, from 1 on."""

    def __init__(self, field: str, offset: int, rule: str, place: int) -> None:
        super().__init__(field, offset, rule)
        self.place = place

    def __str__(self) -> str:
        return f"element {self.place}: {self.rule}"
