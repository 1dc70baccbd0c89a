"""Network: the TCP segments and UDP datagrams in captured frames."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import NamedTuple

from qmd.interop.capture import Frame

_TCP, _UDP = 6, 17
_IPV6_MORE = {0, 43, 60, 135}  # extension headers with a length in units of eight bytes
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51
_VLANS = {0x8100, 0x88A8, 0x9100}
_EXTENSIONS_MAX = 16

FIN, SYN, RST, ACK = 1, 2, 4, 16


class End(NamedTuple):
    """One end of a connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Segment(NamedTuple):
    """A TCP segment; `missing` bytes of its data were not captured."""

    at: float
    source: End
    target: End
    number: int
    acknowledged: int
    flags: int
    data: bytes
    missing: int = 0


class Datagram(NamedTuple):
    """A UDP datagram."""

    at: float
    source: End
    target: End
    data: bytes


class Network:
    """Decodes frames; counts those that it cannot use."""

    def __init__(self) -> None:
        self.fragments = 0  # parts of IP packets, which are not put together
        self.others = 0  # frames of other protocols, and damaged ones

    def decode(self, frame: Frame) -> Iterator[Segment | Datagram]:
        """Yield what a frame carries, if it is TCP or UDP."""
        try:
            found = self._ip(frame.at, _payload(frame))
        except (struct.error, IndexError, ValueError):
            found = None
        if found is None:
            self.others += 1
        else:
            yield found

    def _ip(self, at: float, packet: bytes) -> Segment | Datagram | None:
        version = packet[0] >> 4
        if version == 4:
            head = (packet[0] & 15) * 4
            size, _, part = struct.unpack_from(">HHH", packet, 2)
            protocol, hosts = packet[9], (packet[12:16], packet[16:20])
            if part & 0x3FFF:
                self.fragments += 1
                return None
            size = size or len(packet)  # 0: the network card divides the packet later
            if head < 20:
                return None
        elif version == 6:
            size, protocol = struct.unpack_from(">HB", packet, 4)
            size = size + 40 if size else len(packet)
            hosts, head = (packet[8:24], packet[24:40]), 40
            for _ in range(_EXTENSIONS_MAX):
                if protocol == _IPV6_FRAGMENT:
                    self.fragments += 1
                    return None
                if protocol not in _IPV6_MORE | {_IPV6_AUTHENTICATION}:
                    break
                unit = 4 if protocol == _IPV6_AUTHENTICATION else 8
                protocol, head = packet[head], head + packet[head + 1] * unit + 8
        else:
            return None
        source, target = (str(ipaddress.ip_address(host)) for host in hosts)
        return _transport(at, protocol, source, target, packet[head:size], size - head)


def _transport(
    at: float, protocol: int, source: str, target: str, data: bytes, size: int
) -> Segment | Datagram | None:
    if protocol == _TCP:
        ports = struct.unpack_from(">HH", data)
        number, acknowledged, offset, flags = struct.unpack_from(">IIBB", data, 4)
        head = (offset >> 4) * 4
        if head < 20 or head > size:
            return None
        return Segment(
            at,
            End(source, ports[0]),
            End(target, ports[1]),
            number,
            acknowledged,
            flags,
            data[head:],
            max(0, size - len(data)),
        )
    if protocol == _UDP:
        from_port, to_port, length = struct.unpack_from(">HHH", data)
        return Datagram(at, End(source, from_port), End(target, to_port), data[8 : max(length, 8)])
    return None


def _payload(frame: Frame) -> bytes:
    """Return the IP packet of a frame.  Raises ValueError for other link types and protocols."""
    data, kind = frame.data, frame.link_type
    if kind == 1:  # Ethernet
        at, ether_type = 14, int.from_bytes(data[12:14], "big")
        while ether_type in _VLANS and at + 4 <= len(data):
            ether_type = int.from_bytes(data[at + 2 : at + 4], "big")
            at += 4
        if ether_type not in (0x0800, 0x86DD):
            raise ValueError("no IP")
        return data[at:]
    if kind in (0, 108):  # loopback of BSD
        return data[4:]
    if kind in (12, 14, 101, 228, 229):  # IP alone
        return data
    if kind == 113:  # any interface of Linux
        return data[16:]
    if kind == 276:
        return data[20:]
    raise ValueError("another link type")
