"""The target of shipped files: a folder, or an object store through fsspec.

A file gets its name when it is complete.  In a folder: written under another name, synced, renamed,
and the folder synced.  In an object store: put as one object, which is atomic.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.stores import store_at

PART = ".part"


def require_libraries() -> None:
    """Raise ImportError before any work if a library is missing."""
    import fsspec  # noqa: F401
    import pyarrow  # noqa: F401


class Target:
    """A target folder or store, by path or URL."""

    def __init__(self, where: str) -> None:
        """Raise StoreUnknown for an address that cannot be used."""
        self._system, self._root, self._is_local = store_at(where)

    def __str__(self) -> str:
        return str(self._root)

    def names(self, pattern: str) -> list[str]:
        """Return the files below the root, relative to it, without unfinished ones."""
        found = self._system.glob(f"{self._root}/{pattern}")
        start = len(self._root) + 1
        return sorted(str(name)[start:] for name in found if not str(name).endswith(PART))

    def write(self, name: str, table: Any) -> int:
        """Write a table as Parquet and return its size in bytes; it is durable on return."""
        if self._is_local:
            return self._write_local(Path(self._root) / name, table)
        buffer = io.BytesIO()
        _write_parquet(table, buffer)
        data = buffer.getvalue()
        with contextlib.suppress(NotImplementedError):
            self._system.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
        self._system.pipe_file(f"{self._root}/{name}", data)
        return len(data)

    def _write_local(self, path: Path, table: Any) -> int:
        _make_folders(path.parent)
        part = path.with_name(f".{path.name}{PART}")
        try:
            part.unlink(missing_ok=True)  # left by a killed run, or a link that leads elsewhere
            with part.open("xb") as file:
                _write_parquet(table, file)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
        return size

    def read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Return a file as a table, with all columns or these."""
        from pyarrow import parquet

        with self._system.open(f"{self._root}/{name}", "rb") as file:
            return parquet.ParquetFile(file).read(columns=columns and list(columns))

    def remove(self, name: str) -> None:
        """Remove a file; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")
        if self._is_local:
            with contextlib.suppress(OSError):
                (Path(self._root) / name).parent.rmdir()  # removes the folder of the last file

    def clean(self, pattern: str) -> None:
        """Remove the unfinished files of a killed run."""
        for name in self._system.glob(f"{self._root}/{pattern}{PART}"):
            with contextlib.suppress(FileNotFoundError):
                self._system.rm_file(name)


def _write_parquet(table: Any, file: Any) -> None:
    from pyarrow import parquet

    parquet.write_table(table, file, compression="zstd")


def _make_folders(folder: Path) -> None:
    """Create the missing folders, each of them durable."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
