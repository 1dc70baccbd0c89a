"""The base of the objects that serve the links of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cproton import lib

from qmd.doors.amqp import engine
from qmd.doors.amqp.conditions import TOO_LARGE, AmqpFault, condition_of

if TYPE_CHECKING:
    from qmd.doors.amqp.attach_frames import Resumed
    from qmd.doors.amqp.context import Context


class ServedLink:
    """An object that serves a link; `link` is the one of proton."""

    link: Any
    #: Proton has freed the link.  Its deliveries must not be touched any more: proton uses their
    #: memory for those of other links, so that an outcome would be that of another message.
    is_freed = False
    #: The tags of deliveries that a sender has resumed, and that are accepted.
    accepted_tags: Sequence[bytes] = ()

    async def begin(self, resumed: Resumed | None) -> None:
        """Prepare the link before it is opened; `resumed` if its client resumes it.

        Raises ClientError.
        """

    @property
    def is_settled(self) -> bool:
        """Whether no message of the link waits for its commit."""
        return True


class RequestLink(ServedLink):
    """A link over which a client sends requests to the door itself, each of them small."""

    def __init__(
        self, conversation: Context, link: Any, *, credit: int, request_bytes: int
    ) -> None:
        self._credit = credit
        self._request_bytes = request_bytes
        self._conversation = conversation
        self.link = link
        self._pointer = link._impl
        self._data = bytearray()

    def start(self) -> None:
        """Give the client its first credit."""
        lib.pn_link_flow(self._pointer, self._credit)

    def updated(self, delivery: Any) -> None:
        """Process a request, when it is complete."""
        if not lib.pn_delivery_readable(delivery):
            return
        self._data += engine.read(self._pointer, delivery)
        if len(self._data) > self._request_bytes:
            text = f"a request may have {self._request_bytes} bytes"
            self.link.condition = condition_of(AmqpFault(TOO_LARGE, text))
            self.link.close()
        elif not lib.pn_delivery_partial(delivery):
            data, self._data = bytes(self._data), bytearray()
            lib.pn_link_advance(self._pointer)
            self._conversation.spawn(self.process(delivery, data))

    async def process(self, delivery: Any, data: bytes) -> None:
        """Answer a complete request."""
        raise NotImplementedError

    def flow(self) -> None:
        """Ignore a flow of the client."""

    def take(self) -> None:
        """Do nothing: it has no queue."""
