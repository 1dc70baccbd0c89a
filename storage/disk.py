"""The storage's own dealings with the file system, in one object.

SQLite does the rest.  A simulated disk replaces both: this object, and the function that connects
to the database.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from storage.errors import FolderInUse
from storage.recovery import rewrite_log, sync_folder

CHUNK_BYTES = 1024 * 1024


class Lock:
    """Keeps other daemons out, until it is released or this process ends, however it does.

    Its file says whether the last holder came to a good end: if not, it names the process.
    """

    def __init__(self, file: int, *, was_abandoned: bool) -> None:
        self.was_abandoned = was_abandoned
        #: To be set when everything is closed as it should be.
        self.is_clean = False
        self._file = file

    def release(self) -> None:
        """The file stays: a name that is removed could be locked by two."""
        if self.is_clean:
            os.ftruncate(self._file, 0)
        os.close(self._file)


class LogFile:
    """The write-ahead log, to be read while SQLite has it open."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """Less, or nothing, where it ends.  May raise OSError."""
        return os.pread(self._file, size, offset)

    def sync(self) -> None:
        """Whether the disk still takes anything.  May raise OSError."""
        os.fsync(self._file)

    def close(self) -> None:
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
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            os.close(file)
            raise FolderInUse(f"{folder} is in use by process {holder or 'unknown'}") from None
        was_abandoned = os.fstat(file).st_size > 0
        # On a full disk this may fail, and then a log that is left behind must tell instead.
        with contextlib.suppress(OSError):
            os.pwrite(file, f"{os.getpid():<10}\n".encode("ascii"), 0)
            os.fsync(file)
        return Lock(file, was_abandoned=was_abandoned)

    def sync_folder(self, folder: Path) -> None:
        """Make the names of new files durable."""
        sync_folder(folder)

    def rewrite_log(self, path: Path) -> int:
        """Make what the log holds durable, whatever happened before: recovery.py."""
        return rewrite_log(path)

    def open_log(self, path: Path) -> LogFile:
        """One that is there."""
        return LogFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

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
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        path = folder / "probe"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
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
