"""Bringing the write-ahead log back into the database, behind the answers.

SQLite does it by itself inside the COMMIT that makes the log too long, and so whoever waits for
that commit waits for some thousand pages more.  Here the writer does it between two commits: those
of the first one are told meanwhile, and those of the next one wait no longer than they would have.

SQLite also ignores a checkpoint that fails.  Nothing is lost by that: the log stays, and the next
one copies every page again (recovery.py).  But a disk that fails is not to be trusted with the next
commit: it ends the storage, as a commit that fails does.  Only a full disk does not: the log stays
where it is, and what makes room for it is `Reserve`.

How long the log is SQLite tells nobody; it is read off its file, as sqlite.org/walformat.html has
it.  A log that was brought back is written again from its beginning, with other salts in its
header: its frames are those at the front that bear them.
"""

import sqlite3
import struct

from storage.engine.disk import LogFile
from storage.engine.hindrance import can_wait

_HEADER = struct.Struct(">8xI4x8s")  # page size, salts
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SALTS_OFFSET, _SALTS_BYTES = 8, 8  # in the header of a frame


def is_longer(log: LogFile, pages: int) -> bool:
    """Whether the log has more than so many pages.  Two reads.  May raise OSError."""
    header = log.read(0, _HEADER.size)
    if len(header) < _HEADER.size:
        return False
    page_bytes, salts = _HEADER.unpack(header)
    frame = _HEADER_BYTES + pages * (_FRAME_HEADER_BYTES + page_bytes)
    return log.read(frame + _SALTS_OFFSET, _SALTS_BYTES) == bytes(salts)


def run(db: sqlite3.Connection) -> bool:
    """As much of the log as no reader needs; it is begun anew by the commit after that.

    True: that was all of it, and the database is synced.  Raises sqlite3.Error, and not for a full
    disk, for want of memory or for another program that has the database: the next commit tries
    again.
    """
    try:
        ((is_busy, frames, merged),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except (sqlite3.Error, MemoryError) as error:
        if not can_wait(error):
            raise
        return False
    return not is_busy and bool(frames == merged)
