"""The errors of the storage, by their consequence.

Exception
├── StorageError              the daemon stops: the content of the disk is unknown
│   └── CannotStart           no file was changed yet; the message names the remedy
│       ├── FolderInUse       another daemon has locked the data folder
│       ├── ForeignDatabase   `queues.db` is not a database of qmd
│       ├── NewerSchema       a newer qmd wrote the database
│       ├── DatabaseDamaged   SQLite's own check found faults
│       ├── DataMissing       the files lack acknowledged data
│       ├── NetworkDisk       the data folder is on a network file system
│       ├── KeyMissing        packets are encrypted with a key that is not configured
│       ├── KeyFileError      the file of a key cannot be used
│       └── RecoveryFailed    the write-ahead log could not be made durable again
├── RescueFailed              a damaged folder could not be rescued; it is unchanged
├── BackupFailed              a backup could not be made, read or restored
└── StoredError               the daemon continues: the request is rejected with this error
    ├── NoRoomForIt           the disk is full, and the unit was left out because it can wait
    ├── NoSuchQueue
    ├── QueueExists
    ├── SystemQueue           a queue that belongs to the queue manager cannot be deleted
    └── TooManyQueues         all queue ids are in use
"""


class StorageError(Exception):
    """A storage failure: data that was not reported durable may be lost.  Stop and restart.

    `code` identifies the cause, if it is known; the layers above have a catalogue of the codes.
    """

    code = "storage_failed"

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        if code:
            self.code = code


class CannotStart(StorageError):
    """The storage cannot be opened; the files on disk are unchanged."""

    code = "storage_unusable"


class FolderInUse(CannotStart):
    code = "data_folder_in_use"


class ForeignDatabase(CannotStart):
    code = "database_foreign"


class NewerSchema(CannotStart):
    code = "database_newer"


class DatabaseDamaged(CannotStart):
    code = "database_damaged"


class DataMissing(CannotStart):
    code = "data_missing"


class NetworkDisk(CannotStart):
    code = "network_disk"


class RecoveryFailed(CannotStart):
    code = "log_not_durable"


class KeyMissing(CannotStart):
    code = "storage_key_missing"


class KeyFileError(CannotStart):
    code = "storage_key_unusable"


class RescueFailed(Exception):
    """The rescue of a damaged folder failed; no data was saved and the folder is unchanged."""


class BackupFailed(Exception):
    """A backup could not be made, read or restored; the data folder is unchanged.

    `code` is that of the cause in the catalogue of the layers above.
    """

    def __init__(self, text: str, *, code: str = "backup_failed") -> None:
        super().__init__(text)
        self.code = code


class StoredError(Exception):
    """A request that contradicts the stored state; it had no effect."""


class NoRoomForIt(StoredError):
    def __init__(self) -> None:
        super().__init__("the disk is full; this operation can wait and was left out")


class NoSuchQueue(StoredError):
    def __init__(self, queue: str | int) -> None:
        super().__init__(f"there is no queue {queue!r}")


class QueueExists(StoredError):
    def __init__(self, queue: str) -> None:
        super().__init__(f"there is a queue {queue} already")


class SystemQueue(StoredError):
    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue} belongs to the queue manager")


class TooManyQueues(StoredError):
    def __init__(self, queues_max: int) -> None:
        super().__init__(f"no queue id is free: at most {queues_max} queues")
