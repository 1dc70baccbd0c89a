"""Browsing: copies of the messages of a queue, which stay there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cproton import lib

from qmd.client.errors import ClientError
from qmd.control_protocol import messages as frames
from qmd.doors.amqp import engine
from qmd.doors.amqp.conditions import condition_of
from qmd.doors.amqp.leaving import NOT_ENCODABLE, encoded
from qmd.doors.amqp.served import ServedLink

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context

LOOK_MAX = 64  # messages in one request
WAIT_S = 20.0  # of one request for messages that have not arrived yet


class Browser(ServedLink):
    """A link over which a client gets copies of the messages of a queue, in their order."""

    def __init__(self, conversation: Context, link: Any, queue: str, selector: str) -> None:
        self._conversation = conversation
        self.link = link  # of proton
        self.queue = queue
        self._selector = selector
        self._pointer = link._impl
        self._next = 0  # the first lookup id that the client has not got
        self._is_looking = False
        self._is_over = False
        self._changed = asyncio.Event()  # of the link

    def flow(self) -> None:
        """Act on new credit, or on a request to use it up."""
        self._changed.set()
        self.take()

    def take(self) -> None:
        """Send copies, as long as there is credit."""
        if not self._is_looking and not self._is_over and lib.pn_link_credit(self._pointer) > 0:
            self._is_looking = True
            self._conversation.spawn(self._look())

    async def _look(self) -> None:
        try:
            while not self._is_over and (credit := lib.pn_link_credit(self._pointer)) > 0:
                wait_s = 0.0 if lib.pn_link_get_drain(self._pointer) else WAIT_S
                found = await self._page(min(credit, LOOK_MAX), 0.0)
                if not found and not wait_s:
                    lib.pn_link_drained(self._pointer)
                elif not found:
                    found = await self._wait(wait_s)
                for each in found:
                    self._send(each)
                self._conversation.flush()
        except ClientError as error:
            self._failed(error)
        finally:
            self._is_looking = False

    async def _page(self, limit: int, wait_s: float) -> list[frames.StoredMessage]:
        answer = await self._conversation.control.ask(
            frames.Peek, self.queue, self._next, limit, wait_s, self._selector
        )
        return frames.stored_messages(answer)

    async def _wait(self, wait_s: float) -> list[frames.StoredMessage]:
        """Wait for further messages, until the client wants its credit to be used up."""
        look = asyncio.ensure_future(self._page(1, wait_s))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((look, changed), return_when=asyncio.FIRST_COMPLETED)
            self._changed.clear()
            return look.result() if look.done() else []
        finally:
            look.cancel()
            changed.cancel()

    def _send(self, stored: frames.StoredMessage) -> None:
        if self._is_over or lib.pn_link_credit(self._pointer) <= 0:
            return
        self._next = stored.lookup_id + 1
        try:
            data = encoded(stored, self._conversation.control.queue_manager)
        except NOT_ENCODABLE:
            return  # its receivers get the error
        delivery = engine.send(self._pointer, b"%d" % stored.lookup_id, data)
        engine.settle(delivery)  # a copy has no outcome

    def _failed(self, error: ClientError) -> None:
        if not self._is_over and not self._conversation.is_over:
            self._is_over = True
            self.link.condition = condition_of(error)
            self.link.close()
            self._conversation.flush()

    def updated(self, delivery: Any) -> None:
        """Ignore the state of a copy."""

    def close(self) -> None:
        """Send no more copies."""
        self._is_over = True
        self._changed.set()
