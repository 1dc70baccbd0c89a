"""Messages that an outgoing queue has handed to its session, as the event log takes them."""

from __future__ import annotations

from typing import Protocol


class Handed(Protocol):
    """Parallel lists; `sources` is empty where all messages are of this queue manager."""

    sources: list[bytes]
    numbers: list[int]
    sizes: list[int]
    positions: list[int]


class Transmission(Protocol):
    """Messages that were handed to a session by one call."""

    @property
    def first(self) -> Handed: ...
    @property
    def again(self) -> Handed: ...


class Sender(Protocol):
    """An outgoing queue."""

    destination: str
    why_again: str

    @property
    def peer(self) -> str: ...
    @property
    def sequence_id(self) -> int: ...
