"""Places for files: folders, and every store that fsspec knows.

A file has its name only when it is complete.  `create` makes a file only if there is none of that
name, in one step; it decides which of two runs is the next one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pipeline.stores import StoreFailed, store_at


class Place:
    """A folder or store; all names are relative to it."""

    def __init__(self, where: str | Path) -> None:
        """Raise StoreUnknown for an address that cannot be used."""
        self.where = str(where)
        self._system, self._root, is_local = store_at(self.where)
        self.folder = Path(self._root) if is_local else None

    def address(self, name: str) -> str:
        """Return the complete address of a file."""
        return str(self.folder / name) if self.folder is not None else f"{self.where}/{name}"

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in `folder`."""
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return sorted(each.name for each in (self.folder / folder).iterdir())
            return []
        self._system.invalidate_cache()
        try:
            listed = self._system.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in listed)

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read it.  Raises FileNotFoundError."""
        if self.folder is not None:
            return (self.folder / name).open("rb")
        # All of it, because a reader of parts would get the errors of the store's library.
        return io.BytesIO(self._system.cat_file(f"{self._root}/{name}"))

    def read_json(self, name: str) -> dict[str, Any]:
        with self.open(name) as file:
            found: dict[str, Any] = json.load(file)
        return found

    def read_table(self, name: str) -> Any:
        from pyarrow import parquet

        with self.open(name) as file:
            return parquet.ParquetFile(file).read()

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        self.write(name, lambda file: file.write(content))

    def write_table(self, name: str, table: Any) -> None:
        from pyarrow import parquet

        self.write(name, lambda file: parquet.write_table(table, file, compression="zstd"))

    def write(self, name: str, fill: Callable[[IO[bytes]], Any]) -> None:
        """Write a file that `fill` writes to; on return it is durable and complete."""
        if self.folder is None:
            self._system.pipe_file(f"{self._root}/{name}", _filled(fill))
            return
        path = self.folder / name
        with _part(path, fill) as part:
            part.replace(path)
        sync_folder(path.parent)

    def create(self, name: str, text: str) -> bool:
        """Write a file unless there is one of that name; return whether it was written."""
        if self.folder is not None:
            path = self.folder / name
            try:
                with _part(path, lambda file: file.write(text.encode())) as part:
                    os.link(part, path)
            except FileExistsError:
                return False
            sync_folder(path.parent)
            return True
        self._system.invalidate_cache()
        try:
            self._system.pipe_file(f"{self._root}/{name}", text.encode(), mode="create")
        except FileExistsError:
            return False
        except StoreFailed as error:  # stores report the condition by errors of their own
            reported = f"{error.__cause__!r} {error}"
            if "PreconditionFailed" in reported or "At least one of the pre-conditions" in reported:
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        """Remove a file or a folder; a missing one is no error."""
        if self.folder is not None:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # the folder of its last file
            return
        with contextlib.suppress(FileNotFoundError):
            self._system.rm(f"{self._root}/{name}", recursive=True)

    def link(self, name: str, to: str) -> None:
        """Make `name` a link to the file or folder `to`, in one step.  Folders only."""
        assert self.folder is not None
        path = self.folder / name
        target = os.path.relpath(self.folder / to, path.parent)
        if path.is_symlink() and os.readlink(path) == target:
            return
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            part.symlink_to(target)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _filled(fill: Callable[[IO[bytes]], Any]) -> bytes:
    buffer = io.BytesIO()
    fill(buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def _part(path: Path, fill: Callable[[IO[bytes]], Any]) -> Any:
    """Yield a complete and durable file beside `path`; it is removed if it is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
