"""Sequence renewal: sequences that cannot continue are detected, reported, and begun anew.

A data folder that was restored from a backup lacks the numbers that were given to messages after
the backup.  Its next sequences are new by their time stamps (`OutgoingIds.begin_sequence`).  The
peer may have received messages that the backup holds as unacknowledged: they are sent again, and an
order ack states the position of the peer.  An order ack of numbers or sequences that this folder
never gave shows that the folder is a backup:

    unacknowledged at the start ──► sent again ──┬── order ack as expected ──► continues
    (later messages wait)                        └── of unknown numbers ─────► in doubt

A sequence in doubt stays as it is, the operator has to decide, and new messages wait behind it.
docs/model.md gives the reasons.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import UserMessage
from protocol.message_class import MessageClass
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import outgoing as outgoing_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.connection import PeerConnection
    from qmd.queues.outgoing_ids import OutgoingIds
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.speakers import Speakers

log = structlog.get_logger()

ENDED_ROWS = 512  # in one commit
UNANSWERED_MIN = 2  # resends without an order ack over an open session, before it is reported

REASON = (
    "This computer was restored from a backup, or its sequence to {queue} was stuck: an"
    " operator has restarted the sequence. The message may have been delivered before. Look"
    " there by its message id"
    " or its contents (qmd why, on that computer); send it again only if it did not arrive."
)


class SequenceRenewal:
    """Finds outgoing queues in doubt, and begins their sequences anew."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        outgoing_ids: OutgoingIds,
        release: Callable[[], None],
        speakers: Speakers,
        undeliverable: Undeliverable,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._outgoing_ids = outgoing_ids
        self._release = release
        self._speakers = speakers
        self._undeliverable = undeliverable
        self._one_by_one = asyncio.Lock()

    def doubt(self, queue: OutgoingQueue, connection: PeerConnection, fact: str) -> None:
        """Stop a queue: the peer acknowledges messages that this data folder has not sent."""
        if not queue.doubt:
            queue.doubt = (
                f"{connection.host} {fact}: this computer was restored from a backup, or another"
                " machine has its identity. The waiting messages may have arrived there"
                " already, and are not accepted again; messages sent since the start of the"
                " daemon wait behind them."
            )
        self._services.log_limited(
            "sequence_in_doubt",
            queue.destination,
            destination=queue.destination,
            address=connection.host,
            messages=queue.sequence.outstanding,
            reason=queue.doubt,
            remedy=remedy(queue),
        )

    def is_ahead(self, connection: PeerConnection, message: UserMessage, sequence_id: int) -> bool:
        """Return whether an order ack of an unknown sequence casts doubt on known ones.

        It does on older sequences to that peer that no order ack has covered since the start of
        the daemon: the peer is ahead of them.
        """
        found = False
        fact = "acknowledges a later sequence than is known here"
        for link in connection.links:
            for queue in link.queues:
                sequence = queue.sequence
                if (
                    not queue.for_others
                    and not sequence.acknowledged
                    and sequence.in_flight
                    and sequence.sequence_id < sequence_id
                    and self._speakers.may_acknowledge(connection, message, queue)
                ):
                    self.doubt(queue, connection, fact)
                    found = True
        return found

    def proven(self, queue: OutgoingQueue) -> None:
        """Resume a queue after an expected order ack, once that is durable."""
        queue.doubt = ""
        sequence_id = queue.sequence.sequence_id

        def durable(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                return  # the storage failed, and the daemon stops
            if queue.sequence.sequence_id == sequence_id:
                queue.sequence.is_unproven = False
                queue.link.wake()

        known = self._services.storage.batch.run(
            partial(outgoing_rows.set_unproven, positions=[(0, queue.id)])
        )
        known.add_done_callback(durable)

    async def restart(self, queue: OutgoingQueue, *, send_again: bool) -> int:
        """Begin the sequence of a queue anew; return how many messages may have been delivered.

        Those become dead letters with that reason, in the order of their sequence.  With
        `send_again` they are sent again in the new sequence instead, and some may arrive twice.
        The old sequence holds until the last commit of the operation.  Raises Refusal.
        """
        if queue.for_others:
            raise Refusal(
                "restart_of_others",
                f"{queue.destination} contains messages of other computers, in their sequences",
                "Restart the sequence on the computer that the messages come from.",
            )
        async with self._one_by_one:
            queue.is_stopped = True
            try:
                return await self._restart(queue, send_again=send_again)
            finally:
                queue.is_stopped = False
                queue.link.wake()

    async def _restart(self, queue: OutgoingQueue, *, send_again: bool) -> int:
        sequence = queue.sequence
        storage = self._services.storage
        self._release()
        sequence_id, last = sequence.sequence_id, sequence.last_in_doubt
        in_doubt = max(0, min(sequence.outstanding, last - sequence.acknowledged))
        start, end = TRANSACTIONAL_FIRST, TRANSACTIONAL_FIRST | (sequence.base + last)
        ended = 0
        while not send_again:
            await storage.batch.barrier()  # after it, acknowledged messages are deleted
            page = partial(outgoing_rows.keys, outgoing_id=queue.id, rows_max=ENDED_ROWS)
            found = await storage.read(partial(page, from_lookup=start))
            keys = [key for key in found if key <= end]
            if sequence.sequence_id != sequence_id:
                return ended  # all messages were acknowledged meanwhile; a new sequence has begun
            ended += self._undeliverable.kill(
                queue,
                keys,
                MessageClass.NACK_DELETED,
                REASON.format(queue=queue.destination),
                kind=Kind.PURGED,
            )
            if len(keys) < ENDED_ROWS:
                break
            start = keys[-1] + 1
        # This is in the commit that ends the last message.
        await self._begin_anew(queue, sequence.acknowledged if send_again else last)
        count = in_doubt if send_again else ended
        log.info(
            "sequence_begun_anew",
            destination=queue.destination,
            in_doubt=count,
            sent_again=send_again,
            messages=sequence.outstanding,
        )
        return count

    def _begin_anew(self, queue: OutgoingQueue, after: int) -> asyncio.Future[None]:
        """Continue after the number `after` in a new sequence, once that is durable."""
        sequence = queue.sequence
        batch = self._services.storage.batch
        newest = TRANSACTIONAL_FIRST | (sequence.base + sequence.next_number - 1)
        sequence.begin_anew(self._outgoing_ids.next_sequence_id(), after)
        self._outgoing.know_sequence(queue)
        queue.begin_sequence = None
        queue.renumbered_to = newest
        queue.doubt = ""
        queue.stored_sequence_id = sequence.sequence_id
        batch.outgoing.set_sequence(
            queue.id, sequence.sequence_id, sequence.base, sequence.next_number
        )
        queue.new_pass("its sequence was restarted", transactional_only=True)
        return batch.run(partial(outgoing_rows.set_renumbered, outgoing_id=queue.id, key=newest))


def remedy(queue: OutgoingQueue) -> str:
    """Return the command that resumes a queue in doubt."""
    return (
        f"Restart the sequence: qmd outgoing restart '{queue.destination}'. Messages that may"
        " have been delivered become dead letters with that reason (with --send-again they are"
        " sent again); the others are sent."
    )


def unanswered(queue: OutgoingQueue) -> str:
    """Return a sentence if a peer with an open session sends no order acks, else ""."""
    sequence = queue.sequence
    if queue.link.connection is None or not sequence.in_flight:
        return ""
    if sequence.resend_count < UNANSWERED_MIN:
        return ""
    return (
        f"Transactional messages were sent again {sequence.resend_count} times over sessions with"
        f" {queue.link.peer}, which has sent no order ack for them. Check there whether they"
        " are rejected (qmd sequence list) and whether its disk or quota is full. If this"
        " computer was"
        f" restored from a backup: qmd outgoing restart '{queue.destination}'."
    )
