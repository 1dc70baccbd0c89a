"""Announced sessions: those that a door of this computer opens for a host that it has met.

The door for SRMP opens a session for each host that sends messages over HTTP.  It binds its socket
first, and announces the address and the port over the control socket; no other process can connect
from there meanwhile.  The session then counts as one of that host: for quotas, limits and rights,
with the principals that the door has proven.  docs/decisions/0068
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qmd.core.principals import Principal

ANNOUNCED_MAX = 1000
VALID_S = 10.0


class Announced(NamedTuple):
    """The host that a session is for."""

    host: str
    principals: frozenset[Principal] = frozenset()
    is_encrypted: bool = False  # the host has sent its messages over TLS


class AnnouncedSessions:
    """The sessions that are announced, and have not begun."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, int], tuple[float, Announced]] = OrderedDict()

    def announce(self, place: tuple[str, int], announced: Announced, now: float) -> None:
        """Expect a session from an address and a port; `now` is in seconds."""
        self._waiting[place] = now + VALID_S, announced
        self._waiting.move_to_end(place)
        while len(self._waiting) > ANNOUNCED_MAX:
            self._waiting.popitem(last=False)

    def take(self, place: tuple[str, int], now: float) -> Announced | None:
        """Return the host of a session that begins, once; None: it was not announced."""
        until, announced = self._waiting.pop(place, (0.0, None))
        return announced if now < until else None
