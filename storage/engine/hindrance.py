"""Causes that keep the storage from working, each with a remedy."""

import errno
import os
import sqlite3
from typing import NamedTuple

from storage.errors import StorageError


class Hindrance(NamedTuple):
    """A known cause: its code, and its remedy."""

    code: str
    remedy: str


_LOCKED = Hindrance(
    code="storage_locked",
    remedy="another program has queues.db locked: end it (an open sqlite3, a backup under way)",
)
_FULL = Hindrance(code="storage_full", remedy="the disk is full: free space on it")
_READ_ONLY = Hindrance(
    code="storage_read_only",
    remedy="the file system is read-only: find out why (`dmesg`), and mount it for writing",
)
_UNREADABLE = Hindrance(
    code="storage_unreadable",
    remedy="queues.db is damaged or not a database: examine the folder with `qmd check`",
)
_FAILING = Hindrance(
    code="storage_io_failed",
    remedy="the disk failed: check the kernel's messages (`dmesg`) before using it again",
)
_FORBIDDEN = Hindrance(
    code="storage_forbidden",
    remedy="make sure that user {user} may read and write the folder and its files",
)
_OTHER = Hindrance(code="", remedy="")

_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EIO: _FAILING,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
}
_FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
# another program has the database locked
_PASSING_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BY_SQLITE_CODE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CORRUPT: _UNREADABLE,
    sqlite3.SQLITE_NOTADB: _UNREADABLE,
    sqlite3.SQLITE_IOERR: _FAILING,
    sqlite3.SQLITE_CANTOPEN: _FORBIDDEN,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
}


def is_full(error: BaseException) -> bool:
    """Return whether SQLite or the system found no space on the disk.

    SQLite reports it for its own files, except for the log's index (`-shm`): if the index cannot
    grow, the disk is full too, and no data is lost, because SQLite can rebuild the index.
    """
    if isinstance(error, OSError):
        return _hindrance(error) is _FULL
    return getattr(error, "sqlite_errorcode", None) in _FULL_CODES


def is_short_of_memory(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, MemoryError) or code == sqlite3.SQLITE_NOMEM


def can_wait(error: BaseException) -> bool:
    """Return whether failed housekeeping may be retried later: the error left the disk unchanged.

    Returns False for a failing disk: its content is then unknown, and the daemon must stop.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return is_full(error) or is_short_of_memory(error) or code in _PASSING_CODES


def explain(error: OSError | sqlite3.Error) -> str:
    """Return the system's message and, if the cause is known, its remedy."""
    remedy = _hindrance(error).remedy.format(user=os.geteuid())
    return f"{error}; {remedy}" if remedy else str(error)


def cause(error: OSError | sqlite3.Error) -> str:
    """Return the code of the cause of this error; "" if the cause is not known."""
    return _hindrance(error).code


def _hindrance(error: OSError | sqlite3.Error) -> Hindrance:
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, _OTHER)
    if is_full(error):
        return _FULL
    return _BY_SQLITE_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _OTHER)


def words(error: BaseException | None) -> str:
    """Return a sentence about an error that has kept a batch from being written."""
    if isinstance(error, MemoryError):
        return "no memory is left"
    return explain(error) if isinstance(error, (OSError, sqlite3.Error)) else str(error)


def failed_by(what: str, error: BaseException) -> StorageError:
    """Return the error of a storage of which `what`, such as "a commit", has failed."""
    code = cause(error) if isinstance(error, (OSError, sqlite3.Error)) else ""
    return StorageError(f"{what} failed: {words(error)}", code=code)
