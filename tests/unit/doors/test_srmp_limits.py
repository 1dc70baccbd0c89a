"""The streams and sources that the door for SRMP keeps: their limits, and their file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from qmd.doors.srmp import sources
from qmd.doors.srmp import store as stores
from qmd.doors.srmp.sources import Sources
from qmd.doors.srmp.store import Store, stream_of
from qmd.doors.srmp.stream_starts import Starts
from storage.stream_file import Limits

URL, OTHER = "http://host/1", "http://host/2"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    store = Store(folder / "streams")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.contextmanager
def held(store: Store) -> Iterator[None]:
    """Let no commit end, as a slow disk does."""
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def turns() -> None:
    """Let the event loop do its other work."""
    for _ in range(50):
        await asyncio.sleep(0.001)


@in_loop
async def test_streams_of_one_network_displace_each_other_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STREAMS_OF_ADDRESS_MAX", 5)
    monkeypatch.setattr(stores, "STREAMS_MAX", 12)
    async with opened(tmp_path) as store:
        starts = Starts(store)
        for number in range(3):
            await starts.keep(f"genuine\\{number}", URL, "10.0.0.1")
        for number in range(20):  # each of another source
            await starts.keep(f"source{number}\\1", OTHER, "10.0.1.2")
        for number in range(30):  # each of another address of this computer, too
            await starts.keep(f"other{number}\\1", OTHER, f"127.0.0.{number}")

        kept = [await starts.receipts_to(f"genuine\\{number}") for number in range(3)]
        assert kept == [URL] * 3
        assert await starts.receipts_to("other29\\1") == OTHER
        others = [await starts.receipts_to(f"other{number}\\1") for number in range(30)]
        assert others.count(OTHER) <= 5  # and their network has no more than any other
        assert not await starts.receipts_to("source0\\1")


@in_loop
async def test_streams_of_one_source_displace_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STREAMS_OF_SOURCE_MAX", 2)
    async with opened(tmp_path) as store:
        starts = Starts(store)
        for number in range(4):
            await starts.keep(f"source\\{number}", f"{URL}{number}", f"10.0.{number}.1")
        await starts.keep("source\\3", OTHER, "10.0.9.1")

        found = [await starts.receipts_to(f"source\\{number}") for number in range(4)]
        assert found == ["", "", f"{URL}2", f"{URL}3"]


@in_loop
async def test_a_disk_that_is_slow_for_a_new_stream_does_not_hold_the_event_loop(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        starts, known = Starts(store), Sources(store)
        guid = uuid.uuid4()
        with held(store):
            waiting = [
                asyncio.create_task(starts.keep("a\\1", URL, "10.0.0.1")),
                asyncio.create_task(starts.keep("a\\1", OTHER, "10.0.0.2")),
                # A later message of the stream, which has no URL.
                asyncio.create_task(starts.keep("a\\1", "", "10.0.0.1")),
                asyncio.create_task(known.guid_of(guid, "10.0.0.1")),
                asyncio.create_task(known.guid_of(guid, "10.0.0.2")),
            ]
            await starts.keep("b\\1", "", "10.0.0.1")  # of a stream that does not begin now
            await turns()
            assert not any(each.done() for each in waiting)
        found = await asyncio.gather(*waiting)

        assert await starts.receipts_to("a\\1") == URL
        assert found[3:] == [guid, uuid.uuid5(guid, "10.0.0.2")]
    async with opened(tmp_path) as store:
        assert await Starts(store).receipts_to("a\\1") == URL


@in_loop
async def test_a_stream_that_cannot_be_kept_is_refused_and_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.stream_file.LOCKED_S", 0.05)
    async with opened(tmp_path) as store:
        starts, known = Starts(store), Sources(store)
        guid = uuid.uuid4()
        with held(store):
            with pytest.raises(OSError, match="cannot be used"):
                await starts.keep("a\\1", URL, "10.0.0.1")
            with pytest.raises(OSError, match="cannot be used"):
                await known.guid_of(guid, "10.0.0.1")

        await starts.keep("a\\1", OTHER, "10.0.0.2")
        assert await starts.receipts_to("a\\1") == OTHER
        assert await known.guid_of(guid, "10.0.0.2") == guid


@in_loop
async def test_sources_are_limited_for_each_network_of_an_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "OF_ADDRESS_MAX", 2)
    guids = [uuid.uuid4() for _ in range(4)]
    async with opened(tmp_path) as store:
        known = Sources(store)
        found = [await known.guid_of(guid, f"fd00::{n}") for n, guid in enumerate(guids)]
        assert [a == b for a, b in zip(found, guids, strict=True)] == [True, True, False, False]
        assert await known.guid_of(guids[3], "10.0.0.1") == guids[3]
    async with opened(tmp_path) as store:
        known = Sources(store)
        await known.load()
        assert await known.guid_of(guids[0], "fd00::0") == guids[0]
        assert await known.guid_of(guids[0], "10.0.0.1") != guids[0]
        assert await known.guid_of(guids[2], "fd00::2") != guids[2]


@in_loop
async def test_files_of_an_earlier_version_are_taken_over_once(tmp_path: Path) -> None:
    guid = uuid.uuid4()
    streams, old_sources = tmp_path / "streams", tmp_path / "streams-sources"
    content = json.dumps([{"name": "a\\1", "receipts_to": URL, "address": "10.0.0.1"}])
    streams.write_text(content)
    old_sources.write_text(json.dumps([{"name": str(guid), "address": "10.0.0.1"}]))
    async with opened(tmp_path) as store:
        assert await Starts(store).receipts_to("a\\1") == URL
        known = Sources(store)
        await known.load()
        assert await known.guid_of(guid, "10.0.0.2") != guid
        assert not streams.exists()
        assert not old_sources.exists()
        await store.change(lambda file: file.add(stream_of("a\\2", OTHER, ""), Limits(1, 9, 9)))
    streams.write_text(content)  # the process was killed before it removed the file
    async with opened(tmp_path) as store:
        assert not await Starts(store).receipts_to("a\\1")
        assert not streams.exists()


@in_loop
async def test_a_damaged_file_of_an_earlier_version_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text("[{")
    store = Store(tmp_path / "streams")
    with pytest.raises(OSError, match="cannot be read"):
        await store.open()
    await store.close()
    assert (tmp_path / "streams").read_text() == "[{"
