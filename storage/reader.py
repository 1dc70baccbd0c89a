"""A reader: a connection for one purpose, of which a caller may also ask a little at once."""

import sqlite3
from collections.abc import Callable
from typing import TypeVar

import aiosqlite

from storage.engine.connection import at_once, submit
from storage.engine.hindrance import cause, explain
from storage.errors import StorageError

T = TypeVar("T")

Read = Callable[[sqlite3.Connection], T]


class Reader:
    """Reads the durable state, each time as it is then."""

    def __init__(
        self, connection: aiosqlite.Connection, closed: Callable[["Reader"], None]
    ) -> None:
        self._connection = connection
        self._closed = closed

    async def read(self, read: Read[T]) -> T:
        """Read on the thread of the connection.  Raises StorageError."""
        try:
            return await submit(self._connection, read)
        except sqlite3.Error as error:
            raise _failed(error) from error

    def read_at_once(self, read: Read[T]) -> T:
        """Read a single row on the event loop, which waits meanwhile.  Raises StorageError."""
        try:
            return at_once(self._connection, read)
        except sqlite3.Error as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Close the connection."""
        self._closed(self)
        await self._connection.close()


def _failed(error: sqlite3.Error) -> StorageError:
    return StorageError(f"a read failed: {explain(error)}", code=cause(error))
