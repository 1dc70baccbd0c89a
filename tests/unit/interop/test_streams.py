"""Streams: bytes in order, whatever happened to their segments."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmd.interop.conversation import Seen
from qmd.interop.reading import Reading, Session
from tests import captures
from tests.captures import Part, connection, ethernet, pcap
from tests.dialogue import usual

PARTS = usual()
HEAD = 3  # segments of the handshake of TCP


def read(packets: Iterable[bytes]) -> tuple[list[Seen], Session]:
    reading = Reading(io.BytesIO(pcap([ethernet(packet) for packet in packets])))
    seen = [each for _, each in reading.packets()]
    (session,) = reading.sessions
    return seen, session


WHOLE, _ = read(connection(PARTS))


def sent(seen: Iterable[Seen], *, by_initiator: bool) -> list[bytes]:
    return [each.bytes for each in seen if each.by_initiator == by_initiator]


@pytest.mark.parametrize("segment", [1, 7, 100, 1400, 65_000])
def test_packets_do_not_depend_on_the_sizes_of_segments(segment: int) -> None:
    seen, session = read(connection(PARTS, segment=segment))

    assert [each.bytes for each in seen] == [each.bytes for each in WHOLE]
    assert not session.conversation.violations
    assert session.connection.is_ended


def test_numbers_wrap_at_32_bits() -> None:
    seen, _ = read(connection(PARTS, first=(0xFFFFFFF0, 0xFFFFFFFE)))

    assert [each.bytes for each in seen] == [each.bytes for each in WHOLE]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), segment=st.sampled_from([13, 50, 400]))
def test_repeated_and_displaced_segments_change_nothing(seed: int, segment: int) -> None:
    """Each end's packets stay as they are, and an answer stands behind its question."""
    choice = random.Random(seed)
    packets = connection(PARTS, segment=segment, with_end=False)
    head, rest = packets[:HEAD], packets[HEAD:]
    shuffled = []
    for at, packet in enumerate(rest):
        shuffled.append((at + choice.choice([0, 0, 0, 1, 2, 5]), packet))
        if choice.random() < 0.2:
            shuffled.append((at + choice.randrange(9), packet))
    shuffled.sort(key=lambda each: each[0])

    seen, session = read(head + [packet for _, packet in shuffled])

    for by_initiator in (True, False):
        assert sent(seen, by_initiator=by_initiator) == sent(WHOLE, by_initiator=by_initiator)
    assert (session.conversation.lost_bytes, session.conversation.violations) == (0, 0)


def test_a_segment_that_the_other_end_has_and_the_capture_lacks_is_a_loss() -> None:
    packets = connection(PARTS, segment=60)
    third = [at for at, packet in enumerate(packets) if len(packet) > 80][30]

    seen, session = read(packets[:third] + packets[third + 1 :])

    assert session.conversation.lost_bytes == 60
    assert len(WHOLE) - 3 <= len(seen) < len(WHOLE)
    assert {each.bytes for each in seen} < {each.bytes for each in WHOLE}
    assert session.conversation.violations == 0, "counts are taken from the next header"


def test_a_capture_may_begin_in_the_middle_of_a_session() -> None:
    packets = connection(PARTS, segment=60)[40:]

    seen, session = read(packets)

    assert not session.conversation.is_complete
    assert session.conversation.violations == 0
    assert session.conversation.initiator == "10.0.0.1:40000"
    assert len(WHOLE) // 2 < len(seen) < len(WHOLE)


def test_longer_and_overlapping_repetitions_are_cut() -> None:
    data = b"".join(part.data for part in PARTS if part.by_client)[:200]
    head = connection([], with_end=False)
    pieces = [(0, 100), (50, 120), (0, 150), (140, 200), (100, 180)]
    packets = [
        captures.tcp(True, 1001 + first, 0xFFFFFF01, captures.ACK, data[first:last])
        for first, last in pieces
    ]
    reading = Reading(io.BytesIO(pcap([ethernet(packet) for packet in head + packets])))

    list(reading.packets())

    counts = reading.sessions[0].connection.from_initiator.counts
    assert (counts.bytes, counts.repeated, counts.lost_bytes) == (200, 4, 0)


def test_a_second_connection_of_the_same_ends_is_another_session() -> None:
    packets = connection(PARTS) + connection([Part(True, PARTS[0].data)])
    reading = Reading(io.BytesIO(pcap([ethernet(packet) for packet in packets])))

    seen = [(session.number, each.kind) for session, each in reading.packets()]

    assert seen[-1] == (2, "connection request")
    assert len(seen) == len(WHOLE) + 1


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("segment", [100, 65_000])
def test_a_capture_at_several_layers_has_each_packet_once(copies: int, segment: int) -> None:
    """As pktmon writes it: each frame once for each layer, the handshake and the end included."""
    packets = [each for each in connection(PARTS, segment=segment) for _ in range(copies)]

    seen, session = read(packets)

    assert [each.bytes for each in seen] == [each.bytes for each in WHOLE]
    assert not session.conversation.violations
    assert session.connection.is_ended
