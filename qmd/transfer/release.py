"""Release: messages that a peer has acknowledged leave the disk.

No caller waits for a release, so the rows are deleted with the next commit, or a moment later.
Messages that a crash brings back are sent again, and the peer rejects them as duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from protocol import FinalAckBody, OrderAckBody, UserMessage
from qmd.core.disposition import reason_text
from qmd.core.packet_fields import message_number, source_of, wants_journal
from qmd.core.sequence import ImpossibleOrderAck
from qmd.events.header import EventHeader, Kind
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.transmission import TRANSACTIONAL_FIRST, Handed, InFlight
from storage.tables import awaiting as awaiting_rows
from storage.tables import events as event_rows
from storage.tables import outgoing as outgoing_rows
from storage.tables.awaiting import Kept
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.pages import Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.connection import PeerConnection
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.relay_store import RelayStore
    from qmd.transfer.relayed_acks import RelayedAcks
    from qmd.transfer.sequence_renewal import SequenceRenewal
    from qmd.transfer.speakers import Speakers

RELEASE_DELAY_S = 0.02


class OutgoingRelease:
    """Deletes acknowledged messages of outgoing queues."""

    def __init__(
        self,
        services: Services,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        relay_store: RelayStore,
        relayed_acks: RelayedAcks,
        speakers: Speakers,
        undeliverable: Undeliverable,
    ) -> None:
        self._services = services
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._recorder = recorder
        self._relay_store = relay_store
        self._relayed_acks = relayed_acks
        self._speakers = speakers
        self._undeliverable = undeliverable
        # Messages that are acknowledged, and still on disk.
        self._releasable: dict[OutgoingQueue, list[InFlight]] = {}
        self._releasable_keys: list[tuple[OutgoingQueue, int]] = []
        self._releasable_plain: dict[tuple[OutgoingQueue, bytes], Handed] = {}  # by source
        self._release_timer: asyncio.TimerHandle | None = None
        self._patient_batch = 0  # the number of the batch with deletions that wait for others
        self._when_released: list[Callable[[], None]] = []

    def connect(self, confirmations: Confirmations, sequence_renewal: SequenceRenewal) -> None:
        """Name the collaborators that are made after it."""
        self._confirmations = confirmations
        self._sequence_renewal = sequence_renewal

    def session_acknowledged(self, tokens: list[tuple[OutgoingQueue, int]]) -> None:
        """End messages that a session ack covers and that are not transactional.

        [MS-MQQB] 3.1.5.5.2 to 3.1.5.5.4
        """
        has_copies = False
        for queue, given in groupby(tokens, itemgetter(0)):
            stored: list[bytes] = []
            for token in given:
                packet = queue.take_acknowledged(token[1])
                if packet is not None:
                    stored.append(packet)
                    self._releasable_keys.append(token)
                else:
                    packet = queue.forget_express(token[1])
                    if packet is None:
                        continue  # it expired while it was in flight, and its end is recorded
                    self._record_acknowledged(
                        queue, source_of(packet), [message_number(packet)], [len(packet)]
                    )
                if wants_journal(packet) and not queue.for_others:
                    self._dead_letters.journal(packet)
                    has_copies = True
            if stored:
                self._count_out(queue, stored)
        self._release_soon()
        if has_copies:
            self.release()  # in one commit with the copies, or a crash would cause second copies

    def _count_out(self, queue: OutgoingQueue, packets: list[bytes]) -> None:
        """Count stored messages of a queue out; their rows leave with a later batch."""
        sizes = list(map(len, packets))
        queue.others -= len(packets)
        queue.shrink(sum(sizes))
        groups = self._releasable_plain
        if not queue.for_others:
            group = groups.setdefault((queue, self._services.id), Handed())
            group.numbers += map(message_number, packets)
            group.sizes += sizes
            return
        for packet, size in zip(packets, sizes, strict=True):
            self._relay_store.gone(queue, packet)
            group = groups.setdefault((queue, source_of(packet)), Handed())
            group.numbers.append(message_number(packet))
            group.sizes.append(size)

    def _record_acknowledged(
        self, queue: OutgoingQueue, source: bytes, numbers: list[int], sizes: list[int]
    ) -> None:
        """Record that the peer has taken over plain messages.

        Their rows are deleted, or leave with the open batch.
        """
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                EventHeader(
                    Kind.SESSION_ACKNOWLEDGED, queue=queue.destination, peer=queue.link.peer
                ),
                source,
            )
            event.numbers += numbers
            event.sizes += sizes
            if queue.for_others:
                recorder.renew(Kind.RELAYED)  # they may come again, even with this commit

    def _gone(self, messages: list[tuple[OutgoingQueue, int]]) -> None:
        """Remove messages from their windows after the commit that deletes them."""
        for queue, key in messages:
            queue.window.remove(key)

    def order_acknowledged(
        self, connection: PeerConnection, message: UserMessage, body: OrderAckBody, now: float
    ) -> None:
        """Apply an order ack: the destination holds all messages up to its position.

        [MS-MQQB] 3.1.5.6
        """
        queue = self._outgoing.queue_of_sequence(body.sequence_id)
        if self._relayed_acks.pass_back(connection, message, body, queue):
            return
        if queue is None or not self._speakers.may_acknowledge(connection, message, queue):
            connection.count_useless()
            renewal = self._sequence_renewal
            if queue is None and renewal.is_ahead(connection, message, body.sequence_id):
                return
            self._services.log_limited(
                "order_ack_for_nothing", connection.host, address=connection.host
            )
            return
        queue.link.add_acknowledger(message.user.source_queue_manager)
        self.acknowledged(connection, queue, body.sequence_id, body.sequence_number, now)

    def acknowledged(
        self,
        connection: PeerConnection,
        queue: OutgoingQueue,
        sequence_id: int,
        number: int,
        now: float,
    ) -> None:
        """Release the messages of a sequence up to `number`: the destination holds them."""
        if queue.sequence.may_answer_earlier_run(sequence_id, number):
            return
        try:
            released = queue.sequence.acknowledge(sequence_id, number, now)
        except ImpossibleOrderAck as error:
            connection.count_useless()
            self._services.log_limited(
                "impossible_order_ack", connection.host, address=connection.host, reason=str(error)
            )
            if queue.sequence.is_unproven:
                fact = "has messages of this sequence that are not known here"
                self._sequence_renewal.doubt(queue, connection, fact)
            return
        if sequence_id > queue.sequence.sequence_id:
            fact = "acknowledges a later sequence than is known here"
            self._sequence_renewal.doubt(queue, connection, fact)
        self._outgoing.arm_resend(queue)
        if sequence_id == queue.sequence.sequence_id and queue.sequence.is_unproven:
            self._sequence_renewal.proven(queue)
        if released is None:
            return
        arrived = self._confirmations.of_range(
            queue, TRANSACTIONAL_FIRST, TRANSACTIONAL_FIRST + queue.sequence.base + released
        )
        first, last = arrived.first, arrived.last
        done = queue.forget_transmitted(released)
        if done is not None:
            if done:  # else its messages have become dead letters meanwhile
                self._releasable.setdefault(queue, []).extend(done)
            self._release_soon()
            if queue.removing:
                self.release()  # before the commit that would make them dead letters, if possible
        else:
            # The ack is for an earlier pass: only the disk knows how many rows it releases.  Rows
            # that were counted before have to be deleted by then.
            self.release()
            queue.known_to_disk = max(queue.known_to_disk, last & LOOKUP_MASK)
            batch = self._services.storage.batch
            destination, peer = queue.destination, queue.link.peer
            awaiting_events = self._confirmations.awaiting_events(queue)
            recorded = self._recorder.for_unit()

            def release(db: sqlite3.Connection) -> tuple[Totals, list[Kept]]:
                done = outgoing_rows.identities(db, first, last)
                event_rows.insert(
                    db,
                    recorded.of_messages(
                        EventHeader(Kind.ORDER_ACKNOWLEDGED, queue=destination, peer=peer),
                        ((each.source, each.number, -1, each.size) for each in done),
                    ),
                )
                kept = awaiting_rows.take_over(db, arrived)
                event_rows.insert(db, awaiting_events(kept))
                return outgoing_rows.release(db, first, last), kept

            counted = batch.run(release)
            counted.add_done_callback(partial(self._released_rows, queue))

    def _release_soon(self) -> None:
        """Release in a moment: no caller waits for it, so it needs no commit of its own.

        Messages that a crash brings back are sent again, and rejected as duplicates.
        """
        if self._release_timer is not None or not (self._releasable or self._releasable_keys):
            return
        storage = self._services.storage
        if storage.batch.load.is_empty:
            # While there is nothing else to do: the next message then does not wait for it.
            with storage.patience(True):
                self._release()
            self._patient_batch = storage.batch.number
        else:
            self._release_timer = self._services.loop.call_later(RELEASE_DELAY_S, self.release)

    def when_released(self, callback: Callable[[], None]) -> None:
        """Call back when all messages that are acknowledged now are deleted from the disk.

        An order ack itself is acknowledged then: the messages that it released never come again.
        """
        storage = self._services.storage
        if self._release_timer is not None:
            self._when_released.append(callback)
        elif self._patient_batch == storage.batch.number:  # they are in it, and not urgent
            with storage.patience(True):
                storage.batch.when_durable(callback)
        else:
            storage.batch.when_durable(callback)

    def release(self) -> None:
        """Delete all acknowledged messages with the open batch."""
        if self._release_timer is None:
            return
        self._release_timer.cancel()
        self._release_timer = None
        self._release()

    def _release(self) -> None:
        batch = self._services.storage.batch
        releasable, self._releasable = self._releasable, {}
        for queue, messages in releasable.items():
            base = queue.id << LOOKUP_BITS
            # From the first row, with messages that are becoming dead letters: they have arrived.
            first = max(TRANSACTIONAL_FIRST, queue.known_to_disk + 1)
            self._confirmations.arrived(queue, messages, first, messages[-1].key)
            last = messages[-1].key
            batch.outgoing.delete_range(base | first, base | last, rows=len(messages))
            # Messages that are appended from here on are in this batch or a later one.
            self._released(queue, messages)
        for callback in self._when_released:
            batch.when_durable(callback)
        self._when_released.clear()
        keys, self._releasable_keys = self._releasable_keys, []
        if keys:
            batch.outgoing.delete([queue.id << LOOKUP_BITS | key for queue, key in keys])
            for (queue, source), group in self._releasable_plain.items():
                self._record_acknowledged(queue, source, group.numbers, group.sizes)
            self._releasable_plain.clear()
            batch.when_durable(partial(self._gone, keys))

    def _released(self, queue: OutgoingQueue, messages: list[InFlight]) -> None:
        """Remove messages from their queue: their rows leave with the open batch."""
        sizes = [message.size for message in messages]
        queue.window.remove_all([message.key for message in messages])
        queue.shrink(sum(sizes))
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                EventHeader(
                    Kind.ORDER_ACKNOWLEDGED,
                    queue=queue.destination,
                    peer=queue.link.peer,
                    sequence_id=queue.sequence.sequence_id,
                ),
                self._services.id,
            )
            event.numbers += [message.message_number for message in messages]
            event.positions += [message.number for message in messages]
            event.sizes += sizes
        self._count_released(queue, len(messages))

    def _count_released(self, queue: OutgoingQueue, count: int) -> None:
        queue.sequence.released(count)
        queue.link.wake()

    def _released_rows(
        self, queue: OutgoingQueue, done: asyncio.Future[tuple[Totals, list[Kept]]]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        released, kept = done.result()
        queue.shrink(released.bytes)
        queue.awaiting.add(len(kept), sum(each.size for each in kept))
        self._count_released(queue, released.messages)

    def refused(
        self, queue: OutgoingQueue, body: FinalAckBody, message_class: int, sender: str
    ) -> None:
        """Make a dead letter of a message that the destination has refused.  [MS-MQQB] 3.1.5.7"""
        key = TRANSACTIONAL_FIRST | (queue.sequence.base + body.sequence_number)
        sent = queue.find_transmitted(key)
        if sent is not None and sent.message_number != body.message_number:
            return  # the final ack is about another message
        reason = f"{reason_text(message_class, queue=queue.destination)} Refused by {sender}."
        self._undeliverable.kill(
            queue,
            [key],
            message_class,
            reason,
            message_number=body.message_number,
            kind=Kind.FINAL_ACK_RECEIVED,
        )
