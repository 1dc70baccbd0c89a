"""The event log and the tables: both must agree.

    for problem in disagreements(db): ...

The complete log is replayed.  In the end every message of the log is at its recorded place, or an
event records its end; and every message of the tables arrived by an event.  Thus no message is in
two places or in none at once, unless the log records it.

Express messages are not in the database: `in_memory` has their places, or is None when these are
unknown because their process has ended.

"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from qmd.operations.delayed import stored_message
from storage.tables import delayed, events
from storage.tables import message_id_history as history
from storage.tables.events import Event
from storage.tables.keys import LOOKUP_MASK, queue_id_of

BLOCKS = 256  # events per read

BEGINNINGS = frozenset({"sent", "relayed", "accepted", "imported"})
COPIES = frozenset({"journaled", "dead_lettered"})
# A message leaves its place by one of these events.
ENDS = frozenset(
    {
        "session_acknowledged",
        "order_acknowledged",
        "final_ack_received",
        "confirmed",
        "unconfirmed",
        "received",
        "expired",
        "purged",
        "unroutable",
        "queue_deleted",
        "rejected",
        "requeued",
        "damaged",
        "lost",
        "vanished",
    }
)


# Events of messages that arrived at a remote queue, and are kept until they are received there.
ENDS_OF_WAITING = frozenset({"final_ack_received", "confirmed", "unconfirmed", "damaged"})


# A delayed message leaves table `delayed` by one of these events, which happens once.
ENDS_OF_DELAY = frozenset({"sent", "cancelled", "unsendable", "damaged"})


# Ends in a local queue; if not transactional, the message becomes a dead letter or is deleted.
ENDS_OF_UNRECEIVED = frozenset({"expired", "purged", "queue_deleted", "rejected"})
WHERE_IT_WENT = frozenset({"dead_lettered", "discarded"})


# Transmissions of an outgoing queue, and the answers of the session or the destination.
ON_ITS_WAY = frozenset({"transmitted", "retransmitted"})
ACKNOWLEDGED = frozenset({"session_acknowledged", "order_acknowledged"})
ARRIVALS = frozenset({"accepted", "relayed"})
CHANGING = frozenset({"requeued", "damaged"})  # from here on the message has another identity


class Message(NamedTuple):
    """The identity of a message: its source queue manager and its number there."""

    source: bytes
    number: int

    def __str__(self) -> str:
        return f"{self.source.hex()[:8]}\\{self.number}"


Here = tuple[str, int]  # a local queue, and a lookup id
Elsewhere = tuple[str, Message]  # a destination, and a message to it


class Ledger:
    """The place of every message, by the recorded events so far."""

    def __init__(self) -> None:
        self.here: dict[Here, Message] = {}
        self.elsewhere: set[Elsewhere] = set()
        self.awaiting: set[Elsewhere] = set()
        self.delayed: set[Message] = set()
        self._released: set[Message] = set()  # messages that were delayed, and are not any more
        self.express: set[Here | Elsewhere] = set()
        self.problems: list[str] = []
        self.unexplained: set[Message] = set()  # their end is recorded, and not their next place
        self.sizes: dict[Message, int] = {}
        self.plain_arrivals: set[Message] = set()  # these must be known when they arrive again
        self._plain: set[Message] = set()
        #: The highest received position, by queue, source, sequence id and origin.
        self._positions: dict[tuple[str, bytes, int, str], int] = {}
        self._left: set[Elsewhere] = set()  # messages that were recorded as outgoing
        self._has_started = self._has_restarted = False

    def record(self, event: Event) -> None:
        if event.kind == "started":
            self._start()
        for listed in (event.places, event.positions, event.sizes):
            if listed and len(listed) != len(event.numbers):
                self.problems.append(f"{event.kind}: lists of different lengths ({event.queue})")
                return
        for index, number in enumerate(event.numbers):
            message = Message(event.source, number)
            if event.sizes:
                self._measure(event, message, event.sizes[index])
            if event.kind == "accepted" and event.positions:
                self._follow(event, message, event.positions[index])
            elif event.kind in ON_ITS_WAY:
                self._left.add((event.queue, message))
            elif event.kind in ACKNOWLEDGED and not self._knows_of_leaving(event, message):
                self._wrong(event, message, "was not reported to have left")
            place = event.places[index] if event.places else None
            if event.kind == "delayed":
                if message in self.delayed or message in self._released:
                    self._wrong(event, message, "was delayed before")
                self.delayed.add(message)
            elif event.kind in ENDS_OF_DELAY and message in self.delayed:
                self.delayed.remove(message)
                self._released.add(message)
                if event.kind == "sent":
                    self._begin(event, message, place)
            elif event.kind in ENDS_OF_DELAY and message in self._released:
                self._wrong(event, message, "was not delayed any more")
            elif event.kind in BEGINNINGS:
                self._begin(event, message, place)
            elif event.kind in COPIES:
                if place is None:
                    self._wrong(event, message, "has no place in its queue")
                else:
                    self._add(event, message, (event.to_queue, place))
            elif event.kind == "stored":
                self.express.discard((event.queue, place or 0))
            elif event.kind == "moved":
                self._move(event, message, place)
            elif event.kind == "awaiting":
                if (event.queue, message) in self.awaiting:
                    self._wrong(event, message, "waits already")
                self.awaiting.add((event.queue, message))
            elif (event.queue, message) in self.awaiting and event.kind in ENDS_OF_WAITING:
                self.awaiting.remove((event.queue, message))
            elif event.kind in ENDS or self._is_copy_refused(event, message, place):
                self._end(event, message, place)
            if event.kind in WHERE_IT_WENT:
                self.unexplained.discard(message)
            elif event.kind in ENDS_OF_UNRECEIVED and self._is_to_be_explained(event, message):
                self.unexplained.add(message)

    def _is_to_be_explained(self, event: Event, message: Message) -> bool:
        return message in self._plain and not (
            is_elsewhere(event.queue) or holds_ended(event.queue)
        )

    def _is_copy_refused(self, event: Event, message: Message, place: int | None) -> bool:
        """Return whether a local queue refuses a copy of a message to several queues."""
        return (
            event.kind == "refused"
            and place is not None
            and self.here.get((event.queue, place)) == message
        )

    def _measure(self, event: Event, message: Message, size: int) -> None:
        known = self.sizes.setdefault(message, size)
        if known != size and event.kind not in CHANGING:
            self._wrong(event, message, f"has {size} bytes, and had {known}")

    def _follow(self, event: Event, message: Message, position: int) -> None:
        """Check the order of a stream: each message arrives once, behind the earlier ones."""
        # Another host that states the GUID of the source may have a stream with the same id.
        stated_by = event.peer.partition(", stated by ")[2]
        stream = event.queue, event.source, event.sequence_id, stated_by
        before = self._positions.get(stream, 0)
        if position <= before:
            self._wrong(event, message, f"came at {position}, behind {before}")
        self._positions[stream] = position

    def _knows_of_leaving(self, event: Event, message: Message) -> bool:
        return self._has_restarted or (event.queue, message) in self._left

    def ahead_of(self, db: sqlite3.Connection) -> list[str]:
        """Return the streams that have not reached their recorded position."""
        stored: dict[tuple[bytes, int], int] = {}
        for source, sequence_id, number in db.execute(
            "SELECT source, sequence_id, number FROM incoming_sequence"
        ):
            key = source, int.from_bytes(sequence_id)
            stored[key] = max(number, stored.get(key, 0))
        return [
            f"{queue} is at {stored[source, sequence_id]} of {source.hex()[:8]}; log: {reported}"
            for (queue, source, sequence_id, _), reported in self._positions.items()
            if stored.get((source, sequence_id), reported) < reported
        ]

    def _start(self) -> None:
        # Events of a batch that a failure kept from the disk are recorded nowhere: a process may
        # get answers for messages that only its predecessor sent.
        self._has_restarted = self._has_started
        self._has_started = True
        for place in self.express:
            self.here.pop(place, None)  # type: ignore[call-overload]
            self.elsewhere.discard(place)  # type: ignore[arg-type]
        self.express.clear()

    def _begin(self, event: Event, message: Message, place: int | None) -> None:
        where: Here | Elsewhere = event.queue, message
        if event.delivery != "transactional":
            self._plain.add(message)
            if event.kind in ARRIVALS:
                self.plain_arrivals.add(message)
        if place is None:
            self._wrong(event, message, "has no place in its queue")
        elif not is_elsewhere(event.queue):
            where = event.queue, place
            self._add(event, message, where)
        else:
            if where in self.elsewhere:
                self._wrong(event, message, "is there already")
            self.elsewhere.add(where)
        if event.delivery == "express":
            self.express.add(where)

    def _add(self, event: Event, message: Message, where: Here) -> None:
        if where in self.here:
            self._wrong(event, message, f"takes the place of {self.here[where]}")
        self.here[where] = message

    def _move(self, event: Event, message: Message, place: int | None) -> None:
        here = self.here
        # The message keeps its arrival, and possibly its level: the place that it leaves is known.
        left = (event.queue, place or 0)
        if here.get(left) != message:
            others = (each for each in here if each[0] == event.queue and here[each] == message)
            left = next(others, left)
        if here.get(left) != message or place is None:
            self._wrong(event, message, "was not there")
            return
        del here[left]
        self._add(event, message, (event.to_queue, place))
        if left in self.express:
            self.express.remove(left)
            self.express.add((event.to_queue, place))

    def _end(self, event: Event, message: Message, place: int | None) -> None:
        if is_elsewhere(event.queue):
            if (event.queue, message) in self.elsewhere:
                self.elsewhere.remove((event.queue, message))
                self.express.discard((event.queue, message))
                return
        elif place is not None and self.here.get((event.queue, place)) == message:
            del self.here[event.queue, place]
            self.express.discard((event.queue, place))
            return
        self._wrong(event, message, "was not there")

    def _wrong(self, event: Event, message: Message, what: str) -> None:
        self.problems.append(f"{event.kind}: {message} {what} ({event.queue} {event.to_queue})")


def holds_ended(queue: str) -> bool:
    """Return whether the queue holds ended messages: a dead-letter queue or a journal."""
    return queue.startswith("system$;") or queue.endswith(";journal")


def is_elsewhere(queue: str) -> bool:
    """Return whether an event's queue is the destination of outgoing messages, and not local."""
    return queue.startswith(("DIRECT=", "PRIVATE=", "PUBLIC="))


