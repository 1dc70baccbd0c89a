"""One incoming sequence: its position, the evidence about its messages, and its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qmd.queues.stream_names import Name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.core.sequence import IncomingSequence
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.peer_session import PeerSession

# Message numbers of a stream that are remembered; up to as many older ones as well.
RECENT_MAX = 64
GAPS_MAX = 64  # of one stream: positions that were skipped, in this run

#: The GUID of a source, the id of our queue, the name, the origin of the source.
Place = tuple[bytes, int, Name, str]


class Beginning(NamedTuple):
    """The first message of a sequence: its position, its message number, a digest of its content.

    A sender that has sent it sends no other first message of that sequence, and none before it.
    """

    position: int
    message: int
    digest: int

    def contradicts(self, other: Beginning) -> bool:
        """Return whether `other`, which has come later, is of another sequence with that id."""
        return other.position < self.position or (other.position == self.position and other != self)


NO_BEGINNING = Beginning(0, 0, 0)  # not known: it contradicts none


class IncomingStream:
    """A transactional sequence from one origin of a source to a queue of ours, by one name of it.

    A source that uses two names for a queue has two outgoing queues for it, with independent
    sequences. [MS-MQDMPR] 3.1.1.5. One sequence is one stream, even if its source changes the
    spelling of the name.
    """

    __slots__ = (
        "_earlier",
        "_recent",
        "_recent_id",
        "beginning",
        "by_direct_name",
        "contradictions",
        "gaps",
        "host",
        "id",
        "is_forgotten",
        "last_host",
        "last_message",
        "name",
        "origin",
        "places",
        "queue",
        "return_path",
        "seen_s",
        "sequence",
        "sequence_id",
        "source",
    )

    def __init__(
        self,
        id: int,
        source: bytes,
        queue: LocalQueue,
        name: Name,
        sequence: IncomingSequence,
        *,
        origin: str,
        host: str,
    ) -> None:
        self.id = id
        self.source = source
        self.origin = origin  # of the source; "": not known
        self.host = host  # the address that its first message came from
        self.seen_s = 0  # when its row was last stored before the start
        self.queue = queue
        self.name = name
        self.sequence = sequence
        self.sequence_id = 0  # by which `IncomingStreams` finds it
        self.places: list[Place] = []  # at which `IncomingStreams` finds it
        self.is_forgotten = False  # it has no row any more
        self.return_path: PeerSession | None = None  # the session of its last message
        self.contradictions = 0  # messages with the position of another message
        self.last_message = 0  # the number of the last accepted message; 0: not known
        self.beginning = NO_BEGINNING  # of the accepted sequence
        self.gaps: list[tuple[int, int]] = []  # positions that it has skipped: first, last
        self._recent_id = 0  # the sequence id of the positions in `_recent` and `_earlier`
        self._recent: dict[int, int] = {}  # position -> message number
        self._earlier: dict[int, int] = {}
        self.last_host = ""  # the address of the peer that sent the last accepted message
        # Whether order acks are addressed by a direct name, as the messages are. [MS-MQQB] 3.1.7.17
        self.by_direct_name = True

    def accepted(self, messages: Sequence[int], host: str) -> int:
        """Remember the peer's address, and the message numbers of the positions just accepted.

        The positions are consecutive.  Returns by how many the number of remembered messages has
        grown; it may be negative.
        """
        self.last_message, self.last_host = messages[-1], host
        forgotten = done = 0
        if self._recent_id != self.sequence.accepted_id:
            self._recent_id = self.sequence.accepted_id
            forgotten = self.forget_recent()
        first = self.sequence.accepted_number + 1 - len(messages)
        while done < len(messages):
            if len(self._recent) >= RECENT_MAX:
                forgotten += len(self._earlier)
                self._earlier, self._recent = self._recent, {}
            some = messages[done : done + RECENT_MAX - len(self._recent)]
            self._recent.update(enumerate(some, first + done))
            done += len(some)
        return done - forgotten

    def forget_recent(self) -> int:
        """Forget all messages but the last one; return how many."""
        forgotten = len(self._recent) + len(self._earlier)
        self._recent, self._earlier = {}, {}
        return forgotten

    def contradicts(self, sequence_id: int, number: int, message: int) -> bool:
        """Return whether a different message was accepted at this position, or it was skipped.

        If the accepted one is not known any more, the message counts as its duplicate: False.
        """
        sequence = self.sequence
        known = 0
        if sequence_id == sequence.accepted_id and any(
            first <= number <= last for first, last in self.gaps
        ):
            return True
        if (sequence_id, number) == (sequence.accepted_id, sequence.accepted_number):
            known = self.last_message
        elif sequence_id == self._recent_id:
            known = self._recent.get(number) or self._earlier.get(number, 0)
        return known not in (0, message)

    def skipped(self, first: int, last: int) -> None:
        """Remember that no message was accepted at these positions, which now have been passed."""
        if len(self.gaps) >= GAPS_MAX:
            del self.gaps[0]
        self.gaps.append((first, last))

    def state(self, at_s: int) -> tuple[int, ...]:
        """Return the columns of its row after the id; the same commit stores the messages."""
        sequence = self.sequence
        return (
            sequence.accepted_id,
            sequence.accepted_number,
            at_s,
            sequence.rejects,
            self.contradictions,
            self.last_message,
            *self.beginning,
        )
