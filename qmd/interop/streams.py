"""Streams: the bytes of TCP connections, in the order in which they took effect.

Segments may be repeated, overlap, come in another order, or be missing in the capture.  Bytes that
came before are not looked at again.  The bytes of an end come after those that it had acknowledged
when it sent them; so an answer stands behind its question, however the capture was made.

A gap ends when the other end has acknowledged bytes behind it (the network has carried them, and
only the capture lacks them) and some more segments have come, or when too much waits behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from qmd.interop.network import ACK, FIN, RST, SYN, End, Segment

WAITING_BYTES_MAX = 8 * 1024 * 1024  # out of order, in one direction
WAITING_MAX = 2_000
CONNECTIONS_MAX = 100_000
OVERDUE_MAX = 64  # segments that may come before those that they acknowledge
_HALF, _ALL = 1 << 31, 1 << 32


class Chunk(NamedTuple):
    """Bytes of one direction in order; `lost` bytes before them are not in the capture.

    `end` is the number of the byte behind them; they were sent after those of the other end up to
    `after`, if that is known.
    """

    at: float
    data: bytes
    lost: int = 0
    end: int = 0
    after: int | None = None


class Counts:
    """Peculiarities of the segments of one direction."""

    def __init__(self) -> None:
        self.bytes = 0
        self.repeated = 0
        self.out_of_order = 0
        self.lost_bytes = 0
        self.cut = 0  # segments of which the capture has a part


class _Piece(NamedTuple):
    at: float
    data: bytes
    after: int | None


class Direction:
    """The bytes that one end sent."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.is_ended = False
        self.position: int | None = None  # of the next byte to release
        self.ready: deque[Chunk] = deque()  # bytes in order that are not released
        self._next: int | None = None  # the number of the next byte
        self._waiting: dict[int, _Piece] = {}
        self._waiting_bytes = 0
        self._acknowledged: int | None = None  # by the other end

    @property
    def is_overdue(self) -> bool:
        """Whether the other end has bytes from behind a gap."""
        if not self._waiting or self._acknowledged is None:
            return False
        return _distance(self._first_waiting(), self._acknowledged) > 0

    @property
    def has_gap(self) -> bool:
        """Whether bytes wait behind a gap."""
        return bool(self._waiting)

    def acknowledged(self, number: int) -> None:
        """Note that the other end has all bytes before this one."""
        if self._acknowledged is None or _distance(self._acknowledged, number) > 0:
            self._acknowledged = number

    def add(self, segment: Segment) -> None:
        """Take a segment of this direction."""
        number, data = segment.number, segment.data
        after = segment.acknowledged if segment.flags & ACK else None
        if segment.flags & SYN:
            number = (number + 1) % _ALL
            if self._next is None or not self.counts.bytes:
                self._next = self.position = number
        if segment.missing:
            self.counts.cut += 1
        if segment.flags & (FIN | RST):
            self.is_ended = True
        if not data:
            return
        if self._next is None:
            self._next = self.position = number  # the capture began within the connection
        ahead = _distance(self._next, number)
        if ahead < 0:
            self.counts.repeated += 1
            data = data[-ahead:]
            if not data:
                return
        elif ahead > 0:
            self.counts.out_of_order += 1
            before = self._waiting.get(number)
            if before is None or len(before.data) < len(data):
                self._waiting_bytes += len(data) - (0 if before is None else len(before.data))
                self._waiting[number] = _Piece(segment.at, data, after)
            while self._waiting_bytes > WAITING_BYTES_MAX or len(self._waiting) > WAITING_MAX:
                self.skip()
            return
        self._take(_Piece(segment.at, data, after))
        self._follow()

    def skip(self) -> None:
        """Go on behind the first gap: its bytes are not in the capture."""
        assert self._next is not None
        first = self._first_waiting()
        lost = max(0, _distance(self._next, first))
        self.counts.lost_bytes += lost
        if lost:
            self._next = first
        piece = self._pop(first)
        data = piece.data[max(0, _distance(first, self._next)) :]
        if data:
            self._take(piece._replace(data=data), lost)
        self._follow()

    def _first_waiting(self) -> int:
        return min(self._waiting, key=lambda each: _distance(self._next or 0, each))

    def _follow(self) -> None:
        """Take the waiting bytes that now are the next ones."""
        while self._waiting:
            assert self._next is not None
            ready = [each for each in self._waiting if _distance(self._next or 0, each) <= 0]
            if not ready:
                return
            for number in sorted(ready, key=lambda each: _distance(self._next or 0, each)):
                piece = self._pop(number)
                data = piece.data[-_distance(self._next, number) or 0 :]
                if data:
                    self._take(piece._replace(data=data))

    def _pop(self, number: int) -> _Piece:
        piece = self._waiting.pop(number)
        self._waiting_bytes -= len(piece.data)
        return piece

    def _take(self, piece: _Piece, lost: int = 0) -> None:
        assert self._next is not None
        self._next = (self._next + len(piece.data)) % _ALL
        self.counts.bytes += len(piece.data)
        self.ready.append(Chunk(piece.at, piece.data, lost, self._next, piece.after))


