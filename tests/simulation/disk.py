"""A disk that can lose its power: what was synced is there afterwards, the rest perhaps.

Each file is there twice: as the system shows it (the page cache), and as the disk has it, with the
writes that lie between them in order (contents.py).  A sync brings them over.  Names of new
and removed files are durable only after a sync of their folder, which is one for the whole disk.

    a process dies    everything stays
    the power goes    of each file's unsynced writes some are kept: none, the first ones with the
                      last of them torn, any of them, or any of their sectors
    a sync fails      what it should have written stays visible and will never be durable: Linux
                      drops the marks of the pages together with the error
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from storage.engine.disk import Disk as StorageDisk
from storage.engine.disk import Lock, LogFile, LogIndex, MarkFile
from storage.engine.log_position import INDEX_HEAD_BYTES
from tests.simulation.contents import Contents, Write, new_contents

SECTOR_BYTES = 512

T = TypeVar("T")


class PowerLoss(Enum):
    """Which of the unsynced writes are found afterwards."""

    NONE = "none"
    FIRST = "the first, the last of them torn"
    ANY = "any"
    SECTORS = "any sectors"


class Fault(Enum):
    """What a disk can answer instead of doing it."""

    WRITE_ERROR = "EIO for a write"
    SYNC_ERROR = "EIO for a sync"
    READ_ERROR = "EIO for a read"
    SHORT_READ = "less than was asked for"
    NO_SPACE = "ENOSPC for a write"


class PowerIsOff(OSError):
    """The disk went off in the middle of an act."""


class File:
    """One file."""

    __slots__ = ("contents", "durably_exists", "exists", "is_anew", "lock", "phantom_bytes")

    def __init__(self, contents: Contents | None = None) -> None:
        self.contents = new_contents() if contents is None else contents
        self.exists = True
        self.durably_exists = False
        self.is_anew = False  # removed and made again, which the folder does not know durably
        self.phantom_bytes = 0  # takes up room without having content: the reserve
        self.lock: Any = None  # what those who have it open share: vfs.py

    def survivor(self) -> File:
        """The same file for those who open it after a crash: nothing open, nothing locked."""
        file = File(self.contents)
        file.exists, file.durably_exists = self.exists, self.durably_exists
        file.phantom_bytes, file.is_anew = self.phantom_bytes, self.is_anew
        return file


class State(ctypes.Structure):
    """What quick.c has to know of a disk."""

    _fields_ = [
        ("acts", ctypes.c_int64),  # writes, syncs and removals
        ("generation", ctypes.c_int32),  # handles of an earlier one are dead
        ("is_off", ctypes.c_int32),
        ("needs_decision", ctypes.c_int32),  # each act may end in another way
        ("reads_need_decision", ctypes.c_int32),
    ]


class SimulatedDisk:
    """The disk of one host, by whole paths."""

    def __init__(self, name: str, source: random.Random) -> None:
        self.name = name
        self.random = source
        self.files: dict[str, File] = {}
        self.state = State()
        self.on_off: Callable[[], None] = lambda: None
        self.on_sync: Callable[[], None] = lambda: None
        self.on_fault: Callable[[Fault], None] = lambda fault: None
        self.durable_version = 0  # another whenever other things are durable
        self._off_at_act: int | None = None
        self.faults: dict[Fault, tuple[int, int]] = {}  # (from which act on, how often)
        self.faults_met = 0
        self._capacity_bytes: int | None = None
        self.was_full = False  # once, perhaps
        self._digest: int | None = None
        self._has_lost_writes = False  # in a sync that failed: they stay visible

    # What makes a difference to each act.

    @property
    def off_at_act(self) -> int | None:
        """In which the power goes."""
        return self._off_at_act

    @off_at_act.setter
    def off_at_act(self, act: int | None) -> None:
        self._off_at_act = act
        self._has_changed()

    @property
    def capacity_bytes(self) -> int | None:
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, size: int | None) -> None:
        self._capacity_bytes = size
        self.was_full = self.was_full or size is not None
        self._has_changed()

    @property
    def digest(self) -> int | None:
        """Of all acts, where somebody asks for it."""
        return self._digest

    @digest.setter
    def digest(self, digest: int | None) -> None:
        self._digest = digest
        self._has_changed()

    @property
    def is_off(self) -> bool:
        return bool(self.state.is_off)

    def _has_changed(self) -> None:
        self.state.needs_decision = bool(
            self.state.is_off
            or self.faults
            or self._off_at_act is not None
            or self._capacity_bytes is not None
            or self._digest is not None
        )
        self.state.reads_need_decision = (
            self.state.is_off or Fault.READ_ERROR in self.faults or Fault.SHORT_READ in self.faults
        )

    # What the system does.

    def find(self, path: str) -> File | None:
        file = self.files.get(path)
        return file if file is not None and file.exists else None

    def create(self, path: str) -> File:
        self.step()
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = File()
        else:  # its removal is not durable yet, nor is its emptiness
            file.exists = file.is_anew = True
            file.contents.truncate(0)
        return file

    def write(self, file: File, offset: int, data: bytes) -> None:
        try:
            self.step()
        except PowerIsOff:
            if self.random.random() < 0.5:  # the last write may have reached the disk's cache
                file.contents.remember(offset, data)
            raise
        if self.faults and self.meets(Fault.WRITE_ERROR):
            raise OSError(errno.EIO, "the disk does not write")
        end, size = offset + len(data), file.contents.size()
        if end > size and self.capacity_bytes is not None and end - size > self.free_bytes():
            self.faults_met += 1
            raise OSError(errno.ENOSPC, "the disk is full")
        if self.faults and self.meets(Fault.NO_SPACE):
            raise OSError(errno.ENOSPC, "the disk is full")
        if self._digest is not None:
            self._digest = zlib.crc32(data, self._digest ^ offset)
        file.contents.write(offset, data)

    def truncate(self, file: File, size: int) -> None:
        self.step()
        file.contents.truncate(size)

    def sync(self, file: File) -> None:
        self.step()
        if self.faults and self.meets(Fault.SYNC_ERROR):
            self._has_lost_writes = True
            file.contents.forget()
            raise OSError(errno.EIO, "the disk does not sync")
        self.durable_version += 1
        file.is_anew = False
        file.contents.settle()
        self.on_sync()

    def sync_folder(self) -> None:
        self.durable_version += 1
        for path, file in list(self.files.items()):
            file.durably_exists = file.exists
            if not file.exists:
                del self.files[path]
            elif file.is_anew:
                file.is_anew = False
                file.contents.forget_durable()

    def remove(self, path: str, *, durably: bool) -> None:
        self.step()
        self.durable_version += 1
        file = self.files[path]
        file.exists = False
        file.contents.empty()
        file.phantom_bytes = 0
        file.contents.forget()
        if durably or not file.durably_exists:
            del self.files[path]

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        return sum(file.contents.size() + file.phantom_bytes for file in self.files.values())

    def step(self) -> None:
        """Every act that changes something may be the one in which the power goes."""
        state = self.state
        if state.is_off:
            raise PowerIsOff(errno.EIO, "the disk is off")
        state.acts += 1
        if self._off_at_act is not None and state.acts >= self._off_at_act:
            state.is_off = True
            self._has_changed()
            self.on_off()
            raise PowerIsOff(errno.EIO, "the disk is off")

    def meets(self, fault: Fault) -> bool:
        planned = self.faults.get(fault)
        if planned is None or self.state.acts < planned[0]:
            return False
        first, count = planned
        if count > 1:
            self.faults[fault] = (first, count - 1)
        else:
            del self.faults[fault]
            self._has_changed()
        self.faults_met += fault is not Fault.SHORT_READ  # which is no error
        self.on_fault(fault)
        return True

    @contextlib.contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Whoever looks on meets no fault that is planned for those who are looked at."""
        faults, self.faults = self.faults, {}
        self._has_changed()
        try:
            yield
        finally:
            self.faults = faults
            self._has_changed()

    # What goes wrong, and how it ends.

    def plan_fault(self, fault: Fault, *, after_acts: int, count: int = 1) -> None:
        self.faults[fault] = (self.state.acts + after_acts, count)
        self._has_changed()

    def forget_faults(self) -> None:
        self.faults.clear()
        self._has_changed()

    def process_died(self) -> None:
        """Its handles are gone; the system, with all that was written, lives on."""
        self._reopen()
        self.files = {path: file.survivor() for path, file in self.files.items()}

    def lose_power(self, kind: PowerLoss) -> None:
        self._reopen()
        self.durable_version += 1
        self._has_lost_writes = False
        self.forget_faults()
        survivors = {}
        for path, file in self.files.items():
            is_kept = file.durably_exists
            if file.exists != is_kept and kind is not PowerLoss.NONE:
                is_kept = self.random.random() < 0.5
            if not is_kept:
                continue
            survivor = survivors[path] = File()
            survivor.durably_exists = True
            survivor.phantom_bytes = file.phantom_bytes
            survivor.contents = file.contents
            survivor.contents.lose_power(self._draw_kept(file.contents.unsynced(), kind))
        self.files = survivors

    def wipe(self) -> None:
        """A new disk takes its place."""
        self._reopen()
        self.durable_version += 1
        self._has_lost_writes = False
        self.files.clear()

    @property
    def is_settled(self) -> bool:
        """Whether a loss of power would change nothing of what is seen."""
        return not self._has_lost_writes and not any(
            file.exists != file.durably_exists or file.is_anew or file.contents.is_unsynced
            for file in self.files.values()
        )

    def image(self, *, durable: bool) -> dict[str, Contents]:
        """What a look at the disk would find: now, or after the worst loss of power.  To be read
        before anything else happens: these are the disk's own bytes."""
        return {
            path: file.contents.lend(durable=durable)
            for path, file in self.files.items()
            if (file.durably_exists if durable else file.exists)
        }

    def _reopen(self) -> None:
        self.state.generation += 1
        self.state.is_off = False
        self.off_at_act = None

    def _draw_kept(self, writes: list[Write], kind: PowerLoss) -> list[Write]:
        """Which of the writes, and which parts of them, have reached the disk after all."""
        choose = self.random
        survived: list[Write] = []
        kept = choose.randrange(len(writes) + 1) if kind is PowerLoss.FIRST else 0
        for index, (offset, data) in enumerate(writes):
            if kind is PowerLoss.FIRST:
                if index < kept:
                    survived.append((offset, data))
                elif index == kept and data is not None:
                    torn = choose.randrange(len(data) // SECTOR_BYTES + 1) * SECTOR_BYTES
                    if torn:
                        survived.append((offset, data[:torn]))
            elif kind is PowerLoss.ANY or (kind is PowerLoss.SECTORS and data is None):
                if choose.random() < 0.5:
                    survived.append((offset, data))
            elif kind is PowerLoss.SECTORS and data is not None:
                start = 0
                while start < len(data):
                    end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
                    if choose.random() < 0.5:
                        survived.append((offset + start, data[start:end]))
                    start = end
        return survived


class BorrowedDisk(SimulatedDisk):
    """What somebody else's disk holds, for a look at it: copied only where the look writes."""

    def __init__(self, name: str, image: dict[str, Contents]) -> None:
        super().__init__(name, random.Random(0))
        self.files = {path: File(contents) for path, contents in image.items()}

    def sync(self, file: File) -> None:
        """Nothing of it is kept."""

    def put_away(self) -> None:
        """Whoever has a file open can only close it: a checkpoint would be for nothing."""
        self._reopen()


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
        if self._disk.faults and self._disk.meets(Fault.SHORT_READ):
            size = self._disk.random.randrange(1, size + 1)
        return self._content.contents.read(offset, size)

    def sync(self) -> None:
        pass  # what fails there has failed before

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
    """Of the log that belongs to it: memory that those who have the database open share."""
    regions = database.lock.regions if database.lock is not None else []
    return bytes(memoryview(regions[0])[:INDEX_HEAD_BYTES]) if regions else b""


class DiskOfStorage(StorageDisk):
    """The storage's own dealings with the file system, on the simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def make_folder(self, folder: Path) -> None:
        pass

    def lock(self, folder: Path) -> Lock:
        """A simulated host never starts a second daemon; only who held it last matters."""
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

    def examine(
        self, database: Path, *, has_log: bool, work: Callable[[sqlite3.Connection], T]
    ) -> tuple[T, bytes]:
        """Of a copy, which nobody else sees."""
        from tests.simulation import vfs

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
            borrowed.put_away()
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
        """There is room for a file, and nobody to forbid it."""

    def remove(self, path: Path) -> None:
        if self._disk.find(str(path)) is not None:
            self._disk.remove(str(path), durably=True)
        self._disk.sync_folder()
