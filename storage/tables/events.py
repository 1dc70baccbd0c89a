"""Table `event_block`: the history of messages, written in the same commit as the changes.

One `Event` covers several messages with the same data, and the events of one commit are one row, so
that the log adds one insert to a commit and not one per message.  Table `event_range` records which
messages of which source a block may refer to, so that the history of one message can be found; and,
under an empty source, which arrivals, so that a message can be found by its lookup id
(event_index.py).  The row also carries the outcomes of the commit (outcomes.py): a small commit
touches one page for both.

The log is limited by size and age: `trim`.  Each block records the total size of all blocks up to
it, so the size of the log is computed with two seeks.

docs/events.md has the schema of an event for external readers; `SCHEMA` is its number.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from storage.tables import counters, event_index
from storage.tables import outcomes as outcome_rows
from storage.tables.event_index import GROUP_BLOCKS
from storage.tables.keys import OUTGOING_TRANSACTIONAL_LEVEL, arrival_of, level_of
from storage.tables.outcomes import NewOutcome
from storage.tables.tally import tally_of

SCHEMA = 1

#: Kinds of events with new `places`, at which messages arrived.  Arrivals only grow, so
#: the ranges of blocks overlap little.
ARRIVALS = frozenset(
    ("sent", "accepted", "moved", "journaled", "dead_lettered", "imported", "requeued")
)


_Raw = bytes  # a field below is named `bytes`


class Event(msgspec.Struct, array_like=True, kw_only=True):
    """An event that happened to messages: `numbers` of the queue manager `source`.

    `places` are their lookup ids: in `to_queue` if they were moved there, otherwise in `queue`.
    All places of one event belong to one queue, and either all or none belong to sequences.
    `positions` are their numbers in the sequence `sequence_id`.  Each of these lists is empty, or
    as long as `numbers`; a message has the same index in all of them.

    For the copies of a message to many queues one event may be written for all, with `queues` and
    `sequence_ids`.  Reading splits it into one event per queue.
    """

    kind: str
    at_ms: int  # since 1970, UTC
    source: bytes
    numbers: list[int]
    queue: str = ""  # the name of our queue, or the format name of a remote destination
    peer: str = ""  # the other queue manager: its GUID, or its address if the GUID is not known
    places: list[int] = msgspec.field(default_factory=list)
    sequence_id: int = 0
    positions: list[int] = msgspec.field(default_factory=list)
    message_class: int = 0
    bytes: int = 0  # of all their packets
    reason: str = ""  # a sentence
    to_queue: str = ""  # the queue that they were moved to, if any
    transaction: str = ""
    sizes: list[int] = msgspec.field(default_factory=list)
    delivery: str = ""  # express, recoverable or transactional, for a message that is created here
    #: Properties of the messages; messages beyond the end of a list do not have the property.
    labels: list[str] = msgspec.field(default_factory=list)
    correlations: list[_Raw] = msgspec.field(default_factory=list)
    #: Instead of `queue` and `sequence_id`, if each message is in another queue.
    queues: list[str] = msgspec.field(default_factory=list)
    sequence_ids: list[int] = msgspec.field(default_factory=list)
    #: A property as those above: trace context of 25 bytes, qmd/properties/trace.py.
    traces: list[_Raw] = msgspec.field(default_factory=list)


class Block(NamedTuple):
    id: int
    first_at_ms: int
    last_at_ms: int
    events: list[Event]


class Identity(NamedTuple):
    """The identity of a message: the queue manager that numbered it, and the number."""

    source: bytes
    number: int


_SEQUENCES = b"sequences"

_RUN = -1  # a list that begins with it is a range: [-1, first, count]
_SAME = -2  # a list that begins with it repeats one value: [-2, value, count]
_SHORT = 3  # lists up to this length are stored as they are
# Overhead of a block: row headers, and one entry of `event_range`.
_BLOCK_BYTES = 40
_RANGE_BYTES = 40

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Event])

#: The counter of blocks that were shipped to another store: the first block that was not.
SHIPPED = "events_shipped"

COLUMNS = "id, first_at_ms, last_at_ms, data"


def insert(
    db: sqlite3.Connection, events: Sequence[Event], outcomes: Sequence[NewOutcome] = ()
) -> None:
    """Insert events as one block; also called by units that create events during the commit.

    The block carries `outcomes`, if there are events.
    """
    if not events:
        return
    ranges = _ranges(events)
    data = _encoder.encode([_packed(event) for event in events])
    carried = outcome_rows.carry(db, outcomes)
    tally = tally_of(db)
    size = len(data) + len(carried or b"") + _BLOCK_BYTES + _RANGE_BYTES * len(ranges)
    first_ms = last_ms = events[0].at_ms
    count = len(events[0].numbers)
    for event in events[1:]:
        first_ms, last_ms = min(first_ms, event.at_ms), max(last_ms, event.at_ms)
        count += len(event.numbers)
    block = db.execute(
        "INSERT INTO event_block"
        " (first_at_ms, last_at_ms, events, data, end_bytes, tally, ranges, outcomes)"
        " VALUES (?, ?, ?, ?, ? + coalesce("
        "(SELECT end_bytes FROM event_block ORDER BY id DESC LIMIT 1), 0), ?, ?, ?)",
        (
            first_ms,
            last_ms,
            count,
            data,
            size,
            None if tally is None else tally.for_block(),
            event_index.encode(ranges),
            carried,
        ),
    ).lastrowid
    assert block is not None
    if tally is not None:
        tally.written_in(block)
    if block % GROUP_BLOCKS == 0:
        event_index.finish_group(db, block)
        outcome_rows.finish_group(db, block)


def of_message(
    db: sqlite3.Connection, source: bytes, number: int, events_max: int = 1000
) -> list[Event]:
    """Return the events of one message, the oldest first; each event refers to it alone."""
    found: list[Event] = []
    for block in _speaking_of(db, source, number):
        for event in block.events:
            if event.source == source and number in event.numbers:
                found.append(only(event, event.numbers.index(number)))
                if len(found) == events_max:
                    return found
    return found


def of_place(db: sqlite3.Connection, queue: str | None, lookup_id: int) -> Identity | None:
    """Return the message that arrived at this place of a queue, whether or not it is still there.

    `queue` is named as in events: its name, or the destination of an outgoing queue.  If it is
    None, all queues are searched: a place is unique across queues, except places in sequences.
    """
    for block in _speaking_of(db, _lane(lookup_id), arrival_of(lookup_id)):
        for event in block.events:
            if (
                event.kind in ARRIVALS
                and queue in (None, event.to_queue or event.queue)
                and lookup_id in event.places
            ):
                return Identity(event.source, event.numbers[event.places.index(lookup_id)])
    return None


def page(db: sqlite3.Connection, after: int, blocks_max: int) -> list[Block]:
    """Return the blocks after the block `after`, in order."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM event_block WHERE id > ? ORDER BY id LIMIT ?", (after, blocks_max)
    )
    return list(map(_block, rows))


