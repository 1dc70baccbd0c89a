"""Conversation: one session, packet by packet, with the state that its rules refer to.

    bytes of each end ──► packets ──► fields, the messages that they are about, violations

Both ends are judged alike.  A capture that begins in the middle of a session, or lacks a part of
it, is followed from the next packet on; counts are then taken from the next header.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from protocol import packets as wire
from protocol.acknowledgments import MessageKind, classify, final_ack_body, order_ack_body
from protocol.errors import ProtocolError
from protocol.framing import BrokenStream, PacketBuffer
from protocol.headers import SessionHeader
from protocol.identifiers import guid_text, message_id_text
from protocol.message_class import MessageClass
from protocol.packets import PacketKind, packet_kind
from protocol.records import ConnectionParameters, EstablishConnection, UserMessage
from qmd.interop import rules
from qmd.interop.fields import fields
from qmd.interop.rules import Violation, must, should

_QB, _MQ = "MS-MQQB", "MS-MQMQ"
_SIGNATURE = b"LIOR"
KNOWN_MAX = 100_000  # messages that acknowledgments may still name
SEARCHED_BYTES_MAX = 1 << 16

REQUEST, RESPONSE = "connection request", "connection response"
PARAMETERS = "connection parameters"
SESSION_ACK, MESSAGE = "session ack", "message"
ORDER_ACK, FINAL_ACK = "order ack", "final ack"
ACKNOWLEDGMENT, REPORT = "acknowledgment", "report"
BROKEN = "broken"
KINDS = (
    *(REQUEST, RESPONSE, PARAMETERS, SESSION_ACK, MESSAGE, ORDER_ACK, FINAL_ACK),
    *(ACKNOWLEDGMENT, REPORT, BROKEN),
)


class Seen(NamedTuple):
    """A packet of a conversation."""

    at: float
    by_initiator: bool
    kind: str
    bytes: bytes
    fields: tuple[tuple[str, str], ...]
    summary: str
    about: tuple[str, ...]  # the ids of the messages that it carries or acknowledges
    violations: tuple[Violation, ...]


class Streams:
    """Transactional positions that were seen in any session, for order acks over any other."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], str] = {}
        self._highest: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._latest: dict[tuple[bytes, str, str], int] = {}

    def add(self, packet: UserMessage, name: str, receiver: str) -> Iterator[Violation]:
        """Record the position of a message; `receiver` is the GUID of the end that gets it.

        Two receivers may have one address: a name in a packet has no port.
        """
        transaction, user = packet.transaction, packet.user
        assert transaction is not None
        sequence, number = transaction.sequence_id, transaction.sequence_number
        highest = self._highest.get(sequence, 0)
        if highest and number > highest and transaction.previous_number not in (0, highest):
            found = f"{transaction.previous_number}, and {highest} was sent before"
            yield must(_QB, "3.1.7.1.3", f"PreviousTxSequenceNumber is {found}")
        place = user.source_queue_manager, str(user.destination_queue), receiver
        latest = self._latest.get(place, 0)
        if sequence < latest:
            yield must(_QB, "3.1.1.3.1", "TxSequenceID is below one that was used before")
        if len(self._ids) >= KNOWN_MAX:
            del self._ids[next(iter(self._ids))]
        self._ids[sequence, number] = name
        self._highest[sequence] = max(highest, number)
        self._latest[place] = max(latest, sequence)

    def acknowledged(self, sequence: int, number: int) -> tuple[str, ...]:
        """Return the ids of the messages that an order ack is the first to acknowledge.

        A repeated one acknowledges the message at its position again.
        """
        before = self._acknowledged.get(sequence, 0)
        first = max(min(before + 1, number), number - KNOWN_MAX)
        self._acknowledged[sequence] = max(before, number)
        places = range(first, number + 1)
        if len(places) > len(self._ids):
            found = [name for place, name in self._ids.items() if place[0] == sequence]
            return tuple(found)
        return tuple(
            name for each in places if (name := self._ids.get((sequence, each))) is not None
        )

    def is_sent(self, sequence: int, number: int) -> bool | None:
        """Return whether a position was sent; None: the sequence is not in the capture."""
        highest = self._highest.get(sequence)
        return None if highest is None else number <= highest


class _Side:
    """The packets of one end."""

    def __init__(self) -> None:
        self.buffer = PacketBuffer()
        self.tail: bytes | None = None  # bytes in which the next packet is searched
        self.sent = 0  # messages
        self.recoverable = 0
        self.is_counted = False  # the counts are known, from the beginning or from a header
        self.window: int | None = None
        self.messages = 0
        self.bytes = 0
        #: Messages without an acknowledgment: count, number among recoverable ones, id.
        self.unacknowledged: deque[tuple[int, int, str]] = deque()
        self.unstored: dict[int, str] = {}  # recoverable ones, by their number


