"""Group commit: what goes together, what is told when, and what a failure does."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import (
    Storage,
    StorageError,
    counters,
    history,
    messages,
    outcomes,
    outgoing,
    sequences,
)
from storage.keys import message_key
from tests.unit.storage.support import SOURCE, durable, opened, other_connection

PACKET = b"a packet"


def key(arrival: int) -> int:
    return message_key(16, 7, arrival)


def insert(storage: Storage, *arrivals: int) -> None:
    for arrival in arrivals:
        storage.batch.insert_message(key(arrival), PACKET, arrived_at_ms=1)


async def stored(storage: Storage) -> list[int]:
    return [row.key for row in await storage.read(lambda db: messages.page(db, 16))]


def raise_error(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


async def settled(storage: Storage) -> None:
    """A hop to the writer's thread and back: whatever could have been told by now was told."""
    await storage.read(lambda db: None)
    for _ in range(5):
        await asyncio.sleep(0)


def test_every_kind_of_act_is_stored_by_one_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for number in (1, 2, 3, 4):
                storage.batch.insert_outgoing(message_key(7, 8, number), PACKET, 99)
            await durable(storage)

            batch = storage.batch
            insert(storage, 1, 2)
            batch.delete_messages([key(1)])
            batch.delete_outgoing([message_key(7, 8, 4)])
            batch.delete_outgoing_range(message_key(7, 8, 1), message_key(7, 8, 2))
            batch.add_incoming_sequence(1, SOURCE, 16, at_s=7)
            batch.set_incoming_sequence(1, 2**64 - 1, 5, at_s=8)
            batch.add_outgoing_queue(outgoing.OutgoingQueueRow(7, "b", "b:1801", False, 1, 0, 1, 5))
            batch.set_outgoing_sequence(7, 2**64 - 2, base=3, next_number=4)
            batch.remember_message_id(SOURCE, 11, at_s=9)
            batch.record_outcome(b"token", b"result", at_s=10)
            first = batch.run(lambda db: counters.reserve(db, "n", 10))
            assert storage.batch is batch
            assert await first == 1

            def look(db: sqlite3.Connection) -> tuple[object, ...]:
                return (
                    [row.key for row in messages.page(db, 16)],
                    [row.key for row in outgoing.page(db, 7)],
                    sequences.list_all(db),
                    [row[4:7] for row in outgoing.list_queues(db)],
                    history.entries(db),
                    outcomes.find(db, b"token"),
                )

            assert await storage.read(look) == (
                [key(2)],
                [message_key(7, 8, 3)],
                [(1, SOURCE, 16, 2**64 - 1, 5, 8)],
                [(2**64 - 2, 3, 4)],
                [(SOURCE, 11, 9)],
                b"result",
            )

    asyncio.run(scenario())


def test_nothing_is_told_before_the_commit_has_returned(folder: Path) -> None:
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


def test_when_something_is_told_another_connection_can_see_it(folder: Path) -> None:
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


def test_what_gathers_during_a_commit_is_one_batch(folder: Path) -> None:
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


