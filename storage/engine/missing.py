"""Detection of missing data: compares the files of a folder with its mark (mark.py).

The check changes no file, and neither does SQLite when it reads them: a rejected folder is left as
it was found.  A folder without a mark is new, or was made by a version that wrote none; then only
the files themselves are evidence.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from storage.engine import key_file
from storage.engine import mark as marks
from storage.engine.disk import Disk
from storage.engine.log_position import (
    NOWHERE,
    LogPosition,
    has_two_commits,
    is_damaged_behind,
    lacks_only_padding,
    log_salts,
    read_index,
)
from storage.engine.mark import Mark
from storage.engine.recovery import sync_folder
from storage.errors import DataMissing
from storage.tables import counters

DATABASE = "queues.db"
LOG = "queues.db-wal"
RESERVE = "reserve"  # created when a folder is first used

_UNREADABLE = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # no such table
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,  # the first start was interrupted and left its journal
        sqlite3.SQLITE_CANTOPEN,
    }
)

REMEDY = (
    "restore the files if possible; otherwise check which messages remain (`qmd check`), save them"
    " (`qmd check --repair FILE`), and continue without the missing ones (`qmd check"
    " --accept-loss`)"
)


class Content(NamedTuple):
    """The identity and the stretch that SQLite finds in a database."""

    queue_manager_id: bytes  # b"" if unknown
    stretch: int
    key_digest: bytes = b""  # of the recorded key; b"": none is recorded


def refuse(folder: Path, disk: Disk) -> None:
    """Reject a folder with missing data.  Raises DataMissing, OSError, sqlite3.Error."""
    lost = find(folder, disk)
    if lost is not None:
        raise DataMissing(
            f"acknowledged data is missing in the data folder {folder}: {lost}; {REMEDY}"
        )


def find(folder: Path, disk: Disk | None = None) -> str | None:
    """Return a sentence about the missing data, or None.  Raises OSError, sqlite3.Error."""
    disk = disk or Disk()
    kept = disk.read_mark(folder / marks.NAME)
    mark = marks.decode(kept or b"")
    if mark is not None and mark.is_accepted:
        return None
    if not has_database(folder, disk):
        return _without_database(folder, disk, has_served=kept is not None)
    has_log = disk.file_bytes(folder / LOG) > 0
    alone, _ = disk.examine(folder / DATABASE, has_log=False, work=_content)
    whole, head = alone, b""
    if has_log:
        whole, head = disk.examine(folder / DATABASE, has_log=True, work=_content)
    end = read_index(head)
    lost = None
    if mark is not None:
        lost = _of_the_log(folder, disk, mark, end) or _of_the_database(mark, alone, whole, end)
    if lost is None and has_log:
        lost = _in_the_middle(folder, disk, end)
    if lost is None and whole is not None and whole.key_digest:
        lost = key_file.find_fault(folder, disk, whole.key_digest)
    return lost


def has_database(folder: Path, disk: Disk | None = None) -> bool:
    """Return whether the folder has a non-empty database file.  Raises OSError."""
    return (disk or Disk()).file_bytes(folder / DATABASE) > 0


def _without_database(folder: Path, disk: Disk, *, has_served: bool) -> str | None:
    exists = disk.exists(folder / DATABASE)
    if not has_served and disk.file_bytes(folder / RESERVE) == 0:
        if disk.file_bytes(folder / LOG) == 0:
            return None
        with closing(disk.open_log(folder / LOG)) as log:
            # A single commit: the first start was interrupted.
            if not has_two_commits(log):
                return None
    return f"{DATABASE} is {'empty' if exists else 'gone'}, although the folder has been in use"


def _of_the_log(folder: Path, disk: Disk, mark: Mark, end: LogPosition) -> str | None:
    if end.salts != mark.log.salts or end == NOWHERE:
        return None  # the log was restarted
    if end.frames < mark.log.frames:
        with closing(disk.open_log(folder / LOG)) as log:
            if lacks_only_padding(log, end, mark.log):
                return None
        return f"{LOG} is damaged or cut off: of {mark.log.frames} frames {end.frames} are left"
    if end.frames == mark.log.frames and end.checksum != mark.log.checksum:
        return f"{LOG} does not have the content that was written"
    return None


def _of_the_database(
    mark: Mark, alone: Content | None, whole: Content | None, end: LogPosition
) -> str | None:
    """Compare the database with the mark; return a sentence about missing data, or None.

    `alone` is the content of the database file without its log, possibly in the middle of a
    checkpoint.
    """
    if whole is not None and whole.queue_manager_id not in (b"", mark.queue_manager_id):
        return (
            f"{DATABASE} belongs to queue manager {UUID(bytes_le=whole.queue_manager_id)}, and the"
            f" folder belonged to {UUID(bytes_le=mark.queue_manager_id)}"
        )
    if alone is not None and alone.queue_manager_id and alone.stretch < mark.merged:
        return f"{DATABASE} is older than the mark: it was replaced by an older copy"
    if whole is None:
        return None
    if whole.queue_manager_id and whole.stretch >= mark.stretch:
        return None
    if end == NOWHERE:
        return f"{LOG} is gone or has no content that can be read"
    return f"{LOG} is not the former file, or its beginning is damaged"


def _in_the_middle(folder: Path, disk: Disk, end: LogPosition) -> str | None:
    with closing(disk.open_log(folder / LOG)) as log:
        frames = end.frames if end.salts == log_salts(log) else 0
        if is_damaged_behind(log, frames):
            return f"{LOG} is damaged after frame {frames}, with intact commits after the damage"
    return None


def _content(db: sqlite3.Connection) -> Content | None:
    """Read identity and stretch; None if the database is unreadable, which the start reports
    itself.

    Raises sqlite3.Error if another attempt might succeed.
    """
    try:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counter'").fetchone():
            return Content(b"", 0)
        # Databases of earlier versions have fewer columns.
        _, own_id, _, *key = db.execute("SELECT * FROM identity").fetchone() or (1, b"", 0)
        return Content(own_id, counters.following(db, marks.COUNTER) - 1, *filter(None, key))
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREADABLE:
            return None
        raise


def accept(folder: Path) -> Path | None:
    """Let the next start of a locked folder accept the present data.

    Returns the path to which the log was copied or moved, or None.  Raises OSError.
    """
    kept = None
    log = folder / LOG
    if log.exists() and log.stat().st_size:
        kept = _aside(log, is_needed=has_database(folder))
    fresh = folder / f"{marks.NAME}.new"
    fresh.unlink(missing_ok=True)
    _create(fresh, marks.encode(Mark(bytes(16), 0, 0, NOWHERE, is_accepted=True)))
    fresh.rename(folder / marks.NAME)
    sync_folder(folder)
    return kept


def _aside(log: Path, *, is_needed: bool) -> Path:
    """Keep the log under another name: the next start overwrites a log that it cannot read."""
    number = 1
    while (kept := log.with_name(f"{log.name}.lost.{number}")).exists():
        number += 1
    if is_needed:
        _create(kept, log.read_bytes())
    else:
        log.rename(kept)
    return kept


def _create(path: Path, data: bytes) -> None:
    """Create a file durably, with the owner of its folder; never open an existing file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(file)
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
