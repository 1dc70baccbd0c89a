"""Support for tests of sessions: handmade packets, and sessions after their handshake."""

from __future__ import annotations

import struct
from functools import cache

from protocol import (
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    OrderAckBody,
    PacketKind,
    PropertyFlags,
    SessionHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    append_session_header,
    build_order_ack,
    build_session_ack,
    build_user_message,
    order_queue_name,
    packet_kind,
    parse_session_ack,
)
from protocol.framing import PacketBuffer
from qmd.core.session import Event, Session, SessionSettings

OWN_ID = bytes(range(16))
PEER_ID = bytes(range(100, 116))
NOBODY = bytes(16)
_MESSAGE_NUMBER_OFFSET = 56

# Bytes as published; the GUIDs are filled in.  [MS-MQQB] 4.1.3, 4.1.5
_BASE = "10 00 0B 00 4C 49 4F 52 %s FF FF FF FF"


def connection_request(server: bytes = NOBODY, *, no_ping: bool = True, refused: bool = False):
    return (
        bytes.fromhex(_BASE % "3C 02 00 00" + f"00 00 {'12' if refused else '02'} 00")
        + PEER_ID
        + server
        + bytes.fromhex("4E CA DE 1D" + f"10 0{2 + no_ping:x} 00 00")
        + bytes(512)
    )


def connection_response(client: bytes = OWN_ID, *, server: bytes = PEER_ID, refused: bool = False):
    return (
        bytes.fromhex(_BASE % "3C 02 00 00" + f"00 00 {'12' if refused else '02'} 00")
        + client
        + server
        + bytes.fromhex("00 00 00 00 10 03 00 00")
        + b"\x5a" * 512
    )


def connection_parameters(
    window: int = 64,
    *,
    recoverable_ack_ms: int = 500,
    ack_ms: int = 20_000,
    refused: bool = False,
) -> bytes:
    return bytes.fromhex(_BASE % "20 00 00 00" + f"00 00 {'13' if refused else '03'} 00") + (
        struct.pack("<IIHH", recoverable_ack_ms, ack_ms, 0, window)
    )


@cache
def _template(kind: str, body_size: int) -> bytes:
    transaction = None
    if kind == "transactional":
        transaction = TransactionHeader(TransactionFlags.of(first=1, last=1), 1 << 32, 1, 0, None)
    name = "TCP:10.0.0.5\\private$\\q\0".encode("utf-16-le")
    base = BaseHeader(0x10, 0, BaseFlags(0 if transaction else 3), 0x524F494C, 0, 0xFFFFFFFF)
    flags = UserFlags.of(
        delivery=int(kind != "express"),
        destination_type=7,
        transaction_header=int(transaction is not None),
        properties_header=1,
    )
    user = UserHeader(
        PEER_ID,
        NOBODY,
        0xFFFFFFFF,
        1_700_000_000,
        1,
        flags,
        DirectQueueName(len(name), name),
        None,
        None,
        None,
    )
    properties = MessagePropertiesHeader(
        PropertyFlags(0),
        0,
        0,
        bytes(20),
        0,
        0,
        body_size,
        body_size,
        0,
        0x8004,
        0x6801,
        0,
        b"",
        b"",
        bytes(body_size),
    )
    return build_user_message(
        UserMessage(
            base=base,
            user=user,
            transaction=transaction,
            security=None,
            properties=properties,
            debug=None,
            soap=None,
            multi_queue=None,
            session=None,
        )
    )


def message(number: int = 1, kind: str = "express", *, body_size: int = 3) -> bytes:
    """Return the packet of a user message of `kind` "express", "recoverable" or "transactional"."""
    packet = bytearray(_template(kind, body_size))
    struct.pack_into("<I", packet, _MESSAGE_NUMBER_OFFSET, number)
    return bytes(packet)


def order_ack() -> bytes:
    return build_order_ack(
        source_queue_manager=OWN_ID,
        destination=order_queue_name("10.0.0.5"),
        message_number=1,
        sent_time=1_700_000_000,
        body=OrderAckBody(1 << 32, 5, 4),
    )


@cache
def _unnumbered(kind: str) -> bytes:
    return order_ack() if kind == "order ack" else message(0, kind)


def numbered_packet(number: int, kind: str) -> bytes:
    """Return a message of any kind, "order ack" included, which its number identifies."""
    packet = bytearray(_unnumbered(kind))
    struct.pack_into("<I", packet, _MESSAGE_NUMBER_OFFSET, number)
    return bytes(packet)


def message_number(packet: bytes) -> int:
    number: int = struct.unpack_from("<I", packet, _MESSAGE_NUMBER_OFFSET)[0]
    return number


def header(
    ack: int = 0,
    stored: int = 0,
    flags: int = 0,
    *,
    sent: int = 0,
    recoverable_sent: int = 0,
    window: int = 64,
) -> SessionHeader:
    return SessionHeader(ack, stored, flags, sent, recoverable_sent, window, 0)


def session_ack(ack: int = 0, stored: int = 0, flags: int = 0, **rest: int) -> bytes:
    return build_session_ack(header(ack, stored, flags, **rest))


def with_ack(packet: bytes, ack: int = 0, stored: int = 0, flags: int = 0, **rest: int) -> bytes:
    return append_session_header(packet, header(ack, stored, flags, **rest))


def acceptor(
    settings: SessionSettings | None = None, *, refuse: bool = False, now: float = 0.0
) -> Session:
    return Session(
        initiator=False,
        own_id=OWN_ID,
        settings=settings or SessionSettings(),
        now=now,
        refuse=refuse,
    )


def initiator(
    settings: SessionSettings | None = None,
    *,
    expected_remote: bytes | None = None,
    now: float = 0.0,
) -> Session:
    session = Session(
        initiator=True,
        own_id=OWN_ID,
        settings=settings or SessionSettings(),
        now=now,
        expected_remote=expected_remote,
    )
    session.start(now)
    return session


def open_session(
    settings: SessionSettings | None = None,
    *,
    peer_window: int = 64,
    recoverable_ack_ms: int = 500,
    ack_ms: int = 20_000,
    now: float = 0.0,
) -> Session:
    """Return an acceptor after its handshake, with nothing left to send."""
    session = acceptor(settings, now=now)
    parameters = connection_parameters(
        peer_window, recoverable_ack_ms=recoverable_ack_ms, ack_ms=ack_ms
    )
    session.receive([connection_request(), parameters], now)
    session.data_to_send()
    return session


def packets(session: Session) -> list[bytes]:
    """Return the session's outgoing bytes, split into packets."""
    return PacketBuffer().feed(session.data_to_send())


def acks(session: Session) -> list[SessionHeader]:
    """Return the headers of the SessionAcks among the session's outgoing packets."""
    return [
        parse_session_ack(packet)
        for packet in packets(session)
        if packet_kind(packet) is PacketKind.SESSION_ACK
    ]


def only(kind: type, events: list[Event]) -> list[Event]:
    return [event for event in events if type(event) is kind]
