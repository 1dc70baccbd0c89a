"""A stream yields complete packets, whatever the pieces in which it arrives."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import (
    BrokenStream,
    PacketBuffer,
    SessionHeader,
    build_session_ack,
    build_user_message,
    framing,
)
from tests.properties.packet_strategies import session_headers, user_messages

packets = user_messages().map(build_user_message) | session_headers().map(build_session_ack)


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:stop] for start, stop in pairwise(places)]


@settings(max_examples=200)
@given(st.lists(packets, max_size=6), st.lists(st.integers(0, 10_000), max_size=12))
def test_packets_are_complete_and_in_order(sent: list[bytes], cuts: list[int]) -> None:
    buffer = PacketBuffer()

    received = [
        packet for piece in in_pieces(b"".join(sent), cuts) for packet in buffer.feed(piece)
    ]

    assert received == sent


@settings(max_examples=50)
@given(st.lists(packets, min_size=1, max_size=3))
def test_a_packet_is_complete_with_its_last_byte(sent: list[bytes]) -> None:
    buffer = PacketBuffer()

    for packet in sent:
        for at in range(len(packet) - 1):
            assert buffer.feed(packet[at : at + 1]) == []
        assert buffer.feed(packet[-1:]) == [packet]


@settings(max_examples=200)
@given(
    st.lists(packets, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.binary(min_size=12, max_size=12).filter(lambda head: head[:8] != b"\x10\x00\x00\x00LIOR"),
)
def test_packets_before_a_fault_are_not_lost(
    sent: list[bytes], cuts: list[int], fault: bytes
) -> None:
    buffer = PacketBuffer()
    received: list[bytes] = []

    def receive_all() -> None:
        for piece in in_pieces(b"".join(sent) + fault, cuts):
            received.extend(buffer.feed(piece))

    with pytest.raises(BrokenStream) as broken:
        receive_all()

    assert received + broken.value.packets == sent


@settings(max_examples=30)
@given(st.lists(st.integers(20, 1_500_000), min_size=1, max_size=4), st.randoms())
def test_memory_of_large_packets_is_released(sizes: list[int], random: Random) -> None:
    buffer = PacketBuffer()
    sent = [
        b"\x10\x00\x00\x00LIOR" + size.to_bytes(4, "little") + bytes(size - 12) for size in sizes
    ]
    stream = b"".join(sent)
    received: list[bytes] = []

    while stream:
        count = random.randint(1, 400_000)
        received += buffer.feed(stream[:count])
        stream = stream[count:]
        assert len(buffer.get_buffer()) > 0

    assert received == sent
    assert len(buffer.get_buffer()) == framing.BUFFER_BYTES


def test_an_announced_size_reserves_no_memory() -> None:
    buffer = PacketBuffer()

    assert buffer.feed(b"\x10\x00\x00\x00LIOR\x00\x00\x40\x00") == []

    assert len(buffer.get_buffer()) < framing.BUFFER_BYTES


def test_a_carried_session_header_belongs_to_its_packet() -> None:
    header = SessionHeader(1, 2, 3, 4, 5, 64, 0)
    riding = b"\x10\x00\x10\x00LIOR\x18\x00\x00\x00" + bytes(12 + 16)
    ack = build_session_ack(header)

    assert PacketBuffer().feed(riding + ack) == [riding, ack]