def disagreements(
    db: sqlite3.Connection,
    in_memory: Set[tuple[str, int | Message]] | None = None,
    *,
    seen: Counter[str] | None = None,
) -> list[str]:
    """Return the contradictions of log and tables, as sentences; none if the log is incomplete.

    `seen` counts the recorded messages by kind of event; outgoing messages are counted apart.
    """
    ledger = Ledger()
    after = 0
    while blocks := events.page(db, after, BLOCKS):
        if after == 0 and blocks[0].id != 1:
            return []  # its beginning was deleted
        if after == 0 and blocks[0].events[0].bytes:
            return []  # there were messages before the first event
        after = blocks[-1].id
        for block in blocks:
            for event in block.events:
                ledger.record(event)
                if seen is not None:
                    where = " on its way" if is_elsewhere(event.queue) else ""
                    seen[f"{event.kind}{where}"] += len(event.numbers)
    if not after:
        return []
    found_here, found_elsewhere, found_awaiting, sizes = _tables(db)
    found_delayed = _delayed(db)
    reported_here = {
        place: each for place, each in ledger.here.items() if place not in ledger.express
    }
    reported_elsewhere = {each for each in ledger.elsewhere if each not in ledger.express}
    problems = ledger.problems
    problems += [f"{each} ended, and no place holds it" for each in ledger.unexplained]
    for where in sorted(reported_here.keys() | found_here.keys()):
        reported, found = reported_here.get(where), found_here.get(where)
        if reported != found:
            problems.append(f"at {where} the log has {reported}, and the table {found}")
    for name, message in reported_elsewhere - found_elsewhere:
        problems.append(f"for {name} the log has {message}, and the table has not")
    for name, message in found_elsewhere - reported_elsewhere:
        problems.append(f"for {name} the table has {message}, and the log has not")
    for message in ledger.delayed ^ found_delayed:
        place = "log" if message in ledger.delayed else "table"
        problems.append(f"only the {place} has the delayed message {message}")
    for name, message in ledger.awaiting ^ found_awaiting:
        place = "log" if (name, message) in ledger.awaiting else "table"
        problems.append(f"only the {place} has {message} waiting for its receipt at {name}")
    problems += [
        f"{each} has {size} bytes, and the log says {ledger.sizes[each]}"
        for each, size in sizes
        if ledger.sizes.get(each, size) != size
    ]
    problems += ledger.ahead_of(db)
    if not was_history_trimmed(db):
        known = {
            Message(segment.source, number)
            for segment, runs in history.entries(db)
            for first, last in runs
            for number in range(first, last + 1)
        }
        forgotten = ledger.plain_arrivals - known
        problems += [f"{each} would be taken again" for each in sorted(forgotten)[:3]]
    if in_memory is not None and in_memory != ledger.express:
        problems.append(f"express messages by the log: {ledger.express}; in memory: {in_memory}")
    return problems


