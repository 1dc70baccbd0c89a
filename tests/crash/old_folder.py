"""Data folders as older versions wrote them, stored as SQL in tests/data.

    python -m tests.crash.old_folder        writes tests/data/schema_N.sql for the present schema

It must run before a migration changes the schema, and never again for that version: from then on
its folder represents those of users.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from storage.engine import key_file, schema
from tests.crash.control import Control
from tests.crash.forge import Forge
from tests.crash.machine import Machine
from tests.crash.matrix import scratch
from tests.process.remote import RemoteQueueManager

DATA = Path(__file__).resolve().parents[1] / "data"
LIFETIME_S = 0xFFFFFFFF  # without end: the folder has to open years from now
RECOVERABLE, TRANSACTIONAL = 1, 2

#: The remote queue manager; only the test knows its port.
PEER = bytes(range(16))
SEQUENCE = 1_700_000_000 << 32 | 1
PORT = 11801
COUNT = 5  # messages of each kind
SEED = bytes(range(32))  # of the key of a restored folder


def versions() -> list[int]:
    return sorted(int(path.stem.rpartition("_")[2]) for path in DATA.glob("schema_*.sql"))


def every_version() -> list[int]:
    """Return all versions before the present one, also those of which no folder was saved."""
    return list(range(schema.FIRST_VERSION, schema.latest_version(schema.read_migrations())))


def restore(version: int, folder: Path, port: int) -> None:
    """Create the data folder of a version, with a peer that listens on `port`.

    If no folder of that version was saved, it is the one of the version before, upgraded: a new
    database of each version has the same tables, columns and indexes as an upgraded one.
    """
    saved = max(each for each in versions() if each <= version)
    script = (DATA / f"schema_{saved}.sql").read_text(encoding="utf-8")
    folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("PRAGMA page_size = 8192")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(script.replace(f":{PORT}", f":{port}"))
        for each in schema.read_migrations():
            if saved < each.version <= version:
                db.executescript(
                    f"BEGIN; {each.script}; PRAGMA user_version = {each.version}; COMMIT;"
                )
        _set_key(db, folder)


def _set_key(db: sqlite3.Connection, folder: Path) -> None:
    """Give the folder a key of its own: the rows have the digest of one that was not saved."""
    columns = [column for _, column, *_ in db.execute("PRAGMA table_info(identity)")]
    if "key_digest" in columns and db.execute("SELECT key_digest FROM identity").fetchone()[0]:
        (folder / key_file.NAME).write_bytes(key_file.encode(SEED))
        (folder / key_file.NAME).chmod(0o600)
        db.execute("UPDATE identity SET key_digest = ?", (key_file.digest(SEED),))
        db.commit()


def generate() -> str:
    """Return a folder with some of everything, as SQL."""
    base = scratch()
    forge = Forge()
    machine = Machine(forge, base / "machine")
    try:
        with RemoteQueueManager(PEER) as remote:
            machine.start()
            _fill(machine.connect(), remote)
            machine.terminate()
        with closing(sqlite3.connect(machine.data / "queues.db")) as db:
            return "\n".join(_dump(db)) + "\n"
    finally:
        machine.close()
        forge.close()
        shutil.rmtree(base)


def _fill(control: Control, remote: RemoteQueueManager) -> None:
    for queue, transactional in (("plain", False), ("fleeting", False), ("orders", True)):
        control.ask("create_queue", rf"private$\{queue}", transactional, "", queue == "plain")
    control.ask("send", [_message(r"private$\plain", n) for n in range(COUNT)], b"some token")
    control.ask("send", [_message(r"private$\orders", n) for n in range(COUNT)])
    control.ask("send", [_message(r"private$\plain", n, 9_000) for n in range(COUNT, 2 * COUNT)])
    out = rf"DIRECT=TCP:127.0.0.1:{PORT}\private$\q"
    for delivery in (RECOVERABLE, TRANSACTIONAL):
        control.ask("send", [_message(out, n, delivery=delivery) for n in range(COUNT)])
    fleeting = _message(r"private$\fleeting", 0)
    fleeting[6] = 1  # second to be received in
    control.ask("send", [fleeting])
    control.ask("peek", r"DIRECT=OS:.\SYSTEM$;DEADLETTER", 0, 1, -1.0)
    _receive(control, remote)


def _message(destination: str, number: int, size: int = 0, delivery: int = 3) -> list[object]:
    body = (b"%d" % number).ljust(size, b".")
    return [destination, body, f"number {number}", delivery, 3, LIFETIME_S, None, True, False]


def _receive(control: Control, remote: RemoteQueueManager) -> None:
    """Receive messages of the peer: some in order, some plain ones."""
    (listening,) = control.ask("status")["listen"]
    peer = remote.connect(int(str(listening).rpartition(":")[2]))
    peer.send_many([incoming(remote, number) for number in range(1, COUNT + 1)])
    peer.send_many([letter(remote, number) for number in range(1, COUNT + 1)])
    peer.wait_stored()
    peer.wait_order_ack(SEQUENCE, COUNT)


def incoming(remote: RemoteQueueManager, number: int) -> bytes:
    """Build message `number` of the peer's sequence, always the same."""
    return remote.transactional("orders", SEQUENCE, number, message_id=100 + number)


def letter(remote: RemoteQueueManager, number: int) -> bytes:
    body = b"letter %d" % number
    return remote.message("plain", body, recoverable=True, message_id=200 + number)


def _dump(db: sqlite3.Connection) -> Iterator[str]:
    """Dump tables and rows, with the numbers that identify the file."""
    yield f"-- A data folder of schema {_pragma(db, 'user_version')}: tests/crash/old_folder.py."
    yield from db.iterdump()
    for name in ("application_id", "user_version"):
        yield f"PRAGMA {name} = {_pragma(db, name)};"


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


if __name__ == "__main__":
    script = generate()
    version = int(script.rstrip(";\n").rpartition(" ")[2])
    path = DATA / f"schema_{version}.sql"
    with path.open("x", encoding="utf-8") as file:
        file.write(script)
    print(f"wrote {path}")
