"""Events of a unit of work: it learns only in its commit what happens.

A unit runs on the thread of the storage and gets values, never objects of the event loop.  Such a
value is `UnitEvents`; `Recorder.for_unit` returns one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from qmd.core import packet_fields
from qmd.events.header import EventHeader, Kind, identity_of
from storage.tables.events import Event

#: The kinds of events that have the labels of their messages.  Operators search dead letters by
#: label; for other kinds the labels are rarely needed.
LABELLED = frozenset((Kind.DEAD_LETTERED, Kind.DISCARDED))

#: Source, number, place (lookup id, or -1) and size of a message.
MessageFields = tuple[bytes, int, int, int]


class UnitEvents(NamedTuple):
    """Makes the events of one unit; `at_ms` is the wall clock, in milliseconds since 1970."""

    enabled: bool
    at_ms: int

    def of_packets(
        self, header: EventHeader, packets: Sequence[bytes], *, places: Sequence[int] = ()
    ) -> list[Event]:
        """Return new events for `packets`, one for each source; none if events are disabled.

        `places` are the lookup ids of the packets, or nothing.
        """
        events = self.of_messages(
            header,
            (
                (*identity_of(packet), places[index] if places else -1, len(packet))
                for index, packet in enumerate(packets)
            ),
        )
        if header.kind in LABELLED:
            by_source = {event.source: event for event in events}
            for packet in packets if events else ():
                by_source[identity_of(packet)[0]].labels.append(label_of(packet))
        return events

    def of_messages(self, header: EventHeader, messages: Iterable[MessageFields]) -> list[Event]:
        """Return new events for messages without packets, one for each source."""
        if not self.enabled:
            return []
        by_source: dict[bytes, Event] = {}
        for source, number, place, size in messages:
            event = by_source.get(source)
            if event is None:
                event = by_source[source] = new_event(header, source, self.at_ms)
            event.numbers.append(number)
            event.sizes.append(size)
            if place >= 0:
                event.places.append(place)
        return list(by_source.values())


def new_event(header: EventHeader, source: bytes, at_ms: int) -> Event:
    """Return an event without messages."""
    return Event(
        kind=header.kind.value,
        at_ms=at_ms,
        source=source,
        numbers=[],
        queue=header.queue,
        peer=header.peer,
        sequence_id=header.sequence_id,
        message_class=header.message_class,
        reason=header.reason,
        to_queue=header.to_queue,
        transaction=header.transaction,
        delivery=header.delivery,
    )


def label_of(packet: bytes) -> str:
    """Return the label of a packet; "" if it ends before its label."""
    try:
        return packet_fields.label_of(packet)
    except ProtocolError:
        return ""
