"""Messages for the tests of packets, and a function that changes bytes in a packet."""

from __future__ import annotations

from protocol import (
    INFINITE,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DebugFlags,
    DebugHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    MqfAddressHeader,
    MqfElement,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
    PrivateQueueName,
    PropertyFlags,
    SecurityFlags,
    SecurityHeader,
    SessionHeader,
    SoapHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    sequence_id,
    wide_text,
)

SOURCE = bytes(range(1, 17))
OTHER = bytes(range(101, 117))


def direct(text: str) -> DirectQueueName:
    name = wide_text(text)
    return DirectQueueName(len(name), name)


def express_message() -> UserMessage:
    """Return a message without optional headers.

    Offsets: base 0, user 16, destination 64 to 114, properties 116, label 172.
    """
    return UserMessage(
        BaseHeader(VERSION, 0, BaseFlags.of(priority=3), SIGNATURE, 0, 345_600),
        UserHeader(
            SOURCE,
            bytes(16),
            INFINITE,
            1_700_000_000,
            4711,
            UserFlags.of(destination_type=7, properties_header=1),
            direct("TCP:10.0.0.5\\private$\\q"),
            None,
            None,
            None,
        ),
        None,
        None,
        MessagePropertiesHeader(
            PropertyFlags(0),
            *(4, 0, bytes(20), 0, 0, 3, 3, 0, 0x8004, 0x6801, 5),
            wide_text("abc"),
            b"extra",
            b"ABC",
        ),
        None,
        None,
        None,
        None,
    )


def recoverable_message() -> UserMessage:
    """Return a message that is stored and has no place in a sequence; offsets as above."""
    message = express_message()
    flags = message.user.flags.replace(delivery=1)
    return message._replace(user=message.user._replace(flags=flags))


def transactional_message() -> UserMessage:
    """Return `express_message` with a TransactionHeader at 116 and the properties at 136."""
    express = express_message()
    flags = UserFlags.of(delivery=1, destination_type=7, transaction_header=1, properties_header=1)
    return express._replace(
        base=express.base._replace(flags=BaseFlags(0)),
        user=express.user._replace(flags=flags),
        transaction=TransactionHeader(
            TransactionFlags.of(first=1, last=1, index=7), sequence_id(1_700_000_000, 3), 5, 4, None
        ),
    )


def full_message() -> UserMessage:
    """Return a message with all headers and all optional fields."""
    message = transactional_message()
    flags = message.user.flags.replace(
        admin_type=6,
        response_type=5,
        security_header=1,
        connector_type=1,
        multi_queue_header=1,
        soap_header=1,
    )
    return message._replace(
        base=message.base._replace(flags=BaseFlags.of(session_header=1, debug_header=1, tracing=1)),
        user=message.user._replace(
            flags=flags,
            admin_queue=PrivateQueueName(OTHER, 9),
            response_queue=OTHER,
            connector_type=OTHER,
        ),
        transaction=TransactionHeader(TransactionFlags.of(connector=1), 1, 2, 1, OTHER),
        security=security_header(),
        debug=DebugHeader(DebugFlags.of(queue_type=1), 0, OTHER),
        soap=SoapHeader(0x320, 0, 3, wide_text("hd"), 0x384, 0, 2, wide_text("b")),
        multi_queue=multi_queue_header(),
        session=SessionHeader(12, 6, 0b111, 3, 1, 64, 0),
    )


def security_header() -> SecurityHeader:
    items = (b"sid", b"key45", b"sign", b"certificate", b"p")
    return SecurityHeader(SecurityFlags.of(sender_type=1), *map(len, items), *items)


def multi_queue_header() -> MultiQueueFormatHeader:
    public, private = MqfElement(1, OTHER), MqfElement(2, PrivateQueueName(OTHER, 3))
    named, listed = MqfElement(3, wide_text("OS:a\\b")), MqfElement(6, OTHER)
    return MultiQueueFormatHeader(
        MqfAddressHeader(12 + 20 + 24 + 16 + 20, 0x64, 0, 4, (public, private, named, listed)),
        MqfAddressHeader(12 + 16, 0xC8, 0, 1, (named,)),
        MqfAddressHeader(12, 0x12C, 0, 0, ()),
        MqfSignatureHeader(0x15E, 0, 3, b"sig"),
    )


def put(packet: bytes, offset: int, value: bytes | int, size: int = 4) -> bytes:
    """Return the packet with other bytes, or another little-endian number, at an offset."""
    new = value.to_bytes(size, "little") if isinstance(value, int) else value
    return packet[:offset] + new + packet[offset + len(new) :]
