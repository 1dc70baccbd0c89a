"""A disk that can lose its power: what was synced is there afterwards, the rest perhaps.

Each file is there twice: as the system shows it (`content`: the page cache), and as the disk has it
(`durable`), with the writes that lie between them in order.  A sync brings them over.  Names of new
and removed files are durable only after a sync of their folder, which is one for the whole disk.

    a process dies    everything stays
    the power goes    of each file's unsynced writes some are kept: none, the first ones with the
                      last of them torn, any of them, or any of their sectors
    a sync fails      what it should have written stays visible and will never be durable: Linux
                      drops the marks of the pages together with the error
"""

from __future__ import annotations

import contextlib
import errno
import random
import zlib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from storage.disk import Disk as StorageDisk
from storage.disk import Lock

SECTOR_BYTES = 512


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
    NO_SPACE = "ENOSPC for a write"


class PowerIsOff(OSError):
    """The disk went off in the middle of an act."""


class File:
    """One file.  `writes`: (offset, data), or (size, None) for a truncation."""

    __slots__ = (
        "content",
        "durable",
        "durably_exists",
        "exists",
        "lock",
        "phantom_bytes",
        "writes",
    )

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.writes: list[tuple[int, bytes | None]] = []
        self.exists = True
        self.durably_exists = False
        self.phantom_bytes = 0  # takes up room without having content: the reserve
        self.lock: Any = None  # what those who have it open share: vfs.py

    def settle(self) -> None:
        for offset, data in self.writes:
            apply(self.durable, offset, data)
        self.writes.clear()

    def survivor(self) -> File:
        """The same file for those who open it after a crash: nothing open, nothing locked."""
        file = File()
        file.content, file.durable, file.writes = self.content, self.durable, self.writes
        file.exists, file.durably_exists = self.exists, self.durably_exists
        file.phantom_bytes = self.phantom_bytes
        return file


