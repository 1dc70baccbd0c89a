"""The packets that the other side sends, taken apart and judged field by field.

Each MUST and SHOULD about the form of a packet is a `require` with its clause.  A packet that
cannot be taken apart raises `Unreadable`; a broken rule that leaves it readable is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.strict_host.encoding import ORDER_ACK, ORDER_LABEL, Counts, Name, Place
from tests.strict_host.verdict import Unreadable, Verdict

CLASSES = frozenset(
    [0, 1, 2, 0xFF, 0x4000, *range(0x8000, 0x8008), 0x8009, 0x800A, 0x800B, *range(0xC000, 0xC003)]
) | {0xC004}
HASHES = frozenset([0x8001, 0x8002, 0x8003, 0x8004, 0x800C, 0x800E])
CIPHERS = {
    0: frozenset([0x6602, 0x6610, 0x660E, 0x660F, 0x6801]),
    1: frozenset([0x6602, 0x6801]),
    3: frozenset([0x6602, 0x6801]),
    5: frozenset([0x6610, 0x660E, 0x660F]),
}
FIXED_SIZES = {1: 36, 2: 572, 3: 32}  # of internal packets: QB 2.2.6, 2.2.3, 2.2.2


@dataclass(frozen=True)
class Establish:
    refused: bool
    client: bytes
    server: bytes
    timestamp: int
    system: int
    padding: bytes


@dataclass(frozen=True)
class Parameters:
    recoverable_ms: int
    ack_ms: int
    window: int


@dataclass(frozen=True)
class Arrived:
    """A received user message."""

    flags: int  # of its BaseHeader
    reach_s: int
    source: bytes
    address: bytes
    receive_s: int
    sent_time: int
    message_id: int
    is_recoverable: bool
    journal: int
    hops: int
    to: Name
    admin: Name
    response: Name
    place: Place | None
    has_security: bool
    acks: int
    message_class: int
    correlation: bytes
    body_type: int
    label: str
    extension: bytes
    body: bytes
    lists: tuple[tuple[Name, ...], ...] | None
    counts: Counts | None
    raw: bytes

    @property
    def key(self) -> tuple[bytes, int]:
        return self.source, self.message_id

    @property
    def is_for_order_queue(self) -> bool:
        if self.to.kind == 3:
            return self.to.number == 4
        return self.to.kind == 7 and self.to.text.lower().endswith("\\private$\\order_queue$")

    @property
    def is_order_ack(self) -> bool:
        return self.is_for_order_queue and self.message_class == ORDER_ACK

    @property
    def is_final_ack(self) -> bool:
        return self.is_for_order_queue and self.message_class >= 0x4000

    def word(self, at: int, size: int = 4) -> int:
        """Return a number of the body of an OrderAck or FinalAck."""
        return int.from_bytes(self.body[at : at + size], "little")


Packet = Establish | Parameters | Counts | Arrived


def needed(data: bytes | bytearray, verdict: Verdict) -> int:
    """Return the bytes of the packet that begins with `data`, or 16 if that is not known yet."""
    if len(data) < 16:
        return 16
    if data[0] != 0x10 or bytes(data[4:8]) != b"LIOR":
        verdict.require(False, "QB 3.1.5.1.2", f"version or signature: {bytes(data[:16]).hex()}")
        raise Unreadable
    flags, size = int.from_bytes(data[2:4], "little"), int.from_bytes(data[8:12], "little")
    if not verdict.require(20 <= size <= 0x400000, "MQ 2.2.19.1", f"PacketSize {size}"):
        raise Unreadable
    return size + (16 if flags & 0x18 == 0x10 else 0)


class _Cursor:
    def __init__(self, data: bytes, at: int, verdict: Verdict) -> None:
        self.data, self.at, self.verdict = data, at, verdict

    def take(self, count: int, what: str) -> bytes:
        data = self.data[self.at : self.at + count]
        if len(data) < count:
            self.verdict.require(False, "QB 3.1.5.1.3", f"{what} ends beyond PacketSize")
            raise Unreadable
        self.at += count
        return data

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")

    def pad(self, clause: str, what: str) -> None:
        """Skip to the next multiple of 4; qmd promises zeros there, though any value is legal."""
        skipped = self.take(-self.at % 4, what)
        self.verdict.require(not any(skipped), clause, f"the padding of {what}: {skipped.hex()}")

    def letters(self, count: int, clause: str, what: str) -> str:
        """Return a null-terminated string of `count` bytes."""
        data = self.take(count, what)
        good = count >= 2 and count % 2 == 0 and data.endswith(b"\0\0")
        if not self.verdict.require(good, clause, f"{what} has no terminator"):
            raise Unreadable
        text = data[:-2].decode("utf-16-le", "surrogatepass")
        self.verdict.require("\0" not in text, clause, f"a null inside of {what}")
        return text


def decode(data: bytes, verdict: Verdict) -> Packet:
    """Take one complete packet apart.  Raises Unreadable."""
    flags, size = int.from_bytes(data[2:4], "little"), int.from_bytes(data[8:12], "little")
    clause = "MQ 2.2.19.1"
    verdict.require(size % 4 == 0, clause, f"PacketSize {size} is not a multiple of 4")
    verdict.require(not flags & 0xFEC0, clause, f"reserved bits in Flags {flags:#06x}")
    if flags & 8:
        return _internal(data, flags, size, verdict)
    counts = _counts(data[size:], verdict) if flags & 0x10 else None
    return _message(data[:size], flags, counts, verdict)


def _internal(data: bytes, flags: int, size: int, verdict: Verdict) -> Packet:
    require = verdict.require
    require(not flags & 0x120, "MQ 2.2.19.1", "DH or TR in an internal packet")
    require(data[12:16] == b"\xff" * 4, "MQ 2.2.19.1", "TimeToReachQueue of an internal packet")
    require(data[16:18] == b"\0\0", "QB 2.2.1", "InternalHeader.Reserved")
    kind = int.from_bytes(data[18:20], "little")
    require(not kind & 0xFFE0, "QB 2.2.1", f"reserved bits in InternalHeader.Flags {kind:#x}")
    refused, kind = bool(kind & 16), kind & 15
    good = FIXED_SIZES.get(kind) == size
    if not require(good, "QB 2.2.1", f"an internal packet of type {kind} and {size} bytes"):
        raise Unreadable
    require(bool(flags & 0x10) == (kind == 1), "QB 2.2.6", "SH in Flags: only in a SessionAck")
    require(not refused or kind != 1, "QB 2.2.1", "CS in a SessionAck")
    cursor = _Cursor(data, 20, verdict)
    if kind == 1:
        return _counts(data[20:], verdict)
    if kind == 2:
        client, server = cursor.take(16, "ClientGuid"), cursor.take(16, "ServerGuid")
        timestamp, system = cursor.number(4, "TimeStamp"), cursor.number(2, "OperatingSystem")
        require(system & 0xFF == 0x10, "QB 2.2.3.1", f"RE in OperatingSystem {system:#06x}")
        require(not system & 0xF800, "QB 2.2.3.1", f"unused bits in OperatingSystem {system:#06x}")
        require(cursor.number(2, "Reserved") == 0, "QB 2.2.3.1", "Reserved")
        return Establish(refused, client, server, timestamp, system, cursor.take(512, "Padding"))
    recoverable_ms, ack_ms = cursor.number(4, "RecoverableAckTimeout"), cursor.number(4, "AckTime")
    require(cursor.number(2, "Reserved") == 0, "QB 2.2.2.1", "Reserved")
    require(not refused, "QB 3.1.5.3.2", "CS in ConnectionParameters")
    return Parameters(recoverable_ms, ack_ms, cursor.number(2, "WindowSize"))


def _counts(data: bytes, verdict: Verdict) -> Counts:
    words = [int.from_bytes(data[at : at + 2], "little") for at in range(0, 16, 2)]
    counts = Counts(words[0], words[1], words[2] | words[3] << 16, words[4], words[5], words[6])
    clause = "MQ 2.2.20.4"
    verdict.require(counts.window >= 1, clause, "WindowSize 0")
    verdict.require(words[7] == 0, clause, f"Reserved {words[7]:#x}; qmd promises zeros")
    if counts.stored_bits:
        verdict.require(counts.stored_bits & 1, clause, "bit 0 stands for the number beside it")
    else:
        verdict.require(counts.first_stored == 0, clause, "a recoverable number without a bit")
    return counts


def _message(data: bytes, flags: int, counts: Counts | None, verdict: Verdict) -> Arrived:
    require = verdict.require
    cursor = _Cursor(data, 16, verdict)
    source, address = cursor.take(16, "SourceQueueManager"), cursor.take(16, "QueueManagerAddress")
    receive_s, sent_time = cursor.number(4, "TimeToBeReceived"), cursor.number(4, "SentTime")
    message_id, user = cursor.number(4, "MessageID"), cursor.number(4, "UserHeader.Flags")
    clause = "MQ 2.2.19.2"
    require(any(source), clause, "SourceQueueManager is null")
    require(not user & 0xEF000080, clause, f"reserved bits or AH in Flags {user:#010x}")
    require(user >> 21 & 1, clause, "MP is clear")
    require(user >> 5 & 3 < 2, clause, f"DM is {user >> 5 & 3}")
    kinds = user >> 10 & 7, user >> 13 & 7, user >> 16 & 7
    require(kinds[0] in (3, 5, 7), clause, f"DQ is {kinds[0]}")
    require(kinds[1] in (0, 2, 3, 5, 6, 7), clause, f"AQ is {kinds[1]}")
    to, admin, response = (_name(cursor, kind) for kind in kinds)
    for name in (admin, response):
        is_near = name.kind == 6 and name.guid == source
        require(not is_near, clause, "type 6 for a private queue of the source, which is type 2")
    require(any(address) == (kinds[0] in (3, 5)), clause, "QueueManagerAddress and DQ")
    require(user & 0x1F <= 0x1D, clause, f"RC is {user & 0x1F}")
    if user >> 22 & 1:
        cursor.take(16, "ConnectorType")
    place = _place(cursor) if user >> 20 & 1 else None
    if place is not None:
        require(user >> 5 & 3 == 1, clause, "a TransactionHeader in an express message")
        require(flags & 7 == 0, "MQ 2.2.19.1", "a priority in a transactional message")
    if user >> 19 & 1:
        _security(cursor)
    properties = _properties(cursor)
    require(bool(properties.acks) == (kinds[1] != 0), clause, "AdminQueue without acks, or acks")
    require(not flags & 0x100 or flags & 0x20, "MQ 2.2.19.1", "TR without DH")
    if flags & 0x20:
        _debug(cursor)
    if user >> 28 & 1:
        _soap(cursor)
    lists = _lists(cursor) if user >> 23 & 1 else None
    require(
        cursor.at == len(data), "MQ 2.2.20", f"{len(data) - cursor.at} bytes more in PacketSize"
    )
    arrived = Arrived(
        flags=flags,
        reach_s=int.from_bytes(data[12:16], "little"),
        source=source,
        address=address,
        receive_s=receive_s,
        sent_time=sent_time,
        message_id=message_id,
        is_recoverable=bool(user >> 5 & 3),
        journal=user & 0x300,
        hops=user & 0x1F,
        to=to,
        admin=admin,
        response=response,
        place=place,
        has_security=bool(user >> 19 & 1),
        acks=properties.acks,
        message_class=properties.message_class,
        correlation=properties.correlation,
        body_type=properties.body_type,
        label=properties.label,
        extension=properties.extension,
        body=properties.body,
        lists=lists,
        counts=counts,
        raw=data,
    )
    if arrived.is_for_order_queue:
        _judge_order_packet(arrived, user, verdict)
    return arrived


def _name(cursor: _Cursor, kind: int) -> Name:
    what = "a queue name"
    if kind in (2, 3, 4):
        return Name(kind, number=cursor.number(4, what))
    if kind == 5:
        return Name(kind, guid=cursor.take(16, what))
    if kind == 6:
        return Name(kind, guid=cursor.take(16, what), number=cursor.number(4, what))
    if kind != 7:
        return Name(kind)
    clause = "MQ 2.2.18.1.5.2"
    text = cursor.letters(cursor.number(2, "Count"), clause, "a direct name")
    cursor.pad(clause, "a direct name")
    cursor.verdict.require(not text.lower().startswith("direct="), "QB 2.2.4", f"DIRECT= in {text}")
    return Name(kind, text)


def _place(cursor: _Cursor) -> Place:
    require, clause = cursor.verdict.require, "MQ 2.2.20.5"
    flags, sequence = cursor.number(4, "TransactionHeader"), cursor.number(8, "TxSequenceID")
    number, previous = cursor.number(4, "TxSequenceNumber"), cursor.number(4, "Previous")
    require(not flags >> 24, clause, f"unused bits in Flags {flags:#010x}")
    require(number >= 1, clause, "TxSequenceNumber 0")
    require(previous < number, clause, f"PreviousTxSequenceNumber {previous} of number {number}")
    connector = cursor.take(16, "ConnectorQMGuid") if flags & 1 else b""
    return Place(sequence, number, previous, flags, connector)


def _security(cursor: _Cursor) -> None:
    require, clause = cursor.verdict.require, "MQ 2.2.20.6"
    flags = cursor.number(2, "SecurityHeader.Flags")
    sizes = [cursor.number(size, "a size") for size in (2, 2, 2, 4, 4)]
    require(any(sizes), clause, "no size is more than zero")
    require(sizes[3] <= 0xFFFF, clause, f"SenderCertSize {sizes[3]}")
    require(not flags & 0xF000, clause, f"unused bits in Flags {flags:#06x}")
    require(not flags & 0x0F10, clause, f"AU or AS in Flags {flags:#06x}")
    require(flags & 15 in (0, 1, 2), clause, f"ST is {flags & 15}")
    require(bool(flags & 15) == bool(sizes[0]), clause, "ST and SenderIdSize")
    require(flags & 0x80, clause, "SecurityData without AI")
    require(flags & 15 != 2 or sizes[0] == 16, clause, "the GUID of a queue manager")
    for size in sizes:
        cursor.take(size, "SecurityData")
        cursor.pad(clause, "SecurityData")


@dataclass
class _Properties:
    acks: int
    message_class: int
    correlation: bytes
    body_type: int
    label: str
    extension: bytes
    body: bytes


def _properties(cursor: _Cursor) -> _Properties:
    require, clause, what = cursor.verdict.require, "MQ 2.2.19.3", "MessagePropertiesHeader"
    require(cursor.at % 4 == 0, "MQ 2.2.19.1", f"{what} is not aligned")
    acks, length, message_class = (cursor.number(size, what) for size in (1, 1, 2))
    correlation = cursor.take(20, what)
    body_type, _tag, size, allocated, privacy, hashed, cipher, extension_size = (
        cursor.number(4, what) for _ in range(8)
    )
    require(not acks & 0xF0, clause, f"unused bits in Flags {acks:#x}")
    require(length <= 0xFA, clause, f"LabelLength {length}")
    require(message_class in CLASSES, "MQ 2.2.18.1.6", f"MessageClass {message_class:#06x}")
    require(allocated >= size, clause, f"AllocationBodySize {allocated} of {size} bytes")
    require(privacy in CIPHERS, clause, f"PrivacyLevel {privacy}")
    require(hashed in HASHES, clause, f"HashAlgorithm {hashed:#x}")
    require(cipher in CIPHERS.get(privacy, [cipher]), clause, f"EncryptionAlgorithm {cipher:#x}")
    label = cursor.letters(2 * length, clause, "Label") if length else ""
    require(length != 1, clause, "a label of its terminator only: notes say 0 for none")
    extension, body = cursor.take(extension_size, "ExtensionData"), cursor.take(size, "MessageBody")
    cursor.pad(clause, what)
    return _Properties(acks, message_class, correlation, body_type, label, extension, body)


def _debug(cursor: _Cursor) -> None:
    flags, reserved = cursor.number(2, "DebugHeader"), cursor.number(2, "DebugHeader")
    cursor.verdict.require(flags in (0, 1), "MQ 2.2.20.8", f"Flags {flags:#x}")
    cursor.verdict.require(reserved == 0, "MQ 2.2.20.8", f"Reserved {reserved:#x}")
    cursor.take(16 if flags & 3 == 1 else 0, "QueueIdentifier")


def _soap(cursor: _Cursor) -> None:
    for expected in (0x0320, 0x0384):
        number, reserved = cursor.number(2, "SoapHeader"), cursor.number(2, "SoapHeader")
        cursor.verdict.require(number == expected, "MQ 2.2.20.7", f"section {number:#x}")
        cursor.verdict.require(reserved == 0, "MQ 2.2.20.7", f"Reserved {reserved:#x}")
        cursor.letters(2 * cursor.number(4, "SoapHeader"), "MQ 2.2.20.7", "a section")
        cursor.pad("MQ 2.2.20.7", "a section")


def _lists(cursor: _Cursor) -> tuple[tuple[Name, ...], ...]:
    require, clause, lists = cursor.verdict.require, "MQ 2.2.20.2", []
    for expected in (0x0064, 0x00C8, 0x012C):
        start = cursor.at
        size, number, reserved, count = (cursor.number(each, "a list") for each in (4, 2, 2, 4))
        require(number == expected, clause, f"HeaderID {number:#x}")
        require(reserved == 0, clause, f"Reserved {reserved:#x}")
        lists.append(tuple(_element(cursor) for _ in range(count)))
        used = cursor.at - start
        require(size in (used, used + -used % 4), clause, f"HeaderSize {size} of {used} bytes")
        cursor.pad(clause, "a list")
    number, reserved, size = (cursor.number(each, "MQFSignatureHeader") for each in (2, 2, 4))
    require(number == 0x015E, "MQ 2.2.20.3", f"ID {number:#x}")
    require(reserved == 0, "MQ 2.2.20.3", f"Reserved {reserved:#x}")
    cursor.take(size, "Signature")
    cursor.pad("MQ 2.2.20.3", "Signature")
    return tuple(lists)


def _element(cursor: _Cursor) -> Name:
    clause, what = "MQ 2.2.18.1.4", "an element of a list"
    kind = cursor.number(2, what)
    if kind == 3:
        end = cursor.at
        while cursor.data[end : end + 2] not in (b"\0\0", b"", b"\0"):
            end += 2
        return Name(7, cursor.letters(end + 2 - cursor.at, clause, what))
    if not cursor.verdict.require(kind in (1, 2, 6), clause, f"FormatType {kind}"):
        raise Unreadable
    cursor.pad(clause, what)
    guid = cursor.take(16, what)
    if kind == 2:
        return Name(6, guid=guid, number=cursor.number(4, what))
    return Name(5 if kind == 1 else 8, guid=guid)


def _judge_order_packet(packet: Arrived, user: int, verdict: Verdict) -> None:
    """Judge an OrderAck or FinalAck: QB 2.2.4, 2.2.5, 3.1.7.17."""
    is_order = packet.message_class == ORDER_ACK
    clause = "QB 2.2.4" if is_order else "QB 2.2.5"
    require = verdict.require
    require(packet.flags & ~0x10 == 0, clause, f"BaseHeader.Flags {packet.flags:#06x}")
    # DM: notes 4 for an OrderAck; a FinalAck is recoverable.
    expected = 1 << 21 | 1 << 5 | packet.to.kind << 10
    require(user == expected, clause, f"UserHeader.Flags {user:#010x}")
    require(packet.label == ORDER_LABEL, clause, f"Label {packet.label!r}")
    require(packet.acks == 0, clause, f"MessagePropertiesHeader.Flags {packet.acks:#x}")
    require(packet.body_type == 0, clause, f"BodyType {packet.body_type}")
    require(packet.reach_s == 0xFFFFFFFF, "MQ 2.2.19.1", "TimeToReachQueue")
    require(not packet.extension, clause, "ExtensionData")
    if not require(len(packet.body) == 36, clause, f"MessageSize {len(packet.body)}"):
        raise Unreadable
    number, previous = packet.word(8), packet.word(12)
    require(number >= 1, clause, "TxSequenceNumber 0")
    if is_order:
        require(previous == number - 1, "QB 2.2.4.1", f"previous {previous} of {number}")
        require(not any(packet.body[16:]), "QB 2.2.4.1", "Reserved")
    else:
        require(packet.message_class in CLASSES, clause, f"class {packet.message_class:#x}")
