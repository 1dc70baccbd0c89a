"""Damaged data folders: the findings, the rescued rows, and no invented ones."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from storage import CannotStart, FolderInUse, StorageOptions
from storage.engine import schema
from storage.engine.connection import set_up_writer
from storage.errors import RescueFailed
from storage.options import PAGE_BYTES
from storage.rescue import check
from storage.rescue.database_file import DatabaseFile
from storage.rescue.repair import Rescue
from storage.rescue.survey import KeptMessage
from storage.tables import events, outcomes
from storage.tables.events import Event
from storage.tables.keys import message_key
from tests.crash import old_folder
from tests.unit.storage.support import NOW_S

NEW_ID = b"new-queue-manager"[:16]
WHOLE = 36  # messages in the old folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data folder that an older version has written."""
    folder = tmp_path / "data"
    old_folder.restore(1, folder, port=1)
    return folder


def change(folder: Path, script: str) -> None:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.executescript(script)


def saved(folder: Path) -> tuple[Rescue, list[KeptMessage]]:
    found = Rescue(folder)
    return found, list(found.run(now_s=NOW_S, new_id=NEW_ID))


def row(folder: Path, sql: str) -> tuple[object, ...]:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        found: tuple[object, ...] = db.execute(sql).fetchone()
        return found


def test_an_intact_folder_has_no_findings_and_is_not_changed(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with check.locked(folder):
        report = check.check(folder)

    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert report.findings == []
    assert sum(report.messages.values()) == WHOLE
    assert report.messages["private$\\orders"] == 10
    assert after == {**before, "lock": b""}


def test_a_folder_in_use_by_a_daemon_is_refused(folder: Path) -> None:
    with check.locked(folder), pytest.raises(FolderInUse), check.locked(folder):
        raise AssertionError("two have it")


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"there is no queues\.db"), check.locked(tmp_path):
        raise AssertionError("there is nothing")


DAMAGES: dict[str, tuple[str, str]] = {
    "a packet": (
        "UPDATE message SET packet = zeroblob(length(packet))"
        " WHERE key = (SELECT max(key) FROM message)",
        "its packet is damaged",
    ),
    "a queue": ("DELETE FROM queue WHERE name = 'private$\\plain'", "which is lost"),
    "an outgoing queue": ("DELETE FROM outgoing_queue", "which is lost"),
    "a sequence": (
        "UPDATE outgoing_queue SET base = base + 1",
        "its number does not match its place in the sequence",
    ),
    "the identity": ("DELETE FROM identity", "the identity of the queue manager is lost"),
    "a counter": ("DELETE FROM counter WHERE name = 'arrival'", "the counter of arrivals"),
}


@pytest.mark.parametrize(("script", "words"), DAMAGES.values(), ids=DAMAGES)
def test_contradictions_are_found(folder: Path, script: str, words: str) -> None:
    change(folder, script)

    report = check.check(folder)

    assert any(words in finding for finding in report.findings), report.findings
    assert sum(report.messages.values()) + report.damaged == WHOLE


@pytest.mark.parametrize(("script", "words"), DAMAGES.values(), ids=DAMAGES)
def test_rescued_rows_are_consistent_and_others_are_quarantined_with_a_reason(
    folder: Path, script: str, words: str
) -> None:
    change(folder, script)
    damaged = (folder / "queues.db").read_bytes()

    found, messages = saved(folder)

    assert len(messages) == WHOLE
    assert found.saved + found.set_aside == WHOLE
    assert all(message.packet for message in messages)
    report = check.check(found.fresh)
    assert report.findings == []
    assert sum(report.messages.values()) == found.saved
    assert (folder / "queues.db").read_bytes() == damaged
    assert found.fresh.stat().st_mode & 0o777 == 0o700
    assert (found.fresh / "queues.db").stat().st_mode & 0o777 == 0o600


