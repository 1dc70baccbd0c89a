"""Checkpoints: copy the write-ahead log into the database between two commits.

By default SQLite runs a checkpoint inside the COMMIT that makes the log too long, so all callers of
that commit wait for the copy of some thousand pages.  Here the writer runs it between two commits:
the callers of the first commit are notified meanwhile, and those of the next one wait no longer
than they would have.

SQLite also ignores a checkpoint that fails.  No data is lost by that: the log stays, and the next
checkpoint copies every page again (recovery.py).  But a failing disk cannot be trusted with the
next commit, so a failed checkpoint stops the storage, as a failed commit does.  The exception is a
full disk: the log stays in place, and `Reserve` makes room for it.

Small commits stay within the file of the log.  A commit that makes it longer syncs the new size as
well: on ext4 by a transaction of the file system's journal, so that the sync of a message alone
takes half as long again.  So a log of small commits alone is checkpointed earlier (`SmallLog`), and
is written from its beginning again.

SQLite has no function that returns the length of the log; it is read from its file, in the format
of sqlite.org/walformat.html.  After a complete checkpoint the log is written again from its
beginning, with new salts in its header: its frames are those at the front that have these salts.
"""

import sqlite3
import struct

from storage.engine.disk import LogFile
from storage.engine.hindrance import can_wait
from storage.engine.log_position import LogPosition

_HEADER = struct.Struct(">8xI4x8s")  # page size, salts
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
#: Small commits make the file of the log longer up to this size; large ones further.
SMALL_LOG_BYTES = 8 * 1024 * 1024
#: More frames than the commit for a message alone has.
SMALL_FRAMES = 16
_SALTS_OFFSET, _SALTS_BYTES = 8, 8  # in the header of a frame


class SmallLog:
    """The end of the log's file, beyond which small commits do not go; for the event loop only."""

    def __init__(self, log: LogFile, page_bytes: int, frames_max: int) -> None:
        """Restart a log of more than `frames_max` frames in any case."""
        self._log = log
        self._frame_bytes = _FRAME_HEADER_BYTES + page_bytes
        self._frames_max = frames_max
        self._least_frames = min(SMALL_LOG_BYTES // self._frame_bytes, frames_max)
        self._asks_at = self._least_frames
        self._salts = b""

    def is_full(self, end: LogPosition) -> bool:
        """Return whether the log, which ends there, should restart before the next commit.

        If it cannot, because a reader needs it, the file grows by SMALL_LOG_BYTES before this is
        True again.  Raises OSError.
        """
        if end.salts != self._salts:  # it has restarted
            self._salts, self._asks_at = end.salts, self._least_frames
        frames = end.frames
        if frames <= self._asks_at:
            return False
        fitting = (self._log.size() - _HEADER_BYTES) // self._frame_bytes - SMALL_FRAMES
        is_full = frames > min(fitting, self._frames_max)
        following = frames + self._least_frames if is_full else fitting
        self._asks_at = min(following, self._frames_max)
        return is_full


def is_longer(log: LogFile, pages: int) -> bool:
    """Return whether the log has more than `pages` pages.  Takes two reads.  Raises OSError."""
    header = log.read(0, _HEADER.size)
    if len(header) < _HEADER.size:
        return False
    page_bytes, salts = _HEADER.unpack(header)
    frame = _HEADER_BYTES + pages * (_FRAME_HEADER_BYTES + page_bytes)
    return log.read(frame + _SALTS_OFFSET, _SALTS_BYTES) == bytes(salts)


def run(db: sqlite3.Connection) -> bool:
    """Copy as much of the log as no reader needs; the commit after that restarts the log.

    Returns True if that was the whole log and the database is synced.  Raises sqlite3.Error, but
    not for a full disk, lack of memory or a lock of another program: the next commit tries again.
    """
    try:
        ((is_busy, frames, merged),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except (sqlite3.Error, MemoryError) as error:
        if not can_wait(error):
            raise
        return False
    return not is_busy and bool(frames == merged)
