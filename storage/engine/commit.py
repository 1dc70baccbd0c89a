"""The commit of a batch, on a full disk as well, and the return of free pages to the file system.

These functions run on the thread that has the connection: writer.py decides which that is.
"""

import sqlite3

from storage.engine.batch import Batch
from storage.engine.hindrance import can_wait, is_full, is_short_of_memory
from storage.engine.mark import Marker
from storage.engine.reserve import Reserve

#: Pages that a commit on a full disk frees at once: 1 MiB, or 2 in pages of 8 KiB; some 10 ms.
VACUUM_PAGES = 256
#: The same after messages were rejected for lack of space: 32 or 64 MiB, some 0.3 s.
VACUUM_PAGES_MAX = 8192


class NotNow(Exception):
    """A batch was undone for lack of space or memory; the cause says which."""


def commit(db: sqlite3.Connection, batch: Batch, reserve: Reserve, marker: Marker) -> int:
    """Commit, on the connection's thread; return the number of frames in the log, 0 if unknown.

    Raises NotNow, or any other error that kept the batch from becoming durable.
    """
    try:
        write(db, batch, marker)
    except (sqlite3.Error, MemoryError) as error:
        if not is_full(error):
            if is_short_of_memory(error):
                raise NotNow from error
            raise
        try:
            _write_without_room(db, batch, reserve, marker, error)
        except sqlite3.Error as again:
            if is_full(again):
                raise NotNow from again
            raise
    frames = marker.committed().frames
    if reserve.is_short():
        _make_room(db, reserve, marker)
        reserve.take()
    batch.read(db)
    return frames


def _write_without_room(
    db: sqlite3.Connection, batch: Batch, reserve: Reserve, marker: Marker, error: Exception
) -> None:
    """Retry with the space of the reserve; then retry without the units that can wait."""
    if reserve.give_up():
        _make_room(db, reserve, marker)  # checkpoint the commits in the log first
        if reserve.leaves_room_after(batch.load.bytes):
            try:
                write(db, batch, marker)  # once more, from the beginning
                return
            except sqlite3.Error as again:
                if not is_full(again):
                    raise
                error = again
    elif reserve.leaves_room_after(batch.load.bytes):
        _make_room(db, reserve, marker)  # other programs may have freed some space
    if not batch.leave_out():
        raise error
    write(db, batch, marker)


def write(db: sqlite3.Connection, batch: Batch, marker: Marker) -> None:
    try:
        batch.write(db, marker.begin)
    except BaseException:
        # On a full disk SQLite has often done so itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _make_room(db: sqlite3.Connection, reserve: Reserve, marker: Marker) -> None:
    """Checkpoint the log and return free pages to the file system, as far as the disk allows."""
    if reserve.held and pragma(db, "freelist_count") == 0:
        return
    if not reserve.lets_grow(pragma(db, "page_count") * pragma(db, "page_size")):
        return  # a partial checkpoint would use the space that deletions need
    pages = VACUUM_PAGES_MAX if reserve.was_refused else VACUUM_PAGES
    marker.checkpoint_begins()
    try:
        _empty_log(db)
        vacuum(db, pages)
        _empty_log(db)
    except (sqlite3.Error, MemoryError) as error:
        if not can_wait(error):
            raise
    reserve.look_again()


def vacuum(db: sqlite3.Connection, pages_max: int) -> int:
    """Return free pages at the end of the file to the file system; return how many are left."""
    # executescript, because execute would step only once and free a single page.
    db.executescript(f"PRAGMA incremental_vacuum({pages_max})")
    return pragma(db, "freelist_count")


def _empty_log(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
