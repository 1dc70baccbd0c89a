"""Dead letters and journals: the queues that keep messages after their end.

One commit takes the message off its queue and puts it, with the reason, into the other. Senders
that asked for an acknowledgment get one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import parse_user_message, patch_class
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.disposition import SYSTEM_CLASSES, EndsAtDestination, reason_text
from qmd.core.packet_fields import (
    has_admin_queue,
    is_transactional,
    message_class_of,
    source_of,
    which_may_want_word,
)
from qmd.events.header import EventHeader, Kind
from qmd.outcomes.journal_copies import JournalCopies
from qmd.outcomes.planned_acknowledgments import IN_MEMORY_MAX
from qmd.outcomes.prepared_ends import PreparedEnd
from qmd.outcomes.system_queues import SystemQueues
from qmd.outcomes.unreceived_ends import UnreceivedEnds
from qmd.queues.local_queue import LocalQueue
from qmd.queues.local_rows import LocalRows
from qmd.queues.put import put, put_all
from qmd.queues.quotas import more_for
from storage.tables import queues as queue_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK, TRANSACTIONAL_LEVEL
from storage.tables.pages import Totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.outcomes.acknowledgment_columns import AcknowledgmentColumns
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.answer_ways import AnswerWays
    from qmd.outcomes.refused_letters import RefusedLetters
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

#: The reason in the event of a message that is not kept as a dead letter.
UNWANTED = "its application did not ask for a dead letter"


class DeadLetters:
    """Ends messages: dead letters, journal copies and acknowledgments."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        own_dead_letters: NamedDeadLetterQueues,
        queues: LocalQueues,
        recorder: Recorder,
        refused_letters: RefusedLetters,
        answer_ways: AnswerWays,
    ) -> None:
        self._services = services
        self._refused_letters = refused_letters
        self._ways = answer_ways
        self._acknowledgments = acknowledgments
        self._own_dead_letters = own_dead_letters
        self._queues = queues
        self._recorder = recorder
        self.unreceived = UnreceivedEnds(services, recorder, self.end)
        #: Number of dead letters since the start, by their message class.
        self.counts: Counter[int] = Counter()
        self._journal_copies = JournalCopies(services, recorder)
        refused_letters.connect(self._end_letters)

    def connect(self, new_columns: Callable[[int], AcknowledgmentColumns]) -> None:
        """Set the function that begins the acknowledgments of many messages with one class."""
        self._new_columns = new_columns

    def prepare(self, message_class: int) -> PreparedEnd:
        """Begin to prepare one end of messages, for `received` or `end`."""
        return PreparedEnd(
            message_class, self._ends(message_class), self._new_columns(message_class)
        )

    def _ends(self, message_class: int) -> EndsAtDestination:
        return EndsAtDestination(
            message_class,
            own_id=self._services.id,
            insecure_nacks=self._services.settings.delivery.insecure_nacks,
        )

    def dead_letter_queue(self, packet: bytes) -> LocalQueue:
        """Return the dead-letter queue of a message: the one that its application has named, or
        one of the system's.

        Transactional messages have a system queue of their own. [MS-MQDMPR] 3.1.1.1
        """
        own = self._own_dead_letters.queue_of(packet)
        if own is not None:
            return own
        if is_transactional(packet):
            return self._queues.by_id[queue_rows.TRANSACTIONAL_DEAD_LETTER_ID]
        return self._queues.by_id[queue_rows.DEAD_LETTER_ID]

    def system_queues(self) -> SystemQueues:
        """Return the system's dead-letter queues, for a unit of work."""
        plain, transactional = (
            self._queues.by_id[id_]
            for id_ in (queue_rows.DEAD_LETTER_ID, queue_rows.TRANSACTIONAL_DEAD_LETTER_ID)
        )
        return SystemQueues(
            (plain.id, plain.name),
            (transactional.id, transactional.name),
            self._own_dead_letters.has_any,
            frozenset(self._queues.being_deleted),
        )

    def deliver(self, queue_id: int, message: StoredMessage) -> None:
        """Make a dead letter ready that a unit of work has stored, after its commit."""
        self.counts[message_class_of(message.packet)] += 1
        queue = self._queues.by_id.get(queue_id)
        if queue is not None:  # or it was deleted meanwhile
            queue.count_in(1, len(message.packet))
            queue.deliver([message])

    def dead_letter(
        self,
        packet: bytes,
        message_class: int,
        reason: str,
        wall_ms: int,
        queue: str,
        part_id: int | None = None,
        *,
        host: str = "",
    ) -> bool:
        """Keep a message that ends in `queue` as a dead letter, with the open batch.

        Returns whether there was room for it. `wall_ms` is the time by the wall clock. `part_id` is
        the stored part that ends the packet: that of the row which the same batch deletes, or one
        that was stored ahead. `host` is the host that sent the message,
        and for which dead letters have a budget; "": an application here has sent it.
        """
        if host and (why_not := self._refused_letters.make_room(host, len(packet))):
            self._recorder.record(
                EventHeader(
                    Kind.DISCARDED, queue=queue, message_class=message_class, reason=why_not
                ),
                [packet],
            )
            return False
        self.counts[message_class] += 1
        to_queue = self.dead_letter_queue(packet)
        dead = patch_class(packet, message_class)
        place = self._keep(to_queue, dead, reason, wall_ms, part_id)
        if host:
            self._refused_letters.keep(host, to_queue.id << LOOKUP_BITS | place, len(packet))
        self._recorder.record(
            EventHeader(
                Kind.DEAD_LETTERED,
                queue=queue,
                to_queue=to_queue.name,
                message_class=message_class,
                reason=reason,
            ),
            [packet],
            places=[place],
        )
        return True

    def journal(self, packet: bytes) -> None:
        """Copy a delivered message to the machine journal with the open batch, if it has room."""
        queue = self._queues.by_id[queue_rows.JOURNAL_ID]
        if not queue.has_room(len(packet)):
            self._services.log_limited(
                "journal_full",
                "journal",
                bytes=queue.bytes,
                quota_bytes=queue.quota_bytes,
                remedy=more_for(queue),
            )
            self._recorder.record(
                EventHeader(
                    Kind.JOURNAL_FULL,
                    to_queue=queue.name,
                    reason=f"{queue.bytes} of {queue.quota_bytes} bytes are used."
                    f" {more_for(queue)}",
                ),
                [packet],
                lazily=True,
            )
            return
        place = self._keep(queue, packet, None, int(self._services.environment.time() * 1000))
        self._recorder.record(
            EventHeader(Kind.JOURNALED, to_queue=queue.name), [packet], places=[place]
        )

    def _keep(
        self,
        queue: LocalQueue,
        packet: bytes,
        reason: str | None,
        wall_ms: int,
        part_id: int | None = None,
    ) -> int:
        """Add a message to a local queue with the open batch; return its lookup id."""
        stored = StoredMessage(
            self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, reason
        )
        batch = self._services.storage.batch
        put(queue, stored, batch, part_id=part_id)
        batch.when_durable(partial(queue.deliver, [stored]))
        return stored.lookup_id

    def _keep_all(
        self, to_queue: LocalQueue, packets: Sequence[bytes], header: EventHeader, wall_ms: int
    ) -> None:
        """Keep messages as dead letters with the open batch; `header` is that of their event."""
        batch, count = self._services.storage.batch, len(packets)
        class_, reason = header.message_class, header.reason
        places = self._services.ids.next_lookup_ids(TRANSACTIONAL_LEVEL, count)
        if count > IN_MEMORY_MAX:
            size = sum(map(len, packets))
            rows = LocalRows(
                to_queue.id,
                places,
                packets,
                wall_ms,
                [None] * count,
                reason,
                partial(patch_class, message_class=class_),
            )
            to_queue.count_in(count, size)
            batch.insert_messages(rows, size)
            batch.when_durable(partial(to_queue.deliver_from_disk, places))
        else:
            dead = [
                StoredMessage(place, wall_ms, patch_class(packet, class_), reason)
                for place, packet in zip(places, packets, strict=True)
            ]
            put_all(to_queue, dead, batch)
            batch.when_durable(partial(to_queue.deliver, dead))
        self.counts[class_] += count
        self._recorder.record(header._replace(to_queue=to_queue.name), packets, places=places)

    def received(
        self,
        queue: LocalQueue,
        messages: Sequence[StoredMessage],
        prepared: PreparedEnd | None = None,
    ) -> None:
        """Add the consequences of received messages to the open batch: journal, acknowledgments.

        `prepared` has those of some of the messages, or of all.
        """
        if queue.holds_ended:
            return  # its messages have ended before
        if queue.payer.journal:
            self._journal_copies.keep(queue, messages)
        if prepared is not None and prepared.is_for([each.lookup_id for each in messages]):
            self._follow_prepared(queue, prepared, MessageClass.ACK_RECEIVE, "")
            messages = [each for each in messages if each.lookup_id not in prepared.lookup_ids]
        packets = [message.packet for message in messages]
        if wanting := [packets[index] for index in which_may_want_word(packets)]:
            self._follow(queue, wanting, MessageClass.ACK_RECEIVE, "")

    def end(
        self,
        queue: LocalQueue,
        messages: Sequence[tuple[int, bytes]],
        message_class: MessageClass,
        *,
        detail: str = "",
        prepared: PreparedEnd | None = None,
    ) -> None:
        """Add the consequences of messages that leave `queue` unreceived to the open batch.

        `messages` are pairs (lookup id, packet); the caller deletes their rows. `detail` is added
        to the reason. `prepared` has the acknowledgments of some of the messages, or of all.
        """
        packets = [packet for _, packet in messages]
        reason = reason_text(message_class, queue=queue.format_name, detail=detail)
        self._recorder.record(
            EventHeader(
                _KINDS[message_class], queue=queue.name, message_class=message_class, reason=reason
            ),
            packets,
            places=[lookup_id for lookup_id, _ in messages],
        )
        if queue.holds_ended:
            return
        if prepared is not None and prepared.is_for([lookup_id for lookup_id, _ in messages]):
            self._follow_prepared(queue, prepared, message_class, reason)
            known = prepared.lookup_ids
            packets = [packet for lookup_id, packet in messages if lookup_id not in known]
        self._follow(queue, packets, message_class, reason)

    def replaced(self, queue: LocalQueue, packets: Sequence[bytes]) -> None:
        """Add the consequences of messages that an operator has replaced to the open batch.

        Their senders get acknowledgments of their removal. They become no dead letters.
        """
        if not queue.holds_ended:
            wanting = [packets[index] for index in which_may_want_word(packets)]
            self._follow(queue, wanting, MessageClass.NACK_QUEUE_PURGED, "", keep=False)

    def _follow_prepared(
        self, queue: LocalQueue, prepared: PreparedEnd, message_class: MessageClass, reason: str
    ) -> None:
        prepared.write()
        kept: dict[LocalQueue, list[bytes]] = {}
        for packet in prepared.dead_letters:
            kept.setdefault(self.dead_letter_queue(packet), []).append(packet)
        self._keep_dead_letters(queue, kept, message_class, reason)
        self._follow(queue, prepared.others, message_class, reason, acknowledge=False)

    def _follow(
        self,
        queue: LocalQueue,
        packets: Sequence[bytes],
        message_class: MessageClass,
        reason: str,
        *,
        keep: bool = True,
        acknowledge: bool = True,
    ) -> None:
        """Acknowledge messages that ended; keep them as dead letters or in the journal."""
        ends = self._ends(message_class)
        batch = self._services.storage.batch
        wall_ms = int(self._services.environment.time() * 1000)
        for_final_ack: list[bytes] = []
        discarded: list[bytes] = []
        kept: dict[LocalQueue, list[bytes]] = {}  # dead letters, by the queue that keeps them
        for packet in packets:
            is_local = source_of(packet) == self._services.id
            if (
                message_class == MessageClass.ACK_RECEIVE
                and not is_local
                and not has_admin_queue(packet)
            ):
                # The frequent case: only a final ack can follow.
                if message_class_of(packet) not in SYSTEM_CLASSES:
                    for_final_ack.append(packet)
                continue
            result = ends.of(packet)
            if result.acknowledgment is not None and acknowledge:
                self._acknowledgments.to_application(
                    parse_user_message(packet), result.acknowledgment, batch
                )
            if result.final_ack is not None:
                for_final_ack.append(packet)
            if result.journal:
                self.journal(packet)
            if not keep:
                continue
            if result.dead_letter is not None:
                # An operator or an application causes the other ends, not the sender.
                by_sender = message_class == MessageClass.NACK_RECEIVE_TIMEOUT and not is_local
                host = self._ways.asked(source_of(packet), None).by if by_sender else ""
                if host:
                    self.dead_letter(packet, message_class, reason, wall_ms, queue.name, host=host)
                else:
                    kept.setdefault(self.dead_letter_queue(packet), []).append(packet)
            elif result.final_ack is None and message_class != MessageClass.ACK_RECEIVE:
                discarded.append(packet)
        self._keep_dead_letters(queue, kept, message_class, reason)
        if for_final_ack:
            self._acknowledgments.send_final_acks(for_final_ack, message_class, batch)
        if discarded:
            header = EventHeader(
                Kind.DISCARDED, queue=queue.name, message_class=message_class, reason=reason
            )
            self._recorder.record(header, discarded)

    def _keep_dead_letters(
        self,
        queue: LocalQueue,
        kept: Mapping[LocalQueue, Sequence[bytes]],
        message_class: int,
        reason: str,
    ) -> None:
        """Keep messages that ended in `queue` as dead letters, by the queues that keep them."""
        header = EventHeader(
            Kind.DEAD_LETTERED, queue=queue.name, message_class=message_class, reason=reason
        )
        wall_ms = int(self._services.environment.time() * 1000)
        for to_queue, dead in kept.items():
            self._keep_all(to_queue, dead, header, wall_ms)

    def expire_received(self, queue: LocalQueue) -> None:
        """End the messages in `queue.expired`, which were not received in time.

        [MS-MQDMPR] 3.1.7.2.7
        """
        messages, queue.expired = queue.expired, []
        self.end_unreceived(
            queue, [message.lookup_id for message in messages], MessageClass.NACK_RECEIVE_TIMEOUT
        )

    def _end_letters(self, keys: Sequence[int], reason: str) -> None:
        """End dead letters of messages of other hosts, by the keys of their rows."""
        by_queue: dict[int, list[int]] = {}
        for key in keys:
            by_queue.setdefault(key >> LOOKUP_BITS, []).append(key & LOOKUP_MASK)
        for queue_id, lookup_ids in by_queue.items():
            queue = self._queues.by_id.get(queue_id)
            if queue is not None:
                ends = MessageClass.NACK_QUEUE_PURGED
                self.end_unreceived(queue, lookup_ids, ends, detail=reason)

    def end_unreceived(
        self,
        queue: LocalQueue,
        lookup_ids: list[int],
        message_class: MessageClass,
        *,
        detail: str = "",
    ) -> asyncio.Future[Totals]:
        """End messages of a queue that were not received; acknowledge that to their senders.

        Taken messages stay. `detail` is added to the reason. The result, after the commit, is the
        number and bytes of the ended messages.
        """
        return self.unreceived.end(queue, lookup_ids, message_class, detail)

    @property
    def under_way(self) -> int:
        """The number of ends of unreceived messages with a commit under way."""
        return self.unreceived.under_way


_KINDS = {
    MessageClass.NACK_RECEIVE_TIMEOUT: Kind.EXPIRED,
    MessageClass.NACK_QUEUE_PURGED: Kind.PURGED,
    MessageClass.NACK_QUEUE_DELETED: Kind.QUEUE_DELETED,
    MessageClass.NACK_RECEIVE_REJECTED: Kind.REJECTED,
    MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE: Kind.REFUSED,
}
