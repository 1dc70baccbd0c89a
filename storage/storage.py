"""The open data folder of one queue manager.

It holds `queues.db` with its log (`-wal`) and the log's index (`-shm`); `mark`, which records how
far they go; `identity.key`, the queue manager's key; `lock`, which keeps a second daemon out; and
`reserve`, which is deleted when the disk is full.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite

from storage.engine import connection, key_file, missing, recovery, schema
from storage.engine.batch import Batch
from storage.engine.commit import VACUUM_PAGES
from storage.engine.connection import open_connection, set_up_reader, set_up_writer, submit
from storage.engine.disk import Disk, Lock
from storage.engine.figures import WriterFigures
from storage.engine.hindrance import cause, explain, is_full
from storage.engine.mark import COUNTER, Marker
from storage.engine.missing import DATABASE
from storage.engine.recovery import Recovery
from storage.engine.reserve import Reserve, give_up
from storage.engine.schema import Identity
from storage.engine.writer import Writer
from storage.errors import CannotStart, NetworkDisk, RecoveryFailed, StorageError
from storage.options import StorageOptions
from storage.reader import Reader
from storage.tables import counters, sealing, tally, vanished
from storage.tables.vanished import Vanished
from storage.vault import Vault, VaultConnection

T = TypeVar("T")

Connect = Callable[[str], aiosqlite.Connection]


class Storage:
    """The storage of one queue manager, created by `Storage.open` and used from one event loop."""

    def __init__(
        self,
        *,
        identity: Identity,
        recovery: Recovery,
        writer: Writer,
        reading: aiosqlite.Connection,
        reserve: Reserve,
        lock: Lock,
        options: StorageOptions,
        open_reader: Callable[[], Awaitable[aiosqlite.Connection]],
    ) -> None:
        self.identity = identity
        self.recovery = recovery
        #: Gets a StorageError as its exception when the storage fails: stop the daemon.
        self.failed: asyncio.Future[None] = writer.failed
        self._writer = writer
        #: Calls a function after the notifications of a small commit, or in the next turn.
        self.soon = writer.soon
        #: Returns whether the event loop waits for a commit; any thread may call it.
        self.holds_the_loop = writer.holds_the_loop
        self._reading = reading
        self._reserve = reserve
        self._lock = lock
        self._options = options
        self._open_reader = open_reader
        self._rows_max = options.commit_rows_max
        self._bytes_max = options.batch_bytes_max
        self._is_closed = False
        self._resources = contextlib.AsyncExitStack()
        self._readers: set[Reader] = set()

    @classmethod
    async def open(
        cls,
        folder: Path,
        options: StorageOptions,
        *,
        now_ms: int,
        new_id: bytes,
        new_seed: bytes | None = None,
        connect: Connect = connection.connect,
        disk: Disk | None = None,
    ) -> "Storage":
        """Open the data folder: create it on the first start, recover it on every other.

        `new_id` becomes the queue manager's GUID on the first start, and `new_seed` (32 bytes) the
        seed of its key on the first start that has none; None: it gets no key.  Raises CannotStart.
        """
        disk = disk or Disk()
        begin = partial(_begin, folder, options, now_ms, (new_id, new_seed), connect, disk)
        try:
            try:
                return await begin()
            except (OSError, sqlite3.Error, RecoveryFailed) as full:
                # Opening the log, which a clean stop removes, needs disk space.
                if not is_full(full.__cause__ or full) or not give_up(disk, folder):
                    raise
            return await begin()
        except (OSError, sqlite3.Error) as first:
            error = _reason(first, disk, folder)
            raise CannotStart(
                f"the data folder {folder} cannot be opened: {explain(error)}", code=cause(error)
            ) from error

    @property
    def batch(self) -> Batch:
        """The open batch.  Get it anew for each change: it is replaced at each commit."""
        return self._writer.batch

    def watch_outcomes(self, watch: Callable[[bytes], None]) -> None:
        """Call `watch` with the token of each outcome that a batch gets."""
        self._writer.on_outcome = watch

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Read the durable state without delaying the writer.  Raises StorageError."""
        if self._is_closed:
            raise StorageError("the storage is closed")
        try:
            return await submit(self._reading, read)
        except sqlite3.Error as error:
            raise StorageError(f"a read failed: {explain(error)}", code=cause(error)) from error

    async def compare(self) -> list[Vanished]:
        """Compare the rows of messages with the tally, on a connection of its own.

        Returns the queues from which rows have vanished, or to which another program has added
        some.  Takes about a second for two million rows.  Raises StorageError.
        """
        reader = await self.open_reader()
        try:
            return await reader.read(_differences)
        finally:
            await reader.close()

    async def open_reader(self) -> Reader:
        """Return a reader with a connection of its own; `close` closes it, if the caller has not.

        Raises StorageError.
        """
        try:
            reader = Reader(await self._open_reader(), self._readers.discard)
        except sqlite3.Error as error:
            raise StorageError(f"a read failed: {explain(error)}", code=cause(error)) from error
        self._readers.add(reader)
        return reader

    async def foreign_commits(self) -> int:
        """Return a number that changes when another program has written to the database."""
        return await self._writer.foreign_commits()

    @contextlib.contextmanager
    def patience(self, is_patient: bool) -> Iterator[None]:
        """Mark the changes made inside as not urgent.

        They join a commit that other changes cause, or are committed after `PATIENCE_S`.  They are
        as durable as others when their callers are notified.
        """
        before, self._writer.is_patient = self._writer.is_patient, is_patient
        try:
            yield
        finally:
            self._writer.is_patient = before

    @property
    def pressure(self) -> int:
        """Number of rows that are not durable yet."""
        return self._writer.rows_waiting

    @property
    def bytes_waiting(self) -> int:
        """Bytes of the packets that are not durable yet."""
        return self._writer.bytes_waiting

    @property
    def ordinary_commit_s(self) -> float:
        """The time that a commit with few bytes takes, in seconds: a moving average."""
        return self._writer.ordinary_commit_s

    @property
    def figures(self) -> WriterFigures:
        """The times of commits and checkpoints since the start, and the size of the log."""
        return self._writer.figures

    @property
    def congested(self) -> bool:
        """Whether so many changes wait for the disk that no new messages should be accepted."""
        return self._writer.has_waiting(self._rows_max, self._bytes_max)

    def room(self, now_s: float, size_bytes: int = 0, *, lets_leave: bool = False) -> bool:
        """Return whether the disk has room for new messages of this size, which then count as
        accepted.

        `now_s` may be any monotonic clock, in seconds.  Packets that let messages leave
        (`lets_leave`) may take half of `kept_free_bytes`.
        """
        if lets_leave:
            return self._reserve.has_room_below(now_s, size_bytes)
        has_room = self._reserve.has_room(now_s, size_bytes)
        if self._reserve.needs_commit:
            # If all messages are rejected, no commit may come for a long time: request one now.
            self._reserve.needs_commit = False
            self.batch.when_durable(lambda: None)
        return has_room

    @property
    def kept_free_bytes(self) -> int:
        """The free disk space below which no messages are accepted, in bytes."""
        return self._options.disk_watermark_bytes

    @property
    def free_bytes(self) -> int:
        """The free disk space in bytes, as last measured by `room`."""
        return self._reserve.free_bytes

    @property
    def full(self) -> bool:
        """Whether the reserve was deleted and could not be created again yet."""
        return not self._reserve.held

    @property
    def obstacle(self) -> str:
        """Why a commit waits for space or memory, as a sentence; "" if it does not wait."""
        return self._writer.obstacle

    async def vacuum(self, pages_max: int = VACUUM_PAGES) -> int:
        """Return unused pages of the file to the disk; return how many are left.

        Takes some 3 ms for 256 pages, during which no batch is written: call it in idle moments.
        """
        return await self._writer.vacuum(pages_max)

    async def close(self) -> None:
        """Wait for the open batch, checkpoint the log, and release the lock."""
        await self._writer.close()
        self._is_closed = True
        for reader in list(self._readers):
            with contextlib.suppress(sqlite3.Error):
                await reader.close()
        self._lock.is_clean = not self.failed.done()
        await self._resources.aclose()


