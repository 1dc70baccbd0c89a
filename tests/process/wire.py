"""MS-MQQB packets, built freely and parsed strictly: the tests' own reading of the specification.

Nothing here comes from the daemon's packages.  What cannot be built by keyword is built
wrong on purpose, by patching the bytes.  What the daemon sends is taken apart to the
last byte, and the first rule that it breaks raises `Violation` with the section.

`QB` is [MS-MQQB], `MQ` is [MS-MQMQ].
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

SIGNATURE = 0x524F494C
PACKET_BYTES_MAX = 0x00400000
FOREVER = 0xFFFFFFFF
NULL_GUID = bytes(16)

IN, SH, DH, TR = 0x08, 0x10, 0x20, 0x100  # BaseHeader.Flags
SESSION_ACK, ESTABLISH, PARAMETERS = 1, 2, 3  # InternalHeader.Flags.PT
REFUSED = 0x10  # InternalHeader.Flags.CS

# UserHeader.Flags
DM, JN, JP = 0x20, 0x100, 0x200
SECURITY, TRANSACTION, PROPERTIES, CONNECTOR = 1 << 19, 1 << 20, 1 << 21, 1 << 22
MULTI_QUEUE, SOAP = 1 << 23, 1 << 28
USER_RESERVED = 0x80 | 1 << 24 | 1 << 25 | 3 << 26 | 7 << 29  # X1 X2 AH X3 X4

# MessagePropertiesHeader.Flags
PA, PR, NA, NR = 1, 2, 4, 8

NORMAL, ORDER_ACK, ACK_RECEIVE = 0x0000, 0x00FF, 0x4000
FINAL_ACK_CLASSES = {
    ACK_RECEIVE,
    0x8000,
    0x8001,
    0x8002,
    0x8003,
    0x8004,
    0x8005,
    0x8006,
    0x8007,
    0x8009,
    0x800A,
    0x800B,
    0xC000,
    0xC001,
    0xC002,
    0xC004,
}
KNOWN_CLASSES = FINAL_ACK_CLASSES | {NORMAL, 1, 2, ORDER_ACK}
ORDER_LABEL = "QM Ordering Ack"
ORDER_QUEUE_ID = 4


class Violation(AssertionError):
    """The daemon sent something that the specification does not allow."""


def require(condition: object, section: str, text: str) -> None:
    if not condition:
        raise Violation(f"[{section}] {text}")


# --- what packets are made of -------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    flags: int
    size: int
    time_to_reach_queue: int
    reserved: int = 0

    @property
    def priority(self) -> int:
        return self.flags & 7


@dataclass(frozen=True)
class Session:
    """SessionHeader, MQ 2.2.20.4: all numbers as on the wire, modulo 2**16."""

    acknowledged: int = 0
    recoverable_acknowledged: int = 0
    recoverable_flags: int = 0
    sent: int = 0
    recoverable_sent: int = 0
    window: int = 64
    reserved: int = 0

    def build(self) -> bytes:
        return struct.pack(
            "<HHIHHHH",
            self.acknowledged & 0xFFFF,
            self.recoverable_acknowledged & 0xFFFF,
            self.recoverable_flags,
            self.sent & 0xFFFF,
            self.recoverable_sent & 0xFFFF,
            self.window,
            self.reserved,
        )


@dataclass(frozen=True)
class Establish:
    refused: bool
    client: bytes
    server: bytes
    timestamp: int
    operating_system: int
    padding: bytes


@dataclass(frozen=True)
class Parameters:
    recoverable_ack_timeout_ms: int
    ack_timeout_ms: int
    window: int


@dataclass(frozen=True)
class Transaction:
    """TransactionHeader, MQ 2.2.20.5; `sequence_id` is (TimeStamp << 32 | Ordinal)."""

    flags: int
    sequence_id: int
    number: int
    previous: int
    connector: bytes | None = None

    def build(self) -> bytes:
        data = struct.pack("<IQII", self.flags, self.sequence_id, self.number, self.previous)
        return data + (self.connector or b"")


@dataclass(frozen=True)
class Name:
    """A queue name of a UserHeader: its type (DQ, AQ, RQ) and what stands for it."""

    kind: int
    text: str = ""
    guid: bytes = b""
    number: int = 0

    def build(self) -> bytes:
        if self.kind in (0, 1):
            return b""
        if self.kind in (2, 3, 4):
            return struct.pack("<I", self.number)
        if self.kind == 5:
            return self.guid
        if self.kind == 6:
            return self.guid + struct.pack("<I", self.number)
        raw = self.text.encode("utf-16-le") + b"\0\0"
        return pad4(struct.pack("<H", len(raw)) + raw)


NO_NAME = Name(0)


def direct(text: str) -> Name:
    return Name(7, text=text)


def private(queue: str, host: str = "TCP:127.0.0.1") -> Name:
    """The wire's direct name of a private queue: without `DIRECT=` and without a port."""
    return direct(f"{host}\\private$\\{queue}")


