"""A consistent view of a database while another process writes to it.

A read transaction of SQLite keeps the state of one commit: no frame of the log up to that commit is
overwritten, and no page of the database file gets a newer state than that.  This module holds such
a transaction and reads the bytes of the pages itself, from the log and the file, because SQLite
has no function that returns them.  The daemon does not notice it, except that the log grows until
the snapshot is closed.

The index of the log (https://sqlite.org/walformat.html, 2.1) tells which commit the transaction
sees: it is read before and after the transaction has begun, until both are the same.

Locks of SQLite belong to the process, and end when it closes *any* descriptor of the file.  So a
snapshot opens its own descriptors before SQLite and closes them after it, and no process may make
one of a database that it has open itself.
"""

import contextlib
import mmap
import os
import sqlite3
import struct
import time
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE, LOG
from storage.engine.page_size import PAGE_SIZES
from storage.errors import BackupFailed

INDEX = "queues.db-shm"
ATTEMPTS_MAX = 10_000
PAUSE_S = 0.001
BUSY_TIMEOUT_MS = 10_000

_INDEX_BYTES = 136  # both copies of its head, and the state of checkpoints
_HEAD_BYTES = 48
# Of the head: version, change, initialized, page size, frames, pages; checksums and salts.
_HEAD = struct.Struct("=I4xIB1xHII24x")
_BACKFILLED = struct.Struct("=I")  # frames that a checkpoint has copied into the database
_LOG_HEADER_BYTES = 32
_FRAME_HEADER = struct.Struct(">I4x")
_FRAME_HEADER_BYTES = 24
_VERSION = 3_007_000


class _Head(NamedTuple):
    content: bytes  # all of it; it differs after each commit
    frames: int
    backfilled: int


class Snapshot:
    """The pages of a database at one commit; use it as a context manager.

    A daemon may have the database open, begin to serve it, or end.  Raises BackupFailed, OSError,
    sqlite3.Error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._resources = contextlib.ExitStack()
        self._file = -1
        self._log = -1
        self._in_log: dict[int, int] = {}  # by page: the offset of its newest state
        self.db: sqlite3.Connection
        self.pages = 0
        self.page_bytes = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as resources:
            self._open(resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def read(self, first: int, count: int) -> bytes:
        """Return the bytes of `count` pages from page `first`, counted from 0.  Raises OSError."""
        count, page_bytes = min(count, self.pages - first), self.page_bytes
        found = os.pread(self._file, count * page_bytes, first * page_bytes)
        data = bytearray(found.ljust(count * page_bytes, b"\0"))
        for number in range(count):
            offset = self._in_log.get(first + number + 1)
            if offset is not None:
                page = os.pread(self._log, page_bytes, offset)
                if len(page) < page_bytes:
                    raise BackupFailed("the write-ahead log became shorter during the backup")
                data[number * page_bytes : (number + 1) * page_bytes] = page
        return bytes(data)

    def _open(self, resources: contextlib.ExitStack) -> None:
        path = self._folder / DATABASE
        self._file = _open_file(resources, path)
        try:
            # A connection that only reads never copies the log into the database.
            self.db = sqlite3.connect(
                f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None
            )
            resources.callback(self.db.close)
            self.db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self.db.execute("PRAGMA query_only = ON")
            # Opens the log and its index, and creates them after a clean stop.
            self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._log = _open_file(resources, self._folder / LOG)
            (self.page_bytes,) = self.db.execute("PRAGMA page_size").fetchone()
            if self.page_bytes not in PAGE_SIZES:
                raise BackupFailed(f"{path} has pages of {self.page_bytes} bytes")
            self._begin(resources)
            (self.pages,) = self.db.execute("PRAGMA page_count").fetchone()
        except sqlite3.Error as error:
            raise BackupFailed(f"{path} cannot be read: {explain(error)}") from error

    def _begin(self, resources: contextlib.ExitStack) -> None:
        """Begin the transaction at a commit of which the frames are known."""
        index = _open_file(resources, self._folder / INDEX)
        memory = mmap.mmap(index, _INDEX_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        # The descriptors and this map are closed after the database: they were opened before its
        # transaction, and the order of the stack would be the reverse.
        resources.callback(self._end, memory)
        for _ in range(ATTEMPTS_MAX):
            before = _read_head(memory)
            self.db.execute("BEGIN")
            self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            after = _read_head(memory)
            if before is not None and after is not None and before.content == after.content:
                # With all frames copied, the transaction may read the file alone, and the log may
                # be written anew; but then no checkpoint writes to the file.
                if after.backfilled < after.frames:
                    self._find_frames(after.frames)
                return
            self.db.execute("ROLLBACK")
            time.sleep(PAUSE_S)
        raise BackupFailed("the database changes too fast for a consistent view")

    def _end(self, memory: mmap.mmap) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.db.close()
        memory.close()

    def _find_frames(self, frames: int) -> None:
        size = _FRAME_HEADER_BYTES + self.page_bytes
        for number in range(frames):
            offset = _LOG_HEADER_BYTES + number * size
            header = os.pread(self._log, _FRAME_HEADER.size, offset)
            if len(header) < _FRAME_HEADER.size:
                raise BackupFailed("the write-ahead log is shorter than its index says")
            (page,) = _FRAME_HEADER.unpack(header)
            self._in_log[page] = offset + _FRAME_HEADER_BYTES


def _read_head(memory: mmap.mmap) -> _Head | None:
    """Return the head of the index; None while it is being written."""
    data = memory[:_INDEX_BYTES]
    first, second = data[:_HEAD_BYTES], data[_HEAD_BYTES : 2 * _HEAD_BYTES]
    version, _, is_set_up, _, frames, _ = _HEAD.unpack(first)
    if first != second or version != _VERSION or not is_set_up:
        return None
    (backfilled,) = _BACKFILLED.unpack_from(data, 2 * _HEAD_BYTES)
    return _Head(first, frames, backfilled)


def _open_file(resources: contextlib.ExitStack, path: Path) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    resources.callback(os.close, file)
    return file
