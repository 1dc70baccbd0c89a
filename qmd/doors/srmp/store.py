"""The file of this door, which a thread of its own changes.

    change ──► waiting ──(the thread: all that wait, one commit)──► durable ──► result

A stranger may cause a change with each message.  A commit waits for the disk: the event loop, and
with it all other hosts, must not.  Changes that come during a commit are in the next one together,
so that there is one commit at a time however many hosts cause some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from qmd.runtime.shares import owner_of
from storage.stream_file import Limits, Stream, StreamFile

T = TypeVar("T")
Change = Callable[[StreamFile], Any]

STREAMS_MAX = 100_000  # of which the URL for receipts is kept
STREAMS_OF_SOURCE_MAX = 1000
STREAMS_OF_ADDRESS_MAX = 10_000


class _OldStart(msgspec.Struct):
    """A stream in the file of an earlier version: its name, and the URL for its receipts."""

    name: str
    receipts_to: str
    address: str = ""


class _OldSource(msgspec.Struct):
    """A source in the file of an earlier version: its GUID, and its first address."""

    name: str
    address: str


class _Waiting(NamedTuple):
    change: Change
    done: asyncio.Future[Any]


class Store:
    """The file of the door."""

    def __init__(self, path: Path) -> None:
        """`path` is the name without the ending: earlier versions had a file in JSON there."""
        self._old_streams = path
        self._old_sources = path.with_name(f"{path.name}-sources")
        self.path = path.with_name(f"{path.name}.db")
        self._thread = ThreadPoolExecutor(1, "srmp-store")
        self._file: StreamFile | None = None
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open or create the file, and take over files of earlier versions.  Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def change(self, change: Callable[[StreamFile], T]) -> T:
        """Return the result of `change`, after a commit with it.  Raises OSError.

        Changes are made in the order of the calls.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(change, loop.create_future())
        self._waiting.append(waiting)
        if self._working is None:
            self._working = loop.create_task(self._work())
        found: T = await waiting.done
        return found

    async def close(self) -> None:
        """Finish the changes that wait, and close the file."""
        if self._working is not None:
            await self._working
        if self._file is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
            self._file = None
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                now, self._waiting = self._waiting, []
                changes = [each.change for each in now]
                try:
                    results = await loop.run_in_executor(self._thread, self._commit, changes)
                except Exception as error:  # each request gets it
                    for each in now:
                        if not each.done.done():
                            each.done.set_exception(error)
                    continue
                for each, result in zip(now, results, strict=True):
                    if not each.done.done():  # or its request was cancelled
                        each.done.set_result(result)
        finally:
            self._working = None

    def _commit(self, changes: list[Change]) -> list[Any]:
        file = self._file
        if file is None:
            raise OSError(f"{self.path} is closed")
        return file.commit(changes)

    def _open(self) -> None:
        self._file = StreamFile(self.path)
        streams = [
            stream_of(each.name, each.receipts_to, each.address)
            for each in _old(self._old_streams, _OldStart)
        ]
        sources = [(each.name, each.address) for each in _old(self._old_sources, _OldSource)]
        self._file.commit([lambda file: file.take_over(streams, sources, limits())])
        for path in (self._old_streams, self._old_sources):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def limits() -> Limits:
    """Return the limits of the streams that are kept."""
    return Limits(STREAMS_OF_SOURCE_MAX, STREAMS_OF_ADDRESS_MAX, STREAMS_MAX)


def stream_of(name: str, url: str, address: str) -> Stream:
    """Return a stream as it is stored; `address` is that of the host that has begun it."""
    owner = owner_of(address)
    return Stream(name, name.partition("\\")[0], url, str(owner.name), str(owner.group))


def _old(path: Path, kind: type[T]) -> list[T]:
    """Return the content of a file of an earlier version.  Raises OSError."""
    try:
        kinds: type[list[T]] = list[kind]  # type: ignore[valid-type]
        return msgspec.json.decode(path.read_bytes(), type=kinds)
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise OSError(f"{path} cannot be read: {error}") from error
