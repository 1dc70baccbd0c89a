"""Table `queue`: the queues of this queue manager.

Ids 1 to 15 are system queues, fixed; users' queues begin at 16.  A new queue gets the next id after
the last assigned one, wrapping around at 15 bits, and never one that a queue, a message or an
incoming sequence still refers to.  The sequences of a deleted queue hold only its name, so that its
id is free, and they are not mistaken for those of the next queue with that id.
"""

import sqlite3
from typing import Any, NamedTuple

from storage.errors import NoSuchQueue, QueueExists, SystemQueue, TooManyQueues
from storage.tables import access, counters, messages, retries, sequences
from storage.tables.keys import QUEUE_ID_MAX, queue_range
from storage.tables.pages import Totals

JOURNAL_ID = 1
DEAD_LETTER_ID = 2
TRANSACTIONAL_DEAD_LETTER_ID = 3
ORDER_QUEUE_ID = 4  # [MS-MQQB] 3.1.7.17 addresses it by this number
FIRST_USER_QUEUE_ID = 16

_SYSTEM_QUEUES = (
    (JOURNAL_ID, "system$;journal", False),
    (DEAD_LETTER_ID, "system$;deadletter", False),
    (TRANSACTIONAL_DEAD_LETTER_ID, "system$;deadxact", True),
    (ORDER_QUEUE_ID, "private$\\order_queue$", False),
)


class QueueRow(NamedTuple):
    id: int
    name: str
    label: str
    transactional: bool
    journal: bool
    quota_bytes: int | None
    journal_quota_bytes: int | None
    system: bool
    created_at_s: int
    modified_at_s: int
    parent_id: int | None = None  # of a subqueue or journal: its parent queue
    directory_guid: bytes | None = None  # of a public queue: its object in the directory
    authenticate: bool = False  # it takes signed messages only
    privacy: int = 1  # 0: no encrypted messages, 1: both, 2: encrypted messages only
    grouped: bool = False  # the messages of a group go to one reader at a time


COLUMNS = ", ".join(QueueRow._fields)


def create(
    db: sqlite3.Connection,
    *,
    name: str,
    transactional: bool,
    now_s: int,
    label: str = "",
    journal: bool = False,
    quota_bytes: int | None = None,
    journal_quota_bytes: int | None = None,
    parent_id: int | None = None,
    directory_guid: bytes | None = None,
    authenticate: bool = False,
    privacy: int = 1,
    grouped: bool = False,
) -> QueueRow:
    """Create a queue with a path such as `private$\\orders`; `parent_id` for a subqueue or journal.

    Raises QueueExists, TooManyQueues, and NoSuchQueue if the parent does not exist.
    """
    if find(db, name) is not None:
        raise QueueExists(name)
    if parent_id is not None:
        get(db, parent_id)
    row = QueueRow(
        _free_id(db),
        name,
        label,
        transactional,
        journal,
        quota_bytes,
        journal_quota_bytes,
        system=False,
        created_at_s=now_s,
        modified_at_s=now_s,
        parent_id=parent_id,
        directory_guid=directory_guid,
        authenticate=authenticate,
        privacy=privacy,
        grouped=grouped,
    )
    _insert(db, row)
    sequences.take_over(db, row.name, row.id)
    return row


def create_journal(db: sqlite3.Connection, parent: QueueRow, now_s: int) -> QueueRow:
    """Return the journal of a queue, and create it if there is none.  Raises TooManyQueues."""
    name = f"{parent.name};journal"
    return find(db, name) or create(
        db, name=name, transactional=parent.transactional, now_s=now_s, parent_id=parent.id
    )


def create_system_queues(db: sqlite3.Connection, now_s: int) -> None:
    for queue_id, name, transactional in _SYSTEM_QUEUES:
        _insert(
            db, QueueRow(queue_id, name, "", transactional, False, None, None, True, now_s, now_s)
        )


def find(db: sqlite3.Connection, name: str) -> QueueRow | None:
    """Return the queue of that name, case-insensitive; None if there is none."""
    row = db.execute(f"SELECT {COLUMNS} FROM queue WHERE key = ?", (name.casefold(),)).fetchone()
    return None if row is None else _queue(row)


def get(db: sqlite3.Connection, queue_id: int) -> QueueRow:
    """Return a queue.  Raises NoSuchQueue."""
    row = db.execute(f"SELECT {COLUMNS} FROM queue WHERE id = ?", (queue_id,)).fetchone()
    if row is None:
        raise NoSuchQueue(queue_id)
    return _queue(row)


