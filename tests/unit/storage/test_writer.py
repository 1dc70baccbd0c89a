"""Group commit: the contents of a batch, the time of its callbacks, and failures."""

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Batch, Storage, StorageError
from storage.engine import writer
from storage.options import PAGE_BYTES
from storage.tables.awaiting import Arrived
from tests.unit.storage.support import (
    durable,
    insert,
    key,
    opened,
    other_connection,
    raise_error,
    stored,
)


async def settled(storage: Storage) -> None:
    """Go to the writer's thread and back, so that all callbacks that are due have run."""
    await storage.read(lambda db: None)
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_callback_runs_before_the_commit_has_returned(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[str] = []
            stranger = other_connection(folder)
            stranger.execute("BEGIN IMMEDIATE")

            insert(storage, 1)
            storage.batch.when_durable(lambda: told.append("durable"))
            storage.batch.read_after(lambda db: None, lambda _: told.append("read"))
            unit = storage.batch.run(lambda db: None)
            await settled(storage)

            assert told == []
            assert not unit.done()
            assert await stored(storage) == []

            stranger.execute("ROLLBACK")
            stranger.close()
            await unit
            assert told == ["durable", "read"]
            assert await stored(storage) == [key(1)]

    asyncio.run(scenario())


def test_a_call_follows_the_notifications_of_a_small_commit_in_the_same_turn(folder: Path) -> None:
    async def told_by(messages: int) -> list[str]:
        async with opened(folder) as storage:
            told: list[str] = []

            def notified() -> None:
                asyncio.get_running_loop().call_soon(told.append, "next turn")
                storage.soon(lambda: told.append("called"))

            for arrival in range(1, messages + 1):
                insert(storage, arrival)
            storage.batch.when_durable(notified)
            storage.batch.when_durable(lambda: told.append("notified"))
            await durable(storage)
            await settled(storage)
            storage.soon(lambda: told.append("without a commit"))
            assert "without a commit" not in told
            await settled(storage)
            await storage.batch.run(lambda db: db.execute("DELETE FROM message"))
            return told

    after_a_small = asyncio.run(told_by(1))
    after_a_large = asyncio.run(told_by(writer.FEW_ROWS + 1))
    assert after_a_small == ["notified", "called", "next turn", "without a commit"]
    assert after_a_large == ["notified", "next turn", "called", "without a commit"]


def test_another_connection_sees_the_data_when_a_callback_runs(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            stranger = other_connection(folder)
            seen: list[int] = []
            query = "SELECT count(*) FROM message"

            def look() -> None:
                seen.append(stranger.execute(query).fetchone()[0])

            for arrival in range(1, 50):
                insert(storage, arrival)
                storage.batch.when_durable(look)
                if arrival % 3 == 0:
                    await durable(storage)
            await durable(storage)
            stranger.close()

            assert all(count >= arrival for arrival, count in enumerate(seen, 1))

    asyncio.run(scenario())


def test_acts_during_a_commit_are_one_batch(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            stranger = other_connection(folder)
            stranger.execute("BEGIN IMMEDIATE")
            insert(storage, 1)
            first = storage.batch
            await settled(storage)

            insert(storage, 2)
            second = storage.batch
            await settled(storage)
            insert(storage, 3)

            assert second is not first
            assert storage.batch is second
            assert storage.pressure == 3
            stranger.execute("ROLLBACK")
            stranger.close()
            await durable(storage)
            assert storage.pressure == 0

    asyncio.run(scenario())


@contextlib.contextmanager
def held_up(folder: Path) -> Iterator[None]:
    """Let no commit end before the end of the block."""
    stranger = other_connection(folder)
    stranger.execute("BEGIN IMMEDIATE")
    yield
    stranger.execute("ROLLBACK")
    stranger.close()


async def packets_have_followed(storage: Storage, folder: Path) -> None:
    """Commit messages 1 to 3; the last one has to wait for the commit of a removal."""
    insert(storage, 1)
    insert(storage, 2)
    await durable(storage)
    with held_up(folder):
        storage.batch.delete_messages([key(1)])
        await settled(storage)
        insert(storage, 3)
    await durable(storage)


def removal(storage: Storage, number: int) -> tuple[asyncio.Event, Batch]:
    """Remove a message; the event is set when that is durable, and the batch has the removal."""
    removed = asyncio.Event()
    storage.batch.delete_messages([key(number)])
    storage.batch.when_durable(removed.set)
    return removed, storage.batch


@pytest.mark.parametrize("comes_during_the_commit", [True, False])
def test_a_removal_joins_the_next_packets(
    comes_during_the_commit: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "JOIN_S", 20.0)

    async def scenario() -> None:
        async with opened(folder) as storage:
            await packets_have_followed(storage, folder)
            if comes_during_the_commit:
                with held_up(folder):
                    insert(storage, 4)
                    is_stored = storage.batch.barrier()
                    await settled(storage)
                    removed, batch = removal(storage, 2)
                await is_stored
            else:
                removed, batch = removal(storage, 2)
            await settled(storage)
            assert storage.batch is batch
            assert not removed.is_set()
            insert(storage, 5)

            await durable(storage)
            assert removed.is_set()
            assert key(2) not in await stored(storage)
            assert key(5) in await stored(storage)

    asyncio.run(scenario())


def test_a_removal_that_has_waited_for_packets_without_effect_is_the_last_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            monkeypatch.setattr(writer, "JOIN_S", 20.0)
            await packets_have_followed(storage, folder)
            monkeypatch.setattr(writer, "JOIN_S", 0.0)
            with held_up(folder):
                removed, batch = removal(storage, 2)
                while storage.batch is batch:
                    await settled(storage)
                insert(storage, 4)
                monkeypatch.setattr(writer, "JOIN_S", 20.0)
            await durable(storage)

            removed, batch = removal(storage, 3)
            await settled(storage)
            assert storage.batch is not batch
            await removed.wait()

    asyncio.run(scenario())


def test_a_removal_does_not_wait_for_an_application_that_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "JOIN_S", 20.0)

    async def scenario() -> None:
        async with opened(folder) as storage:
            for number in range(1, 5):
                insert(storage, number)
                await durable(storage)
                removed, batch = removal(storage, number)
                await settled(storage)
                assert storage.batch is not batch
                await removed.wait()

    asyncio.run(scenario())


def test_acts_of_one_turn_of_the_loop_share_a_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            loop, commits = asyncio.get_running_loop(), set()
            for arrival in range(10):
                loop.call_soon(insert, storage, arrival)
                loop.call_soon(lambda: commits.add(storage.batch))
            await settled(storage)

            assert len(commits) == 1

    asyncio.run(scenario())


def test_a_failed_commit_is_never_acknowledged_and_fails_all_callers(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1)
            await durable(storage)
            told: list[str] = []

            insert(storage, 2, 1)  # message 1 is stored already
            same_batch = storage.batch.run(lambda db: None)
            storage.batch.when_durable(lambda: told.append("durable"))
            storage.batch.read_after(lambda db: None, lambda _: told.append("read"))
            await asyncio.sleep(0)
            insert(storage, 3)
            storage.batch.when_durable(lambda: told.append("durable"))
            next_batch = storage.batch.run(lambda db: None)
            results = await asyncio.gather(same_batch, next_batch, return_exceptions=True)
            insert(storage, 4)
            storage.batch.when_durable(lambda: told.append("durable"))
            with pytest.raises(StorageError, match="a commit failed: UNIQUE"):
                await storage.batch.run(lambda db: None)

            assert [type(result) for result in results] == [StorageError] * 2
            assert told == []
            assert isinstance(storage.failed.exception(), StorageError)
            with pytest.raises(StorageError):
                await storage.vacuum()
            assert await stored(storage) == [key(1)]
            stranger = other_connection(folder)
            stranger.execute("BEGIN IMMEDIATE")  # works only if no transaction was left open
            stranger.close()

    asyncio.run(scenario())


def test_a_failed_commit_is_no_unhandled_error_of_a_caller_that_has_gone(folder: Path) -> None:
    unhandled: list[dict[str, object]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: unhandled.append(each))
        async with opened(folder) as storage:
            insert(storage, 1)
            await durable(storage)

            insert(storage, 1)  # it is stored already
            storage.batch.run(lambda db: None)
            storage.batch.outgoing.await_confirmation(Arrived(1, 0, 1, 1, 0, 1), lambda kept: [])
            with pytest.raises(StorageError, match="a commit failed: UNIQUE"):
                await storage.failed

    asyncio.run(scenario())
    gc.collect()

    assert unhandled == []


def test_a_missing_sequence_row_stops_the_storage(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1)
            storage.batch.incoming.set_sequence(5, 1, 1, at_s=0)
            with pytest.raises(StorageError, match="unknown sequence"):
                await storage.batch.run(lambda db: None)

            assert await stored(storage) == []

    asyncio.run(scenario())


def test_a_callback_that_raises_is_a_bug_and_stops_the_storage(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[str] = []
            bug = KeyError("bug")
            storage.batch.when_durable(lambda: raise_error(bug)(None))
            storage.batch.when_durable(lambda: told.append("durable"))
            storage.batch.read_after(lambda db: None, lambda _: told.append("read"))
            with pytest.raises(StorageError, match="a callback failed"):
                await storage.failed

            failure = storage.failed.exception()
            assert failure is not None
            assert failure.__cause__ is bug
            assert told == []
            with pytest.raises(StorageError):
                await storage.batch.run(lambda db: None)

    asyncio.run(scenario())


def test_a_read_after_that_fails_stops_the_storage(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[object] = []
            storage.batch.read_after(raise_error(ValueError("odd")), told.append)
            with pytest.raises(StorageError, match="odd"):
                await storage.failed

            assert told == []

    asyncio.run(scenario())


def test_closing_waits_for_all_acts_and_those_that_follow(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[int] = []

            def step(arrival: int) -> None:
                told.append(arrival)
                if arrival < 4:
                    insert(storage, arrival + 1)
                    storage.batch.when_durable(lambda: step(arrival + 1))

            step(0)
        assert told == [0, 1, 2, 3, 4]
        async with opened(folder) as storage:
            assert await stored(storage) == [key(arrival) for arrival in (1, 2, 3, 4)]

    asyncio.run(scenario())


def test_a_closed_storage_refuses_acts(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            pass
        with pytest.raises(StorageError, match="closed"):
            await storage.batch.run(lambda db: None)
        with pytest.raises(StorageError, match="closed"):
            await storage.read(lambda db: None)
        await storage.close()

    asyncio.run(scenario())


def test_a_failed_read_is_reported_only_to_its_caller(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            with pytest.raises(StorageError, match="no such column"):
                await storage.read(lambda db: db.execute("SELECT wrong"))
            with pytest.raises(StorageError, match="readonly"):
                await storage.read(lambda db: db.execute("DELETE FROM message"))
            assert not storage.failed.done()

    asyncio.run(scenario())


def test_unused_pages_are_returned_to_the_disk_in_steps(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for arrival in range(1000):
                storage.batch.insert_message(key(arrival), bytes(4000), 1)
            await durable(storage)
            storage.batch.delete_messages([key(arrival) for arrival in range(1000)])
            await durable(storage)

            step = 800 * 1024 // PAGE_BYTES
            left = [await storage.vacuum(step) for _ in range(6)]

            assert left == sorted(left, reverse=True)
            assert left[0] - left[1] == step
            assert left[-1] == 0
        # The rows took 4 MB; the tables themselves take half a megabyte.
        assert (folder / "queues.db").stat().st_size < 1_000_000

    asyncio.run(scenario())


@pytest.fixture
def much_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the delay of deferred acts, so that a pause of this process does not end it."""
    monkeypatch.setattr(writer, "PATIENCE_S", 5.0)


@pytest.mark.usefixtures("much_patience")
def test_a_deferred_act_waits_for_the_commit_of_another(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[str] = []
            with storage.patience(True):
                insert(storage, 1)
                storage.batch.when_durable(lambda: told.append("patient"))
            batch = storage.batch
            await settled(storage)
            assert storage.batch is batch
            assert told == []

            insert(storage, 2)
            storage.batch.when_durable(lambda: told.append("hasty"))
            await durable(storage)

            assert told == ["patient", "hasty"]
            assert await stored(storage) == [key(1), key(2)]

    asyncio.run(scenario())


def test_a_deferred_act_is_committed_without_another_act(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with storage.patience(True):
                insert(storage, 1)
                storage.batch.when_durable(lambda: done.set_result(None))
            await done

            assert await stored(storage) == [key(1)]

    asyncio.run(scenario())


@pytest.mark.usefixtures("much_patience")
def test_a_deferred_act_during_a_commit_does_not_join_the_next_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            stranger = other_connection(folder)
            stranger.execute("BEGIN IMMEDIATE")
            insert(storage, 1)
            first: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
            storage.batch.when_durable(lambda: first.set_result(storage.batch))
            await settled(storage)
            with storage.patience(True):
                insert(storage, 2)
            batch = storage.batch
            stranger.execute("ROLLBACK")
            stranger.close()
            assert await first is batch, "it was committed at once"
            await durable(storage)

            assert await stored(storage) == [key(1), key(2)]

    asyncio.run(scenario())


def test_a_deferred_act_is_on_disk_when_the_storage_is_closed(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            with storage.patience(True):
                insert(storage, 1)
        async with opened(folder) as storage:
            assert await stored(storage) == [key(1)]

    asyncio.run(scenario())
