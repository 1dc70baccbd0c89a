"""Sessions that begin near the end of their 16-bit message counts."""

from __future__ import annotations

import random

from qmd.core.session_acks import SessionAcks
from qmd.core.window import SendWindow
from tests.simulation.foreign_session import PacketLink
from tests.simulation.transport import Connection, Transport


class SessionCounts:
    """The counts with which the sessions of a world begin."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._counts: dict[Connection, tuple[tuple[int, int], tuple[int, int]]] = {}
        self._windows: list[SendWindow] = []

    def begin_near_the_wrap(self, end: Transport) -> None:
        """Set the counts of a session as if it had carried some 65,000 messages."""
        protocol = end.get_protocol()
        session = getattr(protocol, "session", None)
        if session is None and not isinstance(protocol, PacketLink):
            return
        counts = self._counts.setdefault(end.connection, self._draw())
        near = end is end.connection.ends[0]
        sent, received = counts if near else counts[::-1]
        if session is None:
            protocol.sent, protocol.received = sent, received
            return
        session.outgoing = SendWindow(1, sent_count=sent[0], recoverable_sent_count=sent[1])
        self._windows.append(session.outgoing)
        session.incoming = SessionAcks(
            received_count=received[0], recoverable_received_count=received[1]
        )

    def wrapped(self) -> bool:
        """Return whether a session has counted beyond 16 bits."""
        return any(
            window.recoverable_sent_count >= 65_536 and window.sent_count >= 65_536
            for window in self._windows
        )

    def _draw(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Draw for either end the messages sent, and how many of them were recoverable."""
        ends = []
        for _ in range(2):
            recoverable = 65_536 - self._random.randrange(40)
            ends.append((recoverable + self._random.choice((0, 65_536)), recoverable))
        return ends[0], ends[1]
