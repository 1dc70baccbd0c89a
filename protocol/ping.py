"""The ping over UDP: asks if a queue manager runs and would accept a session (MS-MQQB 2.2.7).

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

PING_SIGNATURE = 0x5548

_WHOLE = NothingLeft("queue_manager", 8, "MUST end the datagram, which has 24 bytes")


class Ping(NamedTuple):
    """A request or a response; only the direction distinguishes them."""

    flags: Annotated[PingFlags, Int16ul]
    signature: Annotated[int, Int16ul, Rule(this.signature == PING_SIGNATURE, "MUST be 0x5548")]
    cookie: Annotated[int, Int32ul]  # incremented by the initiator
    queue_manager: Annotated[bytes, Octets(16), _WHOLE]  # the GUID of the sender of this datagram


_CODEC = Codec(Ping)


def parse_ping(datagram: bytes) -> Ping:
    """Parse a datagram.  Raises MalformedPacket if it is not a ping; the caller then ignores it."""
    return _CODEC.parse(datagram)


def build_ping(ping: Ping) -> bytes:
    """Build the 24 bytes of a ping."""
    return _CODEC.build(ping)


def ping_request(*, cookie: int, queue_manager: bytes, server: bool) -> bytes:
    """Build a request: `queue_manager` is our GUID, `server` means a server-class system."""
    flags = PingFlags.of(not_server=int(not server))
    return build_ping(Ping(flags, PING_SIGNATURE, cookie, queue_manager))


def ping_response(request: Ping, *, queue_manager: bytes, refused: bool) -> bytes:
    """Build the response to `request`; `refused` means that a session would be rejected now."""
    flags = PingFlags.of(not_server=request.flags.not_server, refused=int(refused))
    return build_ping(Ping(flags, PING_SIGNATURE, request.cookie, queue_manager))
