"""The context of links: the parts of a conversation and of its door that they use.

These are types only.  The classes are `qmd.doors.amqp.conversation.Conversation` and
`qmd.doors.amqp.door.Door`, which know the links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from qmd.client.errors import NotConnected
from qmd.doors.amqp.limits import ClientLimits
from qmd.doors.control import UserConnection


class DoorContext(Protocol):
    """The state that the clients of a door share."""

    version: str
    names: dict[tuple[str, ...], Any]
    dynamic: Any  # DynamicQueues

    def connect(
        self, principals: Sequence[str], lost: Callable[[NotConnected], None]
    ) -> UserConnection:
        """Return a connection to the daemon that acts for a user; it opens on its first use."""
        ...

    def delete_queues(self, principals: Sequence[str], queues: Sequence[str]) -> None:
        """Delete dynamic queues of a client that has left."""


class Context(Protocol):
    """The conversation with one client."""

    door: DoorContext
    engine: Any  # Engine
    limits: ClientLimits
    principals: tuple[str, ...]
    control: UserConnection
    outbox: Any  # Outbox
    removals: Any  # Removals
    transactions: Any  # Transactions
    opening: Any  # Opening
    links: dict[Any, Any]
    kept: dict[Any, Any]
    unsettled_count: int
    settled_count: int
    unsettled_bytes: int  # of messages that the client has not settled
    partial_bytes: int  # of messages that have not arrived completely
    is_held: bool
    is_slow: bool
    is_over: bool

    @property
    def container(self) -> str:
        """The container id of the client."""
        ...

    @property
    def unsettled_room(self) -> int:
        """How many more messages may be sent before the client settles some."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as long as the conversation."""
        ...

    def flush(self) -> None:
        """Write soon what the engine has for the client."""

    def more_room(self) -> None:
        """Take more messages: some were settled, or written."""

    def fail(self, failure: Exception) -> None:
        """Close the connection with an error condition."""

    async def connected(self) -> None:
        """Open the connection to the daemon.  Raises ClientError."""

    def dropped(self, item: Any, condition: Any) -> None:
        """Log a message that was refused, and of which the sender expects no answer."""
