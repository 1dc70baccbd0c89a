"""The flight recorder: whatever becomes of a message is told in the commit that makes it so.

    record    tells of what the acts of the open batch do, or of what leaves no trace on disk
    events    the same as values, for a unit that learns only in its commit what happens:
              `storage.events.insert(db, recorder.events(...))`

Events that tell the same of many messages are one.  docs/events.md describes them for readers
outside this program.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qmd.core.stored_packet import message_number, source_of
from storage.events import Event

if TYPE_CHECKING:
    from qmd.manager import QueueManager
    from storage.batch import Batch


class Kind(enum.StrEnum):
    """What can happen.  Names are part of the schema of events: they stay."""

    SENT = "sent"  # taken over from an application, into a queue here or an outgoing queue
    TRANSMITTED = "transmitted"
    RETRANSMITTED = "retransmitted"
    SESSION_ACKNOWLEDGED = "session_acknowledged"  # a plain one is the other computer's now
    ORDER_ACKNOWLEDGED = "order_acknowledged"  # a transactional one is
    ACCEPTED = "accepted"  # from another computer, into a queue here
    DUPLICATE = "duplicate"  # came again, and was not kept again
    OUT_OF_ORDER = "out_of_order"  # came too early, and will be sent again
    REFUSED = "refused"  # came, and is not kept in its queue; the class and the reason say why
    RECEIVED = "received"  # by an application: it has left its queue
    ABORTED = "aborted"  # was to be received, and is back at its place
    MOVED = "moved"
    JOURNALED = "journaled"  # a copy was kept in `to_queue`
    JOURNAL_FULL = "journal_full"  # no copy was kept: its quota is reached
    EXPIRED = "expired"  # its time was over
    PURGED = "purged"
    QUEUE_DELETED = "queue_deleted"
    REJECTED = "rejected"  # by its receiving application
    DEAD_LETTERED = "dead_lettered"  # is in `to_queue` now
    DISCARDED = "discarded"  # ended, and nobody wanted a dead letter
    FINAL_ACK_SENT = "final_ack_sent"
    FINAL_ACK_RECEIVED = "final_ack_received"
    CONFIRMED = "confirmed"  # an application elsewhere has received it
    UNCONFIRMED = "unconfirmed"  # nobody said so within the interval
    LATE_CONFIRMATION = "late_confirmation"  # somebody did after that
    ACKNOWLEDGED = "acknowledged"  # an acknowledgment message went to `to_queue`
    REPORTED = "reported"  # a report message went to `to_queue`
    DAMAGED = "damaged"  # is not what was stored, and was set aside
    EXPORTED = "exported"
    IMPORTED = "imported"
    REQUEUED = "requeued"  # sent again as another message


class Recorder:
    """Builds events from packets and gives them to the open batch."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    def record(
        self,
        kind: Kind,
        packets: Sequence[bytes],
        *,
        batch: Batch | None = None,
        queue: str = "",
        peer: str = "",
        places: Sequence[int] = (),
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
    ) -> None:
        """Tell of `packets` with the open batch, or the one that is given."""
        batch = batch or self._manager.storage.batch
        for event in self.events(
            kind,
            packets,
            queue=queue,
            peer=peer,
            places=places,
            message_class=message_class,
            reason=reason,
            to_queue=to_queue,
            transaction=transaction,
        ):
            batch.record(event)

    def events(
        self,
        kind: Kind,
        packets: Sequence[bytes],
        *,
        queue: str = "",
        peer: str = "",
        places: Sequence[int] = (),
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
    ) -> list[Event]:
        """One event for each source among `packets`; `places` are their lookup ids, or nothing."""
        at_ms = int(self._manager.environment.time() * 1000)
        by_source: dict[bytes, Event] = {}
        for index, packet in enumerate(packets):
            source = source_of(packet)
            event = by_source.get(source)
            if event is None:
                event = by_source[source] = Event(
                    kind=kind.value,
                    at_ms=at_ms,
                    source=source,
                    numbers=[],
                    queue=queue,
                    peer=peer,
                    places=[],
                    message_class=message_class,
                    reason=reason,
                    to_queue=to_queue,
                    transaction=transaction,
                    sizes=[],
                )
            event.numbers.append(message_number(packet))  # type: ignore[attr-defined]
            event.sizes.append(len(packet))  # type: ignore[attr-defined]
            event.bytes += len(packet)
            if places:
                event.places.append(places[index])  # type: ignore[attr-defined]
        return list(by_source.values())
