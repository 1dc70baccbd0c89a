"""Outgoing queues: created, filled, and sent again until the peer acknowledges.

A message leaves the disk in one of three ways, each in one commit with its consequences: the peer's
acknowledgment releases it (`OutgoingRelease` of qmd/transfer), it expires, or the peer refuses it
for good (both `Undeliverable` of qmd/outcomes).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from protocol.identifiers import guid_bytes, guid_text
from protocol.names.format_name import (
    DirectName,
    PrivateName,
    PublicName,
)
from qmd.core.packet_fields import is_express, reach_time_s
from qmd.core.sequence import OutgoingSequence
from qmd.errors import Refusal
from qmd.message.shared_packet import Packet, head_of, part_of
from qmd.queues.outgoing_ids import OutgoingIds
from qmd.queues.outgoing_names import (
    FOR_OTHERS,
    URL,
    address_text,
    check_urls,
    link_of,
    packet_address,
    parse_queue_name,
    stored_address,
)
from qmd.queues.outgoing_queue import VIA, OutgoingQueue, StoredContents
from qmd.queues.transmission import TRANSACTIONAL_FIRST, Waiting
from qmd.queues.usage import Usage
from storage.engine.batch import Batch
from storage.tables import outgoing as outgoing_rows
from storage.tables.keys import LOOKUP_BITS
from storage.tables.pages import Totals
from storage.tables.tally import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.queues.answer_limits import AnswerLimits, AskedFor
    from qmd.queues.way import Way, Ways
    from qmd.runtime.services import Services

log = structlog.get_logger()


#: Key, packet, and the last second of its lifetime.
Appended = tuple[int, Packet, int | None]


class Redirects(Protocol):
    """Destinations that an operator has redirected: `Redirection` of qmd/peers."""

    def restored(self, queue: OutgoingQueue) -> None:
        """Apply the stored redirect of a restored queue."""

    def stands_for(self, name: DirectName | PrivateName | PublicName) -> OutgoingQueue | None:
        """Return the queue that takes the messages for this destination; None: its own."""


class OutgoingQueues:
    """The outgoing queues by their destination."""

    def __init__(
        self, services: Services, usage: Usage, ids: OutgoingIds, answer_limits: AnswerLimits
    ) -> None:
        self._services = services
        self._answer_limits = answer_limits
        self._usage = usage
        self._queues: dict[str, OutgoingQueue] = {}
        self._by_sequence_timestamp: dict[int, OutgoingQueue] = {}
        self._ids = ids
        #: Ids of queues with dead letters that may be confirmed late: they are not reused.
        self.unconfirmed = ids.unconfirmed
        self.others_usage = Usage()  # bytes of relayed messages
        self.transmitted_count = 0

    def connect(
        self,
        ways: Ways,
        redirects: Redirects,
        release: Callable[[], None],
        refill: Callable[[OutgoingQueue], None],
    ) -> None:
        """Set the collaborators that are created later.

        `release` adds pending releases to the open batch; `refill` reads further messages of a
        queue into its window.
        """
        self._ways = ways
        self._redirects = redirects
        self._release = release
        self.refill = refill

    @property
    def count(self) -> int:
        """The number of outgoing queues."""
        return len(self._queues)

    @property
    def queues(self) -> list[OutgoingQueue]:
        """All outgoing queues."""
        return list(self._queues.values())

    def find(self, key: str) -> OutgoingQueue | None:
        """Return the queue with a casefolded name, or None."""
        return self._queues.get(key)

    # Start-up.

    def restore(
        self,
        row: outgoing_rows.OutgoingQueueRow,
        stored: Figures,
        awaiting: Totals,
        sequences_awaited: Iterable[int] = (),
    ) -> None:
        """Create the outgoing queue of a row; all its messages count as sent once.

        `stored` counts its stored messages, and `awaiting` those that wait for their final acks;
        `sequences_awaited` are the sequences of the latter.
        """
        name, via, for_others = parse_queue_name(row.destination)
        # The row of a queue that names a public queue contains its queue manager.
        machine = guid_bytes(row.address) if isinstance(name, PublicName) and via is None else None
        sequence = OutgoingSequence(
            row.sequence_id,
            row.base,
            row.next_number,
            stored.transactional,
            resend_intervals_s=self._services.settings.delivery.resend_s,
            unproven_from=max(0, row.unproven_from - row.base),
        )
        queue = OutgoingQueue(
            row,
            address=packet_address(name, machine),
            link=link_of(self._ways, name, via, machine, at=stored_address(row.address)),
            sequence=sequence,
            usage=self._usage,
            others_usage=self.others_usage if for_others else None,
            stored=StoredContents(stored.rows - stored.transactional, stored.bytes, awaiting),
        )
        if row.redirect is not None:
            self._redirects.restored(queue)
        queue.may_be_misdated = stored.rows > 0
        queue.is_stored = True
        if sequence.is_unproven:
            position = sequence.base + sequence.first_unproven
            if position != row.unproven_from:  # on the disk before the next message of the sequence
                self._services.storage.batch.run(
                    partial(outgoing_rows.set_unproven, positions=[(position, queue.id)])
                )
        former = [
            int.from_bytes(row.former[at : at + 4], "big") for at in range(0, len(row.former), 4)
        ]
        for timestamp in (*former, *(each >> 32 for each in sequences_awaited)):
            self._know_timestamp(timestamp, queue)
        self._adopt(queue)
        if row.asked_by:
            self._answer_limits.add(queue, row.asked_by)
        self._ids.restored(queue)
        if not queue.for_others:
            # The database may be a restored backup, older than sequences that the peer knows.
            queue.begin_sequence = self._ids.begin_sequence

    def clock_was_set(self) -> None:
        """Note that all stored messages have a sent time by the former wall clock."""
        for queue in self._queues.values():
            queue.may_be_misdated = queue.messages > 0

    def start(self) -> None:
        """Begin to deliver the messages of the last run."""
        for queue in self._queues.values():
            if queue.messages or queue.awaiting.messages:
                queue.link.wake()

    # Sending.

    def queue_for(
        self,
        name: DirectName | PrivateName | PublicName,
        *,
        for_acknowledgments: bool = False,
        via: bytes | None = None,
        machine: bytes | None = None,
        for_others: bool = False,
        asked: AskedFor | None = None,
    ) -> OutgoingQueue:
        """Return the outgoing queue for a destination; create it if there is none.

        `via` is the GUID of a queue manager; its session leads there. `machine` is the GUID of
        the queue manager of a public queue, from the directory. `for_acknowledgments`: it is for
        acknowledgments or relayed messages, which get fewer queues. `for_others`: the queue for
        relayed messages, separate from those of this queue manager. `asked` is set for an
        acknowledgment that a message of another host asks for; a queue that is made for it counts
        in the share of that host. Raises Refusal.
        """
        if asked is not None and asked.via is not None:
            via = asked.via
        destination = str(name) if via is None else f"{name}{VIA}{guid_text(via)}"
        if for_others:
            destination += FOR_OTHERS
        queue = self._queues.get(destination.casefold())
        if queue is not None:
            if queue.share is not None and not for_acknowledgments:
                self._use_by_applications(queue)
            return queue
        if via is None and not for_others:
            queue = self._redirects.stands_for(name)
            if queue is not None:
                return queue
        id_, link = self._id_and_link(name, via, machine, asked, for_acknowledgments)
        has_session = link.connection is not None
        sequence = OutgoingSequence(0, resend_intervals_s=self._services.settings.delivery.resend_s)
        row = outgoing_rows.OutgoingQueueRow(
            id_,
            destination,
            link.name if asked is None or asked.at is None else address_text(*asked.at),
            paused=False,
            sequence_id=sequence.sequence_id,
            base=sequence.base,
            next_number=sequence.next_number,
            created_at_s=int(self._services.environment.time()),
            # Stored with its first message, before that message is handed to the peer.
            peer=link.remote_id if has_session else None,
            asked_by="" if asked is None else asked.by,
        )
        queue = OutgoingQueue(
            row,
            address=packet_address(name, machine),
            link=link,
            sequence=sequence,
            usage=self._usage,
            others_usage=self.others_usage if for_others else None,
        )
        queue.used_at = self._services.loop.time()
        self._adopt(queue)
        if asked is not None:
            self._answer_limits.add(queue, asked.by)
        if has_session:
            queue.new_pass("a new session began", transactional_only=False)
        self._services.storage.batch.outgoing.add_queue(row)
        self._services.storage.batch.when_durable(partial(setattr, queue, "is_stored", True))
        return queue

    def _id_and_link(
        self,
        name: DirectName | PrivateName | PublicName,
        via: bytes | None,
        machine: bytes | None,
        asked: AskedFor | None,
        for_acknowledgments: bool,
    ) -> tuple[int, Way]:
        """Return the id and the link of a new outgoing queue. Raises Refusal."""
        if asked is not None and (reason := self._answer_limits.no_queue(asked.by)):
            raise Refusal("too_many_acknowledgments", reason)
        if isinstance(name, DirectName) and name.transport in URL:
            check_urls(name, enabled=self._services.settings.srmp.enabled)
        id_ = self._ids.take(for_acknowledgments=for_acknowledgments)
        at = None if asked is None else asked.at
        try:
            return id_, link_of(self._ways, name, via, machine, at=at)
        except Refusal:
            self._ids.give_back(id_)
            raise

    def _use_by_applications(self, queue: OutgoingQueue) -> None:
        """Count a queue for applications: one sends to a queue that held only acknowledgments."""
        self._answer_limits.remove(queue)
        self._services.storage.batch.run(
            partial(outgoing_rows.set_asked_by, outgoing_id=queue.id, host="")
        )

    def forget(self, key: str) -> int | None:
        """Forget a queue and return its id; None: something refers to it, and it stays."""
        queue = self._queues.pop(key)
        asked_by = "" if queue.share is None else queue.share.host
        self._answer_limits.remove(queue)
        link, id_, timestamps = queue.link, queue.id, queue.timestamps
        del link.queues[queue]
        for timestamp in timestamps:
            if self._by_sequence_timestamp.get(timestamp) is queue:
                del self._by_sequence_timestamp[timestamp]
        self._services.timers.cancel(queue)
        reference = weakref.ref(queue)
        del queue
        held = reference()
        if held is not None:
            self._adopt(held)
            if asked_by:
                self._answer_limits.add(held, asked_by)
            for timestamp in timestamps:
                self._by_sequence_timestamp.setdefault(timestamp, held)
            return None
        self._ways.forget_link(link)
        return id_

    def know_sequence(self, queue: OutgoingQueue) -> None:
        """Find the queue by its present sequence from now on, for acknowledgments."""
        self._know_timestamp(queue.sequence.sequence_id >> 32, queue)

    def _know_timestamp(self, timestamp: int, queue: OutgoingQueue) -> None:
        if not queue.for_others:
            self._by_sequence_timestamp[timestamp] = queue
            queue.timestamps.add(timestamp)

    def append(
        self,
        queue: OutgoingQueue,
        key: int,
        packet: Packet,
        batch: Batch,
        *,
        confirm_by_s: int | None = None,
        discard: bool = False,
        deadline_s: int | None = None,
    ) -> Appended:
        """Add a message with the open batch. Call `appended` with the result after the commit.

        `confirm_by_s` and `discard` are for `Confirmations` of qmd/transfer. `deadline_s` is the
        deadline of a relayed message, which its earlier way has shortened, or of an acknowledgment.
        """
        self._release()  # a commit follows anyway
        if queue.for_others or deadline_s is not None:
            expires_at_s = deadline_s
        else:
            expires_at_s = self._services.clock.deadline_s(reach_time_s(head_of(packet)))
        return self.add(queue, key, packet, batch, expires_at_s, confirm_by_s, discard=discard)

    def add(
        self,
        queue: OutgoingQueue,
        key: int,
        packet: Packet,
        batch: Batch,
        expires_at_s: int | None,
        confirm_by_s: int | None,
        *,
        discard: bool,
    ) -> Appended:
        """Add a message as `append` does, with a known deadline.

        The caller has already added pending releases to the batch.
        """
        queue.grow(len(packet))
        if isinstance(packet, bytes):
            head, part = packet, None
        else:
            head, part = packet.head, part_of(packet)
        if key < TRANSACTIONAL_FIRST:
            queue.others += 1
            if is_express(head):
                queue.express.keep(key, (packet, expires_at_s), packet, expires_at_s)
                return key, packet, expires_at_s
        batch.outgoing.insert(
            queue.id << LOOKUP_BITS | key,
            head,
            expires_at_s,
            confirm_by_s=confirm_by_s,
            discard=discard,
            part=part,
        )
        return key, packet, expires_at_s

    def all_appended(self, messages: dict[OutgoingQueue, list[Appended]]) -> None:
        """Make messages of many queues ready, after their commit; queues may share a link."""
        links: dict[Way, None] = {}
        for queue, its_messages in messages.items():
            self._add_to_window(queue, its_messages)
            links[queue.link] = None
        for link in links:
            link.wake()

    def all_appended_on_disk(self, firsts: dict[OutgoingQueue, int]) -> None:
        """Make messages of many queues ready, after their commit, without loading them.

        `firsts` has the first key of each queue.
        """
        now = self._services.loop.time()
        for queue, first in firsts.items():
            queue.used_at = now
            queue.window.leave_on_disk(first)
        for link in {queue.link: None for queue in firsts}:
            link.wake()

    def appended(self, queue: OutgoingQueue, messages: list[Appended]) -> None:
        """Make messages ready to be sent, after their commit."""
        self._add_to_window(queue, messages)
        queue.link.wake()

    def _add_to_window(self, queue: OutgoingQueue, messages: list[Appended]) -> None:
        queue.used_at = self._services.loop.time()
        stored: list[tuple[int, Waiting, int]] = []
        for key, packet, expires_at_s in messages:
            # In most queues all messages are stored; transactional ones are in any case.
            if key >= TRANSACTIONAL_FIRST or not is_express(head_of(packet)):
                stored.append((key, (packet, expires_at_s), len(packet)))
            elif key in queue.express:  # else it expired before the commit that it waited for
                queue.window.add(key, (packet, expires_at_s), len(packet), stored=False)
        queue.window.add_all(stored)

    def save(self, queues: Iterable[OutgoingQueue], batch: Batch) -> None:
        """Store the positions of sequences, in the same commit as the messages."""
        next_numbers: dict[int, int] = {}
        for queue in queues:
            sequence = queue.sequence
            if queue.stored_sequence_id == sequence.sequence_id:  # then its base is the same, too
                next_numbers[queue.id] = sequence.next_number
            else:
                queue.stored_sequence_id = sequence.sequence_id
                batch.outgoing.set_sequence(
                    queue.id, sequence.sequence_id, sequence.base, sequence.next_number
                )
        if next_numbers:
            batch.outgoing.set_next_numbers(next_numbers)

    def queue_of_sequence(self, sequence_id: int) -> OutgoingQueue | None:
        """Return the queue that has, or had, a sequence with this id, or None."""
        return self._by_sequence_timestamp.get(sequence_id >> 32)

    # Resending.

    def arm_resend(self, queue: OutgoingQueue) -> None:
        """Set the resend timer of a queue."""
        wake_at = queue.sequence.next_timer()
        if wake_at is not None:
            self._services.timers.at(wake_at, queue, self._resend_due)

    def _resend_due(self, queue: OutgoingQueue) -> None:
        """Send all unacknowledged messages again, in order. [MS-MQQB] 3.1.6.5"""
        if queue.sequence.handle_timer(self._services.loop.time()):
            if queue.link.connection is not None:
                log.info(
                    "resending",
                    destination=queue.destination,
                    messages=queue.sequence.outstanding,
                )
                queue.new_pass("it was not acknowledged in time", transactional_only=True)
            queue.link.wake()
        self.arm_resend(queue)

    # Requests of operators.

    async def set_paused(self, queue: OutgoingQueue, paused: bool) -> None:
        """Stop or continue sending from a queue; the state survives a restart."""
        await self._services.storage.batch.run(
            partial(outgoing_rows.set_paused, outgoing_id=queue.id, paused=paused)
        )
        queue.paused = paused
        log.info("outgoing_paused" if paused else "outgoing_resumed", destination=queue.destination)
        connection = queue.link.connection
        if connection is not None and connection.session is not None:
            if paused:
                connection.session.pause()
                connection.flush_soon()
            else:
                connection.session.resume()
        queue.link.wake()

    def kick(self, queue: OutgoingQueue) -> None:
        """Connect now; if there is a session, send all unacknowledged messages again."""
        if queue.link.connection is None:
            queue.link.kick()
        else:
            queue.new_pass("an operator asked for it", transactional_only=True)
            queue.link.wake()

    def _adopt(self, queue: OutgoingQueue) -> None:
        self._queues[queue.key] = queue
        queue.link.queues[queue] = None
        if queue.has_sequence:
            self.know_sequence(queue)
        elif not queue.for_others:
            queue.begin_sequence = self._ids.begin_sequence
