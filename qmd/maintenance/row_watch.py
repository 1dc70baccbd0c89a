"""The row watch: notices rows of messages that vanish from the database.

A row that another program deletes leaves no trace in the database.  Each commit keeps the number of
rows of each queue (storage/tables/tally.py).  The watch counts the rows soon after the start, when
another program has written to the database, which SQLite shows at no cost, and every `COMPARE_S`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol.identifiers import message_id_text
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import PLACES
from storage.tables import counters, delayed, tally

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from storage.tables.tally import Difference
    from storage.tables.vanished import Vanished

log = structlog.get_logger()

INTERVAL_S = 5.0
COMPARE_S = 6 * 3600.0
NAMED_MAX = 1000  # messages of a queue that get an event each

#: Counters, of all runs: the rows that have vanished, and when the last ones were missed.
ROWS, AT_S = "vanished_rows", "vanished_at_s"

REMEDY = (
    "Find out which program has changed the database: only the daemon may write to it."
    " `qmd pipeline run audit` finds the messages at the other hosts"
)


class RowWatch:
    """The watch of one queue manager."""

    def __init__(
        self,
        services: Services,
        recorder: Recorder,
        housekeeping: Housekeeping,
        queues: LocalQueues,
        outgoing: OutgoingQueues,
    ) -> None:
        self._services = services
        self._recorder = recorder
        self._housekeeping = housekeeping
        self._queues = queues
        self._outgoing = outgoing
        self._foreign_commits: int | None = None
        self._due = 0.0
        #: Rows that have ever vanished, and the last time, in seconds since 1970 (0: never).
        self.rows = 0
        self.at_s = 0

    async def run(self) -> None:
        """Look in each interval until cancelled."""
        self.rows, self.at_s = await self._services.storage.read(_known)
        while True:
            # First the interval: to count a long queue must not delay the first requests.
            await asyncio.sleep(INTERVAL_S)
            await self._housekeeping.attempt("look for vanished rows", self.look, otherwise=None)

    async def look(self) -> None:
        """Count the rows if that is due, or another program has written to the database."""
        commits = await self._services.storage.foreign_commits()
        now = self._services.loop.time()
        if commits == self._foreign_commits and now < self._due:
            return
        await self.compare()
        self._foreign_commits, self._due = commits, now + COMPARE_S

    async def compare(self) -> None:
        """Count the rows, report and accept differences.  Raises StorageError."""
        found = await self._services.storage.compare()
        for each in found:
            self._adjust(each.difference)
            if each.difference.rows or each.difference.digest:
                self._report(each)
        if found:
            self.rows += sum(max(-each.difference.rows, 0) for each in found)
            self.at_s = int(self._services.environment.time())
            note = partial(_note, found=found, rows=self.rows, at_s=self.at_s)
            await self._services.storage.batch.run(note)

    def _adjust(self, difference: Difference) -> None:
        """Let the counts in memory, which began with those of the tally, agree with the rows."""
        rows, _, size, transactional = difference.figures
        if difference.table == "message":
            queue = self._queues.by_id.get(difference.queue_id)
            if queue is not None:
                queue.count_in(max(rows, -queue.messages), max(size, -queue.own_bytes))
        elif difference.table in ("outgoing", "awaiting"):
            for each in self._outgoing.queues:
                if each.id != difference.queue_id:
                    continue
                if difference.table == "awaiting":
                    awaiting = each.awaiting
                    awaiting.add(max(rows, -awaiting.messages), max(size, -awaiting.bytes))
                else:
                    each.others = max(0, each.others + rows - transactional)
                    gone = min(each.sequence.outstanding, max(0, -transactional))
                    each.sequence.released(gone)
                    each.grow(max(size, -each.bytes))

    def _report(self, found: Vanished) -> None:
        table, rows = found.difference.table, found.difference.rows
        where = found.queue or table
        if rows > 0:
            text = f"{rows} rows have been added to the database that no message explains"
        elif rows:
            text = f"{-rows} messages have vanished from the database"
        else:
            text = "rows of the database were exchanged for others"
        ids = [message_id_text(each.source, each.number) for each in found.messages]
        log.error("rows_vanished", queue=where, rows=-rows, messages=ids[:10] or None,
                  reason=text, remedy=REMEDY)  # fmt: skip
        self._record(found, text)

    def _record(self, found: Vanished, text: str) -> None:
        recorder = self._recorder
        if not recorder.enabled:
            return
        header = EventHeader(Kind.VANISHED, queue=found.queue, reason=text)
        if not found.messages:
            recorder.group(header, self._services.id)
        for each in found.messages[:NAMED_MAX]:
            event = recorder.group(header, each.source, lists=PLACES)
            event.numbers.append(each.number)
            event.places.append(each.place)
        self._services.storage.batch.write_soon()

    def status(self) -> dict[str, Any]:
        """Return the part of `qmd status` about vanished rows."""
        return {"vanished_messages": self.rows, "vanished_at_s": self.at_s or None}


def _known(db: sqlite3.Connection) -> tuple[int, int]:
    return counters.following(db, ROWS) - 1, counters.following(db, AT_S) - 1


def _note(db: sqlite3.Connection, *, found: list[Vanished], rows: int, at_s: int) -> None:
    tally.accept(db, [each.difference for each in found])
    if any(each.difference.table == "delayed" for each in found):
        delayed.count_anew(db)
    counters.set_following(db, ROWS, rows + 1)
    counters.set_following(db, AT_S, at_s + 1)
