"""Messages that an outgoing queue has handed to its session, in the form for the event log."""

from __future__ import annotations

from typing import Protocol


class Handed(Protocol):
    """Parallel lists of messages; `sources` is empty if all of them are of this queue manager."""

    sources: list[bytes]
    numbers: list[int]
    sizes: list[int]
    positions: list[int]


class Transmission(Protocol):
    """The messages that one call has handed to a session, for the first time and again."""

    @property
    def first(self) -> Handed: ...
    @property
    def again(self) -> Handed: ...


class Sender(Protocol):
    """The properties of an outgoing queue that its events have."""

    destination: str
    why_again: str

    @property
    def peer(self) -> str: ...
    @property
    def sequence_id(self) -> int: ...