class SimulatedDisk:
    """The disk of one host, by whole paths."""

    def __init__(self, name: str, source: random.Random) -> None:
        self.name = name
        self.random = source
        self.files: dict[str, File] = {}
        self.generation = 0  # handles of an earlier one are dead
        self.is_off = False
        self.on_off: Callable[[], None] = lambda: None
        self.on_sync: Callable[[], None] = lambda: None
        self.acts = 0  # writes, syncs and removals
        self.durable_version = 0  # another whenever other things are durable
        self.off_at_act: int | None = None
        self.faults: dict[Fault, tuple[int, int]] = {}  # (from which act on, how often)
        self.faults_met = 0
        self.capacity_bytes: int | None = None
        self.digest: int | None = None  # of all acts, where somebody asks for it

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
            file.exists = True
            file.writes.append((0, None))
        return file

    def write(self, file: File, offset: int, data: bytes) -> None:
        try:
            self.step()
        except PowerIsOff:
            if self.random.random() < 0.5:  # the last write may have reached the disk's cache
                file.writes.append((offset, data))
            raise
        if self.faults and self.meets(Fault.WRITE_ERROR):
            raise OSError(errno.EIO, "the disk does not write")
        content = file.content
        end, size = offset + len(data), len(content)
        if end > size and self.capacity_bytes is not None and end - size > self.free_bytes():
            self.faults_met += 1
            raise OSError(errno.ENOSPC, "the disk is full")
        if self.faults and self.meets(Fault.NO_SPACE):
            raise OSError(errno.ENOSPC, "the disk is full")
        if self.digest is not None:
            self.digest = zlib.crc32(data, self.digest ^ offset)
        if offset > size:
            content.extend(bytes(offset - size))
        content[offset:end] = data
        file.writes.append((offset, data))

    def truncate(self, file: File, size: int) -> None:
        self.step()
        apply(file.content, size, None)
        file.writes.append((size, None))

    def sync(self, file: File) -> None:
        self.step()
        if self.faults and self.meets(Fault.SYNC_ERROR):
            file.writes.clear()
            raise OSError(errno.EIO, "the disk does not sync")
        self.durable_version += 1
        file.settle()
        self.on_sync()

    def sync_folder(self) -> None:
        self.durable_version += 1
        for path, file in list(self.files.items()):
            file.durably_exists = file.exists
            if not file.exists:
                del self.files[path]

    def remove(self, path: str, *, durably: bool) -> None:
        self.step()
        self.durable_version += 1
        file = self.files[path]
        file.exists = False
        file.content = bytearray()
        file.phantom_bytes = 0
        file.writes.clear()
        if durably or not file.durably_exists:
            del self.files[path]

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        return sum(len(file.content) + file.phantom_bytes for file in self.files.values())

    def step(self) -> None:
        """Every act that changes something may be the one in which the power goes."""
        if self.is_off:
            raise PowerIsOff(errno.EIO, "the disk is off")
        self.acts += 1
        if self.off_at_act is not None and self.acts >= self.off_at_act:
            self.is_off = True
            self.on_off()
            raise PowerIsOff(errno.EIO, "the disk is off")

    def meets(self, fault: Fault) -> bool:
        planned = self.faults.get(fault)
        if planned is None or self.acts < planned[0]:
            return False
        first, count = planned
        if count > 1:
            self.faults[fault] = (first, count - 1)
        else:
            del self.faults[fault]
        self.faults_met += 1
        return True

    # What goes wrong, and how it ends.

    def plan_fault(self, fault: Fault, *, after_acts: int, count: int = 1) -> None:
        self.faults[fault] = (self.acts + after_acts, count)

    def process_died(self) -> None:
        """Its handles are gone; the system, with all that was written, lives on."""
        self._reopen()
        self.files = {path: file.survivor() for path, file in self.files.items()}

    def lose_power(self, kind: PowerLoss) -> None:
        self._reopen()
        self.durable_version += 1
        self.faults.clear()
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
            survivor.durable = file.durable
            self._keep_some(survivor.durable, file.writes, kind)
            survivor.content = bytearray(survivor.durable)
        self.files = survivors

    def wipe(self) -> None:
        """A new disk takes its place."""
        self._reopen()
        self.durable_version += 1
        self.files.clear()

    def image(self, *, durable: bool) -> dict[str, bytes]:
        """What a look at the disk would find: now, or after the worst loss of power."""
        return {
            path: bytes(file.durable if durable else file.content)
            for path, file in self.files.items()
            if (file.durably_exists if durable else file.exists)
        }

    def load(self, image: dict[str, bytes]) -> None:
        self.wipe()
        for path, data in image.items():
            file = self.files[path] = File()
            file.content, file.durable = bytearray(data), bytearray(data)
            file.durably_exists = True

    def _reopen(self) -> None:
        self.generation += 1
        self.is_off = False
        self.off_at_act = None

    def _keep_some(
        self, durable: bytearray, writes: list[tuple[int, bytes | None]], kind: PowerLoss
    ) -> None:
        choose = self.random
        kept = choose.randrange(len(writes) + 1) if kind is PowerLoss.FIRST else 0
        for index, (offset, data) in enumerate(writes):
            if kind is PowerLoss.FIRST:
                if index < kept:
                    apply(durable, offset, data)
                elif index == kept and data is not None:
                    torn = choose.randrange(len(data) // SECTOR_BYTES + 1) * SECTOR_BYTES
                    if torn:
                        apply(durable, offset, data[:torn])
            elif kind is PowerLoss.ANY or (kind is PowerLoss.SECTORS and data is None):
                if choose.random() < 0.5:
                    apply(durable, offset, data)
            elif kind is PowerLoss.SECTORS and data is not None:
                start = 0
                while start < len(data):
                    end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
                    if choose.random() < 0.5:
                        apply(durable, offset + start, data[start:end])
                    start = end


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """A write; or, without data, a truncation to `offset`."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


class SimulatedLock(Lock):
    def __init__(self, disk: SimulatedDisk, file: File, *, was_abandoned: bool) -> None:
        super().__init__(-1, was_abandoned=was_abandoned)
        self._disk = disk
        self._content = file

    def release(self) -> None:
        if self.is_clean:
            self._disk.truncate(self._content, 0)


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
        was_abandoned = bool(file.content)
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
        if file.content:
            self._disk.write(file, 0, bytes(file.content))
        self._disk.sync(file)
        self._disk.sync_folder()
        return len(file.content)

    def file_bytes(self, path: Path) -> int:
        file = self._disk.find(str(path))
        return 0 if file is None else len(file.content) + file.phantom_bytes

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