@dataclass(frozen=True)
class QueueLists:
    """MultiQueueFormatHeader, MQ 2.2.20.1: each name as in a UserHeader (types 5, 6 and 7)."""

    destinations: tuple[Name, ...]
    admins: tuple[Name, ...]
    responses: tuple[Name, ...]


@dataclass(frozen=True)
class Message:
    """A UserMessage packet, header by header (MQ 2.2.20)."""

    base: Base
    source: bytes
    address: bytes
    time_to_be_received: int
    sent_time: int
    message_id: int
    flags: int
    destination: Name
    admin: Name
    response: Name
    transaction: Transaction | None
    ack_bits: int
    message_class: int
    correlation: bytes
    body_type: int
    application_tag: int
    label: str
    extension: bytes
    body: bytes
    session: Session | None
    connector: bytes = b""
    sender_id: bytes = b""
    report_queue: bytes = b""  # the GUID in a DebugHeader
    queues: QueueLists | None = None
    raw: bytes = field(repr=False, compare=False, default=b"")

    @property
    def recoverable(self) -> bool:
        return bool(self.flags & DM)

    @property
    def is_order_ack(self) -> bool:
        return self.message_class == ORDER_ACK and is_order_queue(self.destination)

    @property
    def is_final_ack(self) -> bool:
        return (
            self.message_class >= ACK_RECEIVE
            and is_order_queue(self.destination)
            and self.label == ORDER_LABEL
        )

    def order_body(self) -> tuple[int, int, int]:
        """(sequence id, number, previous number) of an OrderAck or FinalAck."""
        return struct.unpack_from("<QII", self.body)

    def final_body(self) -> tuple[bytes, int]:
        """(source queue manager, message id) of a FinalAck."""
        return self.body[16:32], struct.unpack_from("<I", self.body, 32)[0]


Packet = Establish | Parameters | Session | Message


def is_order_queue(name: Name) -> bool:
    if name.kind == 3:
        return name.number == ORDER_QUEUE_ID
    return name.kind == 7 and name.text.lower().endswith("\\private$\\order_queue$")


