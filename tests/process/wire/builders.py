"""Builders of packets.  For a field without a keyword, a test patches the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tests.process.wire.packets import (
    CONNECTOR,
    DH,
    DM,
    ESTABLISH,
    FOREVER,
    IN,
    JN,
    JP,
    MULTI_QUEUE,
    NO_NAME,
    NORMAL,
    NULL_GUID,
    ORDER_ACK,
    ORDER_LABEL,
    PARAMETERS,
    PROPERTIES,
    REFUSED,
    SECURITY,
    SESSION_ACK,
    SH,
    SIGNATURE,
    SOAP,
    TRANSACTION,
    Message,
    Name,
    Session,
    Transaction,
    direct,
    now_s,
    pad4,
)


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
    """Build a UserMessage packet; with `session`, a SessionHeader follows behind PacketSize."""
    if transaction is not None:
        recoverable, priority = True, 0
    flags = hops | _delivery_flags(recoverable, dead_letter, journal) | PROPERTIES | extra_flags
    flags |= destination.kind << 10 | admin.kind << 13 | response.kind << 16
    headers = (
        (SECURITY, security),
        (TRANSACTION, transaction),
        (CONNECTOR, connector),
        (MULTI_QUEUE, multi_queue),
        (SOAP, soap),
    )
    flags |= sum(bit for bit, header in headers if header)
    sent = now_s() if sent_time is None else sent_time
    numbers = struct.pack("<IIII", time_to_be_received, sent, message_id, flags)
    names = destination.build() + admin.build() + response.build()
    properties = properties_header(
        ack_bits=ack_bits,
        label=label,
        message_class=message_class,
        correlation=correlation,
        body_type=body_type,
        application_tag=application_tag,
        extension=extension,
        body=body,
    )
    user = source + address + numbers + names + connector
    sequence = transaction.build() if transaction is not None else b""
    rest = user + sequence + security + properties + debug + soap + multi_queue + trailing
    base_flags = priority | extra_base_flags | (DH if debug else 0) | (SH if session else 0)
    head = base(base_flags, 16 + len(rest), time_to_reach_queue)
    return head + rest + (session.build() if session else b"")


def _delivery_flags(recoverable: bool, dead_letter: bool, journal: bool) -> int:
    return (DM if recoverable else 0) | (JN if dead_letter else 0) | (JP if journal else 0)


def properties_header(
    *,
    ack_bits: int,
    label: str,
    message_class: int,
    correlation: bytes,
    body_type: int,
    application_tag: int,
    extension: bytes,
    body: bytes,
) -> bytes:
    """Build the header of MQ 2.2.19.3, with the label, the extension and the body."""
    raw_label = label.encode("utf-16-le") + b"\0\0" if label else b""
    return pad4(
        struct.pack("<BBH", ack_bits, len(raw_label) // 2, message_class)
        + correlation
        + struct.pack("<IIII", body_type, application_tag, len(body), len(body))
        + struct.pack("<IIII", 0, 0x8004, 0x6801, len(extension))
        + raw_label
        + extension
        + body
    )


def order_ack(
    *,
    source: bytes,
    message_id: int,
    sequence_id: int,
    number: int,
    host: str = "TCP:127.0.0.1",
) -> bytes:
    """Build QB 2.2.4; DeliveryGuarantee recoverable, as in QB 3.1.7.17."""
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
    """Build QB 2.2.5: the fate of the transactional message `of`."""
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
    """Build QB 2.2.5: the fate of the message at this position, if there is one."""
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
    """Build MQ 2.2.20.6."""
    items = (sender_id, key, signature, certificate, provider)
    if flags is None:
        flags = (1 if sender_id else 0) | 0x80
    sizes = struct.pack("<HHHHII", flags, *(len(item) for item in items))
    return sizes + b"".join(pad4(item) for item in items)


def debug_header(queue: bytes = b"") -> bytes:
    """Build MQ 2.2.20.8."""
    return struct.pack("<HH", 1 if queue else 0, 0) + queue


def soap_header(header: str, body: str) -> bytes:
    """Build MQ 2.2.20.7."""
    out = b""
    for section, text in ((0x0320, header), (0x0384, body)):
        raw = text.encode("utf-16-le") + b"\0\0"
        out += pad4(struct.pack("<HHI", section, 0, len(raw) // 2) + raw)
    return out


def multi_queue_header(
    destinations: Iterable[str], admins: Iterable[str] = (), responses: Iterable[str] = ()
) -> bytes:
    """Build MQ 2.2.20.1 with direct names and no signature."""
    out = b""
    for section, texts in ((0x64, destinations), (0xC8, admins), (0x12C, responses)):
        elements = [struct.pack("<H", 3) + text.encode("utf-16-le") + b"\0\0" for text in texts]
        data = b"".join(elements)
        head = struct.pack("<IHHI", 12 + len(data), section, 0, len(elements))
        out += pad4(head + data)
    return out + struct.pack("<HHI", 0x15E, 0, 0)
