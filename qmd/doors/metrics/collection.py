"""Collection: the figures of the daemon, read page by page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qmd.client.connection import Connection, open_connection
from qmd.client.errors import NotConnected
from qmd.control_protocol import messages as frames
from qmd.control_protocol.figures import (
    OLDEST_MAX,
    DestinationFigures,
    HostFigures,
    OldestMessages,
    QueueFigures,
)
from qmd.doors.metrics.rows import Ages, Destination, Queue, Shown

Facts = dict[str, Any]
ANSWER_S = 10.0  # within which the daemon answers
READY_S = 2.0  # the same for a check of readiness
STEP_S = 1.0
FRESH_S = 1.0  # for which a collection is used again
DEAD_LETTER_QUEUES = ("system$;deadletter", "system$;deadxact")


@dataclass
class Figures:
    """The result of a collection."""

    host: Facts
    queues: list[Queue]
    other_queues: list[Queue]
    other_queue_counters: tuple[int, ...]
    destinations: list[Destination]
    other_destinations: list[Destination]
    other_destination_counters: tuple[int, ...]
    #: name -> age of the oldest message in seconds; None: that of all others.
    queue_ages_s: dict[str | None, float] = field(default_factory=dict)
    destination_ages_s: dict[str | None, float] = field(default_factory=dict)
    took_s: float = 0.0


class Collector:
    """The connection to the daemon, and the last collection."""

    def __init__(self, socket: Path, queues_max: int, destinations_max: int) -> None:
        self._socket = socket
        self._connection: Connection | None = None
        self._queues: Shown[Queue] = Shown(queues_max, lambda row: row.kind == "system")
        self._destinations: Shown[Destination] = Shown(destinations_max)
        self._queue_ages = Ages(OLDEST_MAX)
        self._destination_ages = Ages(OLDEST_MAX)
        self._known: dict[str, Queue] = {}  # all queues, as this connection has received them
        self._one = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._is_reading = False  # pages of changes
        self._last: Figures | None = None
        self._last_at = 0.0
        self._started_at_s = 0.0

    async def collect(self) -> Figures:
        """Return figures that are at most `FRESH_S` old.  Raises ClientError.

        One collection runs at a time, however many clients ask.
        """
        async with self._one:
            now = time.monotonic()
            if self._last is not None and now - self._last_at < FRESH_S:
                return self._last
            try:
                async with asyncio.timeout(ANSWER_S):
                    found = await self._collect()
            except TimeoutError as late:
                raise self._late() from late
            finally:
                # Changes that were sent and not read are not sent again to this connection.
                if self._is_reading and self._connection is not None:
                    self._connection.abort()
            found.took_s = time.monotonic() - now
            self._last, self._last_at = found, time.monotonic()
            return found

    def forget(self) -> None:
        """Make the next call of `collect` read all figures again."""
        self._last = None

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def ask(self, verb: type[frames.Request], *arguments: object) -> Any:
        """Make a request, after connecting; return its answer.  Raises ClientError."""
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._known = {}  # a new connection receives all rows
                connection = await open_connection(self._socket)
                await connection.ask(frames.Hello, frames.VERSION)
                self._connection = connection
        return await self._connection.ask(verb, *arguments)

    async def check(self) -> None:
        """Return when the daemon answers a small request.  Raises ClientError."""
        try:
            async with asyncio.timeout(READY_S):
                await self.ask(frames.Hello, frames.VERSION)
        except TimeoutError as late:
            raise self._late() from late

    def _late(self) -> NotConnected:
        return NotConnected(
            f"the daemon does not answer at {self._socket}",
            "look at its log",
            code="daemon_not_answering",
        )

    async def _collect(self) -> Figures:
        host = await self.ask(HostFigures)
        # It is computed from the present time: small steps are no restart of the daemon.
        if abs(host["started_at_s"] - self._started_at_s) > STEP_S:
            self._started_at_s = host["started_at_s"]
        host["started_at_s"] = self._started_at_s
        changed = await self._read_queues()
        destinations = [Destination(*row) for row in await self._rows(DestinationFigures)]
        host |= _contents(self._known.values())
        found = Figures(
            host,
            *self._queues.choose(self._known.values(), changed),
            *self._destinations.choose(destinations),
        )
        await self._read_ages(found)
        return found

    async def _read_queues(self) -> list[Queue]:
        """Read the queues that have changed since the last collection; return them."""
        changed: dict[str, Queue] = {}
        start: int | None = 0
        self._is_reading, connection = True, self._connection
        while start is not None:
            page = await self.ask(QueueFigures, start, True)
            if self._connection is not connection:  # it was lost between two pages
                changed, connection = {}, self._connection
                if start:
                    start = 0
                    continue
            changed |= {row[0]: Queue(*row) for row in page["rows"]}
            start = page["next"]
        self._is_reading = False
        self._known |= changed
        for name in page["gone"]:
            self._known.pop(name, None)
        return [row for row in changed.values() if row.name in self._known]

    async def _rows(self, verb: type[frames.Request]) -> list[Any]:
        """Return the rows of all pages; a row that moved between two pages counts once."""
        rows: dict[str, Any] = {}
        start: int | None = 0
        while start is not None:
            page = await self.ask(verb, start)
            rows |= {row[0]: row for row in page["rows"]}
            start = page["next"]
        return list(rows.values())

    async def _read_ages(self, found: Figures) -> None:
        queues = self._queue_ages.to_ask(_full(found.queues), _full(found.other_queues))
        destinations = self._destination_ages.to_ask(
            _full(found.destinations), _full(found.other_destinations)
        )
        answer = await self.ask(OldestMessages, queues, destinations)
        self._queue_ages.answered(queues, answer["queues"])
        self._destination_ages.answered(destinations, answer["destinations"])
        now_s = time.time()
        found.queue_ages_s = _ages(self._queue_ages, found.queues, found.other_queues, now_s)
        found.destination_ages_s = _ages(
            self._destination_ages, found.destinations, found.other_destinations, now_s
        )


def _contents(queues: Iterable[Queue]) -> Facts:
    """Return the numbers of queues and messages, as in `qmd status`."""
    return {
        "queues": sum(row.kind == "queue" for row in queues),
        "messages": sum(row.messages for row in queues if row.kind in ("queue", "subqueue")),
        "dead_letters": sum(row.messages for row in queues if row.name in DEAD_LETTER_QUEUES),
    }


def _full(rows: Sequence[Queue] | Sequence[Destination]) -> list[str]:
    return [row.name for row in rows if row.messages]


def _ages(
    ages: Ages,
    shown: Sequence[Queue] | Sequence[Destination],
    others: Sequence[Queue] | Sequence[Destination],
    now_s: float,
) -> dict[str | None, float]:
    """Return the age of each row, 0 for one that is empty, and that of all others together."""
    found: dict[str | None, float] = {
        row.name: (ages.age_s(row.name, now_s) or 0.0) if row.messages else 0.0 for row in shown
    }
    if others:
        found[None] = ages.oldest_s(_full(others), now_s) or 0.0
    return found
