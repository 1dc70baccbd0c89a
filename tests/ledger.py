"""The log of events beside the tables: what it tells must be what is there.

    for problem in disagreements(db): ...

The whole log is replayed.  Every message that it has seen is, in the end, where the log says, or
an event says how it ended; and every message of the tables came there by an event.  So no message
is in two places at once, or in none, without the log saying so.

Express messages are nowhere in the database: `in_memory` says where they are, or None that nobody
knows any more, because their process has ended.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from storage.tables import events
from storage.tables import message_id_history as history
from storage.tables.events import Event
from storage.tables.keys import LOOKUP_MASK, queue_id_of

BLOCKS = 256  # read at once

BEGINNINGS = frozenset({"sent", "relayed", "accepted", "imported"})
COPIES = frozenset({"journaled", "dead_lettered"})
# Whatever leaves its place does so by one of these.
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
    }
)


# Of what has arrived elsewhere, and is kept until it was received there.
ENDS_OF_WAITING = frozenset({"final_ack_received", "confirmed", "unconfirmed", "damaged"})


# What ends so in a queue of ours, and is not transactional, is a dead letter or nothing: as told.
ENDS_OF_UNRECEIVED = frozenset({"expired", "purged", "queue_deleted", "rejected"})
WHERE_IT_WENT = frozenset({"dead_lettered", "discarded"})


# What an outgoing queue hands to a session, and what that or its destination says then.
ON_ITS_WAY = frozenset({"transmitted", "retransmitted"})
ACKNOWLEDGED = frozenset({"session_acknowledged", "order_acknowledged"})
ARRIVALS = frozenset({"accepted", "relayed"})
CHANGING = frozenset({"requeued", "damaged"})  # the message is another one from there on


class Message(NamedTuple):
    """Which one it is: its source queue manager and its number there."""

    source: bytes
    number: int

    def __str__(self) -> str:
        return f"{self.source.hex()[:8]}\\{self.number}"


Here = tuple[str, int]  # a queue of ours, and a lookup id
Elsewhere = tuple[str, Message]  # a destination, and a message for it


class Ledger:
    """Where every message is, by the events that were told so far."""

    def __init__(self) -> None:
        self.here: dict[Here, Message] = {}
        self.elsewhere: set[Elsewhere] = set()
        self.awaiting: set[Elsewhere] = set()
        self.express: set[Here | Elsewhere] = set()
        self.problems: list[str] = []
        self.unexplained: set[Message] = set()  # their end is told, and not where they went
        self.sizes: dict[Message, int] = {}
        self.plain_arrivals: set[Message] = set()  # which have to be known when they come again
        self._plain: set[Message] = set()
        self._positions: dict[tuple[str, bytes, int], int] = {}  # the highest that came
        self._left: set[Elsewhere] = set()  # what was told to be on its way
        self._has_started = self._has_restarted = False

    def tell(self, event: Event) -> None:
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
                self._wrong(event, message, "was not told to have left")
            place = event.places[index] if event.places else None
            if event.kind in BEGINNINGS:
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
        """Of a message to several queues, by one of ours; from elsewhere it was never there."""
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
        """The order of a stream: what comes in it comes once, and behind what came before."""
        stream = event.queue, event.source, event.sequence_id
        before = self._positions.get(stream, 0)
        if position <= before:
            self._wrong(event, message, f"came at {position}, behind {before}")
        self._positions[stream] = position

    def _knows_of_leaving(self, event: Event, message: Message) -> bool:
        return self._has_restarted or (event.queue, message) in self._left

    def ahead_of(self, db: sqlite3.Connection) -> list[str]:
        """Streams that have not come as far as was told."""
        stored = {
            (source, int.from_bytes(sequence_id)): number
            for source, sequence_id, number in db.execute(
                "SELECT source, sequence_id, number FROM incoming_sequence"
            )
        }
        return [
            f"{queue} has come to {stored[source, sequence_id]} of {source.hex()[:8]}, told: {told}"
            for (queue, source, sequence_id), told in self._positions.items()
            if stored.get((source, sequence_id), told) < told
        ]

    def _start(self) -> None:
        # What was told to a batch that a failure kept from the disk is told nowhere: of what an
        # earlier process had handed out its successor may hear for the first time.
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
        # It keeps its arrival, and perhaps its level: the place that it leaves is known.
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
    """Whether it is a dead-letter queue or a journal: what is in it has met its end before."""
    return queue.startswith("system$;") or queue.endswith(";journal")


def is_elsewhere(queue: str) -> bool:
    """Whether an event's queue is no queue of ours, but the destination of outgoing messages."""
    return queue.startswith(("DIRECT=", "PRIVATE=", "PUBLIC="))


def disagreements(
    db: sqlite3.Connection,
    in_memory: Set[tuple[str, int | Message]] | None = None,
    *,
    seen: Counter[str] | None = None,
) -> list[str]:
    """Where log and tables contradict each other, as sentences; none if the log does not begin with
    the folder.  `seen` counts what the log tells of: of how many messages each kind
    of event, apart for what is on its way elsewhere."""
    ledger = Ledger()
    after = 0
    while blocks := events.page(db, after, BLOCKS):
        if after == 0 and blocks[0].id != 1:
            return []  # its beginning was dropped
        if after == 0 and blocks[0].events[0].bytes:
            return []  # there were messages before there was a log
        after = blocks[-1].id
        for block in blocks:
            for event in block.events:
                ledger.tell(event)
                if seen is not None:
                    where = " on its way" if is_elsewhere(event.queue) else ""
                    seen[f"{event.kind}{where}"] += len(event.numbers)
    if not after:
        return []
    found_here, found_elsewhere, found_awaiting, sizes = _tables(db)
    told_here = {place: each for place, each in ledger.here.items() if place not in ledger.express}
    told_elsewhere = {each for each in ledger.elsewhere if each not in ledger.express}
    problems = ledger.problems
    problems += [f"{each} ended, and nobody says where it went" for each in ledger.unexplained]
    for where in sorted(told_here.keys() | found_here.keys()):
        told, found = told_here.get(where), found_here.get(where)
        if told != found:
            problems.append(f"at {where} the log has {told}, and the table {found}")
    for name, message in told_elsewhere - found_elsewhere:
        problems.append(f"for {name} the log has {message}, and the table has not")
    for name, message in found_elsewhere - told_elsewhere:
        problems.append(f"for {name} the table has {message}, and the log has not")
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
    """Whether some of the ids of plain messages were dropped, as too many or too old."""
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


def _message(packet: bytes) -> Message:
    return Message(packet[16:32], int.from_bytes(packet[56:60], "little"))
