"""Packets that are compared with the one before them instead of being parsed."""

from __future__ import annotations

import pytest

from protocol import TransactionHeader, UserMessage, build_user_message, parse_user_message
from protocol.errors import MalformedPacket
from protocol.like_packets import (
    LikeRecoverable,
    LikeTransactional,
    like_packets,
    may_have_like,
)
from tests.unit.protocol.samples import (
    express_message,
    full_message,
    recoverable_message,
    transactional_message,
)

MODEL = transactional_message()  # position 5 of its sequence
NUMBER = MODEL.user.message_number
PACKET = build_user_message(MODEL)
PARSED = parse_user_message(PACKET)


def follower(offset: int = 1, body: bytes = b"another body") -> UserMessage:
    """Return the message `offset` positions after the model."""
    transaction = MODEL.transaction
    assert transaction is not None
    position = transaction.sequence_number + offset
    flags = transaction.flags.replace(index=100 + offset)
    following = TransactionHeader(flags, transaction.sequence_id, position, position - 1, None)
    return MODEL._replace(
        user=MODEL.user._replace(message_number=NUMBER + offset),
        transaction=following,
        properties=MODEL.properties._replace(
            message_size=len(body), allocation_body_size=len(body), body=body
        ),
    )


RECOVERABLE = recoverable_message()


def like() -> LikeTransactional | LikeRecoverable:
    return like_packets(PARSED, PACKET)


def recoverable(offset: int = 0, body: bytes = b"another body") -> UserMessage:
    """Return the message `offset` numbers after the recoverable model."""
    number = RECOVERABLE.user.message_number + offset
    return RECOVERABLE._replace(
        user=RECOVERABLE.user._replace(message_number=number),
        properties=RECOVERABLE.properties._replace(
            message_size=len(body), allocation_body_size=len(body), body=body
        ),
    )


def like_recoverable() -> LikeTransactional | LikeRecoverable:
    packet = build_user_message(recoverable())
    return like_packets(parse_user_message(packet), packet)


def test_followers_are_a_run() -> None:
    packets = [build_user_message(follower(at, b"x" * at)) for at in range(1, 40)]

    run = like().run([b"before", *packets], 1)

    assert run.packets == packets
    assert run.message_numbers == list(range(NUMBER + 1, NUMBER + 40))
    assert run.first_position == 6


def test_a_run_goes_on_where_the_one_before_has_ended() -> None:
    packets = [build_user_message(follower(at)) for at in (1, 2, 3, 5, 4)]
    compared = like()

    assert compared.run(packets, 0).packets == packets[:3]
    assert compared.run(packets, 4) == (packets[4:], [NUMBER + 4], 9)
    assert compared.run(packets, 5).packets == []


@pytest.mark.parametrize("body", [b"", b"one body", b"x" * 33])
def test_a_changed_byte_is_accepted_only_where_messages_may_differ(body: bytes) -> None:
    message = follower(1, body)
    packet = build_user_message(message)
    accepted = set()
    for at in range(len(packet)):
        for bit in range(8):
            changed = bytearray(packet)
            changed[at] ^= 1 << bit
            if like().run([bytes(changed)], 0).packets:
                accepted.add(at)
                parsed = parse_user_message(bytes(changed))  # obeys all rules
                assert parsed.transaction is not None
                assert parsed.transaction.sequence_number == 6
                assert parsed.transaction.previous_number == 5
                assert parsed._replace(
                    user=parsed.user._replace(message_number=0), transaction=None
                )._replace(properties=None) == message._replace(
                    base=parsed.base,
                    user=message.user._replace(message_number=0),
                    transaction=None,
                    properties=None,
                )
                assert parsed.base._replace(packet_size=0) == message.base._replace(packet_size=0)
                own = parsed.properties
                assert own._replace(
                    body=body, message_size=len(body), allocation_body_size=0
                ) == message.properties._replace(label_length=4, allocation_body_size=0)
    sizes = range(168, 176)  # of the body, at its offset in the properties
    body_at = len(packet) - (len(body) + 3 & -4)
    index = range(116, 119)
    assert accepted <= {*range(56, 60), *index, *sizes, *range(body_at - 3, len(packet))}
    assert {56, 117} <= accepted


