"""The file operations of the storage package, on a simulated disk."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from storage.engine.disk import Disk as StorageDisk
from storage.engine.disk import Lock, LogFile, LogIndex, MarkFile
from storage.engine.log_position import INDEX_HEAD_BYTES
from tests.simulation import vfs
from tests.simulation.disk import BorrowedDisk, Fault, File, SimulatedDisk

T = TypeVar("T")


class SimulatedLock(Lock):
    def __init__(self, disk: SimulatedDisk, file: File, *, was_abandoned: bool) -> None:
        super().__init__(-1, -1, was_abandoned=was_abandoned)
        self._disk = disk
        self._content = file

    def release(self) -> None:
        if self.is_clean:
            self._disk.truncate(self._content, 0)


class SimulatedLogFile(LogFile):
    def __init__(self, disk: SimulatedDisk, file: File) -> None:
        super().__init__(-1)
        self._disk = disk
        self._content = file

    def read_some(self, offset: int, size: int) -> bytes:
        if self._disk.faults.planned and self._disk.faults.meets(Fault.SHORT_READ):
            size = self._disk.random.randrange(1, size + 1)
        return self._content.contents.read(offset, size)

    def size(self) -> int:
        return self._content.contents.size()

    def sync(self) -> None:
        pass  # an error of a sync was reported by an earlier one

    def close(self) -> None:
        pass


class SimulatedLogIndex(LogIndex):
    def __init__(self, file: File) -> None:
        self._content = file

    def head(self) -> bytes:
        return head_of_index(self._content)

    def close(self) -> None:
        pass


class SimulatedMarkFile(MarkFile):
    def __init__(self, disk: SimulatedDisk, file: File) -> None:
        self._disk = disk
        self._content = file

    def write(self, data: bytes) -> None:
        self._disk.write(self._content, 0, data)

    def sync(self) -> None:
        self._disk.sync(self._content)

    def close(self) -> None:
        pass


def head_of_index(database: File) -> bytes:
    """Return the head of the index of a database's log, which is memory that its handles share."""
    regions = database.lock.regions if database.lock is not None else []
    return bytes(memoryview(regions[0])[:INDEX_HEAD_BYTES]) if regions else b""


class DiskOfStorage(StorageDisk):
    """The storage package's access to the file system, on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def network_file_system(self, folder: Path) -> str:
        return ""

    def make_folder(self, folder: Path) -> None:
        pass

    def lock(self, folder: Path) -> Lock:
        """Lock the folder; a host runs one daemon, so that only an abandoned lock is detected."""
        path = f"{folder}/lock"
        file = self._disk.find(path) or self._disk.create(path)
        was_abandoned = file.contents.size() > 0
        with contextlib.suppress(OSError):
            self._disk.write(file, 0, b"1")
            self._disk.sync(file)
        return SimulatedLock(self._disk, file, was_abandoned=was_abandoned)

    def sync_folder(self, folder: Path) -> None:
        self._disk.sync_folder()

    def rewrite_log(self, path: Path) -> int:
        file = self._disk.find(str(path))
        if file is None:
            return 0
        if file.contents.size():
            self._disk.write(file, 0, bytes(file.contents.content))
        self._disk.sync(file)
        self._disk.sync_folder()
        return file.contents.size()

    def open_log(self, path: Path) -> LogFile:
        file = self._disk.find(str(path))
        assert file is not None
        return SimulatedLogFile(self._disk, file)

    def open_index(self, path: Path) -> LogIndex:
        file = self._disk.find(str(path).removesuffix("-shm"))
        assert file is not None
        return SimulatedLogIndex(file)

    def open_mark(self, path: Path, size_bytes: int) -> MarkFile:
        file = self._disk.find(str(path)) or self._disk.create(str(path))
        return SimulatedMarkFile(self._disk, file)

    def read_mark(self, path: Path) -> bytes | None:
        file = self._disk.find(str(path))
        return None if file is None else bytes(file.contents.read(0, file.contents.size()))

    def read_small(self, path: Path) -> bytes | None:
        return self.read_mark(path)

    def create_small(self, path: Path, data: bytes) -> None:
        """Create the file; it is not atomic, like an interrupted first start of another kind."""
        file = self._disk.find(str(path)) or self._disk.create(str(path))
        self._disk.write(file, 0, data)
        self._disk.sync(file)
        self._disk.sync_folder()

    def examine(
        self, database: Path, *, has_log: bool, work: Callable[[sqlite3.Connection], T]
    ) -> tuple[T, bytes]:
        """Run `work` on a copy of the database; return its result and the log index's head."""
        image = self._disk.image(durable=False)
        if not has_log:
            image.pop(f"{database}-wal", None)
        own = {f"/look{path[path.index('/', 1) :]}": data for path, data in image.items()}
        borrowed = BorrowedDisk("look", own)
        vfs.mount(borrowed)
        path = f"/look/{Path(*database.parts[2:])}"
        db = vfs.connect(path)
        try:
            found = work(db)
            file = borrowed.find(path)
            return found, head_of_index(file) if has_log and file is not None else b""
        finally:
            borrowed.discard()
            db.close()
            vfs.unmount(borrowed)

    def exists(self, path: Path) -> bool:
        return self._disk.find(str(path)) is not None

    def file_bytes(self, path: Path) -> int:
        file = self._disk.find(str(path))
        return 0 if file is None else file.contents.size() + file.phantom_bytes

    def free_bytes(self, folder: Path) -> int:
        return self._disk.free_bytes()

    def reserve(self, path: Path, size_bytes: int) -> None:
        if self._disk.free_bytes() < size_bytes:
            raise OSError(errno.ENOSPC, "the disk is full")
        file = self._disk.find(str(path)) or self._disk.create(str(path))
        file.phantom_bytes = size_bytes
        self._disk.sync(file)

    def probe(self, folder: Path) -> None:
        """Do nothing: the disk always has room for a file, and permits it."""

    def remove(self, path: Path) -> None:
        if self._disk.find(str(path)) is not None:
            self._disk.remove(str(path), durably=True)
        self._disk.sync_folder()
