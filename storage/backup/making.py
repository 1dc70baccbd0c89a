"""The making of a backup, of a folder that is served or not.

    a folder    each backup is a file in it, and has only what the earlier ones do not have
    a file      one complete backup

The file has its name only when it is complete and durable: before, it ends with `.part`.
"""

import contextlib
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from storage.backup.archive import (
    FORMAT,
    PIECE_PAGES,
    SUFFIX,
    ArchiveReader,
    ArchiveWriter,
    Contents,
    Piece,
    SmallFile,
    Source,
    digest_of,
    find,
    pack_pieces,
)
from storage.backup.snapshot import Snapshot
from storage.engine import missing
from storage.engine.hindrance import explain
from storage.engine.recovery import sync_folder
from storage.errors import BackupFailed, CannotStart, FolderInUse
from storage.rescue.check import locked
from storage.vault import StorageKey

PART = ".part"
SMALL_BYTES_MAX = 16 * 1024 * 1024  # of one file beside the database
CHECK_PIECES = 512  # after each 64 MiB the free space is checked

#: Files of the data folder that belong to the database or to a process.
_NOT_COPIED = ("queues.db", "lock", "mark", "reserve", "probe.")


class Request(NamedTuple):
    """A backup to be made; `configuration` are the files of and named by the configuration."""

    folder: Path
    target: Path
    name: str
    release: str
    now_ms: int
    key: StorageKey | None = None
    keys: tuple[StorageKey, ...] = ()  # that may open earlier backups
    is_full: bool = False
    configuration: tuple[Path, ...] = ()
    free_bytes_min: int = 0  # below this free space in the data folder the backup is given up


class Made(NamedTuple):
    path: Path
    number: int  # 0: a single file
    bytes: int  # written
    database_bytes: int
    pieces: int
    new_pieces: int
    was_served: bool
    left_out: list[str]  # small files that are too large, as sentences


def make(request: Request, progress: Callable[[int], None] = lambda pieces: None) -> Made:
    """Make a backup.  Raises BackupFailed, CannotStart.

    `progress` gets the number of pieces that were read.
    """
    with contextlib.ExitStack() as resources:
        try:
            return _make(request, progress, resources)
        except (OSError, sqlite3.Error) as error:
            raise BackupFailed(f"the backup was not made: {explain(error)}") from error


