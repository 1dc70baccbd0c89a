"""Refusals: messages of peers that no queue takes. [MS-MQQB] 3.1.5.8

Their sources get the reason in acknowledgments; operators find it in the dead-letter queue, in the
event log and in the log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import UserMessage
from protocol.identifiers import guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.core.disposition import consequences, reason_text
from qmd.events.header import EventHeader, Kind
from qmd.outcomes.promises import Promise

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.promises import Promises
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services

REFUSAL_EVENTS = 3  # of a refused message: the refusal, its dead letter, and the end of that
REFUSED_WEIGHT = 8  # a refusal counts as this many duplicates, because it is written to disk


class _Refusal(NamedTuple):
    """A refused message: its origin, the queue that it was for, and the reason."""

    connection: PeerSession
    message: UserMessage
    packet: bytes
    message_class: MessageClass
    queue: str  # the name of our queue, or the destination as the packet describes it
    reason: str
    is_known: bool  # the same message was taken or refused before


class Nacks:
    """Refuses messages of peers; all consequences go to the open batch."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        dead_letters: DeadLetters,
        known_messages: KnownMessages,
        promises: Promises,
        recorder: Recorder,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._dead_letters = dead_letters
        self._known_messages = known_messages
        self._promises = promises
        self._recorder = recorder
        self._destinations = destinations
        self.count = 0

    def refuse(
        self,
        connection: PeerSession,
        message: UserMessage,
        packet: bytes,
        message_class: MessageClass,
        wall_ms: int,
        queue: LocalQueue | None = None,
        *,
        detail: str = "",
        for_others: bool = False,
        is_foreign: bool = False,
    ) -> None:
        """Refuse a message for good: record it, acknowledge that to its sender, keep a dead letter.

        `queue` is its queue if it has one here. `wall_ms` is the time by the wall clock. `detail`
        is added to the reason. `for_others`: the message was to be relayed; a transactional one
        stays at its source, so that no dead letter is kept here. `is_foreign`: the session may not
        bring messages of this source, whose history stays as it is.
        """
        source, number = message.user.source_queue_manager, message.user.message_number
        self.count += 1
        connection.count_useless(REFUSED_WEIGHT)
        result = consequences(
            message,
            message_class,
            at_source=False,
            insecure_nacks=self._services.settings.delivery.insecure_nacks,
        )
        if for_others and message.transaction is not None:
            result = result._replace(dead_letter=None)
        target = queue.format_name if queue is not None else self._destinations.describe(message)
        if queue is not None and message_class == MessageClass.NACK_QUEUE_EXCEED_QUOTA:
            detail = f"{queue.bytes} of {queue.quota_bytes} bytes are used, it needs {len(packet)}"
        reason = reason_text(message_class, queue=target, detail=detail)
        # A refusal is final: the same message is neither kept nor acknowledged to its application
        # again. Only the final ack is repeated, because the sending queue manager may have lost it.
        known = not is_foreign and self._known_messages.has(
            source, number, connection.origin_for(source)
        )
        name = target if queue is None else queue.name
        refusal = _Refusal(connection, message, packet, message_class, name, reason, known)
        if not is_foreign:
            self._known_messages.add_refused(connection, source, number, message_class)
        is_listed = self._record(refusal)
        if known or not is_listed:
            # Beyond the share of its host in the event log, a refusal is only counted.
            result = result._replace(dead_letter=None, acknowledgment=None)
        if result.dead_letter is not None:
            self._keep_dead_letter(refusal, wall_ms)
        if result.acknowledgment is not None:
            batch = self._services.storage.batch
            self._acknowledgments.to_application(message, result.acknowledgment, batch, connection)
        if result.final_ack is not None:
            self._send_final_ack(refusal, result.final_ack, is_listed=is_listed)
        self._services.log_limited(
            "message_refused",
            connection.host,
            message_id=message_id_text(source, number),
            address=connection.host,
            reason=reason,
            code=MessageClass.name_of(message_class),
        )

    def _record(self, refusal: _Refusal) -> bool:
        """Record that the message was refused; a known one is recorded as duplicate.

        Return whether the event log lists it.
        """
        connection, user = refusal.connection, refusal.message.user
        source, number = user.source_queue_manager, user.message_number
        if refusal.is_known:
            self._recorder.provoked(
                EventHeader(Kind.DUPLICATE, peer=connection.peer),
                source,
                number,
                host=connection.origin,
            )
            return True
        header = self._recorder.shared(
            connection.origin,
            EventHeader(
                Kind.REFUSED,
                queue=refusal.queue,
                peer=connection.peer,
                message_class=refusal.message_class,
                reason=refusal.reason,
            ),
            source,
            events=REFUSAL_EVENTS,
        )
        if header is None:
            self._services.storage.batch.write_soon()
            return False
        self._recorder.record(header, [refusal.packet])
        return True

    def _keep_dead_letter(self, refusal: _Refusal, wall_ms: int) -> None:
        connection, packet = refusal.connection, refusal.packet
        source, ahead = refusal.message.user.source_queue_manager, connection.ahead.part
        part_id = None if ahead is None else ahead.id_for(packet)
        is_kept = self._dead_letters.dead_letter(
            packet,
            refusal.message_class,
            f"{refusal.reason} It came from {guid_text(source)} at {connection.host}.",
            wall_ms,
            refusal.queue,
            part_id,
            host=connection.origin,
        )
        if ahead is not None and part_id is not None and is_kept:
            ahead.use(self._services.storage.batch)

    def _send_final_ack(self, refusal: _Refusal, message_class: int, *, is_listed: bool) -> None:
        """Send a final ack over the connection of the message, after the commit of its refusal."""
        connection, message = refusal.connection, refusal.message
        session = connection.session
        final_ack = self._acknowledgments.final_ack(
            message,
            message_class,
            address=connection.host,
            is_beside=session is not None
            and session.remote_id == message.user.source_queue_manager,
        )
        if is_listed and not refusal.is_known:
            self._recorder.record(
                EventHeader(
                    Kind.FINAL_ACK_SENT,
                    queue=refusal.queue,
                    peer=connection.peer,
                    message_class=message_class,
                ),
                [refusal.packet],
            )
        # After the commit, when the disk holds the dead letter.
        promise = Promise(connection, final_acks=(final_ack,))
        batch = self._services.storage.batch
        batch.when_durable(partial(self._promises.keep, promise))


def why_not(queue: LocalQueue, message: UserMessage) -> MessageClass | None:
    """Return the class of the refusal of a message that the queue can never take, or None."""
    if message.transaction is None:
        return MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE if queue.transactional else None
    return None if queue.transactional else MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
