"""The bytes that each style of signature covers, spelled out from the order of MS-MQMQ 2.5."""

from __future__ import annotations

from protocol import (
    PrivateQueueName,
    PropertyFlags,
    UserMessage,
    build_user_message,
    parse_user_message,
    wide_text,
)
from protocol.signed_fields import SignatureStyle, signed_parts
from tests.unit.protocol.samples import OTHER, SOURCE, direct, express_message, multi_queue_header

CONNECTOR = bytes(range(30, 46))
HEAD = "1122" * 10 + "0D0C0B0A"


def signed_message() -> UserMessage:
    plain = express_message()
    flags = plain.user.flags.replace(
        delivery=1,
        negative_journal=1,
        positive_journal=1,
        admin_type=6,
        response_type=7,
        connector_type=1,
    )
    return plain._replace(
        user=plain.user._replace(
            flags=flags,
            admin_queue=PrivateQueueName(OTHER, 9),
            response_queue=direct("OS:a\\b"),
            connector_type=CONNECTOR,
        ),
        properties=plain.properties._replace(
            flags=PropertyFlags(0xF5),
            message_class=0x8007,
            body_type=0x1F,
            application_tag=0x0A0B0C0D,
            correlation_id=b"\x11\x22" * 10,
        ),
    )


ANSWERS = (
    wide_text("abc").hex()  # Label
    + "0E00"
    + wide_text("OS:a\\b").hex()  # ResponseQueue
    + OTHER.hex()
    + "09000000"  # AdminQueue
)
MARKS = (
    SOURCE.hex()
    + "01"  # DM
    + "03"  # PR
    + "03"  # JP and JN
    + "05"  # requested acknowledgments
    + "0780"  # class
    + "1F000000"  # body type
    + CONNECTOR.hex()
)


def whole(message: UserMessage, style: SignatureStyle) -> bytes:
    read = parse_user_message(build_user_message(message))
    return b"".join(signed_parts(read, style))


def test_msmq_1_covers_texts_and_answers_only() -> None:
    expected = bytes.fromhex(HEAD) + b"ABC" + bytes.fromhex(ANSWERS)

    assert whole(signed_message(), SignatureStyle.MSMQ_1) == expected


def test_msmq_2_covers_the_destination_too() -> None:
    name = wide_text("TCP:10.0.0.5\\private$\\q")
    destination = len(name).to_bytes(2, "little") + name
    expected = bytes.fromhex(HEAD) + b"ABC" + bytes.fromhex(ANSWERS + MARKS) + destination

    assert whole(signed_message(), SignatureStyle.MSMQ_2) == expected


def test_msmq_3_covers_the_extension_and_the_list_of_destinations() -> None:
    message = signed_message()
    flags = message.user.flags.replace(multi_queue_header=1)
    message = message._replace(
        user=message.user._replace(flags=flags), multi_queue=multi_queue_header()
    )
    packet = build_user_message(message)
    at = packet.index(bytes.fromhex("5C000000 6400 0000 04000000"))
    listed = packet[at + 12 : at + 0x5C]
    expected = (
        bytes.fromhex(HEAD) + b"ABC" + bytes.fromhex(ANSWERS) + b"extra" + listed
    ) + bytes.fromhex(MARKS)

    assert whole(message, SignatureStyle.MSMQ_3) == expected


def test_absent_names_have_no_bytes() -> None:
    name = wide_text("TCP:10.0.0.5\\private$\\q")
    expected = bytes(24) + b"ABC" + wide_text("abc") + SOURCE + bytes((0, 3, 0, 0)) + bytes(6)

    covered = whole(express_message(), SignatureStyle.MSMQ_2)

    assert covered == expected + len(name).to_bytes(2, "little") + name
