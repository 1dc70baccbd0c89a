"""The file of a backup: pieces of the database, and a table of contents at its end.

    header: magic, id of the file (16), id of the key (8; zeros: not encrypted)
    pieces: each compressed, and encrypted if there is a key
    contents: the table of all pieces of the database, and the small files beside it
    end: place and digest of the contents

A piece is a run of pages.  The contents refer to a piece by its file, so an incremental backup has
only the pieces that no earlier file of its folder has.  Each piece is compared with its digest when
it is read, and the contents with the digest at the end.

With a key, each record is sealed by AES-256-GCM with a key derived for this file (HKDF with
SHA-256, the id of the file as its salt); the nonce is the number of the record.  The digests are
in the sealed contents.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from storage.engine.page_size import PAGE_SIZES
from storage.errors import BackupFailed
from storage.vault import KEY_ID_BYTES, StorageKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SUFFIX = ".qmdbackup"
FORMAT = 1
PIECE_PAGES = 16
DIGEST_BYTES = 24
CONTENTS_BYTES_MAX = 1 << 30

_MAGIC = b"qmdbkup1"
_ID_BYTES = 16
_HEADER = struct.Struct(f">8s{_ID_BYTES}s{KEY_ID_BYTES}s")
_END = struct.Struct(">QQ32s8s")  # offset and length of the contents, digest, magic
_NUMBER = struct.Struct(">Q")
_CONTENTS_NUMBER = (1 << 64) - 1
_NO_KEY = bytes(KEY_ID_BYTES)
_RAW, _PACKED = b"\0", b"\1"
_LEVEL = 1  # of zlib: higher ones take several times as long
_PIECE = struct.Struct(f">HQIQ{DIGEST_BYTES}s")  # file, offset, length, record number, digest


class Piece(NamedTuple):
    """The place of one piece: the index of its file in the contents, and its record there."""

    file: int
    offset: int
    length: int
    number: int
    digest: bytes


class Source(msgspec.Struct, frozen=True):
    """A file of a backup to which contents refer."""

    id: bytes
    name: str  # in the same folder


class SmallFile(msgspec.Struct, frozen=True):
    """A file beside the database, complete."""

    place: str  # "data": relative to the data folder; "configuration": of or named by qmd.toml
    path: str
    mode: int
    content: bytes


class Contents(msgspec.Struct, frozen=True):
    """The contents of one backup."""

    format: int
    queue_manager: bytes
    name: str  # of the queue manager, for readers
    release: str  # of qmd
    made_at_ms: int  # by the wall clock, when the snapshot began
    schema: int
    page_bytes: int
    pages: int
    counters: dict[str, int]
    sources: list[Source]  # the first one is this file
    pieces: bytes  # packed
    files: list[SmallFile]

    def piece_list(self) -> list[Piece]:
        """Return the pieces in the order of the database."""
        return [Piece._make(each) for each in _PIECE.iter_unpack(self.pieces)]


def pack_pieces(pieces: list[Piece]) -> bytes:
    return b"".join(_PIECE.pack(*each) for each in pieces)


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class _Sealer:
    """Compresses and seals the records of one file."""

    def __init__(self, file_id: bytes, key: StorageKey | None) -> None:
        self._file_id = file_id
        self._cipher = None if key is None else _derived(key, file_id)

    def pack(self, number: int, data: bytes) -> bytes:
        packed = zlib.compress(data, _LEVEL)
        plain = _PACKED + packed if len(packed) < len(data) else _RAW + data
        if self._cipher is None:
            return plain
        head = _NUMBER.pack(number)
        return self._cipher.encrypt(b"\0\0\0\0" + head, plain, self._file_id + head)

    def unpack(self, number: int, record: bytes, size_max: int) -> bytes:
        """Raises BackupFailed."""
        if self._cipher is not None:
            from cryptography.exceptions import InvalidTag

            head = _NUMBER.pack(number)
            try:
                record = self._cipher.decrypt(b"\0\0\0\0" + head, record, self._file_id + head)
            except InvalidTag:
                raise BackupFailed(
                    "a record was changed since the backup", code="backup_damaged"
                ) from None
        if record[:1] == _RAW:
            return record[1:]
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(record[1:], size_max)
        except zlib.error as error:
            raise BackupFailed(f"a record is damaged: {error}", code="backup_damaged") from None
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise BackupFailed("a record is damaged", code="backup_damaged")
        return data


def _derived(key: StorageKey, file_id: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derive = HKDF(algorithm=SHA256(), length=32, salt=file_id, info=b"qmd backup")
    return AESGCM(derive.derive(key.secret))


class ArchiveWriter:
    """Writes a new file of a backup, from the header to the end."""

    def __init__(self, out: BinaryIO, key: StorageKey | None) -> None:
        self.file_id = os.urandom(_ID_BYTES)
        self._out = out
        self._sealer = _Sealer(self.file_id, key)
        self._number = 0
        self.bytes = out.write(
            _HEADER.pack(_MAGIC, self.file_id, _NO_KEY if key is None else key.id)
        )

    def add(self, data: bytes, digest: bytes) -> Piece:
        """Write a piece; return its place, as that of the first file of the contents."""
        record = self._sealer.pack(self._number, data)
        piece = Piece(0, self.bytes, len(record), self._number, digest)
        self._out.write(record)
        self.bytes += len(record)
        self._number += 1
        return piece

    def finish(self, contents: Contents) -> None:
        """Write the contents and make the file durable.  Raises OSError."""
        record = self._sealer.pack(_CONTENTS_NUMBER, msgspec.msgpack.encode(contents))
        digest = hashlib.sha256(record).digest()
        self._out.write(record)
        self._out.write(_END.pack(self.bytes, len(record), digest, _MAGIC))
        self.bytes += len(record) + _END.size
        self._out.flush()
        os.fsync(self._out.fileno())


class ArchiveReader:
    """Reads one file of a backup; `close` it after use.

    Opening raises BackupFailed, OSError.
    """

    def __init__(self, path: Path, keys: tuple[StorageKey, ...] = ()) -> None:
        self.path = path
        self._file = path.open("rb")
        try:
            header = self._file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise BackupFailed(f"{path} is not a backup of qmd", code="not_a_backup")
            _, self.file_id, self.key_id = _HEADER.unpack(header)
            self._sealer = _Sealer(self.file_id, self._key(keys))
        except BaseException:
            self._file.close()
            raise

    @property
    def is_encrypted(self) -> bool:
        return bool(self.key_id != _NO_KEY)

    def close(self) -> None:
        self._file.close()

    def contents(self) -> Contents:
        """Read and check the contents.  Raises BackupFailed, OSError."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - _END.size))
        end = self._file.read(_END.size)
        if len(end) < _END.size or not end.endswith(_MAGIC):
            raise BackupFailed(f"{self.path} is not complete", code="backup_damaged")
        offset, length, digest, _ = _END.unpack(end)
        if offset + length + _END.size != size:
            raise BackupFailed(f"{self.path} is not complete", code="backup_damaged")
        record = self._read(offset, length)
        if hashlib.sha256(record).digest() != digest:
            raise BackupFailed(f"the contents of {self.path} are damaged", code="backup_damaged")
        data = self._sealer.unpack(_CONTENTS_NUMBER, record, CONTENTS_BYTES_MAX)
        try:
            contents = msgspec.msgpack.decode(data, type=Contents)
        except msgspec.MsgspecError as error:
            raise BackupFailed(
                f"the contents of {self.path} cannot be read: {error}", code="backup_damaged"
            ) from error
        if contents.format != FORMAT:
            raise BackupFailed(
                f"{self.path} has format {contents.format}, and this version of qmd knows {FORMAT}:"
                " use the version that made it, or a later one",
                code="backup_newer",
            )
        if contents.page_bytes not in PAGE_SIZES:
            raise BackupFailed(
                f"{self.path} has pages of {contents.page_bytes} bytes, which qmd never writes",
                code="backup_damaged",
            )
        return contents

    def piece(self, piece: Piece, size_max: int) -> bytes:
        """Read and check a piece.  Raises BackupFailed, OSError."""
        record = self._read(piece.offset, piece.length)
        data = self._sealer.unpack(piece.number, record, size_max)
        if digest_of(data) != piece.digest:
            raise BackupFailed(
                f"{self.path} is damaged at byte {piece.offset}", code="backup_damaged"
            )
        return data

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        record = self._file.read(length)
        if len(record) < length:
            raise BackupFailed(f"{self.path} is shorter than it was", code="backup_damaged")
        return record

    def _key(self, keys: tuple[StorageKey, ...]) -> StorageKey | None:
        if not self.is_encrypted:
            return None
        for key in keys:
            if key.id == self.key_id:
                return key
        raise BackupFailed(
            f"{self.path} is encrypted with key {self.key_id.hex()}: name its file with --key",
            code="backup_key_missing",
        )


def find(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number and the path of each backup of a folder, the oldest first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        number = path.name.partition("-")[0]
        if number.isascii() and number.isdigit():
            found.append((int(number), path))
    yield from sorted(found)
