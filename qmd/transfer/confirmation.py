"""Confirmation: messages that arrived elsewhere are kept until an application has received them.

The transaction confirmation process, at the source of a message:

    order ack ──► awaiting ──┬── positive final ack ──► gone; a copy in the journal, if asked for
    (in its commit)          ├── negative final ack ──► dead letter, with its class
                             └── interval is over ────► dead letter: NACK_RECEIVE_TIMEOUT

Messages that await confirmation are on disk, and count against the quota of the computer.  A final
ack also says that its message was accepted, and with it every earlier message of its sequence: a
final ack that overtakes the order ack acts as an order ack too.  It is acknowledged to the session
only when its consequence is on disk.
[MS-MQQB] 3.1.5.6, 3.1.5.7, 3.1.7.2.2
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol import FinalAckBody, UserMessage
from protocol.identifiers import guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.core.disposition import NEGATIVE, RECEPTION, reason_text
from qmd.core.packet_fields import is_kept_as_dead, wants_journal
from qmd.events.header import EventHeader, Kind
from qmd.outcomes.dead_letter import UNWANTED
from qmd.outcomes.promises import Promise
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quarantine import REMEDY, log_damaged
from qmd.queues.transmission import InFlight
from storage.tables import awaiting as awaiting_rows
from storage.tables import events as event_rows
from storage.tables.awaiting import Arrived, AwaitingRow, Kept
from storage.tables.keys import LOOKUP_BITS
from storage.tables.pages import Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.promises import Promises
    from qmd.peers.connection import PeerConnection
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.relayed_acks import RelayedAcks
    from qmd.transfer.release import OutgoingRelease
    from qmd.transfer.speakers import Speakers
    from storage.tables.events import Event

log = structlog.get_logger()

GIVEN_UP_ROWS = 500  # in one commit
UNCONFIRMED_AGE_S = 90 * 86_400  # how long after its dead letter a confirmation counts as late


class FinalAck(NamedTuple):
    """A final ack from a queue manager that may send it."""

    queue: OutgoingQueue
    message_class: int
    sequence_id: int
    position: int
    message_number: int
    sender: str  # the queue manager that has sent the final ack, and its address


class Confirmations:
    """Messages that await confirmation, and the events that end the wait."""

    def __init__(
        self,
        services: Services,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        promises: Promises,
        recorder: Recorder,
        relayed_acks: RelayedAcks,
        outgoing_release: OutgoingRelease,
        speakers: Speakers,
    ) -> None:
        self._services = services
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._promises = promises
        self._recorder = recorder
        self._relayed_acks = relayed_acks
        self._outgoing_release = outgoing_release
        self._speakers = speakers
        self._settling: set[int] = set()  # of messages: the commit of their end is under way

    @property
    def any(self) -> bool:
        """Whether a message awaits confirmation."""
        return any(queue.awaiting.messages for queue in self._outgoing.queues)

    # Order acks.

    def arrived(
        self, queue: OutgoingQueue, messages: Sequence[InFlight], first: int, last: int
    ) -> None:
        """Keep the messages of acknowledged rows that need confirmation, with the open batch.

        The rows from `first` to `last` leave `outgoing` in the same batch.  `messages` are those in
        memory; the other rows are becoming dead letters at this moment.
        """
        count = sum(message.confirms for message in messages)
        if not count and not queue.removing:
            return
        size = sum(message.size for message in messages if message.confirms)
        queue.awaiting.add(count, size)
        kept = self._services.storage.batch.outgoing.await_confirmation(
            self.of_range(queue, first, last), self.awaiting_events(queue)
        )
        kept.add_done_callback(partial(_corrected, queue, Totals(count, size)))

    def awaiting_events(self, queue: OutgoingQueue) -> Callable[[list[Kept]], list[Event]]:
        """Return a function that makes the events of messages that await confirmation from now on.

        It runs on the thread of the writer, in their commit.
        """
        destination, peer = queue.destination, queue.link.peer
        recorded, own_id = self._recorder.for_unit(), self._services.id

        def events(kept: list[Kept]) -> list[Event]:
            return recorded.of_messages(
                EventHeader(Kind.AWAITING, queue=destination, peer=peer),
                ((own_id, each.number, -1, each.size) for each in kept),
            )

        return events

    def of_range(self, queue: OutgoingQueue, first: int, last: int) -> Arrived:
        """Return the acknowledged rows of a queue's sequence, by the first and the last key."""
        base = queue.id << LOOKUP_BITS
        sequence = queue.sequence
        now_s = self._services.clock.now_s
        return Arrived(
            queue.id, sequence.sequence_id, sequence.base, base | first, base | last, now_s
        )

    # Final acks.

    def final_acknowledged(
        self,
        connection: PeerConnection,
        packets: Sequence[tuple[UserMessage, FinalAckBody]],
        numbers: list[int],
        now: float,
    ) -> None:
        """Apply the final acks of one session; `numbers` are their numbers in the session.

        The numbers are acknowledged when the consequences are on disk.
        """
        final_acks: list[FinalAck] = []
        for message, body in packets:
            final_ack = self._checked(connection, message, body, now)
            if final_ack is not None:
                final_acks.append(final_ack)
        # Messages that these final acks have acknowledged are then among those that are looked up.
        self._outgoing_release.release()
        if final_acks:
            self._look_up(connection, final_acks, numbers)
        else:
            promise = Promise(connection, numbers)
            self._services.storage.batch.when_durable(partial(self._promises.keep, promise))

    def _checked(
        self, connection: PeerConnection, message: UserMessage, body: FinalAckBody, now: float
    ) -> FinalAck | None:
        """Return a final ack that may concern a message that awaits it; handle all others."""
        message_class = message.properties.message_class
        queue = self._outgoing.queue_of_sequence(body.sequence_id)
        if body.source_queue_manager != self._services.id and self._relayed_acks.pass_back(
            connection, message, body
        ):
            return None
        if (
            queue is None
            or body.source_queue_manager != self._services.id
            or not (message_class & NEGATIVE or message_class == MessageClass.ACK_RECEIVE)
            or not self._speakers.may_acknowledge(connection, message, queue)
        ):
            connection.count_useless()
            self._services.log_limited(
                "final_ack_for_nothing", connection.host, address=connection.host
            )
            return None
        sender = f"{guid_text(message.user.source_queue_manager)} at {connection.host}"
        if body.sequence_id == queue.sequence.sequence_id:
            if message_class & RECEPTION:
                # The message was in its queue, so it and all before it had been accepted.
                self._outgoing_release.acknowledged(
                    connection, queue, body.sequence_id, body.sequence_number, now
                )
            elif body.sequence_number > queue.sequence.acknowledged:
                # The message may be still on its way.  Or it awaits confirmation since before the
                # start of the daemon: only the disk knows what was acknowledged by then.
                self._outgoing_release.refused(queue, body, message_class, sender)
        return FinalAck(
            queue,
            message_class,
            body.sequence_id,
            body.sequence_number,
            body.message_number,
            sender,
        )

    def _look_up(
        self, connection: PeerConnection, final_acks: list[FinalAck], numbers: list[int]
    ) -> None:
        """Look the messages up after the open batch, which may still write them."""
        wanted = [each.message_number for each in final_acks]

        def look(
            db: sqlite3.Connection,
        ) -> tuple[list[AwaitingRow], int, dict[int, int]]:
            rows, looked_for = awaiting_rows.find_all(db, wanted)
            return rows, looked_for, awaiting_rows.unconfirmed(db, wanted[:looked_for])

        self._services.storage.batch.read_after(
            look, partial(self._found, connection, final_acks, numbers)
        )

    def _found(
        self,
        connection: PeerConnection,
        final_acks: list[FinalAck],
        numbers: list[int],
        found: tuple[list[AwaitingRow], int, dict[int, int]],
    ) -> None:
        rows, looked_for, unconfirmed = found
        copies = {row.number: row for row in rows}
        for each in final_acks[:looked_for]:
            row = copies.get(each.message_number)
            if each.message_number in self._settling:
                continue  # an earlier final ack has settled it, and its commit is under way
            if row is not None:
                self._settle(each, row)
            elif unconfirmed.get(each.message_number) == each.queue.id:
                self._confirm_late(each)
        if looked_for < len(final_acks):
            self._look_up(connection, final_acks[looked_for:], numbers)
        else:
            promise = Promise(connection, numbers)
            self._services.storage.batch.when_durable(partial(self._promises.keep, promise))

    def _settle(self, final_ack: FinalAck, row: AwaitingRow) -> None:
        """End the wait for a message: it was received, or it never will be."""
        if (row.queue_id, row.sequence_id, row.position) != (
            final_ack.queue.id,
            final_ack.sequence_id,
            final_ack.position,
        ):
            return  # the final ack is about another message
        if not row.is_whole:
            self._put_aside(final_ack.queue, row)
            return
        queue, packet = final_ack.queue, row.packet
        message_class = final_ack.message_class
        self._remove(queue, row)
        if not message_class & NEGATIVE:
            self._recorder.record(
                EventHeader(
                    Kind.CONFIRMED,
                    queue=queue.destination,
                    peer=queue.link.peer,
                    message_class=message_class,
                ),
                [packet],
            )
            if wants_journal(packet):
                self._dead_letters.journal(packet)
            return
        text = reason_text(message_class, queue=queue.destination)
        reason = f"{text} Reported by {final_ack.sender}."
        self._bury(Kind.FINAL_ACK_RECEIVED, queue, row, message_class, reason)

    def _confirm_late(self, final_ack: FinalAck) -> None:
        """Report that a message which is a dead letter here was received at its destination."""
        number = final_ack.message_number
        if final_ack.message_class & NEGATIVE:
            return  # it is a dead letter already
        reason = (
            f"{final_ack.sender} reports that an application has received it; this came after"
            " it had become a dead letter here. The dead letter stays: do not send it again."
        )
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                EventHeader(
                    Kind.LATE_CONFIRMATION,
                    queue=final_ack.queue.destination,
                    peer=final_ack.queue.link.peer,
                    message_class=final_ack.message_class,
                    reason=reason,
                ),
                self._services.id,
            )
            event.numbers.append(number)
        log.warning(
            "confirmed_too_late",
            message_id=message_id_text(self._services.id, number),
            destination=final_ack.queue.destination,
            reason=reason,
        )
        self._services.storage.batch.run(
            partial(awaiting_rows.forget_unconfirmed, numbers=[number])
        )

    # The interval.

    async def expire(self, rows_max: int) -> bool:
        """Make dead letters after the interval of messages; return whether there may be more."""
        if not self.any:
            return False
        now_s = self._services.clock.now_s
        rows_max += len(self._settling)
        _, count = await self._give_up_found(
            partial(awaiting_rows.expired, now_s=now_s, rows_max=rows_max),
            "within the interval for it",
        )
        if count:
            log.info("messages_unconfirmed", count=count)
            # One piece at a time.
            await self._services.storage.batch.barrier()
        return bool(count)

    async def forget_old(self, now_s: int) -> None:
        """Forget dead letters too old for a late confirmation, and queues that have no others."""
        unconfirmed = self._outgoing.unconfirmed
        before = set(unconfirmed)

        def forget(db: sqlite3.Connection) -> set[int]:
            awaiting_rows.forget_old(db, before_s=now_s - UNCONFIRMED_AGE_S)
            return awaiting_rows.unconfirmed_queues(db)

        # Queues that were added in the meantime have theirs in a later commit.
        unconfirmed -= before - await self._services.storage.batch.run(forget, can_wait=True)

    async def page(self, queue: OutgoingQueue, start: int, rows_max: int) -> list[AwaitingRow]:
        """Return messages of one queue that await confirmation, from the number `start` on."""
        return await self._services.storage.read(
            partial(awaiting_rows.page, queue_id=queue.id, from_number=start, rows_max=rows_max)
        )

    async def give_up(self, queue: OutgoingQueue) -> int:
        """End the wait for all messages of a queue, as an operator wants; return their number."""
        count = start = 0
        while True:
            last, given_up = await self._give_up_found(
                partial(
                    awaiting_rows.page,
                    queue_id=queue.id,
                    from_number=start,
                    rows_max=GIVEN_UP_ROWS,
                ),
                "before an operator gave up waiting",
            )
            if last is None:
                break
            start = last + 1
            count += given_up
            await self._services.storage.batch.barrier()
        log.info("awaiting_given_up", destination=queue.destination, count=count)
        return count

    async def _give_up_found(
        self, find: Callable[[sqlite3.Connection], list[AwaitingRow]], when: str
    ) -> tuple[int | None, int]:
        """Give up the messages that `find` returns, and that no final ack is ending.

        Returns the number of the last message found (None: there is none), and how many were given
        up.  The rows are read in the order of commits, and used before a later commit is reported:
        a row that a final ack has ended since would be a dead letter of a received message.
        """
        numbers: list[int] = []
        given_up = 0

        def give_up(rows: list[AwaitingRow]) -> None:
            nonlocal given_up
            queues = {queue.id: queue for queue in self._outgoing.queues}
            for row in rows:
                numbers.append(row.number)
                if row.number not in self._settling:
                    self._give_up(queues[row.queue_id], row, when)
                    given_up += 1

        batch = self._services.storage.batch
        batch.read_after(find, give_up)
        await batch.barrier()
        return (numbers[-1] if numbers else None), given_up

    def _give_up(self, queue: OutgoingQueue, row: AwaitingRow, when: str) -> None:
        """Make a dead letter of an unconfirmed message, with the open batch."""
        if not row.is_whole:
            self._put_aside(queue, row)
            return
        reason = (
            f"The message was accepted at {queue.destination}, and it was not confirmed {when} that"
            " an application has received it. Check there before you send it again."
        )
        self._remove(queue, row)
        self._bury(Kind.UNCONFIRMED, queue, row, MessageClass.NACK_RECEIVE_TIMEOUT, reason)

    # Within.

    def _remove(self, queue: OutgoingQueue, row: AwaitingRow) -> None:
        """Delete a message that awaited confirmation, with the open batch."""
        batch = self._services.storage.batch
        batch.outgoing.delete_awaiting([row.number])
        self._settled_with(row.number)
        queue.awaiting.add(-1, -len(row.packet))

    def _settled_with(self, number: int) -> None:
        self._settling.add(number)
        self._services.storage.batch.when_durable(partial(self._settling.discard, number))

    def _bury(
        self, kind: Kind, queue: OutgoingQueue, row: AwaitingRow, message_class: int, reason: str
    ) -> None:
        """Make a dead letter of a message that awaits nothing any more, if one is wanted."""
        packet = row.packet
        wall = self._services.environment.time()
        self._recorder.record(
            EventHeader(
                kind,
                queue=queue.destination,
                peer=queue.link.peer,
                message_class=message_class,
                reason=reason,
            ),
            [packet],
        )
        if is_kept_as_dead(packet, discard=row.discard):
            self._dead_letters.dead_letter(
                packet, message_class, reason, int(wall * 1000), queue.destination, row.part_id
            )
        else:
            self._recorder.record(
                EventHeader(
                    Kind.DISCARDED,
                    queue=queue.destination,
                    message_class=message_class,
                    reason=UNWANTED,
                ),
                [packet],
            )
        self._outgoing.unconfirmed.add(queue.id)
        self._services.storage.batch.run(
            partial(
                awaiting_rows.remember_unconfirmed,
                numbers=[row.number],
                queue_id=queue.id,
                at_s=self._services.clock.now_s,
            )
        )

    def _put_aside(self, queue: OutgoingQueue, row: AwaitingRow) -> None:
        """Put a message aside: its row is not the one that was stored."""
        self._settled_with(row.number)
        queue.awaiting.add(-1, -len(row.packet))
        at_s = int(self._services.environment.time())

        recorded = self._recorder.for_unit().of_messages(
            EventHeader(Kind.DAMAGED, queue=queue.destination, reason=REMEDY),
            [(self._services.id, row.number, -1, len(row.packet))],
        )
        number = row.number

        def set_aside(db: sqlite3.Connection) -> None:
            event_rows.insert(db, recorded)
            awaiting_rows.set_aside(db, number, at_s)

        self._services.storage.batch.run(set_aside)
        self._services.storage.batch.when_durable(
            partial(log_damaged, queue.destination, [row.number])
        )


def _corrected(queue: OutgoingQueue, expected: Totals, kept: asyncio.Future[list[Kept]]) -> None:
    """A message that was dying when it was acknowledged was not counted on."""
    if kept.cancelled() or kept.exception() is not None:
        return  # the storage failed, and the daemon stops
    found = kept.result()
    size = sum(each.size for each in found)
    queue.awaiting.add(len(found) - expected.messages, size - expected.bytes)
