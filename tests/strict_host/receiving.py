"""The messages that a strict host receives: its queues, and the judge of the sender's numbering.

QB 3.1.1.5, 3.1.5.8.1, 3.1.5.8.6, 3.1.7.1.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.strict_host.decoding import Arrived
from tests.strict_host.encoding import (
    RECEIVED,
    Name,
    Place,
    direct,
    final_ack_draft,
    order_ack_draft,
)
from tests.strict_host.sending import Item

if TYPE_CHECKING:
    from tests.strict_host.host import StrictHost
    from tests.strict_host.session import Session

NEVER = float("inf")


@dataclass
class Incoming:
    """A transactional sequence that comes to a queue."""

    sequence: int = 0
    number: int = 0
    rejected: int = 0
    last_order_ack: float = 0.0
    order_ack_at: float = NEVER
    session: Session | None = None
    source: bytes = b""
    # The judge's side: the numbers that were seen on the wire.
    seen_sequence: int = 0
    seen_number: int = 0


@dataclass
class Receiving:
    """Queues, and everything that was received."""

    host: StrictHost
    queues: dict[str, list[Arrived]] = field(default_factory=dict)
    streams: dict[tuple[bytes, str], Incoming] = field(default_factory=dict)
    first_seen: dict[tuple[bytes, int], Arrived] = field(default_factory=dict)
    places: dict[tuple[str, int, int], tuple[bytes, int]] = field(default_factory=dict)
    times: dict[tuple[bytes, int], list[float]] = field(default_factory=dict)
    sessions_of: dict[tuple[bytes, int], list[Session]] = field(default_factory=dict)
    acked: set[tuple[bytes, int]] = field(default_factory=set)  # a session ack was sent
    finished: set[tuple[bytes, int]] = field(default_factory=set)  # must not come again
    refusing: dict[str, int] = field(default_factory=dict)  # queue -> class of its final acks
    sent_order_acks: list[tuple[str, int, int]] = field(default_factory=list)

    def take(self, session: Session, arrived: Arrived) -> None:
        """Accept or reject an application's message."""
        queue = arrived.to.text.rpartition("\\")[2].lower() if arrived.to.kind == 7 else arrived.to
        self._judge_repetition(session, arrived)
        if arrived.place is None:
            if len(self.times[arrived.key]) == 1:  # 3.1.5.8.1
                self.queues.setdefault(str(queue), []).append(arrived)
            return
        self._judge_place(session, str(queue), arrived)
        stream = self.streams.setdefault((arrived.source, str(queue)), Incoming())
        place = arrived.place
        is_next = (
            place.sequence == stream.sequence
            and place.number > stream.number
            and place.previous <= stream.number
        ) or (place.sequence > stream.sequence and place.previous == 0)
        if is_next and str(queue) in self.refusing:
            self._send_final_ack(session, arrived, self.refusing[str(queue)])
        elif is_next:
            stream.sequence, stream.number, stream.rejected = place.sequence, place.number, 0
            self.queues.setdefault(str(queue), []).append(arrived)
            if arrived.journal or place.flags & 2:
                self._send_final_ack(session, arrived)
        else:
            stream.rejected += 1
        self._schedule(stream, session, arrived.source)

    # -- the judge --

    def _judge_repetition(self, session: Session, arrived: Arrived) -> None:
        require = self.host.verdict.require
        first = self.first_seen.setdefault(arrived.key, arrived)
        self.times.setdefault(arrived.key, []).append(self.host.now())
        sessions = self.sessions_of.setdefault(arrived.key, [])
        text = f"message {arrived.message_id} {arrived.place}"
        if arrived.place is None:
            require(session not in sessions, "QB 3.1.5.5", f"{text} twice on one session")
        sessions.append(session)
        gone = arrived.key in self.finished
        require(not gone, "QB 3.1.5.6", f"{text} after the receipt of its order ack")
        same = _without_previous(first) == _without_previous(arrived)
        require(same, "QB 3.1.7.1.3", f"{text} changed from {first.raw.hex()}")
        age_s = self.host.wall() - arrived.sent_time
        fresh = arrived.reach_s == 0xFFFFFFFF or age_s <= arrived.reach_s + 1
        require(fresh, "QB 3.1.7.1.2", f"{text} sent when expired")

    def _judge_place(self, session: Session, queue: str, arrived: Arrived) -> None:
        require, clause = self.host.verdict.require, "QB 3.1.1.5"
        place = arrived.place
        assert place is not None
        key = queue, place.sequence, place.number
        holder = self.places.setdefault(key, arrived.key)
        require(holder == arrived.key, clause, f"place {key} of {holder} and of {arrived.key}")
        stream = self.streams.setdefault((arrived.source, queue), Incoming())
        is_resent = len(self.times[arrived.key]) > 1
        if place.sequence > stream.seen_sequence:
            old = queue, stream.seen_sequence
            acked = [number for *of, number in self.sent_order_acks if (of[0], of[1]) == old]
            good = self.host.has_gaps or max(acked, default=0) >= stream.seen_number
            require(good, clause, f"a new sequence with {stream.seen_number} of the old unacked")
            good = place.number == 1 or self.host.has_gaps
            require(good, clause, f"number {place.number} begins a sequence")
            stream.seen_sequence, stream.seen_number = place.sequence, 0
        if not require(place.sequence == stream.seen_sequence, clause, "a prior sequence"):
            return
        self._judge_link(session, queue, place)
        if is_resent:
            return
        good = place.number == stream.seen_number + 1 or (
            self.host.has_gaps and place.number > stream.seen_number
        )
        require(good, clause, f"number {place.number} after {stream.seen_number}")
        # A session that ended may have lost the first transmission.
        may_be_resent = self.host.has_gaps or bool(self.host.ended)
        good = place.previous == place.number - 1 or may_be_resent
        require(good, "QB 3.1.7.1.3", f"previous {place.previous} of new number {place.number}")
        stream.seen_number = max(place.number, stream.seen_number)

    def _judge_link(self, session: Session, queue: str, place: Place) -> None:
        """Judge that a message names the one before it in the sender's table: QB 3.1.7.1.3."""
        stream = queue, place.sequence
        last = session.last_numbers.get(stream, 0)
        session.last_numbers[stream] = place.number
        acked = [number for *of, number in self.sent_order_acks if (of[0], of[1]) == stream]
        if not self.host.has_gaps and max(acked, default=0) < last < place.number:
            text = f"number {place.number} names {place.previous}, and came after {last}"
            self.host.verdict.require(place.previous == last, "QB 3.1.7.1.3", text)

    # -- order acks: QB 3.1.1.6.2, 3.1.6.9 --

    def _schedule(self, stream: Incoming, session: Session, source: bytes) -> None:
        now, times = self.host.now(), self.host.manner.times
        stream.session, stream.source = session, source
        since = now - stream.last_order_ack
        if stream.order_ack_at == NEVER or since < times.order_ack_delay_max_s:
            stream.order_ack_at = now + times.order_ack_s

    def due(self) -> float:
        return min((stream.order_ack_at for stream in self.streams.values()), default=NEVER)

    def tick(self) -> None:
        now, manner = self.host.now(), self.host.manner
        for (_, queue), stream in self.streams.items():
            if stream.order_ack_at > now:
                continue
            stream.order_ack_at, stream.last_order_ack = NEVER, now
            session = stream.session
            if session is None or session.is_over or manner.order_acks_withheld:
                continue
            if stream.number == 0:
                continue
            for _ in range(manner.order_ack_copies):
                self.send_order_ack(queue, stream.sequence, stream.number, session)
            if manner.stale_order_acks and len(self.sent_order_acks) > 1:
                earlier = self.host.random.choice(self.sent_order_acks)
                self.send_order_ack(*earlier, session)

    def send_order_ack(self, queue: str, sequence: int, number: int, session: Session) -> None:
        """Send an OrderAck, also one that repeats an earlier one."""
        self.sent_order_acks.append((queue, sequence, number))
        to, address = self._order_queue(session)
        draft = order_ack_draft(
            self.host.guid, self.host.next_id(), to, address, int(self.host.wall()),
            (sequence, number),
        )  # fmt: skip
        covered = frozenset(
            key
            for (each, each_sequence, each_number), key in self.places.items()
            if (each, each_sequence) == (queue, sequence)
            and each_number <= number
            and key in self.acked
        )
        self._send(draft, session, self.host.manner.order_ack_delay_s, covered)

    def _send_final_ack(
        self, session: Session, arrived: Arrived, message_class: int = RECEIVED
    ) -> None:
        place = arrived.place
        assert place is not None
        to, address = self._order_queue(session)
        draft = final_ack_draft(
            self.host.guid, self.host.next_id(), to, address, int(self.host.wall()), message_class,
            (place.sequence, place.number, place.previous, arrived.source, arrived.message_id),
        )  # fmt: skip
        self._send(draft, session, self.host.manner.final_ack_delay_s, frozenset())

    def _order_queue(self, session: Session) -> tuple[Name, bytes]:
        if session.is_direct and not self.host.manner.names_by_guid:
            return direct(f"TCP:{self.host.peer_address}\\PRIVATE$\\order_queue$"), bytes(16)
        return Name(3, number=4), session.peer

    def _send(
        self,
        draft: object,
        session: Session,
        delay_s: float,
        covered: frozenset[tuple[bytes, int]],
    ) -> None:
        item = Item(draft, is_internal=True, only_on=session)  # type: ignore[arg-type]
        item.settled_keys = covered
        item.settles = ("", 0, 0) if covered else None
        item.earliest = self.host.now() + delay_s if delay_s else 0.0
        self.host.sending.table.append(item)
        self.host.pump()

    def bit_sent(self, arrived: Arrived) -> None:
        """Note that a session ack of a message has been sent."""
        self.acked.add(arrived.key)

    def settled(self, item: Item) -> None:
        """Note that the sender has stored an order ack: its messages must not come again."""
        self.finished |= item.settled_keys


def _without_previous(arrived: Arrived) -> bytes:
    """Return the bytes of a message without the only field that a resend may change.

    SH in BaseHeader.Flags belongs to the session.
    """
    raw = bytearray(arrived.raw)
    raw[2] &= ~0x10
    if arrived.place is not None:
        at = 64
        for name in (arrived.to, arrived.admin, arrived.response):
            at += len(name.encode(0))
        at += 16 if int.from_bytes(raw[60:64], "little") >> 22 & 1 else 0
        raw[at + 16 : at + 20] = bytes(4)
    return bytes(raw)