def only(event: Event, index: int) -> Event:
    """Return the same event for one of its messages only."""
    return msgspec.structs.replace(
        event,
        numbers=event.numbers[index : index + 1],
        places=event.places[index : index + 1],
        positions=event.positions[index : index + 1],
        sizes=event.sizes[index : index + 1],
        bytes=event.sizes[index] if event.sizes else 0,
        labels=event.labels[index : index + 1],
        correlations=event.correlations[index : index + 1],
        traces=event.traces[index : index + 1],
    )


# Size.


def size_bytes(db: sqlite3.Connection) -> int:
    """Return the size of the log in the database, accurate to some percent.  Takes two seeks."""
    (size,) = db.execute(
        "SELECT coalesce((SELECT end_bytes FROM event_block ORDER BY id DESC LIMIT 1), 0)"
        " - coalesce((SELECT end_bytes FROM event_block ORDER BY id LIMIT 1), 0)"
    ).fetchone()
    return int(size)


def mark_shipped(db: sqlite3.Connection, block: int) -> int:
    """Record that the log is shipped up to and with `block`; return the highest block so far."""
    shipped = max(counters.following(db, SHIPPED) - 1, block)
    counters.set_following(db, SHIPPED, shipped + 1)
    return shipped


def trim(
    db: sqlite3.Connection,
    *,
    size_max: int,
    before_ms: int,
    blocks_max: int,
    shipped_only: bool = False,
) -> int:
    """Delete the oldest blocks: those above `size_max`, and those older than `before_ms`.

    With `shipped_only` only blocks that are marked as shipped are deleted.

    Deletes at most `blocks_max` blocks and returns how many; a smaller number means that no more
    have to be deleted.  The newest block always stays, because ids must not be assigned again.
    """
    newest = db.execute("SELECT id, end_bytes FROM event_block ORDER BY id DESC LIMIT 1").fetchone()
    if newest is None:
        return 0
    last_id, end_bytes = newest
    if shipped_only:
        last_id = min(last_id, counters.following(db, SHIPPED))
    oldest = db.execute(
        f"SELECT end_bytes, outcomes, {COLUMNS} FROM event_block WHERE id < ? ORDER BY id LIMIT ?",
        (last_id, blocks_max),
    )
    going: list[int] = []
    for block_end_bytes, outcomes, *row in oldest:
        if row[2] >= before_ms and end_bytes - block_end_bytes < size_max:
            break
        block = _block((row[0], row[1], row[2], row[3]))
        db.executemany(
            "DELETE FROM event_range WHERE source = ? AND first = ? AND last = ? AND block = ?",
            ((*each, block.id) for each in _ranges(block.events)),
        )
        outcome_rows.keep_those_of(db, block.id, outcomes)
        going.append(block.id)
    db.executemany("DELETE FROM event_block WHERE id = ?", ((each,) for each in going))
    if going and (tally := tally_of(db)) is not None:
        tally.trimmed(going[-1])
    return len(going)