def test_units_settle_first_then_callbacks_in_order_then_reads(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[str] = []
            batch = storage.batch
            batch.read_after(lambda db: "read 1", told.append)
            batch.when_durable(lambda: told.append(f"first, unit is done: {unit.done()}"))
            unit = batch.run(lambda db: 5)
            batch.read_after(lambda db: "read 2", told.append)
            batch.when_durable(lambda: told.append("second"))
            await durable(storage)

            assert told == ["first, unit is done: True", "second", "read 1", "read 2"]

    asyncio.run(scenario())


def test_a_read_after_sees_its_own_batch_and_not_the_next(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            counts: list[int] = []
            insert(storage, 100)
            storage.batch.when_durable(lambda: insert(storage, 101))
            storage.batch.read_after(lambda db: len(messages.page(db, 16)), counts.append)
            await asyncio.sleep(0)
            insert(storage, 102)
            storage.batch.read_after(lambda db: len(messages.page(db, 16)), counts.append)
            await durable(storage)
            await durable(storage)

            assert counts == [1, 2]
            assert await stored(storage) == [key(100), key(101), key(102)]

    asyncio.run(scenario())


def test_the_last_state_of_a_sequence_within_a_batch_wins(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            storage.batch.add_incoming_sequence(1, SOURCE, 16, at_s=0)
            for number in (1, 2, 3):
                storage.batch.set_incoming_sequence(1, 7, number, at_s=number)
            await durable(storage)

            (row,) = await storage.read(sequences.list_all)
            assert (row.sequence_id, row.number, row.last_seen_s) == (7, 3, 3)

    asyncio.run(scenario())


def test_rows_are_written_before_units_and_insertions_before_deletions(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            purged = storage.batch.run(lambda db: messages.purge(db, 16, rows_max=10))
            storage.batch.delete_messages([key(2)])
            insert(storage, 1, 2)

            assert (await purged).messages == 1

    asyncio.run(scenario())


def test_a_unit_that_fails_leaves_the_others_and_the_rows_alone(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:

            def spoiled(db: sqlite3.Connection) -> None:
                messages.insert(db, [(key(9), 1, None, None, PACKET)])
                raise ValueError("no")

            def conflicting(db: sqlite3.Connection) -> None:
                messages.insert(db, [(key(8), 1, None, None, PACKET)])
                messages.insert(db, [(key(1), 1, None, None, PACKET)])

            insert(storage, 1)
            before = storage.batch.run(lambda db: counters.reserve(db, "a", 1))
            failing = [
                storage.batch.run(spoiled),
                storage.batch.run(conflicting),
                storage.batch.run(lambda db: db.execute("no SQL")),
                storage.batch.run(lambda db: db.execute("SELECT ?")),
            ]
            after = storage.batch.run(lambda db: counters.reserve(db, "b", 1))
            results = await asyncio.gather(before, *failing, after, return_exceptions=True)

            assert [type(result) for result in results] == [
                int,
                ValueError,
                sqlite3.IntegrityError,
                sqlite3.OperationalError,
                sqlite3.ProgrammingError,
                int,
            ]
            assert await stored(storage) == [key(1)]
            assert await storage.read(lambda db: counters.following(db, "b")) == 2
            assert not storage.failed.done()

    asyncio.run(scenario())


def test_a_caller_that_gave_up_waiting_disturbs_nobody(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            cancelled = storage.batch.run(lambda db: 1)
            failing = storage.batch.run(raise_error(ValueError()))
            cancelled.cancel()
            failing.cancel()

            assert await storage.batch.run(lambda db: 2) == 2

    asyncio.run(scenario())


def test_a_failed_commit_is_never_reported_and_fails_everybody(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1)
            await durable(storage)
            told: list[str] = []

            insert(storage, 2, 1)  # 1 is there already
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
            stranger.execute("BEGIN IMMEDIATE")  # no transaction was left open
            stranger.close()

    asyncio.run(scenario())


def test_a_lost_sequence_state_stops_the_storage(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1)
            storage.batch.set_incoming_sequence(5, 1, 1, at_s=0)
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


def test_many_callbacks_all_run(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            told: list[int] = []
            for number in range(100_000):
                storage.batch.when_durable(lambda number=number: told.append(number))
            await durable(storage)

            assert told == list(range(100_000))

    asyncio.run(scenario())


def test_too_much_waiting_is_seen_as_congestion(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder, commit_rows_max=10, commit_bytes_max=1000) as storage:
            storage.batch.delete_messages(range(10))
            assert storage.pressure == 10
            assert storage.congested
            await durable(storage)
            assert not storage.congested

            storage.batch.insert_message(key(1), bytes(600), 1)
            assert not storage.congested
            storage.batch.insert_outgoing(key(1), bytes(400))
            assert storage.congested
            await durable(storage)
            assert not storage.congested

    asyncio.run(scenario())


def test_closing_waits_for_what_was_given_and_for_what_that_leads_to(folder: Path) -> None:
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


def test_a_closed_storage_takes_nothing_more(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            pass
        with pytest.raises(StorageError, match="closed"):
            await storage.batch.run(lambda db: None)

    asyncio.run(scenario())


def test_a_failing_read_is_told_to_its_caller_only(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            with pytest.raises(StorageError, match="no such column"):
                await storage.read(lambda db: db.execute("SELECT wrong"))
            with pytest.raises(StorageError, match="readonly"):
                await storage.read(lambda db: db.execute("DELETE FROM message"))
            assert not storage.failed.done()

    asyncio.run(scenario())


def test_unused_pages_go_back_to_the_disk_in_steps(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for arrival in range(1000):
                storage.batch.insert_message(key(arrival), bytes(4000), 1)
            await durable(storage)
            storage.batch.delete_messages([key(arrival) for arrival in range(1000)])
            await durable(storage)

            left = [await storage.vacuum(100) for _ in range(6)]

            assert left == sorted(left, reverse=True)
            assert left[0] - left[1] == 100
            assert left[-1] == 0
        assert (folder / "queues.db").stat().st_size < 300_000

    asyncio.run(scenario())
