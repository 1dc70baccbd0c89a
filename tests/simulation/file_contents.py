"""The contents of a simulated file: as the system shows them, and as the disk has them.

Two classes implement them: one in Python, and one in C (`quick.c`), which needs a compiler and
makes worlds with many commits a fifth faster.  `QUICK=0` in the environment selects the one in
Python; the worlds are the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol

SOURCE = Path(__file__).with_name("quick.c")
FOLDER = Path(__file__).resolve().parents[2] / "build"

#: (offset, data), or (size, None) for a truncation.
Write = tuple[int, bytes | None]


class Contents(Protocol):
    """The visible bytes (`content`), the durable ones (`durable`), and the writes between them."""

    @property
    def content(self) -> bytes | bytearray: ...
    @property
    def is_unsynced(self) -> bool:
        """Whether there are unsynced writes."""

    @property
    def durable(self) -> bytes | bytearray: ...
    def size(self) -> int: ...
    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""

    def write(self, offset: int, data: bytes) -> None: ...
    def remember(self, offset: int, data: bytes) -> None:
        """Record a write that the disk may have received, and that is not visible."""

    def truncate(self, size: int) -> None: ...
    def empty(self) -> None:
        """Remove the visible bytes without recording a write."""

    def settle(self) -> None:
        """Apply the unsynced writes to the disk."""

    def forget(self) -> None:
        """Drop the unsynced writes."""

    def forget_durable(self) -> None:
        """Drop the durable bytes of a removed file of this name, and keep the unsynced writes."""

    def unsynced(self) -> list[Write]: ...
    def lose_power(self, kept: list[Write]) -> None:
        """Apply the kept writes to the disk, drop the others, and show the result."""

    def lend(self, *, durable: bool) -> Contents:
        """Return contents of another file that share these bytes until it is written.

        They must be read before this file changes.
        """


class PlainContents:
    """The implementation in Python."""

    def __init__(self, content: bytearray | None = None) -> None:
        self.content = bytearray() if content is None else content
        self.durable = bytearray()
        self._writes: list[Write] = []
        self._is_borrowed = content is not None

    def size(self) -> int:
        return len(self.content)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.content[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self._make_own()
        content = self.content
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        self._writes.append((offset, data))

    def remember(self, offset: int, data: bytes) -> None:
        self._writes.append((offset, data))

    def truncate(self, size: int) -> None:
        self._make_own()
        apply(self.content, size, None)
        self._writes.append((size, None))

    def empty(self) -> None:
        self.content, self._is_borrowed = bytearray(), False

    def settle(self) -> None:
        for offset, data in self._writes:
            apply(self.durable, offset, data)
        self._writes.clear()

    def forget(self) -> None:
        self._writes.clear()

    def forget_durable(self) -> None:
        self.durable = bytearray()

    @property
    def is_unsynced(self) -> bool:
        return bool(self._writes)

    def unsynced(self) -> list[Write]:
        return self._writes

    def lose_power(self, kept: list[Write]) -> None:
        for offset, data in kept:
            apply(self.durable, offset, data)
        self.content, self._is_borrowed = bytearray(self.durable), False
        self._writes.clear()

    def lend(self, *, durable: bool) -> PlainContents:
        return PlainContents(self.durable if durable else self.content)

    def _make_own(self) -> None:
        if self._is_borrowed:
            self.content, self._is_borrowed = bytearray(self.content), False


class Block(ctypes.Structure):
    """A growing array of bytes."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64), ("room", ctypes.c_int64)]

    def get(self) -> bytes:
        return ctypes.string_at(self.data, self.size) if self.size else b""


class Bytes(ctypes.Structure):
    """`struct bytes` of quick.c."""

    _fields_ = [
        ("content", Block),
        ("durable", Block),
        ("writes", Block),
        ("is_borrowed", ctypes.c_int64),
    ]


class QuickContents:
    """The implementation in C."""

    def __init__(self) -> None:
        self.c = Bytes()
        self.pointer = ctypes.addressof(self.c)
        self._lender: QuickContents | None = None

    def __del__(self) -> None:
        if quick is not None:
            quick.bytes_free(self.pointer)

    @property
    def content(self) -> bytes:
        return self.c.content.get()

    @property
    def durable(self) -> bytes:
        return self.c.durable.get()

    def size(self) -> int:
        size: int = self.c.content.size
        return size

    def read(self, offset: int, size: int) -> bytes:
        block = self.c.content
        there = min(size, block.size - offset)
        return ctypes.string_at(block.data + offset, there) if there > 0 else b""

    def write(self, offset: int, data: bytes) -> None:
        _succeeds(quick.bytes_write(self.pointer, offset, data, len(data)))

    def remember(self, offset: int, data: bytes) -> None:
        _succeeds(quick.bytes_remember(self.pointer, offset, data, len(data)))

    def truncate(self, size: int) -> None:
        _succeeds(quick.bytes_truncate(self.pointer, size))

    def empty(self) -> None:
        if self.c.is_borrowed:
            self.c.content, self.c.is_borrowed = Block(), 0
        self.c.content.size = 0

    def settle(self) -> None:
        _succeeds(quick.bytes_settle(self.pointer))

    def forget(self) -> None:
        self.c.writes.size = 0

    def forget_durable(self) -> None:
        self.c.durable.size = 0

    @property
    def is_unsynced(self) -> bool:
        return bool(self.c.writes.size)

    def unsynced(self) -> list[Write]:
        log, at, writes = self.c.writes.get(), 0, []
        while at < len(log):
            offset = int.from_bytes(log[at : at + 8], "little")
            size = int.from_bytes(log[at + 8 : at + 16], "little", signed=True)
            at += 16
            writes.append((offset, None if size < 0 else log[at : at + size]))
            at += max(size, 0)
        return writes

    def lose_power(self, kept: list[Write]) -> None:
        self.forget()
        for offset, data in kept:
            self.remember(offset, data) if data is not None else self._remember_size(offset)
        self.settle()
        self.empty()
        _succeeds(quick.bytes_show_durable(self.pointer))

    def _remember_size(self, size: int) -> None:
        _succeeds(quick.bytes_remember(self.pointer, size, None, 0))

    def lend(self, *, durable: bool) -> QuickContents:
        other = QuickContents()
        other.c.content = self.c.durable if durable else self.c.content
        other.c.is_borrowed = 1
        other._lender = self  # keeps the shared bytes alive
        return other


def _succeeds(is_done: int) -> None:
    if not is_done:
        raise MemoryError


def new_contents() -> Contents:
    return PlainContents() if quick is None else QuickContents()


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Apply a write to `content`; without data, truncate it to `offset`."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _library() -> Any:
    """Build and load quick.c; return None without a compiler, or if QUICK is 0."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.environ.get("QUICK") == "0":
        return None
    built = FOLDER / f"quick-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    try:
        if not built.exists():
            FOLDER.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".so", delete=False) as unfinished:
                command = [compiler, "-O2", "-shared", "-fPIC", "-o", unfinished.name, SOURCE]
            subprocess.run(command, check=True, capture_output=True)
            Path(unfinished.name).rename(built)
        library = ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError):
        return None
    where, size = ctypes.c_void_p, ctypes.c_int64
    library.bytes_write.argtypes = (where, size, ctypes.c_char_p, size)
    library.bytes_remember.argtypes = (where, size, ctypes.c_char_p, size)
    library.bytes_truncate.argtypes = (where, size)
    library.bytes_settle.argtypes = (where,)
    library.bytes_show_durable.argtypes = (where,)
    library.bytes_free.argtypes = (where,)
    library.bytes_free.restype = None
    return library


quick = _library()
