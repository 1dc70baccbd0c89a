"""The tally: rows that vanish are noticed, and no change of the daemon itself counts as such."""

import asyncio
import random
import sqlite3
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from storage import Storage
from storage.tables import awaiting, delayed, events, messages, outgoing, pages, tally
from storage.tables.events import Event
from storage.tables.keys import OUTGOING_TRANSACTIONAL_LEVEL, level_range, message_key
from storage.tables.pages import Totals
from tests.unit.storage.support import (
    NOW_S,
    SOURCE,
    durable,
    insert,
    key,
    opened,
    other_connection,
)

REMOTE = 7  # an outgoing queue


def event(kind: str, *arrivals: int) -> Event:
    places = [key(arrival) & ((1 << 48) - 1) for arrival in arrivals]
    return Event(kind=kind, at_ms=1, source=SOURCE, numbers=list(arrivals), queue="orders",
                 places=places)  # fmt: skip


async def change(storage: Storage, chance: random.Random, arrival: int) -> None:
    """Make changes of every kind in one commit, some of rows that do not exist."""
    batch = storage.batch
    some = range(arrival, arrival + chance.randrange(1, 5))
    insert(storage, *some)
    for number in some:
        batch.outgoing.insert(message_key(REMOTE, 8, number), packet_of(number), confirm_by_s=9)
    older = [chance.randrange(1, arrival + 1) for _ in range(chance.randrange(3))]
    units: list[Callable[[sqlite3.Connection], object]] = [
        partial(messages.purge, queue_id=16, rows_max=2),
        partial(outgoing.release, first=message_key(REMOTE, 8, 3), last=message_key(REMOTE, 8, 9)),
        partial(messages.move, moves=[messages.Move(key(arrival), key(1000 + arrival))], at_ms=1),
        partial(events.insert, events=[event("started")]),
        partial(delayed.delete, numbers=older),
    ]
    batch.run(partial(delayed.add, rows=[delayed_row(number, chance) for number in some]))
    other = chance.randrange(REMOTE, REMOTE + 3)
    first = message_key(other, 8, 1000 + arrival)
    batch.outgoing.insert(first, packet_of(1000 + arrival), confirm_by_s=9)
    batch.outgoing.await_confirmation(
        awaiting.Arrived(other, chance.randrange(2), 0, first, first, NOW_S), lambda kept: []
    )
    batch.outgoing.delete_range(first, first)
    if chance.random() < 0.5:
        batch.mention(event("accepted", *some))
    match chance.randrange(6):
        case 0:
            batch.delete_messages([key(each) for each in {*older, arrival}])
        case 1:
            batch.outgoing.delete([message_key(REMOTE, 8, each) for each in set(older)])
        case 2:
            first = message_key(REMOTE, 8, chance.randrange(1, arrival + 1))
            batch.outgoing.delete_range(first, first + chance.randrange(3))
            batch.outgoing.delete_range(first, first + chance.randrange(2))  # they may overlap
        case 3:
            first, last = message_key(REMOTE, 8, arrival), message_key(REMOTE, 8, some[-1])
            arrived = awaiting.Arrived(REMOTE, 5, 0, first, last, NOW_S)
            batch.outgoing.await_confirmation(arrived, lambda kept: [event("awaiting")])
            batch.outgoing.delete_range(first, last)
        case 4:
            batch.outgoing.delete_awaiting([*older, *(1000 + each for each in older)])
        case _:
            failed = batch.run(partial(undone, unit=chance.choice(units)))
            done = batch.run(chance.choice(units))
            await done
            with pytest.raises(ValueError, match="undone"):
                await failed
    await durable(storage)


def undone(db: sqlite3.Connection, unit: Callable[[sqlite3.Connection], object]) -> None:
    unit(db)
    raise ValueError("undone")


def delayed_row(number: int, chance: random.Random) -> delayed.DelayedRow:
    queue = chance.choice(("orders", "others"))
    return delayed.DelayedRow(number, 0, 5, queue, chance.randrange(1, 9), "", 1, b"")


def packet_of(number: int) -> bytes:
    return bytes(56) + number.to_bytes(4, "little")


