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
_IPV4, _IPV6 = 0x0800, 0x86DD
_VLANS = {0x8100, 0x88A8, 0x9100}
_LABELS = {0x8847, 0x8848}
_PPPOE, _OF_PPP = 0x8864, {0x0021: _IPV4, 0x0057: _IPV6}
_TAGS_MAX = 16
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
        return _behind_tags(data, 14, int.from_bytes(data[12:14], "big"))
    if kind in (0, 108):  # loopback of BSD
        return data[4:]
    if kind in (12, 14, 101, 228, 229):  # IP alone
        return data
    if kind == 113:  # any interface of Linux
        return _behind_tags(data, 16, int.from_bytes(data[14:16], "big"))
    if kind == 276:
        return _behind_tags(data, 20, int.from_bytes(data[:2], "big"))
    raise ValueError("another link type")


def _behind_tags(data: bytes, at: int, ether_type: int) -> bytes:
    """Return the IP packet behind VLAN tags, labels of MPLS and PPPoE.  Raises ValueError."""
    for _ in range(_TAGS_MAX):
        if ether_type in _VLANS:
            ether_type, at = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
        elif ether_type in _LABELS:
            is_last = data[at + 2] & 1
            at += 4
            if is_last:  # the label does not say what is behind it
                return data[at:]
        elif ether_type == _PPPOE:
            ether_type = _OF_PPP.get(int.from_bytes(data[at + 6 : at + 8], "big"), 0)
            at += 8
        else:
            break
    if ether_type not in (_IPV4, _IPV6):
        raise ValueError("no IP")
    return data[at:]
