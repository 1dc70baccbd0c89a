"""The schema version of a database, and its upgrade to the present one.

A new database gets `schema.sql`, the whole present schema.  An older database is upgraded by the
files in `migrations/` instead, in order, each in a transaction of its own that also sets its
number.  The number is SQLite's `user_version`; `application_id` identifies the file as ours.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from storage.errors import ForeignDatabase, NewerSchema
from storage.tables import counters, tally
from storage.tables.queues import create_system_queues

APPLICATION_ID = 0x716D6431  # "qmd1"
FIRST_VERSION = 1

_HERE = Path(__file__).parent.parent


class Migration(NamedTuple):
    version: int  # of the schema afterwards
    script: str


class Identity(NamedTuple):
    queue_manager_id: bytes
    created_at_s: int
    seed: bytes = b""  # of its key, 32 bytes: key_file.py


def read_migrations(folder: Path = _HERE / "migrations") -> list[Migration]:
    """Read `0002_what_it_does.sql` and so on; the numbers follow `FIRST_VERSION` without a gap."""
    migrations = [
        Migration(int(file.name.partition("_")[0]), file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.sql"))
    ]
    for expected, migration in enumerate(migrations, FIRST_VERSION + 1):
        assert migration.version == expected, f"migration {expected:04} is missing"
    return migrations


def migration_names(folder: Path = _HERE / "migrations") -> dict[int, str]:
    """Return the name of each migration, in words, by the version of the schema after it."""
    files = sorted(folder.glob("*.sql"))
    parts = [file.stem.partition("_") for file in files]
    return {int(number): name.replace("_", " ") for number, _, name in parts}


def recognize(db: sqlite3.Connection, migrations: list[Migration]) -> None:
    """Check that the database is new or ours, without changes.  Raises ForeignDatabase,
    NewerSchema.
    """
    if _is_new(db):
        return
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise ForeignDatabase("queues.db is the database of another program")
    present, latest = _pragma(db, "user_version"), latest_version(migrations)
    if present > latest:
        raise NewerSchema(
            f"queues.db has schema {present}, and this version of qmd supports {latest} at most:"
            " install the newer version again"
        )


def prepare(
    db: sqlite3.Connection, migrations: list[Migration], *, now_s: int, new_id: bytes
) -> Identity:
    """Upgrade a recognized database to the present schema; return this queue manager's identity.

    A new database gets the identity `new_id`.
    """
    if _is_new(db):
        _create(db, latest_version(migrations), now_s, new_id)
    else:
        _upgrade(db, migrations)
    return Identity(*db.execute("SELECT queue_manager, created_at_s FROM identity").fetchone())


def latest_version(migrations: list[Migration]) -> int:
    return migrations[-1].version if migrations else FIRST_VERSION


def _is_new(db: sqlite3.Connection) -> bool:
    """Return whether the database is empty; also after a crash in the first start.

    The first start creates everything in one transaction.
    """
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return tables == 0 and _pragma(db, "application_id") == 0


def _create(db: sqlite3.Connection, version: int, now_s: int, new_id: bytes) -> None:
    script = (_HERE / "schema.sql").read_text(encoding="utf-8")
    with _transaction(db, script):
        db.execute(
            "INSERT INTO identity (id, queue_manager, created_at_s) VALUES (1, ?, ?)",
            (new_id, now_s),
        )
        create_system_queues(db, now_s)
        counters.set_following(db, tally.COUNTER, 0)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {version}")


def _upgrade(db: sqlite3.Connection, migrations: list[Migration]) -> None:
    present = _pragma(db, "user_version")
    for version, script in migrations:
        if version > present:
            with _transaction(db, script):
                db.execute(f"PRAGMA user_version = {version}")


@contextmanager
def _transaction(db: sqlite3.Connection, script: str) -> Iterator[None]:
    """Run a transaction that begins with the script, and roll all of it back on an error."""
    try:
        db.executescript(f"BEGIN IMMEDIATE; {script}")
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
