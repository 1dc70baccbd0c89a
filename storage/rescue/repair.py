"""The rescue of a damaged data folder into a fresh folder beside it.

The damaged folder is only read.  The fresh one gets the intact messages, with the queues and
sequences that they belong to, so that a daemon can start on it.  The caller gets all messages,
intact or not, to store them elsewhere as well.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from storage.engine import key_file, schema
from storage.engine.connection import set_up_writer
from storage.engine.disk import Disk, check_neighbours
from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE
from storage.engine.recovery import sync_folder
from storage.errors import CannotStart, RescueFailed
from storage.options import StorageOptions
from storage.rescue.salvage import Value
from storage.rescue.survey import MESSAGE_TABLES, KeptMessage, Survey
from storage.tables import awaiting, delayed, sealing, shared_parts, tally
from storage.tables.keys import arrival_of
from storage.tables.queues import FIRST_USER_QUEUE_ID
from storage.vault import Vault, VaultConnection, attach

BATCH_ROWS = 1000
#: Added to the highest number known to be assigned: later ones may have been assigned and lost.
NUMBERS_SKIPPED = 10_000_000

Row = tuple[Value, ...]

#: Counters of numbers that other systems have seen.
_COUNTED = frozenset(("message", "arrival", "start", "fence"))

_SMALL_TABLES = (
    *("queue", "outgoing_queue", "incoming_sequence", "message_id_history", "outcome"),
    "own_dead_letter",
    "link_delivery",
    "unconfirmed",
    "unaddressed",
    "delayed",
    *("retry_policy", "retry"),
    "owed",
    "sealing_key",
    # A reservation without its message has no effect.
    *("reader", "reader_queue", "reservation", "stage", "publication"),
)


class Rescue:
    """One rescue; iterate over `run` to its end."""

    def __init__(self, folder: Path, vault: Vault | None = None) -> None:
        self._folder = folder
        self._vault = vault
        self.fresh = folder.with_name(f"{folder.name}.repaired")
        #: Lost data, and data that had to be replaced, as sentences.
        self.losses: list[str] = []
        self.saved = 0
        self.set_aside = 0
        self._had_key = False
        self.doubted = 0  # the part of `set_aside` that may have been removed

    def run(self, *, now_s: int, new_id: bytes) -> Iterator[KeptMessage]:
        """Rescue the folder and yield all messages; `new_id` replaces a lost identity.

        Raises RescueFailed; then there is no fresh folder.
        """
        if self.fresh.exists():
            raise RescueFailed(f"there is a {self.fresh} already; it stays as it is")
        try:
            check_neighbours(self._folder)
        except (CannotStart, OSError) as error:
            raise RescueFailed(str(error)) from error
        unfinished = self._folder.with_name(f"{self._folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            # Never reuse an existing folder: root may run this in a folder of another user, which
            # may have put a link in its place.
            unfinished.mkdir(mode=0o700)
        except OSError as error:
            raise RescueFailed(f"{unfinished} could not be made: {explain(error)}") from error
        survey = Survey(self._folder / DATABASE, self._vault)
        try:
            path = unfinished / DATABASE
            with closing(sqlite3.connect(path, factory=VaultConnection)) as db:
                set_up_writer(db, StorageOptions(page_bytes=survey.page_bytes))
                attach(db, self._vault)
                self._begin(db, survey, now_s, new_id)
                yield from self._messages(db, survey)
            self._copy_key(unfinished)
            self._give_to_owner(unfinished)
            sync_folder(unfinished)
            unfinished.rename(self.fresh)
            sync_folder(self.fresh.parent)
        except (OSError, sqlite3.Error) as error:
            raise RescueFailed(f"{unfinished} could not be written: {explain(error)}") from error
        finally:
            survey.close()
            shutil.rmtree(unfinished, ignore_errors=True)

    def _begin(self, db: sqlite3.Connection, survey: Survey, now_s: int, new_id: bytes) -> None:
        identity = next(iter(survey.rows["identity"].values()), None)
        if identity is None:
            self.losses.append(
                "the identity of the queue manager is lost: it has a new one, so other queue"
                " managers treat it as another queue manager"
            )
        self._had_key = identity is not None and len(identity) > 2 and identity[2] is not None
        own_id, created_at_s = identity[:2] if identity else (new_id, now_s)
        assert isinstance(own_id, bytes)
        assert isinstance(created_at_s, int)
        schema.prepare(db, schema.read_migrations(), now_s=created_at_s, new_id=own_id)
        db.execute("BEGIN IMMEDIATE")
        for table in _SMALL_TABLES:
            rows: list[Row] = [
                (rowid, *row)
                for rowid, row in survey.rows[table].items()
                # The queue manager's own queues exist already.
                if table != "queue" or rowid >= FIRST_USER_QUEUE_ID
            ]
            if refused := _insert(db, table, rows):
                self.losses.append(f"{refused} rows of table {table} contradict others")
        for table, keyed in survey.keyed.items():
            _insert(db, table, keyed)
        if self._vault is not None and self._vault.seals:
            sealing.record_key(db, self._vault.key_id, now_s)
        for part in survey.parts.items():
            shared_parts.insert(db, [part])
        skipped = NUMBERS_SKIPPED if survey.is_outdated else 0
        for name, value in survey.counters.items():
            further = skipped if name in _COUNTED else 0
            db.execute("INSERT OR REPLACE INTO counter VALUES (?, ?)", (name, value + further))
        # The next start counts the rows that were saved.
        db.execute("DELETE FROM counter WHERE name = ?", (tally.COUNTER,))
        if survey.is_outdated:
            self.losses.append(
                "commits at the end of the log are damaged or missing: messages received in them"
                " may be present again, and messages that arrived in them are lost; numbers"
                " continue after a gap, and sequences to other queue managers may have to restart"
            )
        if not survey.counters.get("message"):
            db.execute("INSERT OR REPLACE INTO counter VALUES ('message', ?)", (NUMBERS_SKIPPED,))
            self.losses.append(
                "the last assigned message number is lost: numbers continue at one that is"
                " probably new"
            )
        if not survey.counters.get("start"):
            # Peers would take a lower count for that of a clone.
            db.execute("INSERT INTO counter VALUES ('start', ?)", (NUMBERS_SKIPPED,))
        db.execute("COMMIT")

    def _messages(self, db: sqlite3.Connection, survey: Survey) -> Iterator[KeptMessage]:
        arrivals = 0
        waiting: dict[str, list[Row]] = {table: [] for table in MESSAGE_TABLES}
        for message in survey.messages():
            if message.problem is None:
                self.saved += 1
                if message.table != "awaiting":  # keys of `awaiting` are message numbers
                    arrivals = max(arrivals, arrival_of(message.key))
                waiting[message.table].append((message.key, *message.columns))
                if len(waiting[message.table]) == BATCH_ROWS:
                    _commit(db, waiting)
            else:
                self.set_aside += 1
                self.doubted += message.is_doubted
            yield message
        _commit(db, waiting)
        awaiting.find_sequences(db)
        delayed.count_anew(db)
        shared_parts.delete_unnamed(db)
        if arrivals >= survey.counters.get("arrival", 0):
            db.execute(
                "INSERT OR REPLACE INTO counter VALUES ('arrival', ?)",
                (arrivals + NUMBERS_SKIPPED,),
            )

    def _copy_key(self, fresh: Path) -> None:
        """Copy the queue manager's key; the next start makes a new one if it is lost."""
        seed = key_file.read(self._folder)
        if seed is not None:
            Disk().create_small(fresh / key_file.NAME, key_file.encode(seed))
        elif self._had_key:
            self.losses.append(
                "the key of the queue manager is lost: other queue managers that know it by that"
                " key treat it as another one, until an operator there accepts the new key (`qmd"
                " peer forget`)"
            )

    def _give_to_owner(self, fresh: Path) -> None:
        """Restrict access to the owner of the damaged folder, also if root ran the rescue."""
        owner = self._folder.stat()
        # The folder last: once the owner has it, its content can be exchanged.
        for path in (*fresh.iterdir(), fresh):
            path.chmod(0o700 if path == fresh else 0o600)
            if os.geteuid() == 0:
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _commit(db: sqlite3.Connection, waiting: dict[str, list[Row]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    for table, rows in waiting.items():
        _insert(db, table, rows)
        rows.clear()
    db.execute("COMMIT")


def _insert(db: sqlite3.Connection, table: str, rows: Iterable[Row]) -> int:
    """Insert rows as found, without later columns; return the number of contradicting rows."""
    names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    refused = 0
    for row in rows:
        columns = names[: len(row)]
        inserted = db.execute(
            f"INSERT OR IGNORE INTO {table} ({', '.join(columns)})"
            f" VALUES ({', '.join('?' * len(columns))})",
            row[: len(columns)],
        )
        refused += not inserted.rowcount
    return refused
