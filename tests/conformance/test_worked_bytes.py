"""Packets that were computed by hand from the tables of the specification."""

from __future__ import annotations

from protocol import (
    INFINITE,
    ORDER_QUEUE_NUMBER,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    FinalAckBody,
    MessageClass,
    MessagePropertiesHeader,
    OperatingSystem,
    OrderAckBody,
    PrivateQueueName,
    PropertyFlags,
    SessionHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_connection_parameters,
    build_establish_connection,
    build_final_ack,
    build_order_ack,
    build_session_ack,
    build_user_message,
    connection_parameters,
    establish_connection,
    order_queue_name,
    parse_user_message,
    sequence_id,
    wide_text,
)

SOURCE = bytes(range(0xA0, 0xB0))
SENT_TIME = 0x65000000
QUEUE = "TCP:10.0.0.5\\private$\\q"
ORDER_QUEUE = "TCP:10.0.0.5\\PRIVATE$\\order_queue$"


def dump(text: str) -> bytes:
    return bytes.fromhex(text)


def name(text: str) -> str:
    return text.encode("utf-16-le").hex() + "0000"


def express_message() -> UserMessage:
    """Return the smallest useful message: no label, the body "ABC"."""
    queue = wide_text(QUEUE)
    return UserMessage(
        BaseHeader(VERSION, 0, BaseFlags.of(priority=3), SIGNATURE, 176, 345_600),
        UserHeader(
            SOURCE,
            bytes(16),
            INFINITE,
            SENT_TIME,
            1,
            UserFlags.of(destination_type=7, properties_header=1),
            DirectQueueName(48, queue),
            None,
            None,
            None,
        ),
        None,
        None,
        MessagePropertiesHeader(
            PropertyFlags(0), 0, 0, bytes(20), 0, 0, 3, 3, 0, 0x8004, 0x6801, 0, b"", b"", b"ABC"
        ),
        None,
        None,
        None,
        None,
    )


EXPRESS_HEAD = f"""
    10 00 03 00  4C 49 4F 52  B0 00 00 00  00 46 05 00
    {SOURCE.hex()}
    {"00" * 16}
    FF FF FF FF  00 00 00 65  01 00 00 00  00 1C 20 00
    30 00  {name(QUEUE)}  00 00
"""
PROPERTIES = f"""
    00 00  00 00  {"00" * 20}
    00 00 00 00  00 00 00 00
    03 00 00 00  03 00 00 00
    00 00 00 00  04 80 00 00  01 68 00 00  00 00 00 00
    41 42 43  00
"""


def test_an_express_message() -> None:
    packet = build_user_message(express_message())

    assert packet == dump(EXPRESS_HEAD + PROPERTIES)
    assert len(packet) == 176
    assert parse_user_message(packet) == express_message()


def test_the_same_message_in_a_transaction() -> None:
    express = express_message()
    message = express._replace(
        base=express.base._replace(flags=BaseFlags(0), packet_size=196),
        user=express.user._replace(
            flags=UserFlags.of(
                delivery=1, destination_type=7, transaction_header=1, properties_header=1
            )
        ),
        transaction=TransactionHeader(
            TransactionFlags.of(first=1, last=1, index=0x10),
            sequence_id(SENT_TIME, 1),
            1,
            0,
            None,
        ),
    )

    packet = build_user_message(message)

    head = EXPRESS_HEAD.replace("10 00 03 00", "10 00 00 00").replace("B0 00 00 00", "C4 00 00 00")
    head = head.replace("00 1C 20 00", "20 1C 30 00")
    transaction = "0C 01 00 00  01 00 00 00  00 00 00 65  01 00 00 00  00 00 00 00"
    assert packet == dump(head + transaction + PROPERTIES)
    assert parse_user_message(packet) == message


