"""Table `event_block`: what happened to messages, told in the same commit as what was changed.

Events that tell the same of several messages are one `Event`; the events of one commit are one row,
so that the log costs a commit one insert and not one for each message.  Table `event_range` says
which messages of which source a block may speak of, so that the history of one can be found.

docs/events.md has the schema of an event for readers outside; `SCHEMA` is its number.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

SCHEMA = 1


class Event(msgspec.Struct, array_like=True, kw_only=True, omit_defaults=True):
    """Something that happened to messages: `numbers` of the queue manager `source`.

    `places` are their lookup ids in the queue of which it tells, `positions` their numbers in the
    sequence `sequence_id`; each is empty, or as long as `numbers`.
    """

    kind: str
    at_ms: int  # since 1970, UTC
    source: bytes
    numbers: Sequence[int]
    queue: str = ""  # of ours by its name, elsewhere the destination's format name
    peer: str = ""  # the other queue manager: its GUID, or its address where that is not known
    places: Sequence[int] = ()
    sequence_id: int = 0
    positions: Sequence[int] = ()
    message_class: int = 0
    bytes: int = 0  # of all their packets
    reason: str = ""  # a sentence
    to_queue: str = ""  # where they are now, if they went somewhere
    transaction: str = ""
    sizes: Sequence[int] = ()


class Block(NamedTuple):
    id: int
    first_at_ms: int
    last_at_ms: int
    events: list[Event]


_RUN = -1  # a list of numbers that begins so is a run: [-1, first, how many]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Event])


def insert(db: sqlite3.Connection, events: Sequence[Event]) -> None:
    """One block.  A unit that finds out only in its commit what happens calls it itself."""
    ranges: dict[bytes, tuple[int, int]] = {}
    packed: list[Event] = []
    first_at_ms = last_at_ms = events[0].at_ms
    for event in events:
        numbers = event.numbers
        low, high = min(numbers), max(numbers)
        known = ranges.get(event.source)
        if known is not None:
            low, high = min(low, known[0]), max(high, known[1])
        ranges[event.source] = low, high
        first_at_ms, last_at_ms = min(first_at_ms, event.at_ms), max(last_at_ms, event.at_ms)
        packed.append(_packed(event))
    block = db.execute(
        "INSERT INTO event_block (first_at_ms, last_at_ms, events, data) VALUES (?, ?, ?, ?)",
        (
            first_at_ms,
            last_at_ms,
            sum(len(event.numbers) for event in events),
            _encoder.encode(packed),
        ),
    ).lastrowid
    db.executemany(
        "INSERT INTO event_range (source, first, last, block) VALUES (?, ?, ?, ?)",
        ((source, low, high, block) for source, (low, high) in ranges.items()),
    )


def of_message(db: sqlite3.Connection, source: bytes, number: int, events_max: int) -> list[Event]:
    """What is known of one message, the oldest first; each event speaks of it alone."""
    rows = db.execute(
        "SELECT id, first_at_ms, last_at_ms, data FROM event_block WHERE id IN"
        " (SELECT block FROM event_range WHERE source = ? AND first <= ? AND last >= ?)"
        " ORDER BY id",
        (source, number, number),
    )
    found: list[Event] = []
    for block in map(_block, rows):
        for event in block.events:
            if event.source == source and number in event.numbers:
                found.append(only(event, event.numbers.index(number)))
                if len(found) == events_max:
                    return found
    return found


def page(db: sqlite3.Connection, after: int, blocks_max: int) -> list[Block]:
    """The blocks behind the block `after`, in order."""
    rows = db.execute(
        "SELECT id, first_at_ms, last_at_ms, data FROM event_block WHERE id > ?"
        " ORDER BY id LIMIT ?",
        (after, blocks_max),
    )
    return list(map(_block, rows))


def only(event: Event, index: int) -> Event:
    """The same, told of one of its messages."""
    return msgspec.structs.replace(
        event,
        numbers=[event.numbers[index]],
        places=event.places[index : index + 1],
        positions=event.positions[index : index + 1],
        sizes=event.sizes[index : index + 1],
        bytes=event.sizes[index] if event.sizes else 0,
    )


def _packed(event: Event) -> Event:
    return msgspec.structs.replace(
        event,
        numbers=_run(event.numbers),
        places=_run(event.places),
        positions=_run(event.positions),
    )


def _run(numbers: Sequence[int]) -> Sequence[int]:
    """Most numbers follow each other: then three say it all."""
    count = len(numbers)
    if count > 3 and numbers[-1] - numbers[0] == count - 1 and _ascends(numbers):
        return (_RUN, numbers[0], count)
    return numbers


def _ascends(numbers: Iterable[int]) -> bool:
    last = -1
    for number in numbers:
        if number <= last:
            return False
        last = number
    return True


def _unpacked(numbers: Sequence[int]) -> Sequence[int]:
    if len(numbers) == 3 and numbers[0] == _RUN:
        return range(numbers[1], numbers[1] + numbers[2])
    return numbers


def _block(row: tuple[int, int, int, bytes]) -> Block:
    block_id, first_at_ms, last_at_ms, data = row
    events = _decoder.decode(data)
    for event in events:
        event.numbers = _unpacked(event.numbers)
        event.places = _unpacked(event.places)
        event.positions = _unpacked(event.positions)
    return Block(block_id, first_at_ms, last_at_ms, events)
