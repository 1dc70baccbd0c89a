"""A simulated disk that can lose its power: synced writes survive, other writes may be lost.

Each file exists twice: as the system shows it (the page cache) and as the disk has it, with the
unsynced writes between them in order (file_contents.py).  A sync applies these writes to the disk.
The names of new and removed files are durable only after a sync of their folder; the whole disk is
one folder.

    a process dies    everything is kept
    power loss        of each file's unsynced writes some are kept: none, the first ones with the
                      last of them torn, any of them, or any of their sectors
    a sync fails      its writes stay visible and will never be durable: Linux clears the dirty
                      marks of the pages when it reports the error
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from tests.simulation.file_contents import Contents, Write, new_contents

SECTOR_BYTES = 512
_SETTINGS, _PLANNED_FAULTS = 1, 2  # reasons for decisions


class PowerLoss(Enum):
    """The unsynced writes that a loss of power keeps."""

    NONE = "none"
    FIRST = "the first, the last of them torn"
    ANY = "any"
    SECTORS = "any sectors"


class Fault(Enum):
    """The errors of a disk."""

    WRITE_ERROR = "EIO for a write"
    SYNC_ERROR = "EIO for a sync"
    READ_ERROR = "EIO for a read"
    SHORT_READ = "less than was asked for"
    NO_SPACE = "ENOSPC for a write"


class PowerIsOff(OSError):
    """The disk lost its power in the middle of an act."""


class File:
    """A file of a simulated disk."""

    __slots__ = ("contents", "durably_exists", "exists", "is_anew", "lock", "phantom_bytes")

    def __init__(self, contents: Contents | None = None) -> None:
        self.contents = new_contents() if contents is None else contents
        self.exists = True
        self.durably_exists = False
        self.is_anew = False  # removed and created again; neither is durable
        self.phantom_bytes = 0  # room of a file without contents: the reserve
        self.lock: Any = None  # shared by the handles of the file: vfs.py

    def survivor(self) -> File:
        """Return the file as it is after a crash, without handles and locks."""
        file = File(self.contents)
        file.exists, file.durably_exists = self.exists, self.durably_exists
        file.phantom_bytes, file.is_anew = self.phantom_bytes, self.is_anew
        return file


class State(ctypes.Structure):
    """The state of a disk that quick.c reads and writes."""

    _fields_ = [
        ("acts", ctypes.c_int64),  # writes, syncs and removals
        ("generation", ctypes.c_int32),  # handles of an earlier generation are dead
        ("is_off", ctypes.c_int32),
        # The reasons why Python must decide the outcome of each act, and of each read.
        ("needs_decision", ctypes.c_int32),
        ("reads_need_decision", ctypes.c_int32),
    ]

    def set_reason(self, reason: int, needs_decision: bool, reads_need_decision: bool) -> None:
        """Set or clear one reason for decisions."""
        self.needs_decision = self.needs_decision & ~reason | reason * needs_decision
        self.reads_need_decision = self.reads_need_decision & ~reason | reason * reads_need_decision


class FaultPlan:
    """The errors that are planned for a disk."""

    def __init__(self, state: State) -> None:
        self.planned: dict[Fault, tuple[int, int]] = {}  # fault -> (first act, count)
        self.met = 0  # errors that were reported so far
        self.on_met: Callable[[Fault], None] = lambda fault: None
        self._state = state

    def _has_changed(self) -> None:
        reads = Fault.READ_ERROR in self.planned or Fault.SHORT_READ in self.planned
        self._state.set_reason(_PLANNED_FAULTS, bool(self.planned), reads)

    def plan(self, fault: Fault, *, after_acts: int, count: int = 1) -> None:
        """Plan `count` errors, the first of them after a number of acts."""
        self.planned[fault] = (self._state.acts + after_acts, count)
        self._has_changed()

    def clear(self) -> None:
        """Cancel all planned errors."""
        self.planned.clear()
        self._has_changed()

    def meets(self, fault: Fault) -> bool:
        """Return whether the present act fails in this way, and count the error."""
        planned = self.planned.get(fault)
        if planned is None or self._state.acts < planned[0]:
            return False
        first, count = planned
        if count > 1:
            self.planned[fault] = (first, count - 1)
        else:
            del self.planned[fault]
            self._has_changed()
        self.met += fault is not Fault.SHORT_READ  # which is no error
        self.on_met(fault)
        return True

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the plan while a test inspects the disk."""
        planned, self.planned = self.planned, {}
        self._has_changed()
        try:
            yield
        finally:
            self.planned = planned
            self._has_changed()


