"""Whether a folder lacks what was acknowledged: its files compared with its mark (mark.py).

Nothing is changed by it, and nothing of what is looked at by SQLite: a refused folder is left as it
was found.  A folder without a mark is new, or from a version that made none; then only the files
themselves can bear witness.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

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
RESERVE = "reserve"  # made when a folder begins to serve

_UNREADABLE = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # no such table
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,  # the first start was cut off, and its journal is there
        sqlite3.SQLITE_CANTOPEN,
    }
)

REMEDY = (
    "bring the files back if you can; else see what is left with `qmd check`, save it with"
    " `qmd check --repair FILE`, and go on without what is missing with `qmd check --accept-loss`"
)


class Content(NamedTuple):
    """What SQLite finds in a database."""

    queue_manager_id: bytes  # b"": not even that
    stretch: int


def refuse(folder: Path, disk: Disk) -> None:
    """Raises DataMissing, OSError, sqlite3.Error."""
    lost = find(folder, disk)
    if lost is not None:
        raise DataMissing(
            f"what was acknowledged is missing in the data folder {folder}: {lost}; {REMEDY}"
        )


def find(folder: Path, disk: Disk | None = None) -> str | None:
    """What is missing, in a sentence; None when nothing is.  Raises OSError, sqlite3.Error."""
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
    return lost


def has_database(folder: Path, disk: Disk | None = None) -> bool:
    """Whether there is a file that could be one.  Raises OSError."""
    return (disk or Disk()).file_bytes(folder / DATABASE) > 0


def _without_database(folder: Path, disk: Disk, *, has_served: bool) -> str | None:
    exists = disk.exists(folder / DATABASE)
    if not has_served and disk.file_bytes(folder / RESERVE) == 0:
        if disk.file_bytes(folder / LOG) == 0:
            return None
        with closing(disk.open_log(folder / LOG)) as log:
            # One commit alone: the first start was cut off before it had ended.
            if not has_two_commits(log):
                return None
    return f"{DATABASE} is {'empty' if exists else 'gone'}, and the folder has served"


def _of_the_log(folder: Path, disk: Disk, mark: Mark, end: LogPosition) -> str | None:
    if end.salts != mark.log.salts or end == NOWHERE:
        return None  # it has begun anew
    if end.frames < mark.log.frames:
        with closing(disk.open_log(folder / LOG)) as log:
            if lacks_only_padding(log, end, mark.log):
                return None
        return f"{LOG} is damaged or cut off: of {mark.log.frames} frames {end.frames} are left"
    if end.frames == mark.log.frames and end.checksum != mark.log.checksum:
        return f"{LOG} has other content than was written"
    return None


def _of_the_database(
    mark: Mark, alone: Content | None, whole: Content | None, end: LogPosition
) -> str | None:
    """`alone`: what the file holds by itself, which may be in the midst of a checkpoint."""
    if whole is not None and whole.queue_manager_id not in (b"", mark.queue_manager_id):
        return (
            f"{DATABASE} is that of queue manager {UUID(bytes_le=whole.queue_manager_id)}, and the"
            f" folder was that of {UUID(bytes_le=mark.queue_manager_id)}"
        )
    if alone is not None and alone.queue_manager_id and alone.stretch < mark.merged:
        return f"{DATABASE} is older than the one that was here: a copy has taken its place"
    if whole is None:
        return None
    if whole.queue_manager_id and whole.stretch >= mark.stretch:
        return None
    if end == NOWHERE:
        return f"{LOG} is gone or has no content that can be read"
    return f"{LOG} is not the one that was here, or its beginning is damaged"


def _in_the_middle(folder: Path, disk: Disk, end: LogPosition) -> str | None:
    with closing(disk.open_log(folder / LOG)) as log:
        frames = end.frames if end.salts == log_salts(log) else 0
        if is_damaged_behind(log, frames):
            return f"{LOG} is damaged behind frame {frames}, and has intact commits after that"
    return None


def _content(db: sqlite3.Connection) -> Content | None:
    """None where it cannot be read: what that means is the start's own business.

    Raises sqlite3.Error where another try might succeed.
    """
    try:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counter'").fetchone():
            return Content(b"", 0)
        (own_id,) = db.execute("SELECT queue_manager FROM identity").fetchone() or (b"",)
        return Content(own_id, counters.following(db, marks.COUNTER) - 1)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREADABLE:
            return None
        raise


def accept(folder: Path) -> Path | None:
    """Let the next start of a locked folder take what is there; where the log was put aside.

    Raises OSError.
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
    """The log as it is under a name of its own: the next start overwrites what it cannot read."""
    number = 1
    while (kept := log.with_name(f"{log.name}.lost.{number}")).exists():
        number += 1
    if is_needed:
        _create(kept, log.read_bytes())
    else:
        log.rename(kept)
    return kept


def _create(path: Path, data: bytes) -> None:
    """A new file, durably: never one that somebody has put there.  It is its folder's owner's."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(file)
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