def list_all(db: sqlite3.Connection) -> list[QueueRow]:
    """Return all queues by id: system queues first."""
    return list(map(_queue, db.execute(f"SELECT {COLUMNS} FROM queue ORDER BY id")))


def change(
    db: sqlite3.Connection,
    queue_id: int,
    *,
    label: str,
    journal: bool,
    quota_bytes: int | None,
    journal_quota_bytes: int | None,
    now_s: int,
    authenticate: bool = False,
    privacy: int = 1,
    grouped: bool = False,
) -> QueueRow:
    """Set all properties of a queue that can be changed.  Raises NoSuchQueue."""
    db.execute(
        "UPDATE queue SET label = ?, journal = ?, quota_bytes = ?, journal_quota_bytes = ?,"
        " authenticate = ?, privacy = ?, grouped = ?, modified_at_s = ? WHERE id = ?",
        (
            *(label, journal, quota_bytes, journal_quota_bytes),
            *(authenticate, privacy, grouped, now_s, queue_id),
        ),
    )
    return get(db, queue_id)


def delete(db: sqlite3.Connection, queue_id: int) -> Totals:
    """Delete the queue, its subqueues and its journal; return the totals of their messages.

    Raises NoSuchQueue, SystemQueue.

    Empty a long queue by `messages.purge` first: all other changes wait for the writer.  Its
    incoming sequences stay until `sequences.forget`, because messages for it may be in transit: the
    next queue of that name takes them over.
    """
    row = get(db, queue_id)
    if row.system:
        raise SystemQueue(row.name)
    children = db.execute("SELECT id FROM queue WHERE parent_id = ?", (queue_id,)).fetchall()
    deleted = [messages.delete_all(db, each) for each in (queue_id, *(id_ for (id_,) in children))]
    db.execute("DELETE FROM queue WHERE id = :id OR parent_id = :id", {"id": queue_id})
    retries.remove_policy(db, queue_id)
    sequences.leave(db, row.name, queue_id)
    access.forget(db, row.name.casefold())
    return Totals(sum(each.messages for each in deleted), sum(each.bytes for each in deleted))


def _free_id(db: sqlite3.Connection) -> int:
    following = max(counters.following(db, "queue_id"), FIRST_USER_QUEUE_ID)
    for first, last in ((following, QUEUE_ID_MAX), (FIRST_USER_QUEUE_ID, following - 1)):
        queue_id = _gap(db, first, last)
        while queue_id is not None:
            if not _is_named(db, queue_id):
                counters.set_following(db, "queue_id", queue_id + 1)
                return queue_id
            queue_id = _gap(db, queue_id + 1, last)
    raise TooManyQueues(QUEUE_ID_MAX - FIRST_USER_QUEUE_ID + 1)


def _gap(db: sqlite3.Connection, first: int, last: int) -> int | None:
    """Return the lowest unused id of a range, in one statement however many are in use."""
    (queue_id,) = db.execute(
        "SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM queue WHERE id = :first) THEN :first ELSE ("
        "SELECT id + 1 FROM queue AS taken WHERE id >= :first"
        " AND NOT EXISTS (SELECT 1 FROM queue WHERE id = taken.id + 1) ORDER BY id LIMIT 1) END",
        {"first": first},
    ).fetchone()
    return queue_id if queue_id is not None and queue_id <= last else None


def _is_named(db: sqlite3.Connection, queue_id: int) -> bool:
    """Return whether messages or sequences still have the id of a deleted queue."""
    first, last = queue_range(queue_id)
    (is_named,) = db.execute(
        "SELECT EXISTS (SELECT 1 FROM incoming_sequence WHERE queue_id = :id)"
        " OR EXISTS (SELECT 1 FROM message WHERE key BETWEEN :first AND :last)",
        {"id": queue_id, "first": first, "last": last},
    ).fetchone()
    return bool(is_named)


def _insert(db: sqlite3.Connection, row: QueueRow) -> None:
    db.execute(
        f"INSERT INTO queue ({COLUMNS}, key) VALUES ({', '.join('?' * (len(row) + 1))})",
        (*row, row.name.casefold()),
    )


def _queue(columns: tuple[Any, ...]) -> QueueRow:
    row = QueueRow(*columns)
    return row._replace(
        transactional=bool(row.transactional),
        journal=bool(row.journal),
        system=bool(row.system),
        authenticate=bool(row.authenticate),
        grouped=bool(row.grouped),
    )
