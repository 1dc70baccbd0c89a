"""The unit of work that removes undeliverable messages: values in, values out, one database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from protocol.names.format_name import parse_destination
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage
from qmd.events.header import Kind
from qmd.events.recorder import Recorder
from qmd.message.addresses import NO_ADDRESS, queue_address, reply_address
from qmd.message.build import compose
from qmd.outcomes.removal import Dying, Removal
from qmd.outcomes.system_queues import SystemQueues
from storage.tables import outgoing, owed, own_dead_letters, queues
from storage.tables.keys import ARRIVAL_BITS, LOOKUP_BITS, queue_id_of
from storage.tables.own_dead_letters import OwnDeadLetter
from tests.unit.storage.support import memory_database

OWN_ID, FOREIGN_ID = bytes(15) + b"\xaa", bytes(15) + b"\xbb"
DESTINATION = "DIRECT=TCP:10.0.0.7\\private$\\orders"
QUEUE_ID, KEY, PLACE = 7, 5 << ARRIVAL_BITS | 3, 11
SYSTEM = SystemQueues((2, "system$;deadletter"), (3, "system$;deadxact"), has_named=True)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    database = memory_database()
    yield database
    database.close()


def packet(
    number: int = 1, source: bytes = OWN_ID, *, dead_letter: bool = True, admin_queue: str = ""
) -> bytes:
    address = queue_address(parse_destination(DESTINATION, local_host="."))
    admin = reply_address(parse_destination(admin_queue, local_host=".")) if admin_queue else None
    return compose(
        NewMessage(
            DESTINATION,
            b"body",
            dead_letter=dead_letter,
            admin_queue=admin_queue,
            acknowledge=0x0F if admin_queue else 0,
        ),
        source=source,
        destination=address,
        admin=admin or NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=number,
        sent_time_s=1_700_000_000,
        delivery=frames.RECOVERABLE,
        position=None,
    )


def removal(**changes: Any) -> Removal:
    environment = SimpleNamespace(time=lambda: 1_700_000_001.0)
    settings = SimpleNamespace(events=SimpleNamespace(enabled=True, size_bytes=1 << 28))
    services = cast(Any, SimpleNamespace(environment=environment, settings=settings))
    values: dict[str, Any] = {
        "events": Recorder(services).for_unit(),
        "own_id": OWN_ID,
        "queue_id": QUEUE_ID,
        "destination": DESTINATION,
        "peer": "10.0.0.7:1801",
        "for_others": False,
        "dying": [Dying(KEY, PLACE, None)],
        "message_number": None,
        "message_class": MessageClass.NACK_DELETED,
        "reason": "it was purged",
        "kind": Kind.PURGED,
        "system_queues": SYSTEM,
        "wall_ms": 1_700_000_001_000,
        "now_s": 50,
    }
    return Removal(**(values | changes))


def store(db: sqlite3.Connection, content: bytes) -> None:
    outgoing.insert(db, [(QUEUE_ID << LOOKUP_BITS | KEY, None, content, None, False)])


def dead_letters(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
    """Return (queue id, packet) of all stored dead letters."""
    return [
        (queue_id_of(key), stored) for key, stored in db.execute("SELECT key, packet FROM message")
    ]


def test_a_removed_message_becomes_a_dead_letter_of_the_system(db: sqlite3.Connection) -> None:
    store(db, packet())

    (found,) = removal().run(db)

    assert found.is_removed
    assert found.dead_letters == SYSTEM.plain
    ((queue_id, stored),) = dead_letters(db)
    assert queue_id == SYSTEM.plain[0]
    assert parse_user_message(stored).properties.message_class == MessageClass.NACK_DELETED
    assert outgoing.find(db, QUEUE_ID << LOOKUP_BITS | KEY) is None


def test_an_application_names_the_dead_letter_queue_of_its_message(db: sqlite3.Connection) -> None:
    row = queues.create(db, name="private$\\failed", transactional=False, now_s=0)
    own_dead_letters.insert(db, [OwnDeadLetter(1, row.id, "outgoing", KEY)])
    store(db, packet())

    (found,) = removal().run(db)

    assert found.dead_letters == (row.id, row.name)
    assert [queue_id for queue_id, _ in dead_letters(db)] == [row.id]


@pytest.mark.parametrize(
    ("queue_id", "source"), [(99, OWN_ID), (None, FOREIGN_ID)], ids=["deleted", "foreign source"]
)
def test_without_a_named_queue_the_system_keeps_it(
    db: sqlite3.Connection, queue_id: int | None, source: bytes
) -> None:
    if queue_id is None:
        queue_id = queues.create(db, name="private$\\failed", transactional=False, now_s=0).id
    own_dead_letters.insert(db, [OwnDeadLetter(1, queue_id, "outgoing", KEY)])
    store(db, packet(source=source))

    (found,) = removal().run(db)

    assert found.dead_letters == SYSTEM.plain


def test_a_queue_that_is_being_deleted_takes_no_dead_letter(db: sqlite3.Connection) -> None:
    row = queues.create(db, name="private$\\failed", transactional=False, now_s=0)
    own_dead_letters.insert(db, [OwnDeadLetter(1, row.id, "outgoing", KEY)])
    store(db, packet())

    leaving = SYSTEM._replace(being_deleted=frozenset({row.id}))
    (found,) = removal(system_queues=leaving).run(db)

    assert found.dead_letters == SYSTEM.plain
    assert [queue_id for queue_id, _ in dead_letters(db)] == [SYSTEM.plain[0]]


def test_a_message_that_does_not_want_it_is_not_kept(db: sqlite3.Connection) -> None:
    store(db, packet(dead_letter=False))

    (found,) = removal().run(db)

    assert found.is_removed
    assert not found.is_kept
    assert dead_letters(db) == []


@pytest.mark.parametrize("admin_queue", ["", "DIRECT=TCP:10.0.0.7\\private$\\acks"])
def test_the_acknowledgment_of_its_end_is_owed_with_the_removal(
    db: sqlite3.Connection, admin_queue: str
) -> None:
    """It is sent after the commit; after a crash the row is the only trace of it."""
    content = packet(admin_queue=admin_queue)
    store(db, content)

    removal(message_class=MessageClass.NACK_REACH_QUEUE_TIMEOUT).run(db)

    rows = [(each.packet, each.message_class) for each, _ in owed.list_all(db)]
    expected = [(content, MessageClass.NACK_REACH_QUEUE_TIMEOUT)]
    assert rows == (expected if admin_queue else [])


def test_another_message_than_the_refused_one_stays(db: sqlite3.Connection) -> None:
    store(db, packet(number=1))

    (found,) = removal(message_number=2).run(db)

    assert not found.is_meant
    assert dead_letters(db) == []
    assert outgoing.find(db, QUEUE_ID << LOOKUP_BITS | KEY) is not None


def test_a_released_message_has_no_row(db: sqlite3.Connection) -> None:
    (found,) = removal().run(db)

    assert found.packet == b""
    assert not found.is_removed


def test_a_damaged_message_is_put_aside(db: sqlite3.Connection) -> None:
    store(db, packet())
    db.execute("UPDATE outgoing SET packet = ?", (packet()[:-1] + b"?",))

    (found,) = removal().run(db)

    assert not found.is_intact
    assert not found.is_removed
    assert dead_letters(db) == []
    assert db.execute("SELECT count(*) FROM damaged").fetchone() == (1,)
    assert db.execute("SELECT count(*) FROM message").fetchone() == (0,)
