"""What keeps the storage from working, in words that say what to do."""

import errno
import os
import sqlite3

_LOCKED = "another program has queues.db locked: end it (an open sqlite3, a backup under way)"
_FULL = "the disk is full: make room on it"
_READ_ONLY = "the file system is read-only: find out why (`dmesg`), and mount it for writing"
_UNREADABLE = "queues.db is damaged, or no database at all: examine the folder with `qmd check`"
_FAILING = "the disk failed: see what the kernel says (`dmesg`) before trusting it again"

_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EIO: _FAILING,
}
_BY_SQLITE_CODE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CORRUPT: _UNREADABLE,
    sqlite3.SQLITE_NOTADB: _UNREADABLE,
    sqlite3.SQLITE_IOERR: _FAILING,
}


def explain(error: OSError | sqlite3.Error) -> str:
    """The system's words, and, where the cause is known, what to do about it."""
    if isinstance(error, OSError):
        is_forbidden = error.errno in (errno.EACCES, errno.EPERM)
        remedy = _BY_ERRNO.get(error.errno or 0)
    else:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        is_forbidden = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
        remedy = _BY_SQLITE_CODE.get(code)
    if is_forbidden:
        remedy = f"see that user {os.geteuid()} may read and write the folder and its files"
    return f"{error}; {remedy}" if remedy else str(error)