def pad4(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def now_s() -> int:
    return int(time.time())


# --- building -----------------------------------------------------------------------------


def base(flags: int, size: int, time_to_reach_queue: int = FOREVER, reserved: int = 0) -> bytes:
    return struct.pack("<BBHIII", 0x10, reserved, flags, SIGNATURE, size, time_to_reach_queue)


def internal(kind: int, rest: bytes, *, flags: int = IN | 3, internal_flags: int = 0) -> bytes:
    head = base(flags, 20 + len(rest))
    return head + struct.pack("<HH", 0, kind | internal_flags) + rest


def establish(
    *,
    client: bytes,
    server: bytes = NULL_GUID,
    timestamp: int = 0x1DDECA4E,
    operating_system: int = 0x0310,
    refused: bool = False,
    padding: bytes = bytes(512),
) -> bytes:
    rest = client + server + struct.pack("<IHH", timestamp, operating_system, 0) + padding
    return internal(ESTABLISH, rest, internal_flags=REFUSED if refused else 0)


def parameters(
    *, recoverable_ack_timeout_ms: int = 500, ack_timeout_ms: int = 20_000, window: int = 64
) -> bytes:
    rest = struct.pack("<IIHH", recoverable_ack_timeout_ms, ack_timeout_ms, 0, window)
    return internal(PARAMETERS, rest)


def session_ack(header: Session) -> bytes:
    return internal(SESSION_ACK, header.build(), flags=IN | SH | 3)


def message(
    *,
    source: bytes,
    message_id: int,
    destination: Name,
    body: bytes = b"",
    label: str = "",
    recoverable: bool = False,
    transaction: Transaction | None = None,
    priority: int = 3,
    time_to_reach_queue: int = FOREVER,
    time_to_be_received: int = FOREVER,
    sent_time: int | None = None,
    address: bytes = NULL_GUID,
    admin: Name = NO_NAME,
    response: Name = NO_NAME,
    ack_bits: int = 0,
    dead_letter: bool = False,
    journal: bool = False,
    message_class: int = NORMAL,
    correlation: bytes = bytes(20),
    body_type: int = 0,
    application_tag: int = 0,
    extension: bytes = b"",
    extra_flags: int = 0,
    extra_base_flags: int = 0,
    hops: int = 0,
    connector: bytes = b"",
    security: bytes = b"",
    debug: bytes = b"",
    soap: bytes = b"",
    multi_queue: bytes = b"",
    trailing: bytes = b"",
    session: Session | None = None,
) -> bytes:
    """A UserMessage packet; with `session` a piggybacked SessionHeader is behind PacketSize."""
    if transaction is not None:
        recoverable, priority = True, 0
    flags = (
        hops
        | (DM if recoverable else 0)
        | (JN if dead_letter else 0)
        | (JP if journal else 0)
        | destination.kind << 10
        | admin.kind << 13
        | response.kind << 16
        | (SECURITY if security else 0)
        | (TRANSACTION if transaction is not None else 0)
        | PROPERTIES
        | (CONNECTOR if connector else 0)
        | (MULTI_QUEUE if multi_queue else 0)
        | (SOAP if soap else 0)
        | extra_flags
    )
    user = (
        source
        + address
        + struct.pack(
            "<IIII",
            time_to_be_received,
            now_s() if sent_time is None else sent_time,
            message_id,
            flags,
        )
        + destination.build()
        + admin.build()
        + response.build()
        + connector
    )
    raw_label = label.encode("utf-16-le") + b"\0\0" if label else b""
    properties = (
        struct.pack("<BBH", ack_bits, len(raw_label) // 2, message_class)
        + correlation
        + struct.pack("<IIII", body_type, application_tag, len(body), len(body))
        + struct.pack("<IIII", 0, 0x8004, 0x6801, len(extension))
        + raw_label
        + extension
        + body
    )
    rest = (
        user
        + (transaction.build() if transaction is not None else b"")
        + security
        + pad4(properties)
        + debug
        + soap
        + multi_queue
        + trailing
    )
    base_flags = priority | extra_base_flags | (DH if debug else 0) | (SH if session else 0)
    head = base(base_flags, 16 + len(rest), time_to_reach_queue)
    return head + rest + (session.build() if session else b"")


def order_ack(
    *,
    source: bytes,
    message_id: int,
    sequence_id: int,
    number: int,
    host: str = "TCP:127.0.0.1",
) -> bytes:
    """QB 2.2.4; DeliveryGuarantee recoverable, as QB 3.1.7.17 builds it."""
    body = struct.pack("<QII20x", sequence_id, number, number - 1)
    return message(
        source=source,
        message_id=message_id,
        destination=direct(f"{host}\\PRIVATE$\\order_queue$"),
        body=body,
        label=ORDER_LABEL,
        recoverable=True,
        priority=0,
        message_class=ORDER_ACK,
    )


def final_ack(
    *,
    source: bytes,
    message_id: int,
    message_class: int,
    of: Message,
    host: str = "TCP:127.0.0.1",
) -> bytes:
    """QB 2.2.5: the fate of the transactional message `of`."""
    assert of.transaction is not None
    of_place = of.transaction.sequence_id, of.transaction.number, of.transaction.previous
    return final_ack_of(
        source=source,
        message_id=message_id,
        message_class=message_class,
        place=of_place,
        of_source=of.source,
        of_message_id=of.message_id,
        host=host,
    )


def final_ack_of(
    *,
    source: bytes,
    message_id: int,
    message_class: int,
    place: tuple[int, int, int],
    of_source: bytes,
    of_message_id: int,
    host: str = "TCP:127.0.0.1",
) -> bytes:
    """QB 2.2.5: the fate of whatever has this place, or has it not."""
    body = struct.pack("<QII16sI", *place, of_source, of_message_id)
    return message(
        source=source,
        message_id=message_id,
        destination=direct(f"{host}\\PRIVATE$\\order_queue$"),
        body=body,
        label=ORDER_LABEL,
        recoverable=True,
        priority=0,
        message_class=message_class,
    )


def security_header(
    sender_id: bytes = b"",
    *,
    key: bytes = b"",
    signature: bytes = b"",
    certificate: bytes = b"",
    provider: bytes = b"",
    flags: int | None = None,
) -> bytes:
    """MQ 2.2.20.6."""
    items = (sender_id, key, signature, certificate, provider)
    if flags is None:
        flags = (1 if sender_id else 0) | 0x80
    sizes = struct.pack("<HHHHII", flags, *(len(item) for item in items))
    return sizes + b"".join(pad4(item) for item in items)


def debug_header(queue: bytes = b"") -> bytes:
    """MQ 2.2.20.8."""
    return struct.pack("<HH", 1 if queue else 0, 0) + queue


def soap_header(header: str, body: str) -> bytes:
    """MQ 2.2.20.7."""
    out = b""
    for section, text in ((0x0320, header), (0x0384, body)):
        raw = text.encode("utf-16-le") + b"\0\0"
        out += pad4(struct.pack("<HHI", section, 0, len(raw) // 2) + raw)
    return out


def multi_queue_header(
    destinations: Iterable[str], admins: Iterable[str] = (), responses: Iterable[str] = ()
) -> bytes:
    """MQ 2.2.20.1 with direct names and no signature."""
    out = b""
    for section, texts in ((0x64, destinations), (0xC8, admins), (0x12C, responses)):
        elements = [struct.pack("<H", 3) + text.encode("utf-16-le") + b"\0\0" for text in texts]
        data = b"".join(elements)
        head = struct.pack("<IHHI", 12 + len(data), section, 0, len(elements))
        out += pad4(head + data)
    return out + struct.pack("<HHI", 0x15E, 0, 0)


# --- parsing, strictly --------------------------------------------------------------------


class Reader:
    """Walks over a packet; running over its end is a violation, never an IndexError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def bytes(self, count: int, what: str) -> bytes:
        require(self.at + count <= len(self.data), "QB 3.1.5.1.3", f"{what} runs over PacketSize")
        self.at += count
        return self.data[self.at - count : self.at]

    def unpack(self, layout: str, what: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.bytes(struct.calcsize("<" + layout), what))

    def align(self, what: str) -> None:
        padding = self.bytes(-self.at % 4, f"padding of {what}")
        require(not any(padding), "digest 2", f"padding of {what} is written as zeros")


def parse_base(data: bytes) -> Base:
    version, reserved, flags, signature, size, time_to_reach_queue = struct.unpack_from(
        "<BBHIII", data
    )
    require(version == 0x10, "MQ 2.2.19.1", f"VersionNumber is {version:#x}")
    require(signature == SIGNATURE, "MQ 2.2.19.1", f"Signature is {signature:#x}")
    require(20 <= size <= PACKET_BYTES_MAX, "MQ 2.2.19.1", f"PacketSize is {size}")
    require(size % 4 == 0, "MQ 2.2.19.1", f"PacketSize {size} is not a multiple of 4")
    require(not flags & 0xFEC0, "MQ 2.2.19.1", f"reserved bits of Flags {flags:#06x} are set")
    require(not flags & TR or flags & DH, "MQ 2.2.19.1", "TR without DH")
    return Base(flags, size, time_to_reach_queue, reserved)


def wire_length(header: Base) -> int:
    """Bytes on the wire: a piggybacked SessionHeader is not counted in PacketSize."""
    piggybacked = header.flags & SH and not header.flags & IN
    return header.size + (16 if piggybacked else 0)


def parse(data: bytes) -> Packet:
    """One whole packet as it came from the wire, SessionHeader and all."""
    header = parse_base(data)
    require(len(data) == wire_length(header), "MQ 2.2.19.1", "PacketSize is not the length")
    if header.flags & IN:
        return _parse_internal(header, data)
    return _parse_message(header, data)


def _parse_internal(header: Base, data: bytes) -> Packet:
    require(
        header.time_to_reach_queue == FOREVER, "MQ 2.2.19.1", "TimeToReachQueue is not infinite"
    )
    require(not header.flags & (DH | TR), "MQ 2.2.19.1", "DH or TR in an internal packet")
    read = Reader(data, 16)
    reserved, flags = read.unpack("HH", "InternalHeader")
    require(reserved == 0, "QB 2.2.1", f"InternalHeader.Reserved is {reserved:#x}")
    require(not flags & 0xFFE0, "QB 2.2.1", f"reserved bits of InternalHeader.Flags {flags:#x}")
    kind, refused = flags & 0xF, bool(flags & REFUSED)
    with_session = bool(header.flags & SH)
    require(kind in (1, 2, 3), "QB 2.2.1", f"packet type {kind}")
    require(with_session == (kind == SESSION_ACK), "QB 2.2.6", "SH belongs to a SessionAck only")
    if kind == SESSION_ACK:
        require(header.size == 36, "QB 2.2.6", f"a SessionAck of {header.size} bytes")
        require(not refused, "QB 2.2.1", "CS in a SessionAck")
        return _parse_session(data[20:])
    if kind == ESTABLISH:
        require(header.size == 572, "QB 2.2.3", f"an EstablishConnection of {header.size} bytes")
        client, server = read.bytes(16, "ClientGuid"), read.bytes(16, "ServerGuid")
        timestamp, system, reserved = read.unpack("IHH", "EstablishConnectionHeader")
        require(system & 0xFF == 0x10, "QB 2.2.3.1", f"RE of OperatingSystem {system:#x}")
        require(not system & 0xF800, "QB 2.2.3.1", f"unused bits of OperatingSystem {system:#x}")
        require(reserved == 0, "QB 2.2.3.1", f"Reserved is {reserved:#x}")
        return Establish(refused, client, server, timestamp, system, read.bytes(512, "Padding"))
    require(header.size == 32, "QB 2.2.2", f"a ConnectionParameters of {header.size} bytes")
    require(not refused, "QB 3.1.5.4.1", "CS in a ConnectionParameters packet")
    recoverable_ms, ack_ms, reserved, window = read.unpack("IIHH", "ConnectionParameters")
    require(reserved == 0, "QB 2.2.2.1", f"Reserved is {reserved:#x}")
    return Parameters(recoverable_ms, ack_ms, window)


def _parse_session(data: bytes) -> Session:
    header = Session(*struct.unpack("<HHIHHHH", data))
    require(header.window >= 1, "MQ 2.2.20.4", "WindowSize is 0")
    return header


def _parse_name(read: Reader, kind: int, what: str) -> Name:
    if kind in (0, 1):
        return Name(kind)
    if kind in (2, 3, 4):
        return Name(kind, number=read.unpack("I", what)[0])
    if kind == 5:
        return Name(kind, guid=read.bytes(16, what))
    if kind == 6:
        return Name(kind, guid=read.bytes(16, what), number=read.unpack("I", what)[0])
    (count,) = read.unpack("H", f"Count of {what}")
    require(count >= 4 and count % 2 == 0, "MQ 2.2.18.1.5.2", f"Count of {what} is {count}")
    raw = read.bytes(count, what)
    read.align(what)
    text = raw.decode("utf-16-le")
    require(text.endswith("\0"), "MQ 2.2.18.1.5.2", f"{what} is not terminated")
    require("\0" not in text[:-1], "MQ 2.2.18.1.5.2", f"{what} has a null inside")
    require(
        not text.upper().startswith("DIRECT="), "QB 2.2.4", f"{what} carries DIRECT= on the wire"
    )
    return Name(kind, text=text[:-1])


def _parse_message(header: Base, data: bytes) -> Message:
    read = Reader(data[: header.size], 16)
    source, address = read.bytes(16, "SourceQueueManager"), read.bytes(16, "QueueManagerAddress")
    to_be_received, sent_time, message_id, flags = read.unpack("IIII", "UserHeader")
    require(source != NULL_GUID, "MQ 2.2.19.2", "SourceQueueManager is null")
    require(not flags & USER_RESERVED, "MQ 2.2.19.2", f"reserved bits of UserHeader {flags:#x}")
    require(flags >> 5 & 3 in (0, 1), "MQ 2.2.19.2", "DM is neither express nor recoverable")
    require(flags & PROPERTIES, "MQ 2.2.19.2", "MP is clear")
    kinds = flags >> 10 & 7, flags >> 13 & 7, flags >> 16 & 7
    require(kinds[0] in (3, 5, 7), "MQ 2.2.19.2", f"DQ is {kinds[0]}")
    require(kinds[1] in (0, 2, 3, 5, 6, 7), "MQ 2.2.19.2", f"AQ is {kinds[1]}")
    destination = _parse_name(read, kinds[0], "DestinationQueue")
    admin = _parse_name(read, kinds[1], "AdminQueue")
    response = _parse_name(read, kinds[2], "ResponseQueue")
    if kinds[0] == 7:
        require(address == NULL_GUID, "MQ 2.2.19.2", "a direct name with a QueueManagerAddress")
    else:
        require(address != NULL_GUID, "MQ 2.2.19.2", "no QueueManagerAddress")
    connector = read.bytes(16 if flags & CONNECTOR else 0, "ConnectorType")
    transaction = None
    if flags & TRANSACTION:
        transaction = _parse_transaction(read)
        require(flags & DM, "MQ 2.2.19.2", "a TransactionHeader with DM express")
        require(header.priority == 0, "MQ 2.2.19.1", "a transactional packet with a priority")
    sender_id = _parse_security(read) if flags & SECURITY else b""
    start = read.at
    ack_bits, label_length, message_class = read.unpack("BBH", "MessagePropertiesHeader")
    correlation = read.bytes(20, "CorrelationID")
    body_type, tag, size, allocated = read.unpack("IIII", "MessagePropertiesHeader")
    privacy, _, _, extension_size = read.unpack("IIII", "MessagePropertiesHeader")
    require(not ack_bits & 0xF0, "MQ 2.2.19.3", f"unused bits of Flags {ack_bits:#x}")
    require(label_length <= 0xFA, "MQ 2.2.19.3", f"LabelLength is {label_length}")
    require(label_length != 1, "MQ 2.2.19.3", "no label is length 0, not 1")
    require(
        message_class in KNOWN_CLASSES or (connector and not message_class & ~0xE1FF),
        "MQ 2.2.18.1.6",
        f"class {message_class:#x}",
    )
    require(privacy == 0, "MQ 2.2.19.3", f"PrivacyLevel is {privacy}")
    require(allocated >= size, "MQ 2.2.19.3", f"AllocationBodySize {allocated} < {size}")
    label = read.bytes(2 * label_length, "Label").decode("utf-16-le")
    require(not label or label.endswith("\0"), "MQ 2.2.19.3", "the label is not terminated")
    require("\0" not in label[:-1], "MQ 2.2.19.3", "the label has a null inside")
    extension, body = read.bytes(extension_size, "ExtensionData"), read.bytes(size, "MessageBody")
    require(start % 4 == 0, "MQ 2.2.19.1", "MessagePropertiesHeader is not aligned")
    read.align("MessagePropertiesHeader")
    report_queue = b""
    if header.flags & DH:
        debug_flags, reserved = read.unpack("HH", "DebugHeader")
        require(debug_flags in (0, 1), "MQ 2.2.20.8", f"DebugHeader.Flags is {debug_flags:#x}")
        require(reserved == 0, "MQ 2.2.20.8", f"DebugHeader.Reserved is {reserved:#x}")
        report_queue = read.bytes(16 if debug_flags else 0, "DebugHeader.QueueIdentifier")
    require(not flags & SOAP, "QB 2.2", "nobody asked for a SoapHeader")
    queues = _parse_queue_lists(read) if flags & MULTI_QUEUE else None
    require(read.at == header.size, "MQ 2.2.20", f"{header.size - read.at} bytes after the headers")
    if admin.kind or ack_bits:
        require(admin.kind and ack_bits, "digest 7.1", "AdminQueue and ack bits go together")
    packet = Message(
        base=header,
        source=source,
        address=address,
        time_to_be_received=to_be_received,
        sent_time=sent_time,
        message_id=message_id,
        flags=flags,
        destination=destination,
        admin=admin,
        response=response,
        transaction=transaction,
        ack_bits=ack_bits,
        message_class=message_class,
        correlation=correlation,
        body_type=body_type,
        application_tag=tag,
        label=label[:-1],
        extension=extension,
        body=body,
        session=_parse_session(data[header.size :]) if header.flags & SH else None,
        connector=connector,
        sender_id=sender_id,
        report_queue=report_queue,
        queues=queues,
        raw=data[: header.size],
    )
    if is_order_queue(destination):
        _check_order_packet(packet)
    return packet


def _parse_transaction(read: Reader) -> Transaction:
    flags, sequence_id, number, previous = read.unpack("IQII", "TransactionHeader")
    require(not flags & 0xFF000000, "MQ 2.2.20.5", f"unused bits of Flags {flags:#x}")
    require(not flags & 1, "MQ 2.2.20.5", "a ConnectorQMGuid is not for us to send")
    require(number >= 1, "MQ 2.2.20.5", "TxSequenceNumber is 0")
    require(previous < number, "MQ 2.2.20.5", f"previous {previous} of number {number}")
    require(sequence_id & 0xFFFFFFFF >= 1, "digest 15.3", "Ordinal starts at 1")
    return Transaction(flags, sequence_id, number, previous)


def _parse_security(read: Reader) -> bytes:
    """The sender id; nothing else is for the daemon to send."""
    flags, *sizes = read.unpack("HHHHII", "SecurityHeader")
    require(any(sizes), "MQ 2.2.20.6", "all sizes of a SecurityHeader are zero")
    require(flags == 0x81, "MQ 2.2.20.6", f"Flags are {flags:#x}: a SID, and data, is 0x81")
    require(not any(sizes[1:]), "MQ 2.2.20.6", "keys, signatures or certificates")
    sender_id = read.bytes(sizes[0], "SecurityData")
    read.align("SecurityData")
    return sender_id


def _parse_queue_lists(read: Reader) -> QueueLists:
    lists = []
    for section in (0x64, 0xC8, 0x12C):
        start = read.at
        require(start % 4 == 0, "MQ 2.2.20.1", "an MQFAddressHeader is not aligned")
        size, found, reserved, count = read.unpack("IHHI", "MQFAddressHeader")
        require(found == section, "MQ 2.2.20.2", f"HeaderID is {found:#x}, not {section:#x}")
        require(reserved == 0, "MQ 2.2.20.2", f"Reserved is {reserved:#x}")
        lists.append(tuple(_parse_element(read) for _ in range(count)))
        require(read.at == start + size, "MQ 2.2.20.2", f"HeaderSize {size} is not its size")
        read.align("MQFAddressHeader")
    found, reserved, size = read.unpack("HHI", "MQFSignatureHeader")
    require((found, size) == (0x15E, 0), "MQ 2.2.20.3", "not the header of no signature")
    return QueueLists(*lists)


def _parse_element(read: Reader) -> Name:
    """MQ 2.2.18.1.4."""
    (kind,) = read.unpack("H", "FormatType")
    if kind == 3:
        end = read.at
        while read.data[end : end + 2] not in (b"\0\0", b""):
            end += 2
        text = read.bytes(end - read.at + 2, "a direct name").decode("utf-16-le")
        require(not text.upper().startswith("DIRECT="), "MQ 2.2.18.1.4", f"DIRECT= in {text}")
        return Name(7, text=text[:-1])
    require(kind in (1, 2), "MQ 2.2.18.1.4", f"FormatType is {kind}")
    read.align("an element")
    guid = read.bytes(16, "an element")
    return Name(5, guid=guid) if kind == 1 else Name(6, guid=guid, number=read.unpack("I", "id")[0])


def _check_order_packet(packet: Message) -> None:
    """What QB 2.2.4 and 2.2.5 fix for an OrderAck and a FinalAck."""
    section = "QB 2.2.4" if packet.message_class == ORDER_ACK else "QB 2.2.5"
    require(packet.base.flags == 0, section, f"BaseHeader.Flags is {packet.base.flags:#x}, not 0")
    require(packet.base.time_to_reach_queue == FOREVER, "MQ 2.2.19.1", "TimeToReachQueue")
    kind = packet.destination.kind
    allowed = PROPERTIES | kind << 10
    require(packet.flags & ~DM == allowed, section, f"UserHeader.Flags is {packet.flags:#x}")
    require(packet.label == ORDER_LABEL, section, f"label {packet.label!r}")
    require(packet.ack_bits == 0, section, "properties flags are set")
    require(packet.body_type == 0, section, f"BodyType is {packet.body_type}")
    require(len(packet.body) == 36, section, f"a body of {len(packet.body)} bytes")
    require(packet.extension == b"", section, "ExtensionData in an OrderAck")
    _, number, previous = packet.order_body()
    require(number >= 1, section, "TxSequenceNumber is 0")
    if kind == 7:
        require(packet.destination.text.startswith("TCP:"), section, packet.destination.text)
    if packet.message_class == ORDER_ACK:
        require(previous == number - 1, section, f"previous {previous} of number {number}")
        require(not any(packet.body[16:]), section, "the reserved 20 bytes are not zero")
    else:
        require(packet.message_class in FINAL_ACK_CLASSES, section, hex(packet.message_class))
        require(packet.flags & DM, section, "a FinalAck is recoverable")
