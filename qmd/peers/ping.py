"""The UDP port of pings: answers whether a session would be accepted.  [MS-MQQB] 3.1.5.10, 3.1.7.7

Requests and answers have one format, and the sender of a datagram is what the datagram says. Two
hosts would therefore answer each other's answers for ever, after one datagram with a false sender.
A datagram that comes from a port of a service, or that looks like an answer, gets none; and the
number of answers is limited, for each address and for all.

The datagrams are read in turns of the class UNTRUSTED (qmd/runtime/fair_scheduler.py); those that
do not fit into the buffer of the system meanwhile are lost. The event loop would read 32 of them
before it does anything else.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.errors import ProtocolError
from protocol.ping import Ping, parse_ping, ping_response
from qmd.runtime.fair_scheduler import Class
from qmd.runtime.host_names import encoded
from qmd.runtime.rate_limit import RateLimit
from qmd.runtime.shares import owner_of

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

PING_PORT = 3527
SERVICE_PORTS_END = 1024  # a request comes from a port that the system has chosen
# A queue manager asks once for each session that it opens. Answers in a second, on average, and as
# many at once as in so many seconds; the addresses of one IPv6 /64 count as one.
ADDRESS_RATE, RATE, BURST_S = 10.0, 200.0, 2.0
TURN_DATAGRAMS = 8  # read in one turn, in about a tenth of a millisecond
DATAGRAM_BYTES_MAX = 2048  # the rest of a longer one is cut off: no ping is as long


class PingAnswers:
    """The answers to pings: at most one to each datagram."""

    def __init__(
        self,
        services: Services,
        turns: FairScheduler,
        is_allowed: Callable[[str], bool],
        has_room_for: Callable[[str], bool],
        bound: socket.socket,
    ) -> None:
        """Begin to answer at once; it owns `bound`, a non-blocking UDP socket.

        The functions take a host, and are those for its connections.
        """
        self._services = services
        self._turns = turns
        self._is_allowed = is_allowed
        self._has_room_for = has_room_for
        self._limit = RateLimit(
            services.loop.time, of_each=ADDRESS_RATE, of_all=RATE, burst_s=BURST_S
        )
        self._socket = bound
        self._own_port = int(bound.getsockname()[1])
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Stop answering."""
        if not self._is_closed:
            self._is_closed = True
            self._services.loop.remove_reader(self._socket)
            self._socket.close()

    def take_turn(self, _: float, __: int) -> None:
        """Answer some datagrams."""
        for _number in range(TURN_DATAGRAMS):
            if self._is_closed:
                return
            try:
                data, address = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                self._listen()
                return
            except OSError:  # of an earlier answer: its port is closed, for example
                continue
            self._answer(data, address)
        self._turns.wait(self, Class.UNTRUSTED)

    def _listen(self) -> None:
        self._services.loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        self._services.loop.remove_reader(self._socket)
        self._turns.wait(self, Class.UNTRUSTED)

    def _answer(self, data: bytes, address: tuple[str, int]) -> None:
        host, port = address[0], int(address[1])
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
        with contextlib.suppress(OSError):  # no room in the buffer of the system: it is lost
            self._socket.sendto(answer, address)

    def _is_answer(self, ping: Ping) -> bool:
        """Return whether it has our own GUID, or refuses a session."""
        return ping.queue_manager == self._services.id or bool(ping.flags.refused)


def bind_datagrams(host: str, port: int) -> socket.socket:
    """Return a non-blocking UDP socket at the first address of a host name.  Raises OSError."""
    found = socket.getaddrinfo(encoded(host), port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
