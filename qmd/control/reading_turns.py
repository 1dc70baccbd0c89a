"""Turns in which a client reads on in the middle of a large request.

libuv reads one connection up to 32 times in a row, megabytes, before it serves another one.  While
other connections are active, all large requests that are partly read share a tenth of the time, as
large packets of peers do.  docs/decisions/0034
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qmd.control_protocol.messages import Done, Reply
from qmd.runtime.bulk_turns import LARGE_BYTES, LARGE_REQUEST_BYTES, LargeExchange
from qmd.runtime.fair_scheduler import Class

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import FairScheduler


class ReadingTurns:
    """The turns of one client; a member of the scheduler."""

    def __init__(
        self, turns: FairScheduler, busy_time: Callable[[], float], read_on: Callable[[], None]
    ) -> None:
        """`read_on` is called when the client may be read again."""
        self._turns, self._busy_time = turns, busy_time
        self._read_on: Callable[[], None] | None = read_on
        self._began_s = 0.0
        self.waits = False  # it is not read until its turn
        self.large = LargeExchange()
        self._is_large = False  # the request that is partly read

    def begin(self, wanted_bytes: int) -> None:
        """Begin a read; `wanted_bytes` is the length of the request that is partly read."""
        self._began_s = self._busy_time() if wanted_bytes > LARGE_BYTES else 0.0
        self._is_large = wanted_bytes > LARGE_REQUEST_BYTES

    def end(self, *, is_complete: bool) -> None:
        """End the read; `is_complete`: it has completed a request."""
        if is_complete and self._is_large:
            self.large.note(self._turns.now)
        if not self._began_s:
            return
        self._turns.spend_reading(self._busy_time() - self._began_s)
        if not (is_complete or self.waits or self._turns.has_time_to_read()):
            self.waits = True
            self._turns.wait(self, Class.READER)

    def answered(self, reply: Reply, buffers: Sequence[bytes | bytearray]) -> int:
        """Note an answer; return its size in bytes."""
        size = sum(map(len, buffers))
        if size > LARGE_BYTES and isinstance(reply, Done) and isinstance(reply.result, list):
            messages = len(reply.result)
            if size > LARGE_BYTES * messages:
                self.large.note(self._turns.now, messages)
        return size

    def take_turn(self, now: float, packets_max: int) -> None:
        """Let the client be read again."""
        self.waits = False
        if self._read_on is not None:
            self._read_on()

    def leave(self) -> None:
        """Drop the reference to the client: a circle would keep it until the collector runs."""
        self._read_on = None
