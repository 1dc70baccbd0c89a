"""The file of the door for SRMP: URLs for the receipts of streams, and the sources of messages.

It is a database beside that of a queue manager, of a process that does not open the other one.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LOCKED_S = 5.0  # how long another process may hold the file

#: `owners`, `networks` and `total` count the streams: a table that is full is not read for that.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    url TEXT NOT NULL,
    owner TEXT NOT NULL,
    network TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS streams_of_source ON streams (source, number);
CREATE INDEX IF NOT EXISTS streams_of_owner ON streams (owner, number);
CREATE TABLE IF NOT EXISTS owners (
    name TEXT PRIMARY KEY, network TEXT NOT NULL, streams INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owners_by_streams ON owners (network, streams);
CREATE TABLE IF NOT EXISTS networks (
    name TEXT PRIMARY KEY, streams INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS networks_by_streams ON networks (streams);
CREATE TABLE IF NOT EXISTS total (streams INTEGER NOT NULL);
INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total);
CREATE TABLE IF NOT EXISTS sources (guid TEXT PRIMARY KEY, address TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS imported (done INTEGER PRIMARY KEY);
CREATE TRIGGER IF NOT EXISTS stream_added AFTER INSERT ON streams BEGIN
    INSERT INTO owners VALUES (new.owner, new.network, 1)
        ON CONFLICT DO UPDATE SET streams = streams + 1;
    INSERT INTO networks VALUES (new.network, 1)
        ON CONFLICT DO UPDATE SET streams = streams + 1;
    UPDATE total SET streams = streams + 1;
END;
CREATE TRIGGER IF NOT EXISTS stream_removed AFTER DELETE ON streams BEGIN
    UPDATE owners SET streams = streams - 1 WHERE name = old.owner;
    DELETE FROM owners WHERE name = old.owner AND streams = 0;
    UPDATE networks SET streams = streams - 1 WHERE name = old.network;
    DELETE FROM networks WHERE name = old.network AND streams = 0;
    UPDATE total SET streams = streams - 1;
END;
"""

_OLDEST_OF_SOURCE = """
DELETE FROM streams WHERE number IN (
    SELECT number FROM streams WHERE source = ? ORDER BY number LIMIT ?
)
"""
_OLDEST_OF_OWNER = """
DELETE FROM streams WHERE number IN (
    SELECT number FROM streams WHERE owner = ? ORDER BY number LIMIT ?
)
"""
_OLDEST_OF_NETWORK = """
DELETE FROM streams WHERE number = (
    SELECT number FROM streams WHERE owner = (
        SELECT name FROM owners WHERE network = (
            SELECT name FROM networks ORDER BY streams DESC LIMIT 1
        ) ORDER BY streams DESC LIMIT 1
    ) ORDER BY number LIMIT 1
)
"""


class Stream(NamedTuple):
    """A stream: its name, its source, the URL for its receipts, and the host that has begun it."""

    name: str
    source: str
    url: str
    owner: str  # the host
    network: str  # of the host


class Limits(NamedTuple):
    """The numbers of streams that are kept."""

    of_source: int
    of_owner: int
    all: int


class StreamFile:
    """The open file, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.  Raises OSError."""
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.geteuid() == 0:  # the user of the door must be able to read it
                owner = path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        finally:
            os.close(descriptor)
        self._db = sqlite3.connect(path, LOCKED_S, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise OSError(f"{path} cannot be used: {error}") from error

    def commit(self, changes: Sequence[Callable[["StreamFile"], Any]]) -> list[Any]:
        """Make changes of the file in one commit; return their results.  Raises OSError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                results = [change(self) for change in changes]
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise OSError(f"{self._path} cannot be used: {error}") from error
        return results

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def url(self, stream: str) -> str:
        """Return the URL for the receipts of a stream, or ""."""
        found = self._db.execute("SELECT url FROM streams WHERE name = ?", (stream,)).fetchone()
        return "" if found is None else str(found[0])

    def add(self, stream: Stream, limits: Limits) -> None:
        """Keep the URL of a stream, unless it has one.

        A source or an owner with too many loses its oldest ones, and so does the network with the
        most when there are too many in all.
        """
        db = self._db
        if self.url(stream.name):
            return
        of_source = "SELECT count(*) FROM streams WHERE source = ?"
        self._drop(_OLDEST_OF_SOURCE, stream.source, of_source, limits.of_source)
        of_owner = "SELECT streams FROM owners WHERE name = ?"
        self._drop(_OLDEST_OF_OWNER, stream.owner, of_owner, limits.of_owner)
        while db.execute("SELECT streams FROM total").fetchone()[0] >= limits.all:
            db.execute(_OLDEST_OF_NETWORK)
        db.execute(
            "INSERT OR IGNORE INTO streams (name, source, url, owner, network)"
            " VALUES (?, ?, ?, ?, ?)",
            stream,
        )

    def _drop(self, oldest: str, whose: str, count: str, most: int) -> None:
        found = self._db.execute(count, (whose,)).fetchone()
        if found is not None and found[0] >= most:
            self._db.execute(oldest, (whose, found[0] + 1 - most))

    def sources(self) -> list[tuple[str, str]]:
        """Return the sources: their GUIDs and first addresses."""
        return self._db.execute("SELECT guid, address FROM sources").fetchall()

    def add_source(self, guid: str, address: str) -> None:
        """Keep the first address of a source."""
        self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (guid, address))

    def take_over(
        self, streams: Sequence[Stream], sources: Iterable[tuple[str, str]], limits: Limits
    ) -> None:
        """Add the content of the files of an earlier version, unless that was done."""
        if self._db.execute("SELECT 1 FROM imported").fetchone() is not None:
            return
        for each in streams:
            self.add(each, limits)
        for guid, address in sources:
            self.add_source(guid, address)
        self._db.execute("INSERT INTO imported VALUES (1)")