class SimulatedDisk:
    """The disk of one host; its files are known by their absolute paths."""

    def __init__(self, name: str, source: random.Random) -> None:
        self.name = name
        self.random = source
        self.files: dict[str, File] = {}
        self.state = State()
        self.on_off: Callable[[], None] = lambda: None
        self.on_sync: Callable[[], None] = lambda: None
        self.durable_version = 0  # changes whenever the durable contents change
        self._off_at_act: int | None = None
        self.faults = FaultPlan(self.state)
        self._capacity_bytes: int | None = None
        self.was_full = False  # at any time so far
        self._digest: int | None = None
        self._has_lost_writes = False  # in a failed sync: they stay visible

    # Settings that influence each act.

    @property
    def off_at_act(self) -> int | None:
        """The act in which the disk loses its power."""
        return self._off_at_act

    @off_at_act.setter
    def off_at_act(self, act: int | None) -> None:
        self._off_at_act = act
        self._has_changed()

    @property
    def capacity_bytes(self) -> int | None:
        """The size of the disk; None: no limit."""
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, size: int | None) -> None:
        self._capacity_bytes = size
        self.was_full = self.was_full or size is not None
        self._has_changed()

    @property
    def digest(self) -> int | None:
        """A digest of all writes; None: it is not computed."""
        return self._digest

    @digest.setter
    def digest(self, digest: int | None) -> None:
        self._digest = digest
        self._has_changed()

    @property
    def is_off(self) -> bool:
        return bool(self.state.is_off)

    def _has_changed(self) -> None:
        needs_decision = bool(
            self.state.is_off
            or self._off_at_act is not None
            or self._capacity_bytes is not None
            or self._digest is not None
        )
        self.state.set_reason(_SETTINGS, needs_decision, bool(self.state.is_off))

    # Operations of the file system.

    def find(self, path: str) -> File | None:
        file = self.files.get(path)
        return file if file is not None and file.exists else None

    def create(self, path: str) -> File:
        self.step()
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = File()
        else:  # the removal is not durable yet, nor is the truncation
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
        if self.faults.planned and self.faults.meets(Fault.WRITE_ERROR):
            raise OSError(errno.EIO, "the disk does not write")
        end, size = offset + len(data), file.contents.size()
        if end > size and self.capacity_bytes is not None and end - size > self.free_bytes():
            self.faults.met += 1
            raise OSError(errno.ENOSPC, "the disk is full")
        if self.faults.planned and self.faults.meets(Fault.NO_SPACE):
            raise OSError(errno.ENOSPC, "the disk is full")
        if self._digest is not None:
            self._digest = zlib.crc32(data, self._digest ^ offset)
        file.contents.write(offset, data)

    def truncate(self, file: File, size: int) -> None:
        self.step()
        file.contents.truncate(size)

    def sync(self, file: File) -> None:
        self.step()
        if self.faults.planned and self.faults.meets(Fault.SYNC_ERROR):
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
        """Count an act that changes the disk.  Raises PowerIsOff if the power is lost in it."""
        state = self.state
        if state.is_off:
            raise PowerIsOff(errno.EIO, "the disk is off")
        state.acts += 1
        if self._off_at_act is not None and state.acts >= self._off_at_act:
            state.is_off = True
            self._has_changed()
            self.on_off()
            raise PowerIsOff(errno.EIO, "the disk is off")

    # Crashes.

    def process_died(self) -> None:
        """Close the handles of a dead process; the system keeps everything that it wrote."""
        self.close_handles()
        self.files = {path: file.survivor() for path, file in self.files.items()}

    def lose_power(self, kind: PowerLoss) -> None:
        """Reduce the disk to its durable contents and some of the unsynced writes."""
        self.close_handles()
        self.durable_version += 1
        self._has_lost_writes = False
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
            survivor.contents = file.contents
            survivor.contents.lose_power(self._draw_kept(file.contents.unsynced(), kind))
        self.files = survivors

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.close_handles()
        self.durable_version += 1
        self._has_lost_writes = False
        self.files.clear()

    @property
    def is_settled(self) -> bool:
        """Whether a loss of power would not change the visible contents."""
        return not self._has_lost_writes and not any(
            file.exists != file.durably_exists or file.is_anew or file.contents.is_unsynced
            for file in self.files.values()
        )

    def image(self, *, durable: bool) -> dict[str, Contents]:
        """Return the visible contents of all files, or those after the worst loss of power.

        The caller must read them before anything else happens: the disk's own bytes are shared.
        """
        return {
            path: file.contents.lend(durable=durable)
            for path, file in self.files.items()
            if (file.durably_exists if durable else file.exists)
        }

    def close_handles(self) -> None:
        """Make all handles dead, and the disk ready for new ones."""
        self.state.generation += 1
        self.state.is_off = False
        self.off_at_act = None

    def _draw_kept(self, writes: list[Write], kind: PowerLoss) -> list[Write]:
        """Draw the unsynced writes, and the parts of them, that reached the disk."""
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
    """The contents of another disk, for an inspection; files are copied when they are written."""

    def __init__(self, name: str, image: dict[str, Contents]) -> None:
        super().__init__(name, random.Random(0))
        self.files = {path: File(contents) for path, contents in image.items()}

    def sync(self, file: File) -> None:
        """Do nothing: the disk is discarded after the inspection."""

    def discard(self) -> None:
        """Make all handles dead, so that closing the database does not run a checkpoint."""
        self.close_handles()
