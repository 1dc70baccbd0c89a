"""Strict parsing of packets: the first broken rule raises `Violation` with its section."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.process.wire.packets import (
    CONNECTOR,
    DH,
    DM,
    ESTABLISH,
    FINAL_ACK_CLASSES,
    FOREVER,
    IN,
    KNOWN_CLASSES,
    MULTI_QUEUE,
    NULL_GUID,
    ORDER_ACK,
    ORDER_LABEL,
    PACKET_BYTES_MAX,
    PROPERTIES,
    REFUSED,
    SECURITY,
    SESSION_ACK,
    SH,
    SIGNATURE,
    SOAP,
    TR,
    TRANSACTION,
    USER_RESERVED,
    Base,
    Establish,
    Message,
    Name,
    Packet,
    Parameters,
    QueueLists,
    Session,
    Transaction,
    is_order_queue,
    require,
)


class Reader:
    """A cursor in a packet; a read beyond the end is a violation, never an IndexError."""

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
    """Return the bytes on the wire: PacketSize does not count a piggybacked SessionHeader."""
    piggybacked = header.flags & SH and not header.flags & IN
    return header.size + (16 if piggybacked else 0)


def parse(data: bytes) -> Packet:
    """Parse one complete packet from the wire, including a SessionHeader."""
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
    user = _parse_user_header(read)
    transaction = None
    if user.flags & TRANSACTION:
        transaction = _parse_transaction(read)
        require(user.flags & DM, "MQ 2.2.19.2", "a TransactionHeader with DM express")
        require(header.priority == 0, "MQ 2.2.19.1", "a transactional packet with a priority")
    sender_id = _parse_security(read) if user.flags & SECURITY else b""
    properties = _parse_properties(read, has_connector=bool(user.connector))
    report_queue = _parse_debug(read) if header.flags & DH else b""
    require(not user.flags & SOAP, "QB 2.2", "an unrequested SoapHeader")
    queues = _parse_queue_lists(read) if user.flags & MULTI_QUEUE else None
    require(read.at == header.size, "MQ 2.2.20", f"{header.size - read.at} bytes after the headers")
    if user.admin.kind or properties.ack_bits:
        both = user.admin.kind and properties.ack_bits
        require(both, "digest 7.1", "AdminQueue and ack bits go together")
    packet = Message(
        base=header,
        **user._asdict(),
        **properties._asdict(),
        transaction=transaction,
        session=_parse_session(data[header.size :]) if header.flags & SH else None,
        sender_id=sender_id,
        report_queue=report_queue,
        queues=queues,
        raw=data[: header.size],
    )
    if is_order_queue(packet.destination):
        _check_order_packet(packet)
    return packet


class _User(NamedTuple):
    """The fields of a UserHeader."""

    source: bytes
    address: bytes
    time_to_be_received: int
    sent_time: int
    message_id: int
    flags: int
    destination: Name
    admin: Name
    response: Name
    connector: bytes


def _parse_user_header(read: Reader) -> _User:
    """Parse MQ 2.2.19.2."""
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
    return _User(
        source,
        address,
        to_be_received,
        sent_time,
        message_id,
        flags,
        destination,
        admin,
        response,
        connector,
    )


class _Properties(NamedTuple):
    """The fields of a MessagePropertiesHeader."""

    ack_bits: int
    message_class: int
    correlation: bytes
    body_type: int
    application_tag: int
    label: str
    extension: bytes
    body: bytes


def _parse_properties(read: Reader, *, has_connector: bool) -> _Properties:
    """Parse MQ 2.2.19.3."""
    start = read.at
    ack_bits, label_length, message_class = read.unpack("BBH", "MessagePropertiesHeader")
    correlation = read.bytes(20, "CorrelationID")
    body_type, tag, size, allocated = read.unpack("IIII", "MessagePropertiesHeader")
    privacy, _, _, extension_size = read.unpack("IIII", "MessagePropertiesHeader")
    require(not ack_bits & 0xF0, "MQ 2.2.19.3", f"unused bits of Flags {ack_bits:#x}")
    require(label_length <= 0xFA, "MQ 2.2.19.3", f"LabelLength is {label_length}")
    require(label_length != 1, "MQ 2.2.19.3", "no label is length 0, not 1")
    require(
        message_class in KNOWN_CLASSES or (has_connector and not message_class & ~0xE1FF),
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
    return _Properties(
        ack_bits, message_class, correlation, body_type, tag, label[:-1], extension, body
    )


def _parse_debug(read: Reader) -> bytes:
    """Parse MQ 2.2.20.8; return the GUID of the report queue, if there is one."""
    debug_flags, reserved = read.unpack("HH", "DebugHeader")
    require(debug_flags in (0, 1), "MQ 2.2.20.8", f"DebugHeader.Flags is {debug_flags:#x}")
    require(reserved == 0, "MQ 2.2.20.8", f"DebugHeader.Reserved is {reserved:#x}")
    return read.bytes(16 if debug_flags else 0, "DebugHeader.QueueIdentifier")


def _parse_transaction(read: Reader) -> Transaction:
    flags, sequence_id, number, previous = read.unpack("IQII", "TransactionHeader")
    require(not flags & 0xFF000000, "MQ 2.2.20.5", f"unused bits of Flags {flags:#x}")
    require(not flags & 1, "MQ 2.2.20.5", "a ConnectorQMGuid is not for us to send")
    require(number >= 1, "MQ 2.2.20.5", "TxSequenceNumber is 0")
    require(previous < number, "MQ 2.2.20.5", f"previous {previous} of number {number}")
    require(sequence_id & 0xFFFFFFFF >= 1, "digest 15.3", "Ordinal starts at 1")
    return Transaction(flags, sequence_id, number, previous)


def _parse_security(read: Reader) -> bytes:
    """Return the sender id; the daemon must not send other security data."""
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
    """Parse MQ 2.2.18.1.4."""
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
    """Check the fixed fields of an OrderAck and a FinalAck in QB 2.2.4 and 2.2.5."""
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
