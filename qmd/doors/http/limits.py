"""Limits of the HTTP door: what one client, and all of them together, may use."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.doors.http.server import HttpConnection

HEAD_BYTES_MAX = 32 * 1024  # of a request line with all headers
HEADERS_MAX = 100
SMALL_RESPONSE_BYTES = 64 * 1024  # which the kernel takes, or the limit of connections bounds
PIPELINED_MAX = 64  # requests of one connection that wait for the ones before them


@dataclass(frozen=True)
class Limits:
    """The configured limits; times in seconds."""

    connections: int = 1000
    connections_of_address: int = 500
    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 30.0
    request_bytes: int = 16 * 1024 * 1024
    bodies_bytes: int = 256 * 1024 * 1024  # of all requests that are not answered
    unread_bytes: int = 256 * 1024 * 1024  # of all responses that clients have not read


class Registry:
    """The connections of a server, and the memory of their requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections: dict[HttpConnection, None] = {}
        self._of_address: Counter[str] = Counter()
        self.bodies_bytes = 0
        self.emptied = asyncio.Event()  # when the last connection has left

    def admit(self, connection: HttpConnection, address: str) -> bool:
        """Give a connection a place; return False if there is none.

        An idle connection, the one that is idle for the longest time, leaves for it; else the
        oldest one with an incomplete request, of this address or of that with most connections.
        """
        if address and self._of_address[address] >= self.limits.connections_of_address:
            if not self._make_room(address):
                return False
        elif len(self.connections) >= self.limits.connections:
            idle = next((each for each in self.connections if each.is_idle), None)
            if idle is not None:
                self._end(idle)
            elif not self._make_room(max(self._of_address, key=self._of_address.__getitem__)):
                return False
        self.connections[connection] = None
        self._of_address[address] += 1
        return True

    def _make_room(self, address: str) -> bool:
        """End a connection of an address that has no complete request; return whether one was."""
        theirs = [each for each in self.connections if each.peer.address == address]
        for is_first in (lambda each: each.is_idle, lambda each: each.is_unfinished):
            if (chosen := next(filter(is_first, theirs), None)) is not None:
                self._end(chosen)
                return True
        return False

    def _end(self, connection: HttpConnection) -> None:
        connection.abort()
        self.leave(connection)

    def make_room_to_write(self, size: int) -> None:
        """End connections with unread responses, until there is room for a response.

        The address with most unread bytes loses its oldest one first.
        """
        if size <= SMALL_RESPONSE_BYTES:
            return
        unread = {each: each.unread_bytes for each in self.connections}
        total = sum(unread.values())
        if total + size <= self.limits.unread_bytes:
            return
        of_address: Counter[str] = Counter()
        for each, held in unread.items():
            of_address[each.peer.address] += held
        while total and total + size > self.limits.unread_bytes:
            address = max(of_address, key=of_address.__getitem__)
            theirs = (each for each in unread if each.peer.address == address and unread[each])
            oldest = min(theirs, key=lambda each: each.write_by)
            held = unread.pop(oldest)
            of_address[address] -= held
            total -= held
            self._end(oldest)

    def used(self, connection: HttpConnection) -> None:
        """Record that a connection has ended a request: it is the last to leave now."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def leave(self, connection: HttpConnection) -> None:
        """Free the place of a connection."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        address = connection.peer.address
        self._of_address[address] -= 1
        if self._of_address[address] <= 0:
            del self._of_address[address]
        if not self.connections:
            self.emptied.set()

    def reserve(self, size: int) -> bool:
        """Count bytes of a body; return False if there is no room for them."""
        if self.bodies_bytes + size > self.limits.bodies_bytes:
            return False
        self.bodies_bytes += size
        return True

    def release(self, size: int) -> None:
        """Stop counting bytes of a body."""
        self.bodies_bytes -= size
