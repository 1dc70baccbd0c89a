"""The queues that a stream has open, also those that appear while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.source.batch import check_other, expand, is_pattern
from pipeline.source.bounds import LATEST, POSITION_MAX, Bound
from pipeline.source.connection import Connection
from pipeline.source.decode.rows import Place
from pipeline.source.errors import SourceError
from pipeline.source.options import Options, SourceQueues
from qmd.client.pipeline import ReadQueue, Run
from qmd.control_protocol.bulk import QUEUES_MAX

OLDEST, NEWEST = "oldest", "newest"


@dataclass(slots=True)
class OpenQueue:
    """One queue, opened for this run."""

    at: Connection
    run: Run
    queue: ReadQueue
    place: Place
    named: str  # the name or the pattern of the option that selects it
    last: int = POSITION_MAX  # the last arrival number that Trigger.AvailableNow reads


@dataclass(slots=True)
class _Source:
    """The queues of one queue manager."""

    wanted: SourceQueues
    at: Connection
    run: Run
    names: dict[str, str]  # name -> the name or pattern of the option
    gone: dict[str, str] = field(default_factory=dict)  # of deleted queues: full name -> name


class OpenQueues:
    """All open queues of a stream.  Making them begins a run, which shuts out earlier ones."""

    def __init__(self, options: Options) -> None:
        self.by_id: dict[str, OpenQueue] = {}
        self._options = options
        self._sources: list[_Source] = []
        self._known: dict[str, Connection] = {}
        self._looked_at = time.monotonic()
        try:
            for wanted in options.sources():
                self._sources.append(self._opened(wanted))
        except BaseException:
            self.close()
            raise

    @property
    def connections(self) -> list[Connection]:
        return [source.at for source in self._sources]

    def discover(self) -> list[str]:
        """Open queues that match a pattern and are new, or are there again; return their names.

        Nothing is done before `discoverSeconds` have passed since the last time.  Such a queue is
        read from its first message on.
        """
        if time.monotonic() - self._looked_at < self._options.discover_s:
            return []
        self._looked_at = time.monotonic()
        found: list[str] = []
        for source in self._sources:
            fresh = self._fresh(source)
            if fresh:
                self._check_count(source.at, {**source.names, **fresh})
                run = source.at.run(
                    source.at.qm.pipeline.open_reader(
                        self._options.reader_id,
                        list(fresh),
                        shared=self._options.shared,
                        fence=source.run.fence,
                    )
                )
                self._add(source.at, run, fresh)
                source.names |= fresh
                source.gone = {
                    full: name for full, name in source.gone.items() if name not in fresh
                }
                found += fresh
        return found

    def _fresh(self, source: _Source) -> dict[str, str]:
        """Return the queues of a source that are there and not open, as `expand` does."""
        if not source.gone and not any(map(is_pattern, source.wanted.queues)):
            return {}
        there = {str(one["name"]).casefold() for one in source.at.run(source.at.qm.list_queues())}
        absent = {name for full, name in source.gone.items() if full not in there}
        return {
            name: named
            for name, named in expand(source.at, source.wanted.queues).items()
            if name not in source.names and name not in absent
        }

    def forget(self, one: OpenQueue) -> None:
        """Close a queue that was deleted; `discover` finds one that gets its name again."""
        del self.by_id[one.queue.queue]
        for source in self._sources:
            if source.at is one.at:
                name = one.place.queue
                del source.names[name]
                source.gone[one.queue.name.casefold()] = name

    def close(self) -> None:
        for source in self._sources:
            source.at.close()

    def _opened(self, wanted: SourceQueues) -> _Source:
        at = Connection(wanted.endpoint, patient=True)
        try:
            check_other(at, self._known)
            names = expand(at, wanted.queues)
            self._check_count(at, names)
            start, starts = self._starts(at, names)
            run = at.run(
                at.qm.pipeline.open_reader(
                    self._options.reader_id,
                    list(names),
                    shared=self._options.shared,
                    start=start,
                    starts=starts,
                )
            )
        except BaseException:
            at.close()
            raise
        self._add(at, run, names)
        return _Source(wanted, at, run, names)

    def _starts(self, at: Connection, names: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return where a new reader begins: in general, and in single queues.

        A reader that has read other queues of a pattern before begins a new one with its first
        message, as if it had been running when the queue was created.
        """
        bound, strict = self._options.starting, self._options.late_start_fails
        starts = {
            name: start_text(bound, named, strict=strict)
            for name, named in names.items()
            if named in bound.queues or named in bound.times
        }
        if any(map(is_pattern, names.values())):
            reader = self._options.reader_id
            known = {
                str(one["name"]).casefold()
                for one in at.run(at.qm.pipeline.list_readers())
                if one["reader"] == reader
            }
            if known:
                starts |= {
                    name: OLDEST
                    for name, named in names.items()
                    if is_pattern(named) and name.casefold() not in known
                }
        return start_text(bound, "", strict=strict), starts

    def _add(self, at: Connection, run: Run, names: Mapping[str, str]) -> None:
        for (name, named), queue in zip(names.items(), run.queues, strict=True):
            place = Place(at.qm.name, at.qm.id, name)
            self.by_id[queue.queue] = OpenQueue(at, run, queue, place, named)

    def _check_count(self, at: Connection, names: Mapping[str, str]) -> None:
        if len(names) > QUEUES_MAX:
            raise SourceError(
                f"qmd at {at.endpoint}: {len(names)} queues match, and one reader has at most"
                f" {QUEUES_MAX}; divide the pattern between several queries"
            )


def start_text(bound: Bound, named: str, *, strict: bool = False) -> str:
    """Return a start as `qmd.control_protocol.bulk.OpenReader` takes it.

    `strict`: a message of the time of the start or later has to be there.
    """
    position = bound.of(named)
    if isinstance(position, int):
        return f"position:{position}"
    at_ms = bound.time_of(named)
    if at_ms is not None and named not in bound.queues:
        return f"existing:{at_ms}" if strict else f"time:{at_ms}"
    return NEWEST if position == LATEST else OLDEST
