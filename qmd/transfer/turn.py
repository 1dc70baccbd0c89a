"""A turn: messages that were read at once from one session, and the consequences of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmd.control_protocol.messages import StoredMessage
    from qmd.peers.connection import PeerConnection
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.local_queue import LocalQueue
    from storage.tables.events import Event


class Turn:
    """Messages of one session; their consequences go to disk in one commit.

    `now` is the clock of the event loop in seconds; `wall_s` and `wall_ms` are the wall clock,
    since 1970.
    """

    __slots__ = (
        "accepted",
        "arrivals",
        "connection",
        "decided",
        "event",
        "event_key",
        "now",
        "rejected",
        "wall_ms",
        "wall_s",
    )

    def __init__(self, connection: PeerConnection, now: float, wall: float) -> None:
        self.connection = connection
        self.now = now
        self.wall_s, self.wall_ms = int(wall), int(wall * 1000)
        #: Numbers of the session's recoverable messages about which was decided.
        self.decided: list[int] = []
        #: Messages that readers may have after the commit.
        self.arrivals: dict[LocalQueue, list[StoredMessage]] = {}
        #: The last accepted position of each sequence: (sequence id, number).
        self.accepted: dict[IncomingStream, tuple[int, int]] = {}
        #: Sequences with rejected messages: the counts of these are stored.
        self.rejected: dict[IncomingStream, None] = {}
        #: The open event about accepted messages, and the properties that its messages share.
        self.event: Event | None = None
        self.event_key: tuple[Any, ...] = ()

    @property
    def has_consequences(self) -> bool:
        """Whether anything of the turn waits for the commit."""
        return bool(self.decided or self.arrivals or self.accepted or self.rejected)
