"""Messages that clients have settled: gathered for few requests.

Accepted messages of a queue wait while two requests to remove some are under way, so that a client
that settles one after the other causes few requests and commits.  A delivery that the client has
not settled itself is settled after the commit of its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from cproton import lib

from qmd.client.errors import ClientError, QueueManagerError
from qmd.control_protocol import messages as frames
from qmd.doors.amqp import engine
from qmd.doors.amqp.conditions import condition_of, is_no_outcome

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context
    from qmd.doors.amqp.receiving import Consumer

FAILED = "its receiver over AMQP has failed"
REMOVING_MAX = 2  # requests for a queue: one at the daemon, and one on its way


class Settled(NamedTuple):
    """A message with an outcome; `delivery` is None if its client has settled it."""

    consumer: Consumer
    lookup_id: int
    delivery: Any


class _Accepted:
    """Accepted messages of one queue."""

    __slots__ = ("lookup_ids", "open")

    def __init__(self) -> None:
        self.lookup_ids: list[int] = []
        self.open: dict[int, Settled] = {}  # those that the client has not settled


class Removals:
    """The settled messages of one connection."""

    def __init__(self, conversation: Context) -> None:
        self._conversation = conversation
        self._accepted: dict[str, _Accepted] = {}
        self._removing: dict[str, int] = {}  # requests under way
        self._returned: dict[str, list[int]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        #: Whether the client has waited for the settlement of messages.
        self.are_awaited = False

    @property
    def is_busy(self) -> bool:
        """Whether an outcome waits for its commit."""
        return bool(self._accepted or self._under_way)

    async def barrier(self) -> None:
        """Wait until all outcomes that were given before are committed or refused."""
        self._start_removals(all_queues=True)
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._conversation.spawn(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # Outcomes.

    def remove(self, consumer: Consumer, lookup_id: int, delivery: Any) -> None:
        """Remove an accepted message."""
        accepted = self._accepted.get(consumer.queue)
        if accepted is None:
            accepted = self._accepted[consumer.queue] = _Accepted()
        accepted.lookup_ids.append(lookup_id)
        if engine.is_settled(delivery):
            engine.settle(delivery)
        else:
            accepted.open[lookup_id] = Settled(consumer, lookup_id, delivery)
            self.are_awaited = True

    def give_back(self, queue: str, lookup_ids: list[int]) -> None:
        """Return messages to their places."""
        self._returned.setdefault(queue, []).extend(lookup_ids)
        self._conversation.flush()

    def reject(self, consumer: Consumer, lookup_id: int, delivery: Any, reason: str) -> None:
        """Reject a message, with the reason; `delivery` is None if it was never sent."""
        one = Settled(consumer, lookup_id, None if delivery is None else _open(delivery))
        self._spawn(self._reject(one, reason))

    def fail(self, consumer: Consumer, lookup_id: int, delivery: Any) -> None:
        """Return a message to its place, and count an attempt at it."""
        self._spawn(self._fail(Settled(consumer, lookup_id, _open(delivery))))

    # Requests.

    def start(self) -> None:
        """Make the requests of this turn."""
        if self._returned:
            returned, self._returned = self._returned, {}
            for queue, lookup_ids in returned.items():
                self._spawn(self._give_back(queue, lookup_ids))
        if self._accepted:
            self._start_removals()

    def _start_removals(self, *, all_queues: bool = False) -> None:
        """Remove the accepted messages of queues of which few, or any number, are being removed."""
        removing = self._removing
        for queue in list(self._accepted):
            if all_queues or removing.get(queue, 0) < REMOVING_MAX:
                removing[queue] = removing.get(queue, 0) + 1
                self._spawn(self._remove_all(queue, self._accepted.pop(queue)))

    async def _remove_all(self, queue: str, accepted: _Accepted) -> None:
        try:
            await self._remove(queue, accepted.lookup_ids, accepted.open)
        finally:
            self._removing[queue] -= 1
            if not self._removing[queue]:
                del self._removing[queue]
        self.start()

    async def _remove(self, queue: str, lookup_ids: list[int], open: dict[int, Settled]) -> None:
        error = await self._ask(frames.Remove, queue, lookup_ids)
        if error is None:
            for lookup_id in lookup_ids if open else ():
                if (one := open.get(lookup_id)) is not None:
                    self._settle(one, engine.ACCEPTED)
            self._conversation.more_room()
        elif len(lookup_ids) > 1 and isinstance(error, QueueManagerError):
            # One of them cannot be removed, for example because the queue was purged; the client
            # must not get the others again.
            for lookup_id in lookup_ids:
                await self._remove(queue, [lookup_id], open)
        else:
            await self._refused(queue, lookup_ids, open, error)

    async def _reject(self, one: Settled, reason: str) -> None:
        queue, lookup_ids = one.consumer.queue, [one.lookup_id]
        error = await self._ask(frames.Reject, queue, lookup_ids, reason)
        if error is not None:
            error = await self._ask(frames.GiveBack, queue, lookup_ids, True, reason)
        await self._finish(one, engine.REJECTED, error)

    async def _fail(self, one: Settled) -> None:
        queue, lookup_ids = one.consumer.queue, [one.lookup_id]
        error = await self._ask(frames.GiveBack, queue, lookup_ids, True, FAILED)
        await self._finish(one, engine.MODIFIED, error)

    async def _finish(self, one: Settled, state: int, error: ClientError | None) -> None:
        if error is not None:
            lookup_id = one.lookup_id
            await self._refused(one.consumer.queue, [lookup_id], {lookup_id: one}, error)
        else:
            self._settle(one, state)
            self._conversation.more_room()

    async def _refused(
        self, queue: str, lookup_ids: list[int], open: dict[int, Settled], error: ClientError
    ) -> None:
        """Report an error; without an outcome the connection ends, and nothing is settled."""
        conversation = self._conversation
        if is_no_outcome(error):
            conversation.fail(error)
            return
        for lookup_id in lookup_ids:
            one = open.get(lookup_id)
            if one is not None and self._is_open(one):
                engine.reject(one.delivery, condition_of(error))
            await self._ask(frames.GiveBack, queue, [lookup_id])
        conversation.more_room()

    def _settle(self, one: Settled, state: int) -> None:
        if self._is_open(one):
            lib.pn_delivery_update(one.delivery, state)
            engine.settle(one.delivery)

    def _is_open(self, one: Settled) -> bool:
        return not (one.delivery is None or one.consumer.is_freed or self._conversation.is_over)

    async def _give_back(self, queue: str, lookup_ids: list[int]) -> None:
        await self._ask(frames.GiveBack, queue, lookup_ids)
        self._conversation.more_room()

    async def _ask(self, verb: Any, *arguments: Any) -> ClientError | None:
        try:
            await self._conversation.control.ask(verb, *arguments)
        except ClientError as error:
            return error
        return None


def _open(delivery: Any) -> Any:
    """Return a delivery that is to be settled later, or None if its client has settled it."""
    if engine.is_settled(delivery):
        engine.settle(delivery)
        return None
    return delivery
