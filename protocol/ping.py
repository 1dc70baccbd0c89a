"""The ping over UDP: asks if a queue manager runs and would accept a session (MS-MQQB 2.2.7).

initiator ── Ping(cookie n) ──► port 3527
          ◄── Ping(cookie n, refused 0 or 1) ──
"""

from __future__ import annotations

import protocol.derived.ping as _CODEC
from protocol.flags import PingFlags
from protocol.records import PING_SIGNATURE as PING_SIGNATURE
from protocol.records import Ping as Ping


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
