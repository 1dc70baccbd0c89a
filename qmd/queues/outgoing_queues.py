"""All outgoing queues: made, filled, and sent again until the peer acknowledges.

A message leaves the disk in one of three ways, each in one commit with what it
leads to: the peer's acknowledgment releases it (`Releasing`), its time runs out
or the peer refuses it for good (`Undelivered`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from protocol.identifiers import guid_bytes, guid_text
from protocol.names.direct_name import PORT
from protocol.names.format_name import (
    DirectName,
    FormatName,
    PrivateName,
    PublicName,
    parse_format_name,
)
from qmd.core.internal_names import ORDER_QUEUE
from qmd.core.packet_fields import is_express, reach_time_s
from qmd.core.sequence import OutgoingSequence
from qmd.errors import Refusal
from qmd.message.build import QueueAddress, queue_address
from qmd.message.shared_packet import Packet, head_of, part_of
from qmd.queues.outgoing_ids import OutgoingIds
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, OutgoingQueue
from storage.engine.batch import Batch
from storage.tables import outgoing as outgoing_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.outgoing import OutgoingRow
from storage.tables.pages import Totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.message.shared_packet import Parts
    from qmd.queues.outgoing_ids import OutgoingIds
    from qmd.queues.quarantine import Damage
    from qmd.queues.usage import Usage
    from qmd.queues.way import Way, Ways
    from qmd.runtime.services import Services

log = structlog.get_logger()

REFILL_ROWS = 512
RELEASE_DELAY_S = 0.02
FOR_OTHERS = " for others"  # behind the name of a queue for messages that we pass on
REFILL_BYTES = 4 * 1024 * 1024


#: Key, packet, and the last second of its life.
Appended = tuple[int, Packet, int | None]


class Redirects(Protocol):
    """Destinations that an operator has sent elsewhere: `Redirecting` of qmd/peers."""

    def restored(self, queue: OutgoingQueue) -> None:
        """Learn of a queue whose redirect was on the disk."""

    def stands_for(self, name: DirectName | PrivateName | PublicName) -> OutgoingQueue | None:
        """The queue that takes what is for this destination."""


class OutgoingQueues:
    """The outgoing queues by their destination."""

    def __init__(
        self, services: Services, damage: Damage, parts: Parts, usage: Usage, ids: OutgoingIds
    ) -> None:
        self._services = services
        self._damage = damage
        self._parts = parts
        self._usage = usage
        self._queues: dict[str, OutgoingQueue] = {}
        self._by_sequence_timestamp: dict[int, OutgoingQueue] = {}
        self.ids = ids
        self.transmitted_count = 0

    def connect(
        self,
        ways: Ways,
        redirects: Redirects,
        others_usage: Usage,
        release: Callable[[], None],
        met: Callable[[bytes, str], None],
    ) -> None:
        """Name the collaborators that are made after it.

        `others_usage` counts what waits for others; `release` hands over what waits for company;
        `met` learns the address of a queue manager.
        """
        self._ways = ways
        self._redirects = redirects
        self._others_usage = others_usage
        self._release = release
        self._met = met

    @property
    def count(self) -> int:
        return len(self._queues)

    @property
    def queues(self) -> list[OutgoingQueue]:
        return list(self._queues.values())

    def find(self, key: str) -> OutgoingQueue | None:
        return self._queues.get(key)

    # Start-up.

    def restore(
        self,
        row: outgoing_rows.OutgoingQueueRow,
        messages: int,
        size: int,
        transactional: int,
        awaiting: Totals,
        sequences_awaited: Iterable[int] = (),
    ) -> None:
        """An outgoing queue as the disk has it; all of it counts as sent once.

        `sequences_awaited`: of which messages wait for their final acks.
        """
        # "NAME via GUID": see `Acknowledging`.
        named, for_others, _ = row.destination.partition(FOR_OTHERS)
        text, _, via = named.partition(" via ")
        name = parse_format_name(text)
        machine = _machine_of(name, via, row.address)
        if via and isinstance(name, DirectName) and name.queue == ORDER_QUEUE:
            self._met(guid_bytes(via), name.host)
        sequence = OutgoingSequence(
            row.sequence_id,
            row.base,
            row.next_number,
            transactional,
            resend_intervals_s=self._services.settings.delivery.resend_s,
            unproven_from=max(0, row.unproven_from - row.base),
        )
        queue = OutgoingQueue(
            id=row.id,
            destination=row.destination,
            key=row.destination.casefold(),
            address=_address(name, machine),
            link=self._link(name, guid_bytes(via) if via else None, machine),
            sequence=sequence,
            paused=row.paused,
            others=messages - transactional,
            usage=self._usage,
            size=size,
            awaiting=awaiting,
            others_usage=self._others_usage if for_others else None,
        )
        queue.redirect, queue.known_peer = row.redirect, row.peer
        if row.redirect is not None:
            self._redirects.restored(queue)
        queue.may_be_misdated = messages > 0
        queue.is_stored = True
        queue.renumbered_to = row.renumbered_to
        if sequence.is_unproven:
            position = sequence.base + sequence.first_unproven
            if position != row.unproven_from:  # known on the disk before anything follows
                self._services.storage.batch.run(
                    partial(outgoing_rows.set_unproven, positions=[(position, queue.id)])
                )
        former = [
            int.from_bytes(row.former[at : at + 4], "big") for at in range(0, len(row.former), 4)
        ]
        for timestamp in (*former, *(each >> 32 for each in sequences_awaited)):
            self._know_timestamp(timestamp, queue)
        self._adopt(queue)
        self.ids.restored(queue)
        if not queue.for_others:
            # What was stored may be a backup, after which sequences were begun that the peer knows.
            queue.begin_sequence = self.ids.begin_sequence

    def clock_was_set(self) -> None:
        """What was made until now bears the sent time of another clock."""
        for queue in self._queues.values():
            queue.may_be_misdated = queue.messages > 0

    def start(self) -> None:
        """Begin to deliver what the last run left."""
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
    ) -> OutgoingQueue:
        """The outgoing queue for a destination, made when it is the first message.

        With `via` it leads over a session with the queue manager of that GUID, if there is one.
        `machine`: the queue manager of a public queue, as the directory says.
        `for_others`: what other queue managers have sent, apart from ours.  Raises Refusal.
        """
        destination = str(name) if via is None else f"{name} via {guid_text(via)}"
        if for_others:
            destination += FOR_OTHERS
        key = destination.casefold()
        queue = self._queues.get(key)
        if queue is not None:
            return queue
        if via is None and not for_others:
            queue = self._redirects.stands_for(name)
            if queue is not None:
                return queue
        id_ = self.ids.take(for_acknowledgments=for_acknowledgments)
        try:
            link = self._link(name, via, machine)
        except Refusal:
            self.ids.give_back(id_)
            raise
        queue = OutgoingQueue(
            id=id_,
            destination=destination,
            key=key,
            address=_address(name, machine),
            link=link,
            usage=self._usage,
            others_usage=self._others_usage if for_others else None,
            sequence=OutgoingSequence(
                0, resend_intervals_s=self._services.settings.delivery.resend_s
            ),
        )
        queue.used_at = self._services.loop.time()
        self._adopt(queue)
        if queue.link.connection is not None:
            queue.new_pass("a new session began", transactional_only=False)
        self._services.storage.batch.outgoing.add_queue(
            outgoing_rows.OutgoingQueueRow(
                queue.id,
                queue.destination,
                queue.link.name,
                False,
                queue.sequence.sequence_id,
                queue.sequence.base,
                queue.sequence.next_number,
                int(self._services.environment.time()),
                None,
                # With its first message, and before that is handed over.
                None if queue.link.connection is None else queue.link.remote_id,
            )
        )
        if queue.link.connection is not None:
            queue.known_peer = queue.link.remote_id
        self._services.storage.batch.when_durable(partial(setattr, queue, "is_stored", True))
        return queue

    def forget(self, key: str) -> int | None:
        """The id of a queue that is no more, as if it had never been; None: somebody holds it."""
        queue = self._queues.pop(key)
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
            for timestamp in timestamps:
                self._by_sequence_timestamp.setdefault(timestamp, held)
            return None
        self._ways.forget_link(link)
        return id_

    def know_sequence(self, queue: OutgoingQueue) -> None:
        """Acknowledgments of it lead to the queue."""
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
        """Rows for a message that is to be sent; `appended` follows when they are durable.

        `confirm_by_s`, `discard`: see `Confirmations`; `deadline_s`: of one of others', which has
        been under way for a time.
        """
        self._release()  # a commit is due anyway
        if queue.for_others:
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
        """The same, where all is known; `release` was called for the batch."""
        queue.grow(len(packet))
        if isinstance(packet, bytes):
            head, part = packet, None
        else:
            head, part = packet.head, part_of(packet)
        if key < TRANSACTIONAL_FIRST:
            queue.others += 1
            if is_express(head):
                queue.add_express(key, packet, expires_at_s)
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
        """As `appended`, of many queues; most of them may have one link."""
        links: dict[Way, None] = {}
        for queue, its_messages in messages.items():
            self._add_to_window(queue, its_messages)
            links[queue.link] = None
        for link in links:
            link.wake()

    def all_appended_on_disk(self, firsts: dict[OutgoingQueue, int]) -> None:
        """The same of more than memory should hold, by the first key of each queue."""
        now = self._services.loop.time()
        for queue, first in firsts.items():
            queue.used_at = now
            queue.window.leave_on_disk(first)
        for link in {queue.link: None for queue in firsts}:
            link.wake()

    def appended(self, queue: OutgoingQueue, messages: list[Appended]) -> None:
        """These messages are durable (or express): they may be sent."""
        self._add_to_window(queue, messages)
        queue.link.wake()

    def _add_to_window(self, queue: OutgoingQueue, messages: list[Appended]) -> None:
        add = queue.window.add
        queue.used_at = self._services.loop.time()
        for key, packet, expires_at_s in messages:
            express = is_express(head_of(packet))
            if express and key not in queue.express:
                continue  # its time ran out before the commit that it waited for
            add(key, (packet, expires_at_s), len(packet), stored=not express)

    def save(self, queues: Iterable[OutgoingQueue], batch: Batch) -> None:
        """Keep where their sequences stand, in the same commit as the messages."""
        next_numbers: dict[int, int] = {}
        for queue in queues:
            sequence = queue.sequence
            if queue.stored_sequence_id == sequence.sequence_id:  # then its base is the same too
                next_numbers[queue.id] = sequence.next_number
            else:
                queue.stored_sequence_id = sequence.sequence_id
                batch.outgoing.set_sequence(
                    queue.id, sequence.sequence_id, sequence.base, sequence.next_number
                )
        if next_numbers:
            batch.outgoing.set_next_numbers(next_numbers)

    def refill(self, queue: OutgoingQueue) -> None:
        """Read on where the window ends."""
        self._release()  # or the rows would be read once more
        start = queue.window.begin_refill()
        self._services.storage.batch.read_after(
            lambda db: outgoing_rows.page(db, queue.id, start, REFILL_ROWS, REFILL_BYTES),
            partial(self._refilled, queue),
        )

    def _refilled(self, queue: OutgoingQueue, rows: list[OutgoingRow]) -> None:
        entries = [
            (
                row.key & LOOKUP_MASK,
                (
                    row.packet
                    if row.part_id is None
                    else self._parts.shared(row.packet, row.part_id),
                    row.expires_at_s,
                ),
                len(row.packet),
            )
            for row in self._damage.whole_outgoing(queue, rows)
        ]
        size = sum(len(row.packet) for row in rows)
        queue.window.refill(entries, complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)
        queue.link.wake()

    def queue_of_sequence(self, sequence_id: int) -> OutgoingQueue | None:
        """The queue that has, or had, a sequence with that id."""
        return self._by_sequence_timestamp.get(sequence_id >> 32)

    # Resending.

    def arm_resend(self, queue: OutgoingQueue) -> None:
        wake_at = queue.sequence.next_timer()
        if wake_at is not None:
            self._services.timers.at(wake_at, queue, self._resend_due)

    def _resend_due(self, queue: OutgoingQueue) -> None:
        """[MS-MQQB] 3.1.6.5: everything unacknowledged goes again, in order."""
        if queue.sequence.handle_timer(self._services.loop.time()):
            if queue.link.connection is not None:
                log.info(
                    "resending",
                    destination=queue.destination,
                    messages=queue.sequence.outstanding,
                )
                queue.new_pass("nobody had acknowledged it in time", transactional_only=True)
            queue.link.wake()
        self.arm_resend(queue)

    # What operators do.

    async def set_paused(self, queue: OutgoingQueue, paused: bool) -> None:
        """Keep the queue's messages here, or let them go again; survives a restart."""
        await self._services.storage.batch.run(
            partial(outgoing_rows.set_paused, outgoing_id=queue.id, paused=paused)
        )
        queue.paused = paused
        log.info("outgoing_paused" if paused else "outgoing_resumed", destination=queue.destination)
        queue.link.wake()

    def kick(self, queue: OutgoingQueue) -> None:
        """Connect now, or, where there is a session, send everything unacknowledged again."""
        if queue.link.connection is None:
            queue.link.kick()
        else:
            queue.new_pass("an operator asked for it", transactional_only=True)
            queue.link.wake()

    # Within.

    def _adopt(self, queue: OutgoingQueue) -> None:
        self._queues[queue.key] = queue
        queue.link.queues[queue] = None
        if queue.has_sequence:
            self.know_sequence(queue)
        elif not queue.for_others:
            queue.begin_sequence = self.ids.begin_sequence

    def link_of_name(self, destination: str) -> Way:
        """The way to a destination that is a direct name."""
        return self._link(parse_format_name(destination), None)

    def _link(self, name: FormatName, via: bytes | None, machine: bytes | None = None) -> Way:
        ways = self._ways
        if via is not None and isinstance(name, DirectName):
            return ways.link_to_queue_manager(via, (name.host, name.port))
        if via is not None and isinstance(name, PublicName):
            return ways.link_to_queue_manager(via)
        if machine is not None:
            return ways.link_to_queue_manager(machine)
        if isinstance(name, DirectName) and name.transport in ("TCP", "OS"):
            return ways.link_to_address(name.host, name.port or PORT)
        if isinstance(name, PrivateName):
            return ways.link_to_queue_manager(name.queue_manager)
        raise Refusal(
            "name_not_reachable",
            f"{name} cannot be reached: only direct names over TCP or OS, and private queues of"
            " a queue manager that has a session with this one",
            "Use DIRECT=TCP:address\\queue or DIRECT=OS:host\\queue.",
        )


def _address(name: FormatName, machine: bytes | None) -> QueueAddress:
    """How packets name the destination; of a public queue also the queue manager that has it, by
    which whoever is in between knows that it is not for them.  [MS-MQMQ] 2.2.19.2"""
    address = queue_address(name)
    return address if machine is None else replace(address, queue_manager=machine)


def _machine_of(name: FormatName, via: str, address: str) -> bytes | None:
    """The queue manager of a public queue, as its outgoing queue was kept."""
    return guid_bytes(address) if isinstance(name, PublicName) and not via else None
