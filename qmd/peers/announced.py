"""Announced sessions: those that a door of this computer opens for a host that it has met.

The door for SRMP opens a session for each host that sends messages over HTTP.  It binds its socket
first, and announces the address and the port over the control socket; no other process can connect
from there meanwhile.  The session then counts as one of that host: for quotas, limits and rights,
with the principals that the door has proven.  docs/decisions/0068
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.core.principals import Principal

ANNOUNCED_MAX = 1000
VALID_S = 10.0


class Closable(Protocol):
    """A session that has begun."""

    is_open: bool

    def close(self, reason: str) -> None: ...


@dataclass(eq=False, slots=True)
class Announced:
    """The host that a session is for, and the session once it has begun."""

    host: str
    principals: frozenset[Principal] = frozenset()
    is_encrypted: bool = False  # the host has sent its messages over TLS
    session: Closable | None = None
    is_expected: bool = True  # until the session begins, or it is too late for that

    @property
    def has_ended(self) -> bool:
        """Whether no session has the principals, and none will."""
        return not self.is_expected and (self.session is None or not self.session.is_open)

    def end(self) -> None:
        """End the session, whose principals hold no more."""
        self.is_expected = False
        if self.session is not None and self.session.is_open:
            self.session.close("the token of its host was revoked, or has expired")


class AnnouncedSessions:
    """The sessions that are announced, and have not begun."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, int], tuple[float, Announced]] = OrderedDict()

    def announce(self, place: tuple[str, int], announced: Announced, now: float) -> None:
        """Expect a session from an address and a port; `now` is in seconds."""
        self._waiting[place] = now + VALID_S, announced
        self._waiting.move_to_end(place)
        while len(self._waiting) > ANNOUNCED_MAX:
            _, (_, oldest) = self._waiting.popitem(last=False)
            oldest.is_expected = False

    def take(self, place: tuple[str, int], session: Closable, now: float) -> Announced | None:
        """Return the host of a session that begins, once; None: it was not announced."""
        until, announced = self._waiting.pop(place, (0.0, None))
        if announced is None:
            return None
        was_expected, announced.is_expected = announced.is_expected, False
        if not was_expected or now >= until:
            return None
        announced.session = session
        return announced
