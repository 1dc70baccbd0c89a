"""Table `event_range`: the messages that a block of events may refer to.

Its rows are in the order of messages, so a row touches another page than the block, and a commit
would write that page as a whole.  So each block carries its own ranges, and the commit of the last
block of a group enters the ranges of all its blocks.  A group ends with each block whose id is a
multiple of `GROUP_BLOCKS`.  A search reads the ranges of the unfinished group from its blocks.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

GROUP_BLOCKS = 64

#: Source, first and last number.
Range = tuple[bytes, int, int]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Range])


def encode(ranges: Sequence[Range]) -> bytes | None:
    """Encode the ranges of one block for its column `ranges`."""
    return _encoder.encode(ranges) if ranges else None


def last_of_groups(db: sqlite3.Connection) -> int:
    """Return the last block of the last finished group; all later ones carry their ranges."""
    (newest,) = db.execute("SELECT coalesce(max(id), 0) FROM event_block").fetchone()
    return int(newest) // GROUP_BLOCKS * GROUP_BLOCKS


def finish_group(db: sqlite3.Connection, last: int) -> None:
    """Enter the ranges of the group that ends with block `last`, in the commit of that block."""
    carried = db.execute(
        "SELECT id, ranges FROM event_block WHERE id > ? AND id <= ? AND ranges IS NOT NULL",
        (last - GROUP_BLOCKS, last),
    )
    db.executemany(
        "INSERT OR IGNORE INTO event_range (source, first, last, block) VALUES (?, ?, ?, ?)",
        [(*each, block) for block, ranges in carried for each in _decoder.decode(ranges)],
    )


def blocks_about(db: sqlite3.Connection, source: bytes, number: int) -> list[int]:
    """Return the blocks that may refer to a message, in order."""
    # The unfinished group first: if it is finished between the two reads, the second one has it.
    carried = db.execute(
        "SELECT id, ranges FROM event_block WHERE id > ? AND ranges IS NOT NULL",
        (last_of_groups(db),),
    )
    found = {
        block
        for block, ranges in carried.fetchall()
        for of, first, last in _decoder.decode(ranges)
        if of == source and first <= number <= last
    }
    entered = db.execute(
        "SELECT block FROM event_range WHERE source = ? AND first <= ? AND last >= ?",
        (source, number, number),
    )
    found.update(block for (block,) in entered)
    return sorted(found)
