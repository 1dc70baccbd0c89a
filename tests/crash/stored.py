"""The contents of a data folder, read with SQL only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from storage.engine.recovery import rewrite_log
from storage.tables import outcomes
from tests.crash.promises import DEAD_LETTER, JOURNAL, NOWHERE, OUT, State, number_in
from tests.ledger import disagreements
from tests.stored_packets import packets

PLACES = {"system$;deadletter": DEAD_LETTER, "system$;deadxact": DEAD_LETTER}
TRANSACTIONAL_LEVEL = 8  # of outgoing messages
ARRIVAL_MASK = (1 << 44) - 1


class Damaged(AssertionError):
    """SQLite finds an error in the file, or tables contradict each other."""


def read_state(folder: Path, nowhere_port: int) -> State:
    """Recover the folder as a start does, and return its contents.  Raises Damaged."""
    path = folder / "queues.db"
    rewrite_log(folder / "queues.db-wal")
    with closing(sqlite3.connect(path)) as db:
        try:
            # No other process uses the folder, and reading needs no durability.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA synchronous = OFF")
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:  # the first start was interrupted
                return State(outcomes=set(), positions={}, next_message_number=1)
            found = db.execute("PRAGMA quick_check").fetchall()
            if found != [("ok",)]:
                raise Damaged(str(found))
            state = _state(db, nowhere_port)
            state.disagreements = disagreements(db)
            return state
        except sqlite3.DatabaseError as error:
            raise Damaged(str(error)) from error


def _state(db: sqlite3.Connection, nowhere_port: int) -> State:
    queues = dict(db.execute("SELECT id, key FROM queue"))
    state = State(
        queues={key.removeprefix("private$\\") for key in queues.values()},
        outcomes={f"request {int(row.token)}" for row in outcomes.list_all(db)},
        positions={
            int.from_bytes(sequence_id, "big"): number
            for sequence_id, number in db.execute(
                "SELECT sequence_id, number FROM incoming_sequence"
            )
        },
    )
    (state.next_message_number,) = db.execute(
        "SELECT value FROM counter WHERE name = 'message'"
    ).fetchone() or (1,)
    places = state.places = {OUT: [], NOWHERE: [], DEAD_LETTER: [], JOURNAL: []}
    for key in queues.values():
        places.setdefault(_place(key), [])
    for key, packet in packets(db, "message"):
        places[_place(queues[key >> 48])].append(number_in(packet))
    outgoing = {
        id_: (f":{nowhere_port}\\" in destination, base + next_number)
        for id_, destination, base, next_number in db.execute(
            "SELECT id, destination, base, next_number FROM outgoing_queue"
        )
    }
    for key, packet in packets(db, "outgoing"):
        is_nowhere, end = outgoing[key >> 48]
        places[NOWHERE if is_nowhere else OUT].append(number_in(packet))
        if key >> 44 & 15 == TRANSACTIONAL_LEVEL and key & ARRIVAL_MASK >= end:
            raise Damaged(f"outgoing message {key:#x} is beyond its sequence, which ends at {end}")
    return state


def _place(key: str) -> str:
    if key == "system$;journal":
        return JOURNAL
    return PLACES.get(key, key.removeprefix("private$\\"))
