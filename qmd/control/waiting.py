"""Requests that wait for messages: their clients may lose the right to them meanwhile.

A right is checked when a request begins.  Some wait without end: when something has come, and the
rights have changed since, they are checked again, and the messages return to their queue.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from qmd.control import verb_rights
from qmd.control_protocol.locks import GIVE_BACK, TakeLocked
from qmd.control_protocol.messages import StoredMessage, Take, TakeChosen
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.server import ControlConnection
    from qmd.control_protocol.messages import Request
    from qmd.queues.local_queue import LocalQueue

T = TypeVar("T")
WHY = "its reader has lost the right to receive it"


class Waiting(NamedTuple):
    """A request that may wait; `generation` is that of the rights when it began."""

    connection: ControlConnection
    request: Any
    queue: LocalQueue | None
    generation: int

    def answer(self, messages: list[StoredMessage]) -> None:
        """Answer with messages, or refuse them."""
        number, refusal = self.request.number, self._refusal(messages)
        if refusal is None:
            self.connection.done(number, messages)
        else:
            # Not at once: the queue is serving its readers.
            self.connection.look(number, self._withdrawn(messages, refusal))

    async def judged(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work of the request.  Raises Refusal."""
        result = await work
        refusal = self._refusal(result)
        return result if refusal is None else await self._withdrawn(result, refusal)

    def _refusal(self, result: Any) -> Refusal | None:
        """Return why the client may not have a result any more, or None."""
        components = self.connection.components
        if not result or components.access_register.generation == self.generation:
            return None
        try:
            verb_rights.require(components, self.connection.rights, self.request)
        except Refusal as refusal:
            return refusal
        return None

    async def _withdrawn(self, messages: Any, refusal: Refusal) -> NoReturn:
        """Return the messages of a result to their queue, and raise the refusal."""
        components, request, queue = self.connection.components, self.request, self.queue
        if queue is None:
            raise refusal
        if isinstance(request, TakeLocked):
            ids = [each.lookup_id for each in messages]
            components.locks.settle(
                request.lock, queue, ids, how=GIVE_BACK, reason=WHY, token=b"", done=_ignore
            )
        elif isinstance(request, Take | TakeChosen) and request.transaction:
            # Its messages return when it is aborted; it cannot commit.
            components.transactions.doom(request.transaction, self.connection, refusal.text)
        elif isinstance(request, Take | TakeChosen):
            ids = [each.lookup_id for each in messages]
            components.message_receiver.give_back(self.connection.reader, queue, ids, WHY)
        raise refusal


def waiting(
    connection: ControlConnection, request: Request, queue: LocalQueue | None = None
) -> Waiting:
    """Return a request that begins to wait, for messages of a queue if one is named."""
    return Waiting(connection, request, queue, connection.components.access_register.generation)


def _ignore(count: int) -> None:
    """Nothing waits for it."""
