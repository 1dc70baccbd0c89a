"""The storage's own dealings with the file system, in one object.

SQLite does the rest.  A simulated disk replaces both: this object, and the function that connects
to the database.
"""

import contextlib
import fcntl
import mmap
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from storage.engine.log_position import INDEX_HEAD_BYTES, read_index
from storage.engine.recovery import rewrite_log, sync_folder
from storage.errors import FolderInUse

T = TypeVar("T")

CHUNK_BYTES = 1024 * 1024


class Lock:
    """Keeps other daemons out, until it is released or this process ends, however it does.

    Its file says whether the last holder came to a good end: if not, it names the process.  The
    folder is locked as well: the file can be removed, and another made that is free.
    """

    def __init__(self, file: int, folder: int, *, was_abandoned: bool) -> None:
        self.was_abandoned = was_abandoned
        #: To be set when everything is closed as it should be.
        self.is_clean = False
        self._file = file
        self._folder = folder

    def release(self) -> None:
        """The file stays: a name that is removed could be locked by two."""
        if self.is_clean:
            os.ftruncate(self._file, 0)
        os.close(self._file)
        os.close(self._folder)


class LogFile:
    """The write-ahead log, to be read while SQLite has it open."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """Less, or nothing, only where it ends.  May raise OSError."""
        data = self.read_some(offset, size)
        while len(data) < size and (more := self.read_some(offset + len(data), size - len(data))):
            data += more
        return data

    def read_some(self, offset: int, size: int) -> bytes:
        """A system may return less than was asked for; nothing only at the end."""
        return os.pread(self._file, size, offset)

    def sync(self) -> None:
        """Whether the disk still takes anything.  May raise OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class LogIndex:
    """The head of the log's index, which SQLite keeps in memory that processes share."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory = mmap.mmap(file, INDEX_HEAD_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)

    def head(self) -> bytes:
        return self._memory[:INDEX_HEAD_BYTES]

    def close(self) -> None:
        """Only when this process has the database closed: it ends SQLite's locks on the file."""
        self._memory.close()
        os.close(self._file)


class MarkFile:
    """The mark, to be written over itself: through memory, as SQLite writes the log's index.

    A write to the file itself would make the next sync of the log take longer.
    """

    def __init__(self, file: int, size_bytes: int) -> None:
        """May raise OSError."""
        self._file = file
        if os.fstat(file).st_size < size_bytes:
            os.pwrite(file, bytes(size_bytes), 0)  # takes up the room that memory will need
        self._memory = mmap.mmap(file, size_bytes)

    def write(self, data: bytes) -> None:
        """As many bytes as the file was opened with."""
        self._memory[:] = data

    def sync(self) -> None:
        """May raise OSError."""
        os.pwrite(self._file, self._memory[:], 0)  # the same, and seen by who watches writes
        os.fsync(self._file)

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)


class Disk:
    """The real one.  Every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Nobody else may read messages: mode 0700.  An existing folder keeps its mode."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in missing:
            sync_folder(path.parent)

    def lock(self, folder: Path) -> Lock:
        """Raises FolderInUse."""
        with contextlib.ExitStack() as opened:
            whole = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, whole)
            _lock(whole, folder)
            file = _open_lock(folder)
            opened.callback(os.close, file)
            _lock(file, folder)
            opened.pop_all()
        was_abandoned = os.fstat(file).st_size > 0
        # On a full disk this may fail, and then a log that is left behind must tell instead.
        with contextlib.suppress(OSError):
            os.pwrite(file, f"{os.getpid():<10}\n".encode("ascii"), 0)
            os.fsync(file)
        return Lock(file, whole, was_abandoned=was_abandoned)

    def sync_folder(self, folder: Path) -> None:
        """Make the names of new files durable."""
        sync_folder(folder)

    def rewrite_log(self, path: Path) -> int:
        """Make what the log holds durable, whatever happened before: recovery.py."""
        return rewrite_log(path)

    def open_log(self, path: Path) -> LogFile:
        """One that is there."""
        return LogFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_index(self, path: Path) -> LogIndex:
        """One that SQLite has open."""
        return LogIndex(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_mark(self, path: Path, size_bytes: int) -> MarkFile:
        """Made when there is none."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            return MarkFile(file, size_bytes)
        except OSError:
            os.close(file)
            raise

    def read_mark(self, path: Path) -> bytes | None:
        """None: there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def examine(
        self, database: Path, *, has_log: bool, work: Callable[[sqlite3.Connection], T]
    ) -> tuple[T, bytes]:
        """What `work` finds in a database that this process has not open, with its log or without;
        and the head of the log's index, as SQLite has made it from the log.

        SQLite changes neither file: a connection that only reads brings no log into the database.
        """
        mode = "mode=ro" if has_log else "mode=ro&immutable=1"
        index = database.with_name(f"{database.name}-shm")
        before = index.read_bytes() if has_log and index.exists() else b""
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(database))}?{mode}", uri=True)
        ) as db:
            found = work(db)
        if not has_log or not index.exists():
            return found, b""
        head = index.read_bytes()[:INDEX_HEAD_BYTES]
        if read_index(head).frames < read_index(before).frames:
            # What SQLite has found is less than a process that was killed had committed: its index
            # is a witness of that, and stays.
            with open(os.open(index, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as out:
                out.write(before)
        return found, head

    def exists(self, path: Path) -> bool:
        return path.exists()

    def file_bytes(self, path: Path) -> int:
        """0 when there is no such file."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def free_bytes(self, folder: Path) -> int:
        """What an ordinary user may still write."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def reserve(self, path: Path, size_bytes: int) -> None:
        """Take up `size_bytes` of the disk for the file.  Leaves no part of it on failure."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._allocate(file, size_bytes)
            os.ftruncate(file, size_bytes)
            os.fsync(file)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(file)

    def probe(self, folder: Path) -> None:
        """Make a file and remove it: SQLite says that it cannot open one, and the system why."""
        path = folder / f"probe.{os.getpid()}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.unlink()

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def _allocate(self, file: int, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fallocate(file, 0, size_bytes)
            return
        # Some file systems cannot allocate without writing; on a full one this fails as well.
        zeros = bytes(CHUNK_BYTES)
        for offset in range(0, size_bytes, CHUNK_BYTES):
            os.pwrite(file, zeros[: size_bytes - offset], offset)


def _open_lock(folder: Path) -> int:
    """Never through a link: root may run this in a folder of somebody else, and examining it must
    not lock the owner out."""
    path, flags = folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, 0o600)
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def _lock(file: int, folder: Path) -> None:
    """Raises FolderInUse, OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUse(f"{folder} is in use by {_holder(folder / 'lock')}") from None


def _holder(path: Path) -> str:
    try:
        number = path.read_text("ascii", "replace")[:32].strip()
    except FileNotFoundError:
        return f"another process; the file {path.name}, which would name it, was removed"
    return f"process {number or 'unknown'}"