def test_recoverable_messages_with_successive_numbers_are_a_run() -> None:
    packets = [build_user_message(recoverable(at, b"x" * at)) for at in (1, 2, 3, 5, 4)]
    number = RECOVERABLE.user.message_number
    compared = like_recoverable()

    assert compared.run(packets, 0) == (packets[:3], range(number + 1, number + 4), 0)
    assert compared.run(packets, 3).packets == []
    assert compared.run(packets, 4) == (packets[4:], range(number + 4, number + 5), 0)


def test_a_number_is_in_no_run_behind_the_highest_one() -> None:
    last = RECOVERABLE._replace(user=RECOVERABLE.user._replace(message_number=0xFFFFFFFF))
    first = RECOVERABLE._replace(user=RECOVERABLE.user._replace(message_number=0))
    packet = build_user_message(last)
    compared = like_packets(parse_user_message(packet), packet)

    assert compared.run([build_user_message(first)], 0).packets == []


@pytest.mark.parametrize("body", [b"", b"one body", b"x" * 33])
def test_a_changed_byte_of_a_recoverable_packet_is_accepted_in_its_body_only(body: bytes) -> None:
    message = recoverable(1, body)
    packet = build_user_message(message)
    accepted = set()
    for at in range(len(packet)):
        for bit in range(8):
            changed = bytearray(packet)
            changed[at] ^= 1 << bit
            if like_recoverable().run([bytes(changed)], 0).packets:
                accepted.add(at)
                parsed = parse_user_message(bytes(changed))  # obeys all rules
                assert parsed._replace(properties=None) == message._replace(
                    base=parsed.base, properties=None
                )
                assert parsed.base._replace(packet_size=0) == message.base._replace(packet_size=0)
                own = parsed.properties
                assert own._replace(
                    body=body, message_size=len(body), allocation_body_size=0
                ) == message.properties._replace(label_length=4, allocation_body_size=0)
    sizes = range(148, 156)  # of the body, at its offset in the properties
    body_at = len(packet) - (len(body) + 3 & -4)
    assert accepted <= {*sizes, *range(body_at - 3, len(packet))}
    assert 152 in accepted


def test_recoverable_packets_that_are_cut_off_or_longer_are_not_like() -> None:
    packet = build_user_message(recoverable(1))
    for end in range(len(packet)):
        assert not like_recoverable().run([packet[:end]], 0).packets
    assert not like_recoverable().run([packet + bytes(4)], 0).packets
    oversized = bytearray(packet)
    oversized[148] += 200  # the body goes beyond its packet
    with pytest.raises(MalformedPacket):
        parse_user_message(bytes(oversized))
    assert not like_recoverable().run([bytes(oversized)], 0).packets


def test_packets_that_are_cut_off_or_longer_are_not_like() -> None:
    packet = build_user_message(follower())
    for end in range(len(packet)):
        assert not like().run([packet[:end]], 0).packets
    assert not like().run([packet + bytes(4)], 0).packets


def test_a_body_that_goes_beyond_its_packet_is_not_like() -> None:
    packet = bytearray(build_user_message(follower(1, b"1234")))
    packet[168] += 200
    with pytest.raises(MalformedPacket):
        parse_user_message(bytes(packet))
    assert not like().run([bytes(packet)], 0).packets


def test_messages_with_rare_headers_or_requests_have_none_that_are_like() -> None:
    flags = MODEL.user.flags
    assert may_have_like(MODEL)
    assert may_have_like(RECOVERABLE)
    journaled = RECOVERABLE.user.flags.replace(negative_journal=1, positive_journal=1)
    assert may_have_like(RECOVERABLE._replace(user=RECOVERABLE.user._replace(flags=journaled)))
    for rare in (
        full_message(),
        express_message(),
        MODEL._replace(user=MODEL.user._replace(flags=flags.replace(negative_journal=1))),
        MODEL._replace(user=MODEL.user._replace(flags=flags.replace(positive_journal=1))),
        MODEL._replace(properties=MODEL.properties._replace(message_class=1)),
        MODEL._replace(
            properties=MODEL.properties._replace(
                flags=MODEL.properties.flags.replace(positive_arrival=1)
            )
        ),
    ):
        assert not may_have_like(rare)
