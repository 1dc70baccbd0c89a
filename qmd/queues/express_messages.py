"""Express messages of one queue: they exist in memory only and are lost with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from qmd.core.deadlines import Deadlines
from qmd.message.shared_packet import Packet, express_added, express_removed

if TYPE_CHECKING:
    from qmd.queues.usage import Usage

Item = TypeVar("Item")


class ExpressMessages(dict[int, Item]):
    """The express messages of a queue by their key, with their deadlines and their memory.

    An item contains the packet and the deadline; the two kinds of queues keep different items.
    """

    __slots__ = ("_deadlines", "_usage")

    def __init__(self, usage: Usage) -> None:
        super().__init__()
        self._usage = usage
        self._deadlines = Deadlines()

    def keep(self, key: int, item: Item, packet: Packet, expires_at_s: int | None) -> None:
        """Add a message.  `expires_at_s` is a second of the queue manager's own clock, or None."""
        self[key] = item
        self._usage.express_bytes += express_added(packet)
        if expires_at_s is not None:
            self._deadlines.add(key, expires_at_s)

    def drop(self, key: int, packet: Packet, expires_at_s: int | None) -> None:
        """Remove a message that was added with this packet and deadline."""
        del self[key]
        if expires_at_s is not None:
            self._deadlines.discard(key)
        self._usage.express_bytes -= express_removed(packet)

    def pop_expired(self, now_s: int, messages_max: int) -> list[int]:
        """Return the keys of at most `messages_max` messages that expired before `now_s`.

        Their deadlines are removed; the messages stay until the caller ends them.
        """
        return self._deadlines.pop_over(now_s, messages_max)

    def watch_again(self, key: int, expires_at_s: int) -> None:
        """Set the deadline of a message again, so that a later `pop_expired` returns it."""
        self._deadlines.add(key, expires_at_s)
