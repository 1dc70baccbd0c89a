"""The mark: the last committed position of a data folder, recorded outside of its database.

If the write-ahead log was removed, cut or damaged, the database is still valid and has less in it:
SQLite cannot detect that.  So the file `mark` records after each commit which folder this is and
how far the log goes.  At start it is compared with the files: missing.py.

It is written through memory, without a sync, when the commit has returned.  After a killed process
it is exact.  After a loss of power it may be older, but it never claims more than is there: it
covers only commits that had been synced when it was written.

The log's position alone does not distinguish a log that was removed from one that another program
(such as `sqlite3`, run by an operator) copied into the database and removed properly.  So the first
commit after each start and each checkpoint increments a *stretch* number in the table `counter`,
and the mark records the stretch of the last commit.  A database that has lost its log has lost that
increment, too.  The mark also records up to which stretch the database file alone is complete: an
older copy of the file is not.
"""

import contextlib
import errno
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from storage.engine.disk import Disk, LogIndex, MarkFile
from storage.engine.log_position import NOWHERE, LogPosition, read_index
from storage.tables import counters

NAME = "mark"
COUNTER = "stretch"

_MAGIC = b"qmdM"
_CONTENT = struct.Struct(">4sB16sQQ8sQ8s")
_CHECKSUM = struct.Struct(">I")
SIZE_BYTES = _CONTENT.size + _CHECKSUM.size  # fits into one sector of any disk


class Mark(NamedTuple):
    queue_manager_id: bytes  # 16 bytes
    stretch: int  # of the last commit
    merged: int  # the database file itself contains all commits up to this stretch
    log: LogPosition
    is_accepted: bool = False  # an operator has accepted the loss of missing data


def encode(mark: Mark) -> bytes:
    """Encode a mark to SIZE_BYTES bytes."""
    content = _CONTENT.pack(
        _MAGIC, mark.is_accepted, mark.queue_manager_id, mark.stretch, mark.merged, *mark.log
    )
    return content + _CHECKSUM.pack(zlib.crc32(content))


def decode(data: bytes) -> Mark | None:
    """Decode a mark; None if the data was not made by `encode`."""
    content, checksum = data[: _CONTENT.size], data[_CONTENT.size : SIZE_BYTES]
    if len(data) < SIZE_BYTES or _CHECKSUM.pack(zlib.crc32(content)) != checksum:
        return None
    magic, is_accepted, own_id, stretch, merged, salts, frames, of_log = _CONTENT.unpack(content)
    if magic != _MAGIC:
        return None
    return Mark(own_id, stretch, merged, LogPosition(salts, frames, of_log), bool(is_accepted))


class Marker:
    """Writes the mark of an open database; after `open` only the writer's thread uses it."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._file: MarkFile | None = None
        self._index: LogIndex | None = None
        self._queue_manager_id = bytes(16)
        self._stretch = 0  # of the last commit
        self._next_stretch = 0  # of the commit in progress
        self._merged = 0
        self._log = NOWHERE
        self._is_due = True

    def open(self, queue_manager_id: bytes, stretch: int) -> None:
        """Open the mark; SQLite must have the database and its log's index open.  Raises OSError.

        On a full disk, a folder that has no mark yet continues without one.
        """
        before = decode(self._disk.read_mark(self._folder / NAME) or b"")
        self._merged = 0 if before is None else before.merged
        self._queue_manager_id = queue_manager_id
        self._stretch = self._next_stretch = stretch
        self._index = self._disk.open_index(self._folder / "queues.db-shm")
        self._log = read_index(self._index.head())
        try:
            self._file = self._disk.open_mark(self._folder / NAME, SIZE_BYTES)
            self._write()
            self._file.sync()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def begin(self, db: sqlite3.Connection) -> None:
        """Begin a stretch if one is due; called at the beginning of each transaction."""
        if self._is_due:
            self._next_stretch = counters.reserve(db, COUNTER, 1)

    def committed(self) -> LogPosition:
        """Record a durable transaction, and return the end of the log; NOWHERE: it is unknown.

        Raises OSError; on a full disk the older mark stays.
        """
        assert self._index is not None
        log = read_index(self._index.head())
        if log != self._log or not log.frames:  # otherwise the transaction wrote nothing
            self._log = log
            self._stretch = self._next_stretch
            self._is_due = False
            self._write()
        return log

    def checkpoint_begins(self) -> None:
        """Begin a stretch with the next commit: it may be the first one that only the log has."""
        self._is_due = True

    def merged(self) -> None:
        """Record that the database file is complete and synced.  Raises OSError."""
        self._merged = self._stretch
        self._write()

    def close(self) -> None:
        """Close the files, after the database: closing the index ends SQLite's locks on it."""
        if self._index is not None:
            self._index.close()
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # an older mark is harmless
            if self._disk.file_bytes(self._folder / "queues.db-wal") == 0:
                self.merged()
            self._file.sync()
        self._file.close()

    def _write(self) -> None:
        if self._file is None:
            return
        mark = Mark(self._queue_manager_id, self._stretch, self._merged, self._log)
        try:
            self._file.write(encode(mark))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
