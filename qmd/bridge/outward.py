"""Queue ──► other end: take, publish, remove.

A message is removed after the other end has it.  A kill in between publishes it again; each kind
finds such a repetition as far as its broker allows (docs/bridge.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from qmd.bridge.ends import Published, Refused, Sink, Unreachable
from qmd.client.receiver import Taken
from qmd.control_protocol.messages import RetryProperties

if TYPE_CHECKING:
    from qmd.client import QueueManager

log = structlog.get_logger()

WAIT_S = 2.0
REASON_CHARACTERS_MAX = 400
#: Attempts for a refused message in a queue without a retry policy; then it is a dead letter.
ATTEMPTS = 5


class Outward:
    """The loop of an outward bridge."""

    def __init__(self, name: str, queue: str, batch: int, sink: Sink) -> None:
        self._name, self._queue, self._batch, self._sink = name, queue, batch, sink
        self.messages = self.refused = 0
        self.guarantee = sink.guarantee

    async def open(self, qm: QueueManager) -> None:
        """Open the other end.  Raises Unreachable, and ClientError without the queue."""
        await qm.show_queue(self._queue)
        await self._sink.open()

    async def turn(self, qm: QueueManager) -> int:
        """Publish the next messages; return their number.  Raises Unreachable, ClientError."""
        taken = await qm.take(self._queue, self._batch, timeout_s=WAIT_S)
        if not taken:
            return 0
        try:
            done = await self._sink.publish(taken.messages)
        except BaseException:
            await taken.give_back()
            raise
        if done.number == len(taken) and done.refused is None:
            await taken.remove()
        else:
            await self._settle(qm, taken, done)
        self.messages += done.number
        return done.number

    async def _settle(self, qm: QueueManager, taken: Taken, done: Published) -> None:
        """Remove published messages, count a failure of the refused one, return the others."""
        parts = taken.each()
        for part in parts[: done.number]:
            await part.remove()
        for index, part in enumerate(parts[done.number :], done.number):
            if done.refused is not None and index == done.refused.at:
                await self._failed(qm, part, done.refused)
            else:
                await part.give_back()
        if done.refused is None:
            raise Unreachable(f"it took {done.number} of {len(taken)} messages")

    async def _failed(self, qm: QueueManager, part: Taken, refused: Refused) -> None:
        reason = f"bridge {self._name}: {refused.reason}"[:REASON_CHARACTERS_MAX]
        self.refused += 1
        log.warning("bridge_refused", bridge=self._name, id=part.messages[0].id, reason=reason)
        has_policy = (await qm.show_queue(self._queue)).get("retry") is not None
        retry = None if has_policy else RetryProperties(attempts=ATTEMPTS, end="dead-letter")
        await part.give_back(failed=True, reason=reason, retry=retry)

    async def close(self) -> None:
        await self._sink.close()
