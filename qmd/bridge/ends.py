"""The other end of a bridge, as the kinds implement it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from qmd.client.message import Message
from qmd.control_protocol.messages import NewMessage

Position = Any  # a value of JSON, which belongs to a kind

T = TypeVar("T")


class Unreachable(Exception):
    """The other end does not answer, or not now; the bridge tries again later."""


class DoesNotFit(Exception):
    """The other end, or the queue, is not as the definition says."""


def position_as(kind: type[T], position: Position) -> T | None:
    """Return a position as its kind writes it; None: the first time.  Raises DoesNotFit."""
    if position is None:
        return None
    try:
        return msgspec.convert(position, kind)
    except msgspec.ValidationError as error:
        raise DoesNotFit(f"the position is none of this kind of bridge: {error}") from error


class Refused(NamedTuple):
    """A message that the other end will never take: its place, and the reason."""

    at: int
    reason: str


class Published(NamedTuple):
    """How many messages, from the first on, the other end has; then one may be refused."""

    number: int
    refused: Refused | None = None


class Sink(Protocol):
    """The end to which messages go."""

    #: The guarantee, in a sentence, for `qmd bridge check`.
    guarantee: str

    async def open(self) -> None:
        """Connect, and find out which messages it has already.  Raises Unreachable."""

    async def publish(self, messages: Sequence[Message]) -> Published:
        """Store messages there, in their order, and wait until it has them.

        A message that it has already counts as published.  Raises Unreachable: it may have any of
        them.
        """

    async def close(self) -> None:
        """End the connection."""


class Arrival(NamedTuple):
    """A message of the other end; without `message`, it cannot be one, for a `reason`."""

    id: str
    message: NewMessage | None
    position: Position  # behind it
    raw: bytes
    reason: str = ""


class Source(Protocol):
    """The end from which messages come."""

    guarantee: str

    async def open(self, position: Position) -> None:
        """Connect, to read behind a position; None: the first time.  Raises Unreachable."""

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        """Return messages in their order, at most `limit`; wait for the first.

        Raises Unreachable.
        """

    async def done(self) -> None:
        """Acknowledge what was fetched: it is in the queue, on disk.  Raises Unreachable."""

    async def close(self) -> None:
        """End the connection."""


class Recent:
    """Ids of the last messages, so that one that comes again is known."""

    def __init__(self, most: int, ids: Iterable[str] = ()) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict((each, None) for each in ids)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def add(self, message_id: str) -> None:
        self._ids.pop(message_id, None)
        self._ids[message_id] = None
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def __iter__(self) -> Any:
        return iter(self._ids)
