"""What a peer's acknowledgments do: the messages that it has leave the disk.

Nobody waits for that, so the rows go with the next commit, or a moment later.
What a crash brings back is sent again, and the peer knows it as a duplicate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from protocol import FinalAckBody, OrderAckBody, UserMessage
from qmd.core.disposition import reason_text
from qmd.core.packet_fields import message_number, source_of, wants_journal
from qmd.core.sequence import ImpossibleOrderAck
from qmd.events.recorder import Kind
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, Handed, InFlight, OutgoingQueue
from qmd.transfer.speakers import speaks_for
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
    from qmd.transfer.relay import Relay
    from qmd.transfer.sequence_renewal import SequenceRenewal

RELEASE_DELAY_S = 0.02


class OutgoingRelease:
    """What is acknowledged, on its way off the disk."""

    def __init__(
        self,
        services: Services,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        relay: Relay,
        undeliverable: Undeliverable,
    ) -> None:
        self._services = services
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._recorder = recorder
        self._relay = relay
        self._undeliverable = undeliverable
        # Acknowledged, and still on disk.
        self._releasable: dict[OutgoingQueue, list[InFlight]] = {}
        self._releasable_keys: list[tuple[OutgoingQueue, int]] = []
        self._releasable_told: dict[tuple[OutgoingQueue, bytes], Handed] = {}  # by source
        self._release_timer: asyncio.TimerHandle | None = None
        self._when_released: list[Callable[[], None]] = []

    def connect(self, confirmations: Confirmations, sequence_renewal: SequenceRenewal) -> None:
        """Name the collaborators that are made after it."""
        self._confirmations = confirmations
        self._sequence_renewal = sequence_renewal

    def session_acknowledged(self, tokens: list[tuple[OutgoingQueue, int]]) -> None:
        """[MS-MQQB] 3.1.5.5.2 - .4: what is not transactional is finished."""
        has_copies = False
        own_id = self._services.id
        for queue, key in tokens:
            packet = queue.take_acknowledged(key)
            if packet is not None:
                queue.others -= 1
                queue.shrink(len(packet))
                self._releasable_keys.append((queue, key))
                source = own_id
                if queue.for_others:
                    source = source_of(packet)
                    self._relay.gone(queue, packet)
                told = self._releasable_told.get((queue, source))
                if told is None:
                    told = self._releasable_told[queue, source] = Handed()
                told.add(message_number(packet), 0, len(packet))
            else:
                packet = queue.forget_express(key)
                if packet is None:
                    continue  # it expired, and went its way, while it was in flight
                self._tell_acknowledged(
                    queue, source_of(packet), [message_number(packet)], [len(packet)]
                )
            if wants_journal(packet) and not queue.for_others:
                self._dead_letters.journal(packet)
                has_copies = True
        self._release_soon()
        if has_copies:
            self.release()  # in one commit with the copies, or a crash would make a second one

    def _tell_acknowledged(
        self, queue: OutgoingQueue, source: bytes, numbers: list[int], sizes: list[int]
    ) -> None:
        """Plain messages are the peer's now, and have left or leave with the open batch."""
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                Kind.SESSION_ACKNOWLEDGED,
                source,
                queue=queue.destination,
                peer=queue.link.peer,
            )
            event.numbers += numbers
            event.sizes += sizes
            if queue.for_others:
                recorder.renew(Kind.RELAYED)  # they may come again, and even with this commit

    def _gone(self, messages: list[tuple[OutgoingQueue, int]]) -> None:
        for queue, key in messages:
            queue.window.remove(key)

    def order_acknowledged(
        self, connection: PeerConnection, message: UserMessage, body: OrderAckBody, now: float
    ) -> None:
        """[MS-MQQB] 3.1.5.6: the destination holds everything up to this number."""
        queue = self._outgoing.queue_of_sequence(body.sequence_id)
        if self._relay.pass_back(connection, message, body, queue):
            return
        if queue is None or not speaks_for(connection, message, queue):
            connection.sends_in_vain()
            renewal = self._sequence_renewal
            if queue is None and renewal.is_ahead(connection, message, body.sequence_id):
                return
            self._services.log_limited(
                "order_ack_for_nothing", connection.host, address=connection.host
            )
            return
        queue.link.spoke(message.user.source_queue_manager)
        self.acknowledged(connection, queue, body.sequence_id, body.sequence_number, now)

    def acknowledged(
        self,
        connection: PeerConnection,
        queue: OutgoingQueue,
        sequence_id: int,
        number: int,
        now: float,
    ) -> None:
        """The destination holds everything of the sequence up to `number`."""
        try:
            released = queue.sequence.acknowledge(sequence_id, number, now)
        except ImpossibleOrderAck as error:
            connection.sends_in_vain()
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
            if done:  # or what it speaks of has died meanwhile
                self._releasable.setdefault(queue, []).extend(done)
            self._release_soon()
            if released == queue.sequence.next_number - 1:
                self.release()  # the end of a sequence; the next message begins another
        else:
            # An ack for an earlier pass: how many rows it releases, only the disk knows.  Those
            # that were counted already have to be gone by then.
            self.release()
            queue.known_to_disk = max(queue.known_to_disk, last & LOOKUP_MASK)
            batch = self._services.storage.batch
            peer = queue.link.peer

            tell_kept = self._confirmations.teller(queue)

            def release(db: sqlite3.Connection) -> tuple[Totals, list[Kept]]:
                done = outgoing_rows.identities(db, first, last)
                event_rows.insert(
                    db,
                    self._recorder.told(
                        Kind.ORDER_ACKNOWLEDGED,
                        ((each.source, each.number, -1, each.size) for each in done),
                        queue=queue.destination,
                        peer=peer,
                    ),
                )
                kept = awaiting_rows.take_over(db, arrived)
                event_rows.insert(db, tell_kept(kept))
                return outgoing_rows.release(db, first, last), kept

            counted = batch.run(release)
            counted.add_done_callback(partial(self._released_rows, queue))

    def _release_soon(self) -> None:
        """Nobody waits for a release, so it need not cause a commit of its own.

        Messages that a crash brings back are sent again, and recognised as duplicates.
        """
        if self._release_timer is None and (self._releasable or self._releasable_keys):
            self._release_timer = self._services.loop.call_later(RELEASE_DELAY_S, self.release)

    def when_released(self, callback: Callable[[], None]) -> None:
        """Call back when all that was acknowledged until now is off the disk.

        Only then is an order ack itself acknowledged: what it has released never comes again.
        """
        if self._release_timer is None:
            self._services.storage.batch.when_durable(callback)
        else:
            self._when_released.append(callback)

    def release(self) -> None:
        """What was acknowledged leaves the disk with the open batch."""
        if self._release_timer is None:
            return
        self._release_timer.cancel()
        self._release_timer = None
        batch = self._services.storage.batch
        releasable, self._releasable = self._releasable, {}
        for queue, messages in releasable.items():
            base = queue.id << LOOKUP_BITS
            # From the beginning, with what was dying: it has arrived after all.
            first = max(TRANSACTIONAL_FIRST, queue.known_to_disk + 1)
            self._confirmations.arrived(queue, messages, first, messages[-1].key)
            batch.outgoing.delete_range(base | first, base | messages[-1].key)
            # Whatever is appended from here on is in this batch or a later one.
            self._released(queue, messages)
        for callback in self._when_released:
            batch.when_durable(callback)
        self._when_released.clear()
        keys, self._releasable_keys = self._releasable_keys, []
        if keys:
            batch.outgoing.delete([queue.id << LOOKUP_BITS | key for queue, key in keys])
            for (queue, source), told in self._releasable_told.items():
                self._tell_acknowledged(queue, source, told.numbers, told.sizes)
            self._releasable_told.clear()
            batch.when_durable(partial(self._gone, keys))

    def _released(self, queue: OutgoingQueue, messages: list[InFlight]) -> None:
        """They leave the disk with the open batch."""
        remove = queue.window.remove
        size = 0
        for message in messages:
            remove(message.key)
            size += message.size
        queue.shrink(size)
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                Kind.ORDER_ACKNOWLEDGED,
                self._services.id,
                queue=queue.destination,
                peer=queue.link.peer,
                sequence_id=queue.sequence.sequence_id,
            )
            event.numbers += [message.message_number for message in messages]
            event.positions += [message.number for message in messages]
            event.sizes += [message.size for message in messages]
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
        self, queue: OutgoingQueue, body: FinalAckBody, message_class: int, teller: str
    ) -> None:
        """[MS-MQQB] 3.1.5.7: the destination has refused a message of the sequence for good."""
        key = TRANSACTIONAL_FIRST | (queue.sequence.base + body.sequence_number)
        sent = queue.find_transmitted(key)
        if sent is not None and sent.message_number != body.message_number:
            return  # it speaks of another message
        reason = f"{reason_text(message_class, queue=queue.destination)} Refused by {teller}."
        self._undeliverable.kill(
            queue,
            [key],
            message_class,
            reason,
            message_number=body.message_number,
            kind=Kind.FINAL_ACK_RECEIVED,
        )