def test_a_rescued_folder_continues_at_its_old_positions(folder: Path) -> None:
    found, _ = saved(folder)

    for table in ("identity", "outgoing_queue", "incoming_sequence", "counter", "outcome"):
        sql = f"SELECT * FROM {table}"
        before = row(folder, sql)
        assert row(found.fresh, sql)[: len(before)] == before  # columns of later versions follow
    for table in ("message", "outgoing", "queue", "message_id_history"):
        sql = f"SELECT count(*), sum({'key' if table == 'message' else 1}) FROM {table}"
        assert row(found.fresh, sql) == row(folder, sql)
    assert found.losses == []


def test_a_rescued_folder_has_the_outcomes_that_blocks_of_events_carry(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "queues.db", isolation_level=None)) as db:
        schema.prepare(db, schema.read_migrations(), now_s=NOW_S, new_id=NEW_ID)
        before = {row.token: row.result for row in outcomes.list_all(db)}
        for number in range(3):
            sent = Event(kind="sent", at_ms=number, source=bytes(16), numbers=[number])
            repeated = b"repeated", b"%d" % number, number
            events.insert(db, [sent], [(b"token %d" % number, b"%d" % number, number), repeated])
    assert before

    found, _ = saved(folder)

    with closing(sqlite3.connect(found.fresh / "queues.db")) as db:
        rescued = {row.token: row.result for row in outcomes.list_all(db)}
    carried = {b"token %d" % number: b"%d" % number for number in range(3)}
    assert rescued == {**before, **carried, b"repeated": b"2"}
    assert found.losses == []


def test_a_lost_identity_and_lost_numbers_are_reported(folder: Path) -> None:
    change(folder, "DELETE FROM identity; DELETE FROM counter")

    found, _ = saved(folder)

    assert row(found.fresh, "SELECT queue_manager FROM identity") == (NEW_ID,)
    assert len(found.losses) == 2
    (following,) = row(found.fresh, "SELECT value FROM counter WHERE name = 'arrival'")
    assert isinstance(following, int)
    assert following > row(folder, "SELECT max(key) FROM message")[0] & (1 << 44) - 1  # type: ignore[operator]


def test_a_fresh_folder_is_never_overwritten(folder: Path) -> None:
    found, _ = saved(folder)
    before = (found.fresh / "queues.db").read_bytes()

    with pytest.raises(RescueFailed, match="stays as it is"):
        saved(folder)

    assert (found.fresh / "queues.db").read_bytes() == before


def flip_bits(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 5, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def spoil_a_piece(content: bytearray, rng: random.Random) -> None:
    size = rng.choice((512, 4096, 20_000))
    place = rng.randrange(len(content) - size) // 512 * 512
    content[place : place + size] = rng.randbytes(size) if rng.random() < 0.5 else bytes(size)


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


@pytest.mark.parametrize("damage", [flip_bits, spoil_a_piece, cut])
@pytest.mark.parametrize("seed", range(8))
def test_no_damage_prevents_the_rescue_of_the_rest(
    folder: Path, damage: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    path = folder / "queues.db"
    change(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    damage(content, random.Random(seed))
    path.write_bytes(content)

    check.check(folder)
    found, messages = saved(folder)

    assert found.saved + found.set_aside == len(messages)
    assert check.check(found.fresh).findings == []


ROWS = {
    "branch": (bytes(16), "shop", 5),
    "way_back": (bytes(16), bytes(range(16)), "10.0.0.5", 5),
    "peer_origin": (bytes(16), "key:1", "key:1", 1, 1, "10.0.0.5", b"k", 3, b"nonce", 5, 6),
    "directory_change": (bytes(16), "hosta\\orders", 1, 5),
    "unaddressed": (7, bytes(16), 5, bytes(200), 9, None),
    "owed": (7, 0x8004, 1, bytes(200), 9, None),
}


@pytest.mark.parametrize("table", ROWS)
def test_rows_that_wait_for_databases_or_the_directory_are_rescued_as_well(
    tmp_path: Path, table: str
) -> None:
    """A commit decision for a database, and an acknowledgment that waits for the directory."""
    folder = tmp_path / "data"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        set_up_writer(db, StorageOptions())
        schema.prepare(db, schema.read_migrations(), now_s=NOW_S, new_id=NEW_ID)
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(ROWS[table]))})", ROWS[table])
        db.commit()

    assert check.check(folder).findings == []
    found, _ = saved(folder)

    assert not any(table in each for each in found.losses)
    assert row(found.fresh, f"SELECT * FROM {table}") == ROWS[table]


