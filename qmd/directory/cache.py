"""Cache of directory entries with limited age.

Concurrent requests for the same entry share one query; a negative answer is cached too. A caller
never waits longer than `[directory] timeout`, and does not wait at all if the directory was found
unavailable just before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qmd.directory.interface import (
    AliasEntry,
    Directory,
    DirectoryAway,
    ListEntry,
    MachineEntry,
    NotInDirectory,
    QueueEntry,
)
from qmd.errors import placed

if TYPE_CHECKING:
    from protocol.names.format_name import DistributionListName
    from qmd.config.settings import DirectorySettings

T = TypeVar("T")

ENTRIES_MAX = 100_000
ASKED_AT_ONCE_MAX = 64  # for the members of lists


class _Kept(NamedTuple):
    """A cached answer of the directory: an entry, or the error that there is none."""

    answer: Any
    expires_at: float


class KeptAnswers:
    """Cache in front of `directory`."""

    def __init__(
        self, directory: Directory, settings: DirectorySettings, *, now: Callable[[], float]
    ) -> None:
        self.directory = directory
        self._settings = settings
        self._now = now  # seconds, of a clock that only moves forward
        self._entries: dict[Hashable, _Kept] = {}
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self._away: DirectoryAway | None = None
        self._away_until = -math.inf
        self._room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        self.asked_count = 0  # queries sent to the directory
        self.kept_count = 0  # queries answered from the cache

    async def queue(self, guid: bytes) -> tuple[QueueEntry, float]:
        """Return a public queue, and the time until which the answer is valid."""
        return await self._ask(("queue", guid), partial(self.directory.queue, guid))

    def queue_if_known(self, guid: bytes) -> tuple[QueueEntry, float] | None:
        """Return the same without waiting; None: `queue` would query the directory."""
        kept = self._entries.get(("queue", guid))
        if kept is None or kept.expires_at <= self._now():
            return None
        self.kept_count += 1
        return _answer(kept)

    async def queue_by_path(self, path: str, remedy: str = "") -> tuple[QueueEntry, float]:
        ask = partial(self.directory.queue_by_path, path)
        try:
            return await self._ask(("path", path.lower()), ask)
        except NotInDirectory as error:
            if remedy:
                raise NotInDirectory(error.what, remedy) from error
            raise

    async def machine(self, guid: bytes) -> tuple[MachineEntry, float]:
        """Return a queue manager, for its addresses and sites."""
        return await self._ask(("machine", guid), partial(self.directory.machine, guid))

    async def machine_by_name(self, name: str) -> tuple[MachineEntry, float]:
        """Return a queue manager by the name of its computer."""
        ask = partial(self.directory.machine_by_name, name)
        return await self._ask(("machine", name.lower()), ask)

    async def certificates(self, sender: str) -> tuple[tuple[bytes, ...], float]:
        """Return the certificates that are registered for a sender."""
        return await self._ask(("sender", sender), partial(self.directory.certificates, sender))

    async def distribution_list(self, name: DistributionListName) -> tuple[ListEntry, float]:
        return await self._ask(
            ("list", name),
            partial(self.directory.distribution_list, name.distribution_list, name.domain),
        )

    async def list_by_name(self, name: str) -> tuple[ListEntry, float]:
        return await self._ask(("list", name.lower()), partial(self.directory.list_by_name, name))

    async def alias(self, name: str) -> tuple[AliasEntry, float]:
        return await self._ask(("alias", name.lower()), partial(self.directory.alias, name))

    def __len__(self) -> int:
        """Return the number of cached entries."""
        return len(self._entries)

    def forget(self) -> None:
        """Clear the cache, because the directory has changed."""
        self._entries.clear()
        self._away_until = -math.inf

    def late(self) -> DirectoryAway:
        """Return the error for a directory that did not answer within the time-out."""
        where = self.directory.status().where
        return DirectoryAway(f"no answer within {self._settings.timeout_s:g} s", where=where)

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> tuple[T, float]:
        """Return the answer and its expiry; concurrent callers share one query."""
        kept = self._entries.get(key)
        if kept is not None and kept.expires_at > self._now():
            self.kept_count += 1
            return _answer(kept)
        if self._away is not None and self._away_until > self._now():
            raise placed(self._away, "")
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(key, ask))
            self._asking[key] = task
            task.add_done_callback(partial(self._asked, key))
        # A cancelled caller must not cancel the others.
        return _answer(await asyncio.shield(task))

    async def _fetch(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> _Kept:
        try:
            async with self._room, asyncio.timeout(self._settings.timeout_s):
                self.asked_count += 1
                answer = await ask()
        except TimeoutError:
            raise self._found_away(self.late()) from None
        except DirectoryAway as error:
            raise self._found_away(error) from error
        except NotInDirectory as error:
            kept = _Kept(error, self._now() + self._settings.negative_age_s)
        else:
            kept = _Kept(answer, self._now() + self._settings.age_s)
        self._away = None
        if len(self._entries) >= ENTRIES_MAX:
            self._entries.clear()
        self._entries[key] = kept
        return kept

    def _found_away(self, error: DirectoryAway) -> DirectoryAway:
        self._away = error
        self._away_until = self._now() + self._settings.pause_s
        return error

    def _asked(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, in case no caller is left


def _answer(kept: _Kept) -> tuple[Any, float]:
    if isinstance(kept.answer, NotInDirectory):
        raise placed(kept.answer, "")
    return kept.answer, kept.expires_at
