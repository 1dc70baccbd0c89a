"""The file operations of the storage, in one object.

SQLite does all other I/O.  A simulated disk replaces both: this object, and the function that
connects to the database.
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
from storage.engine.mounts import network_file_system
from storage.engine.recovery import rewrite_log, sync_folder
from storage.errors import CannotStart, FolderInUse

T = TypeVar("T")

CHUNK_BYTES = 1024 * 1024
SMALL_BYTES_MAX = 4096


class Lock:
    """An exclusive lock on the data folder; lasts until it is released or the process ends.

    The lock file shows whether the last holder stopped cleanly: if not, it names the process.  The
    folder is locked as well, because the file can be removed and replaced by one that is not
    locked.
    """

    def __init__(self, file: int, folder: int, *, was_abandoned: bool) -> None:
        self.was_abandoned = was_abandoned
        #: Set this when everything was closed properly.
        self.is_clean = False
        self._file = file
        self._folder = folder

    def release(self) -> None:
        """Release the lock.  The file stays: two processes could lock a name that is removed."""
        if self.is_clean:
            os.ftruncate(self._file, 0)
        os.close(self._file)
        os.close(self._folder)


class LogFile:
    """The write-ahead log, readable while SQLite has it open."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file.  Raises OSError."""
        data = self.read_some(offset, size)
        while len(data) < size and (more := self.read_some(offset + len(data), size - len(data))):
            data += more
        return data

    def read_some(self, offset: int, size: int) -> bytes:
        """Read once: the system may return fewer bytes than requested, none only at the end."""
        return os.pread(self._file, size, offset)

    def size(self) -> int:
        """Return its size in bytes; a checkpoint does not make it smaller.  Raises OSError."""
        return os.fstat(self._file).st_size

    def sync(self) -> None:
        """Sync, to find out whether the disk still accepts writes.  Raises OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class LogIndex:
    """The head of the log's index, which SQLite keeps in shared memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory = mmap.mmap(file, INDEX_HEAD_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)

    def head(self) -> bytes:
        return self._memory[:INDEX_HEAD_BYTES]

    def close(self) -> None:
        """Close the file, which ends SQLite's locks: close the database before."""
        self._memory.close()
        os.close(self._file)


class MarkFile:
    """The mark file, overwritten in place through memory, as SQLite writes the log's index.

    A write to the file itself would make the next sync of the log take longer.
    """

    def __init__(self, file: int, size_bytes: int) -> None:
        """Map the file, and extend it to `size_bytes` if it is shorter.  Raises OSError."""
        self._file = file
        if os.fstat(file).st_size < size_bytes:
            os.pwrite(file, bytes(size_bytes), 0)  # allocates the disk space that the mapping needs
        self._memory = mmap.mmap(file, size_bytes)

    def write(self, data: bytes) -> None:
        """Overwrite the content; `data` has as many bytes as the file was opened with."""
        self._memory[:] = data

    def sync(self) -> None:
        """Make the content durable.  Raises OSError."""
        # the same content, visible to tools that watch writes
        os.pwrite(self._file, self._memory[:], 0)
        os.fsync(self._file)

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)


class Disk:
    """The real disk.  Every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Create the folder with mode 0700: no other user may read messages.

        An existing folder keeps its mode.
        """
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in missing:
            sync_folder(path.parent)

    def network_file_system(self, folder: Path) -> str:
        """Return the type of the network file system that has the folder, or ""."""
        return network_file_system(folder)

    def lock(self, folder: Path) -> Lock:
        """Lock the folder for this process.  Raises FolderInUse."""
        with contextlib.ExitStack() as opened:
            whole = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, whole)
            _lock(whole, folder)
            file = _open_lock(folder)
            opened.callback(os.close, file)
            _lock(file, folder)
            opened.pop_all()
        was_abandoned = os.fstat(file).st_size > 0
        # On a full disk this may fail; an unclean stop is then detected by a log that was left
        # behind.
        with contextlib.suppress(OSError):
            os.pwrite(file, f"{os.getpid():<10}\n".encode("ascii"), 0)
            os.fsync(file)
        return Lock(file, whole, was_abandoned=was_abandoned)

    def sync_folder(self, folder: Path) -> None:
        """Make the names of new files durable."""
        sync_folder(folder)

    def rewrite_log(self, path: Path) -> int:
        """Make the content of the log durable, also after a failed sync (recovery.py).

        Returns the size of the log in bytes.
        """
        return rewrite_log(path)

    def open_log(self, path: Path) -> LogFile:
        """Open an existing log."""
        return LogFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_index(self, path: Path) -> LogIndex:
        """Open the index of a log that SQLite has open."""
        return LogIndex(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_mark(self, path: Path, size_bytes: int) -> MarkFile:
        """Open the mark file, and create it if it does not exist."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            return MarkFile(file, size_bytes)
        except OSError:
            os.close(file)
            raise

    def read_mark(self, path: Path) -> bytes | None:
        """Read the mark file; None if it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def read_small(self, path: Path) -> bytes | None:
        """Read the begin of a small file, never through a symbolic link; None if there is none."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with open(file, "rb") as opened:
            return opened.read(SMALL_BYTES_MAX)

    def create_small(self, path: Path, data: bytes) -> None:
        """Create or replace a small file, atomically and durably, with mode 0600."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(file)
        fresh.rename(path)
        sync_folder(path.parent)

    def examine(
        self, database: Path, *, has_log: bool, work: Callable[[sqlite3.Connection], T]
    ) -> tuple[T, bytes]:
        """Run `work` on a database that this process does not have open, with its log or without.

        Returns the result of `work`, and the head of the log's index as SQLite has rebuilt it from
        the log. SQLite changes neither file: a read-only connection does not checkpoint.
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
            # SQLite found less than a killed process had committed: its index is evidence of that,
            # and is restored.
            with open(os.open(index, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as out:
                out.write(before)
        return found, head

    def exists(self, path: Path) -> bool:
        return path.exists()

    def file_bytes(self, path: Path) -> int:
        """Return the size of a file in bytes; 0 if it does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def free_bytes(self, folder: Path) -> int:
        """Return the free space for an ordinary user, in bytes."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def reserve(self, path: Path, size_bytes: int) -> None:
        """Allocate `size_bytes` of the disk for the file.  Removes the file on failure."""
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
        """Create and remove a file: SQLite reports only that it cannot open one, the system reports
        why.
        """
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


def check_neighbours(folder: Path) -> None:
    """Raise CannotStart if root must not make another folder beside `folder`.

    The owner of a folder above could put a link in the place of the new one at any moment, and so
    lead root to other files, which it would give to that owner.
    """
    if os.geteuid() != 0:
        return
    for above in folder.resolve().parents:
        if owner := above.stat().st_uid:
            raise CannotStart(
                f"{above} belongs to user {owner}, which could exchange files that root makes in"
                " it: run this command as that user"
            )


def _open_lock(folder: Path) -> int:
    """Open or create the lock file, never through a symbolic link.

    root may run this in a folder of another user, and must not lock its owner out.
    """
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
    """Lock an open file or folder.  Raises FolderInUse, OSError."""
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
