"""The durable state: one SQLite database, one writer, group commit.

    storage.batch.insert_message(...)        adds a change to the open batch,
    storage.batch.when_durable(callback)     which is written to disk as one commit;
    await storage.batch.run(unit)            returns only after that commit
    await storage.read(read)                 reads the durable state on another connection

Begin to read at schema.sql, then engine/writer.py.  Units and reads are plain functions of a
`Connection`; they are composed of the functions in `tables/`, one module for each table.
"""

from sqlite3 import Connection

from storage.engine.batch import Batch
from storage.engine.disk import Disk, Lock
from storage.engine.recovery import Recovery
from storage.engine.schema import Identity
from storage.errors import (
    CannotStart,
    DatabaseDamaged,
    DataMissing,
    FolderInUse,
    ForeignDatabase,
    NewerSchema,
    NoSuchQueue,
    QueueExists,
    RecoveryFailed,
    StorageError,
    StoredError,
    SystemQueue,
    TooManyQueues,
)
from storage.options import StorageOptions
from storage.storage import Storage

__all__ = [
    "Batch",
    "CannotStart",
    "Connection",
    "DataMissing",
    "DatabaseDamaged",
    "Disk",
    "FolderInUse",
    "ForeignDatabase",
    "Identity",
    "Lock",
    "NewerSchema",
    "NoSuchQueue",
    "QueueExists",
    "Recovery",
    "RecoveryFailed",
    "Storage",
    "StorageError",
    "StorageOptions",
    "StoredError",
    "SystemQueue",
    "TooManyQueues",
]
