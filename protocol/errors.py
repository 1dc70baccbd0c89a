"""What the protocol package raises: one field, one place, one rule per refusal."""

from __future__ import annotations


class ProtocolError(Exception):
    """Bytes or text that the specification does not allow.

    `field` is dotted ("user.destination_queue.count"), `offset` counts from the start of the
    packet (bytes) or of the name (characters), `rule` says what the specification demands.
    """

    def __init__(self, field: str, offset: int, rule: str) -> None:
        super().__init__(field, offset, rule)
        self.field = field
        self.offset = offset
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.field} at offset {self.offset}: {self.rule}"


class MalformedPacket(ProtocolError):
    """Wire bytes that break a rule; `offset` is in bytes from the start of the packet."""


class InvalidName(ProtocolError):
    """A name that cannot be read; `offset` is a character index."""


class ReadOnlyElement(InvalidName):
    """One of several destinations is a queue that nobody can send to; `place`, from 1 on."""

    def __init__(self, field: str, offset: int, rule: str, place: int) -> None:
        super().__init__(field, offset, rule)
        self.place = place

    def __str__(self) -> str:
        return f"element {self.place}: {self.rule}"
