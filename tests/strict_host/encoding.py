"""The packets that a strict host sends, byte by byte, in each form that the text allows.

`untidy` packets have noise wherever the text leaves a value free: paddings, reserved fields and
bits that a receiver MUST ignore.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

FOREVER = 0xFFFFFFFF
NULL = bytes(16)
NOISE = 0xCD

# MQ 2.2.19.1 BaseHeader.Flags, from the least significant bit.
INTERNAL, SESSION, DEBUG, TRACE = 1 << 3, 1 << 4, 1 << 5, 1 << 8
BASE_UNUSED = 1 << 6 | 1 << 7 | 0xFE00
# QB 2.2.1 InternalHeader.Flags.
ACK_PACKET, ESTABLISH_PACKET, PARAMETERS_PACKET, REFUSED = 1, 2, 3, 1 << 4
INTERNAL_UNUSED = 0xFFE0
# MQ 2.2.19.2 UserHeader.Flags.
RECOVERABLE, JN, JP = 1 << 5, 1 << 8, 1 << 9
SECURITY, TRANSACTION, PROPERTIES, CONNECTOR = 1 << 19, 1 << 20, 1 << 21, 1 << 22
LISTS, OVER_HTTP, SOAP = 1 << 23, 1 << 25, 1 << 28
USER_UNUSED = 1 << 7 | 1 << 24 | 3 << 26 | 7 << 29
# MQ 2.2.20.5 TransactionHeader.Flags.
CONNECTOR_QM, FINAL_WANTED, FIRST, LAST = 1, 2, 4, 8

ORDER_LABEL = "QM Ordering Ack"
ORDER_ACK, RECEIVED = 0x00FF, 0x4000


@dataclass(frozen=True)
class Name:
    """The name of a queue, with its type: DQ, AQ or RQ of MQ 2.2.19.2."""

    kind: int = 0
    text: str = ""
    guid: bytes = b""
    number: int = 0

    def encode(self, filler: int) -> bytes:
        match self.kind:
            case 0 | 1:
                return b""
            case 2 | 3 | 4:
                return self.number.to_bytes(4, "little")
            case 5:
                return self.guid
            case 6:
                return self.guid + self.number.to_bytes(4, "little")
        letters = wide(self.text)
        return up_to_four(len(letters).to_bytes(2, "little") + letters, filler)


def direct(text: str) -> Name:
    return Name(7, text)


@dataclass(frozen=True)
class Place:
    """The position of a message in a transactional sequence: MQ 2.2.20.5."""

    sequence: int  # TimeStamp in the upper half, Ordinal in the lower
    number: int
    previous: int
    flags: int = FIRST | LAST
    connector: bytes = b""


@dataclass(frozen=True)
class Secrets:
    """A SecurityHeader: its flags and the five items of its data, MQ 2.2.20.6."""

    flags: int = 0x81
    items: tuple[bytes, bytes, bytes, bytes, bytes] = (b"", b"", b"", b"", b"")


@dataclass(frozen=True)
class Counts:
    """A SessionHeader, MQ 2.2.20.4; the numbers are unbounded here and 16 bits on the wire."""

    received: int
    first_stored: int
    stored_bits: int
    sent: int
    recoverable_sent: int
    window: int

    def encode(self, filler: int = 0) -> bytes:
        return struct.pack(
            "<HHLHHHH",
            self.received % 65536,
            self.first_stored % 65536,
            self.stored_bits,
            self.sent % 65536,
            self.recoverable_sent % 65536,
            self.window,
            filler * 257,
        )


@dataclass(frozen=True)
class Draft:
    """The content of a UserMessage packet."""

    source: bytes
    message_id: int
    to: Name
    sent_time: int
    address: bytes = NULL
    body: bytes = b""
    label: str = ""
    extension: bytes = b""
    body_type: int = 0
    tag: int = 0
    priority: int = 3
    recoverable: bool = False
    journal: int = 0  # JN, JP
    hops: int = 0
    reach_s: int = 345_600
    receive_s: int = FOREVER
    acks: int = 0  # PA, PR, NA, NR
    admin: Name = field(default_factory=Name)
    response: Name = field(default_factory=Name)
    connector_type: bytes = b""
    message_class: int = 0
    correlation: bytes = bytes(20)
    place: Place | None = None
    secrets: Secrets | None = None
    privacy: int = 0
    hash_algorithm: int = 0x8004
    cipher: int = 0x6801
    spare_bytes: int = 0  # AllocationBodySize beyond the body
    report_queue: bytes | None = None  # b"": a DebugHeader without a queue
    is_traced: bool = False
    soap: tuple[str, str] | None = None
    lists: tuple[Sequence[Name], Sequence[Name], Sequence[Name]] | None = None
    list_padding_counts: bool = False  # whether HeaderSize counts the padding: notes 32
    trailer: bytes = b""  # an ExtensionHeader as of MS-MQRR, inside of PacketSize
    untidy: bool = False

    @property
    def filler(self) -> int:
        return NOISE if self.untidy else 0


def wide(text: str) -> bytes:
    """Return a null-terminated string of WCHARs."""
    return (text + "\0").encode("utf-16-le")


def up_to_four(data: bytes, filler: int) -> bytes:
    return data + bytes([filler]) * (-len(data) % 4)


# -- packets of the session --


def _internal(kind: int, rest: bytes, flags: int = 0, *, untidy: bool = False) -> bytes:
    base_flags = 3 | INTERNAL | flags | (BASE_UNUSED if untidy else 0)
    reserved, kind = (0x5A, kind | INTERNAL_UNUSED) if untidy else (0, kind)
    head = struct.pack(
        "<BB2s4sLLHH",
        0x10, reserved, base_flags.to_bytes(2, "little"), b"LIOR", 20 + len(rest), FOREVER,
        NOISE * 257 if untidy else 0, kind,
    )  # fmt: skip
    return head + rest


def establish(
    client: bytes,
    server: bytes,
    timestamp: int,
    system: int,
    *,
    refused: bool = False,
    is_answer: bool = False,
    untidy: bool = False,
) -> bytes:
    """Return an EstablishConnection packet, QB 2.2.3."""
    padding = b"\x5a" * 512 if is_answer else bytes(range(256)) * 2
    system |= 0xF800 if untidy else 0
    fields = struct.pack("<16s16sLHH", client, server, timestamp, system, NOISE if untidy else 0)
    kind = ESTABLISH_PACKET | (REFUSED if refused else 0)
    return _internal(kind, fields + padding, untidy=untidy)


def parameters(recoverable_ms: int, ack_ms: int, window: int, *, untidy: bool = False) -> bytes:
    """Return a ConnectionParameters packet, QB 2.2.2."""
    reserved = NOISE if untidy else 0
    fields = struct.pack("<LLHH", recoverable_ms, ack_ms, reserved, window)
    return _internal(PARAMETERS_PACKET, fields, untidy=untidy)


def session_ack(counts: Counts, *, untidy: bool = False) -> bytes:
    """Return a SessionAck packet, QB 2.2.6: its PacketSize counts the SessionHeader."""
    rest = counts.encode(NOISE if untidy else 0)
    return _internal(ACK_PACKET, rest, SESSION, untidy=untidy)


# -- user messages --


def message(draft: Draft) -> bytes:
    """Return a UserMessage packet without a SessionHeader, MQ 2.2.20."""
    parts = [_user_header(draft)]
    if draft.place is not None:
        parts.append(_transaction_header(draft.place, untidy=draft.untidy))
    if draft.secrets is not None:
        parts.append(_security_header(draft.secrets, draft.filler, untidy=draft.untidy))
    parts.append(_properties_header(draft))
    if draft.report_queue is not None:
        kind = 1 if draft.report_queue else 0
        flags = kind | (0xFFFC if draft.untidy else 0)
        parts.append(struct.pack("<HH", flags, draft.filler) + draft.report_queue)
    if draft.soap is not None:
        parts.append(_soap_header(*draft.soap, draft.filler))
    if draft.lists is not None:
        parts.append(_lists_header(draft))
    rest = b"".join(parts) + draft.trailer
    flags = 0 if draft.place is not None else draft.priority
    flags |= DEBUG if draft.report_queue is not None else 0
    flags |= TRACE if draft.is_traced else 0
    flags |= BASE_UNUSED if draft.untidy else 0
    head = struct.pack(
        "<BBH4sLL", 0x10, draft.filler, flags, b"LIOR", 16 + len(rest), draft.reach_s
    )
    return head + rest


def with_counts(packet: bytes, counts: Counts, filler: int = 0) -> bytes:
    """Return a user message with a SessionHeader, which its PacketSize does not count."""
    flags = int.from_bytes(packet[2:4], "little") | SESSION
    return packet[:2] + flags.to_bytes(2, "little") + packet[4:] + counts.encode(filler)


def _user_header(draft: Draft) -> bytes:
    flags = draft.hops | draft.journal | PROPERTIES
    flags |= RECOVERABLE if draft.recoverable or draft.place is not None else 0
    flags |= draft.to.kind << 10 | draft.admin.kind << 13 | draft.response.kind << 16
    flags |= SECURITY if draft.secrets is not None else 0
    flags |= TRANSACTION if draft.place is not None else 0
    flags |= CONNECTOR if draft.connector_type else 0
    flags |= LISTS if draft.lists is not None else 0
    flags |= SOAP if draft.soap is not None else 0
    flags |= USER_UNUSED if draft.untidy else 0
    head = struct.pack(
        "<16s16sLLLL",
        draft.source, draft.address, draft.receive_s, draft.sent_time, draft.message_id, flags,
    )  # fmt: skip
    names = (draft.to, draft.admin, draft.response)
    return head + b"".join(name.encode(draft.filler) for name in names) + draft.connector_type


def _transaction_header(place: Place, *, untidy: bool) -> bytes:
    flags = place.flags | (CONNECTOR_QM if place.connector else 0) | (0xFF << 24 if untidy else 0)
    data = struct.pack("<LQLL", flags, place.sequence, place.number, place.previous)
    return data + place.connector


def _security_header(secrets: Secrets, filler: int, *, untidy: bool) -> bytes:
    flags = secrets.flags | (0xF000 if untidy else 0)
    head = struct.pack("<HHHHLL", flags, *map(len, secrets.items))
    return head + b"".join(up_to_four(item, filler) for item in secrets.items)


def _properties_header(draft: Draft) -> bytes:
    label = wide(draft.label) if draft.label else b""
    head = struct.pack(
        "<BBH20sLLLLLLLL",
        draft.acks | (0xF0 if draft.untidy else 0),
        len(label) // 2,
        draft.message_class,
        draft.correlation,
        draft.body_type,
        draft.tag,
        len(draft.body),
        len(draft.body) + draft.spare_bytes,
        draft.privacy,
        draft.hash_algorithm,
        draft.cipher,
        len(draft.extension),
    )
    return up_to_four(head + label + draft.extension + draft.body, draft.filler)


def _soap_header(header: str, body: str, filler: int) -> bytes:
    sections = []
    for number, text in ((0x0320, header), (0x0384, body)):
        letters = wide(text)
        head = struct.pack("<HHL", number, filler, len(letters) // 2)
        sections.append(up_to_four(head + letters, filler))
    return b"".join(sections)


def _lists_header(draft: Draft) -> bytes:
    assert draft.lists is not None
    sections = []
    for number, names in zip((0x0064, 0x00C8, 0x012C), draft.lists, strict=True):
        elements = b""
        for name in names:
            elements += _element(name, len(elements), draft.filler)
        size = 12 + len(elements)
        if draft.list_padding_counts:
            size += -size % 4
        head = struct.pack("<LHHL", size, number, draft.filler, len(names))
        sections.append(up_to_four(head + elements, draft.filler))
    return b"".join(sections) + struct.pack("<HHL", 0x015E, draft.filler, 0)


def _element(name: Name, offset: int, filler: int) -> bytes:
    """Return an MQFFormatNameElement (MQ 2.2.18.1.4) that begins at `offset` of its list."""
    kind = {7: 3, 5: 1, 6: 2, 8: 6}[name.kind]  # 8: a distribution list, which only a list can have
    data = kind.to_bytes(2, "little")
    if kind == 3:
        return data + wide(name.text)
    data += bytes([filler]) * (-(offset + 2) % 4)
    return data + name.guid + (name.number.to_bytes(4, "little") if kind == 2 else b"")


# -- acknowledgments end to end --


def order_ack_draft(
    source: bytes, message_id: int, to: Name, address: bytes, sent_time: int, place: tuple[int, int]
) -> Draft:
    """Return an OrderAck of (sequence, number), QB 2.2.4."""
    sequence, number = place
    body = struct.pack("<QLL20s", sequence, number, number - 1, bytes(20))
    return _internal_message(source, message_id, to, address, sent_time, ORDER_ACK, body)


def final_ack_draft(
    source: bytes,
    message_id: int,
    to: Name,
    address: bytes,
    sent_time: int,
    message_class: int,
    of: tuple[int, int, int, bytes, int],
) -> Draft:
    """Return a FinalAck of (sequence, number, previous, source, message id), QB 2.2.5."""
    body = struct.pack("<QLL16sL", *of)
    return _internal_message(source, message_id, to, address, sent_time, message_class, body)


def _internal_message(
    source: bytes,
    message_id: int,
    to: Name,
    address: bytes,
    sent_time: int,
    message_class: int,
    body: bytes,
) -> Draft:
    return Draft(
        source=source,
        message_id=message_id,
        to=to,
        sent_time=sent_time,
        address=address,
        body=body,
        label=ORDER_LABEL,
        priority=0,
        recoverable=True,
        reach_s=FOREVER,
        message_class=message_class,
    )
