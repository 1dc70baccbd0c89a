"""Delayed messages: an application sends them now, and their queues get them at a later time.

    send ──► a row of `delayed` ══(commit)══► answer
                  │
                  ├─ its time comes ──► one commit deletes the row and sends the message
                  └─ cancel         ──► one commit deletes the row

The message gets its ids when it is sent, and its place in a sequence when it is released
(`qmd/maintenance/delayed_release.py`), so the order of release is the order of delivery.  Memory
holds only totals by destination, however many messages are delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.errors import InvalidName
from protocol.identifiers import GUID_BYTES, guid_text, parse_correlation
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core import delay
from qmd.core.delay import Due, Now
from qmd.errors import Refusal
from qmd.events.header import DELIVERIES, EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from qmd.events.unit_events import new_event
from qmd.naming.fan_out import Copies, Several
from qmd.queues.delayed_gauge import DelayedGauge
from qmd.queues.local_queue import LocalQueue
from storage.tables import delayed as rows
from storage.tables import events
from storage.tables.delayed import DelayedRow, NextDue
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.events.unit_events import UnitEvents
    from qmd.naming.destinations import Route
    from qmd.operations.send_checks import Chosen
    from qmd.queues.registry import LocalQueues
    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

Value = dict[str, Any]

PAGE_BYTES_MAX = 8 * 1024 * 1024
CANCELLED_AT_ONCE = 1000  # in one commit

_decoder = msgspec.msgpack.Decoder(tuple[NewMessage, list[int]])


def is_delayed(new: NewMessage) -> bool:
    """Return whether an application asks for a later delivery."""
    return bool(new.deliver_at_ms or new.delay_ms)


def check_delay(new: NewMessage) -> None:
    """Raise Refusal for a delayed message that cannot be sent later as it is now."""
    if new.deliver_at_ms and new.delay_ms:
        raise Refusal(
            "two_delays",
            "the message has both a time of delivery and a delay",
            "Give one of them.",
        )
    if new.signature and new.delivery == EXPRESS:
        raise Refusal(
            "express_not_delayed",
            "the message is a signed express message, and a delayed message is recoverable, which"
            " its signature covers",
            "Send it as a recoverable message, or without a delay.",
        )


def stored_message(row: DelayedRow) -> tuple[NewMessage, list[int]]:
    """Return the message of an intact row, and its numbers."""
    return _decoder.decode(row.data)


class DelayedRows:
    """Rows of the delayed messages of one request, before they are counted and stored."""

    def __init__(self, transaction: str = "", owner: str = "") -> None:
        """`transaction` is its id as text, or ""; `owner` the client that may cancel them."""
        self.transaction, self.owner = transaction, owner
        self.rows: list[DelayedRow] = []
        self.totals: dict[str, Totals] = {}  # by destination
        self.numbers: dict[EventHeader, list[int]] = {}  # of the events


class DelayedMessages:
    """The delayed messages of this queue manager: kept, listed, cancelled."""

    def __init__(
        self, services: Services, usage: Usage, queues: LocalQueues, recorder: Recorder
    ) -> None:
        self._services = services
        self._usage = usage
        self._queues = queues
        self._recorder = recorder
        self._gauges: dict[str, DelayedGauge] = {}  # by destination
        self._cancelling: set[int] = set()  # first numbers of messages that are being cancelled
        self._cancelled: set[int] = set()  # of those that ended while a release reads messages
        self._released = asyncio.Event()  # set while no release reads messages
        self._released.set()
        self.next = NextDue(None, None)  # the earliest due times; they may be too early
        self._stores = 0  # commits with new messages
        #: Called when a message is stored that is due before all others.
        self.on_earlier: Callable[[], None] = lambda: None
        self.released_count = 0
        self.cancelled_count = 0

    def restore(self, totals: dict[str, Totals], following: NextDue) -> None:
        """Load the totals of the stored messages, and their earliest due times."""
        for queue, each in totals.items():
            self._gauge(queue).count_in(each.messages, each.bytes)
        self.next = following

    @property
    def now(self) -> Now:
        """The present time by both clocks."""
        wall, own = self._services.environment.time(), self._services.clock.now
        return Now(int(wall * 1000), int(own * 1000))

    @property
    def totals(self) -> tuple[int, int]:
        """The number of delayed messages, and the bytes that they count."""
        gauges = self._gauges.values()
        return sum(each.messages for each in gauges), sum(each.bytes for each in gauges)

    @property
    def next_at_ms(self) -> int | None:
        """The time of the wall clock at which the next message may be due."""
        now = self.now
        left_s = delay.wait_s(*self.next, now)
        return None if left_s is None else now.wall_ms + int(left_s * 1000)

    # Sending.

    def keep(
        self,
        new: NewMessage,
        way: Chosen,
        number: int | list[int],
        *,
        transaction: str,
        owner: str,
        now: Now,
    ) -> DelayedRow | None:
        """Return the row of a message, counted and recorded; None: it is due already.

        `transaction` is the id of its transaction as text, or "".  The caller stores the row with
        the open batch, and calls `stored` after the commit.
        """
        made = DelayedRows(transaction, owner)
        if not self.add(made, new, way, number, now=now):
            return None
        self.count(made)
        return made.rows[0]

    def add(
        self, made: DelayedRows, new: NewMessage, way: Chosen, number: int | list[int], *, now: Now
    ) -> bool:
        """Add the row of a message to `made`; return False if it is due already."""
        due = delay.due_of(new.deliver_at_ms, new.delay_ms, now)
        if due is None:
            return False
        numbers: list[int] = number if isinstance(number, list) else [number]
        if isinstance(way, Copies):
            # The queues are those of the present: a list may have others when the time comes.
            queue = destination = self.name_of(way.several)
            delivery = TRANSACTIONAL if made.transaction else new.delivery
        else:
            route, delivery = way
            destination = new.destination
            queue = self.name_of(route)
        if delivery == EXPRESS:
            delivery = RECOVERABLE  # it is on disk anyway
        kept = msgspec.structs.replace(
            new, destination=destination, delivery=delivery, deliver_at_ms=0, delay_ms=0
        )
        data = msgspec.msgpack.encode((kept, numbers))
        row = DelayedRow(
            numbers[0],
            due.clock,
            due.at_ms,
            queue,
            len(data) * len(numbers),
            made.owner,
            now.wall_ms,
            data,
        )
        made.rows.append(row)
        messages, size = made.totals.get(queue, EMPTY)
        made.totals[queue] = Totals(messages + 1, size + row.size)
        if self._recorder.enabled:
            header = EventHeader(
                Kind.DELAYED,
                queue=queue,
                reason=f"until {_time_text(due.wall_ms(now))}",
                transaction=made.transaction,
                delivery=DELIVERIES[delivery] if delivery < len(DELIVERIES) else "",
            )
            made.numbers.setdefault(header, []).extend(numbers)
        return True

    def count(self, made: DelayedRows) -> None:
        """Count the messages of rows, and record them, in the turn that stores them."""
        for queue, totals in made.totals.items():
            self._gauge(queue).count_in(*totals)
        for header, numbers in made.numbers.items():
            event = self._recorder.group(header, self._services.id, lists=NO_LISTS)
            event.numbers += numbers

    def name_of(self, aims: Route | Several) -> str:
        """Return the name of a destination, as it is in the rows: of several queues all names."""
        if isinstance(aims, Several):
            return ",".join(str(target.name) for target in aims.targets)
        return aims.name if isinstance(aims, LocalQueue) else aims.destination

    def store(self, found: Sequence[DelayedRow], batch: Batch) -> None:
        """Store rows that `keep` has returned with the open batch."""
        self._services.clock.deadline_s(0)  # the batch has the present time by our clock
        batch.run(partial(rows.add, rows=found))
        wall = [row.due_ms for row in found if row.clock == delay.WALL]
        own = [row.due_ms for row in found if row.clock == delay.OWN]
        batch.when_durable(partial(self._stored, min(wall, default=None), min(own, default=None)))

    def _stored(self, wall_ms: int | None, own_ms: int | None) -> None:
        self._stores += 1
        before = self.next
        self.next = NextDue(_earlier(before.wall_ms, wall_ms), _earlier(before.own_ms, own_ms))
        if self.next != before:
            self.on_earlier()

    # Release.

    async def due(self, blocked: Iterable[str], rows_max: int, bytes_max: int) -> list[DelayedRow]:
        """Return messages that are due now; `release_ends` must follow.

        Until then no message is cancelled.  Those for `blocked` destinations are left out.
        """
        self._released.clear()
        self._cancelled.clear()
        now = self.now
        found = await self._services.storage.read(
            partial(
                rows.due,
                wall_ms=now.wall_ms,
                own_ms=now.own_ms,
                without=tuple(blocked),
                rows_max=rows_max,
                bytes_max=bytes_max,
            )
        )
        # The read may have begun before the commit of a cancellation that has ended since.
        cancelled = self._cancelling | self._cancelled
        return [row for row in found if row.number not in cancelled]

    def release_ends(self) -> None:
        """Note that each message of `due` is in a batch, or stays delayed."""
        self._released.set()

    async def look(self) -> None:
        """Read the earliest due times from the disk."""
        while True:
            stores = self._stores
            found = await self._services.storage.read(rows.next_due)
            if stores == self._stores:  # or a message was stored that the read may lack
                self.next = found
                return

    def count_out(self, row: DelayedRow) -> None:
        """Count a message out: the open batch deletes it."""
        gauge = self._gauge(row.queue)
        gauge.count_out(1, row.size)
        if not gauge.messages:
            self._forget(row.queue)

    def count_in(self, row: DelayedRow) -> None:
        """Count a message in again: it was not sent."""
        self._gauge(row.queue).count_in(1, row.size)

    # Requests.

    async def page(self, queue: str, start: int, limit: int, *, bodies: bool) -> Value:
        """Return the answer to the request `ListDelayed`."""
        await self._services.storage.batch.barrier()  # a message is listed once it is sent
        found = await self._services.storage.read(
            partial(rows.page, queue=queue, start=start, rows_max=limit, bytes_max=PAGE_BYTES_MAX)
        )
        now = self.now
        is_last = len(found) < limit and sum(len(row.data) for row in found) < PAGE_BYTES_MAX
        return {
            "messages": [self._describe(row, now, bodies=bodies) for row in found],
            "next": None if is_last else found[-1].number + 1,
        }

    def _describe(self, row: DelayedRow, now: Now, *, bodies: bool) -> Value:
        own = guid_text(self._services.id)
        value: Value = {
            "id": f"{own}\\{row.number}",
            "queue": row.queue,
            "due_at_ms": Due(row.clock, row.due_ms).wall_ms(now),
            "by_own_clock": row.clock == delay.OWN,
            "sent_at_ms": row.sent_at_ms,
            "bytes": row.size,
            "damaged": not row.is_whole,
        }
        if not row.is_whole:
            return value | {
                "ids": [value["id"]],
                "destination": row.queue,
                "label": "",
                "delivery": "",
                "priority": 0,
                "body": None,
            }
        new, numbers = stored_message(row)
        return value | {
            "ids": [f"{own}\\{number}" for number in numbers],
            "destination": new.destination,
            "label": new.label,
            "delivery": (*DELIVERIES, "automatic")[new.delivery],
            "priority": new.priority,
            "body": new.body if bodies else None,
        }

    async def find(self, source: bytes, number: int) -> DelayedRow | None:
        """Return the delayed message with this id, which may be that of a copy."""
        if source != self._services.id:
            return None
        row = await self._services.storage.read(partial(rows.around, number=number))
        if row is None or row.number == number:
            return row
        return row if row.is_whole and number in stored_message(row)[1] else None

    def place(self, row: DelayedRow) -> Value:
        """Return the place of a delayed message, for `qmd why`."""
        return {
            "kind": "delayed",
            "queue": row.queue,
            "since_ms": row.sent_at_ms,
            "until_ms": Due(row.clock, row.due_ms).wall_ms(self.now),
            "by_own_clock": row.clock == delay.OWN,
        }

    async def cancel(self, ids: Sequence[str], check: Callable[[DelayedRow], bool]) -> list[str]:
        """Cancel messages; return the ids, among `ids`, of those that were delayed until now.

        `check(row)` returns whether the client may know of a message, and raises Refusal if it may
        not cancel one that it knows; then none is cancelled.
        Raises Refusal for a text that is no id.
        """
        await self._services.storage.batch.barrier()
        found: dict[int, DelayedRow] = {}
        by_id: dict[str, int] = {}
        for text in dict.fromkeys(ids):
            try:
                identity = parse_correlation(text)
            except InvalidName as error:
                raise Refusal(
                    "not_a_message_id",
                    f"'{text}' is not the id of a message: {error}",
                    "`qmd send` prints the id, and `qmd delayed list` shows it.",
                ) from error
            number = int.from_bytes(identity[GUID_BYTES:], "little")
            row = await self.find(identity[:GUID_BYTES], number)
            if row is not None and check(row):
                found[row.number] = row
                by_id[text] = row.number
        gone: set[int] = set()
        chosen = list(found.values())
        for first in range(0, len(chosen), CANCELLED_AT_ONCE):
            gone |= await self._cancel(chosen[first : first + CANCELLED_AT_ONCE])
        return [text for text, number in by_id.items() if number in gone]

    async def _cancel(self, found: Sequence[DelayedRow]) -> set[int]:
        while not self._released.is_set():
            await self._released.wait()
        found = [row for row in found if row.number not in self._cancelling]
        numbers = [row.number for row in found]
        self._cancelling.update(numbers)
        cancelled = [
            (row.number, row.queue, stored_message(row)[1] if row.is_whole else [row.number])
            for row in found
        ]
        done = self._services.storage.batch.run(
            partial(
                _delete_cancelled,
                cancelled=cancelled,
                recorded=self._recorder.for_unit(),
                own_id=self._services.id,
            )
        )
        try:
            gone = await asyncio.shield(done)
        finally:
            self._cancelling.difference_update(numbers)
            if not self._released.is_set():
                self._cancelled.update(numbers)
        for row in found:
            if row.number in gone:
                self.count_out(row)
        self.cancelled_count += len(gone)
        return gone

    # Totals.

    def _gauge(self, queue: str) -> DelayedGauge:
        """Return the gauge of a destination; that of a queue here counts towards its quota."""
        local = self._queues.by_key.get(queue.casefold())
        gauge = self._gauges.get(queue)
        if gauge is not None and (local is None or gauge.within is local):
            return gauge
        fresh = self._gauges[queue] = DelayedGauge(self._usage, local)
        if local is not None:
            local.delayed = fresh
        if gauge is not None:  # the queue was created anew
            fresh.count_in(gauge.messages, gauge.bytes)
            gauge.count_out(gauge.messages, gauge.bytes)
        return fresh

    def _forget(self, queue: str) -> None:
        gauge = self._gauges.pop(queue)
        if isinstance(gauge.within, LocalQueue):
            gauge.within.delayed = None


def _delete_cancelled(
    db: sqlite3.Connection,
    *,
    cancelled: Sequence[tuple[int, str, list[int]]],
    recorded: UnitEvents,
    own_id: bytes,
) -> set[int]:
    """Delete cancelled messages, and record that; return the numbers of those that existed."""
    gone: set[int] = set()
    for number, queue, numbers in cancelled:
        if rows.delete(db, [number]):
            gone.add(number)
            if recorded.enabled:
                event = new_event(EventHeader(Kind.CANCELLED, queue=queue), own_id, recorded.at_ms)
                event.numbers += numbers
                events.insert(db, [event])
    return gone


def _earlier(one: int | None, other: int | None) -> int | None:
    given = [each for each in (one, other) if each is not None]
    return min(given, default=None)


def _time_text(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
