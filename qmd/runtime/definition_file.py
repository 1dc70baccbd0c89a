"""A file of named definitions, which several processes read and replace.

Commands and the process that uses the definitions replace the file atomically, under a lock; it is
read again when it has changed.  Only its owner may read it, because it may contain keys.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from qmd.runtime.replaced_file import replace_file


class Named(Protocol):
    """A definition: a struct with a unique name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class DefinitionFile(Generic[T]):
    """The definitions in one file, by name."""

    def __init__(
        self,
        path: Path,
        kind: type[T],
        unreadable: Callable[[str], Exception],
        *,
        trusted: bool = False,
        runs: bool = False,
    ) -> None:
        """`unreadable(text)` returns the error to raise if the file cannot be read or written.

        `trusted`: definitions are commands, so a file is refused that other users can write, or
        that belongs to another user than root and that of this process. A command of root that
        only changes it (not `runs`) accepts the owner of its folder, too.
        """
        self.path = path
        self._kind = kind
        self._unreadable = unreadable
        self._trusted = trusted
        self._runs = runs
        self._state: tuple[int, int, int] | None = None
        self._found: dict[str, T] = {}

    def read(self) -> dict[str, T]:
        """Return the definitions by name; none if the file does not exist."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._state, self._found = None, {}
            return {}
        except OSError as error:
            raise self._unreadable(f"{self.path} cannot be read: {error}") from error
        state = found.st_mtime_ns, found.st_size, found.st_ino
        if state != self._state:
            try:
                kinds: type[list[T]] = list[self._kind]  # type: ignore[name-defined]
                definitions = msgspec.json.decode(self._content(), type=kinds)
            except (OSError, msgspec.DecodeError) as error:
                raise self._unreadable(f"{self.path} cannot be read: {error}") from error
            self._state, self._found = state, {each.name: each for each in definitions}
        return dict(self._found)

    def _content(self) -> bytes:
        """Return the content, of the file that was checked: another one may take its place."""
        with self.path.open("rb") as file:
            if self._trusted:
                self._check(os.fstat(file.fileno()))
            return file.read()

    def _check(self, found: os.stat_result) -> None:
        if found.st_mode & 0o022:
            raise self._unreadable(f"{self.path} can be written by other users than its owner")
        if found.st_uid not in self._owners():
            raise self._unreadable(
                f"{self.path} belongs to user {found.st_uid}, and its commands would be run as user"
                f" {os.geteuid()}: give it to that user, or to root"
            )

    def _owners(self) -> set[int]:
        owners = {0, os.geteuid()}
        if os.geteuid() == 0 and not self._runs:
            owners.add(self.path.parent.stat().st_uid)  # to which `replace_file` gives it
        return owners

    def change(self, change: Callable[[dict[str, T]], None]) -> None:
        """Replace the file, durably, by the definitions that `change` leaves in the dictionary."""
        try:
            with self._locked():
                definitions = self.read()
                change(definitions)
                encoded = msgspec.json.encode(list(definitions.values()))
                replace_file(self.path, msgspec.json.format(encoded))
        except OSError as error:
            raise self._unreadable(f"{self.path} cannot be written: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path.with_name(f"{self.path.name}.lock"), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