def was_history_trimmed(db: sqlite3.Connection) -> bool:
    """Return whether ids of plain messages were deleted, as too many or too old."""
    count, last = db.execute(
        "SELECT count(*), coalesce(max(position), 0) FROM message_id_history"
    ).fetchone()
    return bool(count < last)


def _tables(
    db: sqlite3.Connection,
) -> tuple[dict[Here, Message], set[Elsewhere], set[Elsewhere], list[tuple[Message, int]]]:
    queues = dict(db.execute("SELECT id, name FROM queue"))
    destinations = dict(db.execute("SELECT id, destination FROM outgoing_queue"))
    here: dict[Here, Message] = {}
    elsewhere: set[Elsewhere] = set()
    awaiting: set[Elsewhere] = set()
    sizes: list[tuple[Message, int]] = []
    head = "substr(packet, 1, 60), length(packet) + part_bytes"
    for key, packet, size in db.execute(f"SELECT key, {head} FROM message"):
        message = here[queues[queue_id_of(key)], key & LOOKUP_MASK] = _message(packet)
        sizes.append((message, size))
    for key, packet, size in db.execute(f"SELECT key, {head} FROM outgoing"):
        elsewhere.add((destinations[queue_id_of(key)], message := _message(packet)))
        sizes.append((message, size))
    for queue_id, packet, size in db.execute(f"SELECT queue_id, {head} FROM awaiting"):
        awaiting.add((destinations[queue_id], message := _message(packet)))
        sizes.append((message, size))
    return here, elsewhere, awaiting, sizes


def _delayed(db: sqlite3.Connection) -> set[Message]:
    """Return the messages of table `delayed`, with all of their copies."""
    ((own_id,),) = db.execute("SELECT queue_manager FROM identity")
    return {
        Message(own_id, number)
        for row in delayed.page(db, queue="", start=0, rows_max=1 << 30, bytes_max=1 << 40)
        for number in stored_message(row)[1]
    }


def _message(packet: bytes) -> Message:
    return Message(packet[16:32], int.from_bytes(packet[56:60], "little"))
