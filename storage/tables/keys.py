"""The key of a message: its queue, level and arrival in one integer, the row id of its table.

      62        48 47    44 43                        0
    ┌────────────┬────────┬───────────────────────────┐
    │  queue id  │ level  │          arrival          │
    └────────────┴────────┴───────────────────────────┘
                 └──────────── lookup id ─────────────┘

Rows in the order of their keys are the messages of a queue in the order of receiving: ascending
arrival within descending priority ([MS-MQDMPR] 3.1.1.2 MessagePositionList).  So the table needs no
second index, reading in order and deleting a range scan adjacent rows, and the 48 bits below the
queue id are the message's lookup id.  15 bits of queue id keep the integer positive.
"""

ARRIVAL_BITS = 44
LEVEL_BITS = 4
LOOKUP_BITS = LEVEL_BITS + ARRIVAL_BITS

QUEUE_ID_MAX = (1 << 15) - 1
LEVEL_MAX = (1 << LEVEL_BITS) - 1
ARRIVAL_MAX = (1 << ARRIVAL_BITS) - 1
LOOKUP_MASK = (1 << LOOKUP_BITS) - 1

#: Transactional messages count as priority 0, whatever their header states.  [MS-MQDMPR] 3.1.1.2
TRANSACTIONAL_LEVEL = 7
#: In outgoing queues transactional messages follow all others and keep their own order.
OUTGOING_TRANSACTIONAL_LEVEL = 8


def message_key(queue_id: int, level: int, arrival: int) -> int:
    assert 0 <= queue_id <= QUEUE_ID_MAX
    assert 0 <= level <= LEVEL_MAX
    assert 0 <= arrival <= ARRIVAL_MAX
    return queue_id << LOOKUP_BITS | level << ARRIVAL_BITS | arrival


def queue_id_of(key: int) -> int:
    return key >> LOOKUP_BITS


def level_of(key: int) -> int:
    return key >> ARRIVAL_BITS & LEVEL_MAX


def arrival_of(key: int) -> int:
    return key & ARRIVAL_MAX


def lookup_id_of(key: int) -> int:
    return key & LOOKUP_MASK


def key_parts(key: int) -> tuple[int, int, int]:
    """Return queue id, level and arrival of a key."""
    return queue_id_of(key), level_of(key), arrival_of(key)


def queue_range(queue_id: int, from_lookup: int = 0) -> tuple[int, int]:
    """Return the first and the last key, both included, that a message of the queue can have."""
    first = queue_id << LOOKUP_BITS
    return first | from_lookup, first | LOOKUP_MASK


def level_range(queue_id: int, level: int) -> tuple[int, int]:
    """Return the first and the last key, both included, of one level of the queue."""
    return message_key(queue_id, level, 0), message_key(queue_id, level, ARRIVAL_MAX)
