"""Messages of a request in columns: one for each queue, delivery and priority.

    put (in parts) ──► columns ──► write (column_writer.py): one turn of the loop, one batch

To put a message into the open batch takes 3 to 15 µs, so that a request of 65,536 messages to three
queues held the event loop for a second and a half.  All that does not depend on the place of a
message is collected in columns before, between other work.  The turn that gives the places then
works on columns: some 0.5 µs for a message.

The place of a message in its queue is that of its turn in the request, whatever its column:
`orders` has that turn, and `sequels` that among the messages of one outgoing sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.core.packet_fields import reach_time_s, receive_time_s
from qmd.message.limits import PRIORITY_MAX
from qmd.message.shared_packet import Packet, Part, SharedPacket, head_of, whole
from qmd.properties.trace import trace_of
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from qmd.naming.destinations import Route
    from qmd.operations.delayed import DelayedRows
    from qmd.outcomes.prepared_ends import PreparedEnd


_Value = TypeVar("_Value")


class Term(NamedTuple):
    """The lifetimes of messages; `example` is one of them."""

    reach_s: int | None
    live_s: int | None
    example: NewMessage


class Column:
    """Messages that go to one queue with one delivery and one priority, as parallel lists."""

    __slots__ = (
        *("correlations", "dead_letter_queues", "delivery", "has_parts", "heads", "level"),
        *("numbers", "orders", "parts", "route", "sequels", "sizes", "terms", "traces"),
    )

    def __init__(self, route: Route, delivery: int, level: int, *, has_parts: bool) -> None:
        self.route = route
        self.delivery = delivery
        self.level = level
        self.has_parts = has_parts
        self.orders: list[int] = []
        self.numbers: list[int] = []
        self.sizes: list[int] = []
        self.terms: list[int] = []  # indexes of terms
        self.heads: list[bytes] = []  # complete packets, if they have no parts
        self.parts: list[Part] = []  # as many, or none
        self.sequels: list[int] = []  # as many, if the messages belong to a sequence
        # Of messages that have one; the lists end with the last of them.
        self.correlations: list[bytes] = []
        self.traces: list[bytes] = []
        self.dead_letter_queues: list[str] = []

    @property
    def in_sequence(self) -> bool:
        """Whether these messages belong to an outgoing sequence."""
        return self.delivery == TRANSACTIONAL and isinstance(self.route, OutgoingQueue)

    def add(
        self, new: NewMessage, order: int, number: int, packet: Packet, term: int, sequel: int
    ) -> None:
        """Add a message; `sequel` is its turn in its sequence, if it belongs to one."""
        before = len(self.numbers)
        self.orders.append(order)
        self.numbers.append(number)
        self.sizes.append(len(packet))
        self.terms.append(term)
        if isinstance(packet, SharedPacket):
            self.heads.append(packet.head)
            self.parts.append(packet.part)
        else:
            self.heads.append(packet)
        if self.in_sequence:
            self.sequels.append(sequel)
        if new.correlation_id:
            _extend(self.correlations, before, new.correlation_id, b"")
        if new.extension and (trace := trace_of(new.extension)):
            _extend(self.traces, before, trace, b"")
        if new.dead_letter_queue:
            _extend(self.dead_letter_queues, before, new.dead_letter_queue, "")


class Refused(NamedTuple):
    """Transactional copies that a queue of this computer refuses, which is not transactional."""

    column: Column
    #: The acknowledgments of their end, by their places among all messages of the request.
    end: PreparedEnd


class MessageColumns:
    """The columns of one request."""

    def __init__(self, new_refusals: Callable[[], PreparedEnd]) -> None:
        """`new_refusals` begins the acknowledgments of copies that a queue refuses."""
        self._new_refusals = new_refusals
        self.columns: dict[Hashable, Column] = {}
        self.terms: list[Term] = []
        self._terms: dict[Hashable, int] = {}
        self.count = 0  # of messages and copies
        self.parts: dict[int, Part] = {}  # the stored ones, by their ids
        #: Messages of each outgoing sequence.
        self.in_sequences: dict[OutgoingQueue, int] = {}
        #: Packets that arrive here, and ask for a report.
        self.reported: list[Packet] = []
        #: Packets that arrive here, and are acknowledged one by one when they are stored.
        self.unanswered: list[bytes] = []
        self.refused: dict[LocalQueue, Refused] = {}
        self.delayed: DelayedRows | None = None  # of messages that are sent later

    def put(
        self, new: NewMessage, route: Route, delivery: int, number: int, packet: Packet
    ) -> None:
        """Add the next message, or the next copy of one."""
        has_parts = isinstance(packet, SharedPacket)
        is_transactional = delivery == TRANSACTIONAL
        level = PRIORITY_MAX if is_transactional else PRIORITY_MAX - new.priority
        key = route, delivery, level, has_parts
        column = self.columns.get(key)
        if column is None:
            column = self.columns[key] = Column(route, delivery, level, has_parts=has_parts)
        sequel = 0
        if is_transactional and isinstance(route, OutgoingQueue):
            sequel = self.in_sequences.get(route, 0)
            self.in_sequences[route] = sequel + 1
        column.add(new, self.count, number, packet, self._term(new, packet), sequel)
        self.count += 1
        if isinstance(packet, SharedPacket) and packet.part.id:
            self.parts[packet.part.id] = packet.part
        if new.report_queue and isinstance(route, LocalQueue):
            self.reported.append(packet)

    def refuse(self, new: NewMessage, route: Route, number: int, packet: Packet) -> None:
        """Add a copy that its queue refuses.  Message numbers must be left for its
        acknowledgments."""
        assert isinstance(route, LocalQueue)
        refused, complete = self.refused.get(route), whole(packet)
        if refused is None:
            column = Column(route, TRANSACTIONAL, PRIORITY_MAX, has_parts=False)
            refused = self.refused[route] = Refused(column, self._new_refusals())
        refused.column.add(new, self.count, number, complete, 0, 0)
        refused.end.add([(self.count, complete)])
        self.count += 1

    def _term(self, new: NewMessage, packet: Packet) -> int:
        head = head_of(packet)
        times = reach_time_s(head), receive_time_s(head)
        confirmation = (
            *(new.dead_letter, new.journal, new.time_to_be_received_s, new.time_to_reach_queue_s),
        )
        key = times, confirmation
        known = self._terms.get(key)
        if known is None:
            known = self._terms[key] = len(self.terms)
            self.terms.append(Term(*times, new))
        return known


def _extend(values: list[_Value], before: int, value: _Value, missing: _Value) -> None:
    """Append the value of the message after `before` others."""
    values += [missing] * (before - len(values))
    values.append(value)
