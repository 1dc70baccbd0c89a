"""What one client has in memory: requests that are not begun, and answers that it does not read."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from qmd.control_protocol import messages as frames
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader

if TYPE_CHECKING:
    from qmd.control.components import Components

UNCOUNTED_BYTES = 256 * 1024  # of one client, which do not count in the budget of memory
REQUEST_COPIES = 4  # that are made of a request on its way to the disk


class Client(Protocol):
    """The connection."""

    components: Components
    reader: Reader

    @property
    def is_read(self) -> bool:
        """Whether what it sends is taken in."""
        ...

    def go_on(self) -> None:
        """There may be room for more."""

    def abort(self) -> None:
        """End it, with nothing more to be said."""


class ClientMemory:
    """Counts it; a `qmd.runtime.budget.Waiter`."""

    def __init__(self, connection: Client) -> None:
        # Weakly: they would keep each other until the collector runs, with what the client sent.
        self._connection: Client = weakref.proxy(connection)
        self.bytes_received = 0
        self._pending_bytes = 0  # of requests, whole and in part, that are not begun
        self._held_bytes = 0
        #: For room: no more is read meanwhile.
        self.waits = False

    def received(self, count: int) -> None:
        """So many bytes have come."""
        self.bytes_received += count
        self._pending_bytes += count

    def begun(self, frame: memoryview) -> None:
        """A request does not wait any more."""
        self._pending_bytes -= len(frame) + frames.LENGTH_BYTES

    def count(self, announced: int, *, may_wait: bool) -> None:
        """See how much there is, with a request whose length is `announced`; and, if `may_wait`,
        whether there is room for it."""
        connection, pending = self._connection, self._pending_bytes
        memory, who = connection.components.services.memory.requests, connection.reader.who
        needed = max(pending, announced) if self.is_much else 0
        if may_wait and needed > self._held_bytes:
            if self.waits:
                return
            if not memory.allows(self, who, needed - self._held_bytes):
                self.waits = True
                memory.wait(self, who)
                return
        self._held_bytes = needed
        memory.hold(self, who, needed)

    @property
    def is_much(self) -> bool:
        return self._pending_bytes > UNCOUNTED_BYTES

    def leave(self) -> None:
        """The client is gone."""
        self._connection.components.services.memory.requests.leave(self)
        self.has_read()

    # Answers.

    def unread(self, size: int) -> None:
        """The client does not read its answers; of all that do not, the first gives way."""
        memory = self._connection.components.services.memory.answers
        memory.hold(self, None, size)
        while memory.used_bytes > memory.limit_bytes and memory.oldest is not self:
            other = memory.oldest
            assert isinstance(other, ClientMemory)
            other.has_read()
            other._end("client_does_not_read")

    def has_read(self) -> None:
        """Its answers are on their way."""
        self._connection.components.services.memory.answers.hold(self, None, 0)

    # What the budget calls.

    @property
    def is_read(self) -> bool:
        return self._connection.is_read

    def memory_available(self) -> None:
        self.waits = False
        self._connection.go_on()

    def end_slow(self, held_bytes: int) -> None:
        self._end("slow_request_ended", held_bytes=held_bytes)

    def end_without_memory(self) -> None:
        """There is none for what it has sent."""
        self._end("no_memory_for_request")

    def _end(self, why: str, **facts: object) -> None:
        who = self._connection.reader.who
        self._connection.components.services.log_limited(why, who, client=who, **facts)
        self._connection.abort()


def no_memory() -> Refusal:
    """Nothing was begun."""
    return Refusal(
        "no_memory",
        "the queue manager has no memory left for the request; nothing of it was done",
        "Try again in a moment, with fewer messages at once; see memory in `qmd status`.",
    )
