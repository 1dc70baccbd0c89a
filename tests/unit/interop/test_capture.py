"""Capture files: their formats, and what a broken one leaves."""

from __future__ import annotations

import io
import struct

import pytest

from qmd.interop.capture import BLOCK_BYTES_MAX, BadCapture, Capture, Frame
from qmd.interop.network import Datagram, End, Network, Segment
from tests import captures

PACKETS = [bytes([number]) * (60 + number) for number in range(5)]


def frames(data: bytes) -> tuple[list[Frame], str]:
    capture = Capture(io.BytesIO(data))
    return list(capture), capture.note


@pytest.mark.parametrize(
    "file",
    [
        captures.pcap(PACKETS),
        captures.pcap(PACKETS, order=">"),
        captures.pcap(PACKETS, nano=True),
        captures.pcapng(PACKETS),
        captures.pcapng(PACKETS, order=">"),
        captures.pcapng(PACKETS, parts=6),
        captures.pcapng(PACKETS) + captures.pcapng([], order=">"),
    ],
)
def test_every_format_has_the_same_frames(file: bytes) -> None:
    found, note = frames(file)

    assert [frame.data for frame in found] == PACKETS
    assert [frame.link_type for frame in found] == [1] * 5
    times = [1_700_000_000 + number / 1000 for number in range(5)]
    assert [frame.at for frame in found] == pytest.approx(times, abs=1e-6)
    assert note == ""


@pytest.mark.parametrize("order", ["<", ">"])
def test_longer_heads_of_frames_are_skipped(order: str) -> None:
    """The kind of file that some kernels write: eight bytes more in front of each frame."""
    plain = captures.pcap(PACKETS, order=order)
    file, at = struct.pack(order + "I", 0xA1B2CD34) + plain[4:24], 24
    for packet in PACKETS:
        end = at + 16 + len(packet)
        file += plain[at : at + 16] + bytes(8) + plain[at + 16 : end]
        at = end

    found, note = frames(file)

    assert ([frame.data for frame in found], note) == (PACKETS, "")


@pytest.mark.parametrize("file", [captures.pcap(PACKETS), captures.pcapng(PACKETS)])
def test_a_file_that_ends_early_is_read_up_to_there(file: bytes) -> None:
    for size in range(len(file) - 70, len(file)):
        found, note = frames(file[:size])

        assert [frame.data for frame in found] == PACKETS[: len(found)]
        assert 3 <= len(found) < 5
        # A file that ends behind a frame is a complete file.
        assert note == "" or note.startswith(f"after {len(found)} frames: the file ends")


@pytest.mark.parametrize("data", [b"", b"abc", b"GIF89a" + bytes(100), bytes(100)])
def test_another_file_is_no_capture(data: bytes) -> None:
    with pytest.raises(BadCapture, match="neither as pcap nor as pcapng"):
        Capture(io.BytesIO(data))


@pytest.mark.parametrize(
    ("beginning", "hint"),
    [
        (b"\x1f\x8b\x08\0", "gunzip"),
        (b"PK\3\4", "unpack it"),
        (b"GMBU", "Network Monitor"),
        (b"\0\0\1\0", "pktmon etl2pcap"),
    ],
)
def test_a_file_of_another_program_is_named(beginning: bytes, hint: str) -> None:
    with pytest.raises(BadCapture, match=hint):
        Capture(io.BytesIO(beginning + bytes(100)))


@pytest.mark.parametrize("order", ["<", ">"])
def test_blocks_of_any_size_that_have_no_frames_are_skipped(order: str) -> None:
    """Names of hosts, keys of TLS and other blocks, in front of the frames and behind them."""
    file = captures.pcapng(PACKETS, order=order)
    (head,) = struct.unpack_from(order + "I", file, 4)
    size = 12 + BLOCK_BYTES_MAX
    block = struct.pack(order + "II", 0x0000000A, size) + bytes(size - 12)
    block += struct.pack(order + "I", size)

    found, note = frames(file[:head] + block + file[head:] + block)

    assert ([frame.data for frame in found], note) == (PACKETS, "")


def test_an_absurd_size_is_not_allocated() -> None:
    head = captures.pcap([])
    huge = head + struct.pack("<IIII", 0, 0, 0xFFFFFFF0, 0xFFFFFFF0)
    assert frames(huge) == ([], "after 0 frames: a frame of 4294967280 bytes")

    block = captures.pcapng([]) + struct.pack("<II", 6, 0xFFFFFFF0)
    assert frames(block) == ([], "after 0 frames: a block of 4294967280 bytes")


def decoded(frame: Frame) -> Segment | Datagram | None:
    return next(iter(Network().decode(frame)), None)


IPV4 = captures.tcp(True, 5, 6, captures.SYN | captures.ACK, b"data")
V6_ENDS = (("fd00::1", 40000), ("fd00::2", 1801))
IPV6 = captures.tcp(True, 5, 6, captures.SYN | captures.ACK, b"data", ends=V6_ENDS)


@pytest.mark.parametrize(
    ("link_type", "data"),
    [
        (1, captures.ethernet(IPV4)),
        (1, captures.ethernet(IPV4) + bytes(6)),  # padded to the least size of a frame
        (1, captures.ethernet(IPV4, vlan=True)),
        (0, b"\2\0\0\0" + IPV4),
        (101, IPV4),
        (1, bytes(12) + b"\x88\xa8\0\7\x81\0\0\x08\x08\0" + IPV4),  # two tags
        (1, bytes(12) + b"\x88\x64\x11\0\0\x05\0\x40\0\x21" + IPV4),  # PPPoE
        (1, bytes(12) + b"\x88\x47\0\1\0\x40\0\2\1\x40" + IPV4),  # two labels of MPLS
        (113, bytes(14) + b"\x81\0\0\7\x08\0" + IPV4),
        (276, b"\x81\0" + bytes(18) + b"\0\7\x08\0" + IPV4),
        (113, bytes(14) + b"\x08\x00" + IPV4),
        (276, b"\x08\x00" + bytes(18) + IPV4),
    ],
)
def test_a_segment_is_found_behind_every_kind_of_link(link_type: int, data: bytes) -> None:
    found = decoded(Frame(7.0, link_type, data))

    ends = End(*captures.CLIENT), End(*captures.SERVER)
    assert found == Segment(7.0, *ends, 5, 6, captures.SYN | captures.ACK, b"data")


def test_a_segment_of_ipv6_is_found_behind_extension_headers() -> None:
    hop_by_hop = bytes([6, 0]) + bytes(6)
    longer = IPV6[:4] + struct.pack(">HB", len(IPV6) - 40 + 8, 0) + IPV6[7:40]

    for packet in (IPV6, longer + hop_by_hop + IPV6[40:]):
        found = decoded(Frame(7.0, 101, packet))
        assert isinstance(found, Segment)
        assert (str(found.source), found.data) == ("[fd00::1]:40000", b"data")


def test_a_cut_frame_says_how_much_is_missing() -> None:
    found = decoded(Frame(7.0, 101, IPV4[:-3]))

    assert isinstance(found, Segment)
    assert (found.data, found.missing) == (b"d", 3)


@pytest.mark.parametrize("size", range(48))
def test_any_beginning_of_a_frame_is_harmless(size: int) -> None:
    network = Network()

    assert list(network.decode(Frame(0.0, 1, captures.ethernet(IPV4)[:size]))) == []
    assert network.others == 1
