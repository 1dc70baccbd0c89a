"""Undeliverable messages: removed from their outgoing queue, with a reason, in one commit.

A message is undeliverable because it expired, because its destination has refused it for good, or
because it was purged. While its removal is being committed no later message of its sequence is
sent, because that message is linked around it; and an acknowledgment that arrives meanwhile does
not count it a second time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import patch_class
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.disposition import reason_text
from qmd.core.packet_fields import wants_dead_letter
from qmd.events.header import EventHeader, Kind
from qmd.outcomes.dead_letter import UNWANTED
from qmd.outcomes.removal import Dying, Found, Removal, is_of_application
from qmd.outcomes.source_acknowledgments import is_owed
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quarantine import log_damaged
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import outgoing as outgoing_rows
from storage.tables import owed as owed_rows
from storage.tables.keys import ARRIVAL_MAX, OUTGOING_TRANSACTIONAL_LEVEL, TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.source_acknowledgments import SourceAcknowledgments
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services

log = structlog.get_logger()

PURGE_ROWS = 512  # ended in one commit


class Undeliverable:
    """Ends messages of outgoing queues."""

    def __init__(
        self,
        services: Services,
        source_acknowledgments: SourceAcknowledgments,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._source_acknowledgments = source_acknowledgments
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._recorder = recorder

    def connect(
        self, release: Callable[[], None], gone_for_others: Callable[[OutgoingQueue, bytes], None]
    ) -> None:
        """Set the collaborators that are created later.

        `release` adds pending releases to the open batch; `gone_for_others` is called with each
        relayed message that was removed.
        """
        self._release = release
        self._gone_for_others = gone_for_others

    def expire(self, queue: OutgoingQueue, keys: list[int]) -> None:
        """End messages that did not reach their queue in time, as far as is known.

        A transactional message that was sent and not order-acknowledged may have arrived: its
        reason says so, because sending it again may double it.
        """
        unsure = [key for key in keys if _may_have_arrived(queue, key)]
        if unsure:
            reason = (
                f"The message was sent to {queue.destination}, and {queue.link.name} sent no order"
                " ack for it in time: it may have arrived. Look for it there before you send it"
                " again, or set a longer time-to-reach-queue."
            )
            self.kill(queue, unsure, MessageClass.NACK_REACH_QUEUE_TIMEOUT, reason)
            known = set(unsure)
            keys = [key for key in keys if key not in known]
        if keys:
            reason = reason_text(
                MessageClass.NACK_REACH_QUEUE_TIMEOUT,
                queue=queue.destination,
                detail=_hindrance(queue),
            )
            self.kill(queue, keys, MessageClass.NACK_REACH_QUEUE_TIMEOUT, reason)

    def end_too_large(self, queue: OutgoingQueue, keys: list[int], connection: PeerSession) -> None:
        """End messages that are too large for the peer.

        The configuration has changed since they were sent, or their destination's name leads to an
        address that `large_messages` does not name.
        """
        reason = (
            f"The message for {queue.destination} is larger than {connection.packet_bytes_max}"
            f" bytes, and {connection.host} accepts no larger ones. Name it in large_messages"
            " of the"
            " section [peers], if it runs qmd, or send the body in parts."
        )
        self.kill(queue, keys, MessageClass.NACK_DELETED, reason, kind=Kind.PURGED)

    def refused(
        self, queue: OutgoingQueue, key: int, number: int, message_class: int, reason: str
    ) -> None:
        """End a message that the other end will never accept, and that it does not keep.

        It becomes a dead letter even if none was requested, because no other computer has it
        (docs/decisions/0010).
        """
        self.kill(
            queue,
            [key],
            message_class,
            reason,
            message_number=number,
            kind=Kind.UNROUTABLE if queue.for_others else Kind.FINAL_ACK_RECEIVED,
            is_kept_here=True,
        )

    async def purge(self, queue: OutgoingQueue) -> int:
        """End all messages of a queue, waiting or not acknowledged; return their count.

        They become dead letters with the class "deleted by an operator".
        """
        reason = reason_text(MessageClass.NACK_DELETED, queue=queue.destination)
        return await self.end_all(queue, MessageClass.NACK_DELETED, reason, Kind.PURGED)

    async def end_all(
        self, queue: OutgoingQueue, message_class: int, reason: str, kind: Kind
    ) -> int:
        """End all messages that are in a queue at the time of the call; return their count."""
        storage, purged = self._services.storage, 0
        last = self._services.ids.next_lookup_id(OUTGOING_TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        newest = TRANSACTIONAL_FIRST | (queue.sequence.base + queue.sequence.next_number - 1)
        keys, start = list(queue.express), 0
        while True:
            purged += self.kill(queue, keys, message_class, reason, kind=kind)
            found = await storage.read(
                partial(
                    outgoing_rows.keys, outgoing_id=queue.id, from_lookup=start, rows_max=PURGE_ROWS
                )
            )
            if not found:
                await storage.batch.barrier()  # the caller reports only durable ends
                return purged
            start = found[-1] + 1
            keys = [
                key
                for key in found
                if (key <= newest if key >= TRANSACTIONAL_FIRST else key & ARRIVAL_MAX < last)
            ]

    def expire_express(self, now_s: int, messages_max: int) -> int:
        """End at most `messages_max` expired express messages of all queues; return their count.

        The disk has no index of express messages.
        """
        ended = 0
        for queue in self._outgoing.queues:
            if over := queue.express.pop_expired(now_s, messages_max - ended):
                ended += len(over)
                self.expire(queue, over)
        return ended

    def kill(
        self,
        queue: OutgoingQueue,
        keys: list[int],
        message_class: int,
        reason: str,
        *,
        message_number: int | None = None,
        kind: Kind = Kind.EXPIRED,
        is_kept_here: bool = False,
    ) -> int:
        """End the messages at `keys`; with `message_number`, only the message with that number.

        With `is_kept_here` those of applications here become dead letters without a request, too.
        A message that was released, acknowledged or is being removed is skipped. Returns how many
        removals have begun.
        """
        self._release()  # the rows of acknowledged messages are deleted before the unit looks
        wall_ms = int(self._services.environment.time() * 1000)
        dying: list[Dying] = []
        ended = 0
        for key in keys:
            packet = queue.forget_express(key)
            if packet is not None:
                ended += 1
                self._end_express(queue, packet, message_class, reason, kind, wall_ms, is_kept_here)
            elif queue.begin_removal(key):
                place = self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL)
                dying.append(Dying(key, place, queue.forget_in_flight(key)))
        if not dying:
            return ended
        if any(each.key >= TRANSACTIONAL_FIRST for each in dying):
            self._outgoing.unconfirmed.add(queue.id)
        removal = Removal(
            self._recorder.for_unit(),
            self._services.id,
            queue.id,
            queue.destination,
            queue.link.peer,
            queue.for_others,
            dying,
            message_number,
            message_class,
            reason,
            kind,
            self._dead_letters.system_queues(),
            wall_ms,
            self._services.clock.now_s,
            is_kept_here,
        )
        done = self._services.storage.batch.run(removal.run)
        done.add_done_callback(partial(self._removed, queue, removal))
        return ended + len(dying)

    def _end_express(
        self,
        queue: OutgoingQueue,
        packet: bytes,
        message_class: int,
        reason: str,
        kind: Kind,
        wall_ms: int,
        is_kept_here: bool,
    ) -> None:
        """End an express message that has left memory; its consequences go to the open batch."""
        if is_owed(packet, message_class, for_others=queue.for_others, is_found_here=is_kept_here):
            self._source_acknowledgments.send(packet, message_class, for_others=queue.for_others)
        self._recorder.record(
            EventHeader(kind, queue=queue.destination, message_class=message_class, reason=reason),
            [packet],
            lazily=True,
        )
        is_kept_here = is_kept_here and not queue.for_others and is_of_application(packet)
        if is_kept_here or wants_dead_letter(packet):
            self._dead_letters.dead_letter(
                packet, message_class, reason, wall_ms, queue.destination
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
                lazily=True,
            )

    def _removed(
        self, queue: OutgoingQueue, removal: Removal, done: asyncio.Future[list[Found]]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        count = 0
        again = False
        acknowledged: list[int] = []
        for each in done.result():
            queue.end_removal(each.dying.key)
            if not each.is_meant:
                again = True  # it is not in flight any more, and must be sent after all
                continue
            self._count_out(queue, each.dying, each.packet)
            if not each.packet:
                continue
            if not each.is_intact:
                log_damaged(queue.destination, [each.dying.key])
                continue
            count += 1
            if self._follow(queue, removal, each):
                acknowledged.append(each.dying.place)
        if acknowledged:  # in this batch, which contains the acknowledgments
            self._services.storage.batch.run(partial(owed_rows.remove, ids=acknowledged))
        if count:
            log.info(
                "messages_died",
                destination=queue.destination,
                count=count,
                reason=removal.reason,
                code=MessageClass.name_of(removal.message_class),
            )
        if again:
            queue.new_pass("its refusal concerned another message", transactional_only=True)
        queue.link.wake()

    def _follow(self, queue: OutgoingQueue, removal: Removal, found: Found) -> bool:
        """Acknowledge a removed message and deliver its dead letter.

        Returns whether an owed acknowledgment is now in the open batch.
        """
        packet, message_class, place = found.packet, removal.message_class, found.dying.place
        if queue.for_others:
            self._gone_for_others(queue, packet)
        owed = removal.is_owed(packet)
        if owed:
            self._source_acknowledgments.send(packet, message_class, for_others=queue.for_others)
        if found.is_kept:
            copy = patch_class(packet, message_class)
            self._dead_letters.deliver(
                found.dead_letters[0],
                StoredMessage(place, removal.wall_ms, copy, removal.reason),
            )
        return owed

    def _count_out(self, queue: OutgoingQueue, dying: Dying, packet: bytes) -> None:
        if dying.key < TRANSACTIONAL_FIRST:
            if packet:
                queue.others -= 1
                queue.shrink(len(packet))
            return
        if not packet and dying.sent is None:
            return
        # A message without its row was acknowledged during its removal, and not counted out then.
        queue.shrink(len(packet) if packet else dying.sent.size if dying.sent else 0)
        if queue.sequence.remove(queue.number_of(dying.key)):
            queue.sequence.hasten(self._services.loop.time())
            self._outgoing.arm_resend(queue)


def _may_have_arrived(queue: OutgoingQueue, key: int) -> bool:
    """Return whether a transactional message was sent in this run, and not order-acknowledged."""
    if key < TRANSACTIONAL_FIRST or queue.for_others:
        return False
    number = queue.number_of(key)
    sequence = queue.sequence
    if sequence.is_unproven:
        return number in sequence.in_flight
    return sequence.was_transmitted(number)


def _hindrance(queue: OutgoingQueue) -> str:
    """Return the known reason why the messages of a queue were not delivered."""
    if queue.paused:
        return "the outgoing queue was paused"
    last = queue.link.retry.last
    if queue.link.connection is None and last is not None:
        return f"{queue.link.name}: {last.result}"
    if queue.link.connection is None:
        return f"no session with {queue.link.name}"
    failures = (each for each in reversed(queue.link.retry.history) if each.error)
    failed = next(failures, None)
    before = f"; the session before ended: {failed.result}" if failed is not None else ""
    return f"{queue.link.name} did not acknowledge it{before}"
