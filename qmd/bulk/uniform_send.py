"""Requests with many messages: they are mostly alike, and share the work of checks and packets.

    alike   one check for each shape ──► packets from its template ──► one batch
    others  `MessageSender.send`

All of it is one turn of the event loop.  Few messages are sent by `MessageSender` at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from qmd.bulk.directory_answers import DirectoryAnswers
from qmd.bulk.message_shapes import NotUniform
from qmd.bulk.prepared_publication import Shapes
from qmd.properties.trace import trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.bulk.prepared_publication import PreparedPublication
    from qmd.control_protocol.messages import NewMessage
    from qmd.directory.resolver import Resolver
    from qmd.naming.destinations import Destinations
    from qmd.operations.send import MessageSender
    from qmd.runtime.services import Services

ALIKE_MIN = 8  # fewer messages are sent one by one: a shape costs as much as some messages


class UniformSender:
    """Sender of the messages of one request, all of them or none."""

    def __init__(
        self,
        services: Services,
        message_sender: MessageSender,
        resolver: Resolver,
        destinations: Destinations,
        new_publication: Callable[[DirectoryAnswers, str], PreparedPublication],
    ) -> None:
        """`new_publication(answers, transaction)` returns an empty one."""
        self._services = services
        self._message_sender = message_sender
        self._resolver = resolver
        self._destinations = destinations
        self._new_publication = new_publication
        self._shapes = Shapes()

    def send(
        self,
        messages: list[NewMessage],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str = "",
    ) -> None:
        """Send messages as `MessageSender.send`.  Raises Refusal, MustAsk."""
        if len(messages) < ALIKE_MIN:
            self._message_sender.send(messages, token, done, owner)
            return
        try:
            publication = self._prepared(messages)
        except NotUniform:
            self._message_sender.send(messages, token, done, owner)
            return
        numbers, batch = publication.numbers, self._services.storage.batch
        # The answer and the outcome come last: without memory for the packets there is neither.
        publication.write(partial(done, self._message_sender.ids(numbers)))
        if token:
            result = msgspec.msgpack.encode(numbers)
            batch.record_outcome(token, result, self._services.clock.now_s)

    def send_for_links(
        self, messages: list[NewMessage], done: Callable[[list[object]], None], owner: str
    ) -> None:
        """Send messages of a door as `send`, without a token.

        `done` gets the ids of the messages only if they were sent by `MessageSender`; otherwise it
        gets an empty list.
        """
        try:
            publication = self._prepared(messages)
        except NotUniform:
            self._message_sender.send(messages, b"", done, owner)
            return
        publication.write(partial(done, []))

    def _prepared(self, messages: list[NewMessage]) -> PreparedPublication:
        """Return a publication that can be written in this turn.  Raises NotUniform, Refusal,
        MustAsk."""
        if any(
            [
                new.signature
                or new.privacy_level
                or new.encryption_key
                or (new.extension and trace_of(new.extension))
                for new in messages
            ]
        ):
            raise NotUniform  # the events or packets of others lack these properties
        if not self._services.ids.suffice(len(messages)):
            raise NotUniform  # `MessageSender` refuses them
        publication = self._new_publication(
            DirectoryAnswers(self._resolver, self._destinations, self._destinations.answers), ""
        )
        publication.use_shapes(self._shapes)
        publication.prepare_now([msgspec.structs.astuple(each) for each in messages])
        publication.check()
        return publication
