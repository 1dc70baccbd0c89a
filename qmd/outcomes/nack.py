"""Messages of peers that end here: no queue takes them.  [MS-MQQB] 3.1.5.8

Their sources are told why, and so are people: by the dead-letter queue, by the event log, and by
the log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import UserMessage
from protocol.identifiers import guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.core.disposition import consequences, reason_text
from qmd.events.recorder import Kind
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

REFUSED_WEIGHT = 8  # a refusal is worth as many duplicates: it is written to disk


class Nacks:
    """Ends what was refused, with the open batch."""

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
    ) -> None:
        """The message ends here; its sender and our dead-letter queue are told why.

        `for_others`: it was to be passed on; the source of a transactional one keeps it then.
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
        batch = self._services.storage.batch
        # A refusal is final: the same message again is neither kept nor answered a second time.
        # Only its sending queue manager, which may not have heard of it, is told again.
        known = self._known_messages.has(source, number)
        if not known:
            self._known_messages.add(connection, source, number)
            self._recorder.record(
                Kind.REFUSED,
                [packet],
                queue=target if queue is None else queue.name,
                peer=connection.peer,
                message_class=message_class,
                reason=reason,
            )
        else:
            self._recorder.provoked(Kind.DUPLICATE, source, number, peer=connection.peer)
        if result.dead_letter is not None and not known:
            self._dead_letters.dead_letter(
                packet,
                message_class,
                f"{reason} It came from {guid_text(source)} at {connection.host}.",
                wall_ms,
                target if queue is None else queue.name,
            )
        if result.acknowledgment is not None and not known:
            self._acknowledgments.to_application(message, result.acknowledgment, batch)
        if result.final_ack is not None:
            final_ack = self._acknowledgments.final_ack(
                message,
                result.final_ack,
                address=connection.host,
                is_beside=connection.session is not None and connection.session.remote_id == source,
            )
            if not known:
                self._recorder.record(
                    Kind.FINAL_ACK_SENT,
                    [packet],
                    queue=target if queue is None else queue.name,
                    peer=connection.peer,
                    message_class=result.final_ack,
                )
            # Not before the disk holds what was kept of the message.
            promise = Promise(connection, final_acks=(final_ack,))
            batch.when_durable(partial(self._promises.keep, promise))
        self._services.log_limited(
            "message_refused",
            connection.host,
            message_id=message_id_text(source, number),
            address=connection.host,
            reason=reason,
            code=MessageClass.name_of(message_class),
        )


def why_not(queue: LocalQueue, message: UserMessage) -> MessageClass | None:
    """The class of the refusal of a message that can never be in that queue, or None."""
    if message.security is not None and message.security.flags.body_encrypted:
        # [MS-MQQB] 3.1.5.8.3: we have no key that anybody could have encrypted it with.
        return MessageClass.NACK_BAD_ENCRYPTION
    if message.transaction is None:
        return MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE if queue.transactional else None
    return None if queue.transactional else MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
