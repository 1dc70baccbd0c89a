"""The audit: both ends of every stream, joined across the fleet.  docs/jobs.md, "audit"

Two passes over the new files, each through `pipeline.events.read_piece`:

    1. fingerprint    each piece of a log as some rows for each stream (`fingerprints.py`); streams
                      that agree on both sides are proved by these (`survey.py`)
    2. messages       events of suspect streams only (or of all, with `full`), shuffled once by the
                      message's source; one row for each message, and the rules (`rules/`)

The rules use no clock, except to decide what the missing end of a log would contain.  If a missing
log prevents a decision, that is no finding about the message: it stays open, and is decided when
the log arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pipeline import events
from pipeline.engines.engine import Engine
from pipeline.engines.on_spark import engine_of
from pipeline.events import LogFile
from pipeline.jobs.audit import presence
from pipeline.jobs.audit.coverage import END
from pipeline.jobs.audit.epochs import Epochs, learned
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
from pipeline.jobs.audit.histories import Histories
from pipeline.jobs.audit.labels import Labels
from pipeline.jobs.audit.passes import fingerprints, suspect_facts, tasks_for
from pipeline.jobs.audit.settled import Stretches
from pipeline.jobs.audit.state import State
from pipeline.jobs.audit.survey import survey
from pipeline.jobs.audit.verdicts import judge

Progress = Callable[[str], None]


def _is_cut(file: LogFile) -> bool:
    return file.size > events.SPLIT_BYTES


def _histories(files: Sequence[LogFile], earlier: Sequence[LogFile], state: State) -> Histories:
    all_there = {file.key for file in earlier} >= state.files
    return Histories(files, earlier, state.covered, all_there=all_there)


def _with_histories(
    engine: Engine,
    histories: Histories,
    doubtful: Collection[int],
    files: Sequence[LogFile],
    earlier: Sequence[LogFile],
    state: State,
    progress: Progress,
) -> Sequence[LogFile]:
    """Enter the epochs of `doubtful` hosts into `state`; return the files to read.

    Those are all files, and the state is empty, if it has read events of two histories as one.
    """
    before = state.epochs
    state.epochs = histories.learned(engine, before, doubtful)
    state.copied |= histories.copied
    # Nothing of a host with several copies is settled, and events of one copy must not be taken for
    # those of another one that were read before.
    if not state.copied and not histories.must_begin_anew(before, state.epochs):
        return files
    progress("a host was restored from a backup: reading all files again")
    epochs, copied = state.epochs, state.copied
    state.forget()
    state.epochs, state.copied = epochs, copied
    return list(dict.fromkeys([*earlier, *files]))


def audit(
    engine: Any,
    files: Sequence[LogFile],
    state: State,
    settings: AuditSettings | None = None,
    progress: Progress = lambda text: None,
    inventories: Sequence[str] = (),
    earlier: Sequence[LogFile] = (),
) -> AuditResult:
    """Audit `files`, which are new to `state`, and update `state` (in memory).

    `engine` is an `Engine` or a Spark session.  `inventories` are the files of `presence.find`.
    `earlier` are the files that `state` has read and that are still there: if `files` show that a
    host was restored from a backup, and events of both histories were read as one, all are read
    again.
    """
    engine = engine_of(engine)
    settings = settings or AuditSettings()
    begun = time.monotonic()
    tasks = settings.tasks or tasks_for(engine, files)
    progress(f"reading {len(files)} files")
    present, unread = presence.read(inventories)
    state.inventories = presence.newest(state.inventories, present)
    state.epochs = learned(files, state.epochs)
    histories = _histories(files, earlier, state)
    doubtful = histories.doubtful(state.epochs)
    files = _with_histories(engine, histories, doubtful, files, earlier, state, progress)
    read, epochs = Stretches(state.covered), Epochs(state.epochs)
    prints = fingerprints(engine, files, tasks, read, epochs)
    found, routes = survey(prints, state, full=settings.full)
    if more := set(histories.doubtful(state.epochs, found.twice | found.restored)) - set(doubtful):
        known = state.epochs
        files = _with_histories(engine, histories, more, files, earlier, state, progress)
        if not known.equals(state.epochs):
            read, epochs = Stretches(state.covered), Epochs(state.epochs)
            prints = fingerprints(engine, files, tasks, read, epochs)
            found, routes = survey(prints, state, full=settings.full)
    broken: dict[str, str] = {}
    while found.unreadable and any(
        _is_cut(file) for file in files if file.path in found.unreadable
    ):
        # Other tasks have contributed rows of a file that several tasks read: exclude all of it.
        broken |= found.unreadable
        files = [file for file in files if file.path not in broken]
        progress(f"reading {len(files)} files again, without {len(broken)} damaged ones")
        prints = fingerprints(engine, files, tasks, read, epochs)
        found, routes = survey(prints, state, full=settings.full)
    found.unreadable |= broken
    both = dict.fromkeys(state.copied, -int(END))
    both |= histories.both_until(engine, state.copied, found.unreadable)
    whole = [file for file in files if file.path not in found.unreadable]
    found.unreadable |= unread
    suspects = len(found.suspect_streams) + len(found.suspect_plain)
    progress(f"{found.events} events of {len(found.hosts)} hosts; {suspects} streams in full")
    engine.spare_memory()
    try:
        has_facts = suspect_facts(engine, files, tasks, found, state, full=settings.full)
        judged = judge(engine, found, routes, state, settings, both, has_facts=has_facts)
    finally:
        engine.release()
    judged.events = found.events
    judged.files = len(whole)
    judged.suspects = suspects
    for picture in judged.timelines:
        labels = Labels(found, routes)
        picture.from_host = labels.host(picture.source)
        picture.to_host = labels.host(picture.host)
    state.learn(whole, found, routes, judged.segments, judged.kept)
    judged.seconds = time.monotonic() - begun
    return judged