@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_the_storage_itself_is_a_difference(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "BLOCKS_MAX", 3)
    chance = random.Random(seed)

    async def scenario() -> None:
        arrival = 1
        for _ in range(4):
            async with opened(folder) as storage:
                for _ in range(12):
                    await change(storage, chance, arrival)
                    arrival += 5
                    if chance.random() < 0.2:
                        trim = partial(events.trim, size_max=0, before_ms=9, blocks_max=5)
                        await storage.batch.run(trim)
                    assert await storage.compare() == []
                    await storage.read(has_totals_of_rows)

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", [[], [1], [7, 8], range(1, 101)])
def test_a_run_of_deletions_counts_the_rows_that_are_there(
    folder: Path, missing: Sequence[int]
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, *range(1, 111))
            storage.batch.insert_shared_part(1, b"the end")
            for number in (200, 201):
                storage.batch.insert_message(key(number), b"head", 1, part=(1, 7))
            await durable(storage)
            (size,) = await storage.read(
                lambda db: db.execute(
                    "SELECT sum(length(packet)) FROM message WHERE key <= ?", (key(100),)
                ).fetchone()
            )
            storage.batch.delete_messages([key(each) for each in missing])
            await durable(storage)
            runs = [(key(1), key(100), size), (key(105), key(106), 0), (key(200), key(201), 22)]
            storage.batch.delete_messages(runs=runs)
            await durable(storage)

            left = await storage.read(lambda db: [row.key for row in messages.page(db, 16)])
            assert left == [key(each) for each in (*range(101, 105), *range(107, 111))]
            assert await storage.compare() == []
            await storage.read(has_totals_of_rows)
            count = "SELECT count(*) FROM shared_part"
            parts = await storage.read(lambda db: db.execute(count).fetchone())
            assert parts == (0,)

    asyncio.run(scenario())


def has_totals_of_rows(db: sqlite3.Connection) -> None:
    """Compare the totals that a start uses with the rows."""
    for queue_id, total in messages.totals_by_queue(db).items():
        assert total == messages.totals(db, queue_id)
    for queue_id, figures in outgoing.figures_by_queue(db).items():
        assert Totals(figures.rows, figures.bytes) == outgoing.totals(db, queue_id)
        first, last = level_range(queue_id, OUTGOING_TRANSACTIONAL_LEVEL)
        assert figures.transactional == pages.totals_between(db, "outgoing", first, last).messages
    counted = dict(db.execute("SELECT queue_id, count(*) FROM awaiting GROUP BY queue_id"))
    awaited = awaiting.totals_by_queue(db)
    assert {queue_id: total.messages for queue_id, total in awaited.items()} == counted
    for queue_id, total in awaited.items():
        (size,) = db.execute(
            "SELECT sum(length(packet)) FROM awaiting WHERE queue_id = ?", (queue_id,)
        ).fetchone()
        assert total.bytes == size
    sequences = db.execute("SELECT DISTINCT queue_id, sequence_id FROM awaiting")
    known = awaiting.sequences_by_queue(db)
    assert {(queue_id, int.from_bytes(each, "big")) for queue_id, each in sequences} <= set(known)
    rows = db.execute("SELECT queue, count(*), sum(bytes) FROM delayed GROUP BY queue")
    assert delayed.totals_by_queue(db) == {queue: Totals(*total) for queue, *total in rows}
    (rows,) = db.execute("SELECT count(*) FROM message").fetchone()
    assert rows == sum(total.messages for total in messages.totals_by_queue(db).values())


def test_single_deletions_are_counted_once_and_absent_rows_never(folder: Path) -> None:
    in_sequence, not_in_one = message_key(REMOTE, 8, 1), message_key(REMOTE, 5, 2)

    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1, 2)
            for each in (in_sequence, not_in_one):
                storage.batch.outgoing.insert(each, packet_of(1))
            await durable(storage)
            for row in (key(1), key(1), key(9)):
                storage.batch.delete_messages([row])
                await durable(storage)
                assert await storage.compare() == []
            for row in (in_sequence, in_sequence, not_in_one):
                storage.batch.outgoing.delete([row])
                await durable(storage)
                assert await storage.compare() == []
                await storage.read(has_totals_of_rows)

    asyncio.run(scenario())


def make_queue(db: sqlite3.Connection) -> None:
    columns = "id, name, key, label, transactional, journal, system, created_at_s, modified_at_s"
    db.execute(f"INSERT INTO queue ({columns}) VALUES (16, 'orders', 'orders', '', 0, 0, 0, 0, 0)")


@pytest.mark.parametrize("is_running", [False, True])
def test_a_deleted_row_is_noticed_and_named(folder: Path, *, is_running: bool) -> None:
    def delete() -> None:
        with other_connection(folder) as db:
            db.execute("DELETE FROM message WHERE key = ?", (key(3),))
        db.close()

    async def scenario() -> None:
        async with opened(folder) as storage:
            await storage.batch.run(make_queue)
            insert(storage, 1, 2, 3, 4)
            storage.batch.record(event("accepted", 1, 2, 3, 4))
            storage.batch.delete_messages([key(2)])
            storage.batch.record(event("received", 2))
            await durable(storage)
            before = await storage.foreign_commits()
            assert await storage.foreign_commits() == before
            if is_running:
                delete()
                assert await storage.foreign_commits() != before
                await found(storage)
        if not is_running:
            delete()
            async with opened(folder) as storage:
                await found(storage)

    async def found(storage: Storage) -> None:
        (each,) = await storage.compare()
        assert (each.queue, each.difference.rows) == ("orders", -1)
        assert [message.number for message in each.messages] == [3]
        await storage.batch.run(partial(tally.accept, found=[each.difference]))
        assert await storage.compare() == []

    asyncio.run(scenario())