class Connection:
    """Both directions of a connection; `initiator` sent the first segment that is known."""

    def __init__(self, initiator: End, acceptor: End, at: float) -> None:
        self.initiator, self.acceptor, self.opened_at = initiator, acceptor, at
        self.from_initiator, self.from_acceptor = Direction(), Direction()
        self.is_complete = False  # the capture has its beginning
        self.is_reset = False
        self._overdue = 0  # segments since bytes wait for others

    @property
    def is_ended(self) -> bool:
        """Whether both ends, or a reset, have ended it."""
        return self.is_reset or (self.from_initiator.is_ended and self.from_acceptor.is_ended)

    def add(self, segment: Segment) -> Iterator[tuple[bool, Chunk]]:
        """Yield the bytes that a segment completes: whether the initiator sent them, and they."""
        if segment.flags & RST:
            self.is_reset = True
        one, other = self.from_initiator, self.from_acceptor
        if segment.source != self.initiator:
            one, other = other, one
        one.add(segment)
        if segment.flags & ACK:
            other.acknowledged(segment.acknowledged)
        yield from self._release()
        if one.ready or other.ready or one.is_overdue or other.is_overdue:
            self._overdue += 1
            if self._overdue > OVERDUE_MAX:
                yield from self._force()
                self._overdue = 0
        else:
            self._overdue = 0

    def end(self) -> Iterator[tuple[bool, Chunk]]:
        """Yield all that waits: the capture has ended."""
        one, other = self.from_initiator, self.from_acceptor
        while one.ready or other.ready or one.has_gap or other.has_gap:
            yield from self._force()

    def _release(self) -> Iterator[tuple[bool, Chunk]]:
        """Yield bytes whose sender had received nothing that is still to come."""
        one, other = self.from_initiator, self.from_acceptor
        moved = True
        while moved:
            moved = False
            for by_initiator, this, that in ((True, one, other), (False, other, one)):
                while this.ready and _is_due(this.ready[0], that):
                    moved = True
                    yield by_initiator, self._next_of(this)

    def _force(self) -> Iterator[tuple[bool, Chunk]]:
        """Give up what is waited for: skip a gap, or release bytes without those before them."""
        one, other = self.from_initiator, self.from_acceptor
        gaps = [each for each in (one, other) if each.has_gap]
        # That of an end whose other end waits for it comes first.
        gaps.sort(key=lambda each: not each.is_overdue)
        if gaps:
            gaps[0].skip()
        else:
            this = one if one.ready else other
            yield this is one, self._next_of(this)
        yield from self._release()

    @staticmethod
    def _next_of(direction: Direction) -> Chunk:
        chunk = direction.ready.popleft()
        direction.position = chunk.end
        return chunk


class Connections:
    """The connections of a capture that have one of the wanted ports."""

    def __init__(self, ports: frozenset[int]) -> None:
        self._ports = ports
        self._open: dict[tuple[End, End], Connection] = {}

    def add(self, segment: Segment) -> Iterator[tuple[Connection, bool, Chunk]]:
        """Yield the bytes that a segment completes: whether the initiator sent them, and they."""
        if segment.source.port not in self._ports and segment.target.port not in self._ports:
            return
        place = min((segment.source, segment.target), (segment.target, segment.source))
        connection = self._open.get(place)
        is_first = bool(segment.flags & SYN and not segment.flags & ACK)
        if connection is None or (is_first and connection.is_ended):
            if connection is not None:
                for by_initiator, chunk in connection.end():
                    yield connection, by_initiator, chunk
            if segment.flags & RST or len(self._open) >= CONNECTIONS_MAX:
                return
            connection = self._open[place] = self._begin(segment, is_first=is_first)
        for by_initiator, chunk in connection.add(segment):
            yield connection, by_initiator, chunk

    def end(self) -> Iterator[tuple[Connection, bool, Chunk]]:
        """Yield all bytes that wait behind gaps."""
        for connection in self._open.values():
            for by_initiator, chunk in connection.end():
                yield connection, by_initiator, chunk

    def _begin(self, segment: Segment, *, is_first: bool) -> Connection:
        # Without its beginning, the end with the well-known port has accepted it.
        came = segment.flags & (SYN | ACK) == SYN | ACK or (
            not is_first and segment.source.port in self._ports
        )
        ends = (segment.target, segment.source) if came else (segment.source, segment.target)
        connection = Connection(*ends, segment.at)
        connection.is_complete = bool(segment.flags & SYN)
        return connection


def _is_due(chunk: Chunk, other: Direction) -> bool:
    """Return whether all bytes were released that the sender of a chunk had received."""
    if chunk.after is None or other.position is None:
        return True
    ahead = _distance(other.position, chunk.after)
    return ahead <= 0 or (ahead == 1 and other.is_ended)  # the end counts as a byte


def _distance(start: int, number: int) -> int:
    """Return how far a number of 32 bits is ahead of another one; negative: behind it."""
    return (number - start + _HALF) % _ALL - _HALF
