"""The byte stream of a connection: detection of faults, and bounds of the memory that it uses."""

from __future__ import annotations

import pytest

from protocol import BrokenStream, MalformedPacket, PacketBuffer, SessionHeader, build_session_ack
from protocol.framing import BUFFER_BYTES
from tests.unit.protocol.samples import put

ACK = build_session_ack(SessionHeader(1, 0, 0, 0, 0, 64, 0))


def head(size: int, flags: int = 0) -> bytes:
    return b"\x10\x00" + flags.to_bytes(2, "little") + b"LIOR" + size.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("stream", "field", "offset"),
    [
        (b"\x11", "base.version", 0),
        (b"G", "base.version", 0),
        (b"\x10\x00\x00\x00LIOS", "base.signature", 4),
        (head(0), "base.packet_size", 8),
        (head(19), "base.packet_size", 8),
        (head(0x400001), "base.packet_size", 8),
        (head(0xFFFFFFFF), "base.packet_size", 8),
    ],
)
def test_a_fault_is_detected_as_soon_as_its_bytes_arrive(
    stream: bytes, field: str, offset: int
) -> None:
    for length in (len(stream), len(stream) + 100):
        with pytest.raises(MalformedPacket) as refused:
            PacketBuffer().feed(stream.ljust(length, b"\0"))
        assert (refused.value.field, refused.value.offset) == (field, offset)
    assert PacketBuffer().feed(stream[:-1]) == []


def test_the_packets_before_a_fault_are_returned_with_it() -> None:
    with pytest.raises(BrokenStream) as broken:
        PacketBuffer().feed(ACK + ACK + put(ACK, 4, b"XXXX"))

    assert broken.value.packets == [ACK, ACK]
    assert broken.value.field == "base.signature"


def test_a_fault_is_permanent() -> None:
    buffer = PacketBuffer()

    for piece in (b"\x10\x00\x00\x00XXXX", b"more", ACK):
        with pytest.raises(BrokenStream) as broken:
            buffer.feed(piece)
        assert broken.value.packets == []


def test_the_smallest_and_the_largest_packet_are_accepted() -> None:
    smallest = head(20).ljust(20, b"\0")
    largest = head(0x400000).ljust(0x400000, b"\1")

    assert PacketBuffer().feed(smallest + largest + smallest) == [smallest, largest, smallest]


def test_a_smaller_limit_holds_from_when_it_is_set() -> None:
    buffer = PacketBuffer(packet_bytes_max=572)
    packet = head(600).ljust(600, b"\0")

    with pytest.raises(MalformedPacket, match=r"MUST be 20\.\.572 bytes"):
        buffer.feed(packet)
    buffer = PacketBuffer(packet_bytes_max=572)
    buffer.packet_bytes_max = 600
    assert buffer.feed(packet) == [packet]


def test_only_a_user_message_can_have_a_session_header_that_its_size_does_not_count() -> None:
    internal = head(20, flags=0x18).ljust(20, b"\0")
    riding = head(20, flags=0x10).ljust(36, b"\0")

    assert PacketBuffer().feed(internal + riding + internal) == [internal, riding, internal]


def test_memory_grows_with_received_bytes_and_not_with_announced_sizes() -> None:
    buffer = PacketBuffer()
    stream = head(0x400000)
    room = len(buffer.get_buffer())
    buffer.feed(stream)
    came = len(stream)

    while came < 0x400000:
        assert room <= max(BUFFER_BYTES, 2 * came)
        piece = min(len(buffer.get_buffer()), 0x400000 - came)
        packets = buffer.feed(bytes(piece))
        came += piece
        room = came + len(buffer.get_buffer())

    assert [len(packet) for packet in packets] == [0x400000]
    assert len(buffer.get_buffer()) == BUFFER_BYTES


def test_no_read_moves_more_bytes_than_the_buffer_has_before_the_packet_is_complete() -> None:
    buffer, view = PacketBuffer(), None
    buffer.feed(head(0x400000))
    view = buffer.get_buffer().obj

    while True:
        room = buffer.get_buffer()
        assert room.obj is view
        assert 0 < len(room) <= BUFFER_BYTES
        if buffer.buffer_updated(len(room)):
            break

    assert buffer.grown_bytes == 0


def test_the_buffer_is_compacted_before_it_grows() -> None:
    buffer = PacketBuffer()
    small = head(1000).ljust(1000, b"\0")
    count = BUFFER_BYTES // len(small) - 1
    stream = small * count + head(0x400000)

    room = buffer.get_buffer()
    room[: len(stream)] = stream

    assert len(buffer.buffer_updated(len(stream))) == count
    assert len(buffer.get_buffer()) == BUFFER_BYTES - 12


def test_the_event_loop_writes_into_the_buffer_itself() -> None:
    buffer = PacketBuffer()
    stream = ACK * 3 + ACK[:10]

    buffer.get_buffer(65536)[: len(stream)] = stream
    assert buffer.buffer_updated(len(stream)) == [ACK, ACK, ACK]
    buffer.get_buffer(65536)[:26] = ACK[10:]
    assert buffer.buffer_updated(26) == [ACK]


def test_the_buffer_always_has_free_space() -> None:
    buffer = PacketBuffer()
    packet = head(1000).ljust(1000, b"\0")
    stream = packet * 2000
    received = 0

    while stream:
        room = buffer.get_buffer()
        assert len(room) > 0
        count = min(len(room), len(stream))
        room[:count] = stream[:count]
        stream = stream[count:]
        received += len(buffer.buffer_updated(count))

    assert received == 2000
