"""Memory of one client: requests that have not begun, and answers that it has not read."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from qmd.control_protocol import messages as frames
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader

if TYPE_CHECKING:
    from qmd.control.components import Components

UNCOUNTED_BYTES = 256 * 1024  # of one client; only more counts against the memory budget
REQUEST_COPIES = 4  # copies of a request that exist until it is on disk


class Client(Protocol):
    """The connection of a client, as its memory account uses it."""

    components: Components
    reader: Reader

    @property
    def memory_owner(self) -> Hashable:
        """The account of which the requests count against the budget."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the connection is read."""
        ...

    def go_on(self) -> None:
        """Continue, because there may be room again."""

    def abort(self) -> None:
        """End the connection at once, without a further answer."""


class ClientMemory:
    """Memory account of one client; a `qmd.runtime.budget.Waiter`."""

    def __init__(self, connection: Client) -> None:
        # A weak reference: a circle would keep the client's requests until the collector runs.
        self._connection: Client = weakref.proxy(connection)
        self.bytes_received = 0
        self._pending_bytes = 0  # of requests, complete or not, that have not begun
        self._held_bytes = 0
        #: The client waits for memory; its connection is not read meanwhile.
        self.waits = False

    def received(self, count: int) -> None:
        """Count bytes that have arrived."""
        self.bytes_received += count
        self._pending_bytes += count

    def begun(self, frame: memoryview) -> None:
        """Subtract a request that begins."""
        self._pending_bytes -= len(frame) + frames.LENGTH_BYTES

    def count(self, announced: int, *, may_wait: bool) -> None:
        """Reserve memory for the pending requests, one of which has the length `announced`.

        With `may_wait` the client waits if there is no room for them.
        """
        connection, pending = self._connection, self._pending_bytes
        memory, client = connection.components.services.memory.requests, connection.memory_owner
        needed = max(pending, announced) if self.is_much else 0
        if may_wait and needed > self._held_bytes:
            if self.waits:
                return
            if not memory.allows(self, client, needed - self._held_bytes):
                self.waits = True
                memory.wait(self, client)
                return
        self._held_bytes = needed
        memory.hold(self, client, needed)

    @property
    def is_much(self) -> bool:
        return self._pending_bytes > UNCOUNTED_BYTES

    def leave(self) -> None:
        """Release all memory, because the connection has ended."""
        self._connection.components.services.memory.requests.leave(self)
        self.has_read()

    # Answers.

    def unread(self, size: int) -> None:
        """Count `size` bytes of answers that the client does not read.

        If the answers of all clients exceed the budget, the oldest such client is disconnected.
        """
        memory = self._connection.components.services.memory.answers
        memory.hold(self, None, size)
        while memory.used_bytes > memory.limit_bytes and memory.oldest is not self:
            other = memory.oldest
            assert isinstance(other, ClientMemory)
            other.has_read()
            other._end("client_does_not_read")

    def has_read(self) -> None:
        """Release the memory of answers, because the client has read them."""
        self._connection.components.services.memory.answers.hold(self, None, 0)

    # Methods for the budget.

    @property
    def is_read(self) -> bool:
        return self._connection.is_read

    def memory_available(self) -> None:
        self.waits = False
        self._connection.go_on()

    def end_slow(self, held_bytes: int) -> None:
        self._end("slow_request_ended", held_bytes=held_bytes)

    def end_without_memory(self) -> None:
        """Disconnect the client, because there is no memory for its request."""
        self._end("no_memory_for_request")

    def _end(self, why: str, **facts: object) -> None:
        client = self._connection.reader.who
        self._connection.components.services.log_limited(why, client, client=client, **facts)
        self._connection.abort()


def no_memory() -> Refusal:
    """Return the refusal of a request that did not begin for lack of memory."""
    return Refusal(
        "no_memory",
        "the queue manager has no memory left for the request; nothing of it was done",
        "Try again in a moment, with fewer messages at once; see memory in `qmd status`.",
    )
