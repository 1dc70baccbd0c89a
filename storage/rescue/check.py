"""A data folder examined while no daemon has it: what it holds, and what is wrong with it.

Nothing is changed.  SQLite says whether the file is in order, `survey` whether what stands in it
is; each finds what the other does not.

No finding is no proof.  Where the disk has put an older state of a page in the place of the newest
and nothing else contradicts it, or where the log ends early and nobody has left a note of that,
what was removed is there again, and nobody can tell.
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

SENTENCES_MAX = 100  # of one kind: a damaged disk has more to say than anybody reads


class Report(NamedTuple):
    """What was found.  Without findings the folder is in order."""

    folder: Path
    schema: int
    pages: int
    messages: dict[str, int]  # whole ones, by queue or destination
    damaged: int  # are not what was stored
    doubted: int  # are what was stored, and may have been removed since
    findings: list[str]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep daemons out meanwhile.  Raises FolderInUse, CannotStart: also where no daemon has
    ever been."""
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


def check(folder: Path) -> Report:
    """Examine a locked folder.  Raises OSError."""
    survey = Survey(folder / DATABASE)
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
                "the counter of arrivals is behind: places in queues would be given twice"
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
    """A message that is not whole, in a sentence."""
    place = "in" if message.table == "message" else "for"
    return f"message {message.lookup_id} {place} {message.queue}: {message.problem}"


def _rest(sentences: list[str]) -> list[str]:
    more = len(sentences) - SENTENCES_MAX
    return [f"... and {more} more like these"] if more > 0 else []


def _ask_sqlite(path: Path) -> tuple[int, list[str]]:
    """The number of the schema, and what SQLite's own check finds."""
    try:
        return _asked(path, _options(path))
    except sqlite3.DatabaseError as error:
        # A process that was killed just then has left an index that contradicts itself.
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_PROTOCOL:
            return 0, [f"SQLite cannot read it: {error}"]
    try:
        return _asked(path, "")
    except sqlite3.DatabaseError as error:
        return 0, [f"SQLite cannot read it: {error}"]


def _asked(path: Path, options: str) -> tuple[int, list[str]]:
    """Raises sqlite3.DatabaseError."""
    findings: list[str] = []
    uri = f"file:{quote(str(path))}?mode=ro{options}"
    with closing(sqlite3.connect(uri, uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != schema.APPLICATION_ID:
            findings.append(f"{path.name} does not say that it is ours")
        known = schema.latest_version(schema.read_migrations())
        if version > known:
            findings.append(f"it has schema {version}, and this version of qmd knows {known}")
        rows = db.execute(f"PRAGMA integrity_check({SENTENCES_MAX})")
        found = [line for (text,) in rows for line in str(text).splitlines()]
        if found != ["ok"]:
            findings += [f"SQLite finds: {line}" for line in found]
    return version, findings


def _options(path: Path) -> str:
    """So that SQLite reads without a change to the folder, as far as that is possible.

    It makes an index of the log where there is none; one that is there is left as it is, because it
    knows how long the log was (write_ahead_log.py).
    """
    log, index = (path.with_name(f"{path.name}-{each}") for each in ("wal", "shm"))
    if not log.exists() or log.stat().st_size == 0:
        return "&immutable=1"
    return "&readonly_shm=1" if index.exists() else ""
