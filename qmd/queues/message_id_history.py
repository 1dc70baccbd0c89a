"""Message id history: detects duplicates of messages without a sequence.

[MS-MQQB] 3.1.1.3, 3.1.5.8.1. A source sends a message again if it does not know of its
acknowledgment; the message number shows that it has arrived before. Any program can state the GUID
of a source, so each origin of a source (docs/decisions/0031) has its own numbers. An origin is
recognized over every peer, but the history counts for the peer that brought the message:

    address ── queue manager at the other end ── source ── origin ── core/number_history.History

A relay brings messages of the primary origin. The origin "" is one that was not known: of a message
over a relay, or of an older version. Its numbers are known to every origin.

When all histories together grow beyond `bytes_max`, those that hold more than their fair share are
shortened: first among addresses, then among the queue managers of one address, then among the
sources of one queue manager, then among their origins. Invented sources therefore displace each
other, not the sources of an honest peer.

Changes go to disk with the open batch, in the commit of the message itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from protocol.message_class import MessageClass
from qmd.core.number_history import RUN_BYTES, Bounds, History, Segment, fair_share
from storage.tables import message_id_history as history_rows

if TYPE_CHECKING:
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

BYTES_MAX = 16 * 1024 * 1024
REFUSED_MAX = 10_000  # refused messages with a remembered class
SHRUNK_TO = 0.9  # of `bytes_max`, so that the next shortening is not due at once

_WITHOUT_FINAL_ACK = MessageClass.NACK_REACH_QUEUE_TIMEOUT

#: Address of the peer, GUID of its queue manager, GUID and origin of the source.
_Key = tuple[str, bytes, bytes, str]


class _Source(History):
    """The history of a source over one peer."""

    __slots__ = ("bytes", "key")

    def __init__(self, key: _Key, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.key = key
        self.bytes = self.measured()


class KnownMessages:
    """The message numbers that have arrived, by source and peer."""

    def __init__(self, services: Services, *, bytes_max: int = BYTES_MAX) -> None:
        delivery = services.settings.delivery
        self._services = services
        self._bounds = Bounds(
            delivery.message_id_history_entries, int(delivery.message_id_history_age_s)
        )
        self._bytes_max = bytes_max
        self._histories: dict[_Key, _Source] = {}
        self._by_source: dict[bytes, list[_Source]] = {}
        self._next_id = 1
        #: First and last number of each run that goes to disk with the open batch. They are kept
        #: here, not in each history, because a history may get no later message.
        self._unwritten: dict[_Key, list[int]] = {}
        self._batch_number = 0
        self.bytes = 0  # in memory, estimated
        self._refused: dict[tuple[bytes, str, int], MessageClass] = {}

    def restore(self, rows: Iterable[history_rows.StoredSegment]) -> None:
        """Load the stored segments, which come in the order of their ids."""
        for stored, runs in rows:
            segment = Segment(stored.id, stored.at_s)
            segment.restore(runs)
            history = self._history((stored.host, stored.peer, stored.source, stored.origin))
            history.restore(segment)
            self._measure(history)
            self._next_id = stored.id + 1

    def has(self, source: bytes, number: int, origin: str) -> bool:
        """Return whether this message of an origin of a source has arrived over any peer."""
        for history in self._by_source.get(source, ()):
            if history.key[3] in (origin, "") and history.has(number):
                return True
        return False

    def is_duplicate(self, connection: PeerSession, source: bytes, number: int) -> bool:
        """Return whether a message has arrived before. [MS-MQQB] 3.1.5.8.1

        A duplicate renews its entry, because its source does not know yet that it has arrived.
        """
        if source not in self._by_source:
            return False
        key = _key(connection, source)
        if not self.has(source, number, key[3]):
            return False
        history = self._histories.get(key)
        if history is None or not history.is_recent(number):
            self.add(connection, source, number)
        return True

    def add(self, connection: PeerSession, source: bytes, number: int) -> None:
        """Remember a message that the open batch accepts or refuses for good."""
        self.add_run(connection, source, number, number)

    def add_run(self, connection: PeerSession, source: bytes, first: int, last: int) -> None:
        """Remember the messages from number `first` to `last`, as `add` does."""
        key = _key(connection, source)
        history = self._histories.get(key) or self._history(key)
        batch = self._services.storage.batch
        if self._batch_number != batch.number:
            self._batch_number, self._unwritten = batch.number, {}
        unwritten = self._unwritten.get(key)
        if unwritten is None:
            unwritten = self._open(history, batch)
        grown = history.add_run(first, last)
        if grown:
            history.bytes += grown * RUN_BYTES
            self.bytes += grown * RUN_BYTES
        if unwritten and unwritten[-1] + 1 == first:
            unwritten[-1] = last
        else:
            unwritten += (first, last)

    def add_refused(
        self, connection: PeerSession, source: bytes, number: int, message_class: MessageClass
    ) -> None:
        """Remember a message that the open batch refuses for good, and the class of its refusal."""
        origin = connection.origin_for(source)
        if not self.has(source, number, origin):
            self.add(connection, source, number)
        if self._refused.get((source, origin, number)) in (None, _WITHOUT_FINAL_ACK):
            if len(self._refused) >= REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[source, origin, number] = message_class

    def refusal(self, connection: PeerSession, source: bytes, number: int) -> MessageClass | None:
        """Return the class with which a transactional message was refused for good, or None.

        A message that was too late got no final ack: its source keeps it until it expires there,
        and it is accepted if the clock of this computer was wrong.  The class of a refusal before
        the start of this run is not known: it is that of a full queue, the most frequent one.
        """
        if source not in self._by_source:
            return None
        origin = connection.origin_for(source)
        if not self.has(source, number, origin):
            return None
        found = self._refused.get((source, origin, number), MessageClass.NACK_QUEUE_EXCEED_QUOTA)
        return None if found is _WITHOUT_FINAL_ACK else found

    def has_any(self, connection: PeerSession, source: bytes, numbers: Sequence[int]) -> bool:
        """Return whether one of these messages has arrived before, or was refused for good."""
        if source not in self._by_source:
            return False
        lowest = min(numbers)
        if all(lowest > history.highest for history in self._by_source[source]):
            return False
        origin = connection.origin_for(source)
        return any(self.has(source, number, origin) for number in numbers)

    def forget_old(self) -> None:
        """Forget entries that are too old, with the open batch. [MS-MQQB] 3.1.6.7"""
        now_s = self._services.clock.now_s
        before_s = now_s - self._bounds.age_s
        newest = self._next_id - 1  # it stays, so that no id is assigned twice
        for history in list(self._histories.values()):
            if history.oldest_s < before_s and not history.is_newest(newest):
                self._drop(history, history.forget_old(now_s))

    def forget_source(self, source: bytes) -> None:
        """Forget a source that numbers its messages from the beginning again."""
        for history in list(self._by_source.get(source, ())):
            self._drop(history, history.shrink(0))
        for identity in [each for each in self._refused if each[0] == source]:
            del self._refused[identity]

    # Within.

    def _history(self, key: _Key) -> _Source:
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = _Source(key, self._bounds)
            self._by_source.setdefault(key[2], []).append(history)
            self.bytes += history.bytes
        return history

    def _open(self, history: _Source, batch: Batch) -> list[int]:
        """Return the list of the runs of a history that go to disk with this batch."""
        now_s = self._services.clock.now_s
        segment, gone = history.segment_at(now_s, self._next_id)
        if segment.id == self._next_id:
            self._next_id += 1
            self._measure(history)
        if self.bytes > self._bytes_max:
            self._shrink(history)
        host, peer, source, origin = history.key
        unwritten = self._unwritten[history.key] = batch.incoming.remember_message_ids(
            history_rows.Segment(segment.id, source, now_s, host, peer, origin)
        )
        batch.incoming.forget_message_ids([each.id for each in gone])
        return unwritten

    def _shrink(self, newest: _Source) -> None:
        """Shorten histories above their fair share, beginning with the longest inactive."""
        others = [history for history in self._histories.values() if history is not newest]
        others.sort(key=lambda history: history.key)
        self._share(others, int(self._bytes_max * SHRUNK_TO) - newest.bytes, level=0)

    def _share(self, histories: list[_Source], target: int, *, level: int) -> int:
        """Shrink histories, sorted by their keys, to `target` bytes; return the bytes freed.

        `level` is the part of the key by which they share.
        """
        groups = [list(each) for _, each in groupby(histories, lambda history: history.key[level])]
        sizes = [sum(history.bytes for history in group) for group in groups]
        over = sum(sizes) - target
        if over <= 0:
            return 0
        share = fair_share(sizes, target)
        larger = [(group, size) for group, size in zip(groups, sizes, strict=True) if size > share]
        larger.sort(key=lambda each: max(history.last_s for history in each[0]))
        given = 0
        for group, size in larger:
            left = max(share, size - (over - given))
            if level + 1 < len(group[0].key):
                given += self._share(group, left, level=level + 1)
            else:
                given += self._drop(group[0], group[0].shrink(left))
            if given >= over:
                break
        return given

    def _drop(self, history: _Source, gone: list[Segment]) -> int:
        """Delete segments that were removed from a history; return the bytes freed."""
        before = self.bytes
        self._unwritten.pop(history.key, None)
        self._measure(history)
        if not history.segments:
            self.bytes -= history.bytes
            del self._histories[history.key]
            of_source = self._by_source[history.key[2]]
            of_source.remove(history)
            if not of_source:
                del self._by_source[history.key[2]]
        self._services.storage.batch.incoming.forget_message_ids([segment.id for segment in gone])
        return before - self.bytes

    def _measure(self, history: _Source) -> None:
        self.bytes -= history.bytes
        history.bytes = history.measured()
        self.bytes += history.bytes


def _key(connection: PeerSession, source: bytes) -> _Key:
    session = connection.session
    assert session is not None
    assert session.remote_id is not None
    return connection.host, session.remote_id, source, connection.origin_for(source)
