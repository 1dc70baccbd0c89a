"""What survives: one SQLite database, one writer, group commit.

    storage.engine.batch.insert_message(...)        acts gather in the open batch,
    storage.engine.batch.when_durable(callback)     which goes to the disk as one commit;
    await storage.engine.batch.run(unit)            nobody is told anything before that has returned
    await storage.read(read)                 looks at what is durable, on another connection

Where to begin: schema.sql, then writer.py.  Units and reads are plain functions of a `Connection`,
made of those in the modules of the tables:

    queues   messages   outgoing   sequences   history   outcomes   counters   expiry
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
