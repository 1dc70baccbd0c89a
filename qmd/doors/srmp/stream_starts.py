"""The URLs for the receipts of streams: only the first message of a stream has it."""

from __future__ import annotations

import asyncio
from functools import partial

from qmd.doors.srmp.store import Store, limits, stream_of


class Starts:
    """The URLs for receipts, on disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: The streams that begin now: their later messages wait for it.
        self._beginning: dict[str, asyncio.Task[None]] = {}

    async def receipts_to(self, stream: str) -> str:
        """Return the URL for the receipts of a stream, or "".  Raises OSError."""
        return await self._store.change(lambda file: file.url(stream))

    async def keep(self, stream: str, receipts_to: str, address: str) -> None:
        """Keep the first URL of a stream, durably: another host must not direct its receipts.

        A source or an address with too many streams loses its oldest one, and so does the network
        with the most when there are too many in all.  A message without a URL waits until its
        stream has begun.  Raises OSError.
        """
        if stream not in self._beginning:
            if not receipts_to:
                return
            start = stream_of(stream, receipts_to, address)
            work = self._store.change(lambda file: file.add(start, limits()))
            task = asyncio.create_task(work)
            self._beginning[stream] = task
            task.add_done_callback(partial(self._begun, stream))
        # Several requests wait for it, and one of them may end before.
        await asyncio.shield(self._beginning[stream])

    def _begun(self, stream: str, task: asyncio.Task[None]) -> None:
        del self._beginning[stream]
        if not task.cancelled():
            task.exception()  # the requests that wait have it; there may be none any more
