"""Conversations: every rule that a session breaks is named with its clause."""

from __future__ import annotations

import pytest

from protocol import PacketBuffer
from protocol import packets as wire
from qmd.interop.conversation import Conversation, Seen, Streams
from tests.captures import Part
from tests.dialogue import usual

PARTS = [
    Part(part.by_client, packet) for part in usual() for packet in PacketBuffer().feed(part.data)
]
REQUEST, RESPONSE, PROPOSAL, ANSWER = range(4)
EXPRESS, RECOVERABLE, ACK = 4, 5, 6
FIRST, SECOND = 13, 15  # transactional messages
ORDER_ACK = 19


def judged(parts: list[Part]) -> list[Seen]:
    conversation = Conversation("a:1", "b:1801", streams=None)
    return [seen for part in parts for seen in conversation.feed(part.by_client, 1.0, part.data)]


def clauses(parts: list[Part]) -> set[str]:
    return {each.clause for seen in judged(parts) for each in seen.violations}


def changed(index: int, offset: int, value: bytes) -> list[Part]:
    """Return the conversation with other bytes in one packet."""
    packet = bytearray(PARTS[index].data)
    packet[offset : offset + len(value)] = value
    return [*PARTS[:index], Part(PARTS[index].by_client, bytes(packet)), *PARTS[index + 1 :]]


def without(index: int) -> list[Part]:
    return PARTS[:index] + PARTS[index + 1 :]


def test_a_correct_conversation_breaks_no_rule() -> None:
    seen = judged(PARTS)

    assert [each.violations for each in seen] == [()] * len(PARTS)
    kinds = [each.kind for each in seen]
    assert (kinds[REQUEST], kinds[ACK], kinds[ORDER_ACK]) == (
        "connection request",
        "session ack",
        "order ack",
    )


@pytest.mark.parametrize(
    ("index", "offset", "value", "clause"),
    [
        (REQUEST, 12, bytes(4), "MS-MQMQ 2.2.19.1"),  # TimeToReachQueue
        (REQUEST, 16, b"\1", "MS-MQQB 2.2.1"),  # InternalHeader.Reserved
        (REQUEST, 19, b"\x80", "MS-MQQB 2.2.1"),  # an unused flag
        (REQUEST, 20, bytes(16), "MS-MQQB 3.1.5.2.3"),  # no ClientGuid
        (REQUEST, 56, b"\x11", "MS-MQQB 2.2.3.1"),  # RE
        (RESPONSE, 20, b"?", "MS-MQQB 3.1.5.3.1"),  # another ClientGuid
        (RESPONSE, 36, bytes(16), "MS-MQQB 3.1.5.3.1"),  # no ServerGuid
        (RESPONSE, 52, b"\xee", "MS-MQQB 3.1.5.3.1"),  # another TimeStamp
        (RESPONSE, 571, b"\0", "MS-MQQB 2.2.3.1"),  # padding
        (PROPOSAL, 24, b"\1\0\0\0", "MS-MQQB 2.2.2.1"),  # AckTimeout
        (PROPOSAL, 20, b"\1\0\0\0", "MS-MQQB 2.2.2.1"),  # RecoverableAckTimeout
        (ANSWER, 24, b"\1", "MS-MQQB 3.1.5.4.1"),
        (ANSWER, 20, b"\1", "MS-MQQB 3.1.5.4.1"),
        (EXPRESS, 2, b"\x43", "MS-MQMQ 2.2.19.1"),  # an unused flag of the BaseHeader
        (EXPRESS, 4, b"X", "MS-MQQB 3.1.5.1.3"),  # signature
        (EXPRESS, 63, b"\x80", "MS-MQMQ 2.2.19.2"),  # an unused flag of the UserHeader
        (FIRST, 2, b"\3", "MS-MQMQ 2.2.19.1"),  # the priority of a transactional message
        (ACK, 20, b"\x09", "MS-MQMQ 2.2.20.4"),  # receipt of messages that were not sent
        (ACK, 22, b"\x09", "MS-MQMQ 2.2.20.4"),  # storing of messages that were not sent
        (ACK, 28, b"\x09", "MS-MQQB 3.1.5.5.5"),  # sent messages
        (ACK, 30, b"\x09", "MS-MQQB 3.1.5.5.5"),  # sent recoverable messages
    ],
)
def test_a_wrong_field_is_named_with_its_clause(
    index: int, offset: int, value: bytes, clause: str
) -> None:
    assert clause in clauses(changed(index, offset, value))


def body_of(packet: bytes) -> int:
    return packet.index(wire.parse_user_message(packet).properties.body[:8])


