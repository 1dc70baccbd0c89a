"""Captures made for tests: frames of TCP connections, as pcap or pcapng."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
CLIENT, SERVER = ("10.0.0.1", 40000), ("10.0.0.2", 1801)
SNAP = 1 << 18


class Part(NamedTuple):
    """Bytes of one end, in the order of their sending."""

    by_client: bool
    data: bytes


class Frame(NamedTuple):
    """A frame as it is on the wire."""

    at: float
    data: bytes


def tcp(
    by_client: bool,
    number: int,
    acknowledged: int,
    flags: int,
    data: bytes = b"",
    *,
    ends: tuple[tuple[str, int], tuple[str, int]] = (CLIENT, SERVER),
) -> bytes:
    """Return the IP packet of a segment."""
    source, target = ends if by_client else ends[::-1]
    numbers = number & 0xFFFFFFFF, acknowledged & 0xFFFFFFFF
    segment = struct.pack(">HHIIBBHHH", source[1], target[1], *numbers, 5 << 4, flags, 0xFFFF, 0, 0)
    if ":" in source[0]:
        hosts = [socket.inet_pton(socket.AF_INET6, host) for host, _ in (source, target)]
        size = len(segment) + len(data)
        return struct.pack(">IHBB", 6 << 28, size, 6, 64) + b"".join(hosts) + segment + data
    hosts = [socket.inet_aton(host) for host, _ in (source, target)]
    size = 20 + len(segment) + len(data)
    head = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 6, 0)
    return head + b"".join(hosts) + segment + data


def ethernet(packet: bytes, *, vlan: bool = False) -> bytes:
    """Return the frame of an IP packet."""
    kind = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
    return bytes(12) + (b"\x81\x00\x00\x07" if vlan else b"") + kind + packet


def connection(
    parts: Iterable[Part],
    *,
    segment: int = 1400,
    first: tuple[int, int] = (1000, 0xFFFFFF00),
    with_begin: bool = True,
    with_end: bool = True,
    ends: tuple[tuple[str, int], tuple[str, int]] = (CLIENT, SERVER),
) -> list[bytes]:
    """Return the IP packets of a connection that carries `parts`; `first` are its numbers."""
    numbers = {True: first[0], False: first[1]}

    def packet(by_client: bool, flags: int, data: bytes = b"") -> bytes:
        return tcp(by_client, numbers[by_client], numbers[not by_client], flags, data, ends=ends)

    found = []
    if with_begin:
        found.append(tcp(True, numbers[True], 0, SYN, ends=ends))
        numbers[True] += 1
        found.append(packet(False, SYN | ACK))
        numbers[False] += 1
        found.append(packet(True, ACK))
    for by_client, data in parts:
        for at in range(0, len(data), segment):
            piece = data[at : at + segment]
            found.append(packet(by_client, ACK | PSH, piece))
            numbers[by_client] += len(piece)
        found.append(packet(not by_client, ACK))
    if with_end:
        found.append(packet(True, FIN | ACK))
        numbers[True] += 1
        found.append(packet(False, FIN | ACK))
    return found


def pcap(packets: Sequence[bytes], *, order: str = "<", nano: bool = False, link: int = 1) -> bytes:
    """Return a pcap file with a frame of each packet, a millisecond apart."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    found = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, SNAP, link)]
    for number, packet in enumerate(packets):
        part = number % 1000 * (1_000_000 if nano else 1000)
        head = (1_700_000_000 + number // 1000, part, len(packet), len(packet))
        found += [struct.pack(order + "IIII", *head), packet]
    return b"".join(found)


def pcapng(packets: Sequence[bytes], *, order: str = "<", link: int = 1, parts: int = 9) -> bytes:
    """Return a pcapng file with a frame of each packet, a millisecond apart."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(order + "I", 12 + len(body))
        return struct.pack(order + "I", kind) + size + body + size

    head = struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1)
    option = struct.pack(order + "HHB3xI", 9, 1, parts, 0)
    found = [
        block(0x0A0D0D0A, head),
        block(1, struct.pack(order + "HHI", link, 0, SNAP) + option),
        block(0xBAD, b"a block of another kind"),
    ]
    for number, packet in enumerate(packets):
        ticks = 1_700_000_000 * 10**parts + number * 10 ** (parts - 3)
        size = (len(packet), len(packet))
        body = struct.pack(order + "IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, *size)
        found.append(block(6, body + packet))
    return b"".join(found)
