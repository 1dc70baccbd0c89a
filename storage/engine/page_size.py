"""The size of the pages of a database, which is fixed when it is created.

SQLite reads it in the header of the file, as do all parts of this package that read the files
themselves.  If that header is damaged, three other places know the size: the header of the log, the
log's index, and the second page, which is a map of the pages: an entry of 5 bytes for each page,
of which the first byte is a kind from 1 to 5.  https://sqlite.org/fileformat2.html 1.3.2, 1.8
"""

import struct
from pathlib import Path

from storage.options import PAGE_BYTES

#: The sizes with which qmd creates databases, or has created them.
PAGE_SIZES = (8192, 4096)

_FILE_HEADER = struct.Struct(">16sH")
_FILE_MAGIC = b"SQLite format 3\0"
_LOG_HEADER = struct.Struct(">2I")  # magic and version of the format
_LOG_PAGE_SIZE = struct.Struct(">8xI")
_LOG_MAGICS = (0x377F0682, 0x377F0683)
_INDEX_PAGE_SIZE = struct.Struct("=14xH")
_ENTRY_BYTES = 5
_KINDS = frozenset(range(1, 6))


def of_database(path: Path) -> int:
    """Return the size of the pages of a database that may be damaged.  Raises OSError."""
    head = _start(path, 2 * max(PAGE_SIZES))
    log, index = (path.with_name(f"{path.name}-{each}") for each in ("wal", "shm"))
    stated = {_in_file(head), in_log(_start(log, 12)), _in_index(_start(index, 16))} - {None}
    if len(stated) == 1 and (size := stated.pop()) is not None:
        return size
    return max(PAGE_SIZES, key=lambda size: (_fits_map(head, size), size == PAGE_BYTES))


def in_log(header: bytes) -> int | None:
    """Return the size that the first 12 bytes of a log state; None if they are damaged."""
    if len(header) < _LOG_PAGE_SIZE.size or _LOG_HEADER.unpack_from(header)[0] not in _LOG_MAGICS:
        return None
    return _known(_LOG_PAGE_SIZE.unpack_from(header)[0])


def _in_file(head: bytes) -> int | None:
    if len(head) < _FILE_HEADER.size:
        return None
    magic, size = _FILE_HEADER.unpack_from(head)
    return _known(size) if magic == _FILE_MAGIC else None


def _in_index(head: bytes) -> int | None:
    if len(head) < _INDEX_PAGE_SIZE.size:
        return None
    return _known(_INDEX_PAGE_SIZE.unpack_from(head)[0])


def _known(size: int) -> int | None:
    return size if size in PAGE_SIZES else None


def _fits_map(head: bytes, size: int) -> float:
    """Return the part of the entries of the map that are valid if the pages have this size.

    The map of a small database has zeros at its end: counted is up to the last byte that is not 0.
    """
    kinds = head[size : 2 * size].rstrip(b"\0")[::_ENTRY_BYTES]
    return sum(kind in _KINDS for kind in kinds) / len(kinds) if kinds else 0.0


def _start(path: Path, size: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(size)
