"""Table awaiting: messages that wait for a final ack, and those that were given up."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

from storage.rescue import check
from storage.rescue.repair import Rescue
from storage.tables import awaiting, outgoing
from storage.tables.awaiting import Arrived, AwaitingRow, Kept, confirm_by
from storage.tables.damaged import checksum_of
from storage.tables.events import Event
from storage.tables.keys import OUTGOING_TRANSACTIONAL_LEVEL, message_key
from tests.integration.remote import packet as message_packet
from tests.unit.storage.support import (
    NOW_S,
    SOURCE,
    durable,
    memory_database,
    opened,
    other_connection,
)

BASE = 40
SEQUENCE = 0xFFFF_0000_0000_0001


def key(number: int, queue: int = 7) -> int:
    return message_key(queue, OUTGOING_TRANSACTIONAL_LEVEL, BASE + number)


def packet(message: int, size: int = 100) -> bytes:
    return b"x" * 56 + message.to_bytes(4, "little") + b"y" * (size - 60)


def arrived(first: int, last: int) -> Arrived:
    return Arrived(7, SEQUENCE, BASE, key(first), key(last), NOW_S)


def test_messages_with_confirmation_are_kept_and_others_deleted_in_one_commit(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            batch = storage.batch
            batch.outgoing.insert(key(1), packet(0xFFFF_FF01), confirm_by_s=confirm_by(NOW_S + 9))
            batch.outgoing.insert(key(2), packet(0xFFFF_FF02))
            batch.outgoing.insert(
                key(3), packet(0xFFFF_FF03, 200), confirm_by_s=confirm_by(None), discard=True
            )
            batch.outgoing.insert(key(4), packet(0xFFFF_FF04), confirm_by_s=confirm_by(None))
            batch.outgoing.insert(key(1, 8), packet(5), confirm_by_s=confirm_by(None))
            await durable(storage)

            told: list[list[Kept]] = []

            def tell(kept: list[Kept]) -> list[Event]:
                told.append(kept)
                return []

            kept = storage.batch.outgoing.await_confirmation(arrived(0, 3), tell)
            storage.batch.outgoing.delete_range(key(0), key(3))
            assert await kept == [Kept(0xFFFF_FF01, 1, 100), Kept(0xFFFF_FF03, 3, 200)]
            assert told == [await kept]

            rows, looked_for = await storage.read(
                lambda db: awaiting.find_all(db, [0xFFFF_FF00 + each for each in range(9)])
            )
            assert looked_for == 9
            assert rows == [
                AwaitingRow(
                    0xFFFF_FF01, 7, SEQUENCE, 1, NOW_S, NOW_S + 9, False,
                    checksum_of(packet(0xFFFF_FF01)), None, None, packet(0xFFFF_FF01),
                ),
                AwaitingRow(
                    0xFFFF_FF03, 7, SEQUENCE, 3, NOW_S, None, True,
                    checksum_of(packet(0xFFFF_FF03, 200)), None, None, packet(0xFFFF_FF03, 200),
                ),
            ]  # fmt: skip
            left = await storage.read(lambda db: outgoing.page(db, 7) + outgoing.page(db, 8))
            assert [row.key for row in left] == [key(4), key(1, 8)]
            assert await storage.read(awaiting.totals_by_queue) == {7: (2, 300)}

    asyncio.run(scenario())


def test_a_message_with_two_acknowledgments_in_one_commit_is_counted_once(folder: Path) -> None:
    """Both ranges begin at the first message that is left of the sequence."""

    async def scenario() -> None:
        async with opened(folder) as storage:
            for each in (1, 2, 3):
                storage.batch.outgoing.insert(
                    key(each), packet(each), confirm_by_s=confirm_by(None)
                )
            await durable(storage)

            batch = storage.batch
            first = batch.outgoing.await_confirmation(arrived(0, 1), lambda kept: [])
            batch.outgoing.delete_range(key(0), key(1))
            second = batch.outgoing.await_confirmation(arrived(0, 3), lambda kept: [])
            batch.outgoing.delete_range(key(0), key(3))

            assert await first == [Kept(1, 1, 100)]
            assert await second == [Kept(2, 2, 100), Kept(3, 3, 100)]

    asyncio.run(scenario())


def test_messages_without_confirmation_do_not_wait() -> None:
    db = memory_database()
    outgoing.insert(db, [(key(1), None, packet(1), None, False)])

    assert awaiting.take_over(db, arrived(0, 9)) == []
    assert awaiting.totals_by_queue(db) == {}
    db.close()


def test_an_interval_of_zero_differs_from_an_unlimited_interval() -> None:
    db = memory_database()
    outgoing.insert(db, [(key(1), None, packet(1), confirm_by(0), False)])
    awaiting.take_over(db, arrived(0, 9))

    assert [row.number for row in awaiting.expired(db, NOW_S, 10)] == [1]
    db.close()


def test_expired_messages_are_ordered_by_the_end_of_their_interval() -> None:
    db = memory_database()
    due = {1: NOW_S + 3, 2: NOW_S + 1, 3: None, 4: NOW_S}
    outgoing.insert(
        db, [(key(each), None, packet(each), confirm_by(at_s), False) for each, at_s in due.items()]
    )
    awaiting.take_over(db, arrived(0, 9))

    assert [row.number for row in awaiting.expired(db, NOW_S + 2, 10)] == [4, 2]
    assert [row.number for row in awaiting.expired(db, NOW_S + 4, 2)] == [4, 2]
    assert [row.number for row in awaiting.expired(db, NOW_S + 9, 10, bytes_max=150)] == [4, 2]
    assert awaiting.expired(db, NOW_S, 10) == []  # the interval includes its last second
    db.close()


def test_a_search_stops_at_its_limit_of_bytes() -> None:
    db = memory_database()
    outgoing.insert(
        db, [(key(each), None, packet(each), confirm_by(None), False) for each in range(1, 6)]
    )
    awaiting.take_over(db, arrived(0, 9))

    rows, looked_for = awaiting.find_all(db, [1, 9, 2, 3], bytes_max=150)

    assert ([row.number for row in rows], looked_for) == ([1, 2], 3)
    assert [row.number for row in awaiting.page(db, 7, 2, 3)] == [2, 3, 4]
    assert awaiting.page(db, 8, 0, 3) == []
    db.close()


def test_messages_that_were_given_up_are_remembered_for_a_while() -> None:
    db = memory_database()
    awaiting.remember_unconfirmed(db, [1, 2], 7, NOW_S - 10)
    awaiting.remember_unconfirmed(db, [3, 4, 5], 8, NOW_S)

    assert awaiting.unconfirmed(db, [2, 4, 6]) == {2: 7, 4: 8}
    awaiting.forget_unconfirmed(db, [4])
    awaiting.forget_old(db, NOW_S, rows_max=1)
    assert awaiting.unconfirmed(db, range(9)) == {5: 8}
    db.close()


def test_a_damaged_message_is_quarantined() -> None:
    db = memory_database()
    outgoing.insert(db, [(key(1), None, packet(1), confirm_by(None), False)])
    awaiting.take_over(db, arrived(0, 9))
    db.execute("UPDATE awaiting SET packet = x'00'")
    ((row,), _) = awaiting.find_all(db, [1])

    assert not row.is_whole
    assert awaiting.set_aside(db, 1, NOW_S)
    assert awaiting.totals_by_queue(db) == {}
    assert db.execute("SELECT place, key, packet FROM damaged").fetchall() == [
        ("awaiting", 1, b"\0")
    ]
    db.close()


def a_folder_with_a_waiting_message(folder: Path) -> bytes:
    """Make a data folder with one waiting message; return its packet."""
    waiting = message_packet(b"waiting", source=SOURCE, number=9, position=(SEQUENCE, 1, 0))

    async def scenario() -> None:
        async with opened(folder) as storage:
            storage.batch.outgoing.add_queue(
                outgoing.OutgoingQueueRow(
                    7, "DIRECT=OS:hostb\\orders", "hostb:1801", False, SEQUENCE, BASE, 2, NOW_S
                )
            )
            storage.batch.outgoing.insert(key(1), waiting, confirm_by_s=confirm_by(NOW_S + 9))
            await durable(storage)
            storage.batch.outgoing.await_confirmation(arrived(0, 1), lambda kept: [])
            storage.batch.outgoing.delete_range(key(0), key(1))
            storage.batch.run(lambda db: awaiting.remember_unconfirmed(db, [5], 7, NOW_S))
            await durable(storage)

    asyncio.run(scenario())
    return waiting


def test_waiting_messages_are_counted_by_a_check_and_kept_by_a_rescue(folder: Path) -> None:
    waiting = a_folder_with_a_waiting_message(folder)

    report = check.check(folder)
    rescue = Rescue(folder)
    (message,) = rescue.run(now_s=NOW_S, new_id=SOURCE)

    assert report.findings == []
    assert report.messages == {"DIRECT=OS:hostb\\orders": 1}
    assert (message.table, message.queue, message.packet, message.problem) == (
        "awaiting",
        "DIRECT=OS:hostb\\orders",
        waiting,
        None,
    )

    async def scenario() -> None:
        async with opened(rescue.fresh) as storage:
            ((row,), _) = await storage.read(lambda db: awaiting.find_all(db, [9]))
            assert (row.packet, row.position, row.expires_at_s) == (waiting, 1, NOW_S + 9)
            assert await storage.read(lambda db: awaiting.unconfirmed(db, [5])) == {5: 7}
            assert await storage.read(awaiting.sequences_by_queue) == [(7, SEQUENCE)]
            assert await storage.read(awaiting.totals_by_queue) == {7: (1, len(waiting))}

    asyncio.run(scenario())


def test_a_damaged_or_quarantined_message_is_found(folder: Path) -> None:
    a_folder_with_a_waiting_message(folder)
    with closing(other_connection(folder)) as db:
        db.execute("UPDATE awaiting SET packet = zeroblob(length(packet))")

    (damaged,) = Rescue(folder).run(now_s=NOW_S, new_id=SOURCE)
    assert "checksum" in (damaged.problem or "")
    shutil.rmtree(folder.with_name(f"{folder.name}.repaired"))
    with closing(other_connection(folder)) as db:
        awaiting.set_aside(db, 9, NOW_S)
    (aside,) = Rescue(folder).run(now_s=NOW_S, new_id=SOURCE)
    assert (aside.table, aside.key) == ("awaiting", 9)
    assert "set aside" in (aside.problem or "")
