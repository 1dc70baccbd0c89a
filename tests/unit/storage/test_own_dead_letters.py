"""Table own_dead_letter: rows in use, and rows of messages that are gone."""

import asyncio
import sqlite3
from functools import partial
from pathlib import Path

from storage.rescue.repair import Rescue
from storage.tables import messages, outgoing, own_dead_letters
from storage.tables.keys import message_key
from storage.tables.own_dead_letters import OwnDeadLetter
from tests.unit.storage.support import SOURCE, opened


def keys(count: int) -> list[int]:
    return [message_key(1, 8, arrival) for arrival in range(1, count + 1)]


def test_a_message_in_either_table_is_not_gone(db: sqlite3.Connection) -> None:
    sent, received = keys(2), [message_key(16, 7, 5)]
    outgoing.insert(db, [(sent[0], None, b"1", None, False)])
    messages.insert(db, [(received[0], 0, None, None, b"2")])
    own_dead_letters.insert(
        db,
        [
            OwnDeadLetter(1, 16, "outgoing", sent[0]),
            OwnDeadLetter(2, 16, "outgoing", sent[1]),
            OwnDeadLetter(3, 17, "message", received[0]),
            OwnDeadLetter(4, 17, "message", sent[0]),  # its message is in the other table
        ],
    )

    assert own_dead_letters.page(db, -1, 9) == {1: 16, 2: 16, 3: 17, 4: 17}
    assert own_dead_letters.gone(db, -1, 100) == ([2, 4], None)
    own_dead_letters.delete(db, [2, 4])
    assert own_dead_letters.page(db, -1, 9) == {1: 16, 3: 17}


def test_the_table_is_searched_in_pieces(db: sqlite3.Connection) -> None:
    own_dead_letters.insert(
        db, [OwnDeadLetter(number, 16, "outgoing", number) for number in range(5)]
    )

    assert own_dead_letters.gone(db, -1, 2) == ([0, 1], 1)
    assert own_dead_letters.gone(db, 1, 3) == ([2, 3, 4], 4)
    assert own_dead_letters.gone(db, 4, 3) == ([], None)


def test_a_reused_number_belongs_to_the_newer_message(db: sqlite3.Connection) -> None:
    own_dead_letters.insert(db, [OwnDeadLetter(1, 16, "outgoing", 5)])
    own_dead_letters.insert(db, [OwnDeadLetter(1, 17, "message", 6)])

    assert own_dead_letters.page(db, -1, 9) == {1: 17}


def test_a_rescue_keeps_the_rows(folder: Path) -> None:
    rescue = Rescue(folder)

    async def store() -> None:
        async with opened(folder) as storage:
            row = OwnDeadLetter(7, 16, "outgoing", 5)
            await storage.batch.run(lambda db: own_dead_letters.insert(db, [row]))

    async def look() -> dict[int, int]:
        async with opened(rescue.fresh) as storage:
            return await storage.read(partial(own_dead_letters.page, after=-1, rows_max=9))

    asyncio.run(store())
    list(rescue.run(now_s=0, new_id=SOURCE))

    assert asyncio.run(look()) == {7: 16}
