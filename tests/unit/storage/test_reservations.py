"""The choice of messages for a reader, and their positions."""

from __future__ import annotations

import random
import sqlite3

import pytest

from storage.engine import schema
from storage.tables import messages, reservations
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_MASK, message_key
from storage.tables.reservation_choice import Limits, choose
from storage.tables.runs import POSITION_BITS, POSITION_MAX, HeldRun, Run, held_runs, runs_of

QUEUE, READER, OTHER = 16, 3, 4
NOW_S = 1000


def rows_of(db: sqlite3.Connection, reader: int = READER) -> list[tuple[int, int]]:
    """Return positions and keys of all reserved messages."""
    rows = db.execute(
        "SELECT id, key, messages FROM reservation WHERE id >> ? = ? ORDER BY id",
        (POSITION_BITS, reader),
    )
    return [
        ((id & POSITION_MAX) - back, key - back)
        for id, key, count in rows
        for back in reversed(range(count))
    ]


def count_of_rows(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM reservation").fetchone()[0])


@pytest.fixture
def reader(db: sqlite3.Connection) -> int:
    for each in (READER, OTHER):
        db.execute(
            "INSERT INTO reader_queue (id, reader_id, queue_id, queue, shared, position,"
            " next_number, arrival, reserved_at_s, consumed_messages, consumed_bytes)"
            " VALUES (?, ?, ?, zeroblob(16), 0, 0, 1, 0, 0, 0, 0)",
            (each, each, QUEUE),
        )
    return READER


def insert(db: sqlite3.Connection, keys: list[int]) -> None:
    messages.insert(db, [(key, 0, None, None, b"packet") for key in keys])


def reserve(db: sqlite3.Connection, reader: int, keys: list[int]) -> reservations.Reserved:
    return reservations.reserve(db, reader, runs_of(keys), at_s=1, arrival=None)


class BusySet(set[int]):
    """Busy lookup ids, as a set."""

    def touches(self, first: int, last: int) -> bool:
        return any(first <= each <= last for each in self)

    def first_free(self, lookup_id: int) -> int:
        while lookup_id in self:
            lookup_id += 1
        return lookup_id


@pytest.mark.parametrize("seed", range(60))
def test_a_choice_takes_the_next_messages_that_are_free_and_fit(
    db: sqlite3.Connection, seed: int
) -> None:
    draw = random.Random(seed)
    levels = draw.choice([[7], [7], [7, 3]])
    expires = [None] * 300 + draw.choice([[], [0], [NOW_S - 1, NOW_S]])
    gaps = draw.choice([0.0, 0.0, 0.3])
    rows = [
        (
            message_key(QUEUE, draw.choice(levels), at),
            10 * at,
            draw.choice(expires),
            None,
            bytes(draw.randint(1, 9)),
        )
        for at in range(1, 6000)
        if draw.random() >= gaps
    ]
    messages.insert(db, rows)
    share = draw.choice([0, 0.002, 0.9])
    busy = BusySet(row[0] & LOOKUP_MASK for row in rows if draw.random() < share)
    stop_at_busy = draw.random() < 0.5
    rows_max = draw.choice([1, 256, 300, 999, 2048, 2049, 5000])
    bytes_max = draw.choice([1, 700, 9999, 99_999])
    after, until_ms = draw.randint(0, 300), draw.choice([None, 5000])
    wanted, size, stop = list[int](), 0, None
    for key, at_ms, expires_at_s, _, packet in rows:
        if key & ARRIVAL_MAX <= after or (until_ms is not None and at_ms > until_ms):
            continue
        if len(wanted) == rows_max:
            break
        if key & LOOKUP_MASK in busy:
            if stop_at_busy:
                stop = key
                break
        elif expires_at_s is None or expires_at_s >= NOW_S:
            if wanted and size + len(packet) > bytes_max:
                break
            wanted.append(key)
            size += len(packet)
    sizes = {row[0]: len(row[-1]) for row in rows}

    for with_sizes in (False, True):
        found = choose(
            db,
            QUEUE,
            Limits(rows_max, bytes_max, NOW_S, until_ms, stop_at_busy=stop_at_busy),
            busy,
            after=after,
            until=ARRIVAL_MAX,
            with_sizes=with_sizes,
        )

        assert found.runs == runs_of(wanted)
        assert (found.messages, found.bytes, found.stop) == (len(wanted), size, stop)
        assert found.sizes == ({key: sizes[key] for key in wanted} if with_sizes else None)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("missing", [[], [0], [4], [9], list(range(10))])
@pytest.mark.parametrize("count", [10, 200])
def test_messages_that_exist_get_the_next_positions(
    db: sqlite3.Connection, reader: int, step: int, missing: list[int], count: int
) -> None:
    keys = [message_key(QUEUE, 7, at) for at in range(1, 1 + count * step, step)]
    there = [key for index, key in enumerate(keys) if index not in missing]
    insert(db, there)
    others = [message_key(QUEUE, 7, at) for at in (1000, 1001)]
    insert(db, others)
    reserve(db, reader, others)

    found = reserve(db, reader, keys)

    assert (found.position, found.runs) == (3, runs_of(there))
    assert found.missing == runs_of(keys[index] for index in missing)
    assert rows_of(db) == list(enumerate(others + there, 1))
    assert count_of_rows(db) == len(runs_of(others)) + len(runs_of(there))


def test_positions_follow_the_order_of_arrival_for_all_priorities(
    db: sqlite3.Connection, reader: int
) -> None:
    keys = [message_key(QUEUE, level, at) for at, level in enumerate([7, 3, 3, 7], 1)]
    insert(db, keys)

    assert reserve(db, reader, keys).position == 1
    assert rows_of(db) == list(enumerate(keys, 1))
    assert count_of_rows(db) == 3


def arrangement(db: sqlite3.Connection, draw: random.Random) -> list[int]:
    """Insert and reserve messages of two priorities, with gaps, in the order of arrival; return
    their keys by position."""
    levels = [draw.choice([7, 7, 7, 3]) for _ in range(30)]
    keys = [
        message_key(QUEUE, level, arrival)
        for place, level in enumerate(levels)
        for arrival in range(10 * place, 10 * place + draw.choice([1, 3, 10]))
    ]
    insert(db, keys)
    for first in range(0, len(keys), 40):
        reserve(db, READER, keys[first : first + 40])
    return keys


@pytest.mark.parametrize("seed", range(40))
def test_a_range_is_what_single_reservations_would_be(
    db: sqlite3.Connection, reader: int, seed: int
) -> None:
    """Its runs, its pages and its figures, also when messages of it are gone."""
    draw = random.Random(seed)
    keys = arrangement(db, draw)
    insert(db, others := [message_key(QUEUE, 7, 5000)])
    reserve(db, OTHER, others)
    gone = set(draw.sample(keys, draw.choice([0, 0, 1, 20, len(keys)])))
    messages.delete(db, list(gone))
    after = draw.randrange(len(keys) + 1)
    until = draw.randint(after, len(keys))
    wanted = list(enumerate(keys, 1))[after:until]

    runs = held_runs(db, reader, after, until)
    assert [
        (run.position + at, run.first + at) for run in runs for at in range(run.messages)
    ] == wanted
    assert held_runs(db, reader, after, until, runs_max=2) == runs[:2]

    rows_max, bytes_max = draw.choice([1, 7, 1000]), draw.choice([1, 40, 10_000])
    at, read, missing = after, list[int](), list[int]()
    while at < until:
        page = reservations.held_page(db, reader, at, until, rows_max=rows_max, bytes_max=bytes_max)
        assert len(page.keys) <= rows_max
        assert sum(map(len, page.packets[:-1])) < bytes_max
        assert at < page.end <= until
        read += page.keys
        missing += [key for run in page.gone for key in range(run.first, run.last + 1)]
        assert sorted(read + missing) == sorted(keys[after : page.end])
        at = page.end
    assert read == [key for _, key in wanted if key not in gone]
    assert missing == [key for _, key in wanted if key in gone]

    measured = reservations.measure(db, reader, after, rows_max=rows_max, bytes_max=0)
    count = min(rows_max, len(keys) - after)
    there = [key for key in keys[after : after + count] if key not in gone]
    assert measured == (after + count, count, 6 * len(there), after + count < len(keys))


@pytest.mark.parametrize("seed", range(40))
def test_ranges_are_consumed_in_pieces(db: sqlite3.Connection, reader: int, seed: int) -> None:
    draw = random.Random(seed)
    keys = arrangement(db, draw)
    insert(db, others := [message_key(QUEUE, 7, 5000), message_key(QUEUE, 7, 5001)])
    reserve(db, OTHER, others)
    position = 0
    while position < len(keys):
        position = min(position + draw.randint(1, 25), len(keys))
        reservations.consumed(db, reader, position, 1, 1)
        assert rows_of(db) == list(enumerate(keys, 1))[position:]
        reservations.consumed(db, reader, position - 1, 0, 0)  # has no effect
        assert rows_of(db) == list(enumerate(keys, 1))[position:]
    assert rows_of(db, OTHER) == list(enumerate(others, 1))
    found = db.execute("SELECT position, next_number FROM reader_queue WHERE id = ?", (reader,))
    assert found.fetchone() == (len(keys), len(keys) + 1)


def test_a_limit_of_bytes_ends_a_range_within_a_run(db: sqlite3.Connection, reader: int) -> None:
    keys = [message_key(QUEUE, 7, at) for at in range(1, 11)]
    insert(db, keys)
    reserve(db, reader, keys)
    messages.delete(db, keys[1:2])

    def measured(after: int, bytes_max: int, **how: bool) -> tuple[int, int, int, bool]:
        return reservations.measure(db, reader, after, rows_max=100, bytes_max=bytes_max, **how)

    assert measured(0, 12) == (3, 3, 12, True)  # the second one is gone
    assert measured(0, 1) == (1, 1, 6, True)
    assert measured(0, 1, one_always=False) == (0, 0, 0, True)
    assert measured(4, 1000) == (10, 6, 36, False)


def test_all_runs_are_restored(db: sqlite3.Connection, reader: int) -> None:
    keys = [message_key(QUEUE, 7, at) for at in (1, 2, 3, 7)]
    insert(db, keys)
    reserve(db, reader, keys)
    reserve(db, OTHER, keys[1:2])
    assert reservations.runs(db) == [
        (READER, Run(keys[0], keys[2])),
        (READER, Run(keys[3], keys[3])),
        (OTHER, Run(keys[1], keys[1])),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_single_reservations_become_runs(seed: int) -> None:
    draw = random.Random(seed)
    migration = schema.read_migrations()[44 - schema.FIRST_VERSION - 1]
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE reservation (id INTEGER PRIMARY KEY, key INTEGER NOT NULL)")
    rows: dict[int, list[tuple[int, int]]] = {}
    for each in (READER, OTHER):
        position, key = draw.choice([0, 17, POSITION_MAX - 400]), message_key(QUEUE, 7, 500)
        rows[each] = []
        for _ in range(draw.choice([0, 1, 200])):
            position += 1
            key += draw.choice([1, 1, 1, 1, 2, -150])
            if draw.random() < 0.95:  # a rescue may have lost others
                rows[each].append((position, key))
        db.executemany(
            "INSERT INTO reservation VALUES (?, ?)",
            [(each << POSITION_BITS | at, key) for at, key in rows[each]],
        )

    db.executescript(f"BEGIN IMMEDIATE; {migration.script} COMMIT;")

    assert {each: rows_of(db, each) for each in rows} == rows
    runs = sum(
        not index or (at - 1, key - 1) != found[index - 1]
        for found in rows.values()
        for index, (at, key) in enumerate(found)
    )
    assert count_of_rows(db) == runs
    db.close()


def test_the_held_runs_of_a_range_are_cut_at_its_ends(db: sqlite3.Connection, reader: int) -> None:
    keys = [message_key(QUEUE, 7, at) for at in range(1, 11)]
    insert(db, keys)
    reserve(db, reader, keys)
    assert held_runs(db, reader, 2, 5) == [HeldRun(3, keys[2], keys[4])]
    assert held_runs(db, reader, 10, 10) == []
    assert held_runs(db, reader, 5, 5) == []
