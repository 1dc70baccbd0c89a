"""Examination of a data folder that no daemon has open: its messages and its faults.

The folder is not changed.  SQLite checks the structure of the file, `survey` checks the content of
the rows; each finds faults that the other does not.

A report without findings does not prove that the folder is intact.  If the disk has replaced the
newest state of a page by an older one and nothing else contradicts it, or if the log ends early and
no mark records that, removed messages are present again, and no check can detect it.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from storage.engine import mark, missing, schema
from storage.engine.disk import Disk
from storage.engine.hindrance import cause, explain
from storage.engine.missing import DATABASE
from storage.errors import CannotStart
from storage.rescue.survey import KeptMessage, Survey
from storage.tables.keys import arrival_of
from storage.vault import Vault

SENTENCES_MAX = 100  # per kind: a damaged disk yields more findings than an operator can read


class Report(NamedTuple):
    """The result of an examination.  Without findings no fault was found."""

    folder: Path
    schema: int
    pages: int
    messages: dict[str, int]  # intact ones, by queue or destination
    damaged: int  # their content differs from the stored content
    doubted: int  # their content is intact, but they may have been removed since
    findings: list[str]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep daemons out during the examination.

    Raises FolderInUse, and CannotStart, also if the folder was never used by a daemon.
    """
    if not any((folder / name).is_file() for name in (DATABASE, mark.NAME, missing.RESERVE)):
        raise CannotStart(f"there is no {DATABASE} in {folder}", code="no_database")
    try:
        lock = Disk().lock(folder)
    except OSError as error:
        raise CannotStart(
            f"the data folder {folder} cannot be used: {explain(error)}", code=cause(error)
        ) from error
    lock.is_clean = not lock.was_abandoned
    try:
        yield
    finally:
        lock.release()


def check(folder: Path, vault: Vault | None = None) -> Report:
    """Examine a locked folder.  Raises OSError, and KeyMissing if the vault lacks a key."""
    survey = Survey(folder / DATABASE, vault)
    try:
        version, findings = _ask_sqlite(folder / DATABASE)
        whole: Counter[str] = Counter()
        broken: list[str] = []
        doubted = 0
        arrivals = 0
        for message in survey.messages():
            if message.problem is None:
                whole[message.queue] += 1
                if message.table == "message":
                    arrivals = max(arrivals, arrival_of(message.key))
            else:
                broken.append(describe(message))
                doubted += message.is_doubted
        findings += survey.findings
        if arrivals >= survey.counters.get("arrival", 1):
            findings.append(
                "the counter of arrivals is too low: positions in queues would be assigned twice"
            )
        if len(survey.rows["identity"]) != 1:
            findings.append("the identity of the queue manager is lost")
        return Report(
            folder,
            version,
            survey.pages,
            dict(sorted(whole.items())),
            len(broken) - doubted,
            doubted,
            [*findings[:SENTENCES_MAX], *broken[:SENTENCES_MAX], *_rest(findings), *_rest(broken)],
        )
    finally:
        survey.close()


def describe(message: KeptMessage) -> str:
    """Return a sentence about a message that is not intact."""
    place = "in" if message.table == "message" else "for"
    return f"message {message.lookup_id} {place} {message.queue}: {message.problem}"


def _rest(sentences: list[str]) -> list[str]:
    more = len(sentences) - SENTENCES_MAX
    return [f"... and {more} more like these"] if more > 0 else []


def _ask_sqlite(path: Path) -> tuple[int, list[str]]:
    """Return the number of the schema, and the findings of SQLite's own check."""
    try:
        return _asked(path, _options(path))
    except sqlite3.DatabaseError as error:
        # A process that was killed at that moment has left an inconsistent index.
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_PROTOCOL:
            return 0, [f"SQLite cannot read it: {error}"]
    try:
        return _asked(path, "")
    except sqlite3.DatabaseError as error:
        return 0, [f"SQLite cannot read it: {error}"]


def _asked(path: Path, options: str) -> tuple[int, list[str]]:
    """Open the database with these options and check it.  Raises sqlite3.DatabaseError."""
    findings: list[str] = []
    uri = f"file:{quote(str(path))}?mode=ro{options}"
    with closing(sqlite3.connect(uri, uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != schema.APPLICATION_ID:
            findings.append(f"{path.name} does not have the application id of qmd")
        known = schema.latest_version(schema.read_migrations())
        if version > known:
            findings.append(f"it has schema {version}, and this version of qmd knows {known}")
        rows = db.execute(f"PRAGMA integrity_check({SENTENCES_MAX})")
        found = [line for (text,) in rows for line in str(text).splitlines()]
        if found != ["ok"]:
            findings += [f"SQLite finds: {line}" for line in found]
    return version, findings


def _options(path: Path) -> str:
    """Return URI options with which SQLite reads without changing the folder, as far as possible.

    SQLite creates an index of the log if there is none; an existing index is left unchanged,
    because it records how long the log was (write_ahead_log.py).
    """
    log, index = (path.with_name(f"{path.name}-{each}") for each in ("wal", "shm"))
    if not log.exists() or log.stat().st_size == 0:
        return "&immutable=1"
    return "&readonly_shm=1" if index.exists() else ""
