"""The mark: what the folder held last, written down outside of its database.

A write-ahead log that was removed, cut or damaged leaves a database that is sound and has less in
it: SQLite cannot know.  So the file `mark` says after each commit whose folder this is and how far
the log goes.  A start compares: missing.py.

It is written through memory, without a sync, when the commit has returned.  A killed process
leaves it exact.  A loss of power may leave an older one, which never claims what is not there: it
speaks only of what had been synced when it was written.

The log's position alone cannot tell a log that was removed from one that another program (`sqlite3`
in an operator's hand) brought into the database and removed as it should.  So the first commit
after each start and each checkpoint counts one more *stretch*, in the table `counter`, and the mark
says which stretch the last commit belongs to.  A database that has lost its log has lost that, too.
The mark also says up to which stretch the database file alone has everything: an older copy of the
file has not.
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
SIZE_BYTES = _CONTENT.size + _CHECKSUM.size  # in one sector of any disk


class Mark(NamedTuple):
    queue_manager_id: bytes  # 16
    stretch: int  # of the last commit
    merged: int  # all up to this stretch is in the database file itself
    log: LogPosition
    is_accepted: bool = False  # an operator goes on with whatever is there


def encode(mark: Mark) -> bytes:
    """SIZE_BYTES."""
    content = _CONTENT.pack(
        _MAGIC, mark.is_accepted, mark.queue_manager_id, mark.stretch, mark.merged, *mark.log
    )
    return content + _CHECKSUM.pack(zlib.crc32(content))


def decode(data: bytes) -> Mark | None:
    """None for anything that `encode` has not made."""
    content, checksum = data[: _CONTENT.size], data[_CONTENT.size : SIZE_BYTES]
    if len(data) < SIZE_BYTES or _CHECKSUM.pack(zlib.crc32(content)) != checksum:
        return None
    magic, is_accepted, own_id, stretch, merged, salts, frames, of_log = _CONTENT.unpack(content)
    if magic != _MAGIC:
        return None
    return Mark(own_id, stretch, merged, LogPosition(salts, frames, of_log), bool(is_accepted))


class Marker:
    """Keeps the mark of an open database; after `open` only the writer's thread uses it."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._file: MarkFile | None = None
        self._index: LogIndex | None = None
        self._queue_manager_id = bytes(16)
        self._stretch = 0  # of the last commit
        self._next_stretch = 0  # of the commit under way
        self._merged = 0
        self._log = NOWHERE
        self._is_due = True

    def open(self, queue_manager_id: bytes, stretch: int) -> None:
        """SQLite has the database and its log's index open.  May raise OSError.

        On a full disk a folder that has no mark yet goes without one.
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
        """At the beginning of each transaction."""
        if self._is_due:
            self._next_stretch = counters.reserve(db, COUNTER, 1)

    def committed(self) -> int:
        """The transaction is on the disk: how many frames the log has now, 0 when that is unknown.

        May raise OSError; a full disk keeps the older mark.
        """
        assert self._index is not None
        log = read_index(self._index.head())
        if log != self._log or not log.frames:  # else the transaction had nothing to write
            self._log = log
            self._stretch = self._next_stretch
            self._is_due = False
            self._write()
        return log.frames

    def checkpoint_begins(self) -> None:
        """The next commit may be the first one that only the log has."""
        self._is_due = True

    def merged(self) -> None:
        """The database file has everything, and is synced.  May raise OSError."""
        self._merged = self._stretch
        self._write()

    def close(self) -> None:
        """After the database: closing the log's index ends the locks that SQLite has on it."""
        if self._index is not None:
            self._index.close()
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # an older mark does no harm
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