def _speaking_of(db: sqlite3.Connection, source: bytes, number: int) -> list[Block]:
    rows = db.execute(
        f"SELECT {COLUMNS} FROM event_block WHERE id IN (SELECT value FROM json_each(?))"
        " ORDER BY id",
        (str(event_index.blocks_about(db, source, number)),),
    )
    return list(map(_block, rows))


def _ranges(events: Sequence[Event]) -> list[tuple[bytes, int, int]]:
    """Return source, first and last number of the messages that a block refers to."""
    found: dict[bytes, tuple[int, int]] = {}
    for event in events:
        if event.numbers:
            _widen(found, event.source, min(event.numbers), max(event.numbers))
        if event.places and event.kind in ARRIVALS:
            # Places in sequences count from 1 in each outgoing queue, and have a lane of their own.
            first, last = min(event.places), max(event.places)
            lane = _lane(first)
            if level_of(first) == level_of(last):
                _widen(found, lane, arrival_of(first), arrival_of(last))
            else:
                arrivals = [arrival_of(place) for place in event.places]
                _widen(found, lane, min(arrivals), max(arrivals))
    return [(source, first, last) for source, (first, last) in found.items()]


def _lane(place: int) -> bytes:
    """Return the key that replaces the source in `event_range` when places are searched."""
    return _SEQUENCES if level_of(place) == OUTGOING_TRANSACTIONAL_LEVEL else b""


def _widen(ranges: dict[bytes, tuple[int, int]], source: bytes, first: int, last: int) -> None:
    known = ranges.get(source)
    if known is not None:
        first, last = min(first, known[0]), max(last, known[1])
    ranges[source] = first, last


def _packed(event: Event) -> Event:
    size = sum(event.sizes) if event.sizes else event.bytes
    if len(event.numbers) <= _SHORT:
        return msgspec.structs.replace(event, bytes=size)  # no list is longer than that of numbers
    return msgspec.structs.replace(
        event,
        numbers=_short(event.numbers),
        places=_short(event.places),
        positions=_short(event.positions),
        sizes=_short(event.sizes),
        bytes=size,
        sequence_ids=_short(event.sequence_ids),
    )


def _short(numbers: list[int]) -> list[int]:
    """Compress a list: most numbers are consecutive, and most sizes equal; then three values
    suffice.
    """
    count = len(numbers)
    if count > _SHORT:
        first = numbers[0]
        span = numbers[-1] - first
        if span == count - 1 and numbers == list(range(first, first + count)):
            return [_RUN, first, count]
        if span == 0 and numbers.count(first) == count:
            return [_SAME, first, count]
    return numbers


def _whole(numbers: list[int]) -> list[int]:
    if len(numbers) == _SHORT and numbers[0] < 0:
        how, first, count = numbers
        return list(range(first, first + count)) if how == _RUN else [first] * count
    return numbers


def _block(row: tuple[int, int, int, bytes]) -> Block:
    block_id, first_at_ms, last_at_ms, data = row
    events: list[Event] = []
    for event in _decoder.decode(data):
        event.numbers = _whole(event.numbers)
        event.places = _whole(event.places)
        event.positions = _whole(event.positions)
        event.sizes = _whole(event.sizes)
        if event.queues:
            events += _by_queue(event)
        else:
            events.append(event)
    return Block(block_id, first_at_ms, last_at_ms, events)


def _by_queue(event: Event) -> Iterator[Event]:
    """Split an event about copies in many queues into one event per queue."""
    sequence_ids = _whole(event.sequence_ids) or [0] * len(event.queues)
    queues, event.queues, event.sequence_ids = event.queues, [], []
    for index, (queue, sequence_id) in enumerate(zip(queues, sequence_ids, strict=True)):
        each = only(event, index)
        each.queue, each.sequence_id = queue, sequence_id
        yield each
