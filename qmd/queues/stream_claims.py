"""Stream claims: whether a message of another origin continues a stream, by its sequence id.

A host may change its address, and its next message then comes from another origin. Its sequence id
is evidence that it is the same host, but no proof: Windows hosts count their ids, so that they can
be guessed. A guess must not advance the stream of a host that is there, nor be free:

    the origin of the stream has proven a key ───────► another stream
    a session with the origin of the stream is open ─► held: rejected, and sent again later
    too many wrong ids in the name of the source ────► held
    else ────────────────────────────────────────────► continued
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.runtime.services import Services

WRONG_MAX = 100  # wrong ids in the name of one source, from all its other origins
WRONG_FOR_S = 3600.0  # after which they are forgotten
SOURCES_MAX = 10_000  # for which wrong ids are counted


class Origins(Protocol):
    """The origins of queue managers: `Origins` of qmd/peers."""

    def primary(self, guid: bytes) -> str | None: ...
    def is_proven(self, guid: bytes, origin: str) -> bool: ...


class Claim(enum.Enum):
    """How a message with the sequence id of a stream is judged."""

    CONTINUES = enum.auto()
    HELD = enum.auto()
    ANOTHER = enum.auto()


class StreamClaims:
    """Judges claims of other origins on streams, and counts wrong ones."""

    def __init__(self, services: Services) -> None:
        self._services = services
        #: By the GUID of a source: the number of wrong ids, and when the first one came.
        self._wrong: dict[bytes, tuple[int, float]] = {}

    def connect(self, origins: Origins, has_session: Callable[[bytes, str], bool]) -> None:
        """Set the components that are made later.

        `has_session` returns whether a session with an origin of a queue manager is open.
        """
        self._origins = origins
        self._has_session = has_session

    def judge(self, source: bytes, known: str, origin: str) -> Claim:
        """Judge a message from `origin` with the sequence id of a stream from the origin `known`.

        "" is an origin that is not known.
        """
        if known in (origin, "") or not origin:
            return Claim.CONTINUES
        if self._origins.is_proven(source, known):
            return Claim.ANOTHER
        if self._has_session(source, known) or self._wrong_ids(source) >= WRONG_MAX:
            return Claim.HELD
        return Claim.CONTINUES

    def missed(self, source: bytes, origin: str) -> None:
        """Count a sequence id that no stream of the source has, unless its primary origin sent it.

        A full table forgets the source that has been in it for the longest time.
        """
        if origin in ("", self._origins.primary(source)):
            return
        count = self._wrong_ids(source)
        if not count and len(self._wrong) >= SOURCES_MAX:
            del self._wrong[next(iter(self._wrong))]
        first = self._wrong[source][1] if count else self._services.loop.time()
        self._wrong[source] = (count + 1, first)

    def _wrong_ids(self, source: bytes) -> int:
        count, first = self._wrong.get(source, (0, 0.0))
        if count and self._services.loop.time() - first > WRONG_FOR_S:
            del self._wrong[source]
            return 0
        return count
