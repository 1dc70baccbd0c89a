"""Removal: the unit of work that takes undeliverable messages off an outgoing queue.

The unit runs on the thread of the storage writer. It gets values and returns values; the queues of
the event loop change after its commit, in `undeliverable.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from protocol import patch_class
from qmd.core.disposition import SYSTEM_CLASSES
from qmd.core.packet_fields import (
    is_kept_as_dead,
    is_transactional,
    message_class_of,
    message_number,
    source_of,
    wants_dead_letter,
    wants_final_ack,
)
from qmd.events.header import EventHeader, Kind
from qmd.message.shared_packet import cut
from qmd.outcomes.dead_letter import UNWANTED
from qmd.outcomes.source_acknowledgments import is_owed
from qmd.queues.quarantine import put_aside
from qmd.queues.transmission import InFlight
from storage.tables import awaiting as awaiting_rows
from storage.tables import events as event_rows
from storage.tables import messages as message_rows
from storage.tables import outgoing as outgoing_rows
from storage.tables import owed as owed_rows
from storage.tables import own_dead_letters
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.unit_events import UnitEvents
    from qmd.outcomes.system_queues import SystemQueues
    from storage.tables.events import Event
    from storage.tables.outgoing import OutgoingRow


def is_of_application(packet: bytes) -> bool:
    """Return whether an application has sent a message, and not a queue manager."""
    return message_class_of(packet) not in SYSTEM_CLASSES


class Dying(NamedTuple):
    """A stored message that is being removed."""

    key: int
    place: int  # its lookup id in the dead-letter queue
    sent: InFlight | None  # the message in flight; None: this pass has not sent it


class Found(NamedTuple):
    """A dying message as the unit of work found it on the disk."""

    dying: Dying
    packet: bytes = b""  # b"": its row was released meanwhile
    is_meant: bool = True  # False: another message, which stays
    is_intact: bool = True  # False: it differs from its checksum, and was put aside
    is_kept: bool = False  # as a dead letter
    part_id: int | None = None  # the shared part that its row refers to
    dead_letters: tuple[int, str] = (0, "")  # id and name of the queue that keeps it

    @property
    def is_removed(self) -> bool:
        """Whether the unit of work has removed its row as undeliverable."""
        return bool(self.packet) and self.is_meant and self.is_intact


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of some messages of one outgoing queue, and all its consequences on disk."""

    events: UnitEvents
    own_id: bytes  # the GUID of this queue manager
    queue_id: int
    destination: str
    peer: str
    for_others: bool  # the queue holds relayed messages
    dying: list[Dying]
    message_number: int | None  # only the message with this number is meant; None: all
    message_class: int
    reason: str
    kind: Kind
    system_queues: SystemQueues
    wall_ms: int
    now_s: int  # by the queue manager's own clock
    is_kept_here: bool = False  # no other computer keeps it: a dead letter without a request, too

    def run(self, db: sqlite3.Connection) -> list[Found]:
        """Remove the messages in the open transaction; return each as it was found."""
        found = self._with_dead_letter_queues(db, [self._find(db, each) for each in self.dying])
        removed = [each for each in found if each.is_removed]
        # Before their rows are deleted, because a shared part goes with the last row that uses it.
        self._keep_dead_letters(db, [each for each in removed if each.is_kept])
        event_rows.insert(db, self._events(found))
        owed_rows.add(
            db,
            [
                owed_rows.Owed(each.dying.place, self.message_class, self.for_others, each.packet)
                for each in removed
                if self.is_owed(each.packet)
            ],
        )
        base = self.queue_id << LOOKUP_BITS
        outgoing_rows.delete(db, [base | each.dying.key for each in removed])
        awaiting_rows.remember_unconfirmed(
            db,
            [
                message_number(each.packet)
                for each in removed
                if wants_final_ack(each.packet) and not self.for_others
            ],
            self.queue_id,
            self.now_s,
        )
        return found

    def is_owed(self, packet: bytes) -> bool:
        """Return whether an acknowledgment may be due that only this computer sends."""
        return is_owed(
            packet,
            self.message_class,
            for_others=self.for_others,
            is_found_here=self.is_kept_here,
        )

    def _find(self, db: sqlite3.Connection, dying: Dying) -> Found:
        row = outgoing_rows.find(db, self.queue_id << LOOKUP_BITS | dying.key)
        if row is None:
            return Found(dying)
        if not row.is_whole:
            at_s = self.wall_ms // 1000
            put_aside(db, self.events, "outgoing", row.key, self.destination, at_s)
            return Found(dying, row.packet, is_intact=False)
        is_meant = self.message_number in (None, message_number(row.packet))
        return Found(dying, row.packet, is_meant, is_kept=self._is_kept(row), part_id=row.part_id)

    def _is_kept(self, row: OutgoingRow) -> bool:
        if self.for_others:
            # The source of a transactional message has it, and keeps it as a dead letter.
            return wants_dead_letter(row.packet) and not is_transactional(row.packet)
        if self.is_kept_here and not row.discard and is_of_application(row.packet):
            return True
        return is_kept_as_dead(row.packet, discard=row.discard)

    def _with_dead_letter_queues(self, db: sqlite3.Connection, found: list[Found]) -> list[Found]:
        """Return the found messages with the dead-letter queue of each that is kept."""
        kept = [each.packet for each in found if each.is_removed and each.is_kept]
        queues = iter(dead_letter_queues(db, kept, self.own_id, self.system_queues))
        return [
            each._replace(dead_letters=next(queues)) if each.is_removed and each.is_kept else each
            for each in found
        ]

    def _keep_dead_letters(self, db: sqlite3.Connection, kept: list[Found]) -> None:
        rows = [
            (
                each.dead_letters[0] << LOOKUP_BITS | each.dying.place,
                self.wall_ms,
                None,
                self.reason,
                patch_class(each.packet, self.message_class),
                each.part_id,
            )
            for each in kept
        ]
        message_rows.insert(db, [row[:5] for row in rows if row[5] is None])
        message_rows.insert_copies(
            db, [(*row[:4], *cut(row[4], row[5])) for row in rows if row[5] is not None]
        )

    def _events(self, found: list[Found]) -> list[Event]:
        removed = [each for each in found if each.is_removed]
        events = self.events.of_packets(
            EventHeader(
                self.kind,
                queue=self.destination,
                message_class=self.message_class,
                reason=self.reason,
            ),
            [each.packet for each in removed],
        )
        events += self.events.of_packets(
            EventHeader(
                Kind.DISCARDED,
                queue=self.destination,
                message_class=self.message_class,
                reason=UNWANTED,
            ),
            [each.packet for each in removed if not each.is_kept],
        )
        targets: dict[tuple[int, str], list[Found]] = {}
        for each in removed:
            if each.is_kept:
                targets.setdefault(each.dead_letters, []).append(each)
        for (_, name), kept in targets.items():
            events += self.events.of_packets(
                EventHeader(
                    Kind.DEAD_LETTERED,
                    queue=self.destination,
                    to_queue=name,
                    message_class=self.message_class,
                    reason=self.reason,
                ),
                [each.packet for each in kept],
                places=[each.dying.place for each in kept],
            )
        # A message without its row was acknowledged after its removal had begun, in this batch.
        events += self.events.of_messages(
            EventHeader(Kind.ORDER_ACKNOWLEDGED, queue=self.destination, peer=self.peer),
            (
                (self.own_id, each.dying.sent.message_number, -1, each.dying.sent.size)
                for each in found
                if not each.packet and each.dying.sent is not None
            ),
        )
        return events


def dead_letter_queues(
    db: sqlite3.Connection, packets: list[bytes], own_id: bytes, system_queues: SystemQueues
) -> list[tuple[int, str]]:
    """Return the id and name of the dead-letter queue of each packet.

    It is the queue that its application has named, if this queue manager is its source and the
    queue still exists and is not being deleted; otherwise one of the system's.
    """
    ours = [message_number(packet) for packet in packets if source_of(packet) == own_id]
    named = own_dead_letters.queues_of(db, ours) if ours and system_queues.has_named else {}
    named = {n: queue for n, queue in named.items() if queue[0] not in system_queues.being_deleted}
    return [
        (source_of(packet) == own_id and named.get(message_number(packet)))
        or system_queues.of(is_transactional=is_transactional(packet))
        for packet in packets
    ]
