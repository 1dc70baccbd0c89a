"""Pages of a queue, and searches in it, in pieces that a browser does not wait for long.

A page is read from a lookup id on, so the last page of a million messages takes as long as the
first one.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from qmd.client import Message, QueueManager

PAGE_MESSAGES = 50
SCAN_MESSAGES = 256  # of one request
SCAN_S = 0.6  # of one search, before the page shows what it has found
SCAN_MAX = 25_000


class Page(NamedTuple):
    """Some messages of a queue, in order."""

    messages: list[Message]
    start: int  # the lookup id at which it begins
    previous: int | None  # where the page before begins; None: there is none
    following: int | None  # where the next page begins


class Found(NamedTuple):
    """The messages that one step of a search has found."""

    messages: list[Message]
    seen: int  # messages that were compared
    following: int | None  # where the search goes on; None: it is at the end


async def page(qm: QueueManager, queue: str, start: int = 0, where: str = "") -> Page:
    """Return the page from a lookup id on.  Raises ClientError."""
    found = await qm.peek(queue, start, PAGE_MESSAGES + 1, where=where)
    messages = found[:PAGE_MESSAGES]
    following = found[PAGE_MESSAGES].lookup_id if len(found) > PAGE_MESSAGES else None
    if following is None and len(found) > 1:
        # An answer ends early if its messages are large.
        more = await qm.peek(queue, found[-1].lookup_id + 1, 1, where=where)
        following = more[0].lookup_id if more else None
    previous = None
    if start and not where:
        at = messages[0].lookup_id if messages else start
        previous = await _back(qm, queue, at)
    return Page(messages, start, previous, following)


async def last_page(qm: QueueManager, queue: str) -> Page:
    """Return the page that ends with the last message.  Raises ClientError."""
    last = await qm.look(queue, "last")
    if last is None:
        return Page([], 0, None, None)
    start = await _back(qm, queue, last.lookup_id, PAGE_MESSAGES - 1)
    return await page(qm, queue, last.lookup_id if start is None else start)


async def _back(qm: QueueManager, queue: str, start: int, steps: int = PAGE_MESSAGES) -> int | None:
    """Return the lookup id so many messages before another one, or of the first; None: none is."""
    found = None
    for _ in range(steps):
        before = await qm.look(queue, "previous", start if found is None else found)
        if before is None:
            break
        found = before.lookup_id
    return found


async def search(
    qm: QueueManager, queue: str, text: str, parts: frozenset[str], start: int = 0
) -> Found:
    """Search for a text in labels, ids or bodies, without regard to case, for less than a second.

    `parts`: those of "label", "id" and "body" that are compared.  Raises ClientError.
    """
    needle = Needle(text, parts)
    found: list[Message] = []
    seen, until = 0, time.monotonic() + SCAN_S
    while True:
        some = await qm.peek(queue, start, SCAN_MESSAGES)
        for message in some:
            seen += 1
            if needle.is_in(message):
                found.append(message)
            start = message.lookup_id + 1
            if len(found) >= PAGE_MESSAGES:
                return Found(found, seen, start)
        if not some:
            return Found(found, seen, None)
        if seen >= SCAN_MAX or time.monotonic() > until:
            return Found(found, seen, start)


class WaitingMessages(NamedTuple):
    """Some messages of an outgoing queue, in the order of sending."""

    rows: list[dict[str, Any]]
    following: int | None  # where the list goes on; None: it is at the end


async def waiting_messages(
    qm: QueueManager,
    destination: str,
    text: str,
    rows_max: int = PAGE_MESSAGES,
    *,
    start: int = 0,
    until: float,
) -> WaitingMessages:
    """Return messages of an outgoing queue, with a text those that have it in label or id.

    `until` is the time of the monotonic clock at which a search ends.  Raises ClientError.
    """
    rows: list[dict[str, Any]] = []
    at: int | None = start
    while at is not None and len(rows) < rows_max and time.monotonic() < until:
        found = await qm.peek_outgoing(destination, at, rows_max - len(rows), text=text)
        rows += found["messages"]
        at = found["next"]
    return WaitingMessages(rows, at)


class Needle:
    """A text that is searched, in the codings that labels and bodies have."""

    def __init__(self, text: str, parts: frozenset[str]) -> None:
        self._text = text.casefold()
        self._parts = parts
        lower = text.lower()
        self._coded = [lower.encode("utf-8", "replace"), lower.encode("utf-16-le", "replace")]
        self._is_ascii = text.isascii()

    def is_in(self, message: Message) -> bool:
        """Return whether a message contains it; a damaged message contains nothing."""
        try:
            if "label" in self._parts and self._text in message.label.casefold():
                return True
            if "id" in self._parts and self._has_id(message):
                return True
            return "body" in self._parts and self._is_in_body(message.body)
        except ProtocolError:
            return False

    def _has_id(self, message: Message) -> bool:
        ids = (message.id, message.correlation_id or "", str(message.lookup_id))
        return any(self._text in each.lower() for each in ids)

    def _is_in_body(self, body: bytes) -> bool:
        # bytes.lower() changes ASCII only, which is enough for texts of ASCII.
        lower = body.lower()
        if any(each in lower for each in self._coded):
            return True
        if self._is_ascii:
            return False
        return self._text in body.decode("utf-8", "replace").casefold()
