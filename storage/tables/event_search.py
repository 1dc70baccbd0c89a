"""Reading the history of messages: of one message, or of all from some moment on.

An event here refers to one message, or to none (the daemon's own events).  Its *cursor* is the
block that holds it, and its index among the events of that block, counted by message; both are
stable, so that a reader can resume where it stopped.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

from storage.tables import event_index, events
from storage.tables.events import Block, Event, only

PAGE_BLOCKS = 16


class FoundEvent(NamedTuple):
    """One event of one message, and its cursor."""

    block: int
    at: int
    event: Event


class Page(NamedTuple):
    """Events in order, and the cursor of the next ones."""

    found: list[FoundEvent]
    block: int  # the cursor of the first event that was not examined
    at: int
    is_end: bool  # there are no later events now
    missing_blocks: int  # between the requested cursor and the oldest block that is kept


Filter = Callable[[Event], bool]


def of_message(
    db: sqlite3.Connection, source: bytes, number: int, events_max: int, blocks_max: int = 1 << 30
) -> tuple[list[FoundEvent], bool]:
    """Return the events of one message, the oldest first, and True if some may be left out.

    The beginning and the end matter most, so if a limit is exceeded, half is taken from each end:
    of the events, and likewise of the blocks that may refer to the message.
    """
    blocks = event_index.blocks_about(db, source, number)
    left_out = len(blocks) > blocks_max
    if left_out:
        blocks = [*blocks[: blocks_max // 2], *blocks[-(blocks_max // 2) :]]
    half = events_max // 2
    first = _of_message(db, iter(blocks), source, number, half)
    seen = first[-1].block if len(first) == half else None
    if seen is None:
        return first, left_out
    rest = _of_message(db, reversed(blocks), source, number, events_max - half, newest=True)
    known = {(entry.block, entry.at) for entry in first}
    fresh = [entry for entry in reversed(rest) if (entry.block, entry.at) not in known]
    is_cut = len(rest) == events_max - half and len(fresh) == len(rest)
    return first + fresh, is_cut or left_out


def page(
    db: sqlite3.Connection,
    block: int,
    index: int,
    *,
    events_max: int,
    blocks_max: int,
    is_wanted: Filter,
    until_ms: int | None = None,
) -> Page:
    """Return the next events from a cursor on, itself included, that pass the filter."""
    found: list[FoundEvent] = []
    missing = 0
    oldest = db.execute("SELECT min(id) FROM event_block").fetchone()[0]
    if oldest is not None and block < oldest:
        missing, block, index = (oldest - block if block else 0), oldest, 0
    looked_at = 0
    while looked_at < blocks_max:
        blocks = events.page(db, block - 1, min(PAGE_BLOCKS, blocks_max - looked_at))
        if not blocks:
            return Page(found, block, index, True, missing)
        for each in blocks:
            if each.id != block:
                block, index = each.id, 0
            if until_ms is not None and each.first_at_ms >= until_ms:
                return Page(found, block, index, True, missing)
            for entry in numbered(each):
                if entry.at < index:
                    continue
                if until_ms is not None and entry.event.at_ms >= until_ms:
                    return Page(found, block, entry.at, True, missing)
                if len(found) == events_max:
                    return Page(found, block, entry.at, False, missing)
                if is_wanted(entry.event):
                    found.append(entry)
            block, index = each.id + 1, 0
        looked_at += len(blocks)
    return Page(found, block, index, False, missing)


def last(db: sqlite3.Connection, *, events_max: int, blocks_max: int, is_wanted: Filter) -> Page:
    """Return the last events that pass the filter, in order; reads at most `blocks_max` blocks."""
    found: list[FoundEvent] = []
    end: int | None = None
    for block in _newest(db, blocks_max):
        end = end or block.id + 1
        wanted = [entry for entry in numbered(block) if is_wanted(entry.event)]
        found += reversed(wanted)
        if len(found) >= events_max:
            break
    return Page(found[:events_max][::-1], end or 1, 0, True, 0)


def since(db: sqlite3.Connection, at_ms: int) -> int:
    """Return the first block that may have events from that moment on."""
    row = db.execute(
        "SELECT id FROM event_block WHERE last_at_ms >= ? ORDER BY id LIMIT 1", (at_ms,)
    ).fetchone()
    if row is not None:
        return int(row[0])
    return int(db.execute("SELECT coalesce(max(id), 0) + 1 FROM event_block").fetchone()[0])


def numbered(block: Block) -> Iterator[FoundEvent]:
    """Yield the events of a block, one per message."""
    index = 0
    for event in block.events:
        if len(event.numbers) <= 1:
            yield FoundEvent(block.id, index, event)
            index += 1
            continue
        for at in range(len(event.numbers)):
            yield FoundEvent(block.id, index, only(event, at))
            index += 1


def _of_message(
    db: sqlite3.Connection,
    blocks: Iterator[int],
    source: bytes,
    number: int,
    events_max: int,
    *,
    newest: bool = False,
) -> list[FoundEvent]:
    found: list[FoundEvent] = []
    for block_id in blocks:
        for block in events.page(db, block_id - 1, 1):
            if block.id != block_id:
                continue
            here = list(_about(block, source, number))
            for entry in reversed(here) if newest else here:
                found.append(entry)
                if len(found) == events_max:
                    return found
    return found


def _about(block: Block, source: bytes, number: int) -> Iterator[FoundEvent]:
    start = 0
    for event in block.events:
        if event.source == source:
            for at, each in enumerate(event.numbers):
                if each == number:  # it may occur several times, for example if sent again
                    yield FoundEvent(block.id, start + at, only(event, at))
        start += _count(event)


def _count(event: Event) -> int:
    """Return the number of indices that an event takes; an event without a message takes one."""
    return max(1, len(event.numbers))


def _newest(db: sqlite3.Connection, blocks_max: int) -> Iterator[Block]:
    ids = db.execute("SELECT id FROM event_block ORDER BY id DESC LIMIT ?", (blocks_max,))
    for (block_id,) in ids.fetchall():
        yield from events.page(db, block_id - 1, 1)
