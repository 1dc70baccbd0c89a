"""Room on the disk: a file that can be given up when there is none left.

On a full disk even deleting fails, because SQLite logs a deletion before it frees anything: a full
queue could not be emptied.  So a part of the disk is held by a file.  When a commit finds the disk
full, the file is given up and the commit tried once more; from then on the storage is `full`, until
so much was deleted that the file could be made again.

`has_room` says no well before that, so that new messages are refused while everything else goes on.
Giving up the file must be enough to bring the log into the database, which frees the log: so the
log is kept below half of it (`StorageOptions.log_pages_max`).
"""

import contextlib
from pathlib import Path

from storage.engine.disk import Disk
from storage.options import StorageOptions

NAME = "reserve"
ROOM_CHECK_INTERVAL_S = 1.0


def give_up(disk: Disk, folder: Path) -> bool:
    """Give up the reserve of a folder that is not open; whether there was any.

    May raise OSError.
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
        #: What may still be written, by the last look and what was taken in since.
        self.free_bytes = 0
        #: Something was refused for lack of room since the last look ...
        self.was_refused = False
        #: ... and a commit may make some.
        self.needs_commit = False

    def take(self) -> None:
        """Hold the reserve, where the disk has room for it and the watermark beside it."""
        if self.held:
            return
        # What keeps us from it keeps us from taking new messages, and from nothing else.
        with contextlib.suppress(OSError):
            present = self._disk.file_bytes(self._path)
            if present != self._size_bytes:
                free_bytes = self._look() + present
                if free_bytes < self._size_bytes + self._watermark_bytes:
                    return
                self._disk.reserve(self._path, self._size_bytes)
            self.held = True

    def give_up(self) -> bool:
        """Whether there was something to give up."""
        if not self.held:
            return False
        self.held = False
        with contextlib.suppress(OSError):  # that the name is gone need not be durable
            self._disk.remove(self._path)
        return True

    def lets_grow(self, database_bytes: int) -> bool:
        """Whether the database file could grow to this size."""
        try:
            growth_bytes = database_bytes - self._disk.file_bytes(self._database)
        except OSError:
            return False
        return growth_bytes <= self._look()

    def leaves_room_after(self, packet_bytes: int) -> bool:
        """Whether new packets would fit into the log, and then into the database as well.

        If not, they would take the room that deletions need, and nothing could be deleted any more.
        """
        return 2 * packet_bytes <= self._look()

    def is_short(self) -> bool:
        """Whether the database should give back what it does not use."""
        return not self.held or self.was_refused or self._look() < self._watermark_bytes

    def look_again(self) -> None:
        """Room was made, as far as that is possible."""
        self._checked_at_s = float("-inf")

    def has_room(self, now_s: float, size_bytes: int = 0) -> bool:
        """Whether new messages of this size may be taken; they count as taken then.

        Asks the system at most once a second, and counts what it lets in meanwhile: once into the
        log, and once into the database.
        """
        if now_s - self._checked_at_s >= ROOM_CHECK_INTERVAL_S:
            self._checked_at_s = now_s
            self.was_refused = False
            self.free_bytes = self._look()
        if self.held and self.free_bytes - 2 * size_bytes >= self._watermark_bytes:
            self.free_bytes -= 2 * size_bytes
            return True
        if not self.was_refused:
            self.was_refused = self.needs_commit = True
        return False

    def _look(self) -> int:
        """What is free on the disk, in bytes; nothing, where the system does not say."""
        try:
            return self._disk.free_bytes(self._folder)
        except OSError:
            return 0
