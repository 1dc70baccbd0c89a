"""The messages that a strict host sends: its outgoing table and sequences (QB 3.1.1.5, 3.1.7.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.strict_host import encoding
from tests.strict_host.decoding import Arrived
from tests.strict_host.encoding import FINAL_WANTED, FIRST, LAST, Draft, Name, Place

if TYPE_CHECKING:
    from tests.strict_host.host import StrictHost
    from tests.strict_host.session import Session

NEVER = float("inf")
REQUESTED_BY = {2: 1, 0x4000: 2}  # MessageClass -> the bit of MessagePropertiesHeader.Flags


def absolute(name: Name, manager: bytes) -> Name:
    """Return a private queue's name with the GUID of its queue manager."""
    if name.kind in (2, 3):
        return Name(6, guid=manager, number=name.number)
    return name


@dataclass(eq=False)
class Item:
    """An OutgoingMessagePosition: QB 3.1.1.3.1.2."""

    draft: Draft
    stream: str = ""  # the queue of a transactional message
    place: Place | None = None
    transaction: int = 0
    session: Session | None = None  # AwaitingAck: the session that has sent it
    is_session_acked: bool = False
    is_order_acked: bool = False
    is_internal: bool = False  # an order or final ack of this host
    settles: tuple[str, int, int] | None = None  # of an order ack: queue, sequence, number
    settled_keys: frozenset[tuple[bytes, int]] = frozenset()
    earliest: float = 0.0
    only_on: Session | None = None  # the session from which an order ack was scheduled

    @property
    def is_recoverable(self) -> bool:
        return self.draft.recoverable or bool(self.stream)


@dataclass
class Stream:
    """An outgoing sequence to one queue."""

    sequence: int
    next_number: int = 1
    resend_index: int = 0
    resend_at: float = NEVER


