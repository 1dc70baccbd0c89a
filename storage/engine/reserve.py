"""The disk reserve: a file that is deleted when the disk is full.

On a full disk even deleting fails, because SQLite logs a deletion before it frees space: a full
queue could not be emptied.  So a file occupies a part of the disk.  When a commit finds the disk
full, the file is deleted and the commit is retried once; from then on the storage is `full`, until
enough was deleted to create the file again.

`has_room` returns False well before that, so that new messages are rejected while everything else
continues.  Deleting the file must free enough space to checkpoint the log, which frees the log: so
the log is kept below half of the file's size (`StorageOptions.log_pages_max`).
"""

import contextlib
from pathlib import Path

from storage.engine.disk import Disk
from storage.options import StorageOptions

NAME = "reserve"
ROOM_CHECK_INTERVAL_S = 1.0


def give_up(disk: Disk, folder: Path) -> bool:
    """Delete the reserve of a folder that is not open; return whether there was one.

    Raises OSError.
    """
    path = folder / NAME
    if disk.file_bytes(path) == 0:
        return False
    disk.remove(path)
    return True


class Reserve:
    def __init__(self, disk: Disk, database: Path, options: StorageOptions) -> None:
        self.held = False
        self._disk = disk
        self._folder = database.parent
        self._database = database
        self._path = database.with_name(NAME)
        self._size_bytes = options.disk_reserve_bytes
        self._watermark_bytes = options.disk_watermark_bytes
        self._checked_at_s = float("-inf")
        self._is_low = False  # as was measured after the last commit on the loop or the thread
        #: Bytes that may still be written: the last measurement less the messages accepted since.
        self.free_bytes = 0
        #: A message was rejected for lack of space since the last measurement ...
        self.was_refused = False
        #: ... and a commit may free some.
        self.needs_commit = False

    def take(self) -> None:
        """Create the reserve, if the disk has room for it and for the watermark."""
        if self.held:
            return
        # An error here prevents only the acceptance of new messages, nothing else.
        with contextlib.suppress(OSError):
            present = self._disk.file_bytes(self._path)
            if present != self._size_bytes:
                free_bytes = self._look() + present
                if free_bytes < self._size_bytes + self._watermark_bytes:
                    return
                self._disk.reserve(self._path, self._size_bytes)
            self.held = True

    def give_up(self) -> bool:
        """Delete the reserve; return whether it was held."""
        if not self.held:
            return False
        self.held = False
        with contextlib.suppress(OSError):  # the removal of the name need not be durable
            self._disk.remove(self._path)
        return True

    def lets_grow(self, database_bytes: int) -> bool:
        """Return whether the database file could grow to this size."""
        try:
            growth_bytes = database_bytes - self._disk.file_bytes(self._database)
        except OSError:
            return False
        return growth_bytes <= self._look()

    def leaves_room_after(self, packet_bytes: int) -> bool:
        """Return whether new packets would fit into the log, and then into the database as well.

        If not, they would use the space that deletions need, and no message could be deleted any
        more.
        """
        return 2 * packet_bytes <= self._look()

    def is_short(self) -> bool:
        """Measure the free space; return whether the database should free its unused pages."""
        self._is_low = self._look() < self._watermark_bytes
        return self.was_short

    @property
    def was_short(self) -> bool:
        """Whether the database should free its unused pages, by the last measurement."""
        return self._is_low or not self.held or self.was_refused

    def look_again(self) -> None:
        """Measure again at the next request: space may have been freed."""
        self._checked_at_s = float("-inf")

    def has_room(self, now_s: float, size_bytes: int = 0) -> bool:
        """Return whether new messages of this size may be accepted; if so, they count as accepted.

        Queries the system at most once a second, and counts messages accepted meanwhile twice: once
        in the log, and once in the database.
        """
        if self._fits(now_s, size_bytes, self._watermark_bytes):
            return True
        if not self.was_refused:
            self.was_refused = self.needs_commit = True
        return False

    def has_room_below(self, now_s: float, size_bytes: int) -> bool:
        """Return whether packets that let messages leave may be accepted, as `has_room` does.

        They may take half of the space that is kept free; the rest is for deletions.
        """
        return self._fits(now_s, size_bytes, self._watermark_bytes // 2)

    def _fits(self, now_s: float, size_bytes: int, kept_bytes: int) -> bool:
        if now_s - self._checked_at_s >= ROOM_CHECK_INTERVAL_S:
            self._checked_at_s = now_s
            self.was_refused = False
            self.free_bytes = self._look()
        if not self.held or self.free_bytes - 2 * size_bytes < kept_bytes:
            return False
        self.free_bytes -= 2 * size_bytes
        return True

    def _look(self) -> int:
        """Return the free bytes on the disk; 0 if the system reports an error."""
        try:
            return self._disk.free_bytes(self._folder)
        except OSError:
            return 0