def _differences(db: sqlite3.Connection) -> list[Vanished]:
    return vanished.explain(db, tally.differences(db))


def _reason(error: OSError | sqlite3.Error, disk: Disk, folder: Path) -> OSError | sqlite3.Error:
    """Return the system's reason why SQLite cannot open its files; SQLite reports none."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN:
        try:
            disk.probe(folder)
        except OSError as reason:
            return reason
    return error


async def _begin(
    folder: Path,
    options: StorageOptions,
    now_ms: int,
    new: tuple[bytes, bytes | None],
    connect: Connect,
    disk: Disk,
) -> Storage:
    """Open the storage; if that fails, everything opened so far is closed."""
    async with contextlib.AsyncExitStack() as resources:
        storage = await _open(resources, folder, options, now_ms, new, connect, disk)
        storage._resources = resources.pop_all()
        return storage


def _prepare(
    db: sqlite3.Connection,
    *,
    options: StorageOptions,
    vault: Vault | None,
    must_check: bool,
    now_s: int,
    new_id: bytes,
) -> tuple[Identity, int, int]:
    """Migrate and set up the database for writing.

    Returns the identity, the last stretch, and the size of the pages.
    """
    migrations = schema.read_migrations()
    schema.recognize(db, migrations)
    sealing.require_keys(db, vault)
    set_up_writer(db, options)
    if must_check:
        recovery.check(db)
    identity = schema.prepare(db, migrations, now_s=now_s, new_id=new_id)
    sealing.begin(db, vault, now_s)
    recovery.delete_unused_pieces(db)
    # From here on the writer runs the checkpoints: checkpoint.py.
    db.execute("PRAGMA wal_autocheckpoint = 0")
    if isinstance(db, VaultConnection):
        db.tally = tally.load(db)
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    return identity, counters.following(db, COUNTER) - 1, page_bytes


async def _open(
    resources: contextlib.AsyncExitStack,
    folder: Path,
    options: StorageOptions,
    now_ms: int,
    new: tuple[bytes, bytes | None],
    connect: Connect,
    disk: Disk,
) -> Storage:
    """Open the storage step by step, in the required order.

    Each step registers its undo with `resources`.  No file is changed before the lock is held, and
    SQLite opens no file before the log was rewritten.
    """
    disk.make_folder(folder)
    _refuse_network(folder, disk)
    lock = disk.lock(folder)
    resources.callback(lock.release)

    path = folder / DATABASE
    log_bytes = _rewrite_log(path, disk)
    missing.refuse(folder, disk)
    database_bytes = disk.file_bytes(path)
    was_clean = log_bytes == 0 and not lock.was_abandoned
    must_check = not was_clean and database_bytes <= options.quick_check_bytes_max
    vault = options.vault()

    marker = Marker(disk, folder)
    resources.callback(marker.close)
    writing = await open_connection(connect, str(path))
    resources.push_async_callback(_close, writing)
    prepare = partial(_prepare, options=options, vault=vault, must_check=must_check)
    identity, stretch, page_bytes = await submit(
        writing, partial(prepare, now_s=now_ms // 1000, new_id=new[0])
    )
    identity = await _with_key(identity, writing, folder, disk, new[1])

    async def open_reader() -> aiosqlite.Connection:
        reader = await open_connection(connect, str(path))
        await submit(reader, partial(set_up_reader, options=options, vault=vault))
        return reader

    reading = await open_reader()
    resources.push_async_callback(_close, reading)

    marker.open(identity.queue_manager_id, stretch)
    # The log file exists now, and keeps its name until the end.  SQLite syncs the folder as well,
    # but ignores a failure.
    disk.sync_folder(folder)
    log = disk.open_log(folder / f"{DATABASE}-wal")
    resources.callback(log.close)

    reserve = Reserve(disk, path, options)
    reserve.take()
    return Storage(
        identity=identity,
        recovery=Recovery(was_clean, log_bytes, database_bytes, must_check),
        writer=Writer(writing, reserve, log, marker, options, page_bytes),
        reading=reading,
        reserve=reserve,
        lock=lock,
        options=options,
        open_reader=open_reader,
    )


def _refuse_network(folder: Path, disk: Disk) -> None:
    """Refuse a network file system, where two computers may hold the lock.  Raises NetworkDisk."""
    if kind := disk.network_file_system(folder):
        raise NetworkDisk(
            f"{folder} is on a network file system ({kind}): its lock may be held twice, and the"
            " memory of SQLite's log is not shared. Use a disk of this computer, or a replicated"
            " block device"
        )


def _rewrite_log(path: Path, disk: Disk) -> int:
    """Make the log of a database durable; return its size in bytes.  Raises RecoveryFailed."""
    try:
        return disk.rewrite_log(path.with_name(f"{path.name}-wal"))
    except OSError as error:
        raise RecoveryFailed(
            f"the log of {path} cannot be made durable: {explain(error)}"
        ) from error


async def _with_key(
    identity: Identity,
    writing: aiosqlite.Connection,
    folder: Path,
    disk: Disk,
    new_seed: bytes | None,
) -> Identity:
    """Return the identity with its key, which is recorded once its file is durable."""
    if new_seed is None:
        return identity
    seed = key_file.take(folder, disk, new_seed)
    await submit(writing, partial(key_file.record, key_digest=key_file.digest(seed)))
    return identity._replace(seed=seed)


async def _close(connection: aiosqlite.Connection) -> None:
    """Close the connection; the last one checkpoints the log and removes it.

    After a failure, or on a full disk, that may be incomplete; the next start completes it.
    """
    with contextlib.suppress(sqlite3.Error):
        await connection.close()
