"""What has arrived elsewhere, and is kept until an application there has received it.

The transaction confirmation process, at the source of a message:

    order ack ──► awaiting ──┬── positive final ack ──► gone; a copy in the journal, if asked for
    (in its commit)          ├── negative final ack ──► dead letter, with its class
                             └── interval is over ────► dead letter: NACK_RECEIVE_TIMEOUT

What waits is on disk, and counts against the quota of the computer.  A final ack tells that its
message was accepted, and with it everything before it in its sequence: one that overtakes its order
ack is one as well.  It is acknowledged to the session only when its consequence is on disk.
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
from qmd.control_protocol.messages import NewMessage
from qmd.core.confirmation import extended_interval_s
from qmd.core.disposition import NEGATIVE, RECEPTION, reason_text
from qmd.core.packet_fields import INFINITE_S, is_kept_as_dead, wants_journal
from qmd.events.recorder import Kind
from qmd.outcomes.dead_letter import UNWANTED
from qmd.outcomes.promises import Promise
from qmd.queues.outgoing_queue import InFlight, OutgoingQueue
from qmd.queues.quarantine import REMEDY
from qmd.transfer.speakers import speaks_for
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
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services
    from qmd.transfer.relay import Relay
    from qmd.transfer.release import OutgoingRelease
    from storage.tables.events import Event

log = structlog.get_logger()

GIVEN_UP_ROWS = 500  # in one commit
UNCONFIRMED_AGE_S = 90 * 86_400  # so long after its dead letter a confirmation is called a late one


class Heard(NamedTuple):
    """A final ack of somebody who may send it."""

    queue: OutgoingQueue
    message_class: int
    sequence_id: int
    position: int
    message_number: int
    teller: str  # who says so


class Confirmations:
    """What waits, and what ends it."""

    def __init__(
        self,
        services: Services,
        damage: Damage,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        promises: Promises,
        recorder: Recorder,
        relay: Relay,
        outgoing_release: OutgoingRelease,
    ) -> None:
        self._services = services
        self._damage = damage
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._promises = promises
        self._recorder = recorder
        self._relay = relay
        self._outgoing_release = outgoing_release
        self._settling: set[int] = set()  # numbers of messages whose end is being committed

    @property
    def any(self) -> bool:
        """Whether something waits."""
        return any(queue.awaiting.messages for queue in self._outgoing.queues)

    # At the sending.

    def asks(self, new: NewMessage) -> bool:
        """Whether a transactional message is sent with a request for dead-lettering, and so for
        confirmation, which costs both ends something."""
        if self._services.settings.delivery.xact_dead_letter_always:
            return True
        if new.dead_letter is None:
            return new.time_to_be_received_s not in (None, INFINITE_S)
        return new.dead_letter

    def discards(self, new: NewMessage) -> bool:
        """Whether the application wants no dead letter of it, whatever happens."""
        return new.dead_letter is False and not self.asks(new)

    def confirm_by_s(self, new: NewMessage) -> int | None:
        """Until when the receipt of a transactional message is waited for, as its row has it."""
        if not (new.journal or self.asks(new)):
            return None
        delay_s = self._services.settings.delivery.xact_delay_receive_nack_s
        interval_s = extended_interval_s(
            new.time_to_be_received_s,
            new.time_to_reach_queue_s,
            None if delay_s is None else int(delay_s),
        )
        return awaiting_rows.confirm_by(self._services.clock.deadline_s(interval_s))

    # Order acks.

    def arrived(
        self, queue: OutgoingQueue, messages: Sequence[InFlight], first: int, last: int
    ) -> None:
        """Rows of a sequence leave `outgoing` with the open batch; those that wait are kept.

        `messages` are those of them that are known; others are dying at this moment.
        """
        count = sum(message.confirms for message in messages)
        if not count and not queue.removing:
            return
        size = sum(message.size for message in messages if message.confirms)
        queue.awaiting.add(count, size)
        kept = self._services.storage.batch.outgoing.await_confirmation(
            self.of_range(queue, first, last), self.teller(queue)
        )
        kept.add_done_callback(partial(_corrected, queue, Totals(count, size)))

    def teller(self, queue: OutgoingQueue) -> Callable[[list[Kept]], list[Event]]:
        """Who tells of messages that wait from now on, in their commit."""
        destination, peer = queue.destination, queue.link.peer
        recorder, own_id = self._recorder, self._services.id

        def tell(kept: list[Kept]) -> list[Event]:
            return recorder.told(
                Kind.AWAITING,
                ((own_id, each.number, -1, each.size) for each in kept),
                queue=destination,
                peer=peer,
            )

        return tell

    def of_range(self, queue: OutgoingQueue, first: int, last: int) -> Arrived:
        """What is acknowledged in order: keys of rows of the queue's sequence."""
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
        """Final acks of one session; `numbers` are those that it knows them by."""
        heard: list[Heard] = []
        for message, body in packets:
            found = self._heard(connection, message, body, now)
            if found is not None:
                heard.append(found)
        self._outgoing_release.release()  # what was acknowledged by them is where we look for it
        if heard:
            self._look(connection, heard, numbers)
        else:
            promise = Promise(connection, numbers)
            self._services.storage.batch.when_durable(partial(self._promises.keep, promise))

    def _heard(
        self, connection: PeerConnection, message: UserMessage, body: FinalAckBody, now: float
    ) -> Heard | None:
        """One that may be about a message that waits; the others are dealt with."""
        message_class = message.properties.message_class
        queue = self._outgoing.queue_of_sequence(body.sequence_id)
        if body.source_queue_manager != self._services.id and self._relay.pass_back(
            connection, message, body
        ):
            return None
        if (
            queue is None
            or body.source_queue_manager != self._services.id
            or not (message_class & NEGATIVE or message_class == MessageClass.ACK_RECEIVE)
            or not speaks_for(connection, message, queue)
        ):
            connection.sends_in_vain()
            self._services.log_limited(
                "final_ack_for_nothing", connection.host, address=connection.host
            )
            return None
        teller = f"{guid_text(message.user.source_queue_manager)} at {connection.host}"
        if body.sequence_id == queue.sequence.sequence_id:
            if message_class & RECEPTION:
                # It was in its queue, so it and all before it had been accepted.
                self._outgoing_release.acknowledged(
                    connection, queue, body.sequence_id, body.sequence_number, now
                )
            elif body.sequence_number > queue.sequence.acknowledged:
                # If it is still on its way.  Or it waits, and we were started since: what was
                # acknowledged by then, only the disk knows.
                self._outgoing_release.refused(queue, body, message_class, teller)
        return Heard(
            queue,
            message_class,
            body.sequence_id,
            body.sequence_number,
            body.message_number,
            teller,
        )

    def _look(self, connection: PeerConnection, heard: list[Heard], numbers: list[int]) -> None:
        """For the copies, behind the open batch, which may bring them there."""
        wanted = [each.message_number for each in heard]

        def look(
            db: sqlite3.Connection,
        ) -> tuple[list[AwaitingRow], int, dict[int, int]]:
            rows, looked_for = awaiting_rows.find_all(db, wanted)
            return rows, looked_for, awaiting_rows.unconfirmed(db, wanted[:looked_for])

        self._services.storage.batch.read_after(
            look, partial(self._found, connection, heard, numbers)
        )

    def _found(
        self,
        connection: PeerConnection,
        heard: list[Heard],
        numbers: list[int],
        found: tuple[list[AwaitingRow], int, dict[int, int]],
    ) -> None:
        rows, looked_for, unconfirmed = found
        copies = {row.number: row for row in rows}
        for each in heard[:looked_for]:
            row = copies.get(each.message_number)
            if each.message_number in self._settling:
                continue  # it was said before, and is being written
            if row is not None:
                self._settle(each, row)
            elif unconfirmed.get(each.message_number) == each.queue.id:
                self._tell_late(each)
        if looked_for < len(heard):
            self._look(connection, heard[looked_for:], numbers)
        else:
            promise = Promise(connection, numbers)
            self._services.storage.batch.when_durable(partial(self._promises.keep, promise))

    def _settle(self, heard: Heard, row: AwaitingRow) -> None:
        """Somebody has received the message, or nobody will."""
        if (row.queue_id, row.sequence_id, row.position) != (
            heard.queue.id,
            heard.sequence_id,
            heard.position,
        ):
            return  # it speaks of another message
        if not row.is_whole:
            self._put_aside(heard.queue, row)
            return
        queue, packet = heard.queue, row.packet
        message_class = heard.message_class
        self._remove(queue, row)
        if not message_class & NEGATIVE:
            self._recorder.record(
                Kind.CONFIRMED,
                [packet],
                queue=queue.destination,
                peer=queue.link.peer,
                message_class=message_class,
            )
            if wants_journal(packet):
                self._dead_letters.journal(packet)
            return
        reason = f"{reason_text(message_class, queue=queue.destination)} So says {heard.teller}."
        self._bury(Kind.FINAL_ACK_RECEIVED, queue, row, message_class, reason)

    def _tell_late(self, heard: Heard) -> None:
        """A message that is a dead letter here was received there after all."""
        number = heard.message_number
        if heard.message_class & NEGATIVE:
            return  # it is a dead letter already
        reason = (
            f"{heard.teller} says that an application has received it; that came after it had"
            " become a dead letter here. The dead letter stays: do not send it again."
        )
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                Kind.LATE_CONFIRMATION,
                self._services.id,
                queue=heard.queue.destination,
                peer=heard.queue.link.peer,
                message_class=heard.message_class,
                reason=reason,
            )
            event.numbers.append(number)
        log.warning(
            "confirmed_too_late",
            message_id=message_id_text(self._services.id, number),
            destination=heard.queue.destination,
            reason=reason,
        )
        self._services.storage.batch.run(
            partial(awaiting_rows.forget_unconfirmed, numbers=[number])
        )

    # The interval.

    async def expire(self, rows_max: int) -> bool:
        """Give up what was waited for long enough; True when there may be more."""
        if not self.any:
            return False
        now_s = self._services.clock.now_s
        rows = await self._services.storage.read(
            partial(awaiting_rows.expired, now_s=now_s, rows_max=rows_max + len(self._settling))
        )
        rows = [row for row in rows if row.number not in self._settling]
        queues = {queue.id: queue for queue in self._outgoing.queues}
        for row in rows:
            self._give_up(queues[row.queue_id], row, "within the interval for it")
        if rows:
            log.info("messages_unconfirmed", count=len(rows))
            # One piece at a time.
            await self._services.storage.batch.barrier()
        return bool(rows)

    async def forget_old(self, now_s: int) -> None:
        """Those that nobody will speak of any more; which outgoing queues still have some."""
        unconfirmed = self._outgoing.ids.unconfirmed
        before = set(unconfirmed)

        def forget(db: sqlite3.Connection) -> set[int]:
            awaiting_rows.forget_old(db, before_s=now_s - UNCONFIRMED_AGE_S)
            return awaiting_rows.unconfirmed_queues(db)

        # What has been added since is in a later commit.
        unconfirmed -= before - await self._services.storage.batch.run(forget, can_wait=True)

    async def page(self, queue: OutgoingQueue, start: int, rows_max: int) -> list[AwaitingRow]:
        """What waits of one queue, from the message number `start` on."""
        return await self._services.storage.read(
            partial(awaiting_rows.page, queue_id=queue.id, from_number=start, rows_max=rows_max)
        )

    async def give_up(self, queue: OutgoingQueue) -> int:
        """An operator wants nothing of the queue to be waited for any more; how many those are."""
        count = start = 0
        while rows := await self.page(queue, start, GIVEN_UP_ROWS):
            start = rows[-1].number + 1
            for row in rows:
                if row.number not in self._settling:
                    self._give_up(queue, row, "before an operator gave up waiting")
                    count += 1
            await self._services.storage.batch.barrier()
        log.info("awaiting_given_up", destination=queue.destination, count=count)
        return count

    def _give_up(self, queue: OutgoingQueue, row: AwaitingRow, when: str) -> None:
        """With the open batch."""
        if not row.is_whole:
            self._put_aside(queue, row)
            return
        reason = (
            f"The message was accepted at {queue.destination}, and nobody has confirmed {when} that"
            " an application has received it. Ask there whether one has, before you send it again."
        )
        self._remove(queue, row)
        self._bury(Kind.UNCONFIRMED, queue, row, MessageClass.NACK_RECEIVE_TIMEOUT, reason)

    # Within.

    def _remove(self, queue: OutgoingQueue, row: AwaitingRow) -> None:
        """Off the disk with the open batch."""
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
        """A copy that is not waited for any more becomes a dead letter, if one is wanted."""
        packet = row.packet
        wall = self._services.environment.time()
        self._recorder.record(
            kind,
            [packet],
            queue=queue.destination,
            peer=queue.link.peer,
            message_class=message_class,
            reason=reason,
        )
        if is_kept_as_dead(packet, discard=row.discard):
            self._dead_letters.dead_letter(
                packet, message_class, reason, int(wall * 1000), queue.destination, row.part_id
            )
        else:
            self._recorder.record(
                Kind.DISCARDED,
                [packet],
                queue=queue.destination,
                message_class=message_class,
                reason=UNWANTED,
            )
        self._outgoing.ids.unconfirmed.add(queue.id)
        self._services.storage.batch.run(
            partial(
                awaiting_rows.remember_unconfirmed,
                numbers=[row.number],
                queue_id=queue.id,
                at_s=self._services.clock.now_s,
            )
        )

    def _put_aside(self, queue: OutgoingQueue, row: AwaitingRow) -> None:
        """A copy that is not what was stored."""
        self._settled_with(row.number)
        queue.awaiting.add(-1, -len(row.packet))
        at_s = int(self._services.environment.time())

        def set_aside(db: sqlite3.Connection) -> None:
            told = self._recorder.told(
                Kind.DAMAGED,
                [(self._services.id, row.number, -1, len(row.packet))],
                queue=queue.destination,
                reason=REMEDY,
            )
            event_rows.insert(db, told)
            awaiting_rows.set_aside(db, row.number, at_s)

        self._services.storage.batch.run(set_aside)
        self._services.storage.batch.when_durable(
            partial(self._damage.name, queue.destination, [row.number])
        )


def _corrected(queue: OutgoingQueue, expected: Totals, kept: asyncio.Future[list[Kept]]) -> None:
    """A message that was dying when it was acknowledged was not counted on."""
    if kept.cancelled() or kept.exception() is not None:
        return  # the storage failed, and the daemon stops
    found = kept.result()
    size = sum(each.size for each in found)
    queue.awaiting.add(len(found) - expected.messages, size - expected.bytes)