def test_a_request_to_establish_a_connection_by_direct_name() -> None:
    packet = build_establish_connection(
        establish_connection(
            client=SOURCE,
            server=bytes(16),
            timestamp=0x1DDECA4E,
            operating_system=OperatingSystem.of(constant=0x10, no_ping=1, server=1),
        )
    )

    assert packet[:60] == dump(
        f"10 5A 0B 00 4C 49 4F 52 3C 02 00 00 FF FF FF FF 00 00 02 00 {SOURCE.hex()} {'00' * 16}"
        "4E CA DE 1D 10 03 00 00"
    )
    assert len(packet) == 572


def test_connection_parameters() -> None:
    packet = build_connection_parameters(
        connection_parameters(
            recoverable_ack_timeout_ms=1496, ack_timeout_ms=120_000, window_size=64
        )
    )

    assert packet == dump(
        "10 5A 0B 00 4C 49 4F 52 20 00 00 00 FF FF FF FF"
        "00 00 03 00 D8 05 00 00 C0 D4 01 00 00 00 40 00"
    )


def test_a_session_ack_with_recoverable_messages_stored() -> None:
    """Recoverable 6, 7 and 8 are stored; 12 packets received, 3 sent, 1 of them recoverable."""
    packet = build_session_ack(SessionHeader(12, 6, 0b111, 3, 1, 64, 0))

    assert packet == dump(
        "10 5A 1B 00 4C 49 4F 52 24 00 00 00 FF FF FF FF"
        "00 00 01 00 0C 00 06 00 07 00 00 00 03 00 01 00 40 00 00 00"
    )


def acknowledgment(message_class: str, body: str) -> bytes:
    """Return base header, user header with order queue, properties, label; then 36 bytes."""
    return dump(f"""
        10 00 00 00  4C 49 4F 52  04 01 00 00  FF FF FF FF
        {SOURCE.hex()}
        {"00" * 16}
        FF FF FF FF  00 00 00 65  07 00 00 00  20 1C 20 00
        46 00  {name(ORDER_QUEUE)}
        00 10  {message_class}  {"00" * 20}
        00 00 00 00  00 00 00 00
        24 00 00 00  24 00 00 00
        00 00 00 00  04 80 00 00  01 68 00 00  00 00 00 00
        {name("QM Ordering Ack")}
        {body}
    """)


def test_an_order_ack() -> None:
    packet = build_order_ack(
        source_queue_manager=SOURCE,
        destination=order_queue_name("10.0.0.5"),
        message_number=7,
        sent_time=SENT_TIME,
        body=OrderAckBody(sequence_id(SENT_TIME, 1), 5, 4),
    )

    body = f"01 00 00 00 00 00 00 65  05 00 00 00  04 00 00 00 {'00' * 20}"
    assert packet == acknowledgment("FF 00", body)


def test_an_order_ack_to_the_guid_of_a_queue_manager() -> None:
    peer = bytes(range(0x50, 0x60))
    packet = build_order_ack(
        source_queue_manager=SOURCE,
        destination=PrivateQueueName(peer, ORDER_QUEUE_NUMBER),
        message_number=7,
        sent_time=SENT_TIME,
        body=OrderAckBody(1, 5, 4),
    )

    assert packet[32:48] == peer
    assert packet[60:68] == dump("20 0C 20 00  04 00 00 00")


def test_a_final_ack() -> None:
    packet = build_final_ack(
        source_queue_manager=SOURCE,
        destination=order_queue_name("10.0.0.5"),
        message_number=7,
        sent_time=SENT_TIME,
        message_class=MessageClass.NACK_NOT_TRANSACTIONAL_Q,
        body=FinalAckBody(sequence_id(SENT_TIME, 1), 5, 3, bytes(range(16)), 0x01020304),
    )

    body = f"""
        01 00 00 00 00 00 00 65  05 00 00 00  03 00 00 00
        {bytes(range(16)).hex()}  04 03 02 01
    """
    assert packet == acknowledgment("09 80", body)
