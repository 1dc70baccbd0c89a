"""The fields of MS-MQQB packets, with their constants: `QB` is [MS-MQQB], `MQ` is [MS-MQMQ]."""

from __future__ import annotations

import struct
import time
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
    """A queue name of a UserHeader: its type (DQ, AQ, RQ) and its value."""

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
    """Return the direct name of a private queue on the wire: without `DIRECT=` and port."""
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
        """Return (sequence id, number, previous number) of an OrderAck or FinalAck."""
        return struct.unpack_from("<QII", self.body)

    def final_body(self) -> tuple[bytes, int]:
        """Return (source queue manager, message id) of a FinalAck."""
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
