"""Live pages: server-sent events with the regions of a page that have changed.

A page is made again as often as its figures are; an event goes out if one of its regions, the
elements with `data-live`, differs from the one that was sent before.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable

EVENTS = "text/event-stream"
STREAMS_MAX = 200  # of all pages; others ask for their figures
#: Sent when nothing has changed: a connection that has ended is noticed.
NOTHING = b":\n\n"
ENDED = b"event: ended\ndata:\n\n"

#: Makes a page again; None: the login has ended.
Make = Callable[[], Awaitable[bytes | None]]

_BEGIN = re.compile(r'<(\w+)(?=[^>]*\sdata-live\b)[^>]*\sid="([\w-]+)"[^>]*>')


def regions(page: str) -> dict[str, str]:
    """Return the live elements of a page of ours by their ids.

    All texts in our pages are escaped, so that "<" begins a tag.
    """
    return {
        found[2]: page[found.start() : _end(page, found[1], found.end())]
        for found in _BEGIN.finditer(page)
    }


def _end(page: str, tag: str, start: int) -> int:
    depth = 1
    for found in re.finditer(rf"<(/?){tag}\b[^>]*>", page[start:]):
        depth += -1 if found[1] else 1
        if not depth:
            return start + found.end()
    return len(page)


class Streams:
    """The streams of all open pages."""

    def __init__(self, refresh_s: float) -> None:
        self._refresh_s = refresh_s
        self._count = 0

    @property
    def has_room(self) -> bool:
        """Whether another page may have a stream."""
        return self._count < STREAMS_MAX

    async def events(self, make: Make) -> AsyncIterator[bytes]:
        """Yield events until the login ends, or the client leaves."""
        self._count += 1
        sent: dict[str, str] = {}
        try:
            while (content := await make()) is not None:
                now = regions(content.decode())
                changed = {name: text for name, text in now.items() if sent.get(name) != text}
                yield _event(changed) if changed else NOTHING
                sent |= changed
                await asyncio.sleep(self._refresh_s)
            yield ENDED
        finally:
            self._count -= 1


def _event(changed: dict[str, str]) -> bytes:
    return f"event: regions\ndata: {json.dumps(changed)}\n\n".encode()
