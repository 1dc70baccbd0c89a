"""The choice of messages for a reader, and their positions."""

from __future__ import annotations

import random
import sqlite3

import pytest

from storage.tables import messages, reservations
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_MASK, message_key

QUEUE, READER = 16, 3
NOW_S = 1000


def rows_of(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return positions and keys of all reservations."""
    mask = reservations.POSITION_MAX
    return db.execute(f"SELECT id & {mask}, key FROM reservation ORDER BY id").fetchall()


@pytest.fixture
def reader(db: sqlite3.Connection) -> int:
    db.execute(
        "INSERT INTO reader_queue (id, reader_id, queue_id, queue, shared, position, next_number,"
        " arrival, reserved_at_s, consumed_messages, consumed_bytes)"
        " VALUES (?, 1, ?, zeroblob(16), 0, 0, 1, 0, 0, 0, 0)",
        (READER, QUEUE),
    )
    return READER


def insert(db: sqlite3.Connection, keys: list[int]) -> None:
    messages.insert(db, [(key, 0, None, None, b"packet") for key in keys])


@pytest.mark.parametrize("seed", range(40))
def test_a_choice_takes_the_next_messages_that_are_free_and_fit(
    db: sqlite3.Connection, seed: int
) -> None:
    draw = random.Random(seed)
    levels = draw.choice([[7], [7, 3]])
    expires = [None] * 300 + draw.choice([[], [0], [NOW_S - 1, NOW_S]])
    rows = [
        (
            message_key(QUEUE, draw.choice(levels), at),
            10 * at,
            draw.choice(expires),
            None,
            bytes(draw.randint(1, 9)),
        )
        for at in range(1, 1000)
    ]
    messages.insert(db, rows)
    busy = {row[0] & LOOKUP_MASK for row in rows if draw.random() < draw.choice([0, 0.002])}
    stop_at_busy = draw.random() < 0.5
    rows_max, bytes_max = draw.choice([1, 256, 300, 999]), draw.choice([1, 700, 9999])
    after, until_ms = draw.randint(0, 300), draw.choice([None, 5000])
    wanted, size, stop = list[tuple[int, int]](), 0, None
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
            wanted.append((key, len(packet)))
            size += len(packet)

    found = reservations.choose(
        db,
        QUEUE,
        after=after,
        until=ARRIVAL_MAX,
        busy=busy,
        stop_at_busy=stop_at_busy,
        until_ms=until_ms,
        now_s=NOW_S,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )

    assert list(zip(found.keys, found.sizes, strict=True)) == wanted
    assert found.stop == stop


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("missing", [[], [0], [4], [9], list(range(10))])
def test_messages_that_exist_get_the_next_positions(
    db: sqlite3.Connection, reader: int, step: int, missing: list[int]
) -> None:
    keys = [message_key(QUEUE, 7, at) for at in range(1, 1 + 10 * step, step)]
    there = [key for index, key in enumerate(keys) if index not in missing]
    insert(db, there)
    others = [message_key(QUEUE, 7, at) for at in (100, 101)]
    insert(db, others)
    reservations.reserve(db, reader, others, at_s=1, arrival=None)

    first, found = reservations.reserve(db, reader, keys, at_s=1, arrival=None)

    assert (first, found) == (3, there)
    assert rows_of(db) == list(enumerate(others + there, 1))


def test_positions_follow_the_order_of_arrival_for_all_priorities(
    db: sqlite3.Connection, reader: int
) -> None:
    keys = [message_key(QUEUE, level, at) for at, level in enumerate([7, 3, 3, 7], 1)]
    insert(db, keys)

    assert reservations.reserve(db, reader, keys, at_s=1, arrival=None) == (1, keys)
    assert rows_of(db) == list(enumerate(keys, 1))


def test_the_keys_of_a_range_are_read_in_pages(db: sqlite3.Connection, reader: int) -> None:
    keys = [message_key(QUEUE, 7, at) for at in range(1, 6)]
    insert(db, keys)
    reservations.reserve(db, reader, keys, at_s=1, arrival=None)

    def page(after: int, until: int) -> tuple[list[int], int]:
        return reservations.held_keys(db, reader, after, until, rows_max=3)

    assert page(0, 5) == (keys[:3], 3)
    assert page(3, 5) == (keys[3:], 5)
    assert page(1, 2) == (keys[1:2], 2)
    assert page(5, 9) == ([], 5)
