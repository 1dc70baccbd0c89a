"""The UDP port of pings: answers whether a session would be accepted.  [MS-MQQB] 3.1.5.10, 3.1.7.7

Requests and answers have one format, and the sender of a datagram is what the datagram says. Two
hosts would therefore answer each other's answers for ever, after one datagram with a false sender.
A datagram that comes from a port of a service, or that looks like an answer, gets none; and the
number of answers is limited, for each address and for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from protocol.errors import ProtocolError
from protocol.ping import Ping, parse_ping, ping_response
from qmd.runtime.rate_limit import RateLimit
from qmd.runtime.shares import owner_of

if TYPE_CHECKING:
    from qmd.runtime.services import Services

PING_PORT = 3527
SERVICE_PORTS_END = 1024  # a request comes from a port that the system has chosen
# A queue manager asks once for each session that it opens. Answers in a second, on average, and as
# many at once as in so many seconds; the addresses of one IPv6 /64 count as one.
ADDRESS_RATE, RATE, BURST_S = 10.0, 200.0, 2.0


class PingAnswers(asyncio.DatagramProtocol):
    """The answers to pings: at most one to each datagram."""

    def __init__(
        self,
        services: Services,
        is_allowed: Callable[[str], bool],
        has_room_for: Callable[[str], bool],
    ) -> None:
        """Create the answers; the functions take a host, and are those for its connections."""
        self._services = services
        self._is_allowed = is_allowed
        self._has_room_for = has_room_for
        self._limit = RateLimit(
            services.loop.time, of_each=ADDRESS_RATE, of_all=RATE, burst_s=BURST_S
        )
        self._transport: asyncio.DatagramTransport | None = None
        self._own_port = PING_PORT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The class of uvloop is no subclass of asyncio's.
        self._transport = cast(asyncio.DatagramTransport, transport)
        self._own_port = int(transport.get_extra_info("sockname")[1])

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        host, port = addr[0], int(addr[1])
        if port in (PING_PORT, self._own_port) or port < SERVICE_PORTS_END:
            return
        if not self._is_allowed(host):
            return
        try:
            request = parse_ping(data)
        except ProtocolError:
            return
        if self._is_answer(request):
            return
        if not self._limit.allows(owner_of(host).name):
            self._services.log_limited("too_many_pings", host, address=host)
            return
        answer = ping_response(
            request,
            queue_manager=self._services.id,
            refused=not self._has_room_for(host),
        )
        self._transport.sendto(answer, addr)

    def _is_answer(self, ping: Ping) -> bool:
        """Return whether it has our own GUID, or refuses a session."""
        return ping.queue_manager == self._services.id or bool(ping.flags.refused)
