import sqlite3

import pytest

from storage import NoSuchQueue, QueueExists, SystemQueue, TooManyQueues
from storage.tables import counters, messages, queues, sequences
from storage.tables.keys import QUEUE_ID_MAX, message_key
from storage.tables.pages import Totals
from storage.tables.queues import FIRST_USER_QUEUE_ID, QueueRow
from tests.unit.storage.support import NOW_S, SOURCE


def create(db: sqlite3.Connection, name: str, *, transactional: bool = True) -> QueueRow:
    return queues.create(db, name=name, transactional=transactional, now_s=7)


def test_system_queues_exist_from_the_start(db: sqlite3.Connection) -> None:
    assert [(row.id, row.name, row.transactional) for row in queues.list_all(db)] == [
        (1, "system$;journal", False),
        (2, "system$;deadletter", False),
        (3, "system$;deadxact", True),
        (4, "private$\\order_queue$", False),
    ]
    assert all(row.system and row.created_at_s == NOW_S for row in queues.list_all(db))


def test_a_queue_is_created_and_found_by_any_spelling(db: sqlite3.Connection) -> None:
    created = queues.create(
        db,
        name="private$\\Orders",
        transactional=True,
        now_s=7,
        label="all orders",
        journal=True,
        quota_bytes=10,
        journal_quota_bytes=20,
    )

    assert created == QueueRow(
        16, "private$\\Orders", "all orders", True, True, 10, 20, False, 7, 7
    )
    assert queues.find(db, "PRIVATE$\\ORDERS") == created
    assert queues.get(db, 16) == created
    assert queues.find(db, "private$\\order") is None


def test_a_second_queue_with_the_same_name_is_refused(db: sqlite3.Connection) -> None:
    create(db, "private$\\orders")

    with pytest.raises(QueueExists, match="Orders"):
        create(db, "private$\\Orders")
    with pytest.raises(QueueExists):
        create(db, "SYSTEM$;DEADXACT")


def test_properties_can_be_changed_and_the_kind_of_a_queue_cannot(db: sqlite3.Connection) -> None:
    queue = create(db, "private$\\orders")

    changed = queues.change(
        db, queue.id, label="x", journal=True, quota_bytes=1, journal_quota_bytes=None, now_s=9
    )

    assert changed == queue._replace(label="x", journal=True, quota_bytes=1, modified_at_s=9)
    assert queues.find(db, queue.name) == changed
    for column, value in (("transactional", 0), ("name", "y"), ("id", 99)):
        with pytest.raises(sqlite3.IntegrityError, match="fixed for life"):
            db.execute(f"UPDATE queue SET {column} = ? WHERE id = ?", (value, queue.id))
    with pytest.raises(NoSuchQueue):
        queues.change(
            db, 99, label="", journal=False, quota_bytes=None, journal_quota_bytes=None, now_s=9
        )


def test_deleting_a_queue_deletes_only_its_messages(db: sqlite3.Connection) -> None:
    orders, bills = create(db, "private$\\orders"), create(db, "private$\\bills")
    for queue in (orders, bills):
        messages.insert(db, [(message_key(queue.id, 7, n), 0, None, None, b"123") for n in (1, 2)])

    assert queues.delete(db, orders.id) == Totals(2, 6)

    assert queues.find(db, orders.name) is None
    assert messages.totals(db, orders.id) == Totals(0, 0)
    assert messages.totals(db, bills.id) == Totals(2, 6)
    with pytest.raises(NoSuchQueue):
        queues.delete(db, orders.id)


def test_a_system_queue_cannot_be_deleted(db: sqlite3.Connection) -> None:
    with pytest.raises(SystemQueue, match="deadxact"):
        queues.delete(db, queues.TRANSACTIONAL_DEAD_LETTER_ID)


def test_the_id_of_a_deleted_queue_is_not_reused_at_once(db: sqlite3.Connection) -> None:
    orders = create(db, "private$\\orders")
    queues.delete(db, orders.id)

    assert create(db, "private$\\orders").id == orders.id + 1


def test_after_a_round_only_unreferenced_ids_are_reused(
    db: sqlite3.Connection,
) -> None:
    kept, sequence, message, free = (create(db, f"private$\\{n}").id for n in range(4))
    for queue_id in (sequence, message, free):
        queues.delete(db, queue_id)
    sequences.add(db, [(1, SOURCE, sequence, b"", 0, "", "")])
    messages.insert(db, [(message_key(message, 7, 1), 0, None, None, b"left behind")])
    counters.set_following(db, "queue_id", QUEUE_ID_MAX)

    assert create(db, "private$\\last").id == QUEUE_ID_MAX
    assert create(db, "private$\\first again").id == free
    assert {kept, sequence, message, free} == set(
        range(FIRST_USER_QUEUE_ID, FIRST_USER_QUEUE_ID + 4)
    )


def test_when_all_ids_are_taken_the_next_queue_is_refused(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "QUEUE_ID_MAX", 17)
    create(db, "private$\\a")
    create(db, "private$\\b")

    with pytest.raises(TooManyQueues, match="at most 2"):
        create(db, "private$\\c")


def test_sequences_of_a_deleted_queue_do_not_block_its_id(db: sqlite3.Connection) -> None:
    former, other = create(db, "private$\\former"), create(db, "private$\\other")
    sequences.add(
        db, [(1, SOURCE, former.id, b"", 0, "", ""), (2, SOURCE, other.id, b"", 0, "", "")]
    )
    for queue in (former, other):
        queues.delete(db, queue.id)
    counters.set_following(db, "queue_id", former.id)

    next_one = create(db, "private$\\next")
    again = create(db, "private$\\former")

    assert next_one.id == former.id
    assert sequences.of_queue(db, next_one.id) == []
    assert [row.id for row in sequences.of_queue(db, again.id)] == [1]


def test_the_last_free_id_is_found_at_any_position(db: sqlite3.Connection) -> None:
    first = create(db, "private$\\first")
    db.executemany(
        "INSERT INTO queue (id, name, key, label, transactional, journal, system, created_at_s,"
        " modified_at_s) VALUES (?1, ?2, ?2, '', 0, 0, 0, 0, 0)",
        [(id_, f"q{id_}") for id_ in range(first.id + 1, QUEUE_ID_MAX + 1) if id_ != 20_000],
    )

    for following in (17, 19_999, 20_000, 20_001, QUEUE_ID_MAX, QUEUE_ID_MAX + 1):
        counters.set_following(db, "queue_id", following)
        assert create(db, "private$\\last").id == 20_000
        with pytest.raises(TooManyQueues):
            create(db, "private$\\one too many")
        queues.delete(db, 20_000)
