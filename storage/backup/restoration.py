"""The restoration of a backup into a data folder.

Everything is written beside the folder and verified there: the digests of all pieces, SQLite's own
check, and the identity.  Then the present folder, if there is one and the caller agrees, is moved
aside, and the new one takes its place.  A restoration that was killed has changed nothing, or left
the new folder complete.

**A restored queue manager is a later run of the original one.**  The numbers that it gave after the
backup are not known here, so `_continue_after` moves on every counter that other computers know:

- the count of starts becomes the time in milliseconds, which is greater than every count of the
  original: peers take the restored one for a later run, and the original, if it still runs
  somewhere, for a clone, which they refuse (qmd/core/peer_instance.py);
- message numbers, of 32 bits, continue at a random place: ids of messages that the original sent
  after the backup are not given to others, and peers do not take new messages for duplicates;
- the timestamp of sequences is at least the present time, even if the clock is set back later.

Positions of sequences stay as they are.  docs/backup.md says what follows from that at each end.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from storage.backup.archive import PIECE_PAGES, ArchiveReader, Contents, find
from storage.backup.exchange import exchange
from storage.engine import key_file, schema
from storage.engine.disk import Disk, check_neighbours
from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE
from storage.engine.recovery import check, sync_folder
from storage.errors import BackupFailed, CannotStart, StorageError
from storage.tables import counters
from storage.tables.outgoing import SEQUENCE_TIMESTAMP
from storage.tables.restorations import note_restored
from storage.vault import StorageKey

UNFINISHED = ".restoring"
#: Message numbers have 32 bits; the count that is skipped lies in their middle.
SKIPPED_MIN, SKIPPED_MAX = 1 << 28, (1 << 32) - (1 << 28)
CLOCK_TOLERANCE_MS = 60_000


class Backup(NamedTuple):
    """One backup that can be restored."""

    path: Path
    number: int  # 0: a single file
    bytes: int
    contents: Contents
    is_encrypted: bool


class Restored(NamedTuple):
    folder: Path
    backup: Backup
    aside: Path | None  # the former folder
    written: list[Path]  # files of the configuration
    kept: list[Path]  # files that exist, and were not overwritten


def backups(source: Path, keys: tuple[StorageKey, ...]) -> list[Backup]:
    """Return the backups of a folder or file, the oldest first.  Raises BackupFailed."""
    try:
        paths = list(find(source)) if source.is_dir() else [(0, source)]
        return [_described(number, path, keys) for number, path in paths]
    except OSError as error:
        raise BackupFailed(f"{source} cannot be read: {explain(error)}") from error


def _described(number: int, path: Path, keys: tuple[StorageKey, ...]) -> Backup:
    with contextlib.closing(ArchiveReader(path, keys)) as reader:
        return Backup(path, number, path.stat().st_size, reader.contents(), reader.is_encrypted)


def choose(source: Path, number: int | None, keys: tuple[StorageKey, ...]) -> Backup:
    """Return one backup: the newest, or that with a number.  Raises BackupFailed."""
    try:
        paths = list(find(source)) if source.is_dir() else [(0, source)]
        paths = [each for each in paths if number in (None, each[0])]
        if not paths:
            raise BackupFailed(
                f"there is no backup {'' if number is None else f'{number} '}in {source}",
                code="no_such_backup",
            )
        return _described(*paths[-1], keys)
    except OSError as error:
        raise BackupFailed(f"{source} cannot be read: {explain(error)}") from error


def verify(backup: Backup, keys: tuple[StorageKey, ...], progress: Callable[[int], None]) -> None:
    """Read every piece of a backup and compare it with its digest.  Raises BackupFailed."""
    with contextlib.ExitStack() as resources:
        try:
            for _ in _pieces(backup, keys, resources):
                progress(1)
        except OSError as error:
            raise BackupFailed(
                f"{backup.path} cannot be read: {explain(error)}", code="backup_damaged"
            ) from error


def restore(
    backup: Backup,
    folder: Path,
    keys: tuple[StorageKey, ...],
    *,
    now_ms: int,
    replaces: bool = False,
    files: Path | None = None,
    progress: Callable[[int], None] = lambda pieces: None,
) -> Restored:
    """Restore a backup into the data folder `folder`, which no daemon may use.

    With `replaces`, a present data folder is moved aside; otherwise there must be none.  `files` is
    a folder for the configuration and the files that it names: existing files stay.
    Raises BackupFailed.
    """
    _check_before(backup, folder, now_ms, replaces=replaces)
    try:
        check_neighbours(folder)
    except (CannotStart, OSError) as error:
        raise BackupFailed(f"nothing was restored: {error}", code="restore_refused") from error
    unfinished = folder.with_name(f"{folder.name}{UNFINISHED}")
    with contextlib.ExitStack() as resources:
        try:
            lock = None
            if folder.is_dir():
                lock = Disk().lock(folder)
                resources.callback(lock.release)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            unfinished.mkdir(mode=0o700)
            try:
                _fill(unfinished, backup, keys, now_ms, progress)
                _give_to_owner(unfinished, folder)
                aside = _take_place(unfinished, folder, now_ms)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            written, kept = _write_files(backup.contents, files)
            return Restored(folder, backup, aside, written, kept)
        except (OSError, sqlite3.Error) as error:
            raise BackupFailed(f"nothing was restored: {explain(error)}") from error
        except CannotStart as error:
            raise BackupFailed(f"nothing was restored: {error}", code=error.code) from error


def _check_before(backup: Backup, folder: Path, now_ms: int, *, replaces: bool) -> None:
    contents = backup.contents
    latest = schema.latest_version(schema.read_migrations())
    if contents.schema > latest:
        raise BackupFailed(
            f"{backup.path} has schema {contents.schema}, and this version of qmd knows {latest}:"
            f" install qmd {contents.release} or later",
            code="database_newer",
        )
    if now_ms + CLOCK_TOLERANCE_MS < contents.made_at_ms:
        raise BackupFailed(
            "the clock of this computer is behind the time of the backup"
            f" ({datetime.fromtimestamp(contents.made_at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC):"
            " sequences begin with the time, so set the clock first",
            code="restore_clock_behind",
        )
    if folder.is_symlink():
        raise BackupFailed(
            f"{folder} is a symbolic link: name the folder itself", code="restore_refused"
        )
    if not replaces and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupFailed(
            f"{folder} is not empty: it is replaced, and kept under another name, only with"
            " --replace",
            code="restore_refused",
        )


def _pieces(
    backup: Backup, keys: tuple[StorageKey, ...], resources: contextlib.ExitStack
) -> Iterator[bytes]:
    """Yield the pieces of the database, from all files of a backup, each compared with its digest.

    Raises BackupFailed, OSError.
    """
    readers: list[ArchiveReader] = []
    for number, source in enumerate(backup.contents.sources):
        path = backup.path if number == 0 else backup.path.parent / source.name
        if path.parent != backup.path.parent:  # a forged file: any other one would be opened
            raise BackupFailed(
                f"{backup.path} names a file outside of its folder: {source.name}",
                code="backup_damaged",
            )
        try:
            reader = ArchiveReader(path, keys)
        except FileNotFoundError:
            raise BackupFailed(
                f"{path} is missing, and {backup.path} needs it", code="backup_damaged"
            ) from None
        resources.callback(reader.close)
        if reader.file_id != source.id:
            raise BackupFailed(
                f"{path} is not the file that {backup.path} needs", code="backup_damaged"
            )
        readers.append(reader)
    for piece in backup.contents.piece_list():
        yield readers[piece.file].piece(piece, PIECE_PAGES * backup.contents.page_bytes)


def _fill(
    fresh: Path,
    backup: Backup,
    keys: tuple[StorageKey, ...],
    now_ms: int,
    progress: Callable[[int], None],
) -> None:
    """Write and verify the data folder.  Raises BackupFailed, OSError, sqlite3.Error."""
    contents = backup.contents
    path = fresh / DATABASE
    with contextlib.ExitStack() as resources, open(path, "xb", opener=_private) as out:
        for data in _pieces(backup, keys, resources):
            out.write(data)
            progress(1)
        if out.tell() != contents.pages * contents.page_bytes:
            raise BackupFailed(f"{backup.path} is not complete", code="backup_damaged")
        out.flush()
        os.fsync(out.fileno())
    for file in contents.files:
        if file.place == "data":
            _create(_inside(fresh, file.path), file.content, file.mode)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        try:
            check(db)
        except StorageError as error:
            raise BackupFailed(f"the restored database is damaged: {error}") from error
        _check_identity(db, fresh, contents)
        _continue_after(db, now_ms)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for each in (*fresh.rglob("*"), fresh):
        if each.is_dir():
            sync_folder(each)


def _check_identity(db: sqlite3.Connection, fresh: Path, contents: Contents) -> None:
    row = db.execute("SELECT * FROM identity").fetchone()
    if row is None or row[1] != contents.queue_manager:
        raise BackupFailed("the restored database has another identity", code="backup_damaged")
    recorded = row[3] if len(row) > 3 else None
    fault = key_file.find_fault(fresh, Disk(), recorded) if recorded else None
    if fault is not None:
        raise BackupFailed(f"the backup is not complete: {fault}", code="backup_damaged")


def _continue_after(db: sqlite3.Connection, now_ms: int) -> None:
    """Move on the counters that other computers know, in one commit."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    continue_counters(db, now_ms, secrets.randbelow)
    db.execute("COMMIT")