def _make(
    request: Request, progress: Callable[[int], None], resources: contextlib.ExitStack
) -> Made:
    number, path = 0, request.target
    before = _Earlier()
    if request.target.is_dir():
        _lock_target(request.target, resources)
        for left in request.target.glob(f"*{SUFFIX}{PART}"):
            left.unlink()  # of a backup that was interrupted
        number, before = _look_back(request)
        made_at = _stamp(request.now_ms)
        path = request.target / f"{number:06}-{made_at}{SUFFIX}"
    elif path.exists():
        raise BackupFailed(f"{path} exists, and is not overwritten", code="file_exists")
    guard = resources.enter_context(contextlib.ExitStack())
    is_served = _lock_source(request.folder, guard)
    part = path.with_name(f"{path.name}{PART}")
    part.unlink(missing_ok=True)
    try:
        descriptor = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "wb", buffering=1024 * 1024) as out:
            writer = ArchiveWriter(out, request.key)
            contents, new, left_out = _write(writer, request, before, path, guard, progress)
            writer.finish(contents)
        os.rename(part, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    pieces = -(-contents.pages // PIECE_PAGES)
    size = contents.pages * contents.page_bytes
    return Made(path, number, writer.bytes, size, pieces, new, is_served, left_out)


class _Earlier(NamedTuple):
    """The pieces that earlier files have, and those files."""

    pieces: Mapping[bytes, tuple[str, Piece]] = {}  # by digest; with the name of the file
    sources: Sequence[Source] = ()
    queue_manager: bytes = b""
    name: str = ""


def _look_back(request: Request) -> tuple[int, _Earlier]:
    """Return the next number, and the pieces of the newest earlier backup."""
    earlier = list(find(request.target))
    number = earlier[-1][0] + 1 if earlier else 1
    if not earlier or request.is_full:
        return number, _Earlier()
    with contextlib.closing(ArchiveReader(earlier[-1][1], request.keys)) as reader:
        wanted = request.key.id if request.key else None
        if (reader.key_id if reader.is_encrypted else None) != wanted:
            return number, _Earlier()  # all files that a backup needs have one key
        contents = reader.contents()
    sources = [Source(reader.file_id, earlier[-1][1].name), *contents.sources[1:]]
    intact = {source.name for source in sources if _is_there(request.target, source)}
    pieces = {
        piece.digest: (sources[piece.file].name, piece)
        for piece in contents.piece_list()
        if sources[piece.file].name in intact
    }
    return number, _Earlier(pieces, sources, contents.queue_manager, contents.name)


def _is_there(folder: Path, source: Source) -> bool:
    """Return whether a file of a backup is still the one that contents refer to."""
    try:
        with (folder / source.name).open("rb") as file:
            return source.id in file.read(64)
    except OSError:
        return False


def _write(
    writer: ArchiveWriter,
    request: Request,
    before: _Earlier,
    path: Path,
    guard: contextlib.ExitStack,
    progress: Callable[[int], None],
) -> tuple[Contents, int, list[str]]:
    """Write the pieces that are new; return the contents, their number, and remarks.

    `guard` keeps a daemon from starting until the snapshot is open.
    """
    names = [path.name]
    sources = [Source(writer.file_id, path.name)]
    ids = {source.name: source for source in before.sources}
    own: dict[bytes, Piece] = {}
    pieces: list[Piece] = []
    with Snapshot(request.folder) as snapshot:
        guard.close()  # from now on, a daemon may start
        (schema,) = snapshot.db.execute("PRAGMA user_version").fetchone()
        (own_id,) = snapshot.db.execute("SELECT queue_manager FROM identity").fetchone()
        if before.queue_manager not in (b"", own_id):
            raise BackupFailed(
                f"{request.target} has backups of queue manager"
                f" {UUID(bytes_le=before.queue_manager)} ({before.name}): name another folder",
                code="backup_of_another",
            )
        counters = dict(snapshot.db.execute("SELECT name, value FROM counter"))
        for first in range(0, snapshot.pages, PIECE_PAGES):
            data = snapshot.read(first, PIECE_PAGES)
            digest = digest_of(data)
            if digest in own:
                pieces.append(own[digest])
            elif digest in before.pieces:
                name, piece = before.pieces[digest]
                if name not in names:
                    names.append(name)
                    sources.append(ids[name])
                pieces.append(piece._replace(file=names.index(name)))
            else:
                own[digest] = writer.add(data, digest)
                pieces.append(own[digest])
            progress(1)
            if len(pieces) % CHECK_PIECES == 0:
                _check_room(request)
        pages, page_bytes = snapshot.pages, snapshot.page_bytes
    files, left_out = _small_files(request)
    contents = Contents(
        format=FORMAT,
        queue_manager=own_id,
        name=request.name,
        release=request.release,
        made_at_ms=request.now_ms,
        schema=schema,
        page_bytes=page_bytes,
        pages=pages,
        counters=counters,
        sources=sources,
        pieces=pack_pieces(pieces),
        files=files,
    )
    return contents, len(own), left_out


def _check_room(request: Request) -> None:
    """Give up before the log, which grows during the backup, fills the disk."""
    found = os.statvfs(request.folder)
    if found.f_bavail * found.f_frsize < request.free_bytes_min:
        raise BackupFailed(
            f"the disk of {request.folder} is short of space, and its log grows during a backup:"
            " free space, and repeat it when there is less traffic",
            code="backup_disk_short",
        )


def _small_files(request: Request) -> tuple[list[SmallFile], list[str]]:
    files: list[SmallFile] = []
    left_out: list[str] = []
    places = [("data", path, str(path.relative_to(request.folder))) for path in _beside(request)]
    places += [("configuration", path, str(path)) for path in request.configuration]
    for place, path, name in places:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            left_out.append(f"{path} is not in the backup: {error.strerror}")
            continue
        with open(file, "rb") as opened:
            kind = os.fstat(file)
            content = opened.read(SMALL_BYTES_MAX + 1) if stat.S_ISREG(kind.st_mode) else b""
        if len(content) > SMALL_BYTES_MAX:
            left_out.append(
                f"{path} is not in the backup: it has more than {SMALL_BYTES_MAX} bytes"
            )
        elif stat.S_ISREG(kind.st_mode):
            files.append(SmallFile(place, name, stat.S_IMODE(kind.st_mode), content))
    return files, left_out


def _beside(request: Request) -> Iterator[Path]:
    """Yield the files of the data folder that do not belong to its database."""
    for path in sorted(request.folder.rglob("*")):
        top = path.relative_to(request.folder).parts[0]
        if top.startswith(_NOT_COPIED) or path.name.endswith(".new"):
            continue
        if path.is_file() and not path.is_symlink():
            yield path


def _lock_source(folder: Path, resources: contextlib.ExitStack) -> bool:
    """Lock the data folder; return True if a daemon has it.  Raises CannotStart."""
    try:
        resources.enter_context(locked(folder))
    except FolderInUse:
        return True
    except CannotStart as error:
        raise BackupFailed(str(error), code=error.code) from error
    lost = missing.find(folder)
    if lost is not None:
        raise BackupFailed(f"{lost}; {missing.REMEDY}", code="data_missing")
    return False


def _lock_target(folder: Path, resources: contextlib.ExitStack) -> None:
    """Keep another backup out of the folder.  Raises BackupFailed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    resources.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BackupFailed(f"another backup to {folder} is under way", code="backup_busy") from None


def _stamp(now_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def prune(folder: Path, keep: int, keys: tuple[StorageKey, ...]) -> list[Path]:
    """Remove all but the newest `keep` backups and the files that these need.

    Returns the removed ones.  Raises BackupFailed, OSError.
    """
    with contextlib.ExitStack() as resources:
        _lock_target(folder, resources)
        found = [path for _, path in find(folder)]
        needed = {path.name for path in found[-keep:]}
        for path in found[-keep:]:
            with contextlib.closing(ArchiveReader(path, keys)) as reader:
                needed |= {source.name for source in reader.contents().sources}
        removed = [path for path in found if path.name not in needed]
        for path in removed:
            path.unlink()
        sync_folder(folder)
        return removed
