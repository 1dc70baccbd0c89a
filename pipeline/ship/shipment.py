"""Shipping: events and journals of one queue manager become Parquet files, each exactly once.

    events/day=2026-11-21/host=hosta/<queue manager>-<first block>-<last block>.parquet
    journal/day=2026-11-21/host=hosta/<queue>-<first position>-<last position>.parquet
    inventory/day=2026-11-21/host=hosta/<queue manager>-<block>-<block>.parquet

A file's name states its range, and the names at the target are the record of what was shipped.
After a run was killed anywhere, the next run lists the names and continues behind the last one.  So
the files are written in order, one after the other.  Files of a second history of the same queue
manager contain the number of their epoch (`position.py`):
<queue manager>-e2-<first block>-<last block>.

docs/ship.md
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.ship import inventory
from pipeline.ship.destination import Target
from pipeline.ship.position import (
    DIGESTED,
    PAGE_EVENTS,
    ShippedPosition,
    blocks_between,
    digest,
    digests,
    newest_block,
)

if TYPE_CHECKING:
    from qmd.client.blocking import Blocking

ROWS_MAX = 500_000  # of one file, which is built in memory
JOURNAL_MESSAGES = 20_000  # reserved at once; at most one file
JOURNAL_BYTES = 64 * 1024 * 1024
INVENTORY_AGE_S = 600.0  # after which there is a new one, although the log has not grown
DIGITS = 16  # of numbers in names, so that names sort by number

_NAME = re.compile(
    r"(?P<what>[0-9a-f-]{36})(?:-e(?P<epoch>\d+))?-(?P<first>\d{16})-(?P<last>\d{16})\.parquet$"
)
_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)/")


class ShipFailed(Exception):
    """Shipping failed, perhaps after some files; the text gives the reason and the remedy."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Shipped:
    """The results of one run."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    events: int = 0
    messages: int = 0
    missing_blocks: int = 0  # dropped by the queue manager before they were shipped
    inventory: int = 0  # messages that are stored, of which the ids were shipped
    removed_files: int = 0  # at the target, by age
    names: list[str] = field(default_factory=list)

    def add(self, name: str, rows: int, size: int) -> None:
        self.files += 1
        self.rows += rows
        self.bytes += size
        self.names.append(name)


class Notes:
    """Progress of shipping, stored at the sender: a lock, and the last shipped positions.

    If files are removed at the target, by age or otherwise, the notes keep them from being shipped
    again.
    """

    def __init__(self, folder: Path, target: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        key = re.sub(r"[^A-Za-z0-9]+", "-", target).strip("-")[-100:]
        self._path = folder / f"{key}.json"
        self._lock = folder / f"{key}.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock.  Raises ShipFailed if another run holds it."""
        # Never follow a link: root may run this, and another user may own the folder.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self._lock, flags, 0o666), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ShipFailed(
                    "another run ships to the same target; wait for its end", "ship_running"
                ) from error
            yield

    def read(self) -> dict[str, ShippedPosition]:
        """Return the progress for each queue manager's log or queue."""
        try:
            noted = json.loads(self._path.read_text())
            return {str(key): ShippedPosition.of_note(value) for key, value in noted.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ShipFailed(
                f"{self._path} cannot be read ({error}); remove it: the names of the files at the"
                " target then show the progress",
                "ship_notes_unreadable",
            ) from error

    def write(self, reached: dict[str, ShippedPosition]) -> None:
        part = self._path.with_suffix(".part")
        part.unlink(missing_ok=True)  # left by a killed run, or a link that leads elsewhere
        with part.open("x") as file:
            file.write(json.dumps({key: each.note() for key, each in reached.items()}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)


class Ship:
    """One run: `events`, then each journal, then `retire`."""

    def __init__(
        self,
        qm: Blocking,
        target: Target,
        notes: Notes,
        *,
        dry_run: bool = False,
        new_epoch: bool = False,
        is_primary: bool = True,
        inventory_age_s: float = INVENTORY_AGE_S,
    ) -> None:
        """Prepare a run.  `new_epoch`: write a history other than the target's beside it.

        Only a primary run tells the queue manager which events it need not keep any more.
        """
        self._qm = qm
        self._target = target
        self._notes = notes
        self._dry_run = dry_run
        self._new_epoch = new_epoch
        self._is_primary = is_primary
        self._inventory_age_s = inventory_age_s
        self._reached = notes.read()
        self.host: str = qm.name
        self.done = Shipped()

    # Events.

    def events(self) -> None:
        """Ship all present events: complete blocks, with the blocks of one day in a file.

        Raises ShipFailed if the files at the target belong to another log.
        """
        own = str(self._qm.id)
        self._clean("events")
        self._clean("inventory")
        reached = self._same_history(own, self._shipped("events", own))
        # Taken first, so that all events up to its position are shipped before it is.
        present = None if self._dry_run else inventory.take(self._qm)
        shipped = reached.last
        block = shipped + 1
        cursor = f"{block}.0"
        waiting: list[dict[str, Any]] = []
        while True:
            page = self._qm.events(cursor, limit=PAGE_EVENTS)
            missing = page["missing_blocks"]
            if missing and shipped:  # blocks dropped before the first run do not count
                self.done.missing_blocks += missing
            waiting += page["events"]
            cursor = page["cursor"]
            if page["end"] or len(waiting) >= ROWS_MAX:
                # A block is a commit, and complete; the last block of a page may continue on the
                # next.
                whole = waiting if page["end"] else _without_last_block(waiting)
                rest = waiting[len(whole) :]
                for stretch in _by_day(whole):
                    self._ship_events(own, reached.epoch, block, stretch)
                    block = int(stretch[-1]["block"]) + 1
                waiting = rest
                if page["end"]:
                    break
        if present is not None:
            self._ship_inventory(own, reached.epoch, present)
        if self._is_primary and not self._dry_run and block > shipped + 1:
            self._qm.pipeline.mark_shipped(block - 1)

    def _ship_inventory(self, own: str, epoch: int, present: inventory.Inventory) -> None:
        """Ship the ids of all stored messages, and the time until which the log is complete.

        If the log has not grown, a new one is written only when the last one has some age.
        """
        files = self._files("inventory", own)
        last, known = max(files, key=lambda each: (each[1], each[0]), default=("", (1, 0)))
        if (epoch, present.block) < known:
            return
        if (epoch, present.block) == known and last:
            age_ms = present.taken_at_ms - self._taken_at_ms(last)
            if age_ms < self._inventory_age_s * 1000:
                return
        day = _day_of(present.taken_at_ms or present.at_ms)
        name = self._name("inventory", day, own, epoch, present.block, present.block)
        table = present.table(epoch)
        self.done.inventory = present.messages
        self.done.add(name, len(table), self._target.write(name, table))

    def _taken_at_ms(self, name: str) -> int:
        """Return the time of an inventory at the target; 0 if it has none."""
        try:
            rows = self._target.read(name, ("taken_at_ms",)).to_pylist()
        except (OSError, ValueError, KeyError):
            return 0  # of an earlier version
        return int(rows[0]["taken_at_ms"] or 0) if rows else 0

    def _ship_events(self, own: str, epoch: int, first: int, events: list[dict[str, Any]]) -> None:
        from pyarrow import Table

        from pipeline.source import schema
        from pipeline.source.events import event_batch

        last = int(events[-1]["block"])
        name = self._name("events", _day_of(events[0]["at_ms"]), own, epoch, first, last)
        if not self._dry_run:
            table = Table.from_batches([event_batch(events, schema.column_names("events"))])
            table = _with_newer_fields(table, events, set(schema.column_names("events")))
            table = table.replace_schema_metadata(
                {"qmd.events.schema": str(events[0]["schema"]), "qmd.host": self.host}
            )
            size = self._target.write(name, table)
            known = digest(each for each in events if int(each["block"]) == last)
            self._note(own, ShippedPosition(epoch, last, known))
            self.done.add(name, len(events), size)
        self.done.events += len(events)

    def _same_history(self, own: str, reached: ShippedPosition) -> ShippedPosition:
        """Return where to continue, if the log is the shipped one; else a new epoch if allowed.

        A block that the log no longer contains cannot be compared.  Raises ShipFailed.
        """
        newest = newest_block(self._qm)
        if newest < reached.last:
            why = f"ends with block {newest}, and block {reached.last} was shipped"
        else:
            there = digests(blocks_between(self._qm, reached.last, reached.last))
            known = reached.digest or self._digest_there(own, reached)
            if not there or not known or there[reached.last] == known:
                return reached
            why = f"has another block {reached.last} than the one that was shipped"
        if self._new_epoch:
            return reached.next_epoch(self._last_in_common(own))
        raise ShipFailed(
            f"the log of {self.host} {why}: the queue manager's data are not the data that were"
            " shipped (a backup was restored, or there is a copy of it); nothing was shipped;"
            f" make sure that no copy of it runs, then give --new-epoch once: {self._target}"
            " keeps its files, and new events are written beside them",
            "ship_log_changed",
        )

    def _digest_there(self, own: str, reached: ShippedPosition) -> str:
        """Return the digest of the last shipped block from its file; "" if the file is gone."""
        for name, found in self._files("events", own):
            if found == (reached.epoch, reached.last):
                rows = self._target.read(name, DIGESTED).to_pylist()
                return digest(each for each in rows if each["block"] == reached.last)
        return ""

    def _last_in_common(self, own: str) -> int:
        """Return the newest block of the log that is also at the target; 0 if none is."""
        common = 0
        for name, (_, last) in sorted(self._files("events", own), key=lambda each: -each[1][1]):
            if last <= common:
                break
            theirs = digests(self._target.read(name, DIGESTED).to_pylist())
            ours = digests(blocks_between(self._qm, min(theirs, default=1), last))
            same = [block for block, known in theirs.items() if ours.get(block) == known]
            common = max(common, *same) if same else common
        return common

    # Journals.

    def journal(self, queue: str, *, reader: str, remove: bool) -> None:
        """Ship the unshipped messages of a journal (or any queue), by arrival.

        With `remove`, messages leave the journal once they are durable at the target, never before.
        """
        self._clean("journal")
        run = self._qm.pipeline.open_reader(reader, [queue], shared=not remove)
        [source] = run.queues
        reached = self._shipped("journal", source.queue)
        position = source.position
        if reached.last > source.reserved and self._new_epoch:
            reached = reached.next_epoch(0)
        shipped, epoch = reached.last, reached.epoch
        if shipped > position:
            if shipped > source.reserved:
                raise ShipFailed(
                    f"files of {queue} up to position {shipped} are at the target, and reader"
                    f" {reader} knows {source.reserved}: the queue manager's data are older than"
                    " the files (a backup was restored), or the reader was forgotten; nothing of"
                    f" it was shipped; give --new-epoch once: {self._target} keeps its files,"
                    " and the messages that the reader has not shipped are written beside them",
                    "ship_position_unknown",
                )
            # A run died after it had written the file and before it consumed the range.
            if not self._dry_run:
                self._qm.pipeline.consume(run, {source.queue: shipped})
            position = shipped
        while True:
            reserved = self._qm.pipeline.reserve(
                run,
                source.queue,
                position,
                messages_max=JOURNAL_MESSAGES,
                bytes_max=JOURNAL_BYTES,
            )
            if self._dry_run:
                self.done.messages += reserved.messages
                return
            if reserved.end == position:
                return
            for first, last, table in self._tables(source, reader, position, reserved.end):
                day = _day_of(table.column("arrived_at")[0].value // 1000) if len(table) else ""
                if len(table):
                    name = self._name("journal", day, source.queue, epoch, first, last)
                    size = self._target.write(name, table)
                    self.done.add(name, len(table), size)
                    self.done.messages += len(table)
                self._note(source.queue, ShippedPosition(epoch, last))
                self._qm.pipeline.consume(run, {source.queue: last})
            position = reserved.end

    def _tables(
        self, source: Any, reader: str, after: int, until: int
    ) -> Iterator[tuple[int, int, Any]]:
        """Yield the range divided by day: first and last position, and the messages."""
        import pyarrow as arrow
        import pyarrow.compute as compute

        from pipeline.source import schema
        from pipeline.source.batch import rows_of
        from pipeline.source.decode.packets import batch_of
        from pipeline.source.decode.rows import Place

        columns = schema.column_names("messages")
        place = Place(self.host, str(self._qm.id), source.name)
        batches = [
            batch_of(rows_of(frame, headers_only=False), place, columns)
            for frame in self._qm.pipeline.read(source.queue, after, until, reader=reader)
        ]
        table = arrow.Table.from_batches(
            batches, arrow.schema(schema.arrow_schema("messages", columns))
        )
        days = compute.strftime(table.column("arrived_at"), format="%Y-%m-%d").to_pylist()
        first, start = after + 1, 0
        for at in range(1, len(days) + 1):
            if at < len(days) and days[at] == days[start]:
                continue
            last = until if at == len(days) else int(table.column("position")[at].as_py()) - 1
            yield first, last, table.slice(start, at - start)
            first, start = last + 1, at
        if not days:  # all messages of the range are damaged
            yield first, until, table

    # Retention at the target.

    def retire(self, keep_days: int, *, today: datetime.date | None = None) -> None:
        """Remove this host's older files at the target; the notes keep them as shipped."""
        today = today or datetime.datetime.now(datetime.UTC).date()
        oldest = (today - datetime.timedelta(days=keep_days)).isoformat()
        for name in self._target.names(f"*/day=*/host={self._folder}/*.parquet"):
            day = _DAY.search(name)
            if day is not None and day[1] < oldest:
                if not self._dry_run:
                    self._target.remove(name)
                self.done.removed_files += 1

    # Internals.

    @property
    def _folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9._-]", "_", self.host)

    def _name(self, kind: str, day: str, what: str, epoch: int, first: int, last: int) -> str:
        of_epoch = f"-e{epoch}" if epoch > 1 else ""
        file = f"{what}{of_epoch}-{first:016}-{last:016}.parquet"
        return f"{kind}/day={day}/host={self._folder}/{file}"

    def _files(self, kind: str, what: str) -> list[tuple[str, tuple[int, int]]]:
        """Return each file at the target, with its epoch and its last block or position."""
        found = []
        for name in self._target.names(f"{kind}/day=*/host={self._folder}/{what}-*.parquet"):
            named = _NAME.search(name)
            if named is not None and named["what"] == what:
                found.append((name, (int(named["epoch"] or 1), int(named["last"]))))
        return found

    def _shipped(self, kind: str, what: str) -> ShippedPosition:
        """Return the last shipped block or position in the newest epoch."""
        noted = self._reached.get(what, ShippedPosition())
        there = max((found for _, found in self._files(kind, what)), default=(1, 0))
        # The note is written after the file, and stays when files are removed by age.
        return noted if (noted.epoch, noted.last) >= there else ShippedPosition(*there)

    def _note(self, what: str, reached: ShippedPosition) -> None:
        self._reached[what] = reached
        self._notes.write(self._reached)

    def _clean(self, kind: str) -> None:
        if not self._dry_run:
            self._target.clean(f"{kind}/day=*/host={self._folder}/.*")


def _without_last_block(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the last block, unless it is the only one: then it fills a file alone."""
    last = events[-1]["block"]
    end = len(events)
    while end and events[end - 1]["block"] == last:
        end -= 1
    return events[:end]


def _by_day(events: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield runs of complete blocks that begin on one day (UTC)."""
    stretch: list[dict[str, Any]] = []
    block, day = -1, ""
    for event in events:
        if event["block"] != block:
            block = event["block"]
            of = _day_of(event["at_ms"])
            if stretch and (of != day or len(stretch) >= ROWS_MAX):
                yield stretch
                stretch = []
            day = of
        stretch.append(event)
    if stretch:
        yield stretch


def _with_newer_fields(table: Any, events: list[dict[str, Any]], known: set[str]) -> Any:
    """Add fields of a newer queue manager as JSON, so that they are not lost."""
    import pyarrow as arrow

    for name in sorted(set(events[0]) - known):
        values = [None if event.get(name) is None else json.dumps(event[name]) for event in events]
        table = table.append_column(name, arrow.array(values, arrow.string()))
    return table


def _day_of(at_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return moment.date().isoformat()