def as_schema_41(db: sqlite3.Connection) -> None:
    """Count the messages that await confirmation together, as schema 41 did."""
    known = tally.expected(db)
    assert known is not None
    counts, whole = known.counts, tally.NONE
    for place in [place for place in counts if place >> 16 == tally.TABLES["awaiting"][0]]:
        whole = whole.plus(counts.pop(place))
    counts[tally.place_of("awaiting", 0)] = whole
    db.execute("DELETE FROM tally")
    db.execute("UPDATE event_block SET tally = NULL")
    (block,) = db.execute("SELECT max(id) FROM event_block").fetchone()
    rows = [(place, *figures, block) for place, figures in counts.items()]
    db.executemany("INSERT INTO tally (place, row_count, digest, bytes, transactional, block)"
                   " VALUES (?, ?, ?, ?, ?, ?)", rows)  # fmt: skip


@pytest.mark.parametrize("version", [40, 41])
@pytest.mark.parametrize("vanishes", [False, True])
def test_an_upgrade_counts_what_awaits_confirmation_by_queue(
    folder: Path, version: int, *, vanishes: bool
) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            for queue in (7, 8):
                first = message_key(queue, 8, queue)
                storage.batch.outgoing.insert(first, packet_of(queue), confirm_by_s=9)
                arrived = awaiting.Arrived(queue, 5, 0, first, first, NOW_S)
                storage.batch.outgoing.await_confirmation(arrived, lambda kept: [event("awaiting")])
                storage.batch.outgoing.delete_range(first, first)
            await durable(storage)
        with other_connection(folder) as db:
            as_schema_41(db)
            if version == 40:
                as_schema_40(db)
            if vanishes:
                db.execute("DELETE FROM awaiting WHERE number = 8")
        db.close()
        present = {7: Totals(1, 60)} if vanishes else {7: Totals(1, 60), 8: Totals(1, 60)}
        for _ in range(2):  # the second start has the figures of the first
            async with opened(folder) as storage:
                totals = await storage.read(awaiting.totals_by_queue)
                assert {queue: each for queue, each in totals.items() if queue} == present
                found = await storage.compare()
                assert [each.difference.rows for each in found] == ([-1] if vanishes else [])
        async with opened(folder) as storage:
            await storage.batch.run(
                partial(tally.accept, found=[each.difference for each in found])
            )
            assert await storage.compare() == []

    asyncio.run(scenario())


def test_an_exchanged_row_is_noticed(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1, 2)
            await durable(storage)
            with other_connection(folder) as db:
                db.execute("UPDATE message SET key = ? WHERE key = ?", (key(9), key(2)))
            db.close()
            (each,) = await storage.compare()
            assert (each.difference.rows, each.messages) == (0, [])

    asyncio.run(scenario())


def test_a_database_without_a_tally_gets_one(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1, 2)
            await durable(storage)
        with other_connection(folder) as db:
            db.execute("DELETE FROM counter WHERE name = ?", (tally.COUNTER,))
            db.execute("DELETE FROM message WHERE key = ?", (key(2),))
        db.close()
        async with opened(folder) as storage:
            assert await storage.compare() == []
            storage.batch.delete_messages([key(1)])
            await durable(storage)
            assert await storage.compare() == []

    asyncio.run(scenario())


def test_rows_that_vanish_before_an_upgrade_are_noticed_after_it(folder: Path) -> None:
    """Schema 40 had rows and digests only: the numbers stay, and bytes are counted once."""

    async def scenario() -> None:
        async with opened(folder) as storage:
            insert(storage, 1, 2, 3)
            await durable(storage)
        with other_connection(folder) as db:
            as_schema_40(db)
            db.execute("DELETE FROM message WHERE key = ?", (key(2),))
            (size,) = db.execute("SELECT sum(length(packet)) FROM message").fetchone()
        db.close()
        async with opened(folder) as storage:
            (each,) = await storage.compare()
            assert each.difference.figures == tally.Figures(-1, -key(2) & 0xFFFFFFFF, 0, 0)
            totals = await storage.read(messages.totals_by_queue)
            assert totals == {16: Totals(3, size)}
            await storage.batch.run(partial(tally.accept, found=[each.difference]))
        async with opened(folder) as storage:
            assert await storage.compare() == []

    asyncio.run(scenario())


def as_schema_40(db: sqlite3.Connection) -> None:
    """Make the tally what schema 40 had, with the same numbers."""
    known = tally.expected(db)
    assert known is not None
    db.execute("UPDATE counter SET name = ? WHERE name = ?", (tally.COUNTER_OF_ROWS, tally.COUNTER))
    entry = struct.Struct("<IQI")
    blocks = db.execute("SELECT id, tally FROM event_block WHERE tally IS NOT NULL").fetchall()
    for block, entries in blocks:
        counts = tally._ENTRY.iter_unpack(entries)
        older = b"".join(entry.pack(*each[:3]) for each in counts)
        db.execute("UPDATE event_block SET tally = ? WHERE id = ?", (older, block))
    db.execute("UPDATE tally SET bytes = 0, transactional = 0")
