"""Facts: what each event means for exactly-once, as columns of numbers for the audit.

A *stream* is a source and the higher half of a sequence id: one outgoing queue of one queue
manager, for as long as that queue exists.  The lower half counts its sequences, and each message
has a number in its sequence; both together are the *key*, which only grows.  The lookup id of an
accepted message contains the receiver's arrival number.

An event without a sequence has no stream: -1.  Names are 64-bit hashes, `events.hash_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.events import text_hashes

Array = Any

COLUMNS = (
    *("host", "queue_manager", "block", "index", "at_ms", "kind", "message_id", "queue", "peer"),
    *("lookup_id", "sequence_id", "sequence_number", "class", "delivery", "bytes"),
)


class Role(IntEnum):
    """The meaning of an event for the audit."""

    NOTHING = 0
    SENT = 1  # into an outgoing queue
    ACCEPTED = 2
    ORDER_ACKED = 3
    SESSION_ACKED = 4
    ENDED = 5  # at its source, before it arrived, as far as the source knows
    REFUSED = 6  # at its destination, or ended at a queue manager that should relay it
    RECEIVED = 7  # an application removed it from its place in a queue
    LEFT = 8  # it left in another way: expired there, purged, ...
    DEAD_LATER = 9  # at its source, because of its fate after it had arrived
    HANDED = 10  # to a session: shows which queue manager the other one is
    RELAYED = 11  # a third queue manager has it now
    PUT = 12  # an application put it into a queue of its own host
    PASSED = 13  # a third queue manager has relayed it, and got the acknowledgment
    IMPORTED = 14  # from a file, into a queue of the host
    TAKEN = 15  # out of a queue of the host, and not received: sent again, or damaged
    MISSED = 16  # by its queue manager: its row is not in the database any more
    RESTORED = 17  # no message: the first start of its queue manager with a restored folder
    STARTED = 18  # no message: a start of its queue manager; `peer` is the run that begins
    MET = 19  # no message: a session with the run `peer` of another queue manager


#: Roles of events after which a message is not in its queue any more.
GONE = (Role.RECEIVED, Role.LEFT, Role.TAKEN, Role.REFUSED)

_ENDS, _DEAD, _DAMAGED = (
    100,
    101,
    102,
)  # their meaning depends on whether the message is the host's own
_CODES = {
    "sent": Role.SENT,
    "accepted": Role.ACCEPTED,
    "order_acknowledged": Role.ORDER_ACKED,
    "session_acknowledged": Role.SESSION_ACKED,
    "refused": Role.REFUSED,
    "received": Role.RECEIVED,
    "relayed": Role.RELAYED,
    "imported": Role.IMPORTED,
    "requeued": Role.TAKEN,
    "vanished": Role.MISSED,
    "restored": Role.RESTORED,
    "started": Role.STARTED,
    "met": Role.MET,
    "damaged": _DAMAGED,
    "transmitted": Role.HANDED,
    "retransmitted": Role.HANDED,
    # For the host's own message to another host these are its end; for a message in a queue of the
    # host they remove it from there.
    **dict.fromkeys(("expired", "purged", "queue_deleted", "rejected", "unroutable"), _ENDS),
    # Always the end of the host's own message to another host.
    **dict.fromkeys(("final_ack_received", "unconfirmed", "dead_lettered", "discarded"), _DEAD),
}
#: Kinds that end a message.
ENDING_KINDS = tuple(
    kind for kind, code in _CODES.items() if code in (_ENDS, _DEAD, _DAMAGED, Role.REFUSED)
)
#: Messages with these classes had arrived before they ended.
_ARRIVED = dict.fromkeys(
    ("nack_receive_timeout", "nack_receive_rejected", "nack_queue_purged", "nack_queue_deleted"), 1
)
TRANSACTIONAL, RECOVERABLE, EXPRESS = 0, 1, 2
_GRADES = {"transactional": TRANSACTIONAL, "recoverable": RECOVERABLE, "express": EXPRESS}

ARRIVAL_MAX = (1 << 44) - 1  # of a lookup id: storage/tables/keys.py
BLOCK_BITS = 38  # of 42: a log has a hundred billion blocks at most; above is its epoch, less one
#: The part of a block that its queue manager has assigned (`epochs.Epochs`).
RAW_BLOCK = (1 << BLOCK_BITS) - 1
HALF = np.int64(32)
_ID = r"^[0-9A-Fa-f-]{36}\\[0-9]{1,10}$"  # a GUID and a number of 32 bits
_LOW = np.int64(0xFFFF_FFFF)
#: The queue of acknowledgments, by its name and by its number, and those of qmd's own requests; a
#: word such as "for others" may follow.
_INTERNAL = re.compile(
    r"(?:\\(?:order_queue|qmd_heartbeat|qmd_history)\$|^PRIVATE=[0-9a-f-]{36}\\0*4)(?= |$)", re.I
)


def epoch_of_block(block: Array) -> Array:
    """Return the epoch of a block that `Epochs` has raised; 1 if it has not."""
    return block // (1 << BLOCK_BITS) + 1


def key_parts(key: int) -> tuple[int, int]:
    """Return the lower half of the sequence id, and the number in the sequence."""
    return key >> int(HALF), key & int(_LOW)


class Facts(NamedTuple):
    """One row for each event of a table, in its order."""

    role: Array
    host: Array  # hash of its queue manager
    block: Array
    index: Array
    at_ms: Array
    source: Array
    number: Array  # of the message
    stream: Array  # -1: it has none
    key: Array
    place: Array  # lookup id; -1: none
    queue: Array
    peer: Array
    grade: Array  # delivery (express and so on) of sent and accepted messages; -1: unknown
    size: Array  # of its packet; 0: unknown

    @property
    def arrival(self) -> Array:
        """A number that grows with each message that the host accepts."""
        return np.where(self.place >= 0, self.place & ARRIVAL_MAX, self.block << 20 | self.index)

    def where(self, chosen: Array) -> Facts:
        """Return rows by mask, or by number."""
        if chosen.dtype == bool:
            if chosen.all():
                return self
            chosen = np.flatnonzero(chosen)
        return Facts(*(column[chosen] for column in self))


def facts_of(table: Any, names: dict[int, str] | None = None) -> Facts:
    """Return the facts of a table with `COLUMNS`; `names` gets the text of each hash."""

    def column(name: str) -> Any:
        found = table.column(name)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def numbers(name: str, default: int) -> Array:
        found = column(name)
        if found.null_count:
            found = pc.fill_null(found, default)
        return found.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)

    host = text_hashes(column("queue_manager"), names)
    queues = column("queue")
    queue = text_hashes(queues, names)
    peer = text_hashes(column("peer"), names)
    source, number, has_id = ids_of(column("message_id"), names)
    high, low, has_sequence = halves(column("sequence_id"))
    sequence_number = numbers("sequence_number", 0)
    place = numbers("lookup_id", -1)
    remote = ~is_local(queues)
    role = _roles(column("kind"), remote, column("class"), source == host)
    of_host = np.isin(role, (Role.RESTORED, Role.STARTED, Role.MET))
    role[(~has_id | is_internal(queues)) & ~of_host] = Role.NOTHING
    return Facts(
        role,
        host,
        numbers("block", 0),
        numbers("index", 0),
        numbers("at_ms", 0),
        source,
        number,
        np.where(has_sequence, high, np.int64(-1)),
        np.where(has_sequence, low << HALF | (sequence_number & _LOW), np.int64(0)),
        place,
        queue,
        peer,
        coded(column("delivery"), _GRADES, -1).astype(np.int64),
        numbers("bytes", 0),
    )


def ids_of(ids: Any, names: dict[int, str] | None = None) -> tuple[Array, Array, Array]:
    """Return source and number of each message id, and whether there is an id.

    A text that is no id counts as none: another program may have written the file.
    """
    try:
        return _ids_of(ids, names)
    except pa.ArrowInvalid:
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        is_id = pc.match_substring_regex(ids, _ID)
        return _ids_of(pc.if_else(is_id, ids, pa.scalar(None, ids.type)), names)


def _ids_of(ids: Any, names: dict[int, str] | None) -> tuple[Array, Array, Array]:
    # As bytes: ids are ASCII, and searching for character boundaries takes five times as long.
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    raw = ids.cast(pa.binary())
    source = text_hashes(pc.binary_slice(raw, 0, 36).cast(pa.string()), names)
    tail = pc.binary_slice(raw, 37, 64).cast(pa.string())
    has_id = pc.fill_null(pc.not_equal(tail, ""), False)
    number = pc.fill_null(pc.if_else(has_id, tail, "0").cast(pa.int64()), 0)
    return source, number.to_numpy(), has_id.to_numpy(zero_copy_only=False)


def _roles(kinds: Any, remote: Array, classes: Any, own: Array) -> Array:
    """Return the role of each event; `own`: the message is the host's own."""
    role = coded(kinds, _CODES, Role.NOTHING)
    # A message for a queue of its own host has no route to audit.
    role[(role == Role.SENT) & ~remote] = Role.PUT
    # A queue manager that relays messages gets acknowledgments too.
    role[(role == Role.ORDER_ACKED) & ~own] = Role.NOTHING
    role[(role == Role.SESSION_ACKED) & ~own] = Role.PASSED
    # An application that receives a message of its own host reads dead letters or a journal.
    role[(role == Role.RECEIVED) & own] = Role.LEFT
    at = np.flatnonzero(role >= _ENDS)
    if len(at):
        is_own, is_remote = own[at], remote[at]
        arrived = coded(classes, _ARRIVED, 0)[at] == 1
        of_dead = np.where(
            is_own & is_remote, np.where(arrived, Role.DEAD_LATER, Role.ENDED), Role.NOTHING
        )
        of_ends = np.where(is_remote, np.where(is_own, Role.ENDED, Role.REFUSED), Role.LEFT)
        of_damaged = np.where(is_remote, of_dead, Role.TAKEN)
        role[at] = np.select(
            [role[at] == _ENDS, role[at] == _DAMAGED], [of_ends, of_damaged], of_dead
        )
    return role


