"""Batches: the order of their acts, and the time of their callbacks."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from storage.engine import writer
from storage.tables import counters, events, messages, outcomes, outgoing, sequences, tally
from storage.tables import message_id_history as history
from storage.tables.events import Event
from storage.tables.keys import message_key
from storage.tables.outgoing import OutgoingQueueRow
from tests.unit.storage.support import (
    PACKET,
    SOURCE,
    durable,
    insert,
    key,
    opened,
    raise_error,
    stored,
)


def test_every_kind_of_act_is_stored_by_one_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for number in (1, 2, 3, 4):
                storage.batch.outgoing.insert(message_key(7, 8, number), PACKET, 99)
            await durable(storage)

            batch = storage.batch
            insert(storage, 1, 2)
            batch.delete_messages([key(1)])
            batch.outgoing.delete([message_key(7, 8, 4)])
            batch.outgoing.delete_range(message_key(7, 8, 1), message_key(7, 8, 2))
            batch.incoming.add_sequence(
                sequences.NewSequence(1, SOURCE, 16, b"\5q", 7, "10.0.0.1", "10.0.0.1")
            )
            batch.incoming.set_sequence(1, 2**64 - 1, 5, at_s=8)
            batch.outgoing.add_queue(outgoing.OutgoingQueueRow(7, "b", "b:1801", False, 1, 0, 1, 5))
            batch.outgoing.set_sequence(7, 2**64 - 2, base=3, next_number=4)
            segment = history.Segment(3, SOURCE, 9, "10.0.0.1", SOURCE)
            batch.incoming.remember_message_ids(segment).extend([11, 12])
            batch.incoming.remember_message_ids(segment._replace(id=4)).extend([14, 14])
            batch.incoming.forget_message_ids([4])
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
                [
                    *[
                        (
                            1,
                            SOURCE,
                            16,
                            2**64 - 1,
                            5,
                            8,
                            b"\5q",
                            0,
                            0,
                            0,
                            "10.0.0.1",
                            "10.0.0.1",
                            0,
                            0,
                            0,
                        )
                    ]
                ],
                [(2**64 - 2, 3, 4)],
                [(segment, [(11, 12)])],
                b"result",
            )

    asyncio.run(scenario())


def test_units_are_done_first_then_callbacks_in_order_then_reads(folder: Path) -> None:
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
            storage.batch.incoming.add_sequence(
                sequences.NewSequence(1, SOURCE, 16, b"\5q", 0, "10.0.0.1", "10.0.0.1")
            )
            for number in (1, 2, 3):
                storage.batch.incoming.set_sequence(1, 7, number, at_s=number)
            await durable(storage)

            (row,) = await storage.read(sequences.list_all)
            assert (row.sequence_id, row.number, row.last_seen_s) == (7, 3, 3)

    asyncio.run(scenario())


def test_the_last_number_and_the_last_state_of_a_sequence_are_combined(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for id in (1, 2, 3):
                row = OutgoingQueueRow(id, f"DIRECT=OS:b\\q{id}", "b:1801", False, 7, 0, 1, 0)
                storage.batch.outgoing.add_queue(row)
            storage.batch.outgoing.set_next_numbers({1: 5, 3: 5})
            storage.batch.outgoing.set_sequence(1, 8, base=4, next_number=2)
            storage.batch.outgoing.set_sequence(2, 9, base=6, next_number=2)
            storage.batch.outgoing.set_next_numbers({2: 4, 3: 6})
            await durable(storage)

            rows = await storage.read(outgoing.list_queues)
            assert [(row.sequence_id, row.base, row.next_number) for row in rows] == [
                (8, 4, 2),
                (9, 6, 4),
                (7, 0, 6),
            ]

    asyncio.run(scenario())


def test_rows_are_written_before_units_and_insertions_before_deletions(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            purged = storage.batch.run(lambda db: messages.purge(db, 16, rows_max=10))
            storage.batch.delete_messages([key(2)])
            insert(storage, 1, 2)

            assert (await purged).messages == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("as_run", [True, False])
def test_new_rows_take_the_pages_of_those_deleted_in_the_same_commit(
    as_run: bool, folder: Path
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:

            def add(first: int) -> None:
                rows: list[messages.NewMessage] = [
                    (key(first + each), 1, None, None, bytes(1200)) for each in range(100)
                ]
                storage.batch.insert_messages(rows, 100 * 1200)

            def pages(db: sqlite3.Connection) -> int:
                (count,) = db.execute("PRAGMA page_count").fetchone()
                return int(count)

            add(0)
            before = await storage.batch.run(pages)
            if as_run:
                storage.batch.delete_messages(runs=[(key(0), key(99), 100 * 1200)])
            else:
                storage.batch.delete_messages([key(each) for each in range(100)])
            add(1000)
            assert await storage.batch.run(pages) <= before + 2

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [0, 50, 99])
def test_a_run_is_deleted_with_the_rows_that_the_same_commit_inserts(
    first: int, folder: Path
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, *range(first), *range(100, 200))
            await durable(storage)
            insert(storage, *range(first, 100))
            storage.batch.delete_messages(runs=[(key(0), key(99), 100 * len(PACKET))])
            await durable(storage)

            rows = await storage.read(lambda db: messages.page(db, 16))
            assert [row.key for row in rows] == [key(each) for each in range(100, 200)]
            assert not await storage.read(tally.differences)

    asyncio.run(scenario())


def test_a_new_copy_keeps_the_part_of_a_copy_deleted_in_the_same_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            part = 1, 4
            storage.batch.insert_shared_part(1, b"part")
            storage.batch.insert_message(key(1), PACKET, 1, part=part)
            storage.batch.outgoing.insert(message_key(7, 8, 1), PACKET, part=part)
            await durable(storage)

            storage.batch.delete_messages([key(1)])
            storage.batch.outgoing.delete([message_key(7, 8, 1)])
            insert(storage, 2)
            storage.batch.outgoing.insert(message_key(7, 8, 2), PACKET, part=part)
            await durable(storage)

            (row,) = await storage.read(lambda db: outgoing.page(db, 7))
            assert row.packet == PACKET + b"part"

            storage.batch.outgoing.delete([message_key(7, 8, 2)])
            storage.batch.insert_message(key(3), PACKET, 1, part=part)
            await durable(storage)
            storage.batch.delete_messages([key(3)])
            storage.batch.insert_message(key(4), PACKET, 1, part=part)
            insert(storage, 5)
            await durable(storage)

            found = await storage.read(lambda db: messages.page(db, 16))
            assert [row.packet for row in found] == [PACKET, PACKET + b"part", PACKET]

    asyncio.run(scenario())


def test_a_failed_unit_does_not_affect_other_units_and_rows(folder: Path) -> None:
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


def test_a_cancelled_caller_does_not_affect_the_batch(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            cancelled = storage.batch.run(lambda db: 1)
            failing = storage.batch.run(raise_error(ValueError()))
            cancelled.cancel()
            failing.cancel()

            assert await storage.batch.run(lambda db: 2) == 2

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


def test_too_many_waiting_acts_are_reported_as_congestion(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder, commit_rows_max=10, commit_bytes_max=1000) as storage:
            storage.batch.delete_messages(range(10))
            assert storage.pressure == 10
            assert storage.congested
            await durable(storage)
            assert not storage.congested

            storage.batch.insert_message(key(1), bytes(600), 1)
            assert not storage.congested
            storage.batch.outgoing.insert(key(1), bytes(400))
            assert storage.congested
            await durable(storage)
            assert not storage.congested

    asyncio.run(scenario())


def test_a_deferred_event_is_stored_before_the_storage_closes(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            batch = storage.batch
            batch.mention(Event(kind="transmitted", at_ms=1, source=SOURCE, numbers=[5]))
            await asyncio.sleep(0)
            assert batch.load.is_empty
            assert storage.batch is batch, "it was committed by itself"
        async with opened(folder) as storage:
            (block,) = await storage.read(lambda db: events.page(db, 0, 9))
            assert block.events[0].numbers == [5]

    asyncio.run(scenario())


def test_a_deferred_act_waits_as_long_as_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            monkeypatch.setattr(writer, "PATIENCE_S", 0.02)
            with storage.patience(True):
                insert(storage, 1)
            await durable(storage)  # the first leaves with another act, before its time
            monkeypatch.setattr(writer, "PATIENCE_S", 600.0)
            with storage.patience(True):
                insert(storage, 2)
            batch = storage.batch
            await asyncio.sleep(0.1)  # its timer was set for the first

            assert storage.batch is batch
            assert await stored(storage) == [key(1)]

    asyncio.run(scenario())
