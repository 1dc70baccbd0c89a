"""What can go wrong in the storage, and whose business it is.

Exception
├── StorageError              the daemon stops: nobody knows any more what the disk holds
│   └── CannotStart           nothing was touched yet; the message says what to do
│       ├── FolderInUse       another daemon has the data folder
│       ├── ForeignDatabase   `queues.db` is not ours
│       ├── NewerSchema       a newer qmd wrote it
│       ├── DatabaseDamaged   SQLite's own check found faults
│       ├── DataMissing       the files have less than was acknowledged
│       └── RecoveryFailed    the write-ahead log could not be made durable again
├── RescueFailed              nothing was saved of a damaged folder; it is as it was
└── StoredError               the daemon goes on: the request is refused, the caller is told
    ├── NoRoomForIt           the disk is full, and this act was one that can be done later
    ├── NoSuchQueue
    ├── QueueExists
    ├── SystemQueue           a queue that belongs to the queue manager cannot be deleted
    └── TooManyQueues         all queue ids are taken
"""


class StorageError(Exception):
    """Storing failed.  What was not reported durable before may be lost: stop, start again.

    `code` stands for the cause, where it is known; the layers above have a catalogue of them.
    """

    code = "storage_failed"

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        if code:
            self.code = code


class CannotStart(StorageError):
    """The storage cannot be opened; what is on disk was left as it is."""

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


class RecoveryFailed(CannotStart):
    code = "log_not_durable"


class RescueFailed(Exception):
    """Nothing was saved of a damaged folder; it is as it was."""


class StoredError(Exception):
    """A request does not fit what is stored; nothing of it was done."""


class NoRoomForIt(StoredError):
    def __init__(self) -> None:
        super().__init__("the disk is full, and what can be done later was left out")


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
