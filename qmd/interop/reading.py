"""Reading: the sessions and packets of a capture file, with filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO

from protocol.errors import ProtocolError
from protocol.ping import parse_ping
from qmd.interop.capture import Capture
from qmd.interop.conversation import Conversation, Seen, Streams
from qmd.interop.network import Datagram, Network
from qmd.interop.streams import Chunk, Connection, Connections

PORTS = frozenset({1801})
PING_PORT = 3527


@dataclass(frozen=True, slots=True)
class Filter:
    """The packets to show; an empty condition is true of all."""

    sessions: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    host: str = ""
    message: str = ""  # an id: the packets that carry or acknowledge that message
    violations: bool = False  # only packets that break a rule

    def takes(self, session: Session, seen: Seen) -> bool:
        """Return whether a packet is to be shown."""
        ends = (session.conversation.initiator, session.conversation.acceptor)
        return (
            (not self.sessions or session.number in self.sessions)
            and (not self.kinds or seen.kind in self.kinds)
            and (not self.host or any(self.host in end for end in ends))
            and (not self.message or self.message in seen.about)
            and (not self.violations or bool(seen.violations))
        )


@dataclass(slots=True)
class Session:
    """A session of the capture."""

    number: int
    connection: Connection
    conversation: Conversation


@dataclass(slots=True)
class Reading:
    """The reading of one capture file; its figures are complete at the end."""

    file: BinaryIO
    ports: frozenset[int] = PORTS
    sessions: list[Session] = field(default_factory=list)
    pings: int = 0
    network: Network = field(default_factory=Network)
    capture: Capture = field(init=False)

    def __post_init__(self) -> None:
        """Read the head of the file.  Raises BadCapture."""
        self.capture = Capture(self.file)

    def packets(self) -> Iterator[tuple[Session, Seen]]:
        """Yield all packets in the order in which they were complete."""
        connections, streams = Connections(self.ports), Streams()
        known: dict[int, Session] = {}
        for frame in self.capture:
            for found in self.network.decode(frame):
                if isinstance(found, Datagram):
                    self.pings += _is_ping(found)
                    continue
                for one in connections.add(found):
                    yield from self._feed(known, streams, *one)
        for one in connections.end():
            yield from self._feed(known, streams, *one)

    def _feed(
        self,
        known: dict[int, Session],
        streams: Streams,
        connection: Connection,
        by_initiator: bool,
        chunk: Chunk,
    ) -> Iterator[tuple[Session, Seen]]:
        session = known.get(id(connection))
        if session is None:
            conversation = Conversation(
                str(connection.initiator),
                str(connection.acceptor),
                is_complete=connection.is_complete,
                streams=streams,
            )
            session = Session(len(self.sessions) + 1, connection, conversation)
            known[id(connection)] = session
            self.sessions.append(session)
        for seen in session.conversation.feed(by_initiator, chunk.at, chunk.data, chunk.lost):
            yield session, seen

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole file."""
        return {
            "type": "summary",
            "frames": self.capture.frames,
            "note": self.capture.note or None,
            "sessions": len(self.sessions),
            "packets": sum(each.conversation.packets for each in self.sessions),
            "violations": sum(each.conversation.violations for each in self.sessions),
            "pings": self.pings,
            "ip_fragments": self.network.fragments,
            "other_frames": self.network.others,
        }


def packet_json(session: int, seen: Seen, *, with_bytes: bool = False) -> dict[str, Any]:
    """Return a packet for `json.dumps`, under names that do not change."""
    found: dict[str, Any] = {
        "type": "packet",
        "session": session,
        "time": moment(seen.at),
        "from": "initiator" if seen.by_initiator else "acceptor",
        "kind": seen.kind,
        "bytes": len(seen.bytes),
        "summary": seen.summary,
        "about": list(seen.about),
        "fields": dict(seen.fields),
        "violations": [each._asdict() for each in seen.violations],
    }
    if with_bytes:
        found["hex"] = seen.bytes.hex()
    return found


def session_json(session: Session) -> dict[str, Any]:
    """Return a session for `json.dumps`, under names that do not change."""
    conversation, connection = session.conversation, session.connection
    return {
        "type": "session",
        "session": session.number,
        "initiator": conversation.initiator,
        "acceptor": conversation.acceptor,
        "initiator_guid": conversation.guids[0] or None,
        "acceptor_guid": conversation.guids[1] or None,
        "first": moment(conversation.first_at),
        "last": moment(conversation.last_at),
        "complete": conversation.is_complete,
        "refused": conversation.is_refused,
        "reset": connection.is_reset,
        "packets": conversation.packets,
        "messages": list(conversation.messages),
        "unacknowledged": list(conversation.unacknowledged),
        "violations": conversation.violations,
        "lost_bytes": conversation.lost_bytes,
        "repeated_segments": [
            each.counts.repeated for each in (connection.from_initiator, connection.from_acceptor)
        ],
        "segments_out_of_order": [
            each.counts.out_of_order
            for each in (connection.from_initiator, connection.from_acceptor)
        ],
        "cut_segments": [
            each.counts.cut for each in (connection.from_initiator, connection.from_acceptor)
        ],
    }


def moment(at: float) -> str:
    """Return a time in ISO 8601, UTC, with microseconds; odd times of a capture as seconds."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError, OSError):
        return f"{at:.6f} s"


def _is_ping(datagram: Datagram) -> bool:
    if PING_PORT not in (datagram.source.port, datagram.target.port):
        return False
    try:
        parse_ping(datagram.data)
    except ProtocolError:
        return False
    return True