def is_local(queues: Any) -> Array:
    """Return whether the queue is one of the logging host; all others are format names."""
    return _which(queues, lambda text: "=" not in text)


def is_internal(queues: Any) -> Array:
    """Return whether the queue is one in which a queue manager stores nothing.

    It processes the message at once: a final ack, a heartbeat, a question about a message.
    """
    return _which(queues, lambda text: _INTERNAL.search(text) is not None)


def _which(queues: Any, is_one: Callable[[str], bool]) -> Array:
    """Return which rows have a name of which `is_one` is true; none is ""."""
    queues = _dictionary(queues)
    texts = [text or "" for text in queues.dictionary.to_pylist()]
    table = np.array([*map(is_one, texts), is_one("")])
    return table[queues.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def coded(column: Any, codes: Mapping[str, int], default: int) -> Array:
    column = _dictionary(column)
    texts = column.dictionary.to_pylist()
    table = np.array([*(codes.get(text, default) for text in texts), default], np.int8)
    return table[column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def _dictionary(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def halves(column: Any) -> tuple[Array, Array, Array]:
    """Return the halves of unsigned 64-bit numbers, higher first, and a mask of non-nulls."""
    if not pa.types.is_decimal128(column.type):
        column = column.cast(pa.decimal128(20, 0))
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    data = column.buffers()[1]
    if data is None or len(column) == 0:
        nothing = np.zeros(len(column), np.int64)
        return nothing, nothing, there
    words = np.frombuffer(data, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    whole = words[::2]
    high = (whole >> np.uint64(32)).astype(np.int64)
    low = (whole & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    return high, low, there
