"""The queue managers at the other end, as the daemon knows them: by GUID and address.

Nothing in an envelope proves its source, and all sessions of this door come from one address.  So
the first address that states a GUID keeps it; another one that states it too is another queue
manager to the daemon, with a GUID derived from both, and has sequences and a history of its own.
It can neither take the places of the first one's messages nor lock it out (docs/decisions/0031).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from functools import partial

from qmd.doors.srmp.store import Store
from qmd.runtime.shares import Owner, owner_of
from storage.stream_file import StreamFile

#: GUIDs that one address, and all together, can keep; any further one is derived.
OF_ADDRESS_MAX = 100
ALL_MAX = 10_000


class Sources:
    """The addresses to which GUIDs belong, on disk and in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._addresses: dict[uuid.UUID, str] = {}
        self._counts: Counter[Owner] = Counter()
        #: The GUIDs that are stated now for the first time.
        self._new: dict[uuid.UUID, asyncio.Task[None]] = {}

    async def load(self) -> None:
        """Read the addresses.  Raises OSError."""
        for guid, address in await self._store.change(StreamFile.sources):
            self._count(uuid.UUID(guid), address)

    async def guid_of(self, stated: uuid.UUID, address: str) -> uuid.UUID:
        """Return the GUID for a host that states one; the first address is kept durably.

        Raises OSError.
        """
        if stated not in self._addresses and stated not in self._new and self._has_room(address):
            task = asyncio.create_task(self._keep(stated, address))
            self._new[stated] = task
            task.add_done_callback(partial(self._kept, stated))
        if stated in self._new:
            # Several requests wait for it, and one of them may end before.
            await asyncio.shield(self._new[stated])
        if self._addresses.get(stated) == address:
            return stated
        return uuid.uuid5(stated, address)

    async def _keep(self, stated: uuid.UUID, address: str) -> None:
        await self._store.change(lambda file: file.add_source(str(stated), address))
        self._count(stated, address)

    def _kept(self, stated: uuid.UUID, task: asyncio.Task[None]) -> None:
        del self._new[stated]
        if not task.cancelled():
            task.exception()  # the requests that wait have it; there may be none any more

    def _count(self, guid: uuid.UUID, address: str) -> None:
        self._addresses[guid] = address
        self._counts[owner_of(address)] += 1

    def _has_room(self, address: str) -> bool:
        own = self._counts[owner_of(address)]
        return len(self._addresses) + len(self._new) < ALL_MAX and own < OF_ADDRESS_MAX
