"""Messages that a transaction can settle: those of `take` and of `take_locked`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.client.connection import Connection
    from qmd.client.message import Message


class Enrollable(Protocol):
    """Messages of one queue that were taken before the transaction."""

    queue: str

    @property
    def messages(self) -> Sequence[Message]: ...

    def lock_for(self, connection: Connection) -> bytes:
        """Return the id of the lock of the messages, b"" without a lock.

        Raises NotTaken if they were taken without a lock on another connection than this one.
        """

    def handed_over(self) -> None:
        """Forget the messages: a transaction settles them."""
