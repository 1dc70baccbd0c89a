"""Backups of databases that another process changes, and their restoration."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from storage.backup import making, restoration
from storage.backup.archive import ArchiveReader, Source
from storage.backup.making import Request, make
from storage.backup.snapshot import Snapshot
from storage.engine import key_file, schema
from storage.engine.connection import set_up_writer
from storage.engine.disk import Disk
from storage.errors import BackupFailed, RescueFailed
from storage.options import PAGE_BYTES, StorageOptions
from storage.rescue.repair import Rescue
from storage.tables import counters
from storage.vault import StorageKey
from tests.unit.storage import backup_writer
from tests.users import needs_root

NOW_MS = 1_790_000_000_000
OWN_ID = bytes(range(16))
KEY = StorageKey(bytes(range(32)))


def new_folder(path: Path, own_id: bytes = OWN_ID) -> Path:
    path.mkdir()
    with closing(sqlite3.connect(path / "queues.db")) as db:
        set_up_writer(db, StorageOptions())
        schema.prepare(db, schema.read_migrations(), now_s=1, new_id=own_id)
        seed = key_file.take(path, Disk(), bytes(range(32)))
        db.execute("BEGIN")
        key_file.record(db, key_file.digest(seed))
        for name, value in (("message", 1000), ("start", 7)):
            counters.set_following(db, name, value)
        db.execute("COMMIT")
    return path


def fill(folder: Path, rows: int = 200) -> None:
    with closing(sqlite3.connect(folder / "queues.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS filling (content BLOB)")
        db.execute("BEGIN")
        for _ in range(rows):
            db.execute("INSERT INTO filling VALUES (?)", (os.urandom(7000),))
        db.execute("COMMIT")


def count(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        return int(db.execute("SELECT count(*) FROM filling").fetchone()[0])


def counter(folder: Path, name: str) -> int:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        return counters.following(db, name)


def request(folder: Path, target: Path, **options: Any) -> Request:
    return Request(folder, target, "host", "0", NOW_MS, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = new_folder(tmp_path / "data")
    fill(found)
    return found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "backups"
    made.mkdir()
    return made


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """A folder with a database that another process changes all the time."""
    folder = tmp_path / "busy"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "queues.db", isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER, filling BLOB)")
        db.execute("CREATE TABLE noise (content BLOB)")
        share = backup_writer.TOTAL // backup_writer.ROWS
        rows = [(each, share, bytes(4000)) for each in range(backup_writer.ROWS)]
        db.executemany("INSERT INTO account VALUES (?, ?, ?)", rows)
    writer = subprocess.Popen(
        [sys.executable, backup_writer.__file__, str(folder)], stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        yield folder
    finally:
        writer.kill()
        writer.communicate()


def test_a_snapshot_is_one_commit_while_another_process_writes(busy: Path, tmp_path: Path) -> None:
    from_log = 0
    copy = tmp_path / "copy.db"
    for _ in range(25):
        with Snapshot(busy) as snapshot:
            data = [snapshot.read(first, 16) for first in range(0, snapshot.pages, 16)]
            from_log += bool(snapshot._in_log)
        copy.write_bytes(b"".join(data))
        with closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as db:
            assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
            (total,) = db.execute("SELECT sum(amount) FROM account").fetchone()
        assert total == backup_writer.TOTAL

    assert from_log, "the newest pages were in the log"


def test_a_backup_in_a_folder_has_only_what_changed(folder: Path, target: Path) -> None:
    first = make(request(folder, target))
    again = make(request(folder, target))
    fill(folder, 10)
    more = make(request(folder, target))

    assert (first.new_pieces, again.new_pieces) == (first.pieces, 0)
    assert 0 < more.new_pieces < more.pieces / 4
    for made, rows in ((first, 200), (again, 200), (more, 210)):
        chosen = restoration.choose(target, made.number, ())
        into = target.parent / f"restored{made.number}"
        restoration.restore(chosen, into, (), now_ms=NOW_MS)
        assert count(into) == rows


def test_the_files_beside_the_database_are_in_it(folder: Path, target: Path) -> None:
    (folder / "keys" / "senders").mkdir(parents=True)
    (folder / "keys" / "senders" / "ann.cer").write_bytes(b"certificate")
    config = target.parent / "qmd.toml"
    config.write_text("[log]\n")
    make(request(folder, target, configuration=(config,)))

    into, files = target.parent / "restored", target.parent / "files"
    chosen = restoration.choose(target, None, ())
    done = restoration.restore(chosen, into, (), now_ms=NOW_MS, files=files)

    assert (into / "keys" / "senders" / "ann.cer").read_bytes() == b"certificate"
    assert (into / "identity.key").read_bytes() == (folder / "identity.key").read_bytes()
    assert [path.read_text() for path in done.written] == ["[log]\n"]
    again = restoration.restore(chosen, target.parent / "other", (), now_ms=NOW_MS, files=files)
    assert (again.written, again.kept) == ([], done.written), "existing files stay"


def test_a_restored_folder_counts_on_where_the_original_cannot_be(
    folder: Path, target: Path
) -> None:
    make(request(folder, target))
    chosen = restoration.choose(target, None, ())
    found = []
    for number in range(2):
        into = target.parent / f"restored{number}"
        restoration.restore(chosen, into, (), now_ms=NOW_MS + number)
        found.append({name: counter(into, name) for name in ("start", "message", "restored")})
        assert counter(into, "sequence_timestamp") >= NOW_MS // 1000

    assert [each["start"] for each in found] == [NOW_MS, NOW_MS + 1], "each one is a later run"
    for each in found:
        assert restoration.SKIPPED_MIN <= each["message"] - 1000 < restoration.SKIPPED_MAX
    assert found[0]["message"] != found[1]["message"]


def readable(backup: Path, secrets: list[bytes]) -> list[bytes]:
    """Return the secrets that a file discloses without a key, in itself or when it is unpacked."""
    content = backup.read_bytes()
    parts = [content]
    for start in re.finditer(b"\x78[\x01\x5e\x9c\xda]", content):  # heads of compressed data
        with suppress(zlib.error):
            parts.append(zlib.decompressobj().decompress(memoryview(content)[start.start() :]))
    return [secret for secret in secrets if any(secret in part for part in parts)]


def test_an_encrypted_backup_needs_its_key(folder: Path, target: Path) -> None:
    first = make(request(folder, target, key=KEY, keys=(KEY,)))
    make(request(folder, target, key=KEY, keys=(KEY,)))
    seed = key_file.read(folder)
    assert seed is not None
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        (filling,) = db.execute("SELECT content FROM filling").fetchone()
    secrets = [key_file.encode(seed)[30:60], OWN_ID, filling[:60]]
    (target.parent / "plain").mkdir()
    plain = make(request(folder, target.parent / "plain"))

    assert readable(plain.path, secrets) == secrets, "this is how they would be read"
    assert readable(first.path, secrets) == []
    with pytest.raises(BackupFailed, match=KEY.id.hex()):
        restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match=KEY.id.hex()):
        restoration.choose(target, None, (StorageKey(bytes(32)),))
    chosen = restoration.choose(target, None, (KEY,))
    restoration.restore(chosen, target.parent / "restored", (KEY,), now_ms=NOW_MS)
    assert count(target.parent / "restored") == 200


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_every_changed_or_missing_byte_is_found(
    folder: Path, target: Path, key: StorageKey | None
) -> None:
    keys = (key,) if key else ()
    path = make(request(folder, target, key=key, keys=keys)).path
    content = path.read_bytes()
    step = max(1, len(content) // 15)
    changes = [
        content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        for at in [*range(8, len(content), step), len(content) - 60, len(content) - 1]
    ]
    changes += [content[:-1], content[: len(content) // 2], b""]
    into = target.parent / "restored"
    harmless = 0
    for changed in changes:
        path.write_bytes(changed)
        try:
            chosen = restoration.choose(target, None, keys)
            restoration.restore(chosen, into, keys, now_ms=NOW_MS)
        except BackupFailed:
            assert not into.exists()
            assert not into.with_name("restored.restoring").exists()
            continue
        harmless += 1
        assert count(into) == 200
        into.rename(into.with_name(f"as-before{harmless}"))

    assert harmless <= 1, "only the unused id of a key may differ"


def test_a_piece_that_was_changed_and_packed_anew_is_found(folder: Path, target: Path) -> None:
    """Its own sum is right then, and it has its former length."""
    path = make(request(folder, target)).path
    with closing(ArchiveReader(path)) as reader:
        pieces = reader.contents().piece_list()
    content = bytearray(path.read_bytes())
    forged = 0
    for piece in pieces:
        record = content[piece.offset : piece.offset + piece.length]
        data = bytearray(zlib.decompress(record[1:]) if record[0] else record[1:])
        data[-100] ^= 1
        packed = b"\1" + zlib.compress(data, 9) if record[0] else b"\0" + data
        if len(packed) <= piece.length:  # bytes behind the end of the packed ones are not read
            content[piece.offset : piece.offset + piece.length] = packed.ljust(piece.length, b"\0")
            forged += 1
    assert forged
    path.write_bytes(content)

    chosen = restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match="is damaged at byte"):
        restoration.restore(chosen, target.parent / "restored", (), now_ms=NOW_MS)
    assert not (target.parent / "restored").exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "below/secret"])
def test_a_backup_names_no_file_outside_of_its_folder(
    folder: Path, target: Path, name: str
) -> None:
    make(request(folder, target))
    chosen = restoration.choose(target, None, ())
    sources = [*chosen.contents.sources, Source(chosen.contents.sources[0].id, name)]
    forged = chosen._replace(contents=structs.replace(chosen.contents, sources=sources))

    with pytest.raises(BackupFailed, match="outside of its folder"):
        restoration.restore(forged, target.parent / "restored", (), now_ms=NOW_MS)
    assert not (target.parent / "restored").exists()


def test_a_missing_earlier_file_is_named(folder: Path, target: Path) -> None:
    first = make(request(folder, target))
    make(request(folder, target))
    first.path.unlink()

    chosen = restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match=first.path.name):
        restoration.verify(chosen, (), lambda pieces: None)
    assert make(request(folder, target)).new_pieces, "the next one does not refer to it"
    restoration.verify(restoration.choose(target, None, ()), (), lambda pieces: None)


def test_a_present_folder_is_replaced_on_request_only(folder: Path, target: Path) -> None:
    make(request(folder, target))
    fill(folder, 5)
    chosen = restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match="--replace"):
        restoration.restore(chosen, folder, (), now_ms=NOW_MS)
    assert count(folder) == 205

    done = restoration.restore(chosen, folder, (), now_ms=NOW_MS, replaces=True)

    assert count(folder) == 200
    assert done.aside is not None
    assert count(done.aside) == 205


@needs_root
def test_root_makes_no_folder_where_another_user_can_exchange_it(
    folder: Path, target: Path, tmp_path: Path
) -> None:
    """That user would put a link in its place, and root would give it the files behind the link."""
    make(request(folder, target))
    backup = restoration.choose(target, None, ())
    above = tmp_path / "home"
    above.mkdir()
    os.chown(above, 4713, 4713)

    for at in (above / "restored", above / "of_root" / "restored"):
        at.parent.mkdir(exist_ok=True)
        with pytest.raises(BackupFailed, match="run this command as that user"):
            restoration.restore(backup, at, (), now_ms=NOW_MS + 1)
        assert not any(at.parent.glob("restored*"))
    os.rename(folder, above / "damaged")
    with pytest.raises(RescueFailed, match="run this command as that user"):
        list(Rescue(above / "damaged").run(now_s=1, new_id=OWN_ID))
    assert not any(above.glob("damaged.*"))


def test_a_folder_in_use_is_not_replaced(folder: Path, target: Path) -> None:
    make(request(folder, target))
    chosen = restoration.choose(target, None, ())
    lock = Disk().lock(folder)
    try:
        with pytest.raises(BackupFailed, match="in use"):
            restoration.restore(chosen, folder, (), now_ms=NOW_MS, replaces=True)
    finally:
        lock.release()
    assert count(folder) == 200


def test_a_clock_behind_the_backup_is_refused(folder: Path, target: Path) -> None:
    make(request(folder, target))
    chosen = restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match="clock"):
        restoration.restore(chosen, target.parent / "restored", (), now_ms=NOW_MS - 3_600_000)


def test_a_backup_of_a_newer_schema_is_refused(folder: Path, target: Path) -> None:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("PRAGMA user_version = 9999")
    make(request(folder, target))
    chosen = restoration.choose(target, None, ())
    with pytest.raises(BackupFailed, match="schema 9999"):
        restoration.restore(chosen, target.parent / "restored", (), now_ms=NOW_MS)


def test_backups_of_two_queue_managers_do_not_mix(folder: Path, target: Path) -> None:
    make(request(folder, target))
    other = new_folder(target.parent / "other", bytes(16))

    with pytest.raises(BackupFailed, match="name another folder"):
        make(request(other, target))
    assert len(list(target.iterdir())) == 1


def test_old_backups_are_removed_unless_later_ones_need_them(folder: Path, target: Path) -> None:
    make(request(folder, target))
    make(request(folder, target))
    assert making.prune(target, 1, ()) == [], "the second one needs the first"
    full = make(request(folder, target, is_full=True))

    removed = making.prune(target, 1, ())

    assert len(removed) == 2
    assert list(target.iterdir()) == [full.path]


def test_a_single_file_is_not_overwritten(folder: Path, target: Path) -> None:
    file = target / "one.qmdbackup"
    make(request(folder, file))
    before = file.read_bytes()

    with pytest.raises(BackupFailed, match="exists"):
        make(request(folder, file))

    assert file.read_bytes() == before
    restoration.restore(
        restoration.choose(file, None, ()), target.parent / "restored", (), now_ms=NOW_MS
    )
    assert count(target.parent / "restored") == 200


def test_a_backup_is_given_up_before_the_disk_is_full(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHECK_PIECES", 1)
    with pytest.raises(BackupFailed, match="short of space"):
        make(request(folder, target, free_bytes_min=1 << 60))
    assert list(target.iterdir()) == []


def test_a_folder_with_missing_data_is_not_backed_up(folder: Path, target: Path) -> None:
    (folder / "identity.key").unlink()
    with pytest.raises(BackupFailed, match=r"identity\.key"):
        make(request(folder, target))