def test_a_long_list_of_findings_is_shortened_and_counted(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.executemany(
            "INSERT INTO message (key, arrived_at_ms, packet) VALUES (?, 1, x'00')",
            ((message_key(16, 7, arrival),) for arrival in range(1_000_000)[5000:6000]),
        )
        db.commit()

    report = check.check(folder)

    assert report.damaged == 1000
    assert len(report.findings) == check.SENTENCES_MAX + 1
    assert report.findings[-1] == "... and 900 more like these"


def test_a_new_database_without_its_schema_keeps_its_messages(folder: Path, tmp_path: Path) -> None:
    """The pointer map names the roots; in a new database, each root has a known table."""
    (packet,) = row(folder, "SELECT packet FROM message LIMIT 1")
    new = tmp_path / "new"
    new.mkdir()
    path = new / "queues.db"
    with closing(sqlite3.connect(path)) as db:
        set_up_writer(db, StorageOptions())
        schema.prepare(db, schema.read_migrations(), now_s=NOW_S, new_id=NEW_ID)
        for arrival in range(100):
            db.execute(
                "INSERT INTO message (key, arrived_at_ms, packet) VALUES (?, 1, ?)",
                (message_key(2, 7, arrival), packet),
            )
        db.commit()
    with DatabaseFile(path) as file:
        schema_pages = [
            number
            for number in range(3, file.page_count + 1)
            if file.is_content(number) and file.pointer(number) == (5, 1)
        ]
    assert schema_pages
    with path.open("r+b") as damaged:
        for number in schema_pages:
            damaged.seek((number - 1) * PAGE_BYTES)
            damaged.write(bytes(PAGE_BYTES))

    found, messages = saved(new)

    assert [message.problem for message in messages] == [None] * 100
    assert found.saved == 100
    assert check.check(new).messages == {"system$;deadletter": 100}


def test_a_message_that_may_have_been_removed_is_in_doubt_and_never_restored(
    folder: Path,
) -> None:
    """Its page is missing in the parent page, and in the freelist as well."""
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        set_up_writer(db, StorageOptions())
        (last, packet) = db.execute(
            "SELECT key, packet FROM message ORDER BY key DESC LIMIT 1"
        ).fetchone()
        db.executemany(
            "INSERT INTO message (key, arrived_at_ms, packet) VALUES (?, 1, ?)",
            ((last + number, packet) for number in range(1, 200)),
        )
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("UPDATE counter SET value = 1 << 40")
        db.commit()
    path = folder / "queues.db"
    content = bytearray(path.read_bytes())
    header = (root - 1) * page_bytes
    count = int.from_bytes(content[header + 3 : header + 5], "big")
    content[header + 3 : header + 5] = (count - 1).to_bytes(2, "big")
    path.write_bytes(content)

    report = check.check(folder)
    found, messages = saved(folder)

    assert report.damaged == 0
    assert report.doubted > 0
    assert sum(report.messages.values()) + report.doubted == WHOLE + 199
    assert (found.saved, found.set_aside, found.doubted) == (
        sum(report.messages.values()),
        report.doubted,
        report.doubted,
    )
    doubted = [message for message in messages if message.is_doubted]
    assert all("may have been removed" in str(message.problem) for message in doubted)
    assert all(message.packet == packet for message in doubted)
    with closing(sqlite3.connect(found.fresh / "queues.db")) as db:
        restored = {key for (key,) in db.execute("SELECT key FROM message")}
    assert not restored & {message.key for message in doubted}