@pytest.mark.parametrize(
    ("offset", "value", "clause"),
    [
        (8, b"\x04", "MS-MQQB 3.1.1.6.2"),  # a number that was not sent
        (12, b"\x09", "MS-MQQB 2.2.4.1"),  # the number before it
        (20, b"\x01", "MS-MQQB 2.2.4.1"),  # reserved
    ],
)
def test_a_wrong_order_ack_is_named(offset: int, value: bytes, clause: str) -> None:
    at = body_of(PARTS[ORDER_ACK].data) + offset

    assert clause in clauses(changed(ORDER_ACK, at, value))


@pytest.mark.parametrize(("other", "is_broken"), [("b", True), ("c", False)])
def test_a_sequence_is_judged_for_each_receiver(other: str, is_broken: bool) -> None:
    """Two receivers may have one address, and a sender has a sequence for each."""
    streams = Streams()
    later = wire.parse_user_message(PARTS[FIRST].data)
    assert later.transaction is not None
    before = later.transaction._replace(sequence_id=later.transaction.sequence_id - 1)

    assert list(streams.add(later, "1", "b")) == []
    found = {each.clause for each in streams.add(later._replace(transaction=before), "2", other)}

    assert found == ({"MS-MQQB 3.1.1.3.1"} if is_broken else set())


def test_a_relayed_order_ack_may_have_hops() -> None:
    """Its source is not the end that sends it; one of this end itself has none."""
    flags_at, source_at = 60, 16
    assert "MS-MQQB 2.2.4" in clauses(changed(ORDER_ACK, flags_at, b"\x01"))

    packet = bytearray(PARTS[ORDER_ACK].data)
    packet[flags_at] |= 1
    packet[source_at : source_at + 4] = b"else"
    relayed = Part(PARTS[ORDER_ACK].by_client, bytes(packet))
    assert "MS-MQQB 2.2.4" not in clauses([*PARTS[:ORDER_ACK], relayed, *PARTS[ORDER_ACK + 1 :]])


def test_an_order_ack_with_a_flag_is_no_order_ack() -> None:
    seen = judged(changed(ORDER_ACK, 2, b"\3"))

    assert seen[ORDER_ACK].kind == "acknowledgment"
    assert {each.clause for each in seen[ORDER_ACK].violations} >= {"MS-MQQB 2.2.4"}


@pytest.mark.parametrize(
    ("parts", "clause"),
    [
        (without(REQUEST), "MS-MQQB 3.1.5.3"),
        (without(PROPOSAL), "MS-MQQB 3.1.5.4"),
        ([PARTS[EXPRESS]], "MS-MQQB 3.1.5.8"),
        ([PARTS[ACK]], "MS-MQQB 3.1.5.5"),
        ([*PARTS[:4], PARTS[REQUEST]], "MS-MQQB 3.1.5.3"),
        ([*PARTS[:4], PARTS[PROPOSAL]], "MS-MQQB 3.1.5.4"),
        (without(EXPRESS), "MS-MQMQ 2.2.20.4"),
        (without(FIRST + 2), "MS-MQQB 3.1.7.1.3"),  # the second transactional message
    ],
)
def test_a_packet_at_the_wrong_time_is_named(parts: list[Part], clause: str) -> None:
    assert clause in clauses(parts)


def test_more_messages_than_the_window_has_are_named() -> None:
    small = changed(ANSWER, 30, b"\2\0")
    messages = [PARTS[EXPRESS]] * 3

    assert "MS-MQQB 3.1.7.1" in clauses(small[:4] + messages)
    assert "MS-MQQB 3.1.7.1" not in clauses(small[:4] + messages[:2])


def test_a_message_is_followed_to_its_acknowledgments() -> None:
    seen = judged(PARTS)
    name = seen[FIRST].about[0]

    kinds = [each.kind for each in seen if name in each.about]

    assert kinds == ["message", "session ack", "order ack"]


def test_after_garbage_the_next_packet_is_found() -> None:
    garbage = Part(True, b"\x10" + bytes(50))

    seen = judged([*PARTS[:5], garbage, *PARTS[5:]])

    assert [each.kind for each in seen].count("broken") == 1
    assert len(seen) == len(PARTS) + 1


def test_fields_have_the_names_of_the_specification() -> None:
    seen = judged(PARTS)
    request, first, ack = (dict(seen[at].fields) for at in (REQUEST, FIRST, ACK))

    assert request["EstablishConnectionHeader.OperatingSystem.RE"] == "16"
    assert request["InternalHeader.Flags.PT"] == "2"
    assert first["TransactionHeader.TxSequenceNumber"] == "1"
    assert first["UserHeader.Flags.DM"] == "1"
    assert first["MessagePropertiesHeader.Label"] == "'abc'"
    assert ack["SessionHeader.AckSequenceNumber"] == "2"
    assert ack["SessionHeader.RecoverableMsgAckFlags"] == "0x1"