class Conversation:
    """The packets of one session.  `initiator` and `acceptor` name its ends."""

    def __init__(
        self, initiator: str, acceptor: str, *, is_complete: bool = True, streams: Streams | None
    ) -> None:
        self.initiator, self.acceptor = initiator, acceptor
        self.is_complete = is_complete
        self.first_at = self.last_at = 0.0
        self.packets = 0
        self.violations = 0
        self.lost_bytes = 0
        self.guids = ["", ""]  # of the initiator, of the acceptor
        self.is_open = not is_complete
        self.is_refused = False
        self._streams = streams or Streams()
        self._sides = (_Side(), _Side())
        self._request: EstablishConnection | None = None
        self._response: EstablishConnection | None = None
        self._parameters: ConnectionParameters | None = None
        for side in self._sides:
            side.is_counted = is_complete
            if not is_complete:
                side.tail = b""

    @property
    def messages(self) -> tuple[int, int]:
        """The number of messages of the initiator and of the acceptor."""
        return self._sides[0].messages, self._sides[1].messages

    @property
    def unacknowledged(self) -> tuple[int, int]:
        """The numbers of their messages that have no acknowledgment of receipt."""
        return len(self._sides[0].unacknowledged), len(self._sides[1].unacknowledged)

    def feed(self, by_initiator: bool, at: float, data: bytes, lost: int = 0) -> Iterator[Seen]:
        """Yield the packets that bytes of one end complete; `lost` bytes before them are lost."""
        side = self._sides[0 if by_initiator else 1]
        self.first_at = self.first_at or at
        self.last_at = at
        side.bytes += len(data)
        if lost:
            self.lost_bytes += lost
            side.buffer, side.tail, side.is_counted = PacketBuffer(), b"", False
        if side.tail is not None:
            found = _search(side.tail + data)
            if found is None:
                side.tail = (side.tail + data)[-SEARCHED_BYTES_MAX:]
                return
            data, side.tail = found, None
        fault: BrokenStream | None = None
        try:
            packets = side.buffer.feed(data)
        except BrokenStream as broken:
            packets, fault = broken.packets, broken
        for packet in packets:
            yield self._counted(self._packet(side, by_initiator, at, packet))
        if fault is not None:
            text = f"{fault.field} at offset {fault.offset}: {fault.rule}"
            side.buffer, side.tail, side.is_counted = PacketBuffer(), b"", False
            broken_rule = must(_QB, "3.1.5.1.3", text)
            yield self._counted(
                Seen(at, by_initiator, BROKEN, data[:64], (), text, (), (broken_rule,))
            )

    def _counted(self, seen: Seen) -> Seen:
        self.packets += 1
        self.violations += len(seen.violations)
        return seen

    def _packet(self, side: _Side, by_initiator: bool, at: float, packet: bytes) -> Seen:
        """Describe and judge a packet."""
        violations: list[Violation] = []
        about: list[str] = []
        try:
            kind, record, summary = self._take(side, by_initiator, packet, violations, about)
            shown = tuple(fields(record))
        except ProtocolError as error:
            text = f"{error.field} at offset {error.offset}: {error.rule}"
            violations.append(must(_QB, "3.1.5.1.3", text))
            kind, summary, shown = BROKEN, text, ()
        return Seen(at, by_initiator, kind, packet, shown, summary, tuple(about), tuple(violations))

    def _take(
        self,
        side: _Side,
        by_initiator: bool,
        packet: bytes,
        violations: list[Violation],
        about: list[str],
    ) -> tuple[str, Any, str]:
        """Return the kind, the record and the summary of a packet.  Raises ProtocolError."""
        match packet_kind(packet):
            case PacketKind.ESTABLISH_CONNECTION:
                return self._establish(by_initiator, packet, violations)
            case PacketKind.CONNECTION_PARAMETERS:
                return self._take_parameters(side, by_initiator, packet, violations)
            case PacketKind.SESSION_ACK:
                header = wire.parse_session_ack(packet)
                self._must_be_open(violations, "3.1.5.5", "a SessionAck")
                violations += self._acknowledge(side, header, about)
                return SESSION_ACK, header, _acks(header)
        return self._message(side, by_initiator, packet, violations, about)

    def _must_be_open(self, violations: list[Violation], section: str, what: str) -> None:
        if not self.is_open:
            violations.append(must(_QB, section, f"{what} before the session is open"))

    # The handshake.

    def _establish(
        self, by_initiator: bool, packet: bytes, violations: list[Violation]
    ) -> tuple[str, Any, str]:
        record = wire.parse_establish_connection(packet)
        names = dict(fields(record))
        is_refused = bool(record.internal.flags.connection_refused)
        if by_initiator:
            if self._request is not None and not (self._response and is_refused):
                violations.append(must(_QB, "3.1.5.3", "a second connection request"))
            violations += rules.request(record) if not is_refused else ()
            self._request = self._request or record
            self.guids[0] = names["EstablishConnectionHeader.ClientGuid"]
            return REQUEST, record, f"of {self.guids[0]}"
        if self._request is None:
            violations.append(must(_QB, "3.1.5.3", "a connection response without a request"))
        else:
            violations += rules.response(record, self._request)
        self._response = record
        self.guids[1] = names["EstablishConnectionHeader.ServerGuid"]
        self.is_refused = is_refused
        return RESPONSE, record, ("refused by " if is_refused else "of ") + self.guids[1]

    def _take_parameters(
        self, side: _Side, by_initiator: bool, packet: bytes, violations: list[Violation]
    ) -> tuple[str, Any, str]:
        record = wire.parse_connection_parameters(packet)
        if self.is_refused:
            violations.append(must(_QB, "3.1.5.3.2", "parameters after a refusal"))
        if by_initiator:
            if self._response is None or self._parameters is not None:
                violations.append(must(_QB, "3.1.5.4", "connection parameters at another time"))
            violations += rules.parameters(record, None)
            self._parameters = record
        else:
            if self._parameters is None:
                violations.append(must(_QB, "3.1.5.4", "parameters that answer none"))
            violations += rules.parameters(record, self._parameters)
            self.is_open = True
        side.window = record.window_size
        summary = (
            f"window {record.window_size}, AckTimeout {record.ack_timeout} ms,"
            f" RecoverableAckTimeout {record.recoverable_ack_timeout} ms"
        )
        return PARAMETERS, record, summary

    # Messages.

    def _message(
        self,
        side: _Side,
        by_initiator: bool,
        packet: bytes,
        violations: list[Violation],
        about: list[str],
    ) -> tuple[str, Any, str]:
        record = wire.parse_user_message(packet)
        user, properties = record.user, record.properties
        name = message_id_text(user.source_queue_manager, user.message_number)
        # An initiator may send messages right behind its parameters.
        may_be_open = self.is_open or (by_initiator and self._parameters is not None)
        if not may_be_open:
            violations.append(must(_QB, "3.1.5.8", "a user message before the session is open"))
        sender = self.guids[0 if by_initiator else 1]
        is_relayed = guid_text(user.source_queue_manager) != sender
        kind = self._kind(record, violations, about, is_relayed=is_relayed)
        if kind in (MESSAGE, ACKNOWLEDGMENT, REPORT):
            violations += rules.message(record)
            about.append(name)
            if record.transaction is not None:
                violations += self._streams.add(record, name, self.guids[1 if by_initiator else 0])
        side.messages += 1
        side.sent += 1
        number = 0
        if user.flags.delivery:
            side.recoverable += 1
            number = side.recoverable
            side.unstored[number] = name
        side.unacknowledged.append((side.sent, number, name))
        for kept in (side.unacknowledged, side.unstored):
            if len(kept) > KNOWN_MAX:
                kept.popleft() if isinstance(kept, deque) else kept.pop(next(iter(kept)))
        other = self._sides[1 if by_initiator else 0]
        if other.window is not None and len(side.unacknowledged) > max(other.window, 1):
            text = f"{len(side.unacknowledged)} messages are unacknowledged, the window has"
            violations.append(should(_QB, "3.1.7.1", f"{text} {other.window}"))
        if record.session is not None:
            violations += self._acknowledge(side, record.session, about)
        label = "" if not properties.label else f" {dict(fields(properties))[_LABEL]}"
        summary = f"{name}{label}, {len(properties.body)} bytes"
        if record.transaction is not None:
            position = record.transaction
            summary += f", position {position.sequence_number} of {position.sequence_id:#x}"
        return kind, record, summary

    def _kind(
        self,
        record: UserMessage,
        violations: list[Violation],
        about: list[str],
        *,
        is_relayed: bool,
    ) -> str:
        """Return the kind of a user message; check acknowledgments."""
        properties = record.properties
        match classify(record, record.user.queue_manager_address):
            case MessageKind.ORDER_ACK:
                violations += rules.ordering(record, is_relayed=is_relayed)
                body = order_ack_body(record)
                about += self._streams.acknowledged(body.sequence_id, body.sequence_number)
                if body.previous_number != body.sequence_number - 1:
                    text = "the body's previous number is not its number less one"
                    violations.append(must(_QB, "2.2.4.1", text))
                if self._streams.is_sent(body.sequence_id, body.sequence_number) is False:
                    text = f"an order ack of {body.sequence_number}, which was not sent"
                    violations.append(must(_QB, "3.1.1.6.2", text))
                return ORDER_ACK
            case MessageKind.FINAL_ACK:
                violations += rules.ordering(record, is_relayed=is_relayed)
                final = final_ack_body(record)
                about.append(message_id_text(final.source_queue_manager, final.message_number))
                return FINAL_ACK
        violations += rules.almost_ordering(record)
        if properties.message_class == MessageClass.NORMAL:
            return MESSAGE
        if any(properties.correlation_id):
            source, number = properties.correlation_id[:16], properties.correlation_id[16:]
            about.append(message_id_text(source, int.from_bytes(number, "little")))
        return REPORT if properties.message_class == MessageClass.REPORT else ACKNOWLEDGMENT

    # Acknowledgments of receipt.

    def _acknowledge(
        self, side: _Side, header: SessionHeader, about: list[str]
    ) -> Iterator[Violation]:
        """Yield what is wrong with a SessionHeader of one end, and apply it."""
        other = self._sides[1 if side is self._sides[0] else 0]
        if side.is_counted:
            for title, found, counted in (
                ("UserMsgSequenceNumber", header.sent_number, side.sent),
                ("RecoverableMsgSeqNumber", header.recoverable_sent_number, side.recoverable),
            ):
                if found != counted & 0xFFFF:
                    text = f"{title} is {found}, and {counted & 0xFFFF} messages were sent"
                    yield must(_QB, "3.1.5.5.5", text)
        else:
            side.sent, side.recoverable = header.sent_number, header.recoverable_sent_number
            side.is_counted = True
        side.window = header.window_size
        if other.is_counted:
            yield from self._received(other, header, about)
            yield from self._stored(other, header, about)

    def _received(
        self, other: _Side, header: SessionHeader, about: list[str]
    ) -> Iterator[Violation]:
        """Apply the count of received messages to the end that has sent them."""
        missing = (other.sent - header.ack_number) & 0xFFFF
        if missing > len(other.unacknowledged):
            if missing >= 0x8000:
                text = f"AckSequenceNumber is {header.ack_number}, and {other.sent & 0xFFFF} were"
                yield must(_MQ, "2.2.20.4", f"{text} sent")
            elif other.sent - missing > 0:
                yield must(_MQ, "2.2.20.4", "AckSequenceNumber has fallen")
            return
        while len(other.unacknowledged) > missing:
            _, _, name = other.unacknowledged.popleft()
            about.append(name)

    def _stored(self, other: _Side, header: SessionHeader, about: list[str]) -> Iterator[Violation]:
        """Apply the flags of stored messages to the end that has sent them."""
        number, flags = header.recoverable_ack_number, header.recoverable_ack_flags
        if not number:
            if flags:
                yield must(_MQ, "2.2.20.4", "RecoverableMsgAckFlags without a number")
            return
        behind = (other.recoverable - number) & 0xFFFF
        first = other.recoverable - behind
        if behind >= 0x8000 or flags.bit_length() - 1 > behind:
            text = f"stored messages from {number} on are acknowledged, and"
            yield must(_MQ, "2.2.20.4", f"{text} {other.recoverable & 0xFFFF} were sent")
            return
        for place in range(flags.bit_length()):
            if flags >> place & 1:
                name = other.unstored.pop(first + place, None)
                if name is not None and name not in about:
                    about.append(name)


_LABEL = "MessagePropertiesHeader.Label"


def _acks(header: SessionHeader) -> str:
    stored = ""
    if header.recoverable_ack_number:
        stored = (
            f", stored from {header.recoverable_ack_number} on: 0x{header.recoverable_ack_flags:X}"
        )
    return f"{header.ack_number} received{stored}, window {header.window_size}"


def _search(data: bytes) -> bytes | None:
    """Return bytes from the next packet on, or None if none begins in them."""
    at = 4
    while (at := data.find(_SIGNATURE, at)) >= 0:
        if data[at - 4] == 0x10:
            return data[at - 4 :]
        at += 1
    return None
