import sqlite3
from zlib import crc32

from storage.tables import messages
from storage.tables.keys import lookup_id_of, message_key, queue_range
from storage.tables.messages import MessageRow
from storage.tables.pages import Totals

Q = 16


def put(db: sqlite3.Connection, *keys: int, size: int = 3) -> None:
    messages.insert(db, [(key, 5000, None, None, bytes(size)) for key in keys])


def keys_of(db: sqlite3.Connection) -> list[int]:
    return [key for (key,) in db.execute("SELECT key FROM message ORDER BY key")]


def test_a_stored_message_is_read_back(db: sqlite3.Connection) -> None:
    key = message_key(Q, 4, 1)
    messages.insert(db, [(key, 1_700_000_000_123, 1_700_000_060, "expired", b"packet")])

    assert messages.find(db, key) == MessageRow(
        key,
        1_700_000_000_123,
        1_700_000_060,
        "expired",
        0,
        0,
        None,
        crc32(b"packet"),
        None,
        None,
        b"packet",
    )
    assert messages.find(db, key + 1) is None


def test_a_page_is_in_the_order_of_receiving_and_continues_after_the_last_one(
    db: sqlite3.Connection,
) -> None:
    expected = [message_key(Q, level, arrival) for level in (0, 4, 7) for arrival in (1, 2, 3)]
    put(db, *reversed(expected))
    put(db, message_key(Q - 1, 15, 9), message_key(Q + 1, 0, 0))

    read: list[int] = []
    from_lookup = 0
    while rows := messages.page(db, Q, from_lookup, rows_max=2):
        read += [row.key for row in rows]
        from_lookup = lookup_id_of(rows[-1].key) + 1

    assert read == expected


def test_a_page_stops_at_its_limit_of_bytes_but_has_at_least_one_message(
    db: sqlite3.Connection,
) -> None:
    put(db, *(message_key(Q, 7, arrival) for arrival in range(5)), size=100)

    assert len(messages.page(db, Q, bytes_max=250)) == 3
    assert len(messages.page(db, Q, bytes_max=1)) == 1


def test_messages_are_deleted_singly_and_absent_ones_are_ignored(
    db: sqlite3.Connection,
) -> None:
    keys = [message_key(Q, 7, arrival) for arrival in range(6)]
    put(db, *keys)

    messages.delete(db, [keys[4], keys[1], message_key(Q, 7, 99)])

    assert keys_of(db) == [keys[0], keys[2], keys[3], keys[5]]


def test_the_first_keys_of_a_queue_are_read_without_its_neighbours(
    db: sqlite3.Connection,
) -> None:
    keys = [message_key(Q, level, 1) for level in (3, 5, 7)]
    put(db, *keys, message_key(Q - 1, 15, 9), message_key(Q + 1, 0, 0), size=10)

    assert messages.sizes(db, Q, rows_max=2) == [(key, 10) for key in keys[:2]]
    assert messages.sizes(db, Q, rows_max=9) == [(key, 10) for key in keys]


def test_a_purge_deletes_the_first_messages_and_returns_their_number(
    db: sqlite3.Connection,
) -> None:
    keys = [message_key(Q, 7, arrival) for arrival in range(5)]
    neighbours = [message_key(Q - 1, 15, 2**44 - 1), message_key(Q + 1, 0, 0)]
    put(db, *keys, *neighbours, size=10)

    assert messages.purge(db, Q, rows_max=2) == Totals(2, 20)
    assert keys_of(db) == sorted(keys[2:] + neighbours)
    assert messages.purge(db, Q, rows_max=3) == Totals(3, 30)
    assert messages.purge(db, Q, rows_max=3) == Totals(0, 0)
    assert keys_of(db) == neighbours


def test_totals_count_messages_and_bytes_of_packets(db: sqlite3.Connection) -> None:
    put(db, *(message_key(Q, 7, arrival) for arrival in range(3)), size=1000)
    put(db, message_key(Q, 3, 5), message_key(Q + 1, 0, 0), size=20_000)

    assert messages.totals(db, Q) == Totals(4, 23_000)
    assert messages.totals(db, Q - 1) == Totals(0, 0)


def test_reading_a_page_seeks_and_does_not_scan(db: sqlite3.Connection) -> None:
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT key FROM message WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 5",
        queue_range(Q),
    ).fetchall()

    assert [row[3] for row in plan] == [
        "SEARCH message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
    ]


def test_each_abort_of_a_transaction_that_had_a_message_is_counted(db: sqlite3.Connection) -> None:
    had, other = message_key(Q, 4, 1), message_key(Q, 4, 2)
    put(db, had, other)

    messages.count_abort(db, [had])
    messages.count_abort(db, [had])

    counted = db.execute("SELECT abort_count FROM message ORDER BY key").fetchall()
    assert counted == [(2,), (0,)]
