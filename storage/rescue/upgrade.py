"""The schema of a data folder, and the migrations that a start would run; nothing is changed."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from storage.engine import schema
from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE, LOG
from storage.errors import CannotStart, ForeignDatabase
from storage.options import StorageOptions
from storage.storage import Storage
from storage.vault import StorageKey


class Step(NamedTuple):
    version: int  # of the schema after it
    name: str  # such as "groups"


class Plan(NamedTuple):
    present: int
    latest: int  # that this version of qmd knows
    steps: list[Step]
    database_bytes: int

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of qmd wrote the database."""
        return self.present > self.latest


def plan(folder: Path) -> Plan:
    """Return what an upgrade of the folder would do, also while a daemon serves it.

    Raises CannotStart, ForeignDatabase.
    """
    path = folder / DATABASE
    try:
        size = path.stat().st_size
        log = folder / LOG
        has_log = log.exists() and log.stat().st_size > 0
    except FileNotFoundError:
        raise CannotStart(f"there is no {DATABASE} in {folder}", code="no_database") from None
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {explain(error)}") from error
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (present,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise CannotStart(f"{path} cannot be read: {explain(error)}") from error
    if application != schema.APPLICATION_ID:
        raise ForeignDatabase(f"{path} is the database of another program")
    names = schema.migration_names()
    latest = max(names, default=schema.FIRST_VERSION)
    steps = [Step(version, name) for version, name in sorted(names.items()) if version > present]
    return Plan(present, latest, steps, size)


async def run(folder: Path, keys: tuple[StorageKey, ...]) -> None:
    """Run the migrations, as the start of a daemon does.  Raises CannotStart, StorageError."""
    options = StorageOptions(keys=keys, disk_reserve_bytes=0, disk_watermark_bytes=0)
    now_ms = int(time.time() * 1000)
    storage = await Storage.open(folder, options, now_ms=now_ms, new_id=os.urandom(16))
    await storage.close()
