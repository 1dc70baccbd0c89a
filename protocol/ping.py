"""The ping over UDP: is a queue manager there, and would it take a session?  (MS-MQQB 2.2.7)

initiator ── Ping(cookie n) ──► port 3527
          ◄── Ping(cookie n, refused 0 or 1) ──
"""

# No `from __future__ import annotations` here: the annotations are the layout.

from typing import Annotated, NamedTuple

from construct import Int16ul, Int32ul, this

from protocol.codec.derive import Codec
from protocol.codec.layout import Octets
from protocol.codec.marks import NothingLeft, Rule
from protocol.flags import PingFlags

PING_PORT = 3527
PING_BYTES = 24
PING_SIGNATURE = 0x5548

_WHOLE = NothingLeft("queue_manager", 8, "MUST end the datagram, which has 24 bytes")


class Ping(NamedTuple):
    """A request or a response; nothing but the direction tells them apart."""

    flags: Annotated[PingFlags, Int16ul]
    signature: Annotated[int, Int16ul, Rule(this.signature == PING_SIGNATURE, "MUST be 0x5548")]
    cookie: Annotated[int, Int32ul]  # counted up by the initiator
    queue_manager: Annotated[bytes, Octets(16), _WHOLE]  # of who made this datagram


_CODEC = Codec(Ping)


def parse_ping(datagram: bytes) -> Ping:
    """Read a datagram.  MalformedPacket if it is no ping; it is then to be ignored."""
    return _CODEC.parse(datagram)


def build_ping(ping: Ping) -> bytes:
    """The 24 bytes of a ping."""
    return _CODEC.build(ping)


def ping_request(*, cookie: int, queue_manager: bytes, server: bool) -> bytes:
    """Ask: `queue_manager` is our GUID, `server` says that our system is server-class."""
    flags = PingFlags.of(not_server=int(not server))
    return build_ping(Ping(flags, PING_SIGNATURE, cookie, queue_manager))


def ping_response(request: Ping, *, queue_manager: bytes, refused: bool) -> bytes:
    """Answer `request`: `refused` says that a session would not be taken now."""
    flags = PingFlags.of(not_server=request.flags.not_server, refused=int(refused))
    return build_ping(Ping(flags, PING_SIGNATURE, request.cookie, queue_manager))