def continue_counters(
    db: sqlite3.Connection, now_ms: int, random_below: Callable[[int], int]
) -> None:
    """Move on the counters that other computers know, in the transaction of the caller."""
    starts = counters.following(db, "start")
    counters.set_following(db, "start", max(starts + 1, now_ms))
    skipped = SKIPPED_MIN + random_below(SKIPPED_MAX - SKIPPED_MIN)
    counters.set_following(db, "message", counters.following(db, "message") + skipped)
    latest = counters.following(db, SEQUENCE_TIMESTAMP)
    counters.set_following(db, SEQUENCE_TIMESTAMP, max(latest, now_ms // 1000))
    note_restored(db, now_ms)


def _take_place(fresh: Path, folder: Path, now_ms: int) -> Path | None:
    """Exchange the present folder for the new one; return where the former one is, or None.

    The exchange is one act of the file system: at no moment is there no data folder, for which a
    start of the daemon would create an empty one.  Raises OSError.
    """
    aside = None
    if folder.exists() and any(each.name != "lock" for each in folder.iterdir()):
        aside = _free_name(folder, now_ms)
        fresh.rename(aside)
        try:
            exchange(aside, folder)
        except OSError:
            aside.rename(fresh)
            raise
    else:
        (folder / "lock").unlink(missing_ok=True)
        fresh.rename(folder)  # replaces an empty folder
    sync_folder(folder.parent)
    return aside


def _free_name(folder: Path, now_ms: int) -> Path:
    """Return a new name for the former folder."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    name = f"{folder.name}.replaced-{at:%Y%m%dT%H%M%SZ}"
    names = (name if number == 0 else f"{name}-{number}" for number in itertools.count())
    return next(path for each in names if not (path := folder.with_name(each)).exists())


def _give_to_owner(fresh: Path, folder: Path) -> None:
    """Give the files to the owner of the present folder, or of its parent, also if root runs it."""
    if os.geteuid() != 0:
        return
    owner = (folder if folder.exists() else folder.parent).stat()
    for each in sorted(fresh.rglob("*")):
        os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.chown(fresh, owner.st_uid, owner.st_gid)


def _write_files(contents: Contents, files: Path | None) -> tuple[list[Path], list[Path]]:
    """Write the files of the configuration below `files`; return those written and those kept."""
    written: list[Path] = []
    kept: list[Path] = []
    if files is None:
        return written, kept
    for file in contents.files:
        if file.place == "configuration":
            path = _inside(files, file.path.lstrip("/"))
            if path.exists():
                kept.append(path)
            else:
                _create(path, file.content, file.mode)
                written.append(path)
    return written, kept


def _inside(folder: Path, relative: str) -> Path:
    path = folder / relative
    if ".." in path.parts or not path.is_relative_to(folder):
        raise BackupFailed(f"the backup names a file outside of it: {relative}")
    return path


def _create(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "xb", opener=_private) as out:
        out.write(content)
        out.flush()
        os.fchmod(out.fileno(), mode & 0o770)
        os.fsync(out.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
