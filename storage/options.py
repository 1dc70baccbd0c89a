"""The options of the storage; each name ends with its unit."""

import math
from dataclasses import dataclass, field

from storage.vault import StorageKey, Vault

MIB = 1024 * 1024

#: The size of the pages of a new database: docs/decisions/0077.
PAGE_BYTES = 4096
#: The unit of `wal_autocheckpoint_pages`, whatever the pages of the database are.
_CHECKPOINT_UNIT_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    #: The amount of waiting changes above which callers should throttle (`Storage.congested`).  At
    #: 7 to 15 µs per row, a batch of this size takes 30 to 60 ms.
    commit_rows_max: int = 4096
    commit_bytes_max: int = 32 * MIB
    #: The size of the pages, fixed when the database is created.
    page_bytes: int = PAGE_BYTES
    #: A checkpoint copies the write-ahead log into the database beyond this many pages of 8 KiB.
    #: 1000 cost 10 % of the throughput; 16,000 gain nothing, and make the next start slower.
    wal_autocheckpoint_pages: int = 4000
    #: The size to which the log file is truncated when it restarts from its beginning.
    wal_size_limit_bytes: int = 64 * MIB
    #: Page cache, for each of the two connections.
    cache_bytes: int = 8 * MIB
    #: How long to wait if another program has locked the database (an operator's `sqlite3`).
    busy_timeout_ms: int = 10_000
    #: The size of the file that is deleted when the disk is full, so that queues can be emptied.
    disk_reserve_bytes: int = 64 * MIB
    #: `Storage.room` returns False below this free space: messages are rejected before the disk is
    #: full.
    disk_watermark_bytes: int = 64 * MIB
    #: How long a batch with new packets waits for space; then the storage stops without writing it.
    full_disk_patience_s: float = 30.0
    #: The same for a batch without new packets, such as a removal: it needs hardly any room.
    full_disk_patience_of_others_s: float = math.inf
    #: After an unclean stop, SQLite checks a database up to this size; a larger one would take
    #: seconds.
    quick_check_bytes_max: int = 64 * MIB
    #: Keys of encrypted packets: the first one is for new rows.  Empty: no packet is encrypted.
    keys: tuple[StorageKey, ...] = field(default=(), repr=False)
    #: False: the keys only open rows, and new rows are not encrypted.
    encrypts: bool = True

    def vault(self) -> Vault | None:
        """Return a new vault with the keys; None without keys."""
        return Vault(self.keys, seals=self.encrypts) if self.keys else None

    @property
    def batch_bytes_max(self) -> int:
        """The limit of waiting bytes: at most a quarter of the reserve, if there is one.

        Deleting the reserve must free space for the log, for one more batch, and for both in the
        database.
        """
        if self.disk_reserve_bytes == 0:
            return self.commit_bytes_max
        return min(self.commit_bytes_max, self.disk_reserve_bytes // 4)

    def log_pages_max(self, page_bytes: int) -> int:
        """Return the limit of log pages: at most half of the reserve (reserve.py), if any.

        `page_bytes` is the size of the pages of the database, which may be an older one.
        """
        pages = self.wal_autocheckpoint_pages * _CHECKPOINT_UNIT_BYTES // page_bytes
        if self.disk_reserve_bytes == 0:
            return pages
        return min(pages, self.disk_reserve_bytes // 2 // page_bytes + 1)
