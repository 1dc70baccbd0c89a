"""What can be set about the storage; the unit ends each name."""

import math
from dataclasses import dataclass

MIB = 1024 * 1024

#: Fixed when the database is made.  Five packets of 1.5 KiB a page; 30 % more rows a second than
#: 4 KiB, and larger ones gain nothing.
PAGE_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    #: What may wait for the disk before callers should throttle (`Storage.congested`).  At 7 to
    #: 15 µs a row, a batch of this size takes 30 to 60 ms.
    commit_rows_max: int = 4096
    commit_bytes_max: int = 32 * MIB
    #: The write-ahead log goes back into the database beyond this many pages.  1000 cost 10 % of
    #: the throughput; 16,000 gain nothing, and make the next start slower.
    wal_autocheckpoint_pages: int = 4000
    #: What the log file may keep on the disk when it starts again from its beginning.
    wal_size_limit_bytes: int = 64 * MIB
    #: Pages kept in memory, for each of the two connections.
    cache_bytes: int = 8 * MIB
    #: How long to wait for a stranger who has the database locked (an operator's `sqlite3`).
    busy_timeout_ms: int = 10_000
    #: The size of the file that is given up when the disk is full, so that queues can be emptied.
    disk_reserve_bytes: int = 64 * MIB
    #: `Storage.room` says no when less than this is free: refuse messages before it is too late.
    disk_watermark_bytes: int = 64 * MIB
    #: How long a batch with new packets waits for room; then the storage stops without it.
    full_disk_patience_s: float = 30.0
    #: The same for a batch without new packets, such as a removal: it needs hardly any room.
    full_disk_patience_of_others_s: float = math.inf
    #: After an unclean stop, SQLite checks a database up to this size; beyond it takes seconds.
    quick_check_bytes_max: int = 64 * MIB

    @property
    def batch_bytes_max(self) -> int:
        """A quarter of the reserve at most, where there is one: giving that up must make room for
        the log, for one more batch, and for both in the database."""
        if self.disk_reserve_bytes == 0:
            return self.commit_bytes_max
        return min(self.commit_bytes_max, self.disk_reserve_bytes // 4)

    @property
    def log_pages_max(self) -> int:
        """Half of the reserve at most (reserve.py), where there is one."""
        if self.disk_reserve_bytes == 0:
            return self.wal_autocheckpoint_pages
        return min(self.wal_autocheckpoint_pages, self.disk_reserve_bytes // 2 // PAGE_BYTES + 1)
