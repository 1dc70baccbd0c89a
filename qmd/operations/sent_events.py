"""Events about messages that are sent: one event for all messages that go the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.events.header import DELIVERIES, EventHeader, Kind
from qmd.queues.outgoing_queue import OutgoingQueue

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Route
    from storage.tables.events import Event


def sent_to(
    recorder: Recorder, own_id: bytes, route: Route, delivery: int, transaction: str = ""
) -> Event:
    """Return the event of the open batch about messages of this computer that go one way."""
    return recorder.group(
        EventHeader(
            Kind.SENT,
            queue=route.destination if isinstance(route, OutgoingQueue) else route.name,
            sequence_id=route.sequence.sequence_id
            if isinstance(route, OutgoingQueue) and delivery == TRANSACTIONAL
            else 0,
            transaction=transaction,
            delivery=DELIVERIES[delivery],
        ),
        own_id,
    )


class SentEvents:
    """The events about the messages of one request; `transaction` is its id as text, or ""."""

    def __init__(self, recorder: Recorder, own_id: bytes, transaction: str) -> None:
        self.enabled = recorder.enabled
        self._recorder = recorder
        self._own_id = own_id
        self._transaction = transaction
        self._event: Event | None = None
        self._route: Route | None = None
        self._delivery = 0
        self._copies: dict[tuple[int, bool], Event] = {}  # by delivery, and if in sequences

    def of(self, route: Route, delivery: int) -> Event:
        """Return the event about messages to `route`, to which the caller adds numbers, sizes and
        places; the same event until a message goes another way."""
        event = self._event
        if event is None or self._route is not route or self._delivery != delivery:
            event = sent_to(self._recorder, self._own_id, route, delivery, self._transaction)
            self._event, self._route, self._delivery = event, route, delivery
        return event

    def begin_copies(self) -> None:
        """Begin new events for the copies of the next message to several queues."""
        self._copies.clear()

    def end_copies(self) -> None:
        """Begin a new event for the next message to one queue."""
        self._event = None

    def of_copies(self, delivery: int, *, in_sequences: bool) -> Event:
        """Return the event about copies with this delivery; the caller adds their queues too."""
        event = self._copies.get((delivery, in_sequences))
        if event is None:
            event = self._copies[delivery, in_sequences] = self._recorder.of_copies(
                EventHeader(
                    Kind.SENT, transaction=self._transaction, delivery=DELIVERIES[delivery]
                ),
                in_sequences=in_sequences,
            )
        return event

    def of_copy(self, route: Route, delivery: int) -> Event:
        """Return the event about one copy, to which its queue is added already."""
        if isinstance(route, OutgoingQueue):
            in_sequence = delivery == TRANSACTIONAL
            event = self.of_copies(delivery, in_sequences=in_sequence)
            event.queues.append(route.destination)
            event.sequence_ids.append(route.sequence.sequence_id if in_sequence else 0)
        else:
            event = self.of_copies(delivery, in_sequences=False)
            event.queues.append(route.name)
            event.sequence_ids.append(0)
        return event
