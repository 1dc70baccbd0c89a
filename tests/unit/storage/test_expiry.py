import sqlite3

import pytest

from storage.tables import messages, outgoing
from storage.tables.expiry import expired_messages, expired_outgoing, next_expiry
from storage.tables.keys import message_key


def put_message(db: sqlite3.Connection, arrival: int, expires_at_s: int | None) -> int:
    key = message_key(16, 7, arrival)
    messages.insert(db, [(key, 0, expires_at_s, None, bytes(100))])
    return key


def put_outgoing(db: sqlite3.Connection, arrival: int, expires_at_s: int | None) -> int:
    key = message_key(1, 8, arrival)
    outgoing.insert(db, [(key, expires_at_s, bytes(100), None, False)])
    return key


def test_a_message_expires_when_its_last_second_is_over(db: sqlite3.Connection) -> None:
    message, sent = put_message(db, 1, 50), put_outgoing(db, 1, 50)

    assert expired_messages(db, 50, rows_max=10) == []
    assert expired_outgoing(db, 50, rows_max=10) == []
    assert [row.key for row in expired_messages(db, 51, rows_max=10)] == [message]
    assert [row.key for row in expired_outgoing(db, 51, rows_max=10)] == [sent]


def test_the_first_to_expire_come_first_and_in_bounded_pieces(db: sqlite3.Connection) -> None:
    keys = {at_s: put_message(db, at_s, at_s) for at_s in (30, 10, 40, 20)}
    put_message(db, 99, None)

    assert expired_messages(db, 99, rows_max=2) == [(keys[10], 100), (keys[20], 100)]
    assert len(expired_messages(db, 99, rows_max=10)) == 4


def test_the_next_expiry_is_the_earliest_of_both_tables(db: sqlite3.Connection) -> None:
    assert next_expiry(db) is None

    put_message(db, 1, None)
    put_outgoing(db, 2, None)
    assert next_expiry(db) is None

    put_message(db, 2, 70)
    assert next_expiry(db) == 70
    put_outgoing(db, 1, 60)
    assert next_expiry(db) == 60


@pytest.mark.parametrize("table", ["message", "outgoing"])
def test_looking_for_expired_rows_reads_the_index_and_not_the_packets(
    db: sqlite3.Connection, table: str
) -> None:
    def plan(query: str) -> str:
        return " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}"))

    expired = plan(f"SELECT key FROM {table} WHERE expires_at_s < 5 ORDER BY expires_at_s LIMIT 9")
    earliest = plan(f"SELECT min(expires_at_s) FROM {table} WHERE expires_at_s IS NOT NULL")

    assert expired == f"SEARCH {table} USING COVERING INDEX {table}_expiry (expires_at_s<?)"
    assert earliest.endswith(f"USING COVERING INDEX {table}_expiry (expires_at_s>?)")