@dataclass
class Sending:
    """The OutgoingMessageTable, and the judge of the acknowledgments that come for it."""

    host: StrictHost
    table: list[Item] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=dict)
    sent: dict[int, Item] = field(default_factory=dict)  # by MessageID, for ever
    highest: dict[int, int] = field(default_factory=dict)  # sequence -> number transmitted
    order_acked: dict[int, int] = field(default_factory=dict)
    final_acks: list[tuple[int, Item]] = field(default_factory=list)
    admin_acks: list[Arrived] = field(default_factory=list)
    settled: int = 0  # messages that an acknowledgment has ended
    on_settled: Callable[[int], None] | None = None  # called at once, with their number
    timestamp: int = 0
    ordinal: int = 0

    # -- taking messages from applications --

    def add(self, draft: Draft, stream: str = "", flags: int = FIRST | LAST) -> Item:
        """Put a message into the table; `stream` names the queue of a transactional one."""
        item = Item(draft, stream=stream, transaction=flags | draft.message_id % 2**20 << 4)
        self.table.append(item)
        self.sent[draft.message_id] = item
        return item

    def new_sequence(self) -> int:
        self.ordinal += 1
        return self.timestamp << 32 | self.ordinal

    @property
    def pending(self) -> list[Item]:
        """Return the messages of applications that are not settled."""
        return [item for item in self.table if not item.is_internal]

    # -- transmission --

    def pump(self, sessions: list[Session]) -> None:
        """Transmit in the order of the table as far as windows allow."""
        now = self.host.now()
        full: set[Session | None] = {None}
        for item in list(self.table):
            if item.session is not None or item.is_session_acked or item.earliest > now:
                continue
            if item.only_on is not None and item.only_on.is_over:
                item.only_on = None
            session = item.only_on or (sessions[0] if sessions else None)
            if session in full or session is None or not session.has_room:
                full.add(session)
                continue
            item.session = session
            session.transmit(item, encoding.message(self._stamped(item)))

    def number(self, item: Item) -> Stream:
        """Give a transactional message its place when it is first transmitted: QB 3.1.7.1.3."""
        stream = self.streams.get(item.stream)
        if stream is None:
            stream = self.streams[item.stream] = Stream(self.new_sequence())
        if item.place is None:
            number = stream.next_number
            item.place = Place(stream.sequence, number, number - 1, item.transaction)
            stream.next_number += 1
            self.highest[stream.sequence] = number
        return stream

    def drop(self, item: Item) -> None:
        """Remove a message that expired before its transmission: QB 3.1.7.1.2."""
        self._remove(item)

    def _stamped(self, item: Item) -> Draft:
        """Return the message as it is transmitted now."""
        if not item.stream:
            return item.draft
        is_resent = item.place is not None
        stream = self.number(item)
        assert item.place is not None
        if is_resent:
            before = [
                other.place.number
                for other in self.table[: self.table.index(item)]
                if other.stream == item.stream and other.place is not None
            ]
            keeps = self.host.manner.keeps_previous and not self.host.has_gaps
            previous = before[-1] if before else item.place.previous if keeps else 0
            item.place = replace(item.place, previous=previous)
        if stream.resend_at == NEVER:
            stream.resend_at = self.host.now() + self._interval(stream)
        connector = item.draft.place.connector if item.draft.place else b""
        return replace(item.draft, place=replace(item.place, connector=connector))

    def _interval(self, stream: Stream) -> float:
        table = self.host.manner.times.resend_s
        return table[min(stream.resend_index, len(table) - 1)]

    def session_ended(self, session: Session) -> None:
        """Let each unsettled message be transmitted again: QB 3.1.3.2."""
        for item in self.table:
            if item.session is session:
                item.session, item.is_session_acked = None, False

    # -- acknowledgments --

    def acknowledged(self, item: Item) -> None:
        """Take a session ack: QB 3.1.5.5.2, 3.1.5.5.3."""
        if item.settles is not None:
            self.host.receiving.settled(item)
        if not item.stream or item.is_order_acked:
            self._remove(item)

    def _remove(self, item: Item) -> None:
        if item in self.table:
            self.table.remove(item)
            self.settled += 1
            if self.on_settled is not None:
                self.on_settled(self.settled)
        stream = self.streams.get(item.stream)
        if stream is not None and not any(each.stream == item.stream for each in self.table):
            stream.sequence, stream.next_number = self.new_sequence(), 1
            stream.resend_index, stream.resend_at = 0, NEVER

    def take_order_ack(self, arrived: Arrived, session: Session) -> None:
        """Take an OrderAck: QB 3.1.5.6."""
        sequence, number = arrived.word(0, 8), arrived.word(8)
        require, clause = self.host.verdict.require, "QB 3.1.1.6.2"
        highest = self.highest.get(sequence)
        text = f"order ack {number} of {sequence:#x}, of which {highest} were sent"
        if not require(highest is not None and number <= highest, clause, text):
            return
        before = self.order_acked.get(sequence, 0)
        self.order_acked[sequence] = max(before, number)
        for item in list(self.table):
            place = item.place
            if place is not None and place.sequence == sequence and place.number <= number:
                item.is_order_acked = True
                if item.is_session_acked:
                    self._remove(item)

    def take_final_ack(self, arrived: Arrived) -> None:
        """Take a FinalAck: QB 3.1.5.7, and judge its body by QB 2.2.5.1."""
        require, clause = self.host.verdict.require, "QB 2.2.5.1"
        source, message_id = arrived.body[16:32], arrived.word(32)
        item = self.sent.get(message_id)
        known = source == self.host.guid and item is not None and item.place is not None
        if not require(known, clause, f"of message {source.hex()}\\{message_id}, which is unknown"):
            return
        assert item is not None
        assert item.place is not None
        told = arrived.word(0, 8), arrived.word(8)
        require(told == (item.place.sequence, item.place.number), clause, f"place {told}")
        if arrived.message_class in (0x4000, 0xC000, 0xC001, 0xC002, 0xC004):
            wanted = item.draft.journal or item.transaction & FINAL_WANTED
            require(wanted, "QB 3.1.7.2.2", f"class {arrived.message_class:#x}, not asked for")
        self.final_acks.append((arrived.message_class, item))
        self._remove(item)

    def take_admin_ack(self, arrived: Arrived) -> None:
        """Judge an administration acknowledgment: QB 3.1.7.15."""
        require, clause = self.host.verdict.require, "QB 3.1.7.15"
        source, message_id = arrived.correlation[:16], arrived.correlation[16:]
        item = self.sent.get(int.from_bytes(message_id, "little"))
        known = source == self.host.guid and item is not None
        if not require(known, clause, f"CorrelationID {arrived.correlation.hex()}"):
            return
        assert item is not None
        draft, message_class = item.draft, arrived.message_class
        bit = REQUESTED_BY.get(message_class, 8 if message_class >= 0xC000 else 4)
        require(draft.acks & bit, clause, f"class {message_class:#x}, not asked for")
        same = absolute(arrived.response, arrived.source) == absolute(draft.to, draft.address)
        require(same, clause, f"ResponseQueue {arrived.response} for {draft.to}")
        require(arrived.acks == 0 and arrived.journal == 0, clause, "acks or journals requested")
        require(arrived.reach_s == arrived.receive_s == 0xFFFFFFFF, clause, "lifetimes")
        require(arrived.place is None, clause, "a transactional acknowledgment")
        require(arrived.is_recoverable == item.is_recoverable, clause, "DeliveryGuarantee")
        expected = b"" if message_class in (2, 0x4000) else draft.body
        require(arrived.body in (expected, b""), clause, "the body")
        self.admin_acks.append(arrived)

    # -- timers --

    def due(self) -> float:
        waiting = [item.earliest for item in self.table if item.session is None]
        times = [time for time in waiting if time > self.host.now()]
        return min([*times, *(stream.resend_at for stream in self.streams.values())], default=NEVER)

    def tick(self) -> None:
        """Resend all transactional messages of a stream when its timer is over: QB 3.1.6.5."""
        now = self.host.now()
        for name, stream in self.streams.items():
            if stream.resend_at <= now:
                stream.resend_index += 1
                stream.resend_at = now + self._interval(stream)
                for item in self.table:
                    if item.stream == name:
                        item.session, item.is_session_acked = None, False
