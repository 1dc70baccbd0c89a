"""Requests for data pipelines: reserved ranges, range reads, stages.

These verbs supplement `qmd/control_protocol/messages.py`; docs/decisions/0019 gives the reasons for
their design.

A *reader* is a name chosen by a pipeline, with a fence: each opening returns a higher fence, and
every later request with a lower one is refused. A reader numbers the messages of each of its queues
separately, 1, 2, 3 ..., in the order of their arrival as far as they were ready. That number is the
*position*; it is assigned when a message is reserved, and never reused for another message.

Stored references to a queue use its id, a GUID as text: a queue that was deleted and created again
has another id. `OpenReader` returns the ids.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    Amount,
    Choice,
    Done,
    NewMessage,
    Reply,
    Request,
    add_verbs,
    buffers,
    large_frame,
)

NAME_CHARACTERS_MAX = 200
QUEUES_MAX = 1000  # of one reader
ROWS_MAX = 65_536  # in one frame
ATTEMPTS_MAX = 65_536  # in one publication

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
QueueName = Annotated[str, msgspec.Meta(max_length=2000)]


class OpenReader(Request, tag="open_reader", frozen=True):
    """Begin a run of a reader; requests of its older runs are refused from now on.

    -> {reader, fence, queues: [{queue: its id, name, position: consumed up to it, reserved: up to
    it, shared}, ...]}, in the requested order. Queues are given by any spelling or id.

    `shared`: consumed messages stay in the queue, and other shared readers of the queue read all of
    them too. Otherwise the readers of a queue compete, and consumed messages are received. A new
    reader begins in a queue with the oldest message (`start` "oldest"), with messages that arrive
    from now on ("newest"), with those that have an arrival number from N on ("position:N"), or with
    the first one that arrived at a time or later ("time:MILLISECONDS", since 1970), also if it is
    still to come; "existing:MILLISECONDS" is refused then. `starts` has other starts for single
    queues, named as in `queues`.

    With the `fence` of a run that is current, queues are added to that run, and the fence stays.
    """

    reader: Name
    queues: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]
    shared: bool = False
    start: str = "oldest"
    fence: int = 0
    starts: Annotated[dict[QueueName, str], msgspec.Meta(max_length=QUEUES_MAX)] = msgspec.field(
        default_factory=dict
    )


class Reserve(Request, tag="reserve", frozen=True):
    """Reserve the messages after the position `start`, limited in number and in bytes of packets.

    -> {end, messages, bytes, more}: positions `start` + 1 to `end` are reserved for the reader, on
    disk, until they are consumed or released; `end` is `start` when nothing is ready.

    Messages that an earlier request reserved after `start` are returned first, so a request with a
    lost answer can be repeated. `more`: a message after `end` is ready, reserved or not.

    `until` and `until_ms` exclude messages with a later arrival number or time.
    """

    reader: Name
    fence: int
    queue: QueueName
    start: Amount
    messages_max: int = ROWS_MAX
    bytes_max: int = 0  # 0: no limit
    one_always: bool = True  # one ready message even if it exceeds the limit
    until: Amount = 0  # the last arrival number; 0: no limit
    until_ms: Amount | None = None  # since 1970


class Filter(msgspec.Struct, array_like=True, frozen=True):
    """Filter for the messages of a range, applied in the queue manager.

    Texts match as substrings without regard to case, so a caller that needs exact matches must
    check again.
    """

    choice: Choice = EVERY_MESSAGE
    # For transactional messages: the sequence, and the first and last requested number in it.
    sequence_id: int | None = None  # 64 bits without a sign
    sequence_from: Amount | None = None
    sequence_until: Amount | None = None


EVERYTHING = Filter()


class ReadRange(Request, tag="read_range", frozen=True):
    """Read messages after `after` up to `until`, in order, without taking them.

    -> `Rows`, as an array

    With a reader: its reserved positions (without a fence, because executors read). Without one:
    all messages of any queue by arrival number (the lower 44 bits of their lookup ids); journals,
    dead-letter queues and subqueues are possible too, and `until` 0 means all that have arrived by
    now.
    """

    queue: QueueName
    after: Amount = 0
    until: Amount = 0
    limit: int = ROWS_MAX
    bytes_max: int = 8 * 1024 * 1024  # of packets in this answer; at least one message is returned
    reader: str = ""
    filter: Filter = EVERYTHING
    bodies: bool = True  # if false, packets end before their bodies


class Rows(msgspec.Struct, array_like=True, frozen=True):
    """Messages in columns; numbers are little-endian and contiguous.

    `next` is the `after` of the next request, or None if all messages up to `until` were returned.
    Packet i is packets[offsets[i]:offsets[i + 1]]; there is one more offset than messages. In
    signed columns of 8 bytes, -1 means that there is no value.
    """

    count: int
    next: int | None
    until: int
    positions: bytes  # 8 bytes each: positions of the reader, or arrival numbers
    lookup_ids: bytes  # 8 bytes each
    arrived_at_ms: bytes  # 8 bytes each
    expires_at_s: bytes  # 8 bytes each; by the queue manager's own clock
    abort_counts: bytes  # 4 bytes each
    move_counts: bytes  # 4 bytes each
    offsets: bytes  # 4 bytes each
    packets: bytes
    reasons: list[str | None] | None = None  # None: no message has one


def answer_buffers(reply: Reply) -> tuple[bytes | bytearray, ...]:
    """Return the buffers of an answer's frame; those of megabytes are not copied."""
    has_rows = isinstance(reply, Done) and isinstance(reply.result, Rows)
    return (large_frame(reply),) if has_rows else buffers(reply)


class SplitRange(Request, tag="split_range", frozen=True):
    """Split a range of a queue into parts with about the same number of messages.

    -> {queue: its id, until, messages, bytes, ranges: [[after, until, messages], ...]}

    The parts are by arrival number, as in `ReadRange` without a reader. `until` 0 fixes the range
    to all messages that have arrived by now. With `after`, up to 100,000 `messages` are exact;
    otherwise they are those of the queue.
    """

    queue: QueueName
    parts: int = 1
    after: Amount = 0
    until: Amount = 0


class Consume(Request, tag="consume", frozen=True):
    """Consume the reader's messages up to these positions, by queue id.

    The messages leave their queue as if they were received, and their senders are notified; those
    of a shared reader stay. Messages that are already consumed are skipped. -> {messages, bytes}
    """

    reader: Name
    fence: int
    ends: Annotated[dict[QueueName, Amount], msgspec.Meta(max_length=QUEUES_MAX)]


class ListReaders(Request, tag="list_readers", frozen=True):
    """List the readers, with one row for each queue of a reader.

    -> [{reader, fence, queue, name, shared, position, reserved, messages, bytes, opened_at_s,
    heard_at_s, reserved_since_s, consumed_messages, ...}, ...]
    """


class ReleaseReader(Request, tag="release_reader", frozen=True):
    """Release a reader, or its part in one queue: its reserved messages become ready again.

    For operators. Requests of a run of it that still exists are refused from now on. The reserved
    positions are used up: an attempt to read them again from a checkpoint fails with an error.
    `forget`: the reader is deleted, and a new one of that name begins anew. -> {messages, bytes}
    """

    reader: Name
    queue: QueueName = ""
    dry_run: bool = False
    forget: bool = False


class Stage(Request, tag="stage", frozen=True):
    """Store rows for a later publication; no reader sees them. -> {rows, bytes} of this attempt

    An attempt consists of pieces, each identified by the number of its first row (0 for the first
    one); a piece that is sent again replaces the earlier one.
    """

    query: Name
    epoch: Amount
    partition: Amount
    attempt: Name
    first_row: Amount
    rows: Annotated[list[NewMessage], msgspec.Meta(max_length=ROWS_MAX)]


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """An attempt to publish; `rows` is its number of rows, so that no row can be missing."""

    partition: Amount
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
    rows: Amount


class Publish(Request, tag="publish", frozen=True):
    """Send the rows of exactly these attempts, by partition, then row, all of them or none.

    -> {published: False if that was done before, messages, at_ms}

    The other stages of the query for this epoch and earlier ones are removed. The epochs of a query
    are published in ascending order.
    """

    query: Name
    epoch: Amount
    attempts: Annotated[list[Attempt], msgspec.Meta(max_length=ATTEMPTS_MAX)]


class DiscardStages(Request, tag="discard_stages", frozen=True):
    """Discard stages that are not published. -> {stages, rows, bytes}

    The request selects a query and epoch, or one attempt of it, or all stages above an age.
    """

    query: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    epoch: Amount | None = None
    partition: Amount | None = None
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    older_than_s: Amount = 0


class ListStages(Request, tag="list_stages", frozen=True):
    """List the stages. -> [{query, epoch, partition, attempt, rows, bytes, at_s}, ...]"""


class MarkShipped(Request, tag="mark_shipped", frozen=True):
    """Mark the log of events as shipped up to and including this block.

    With keep_unshipped in the section [events], these blocks may be deleted here from now on. ->
    the highest block that was ever marked
    """

    block: Amount


PipelineRequest = (
    OpenReader
    | Reserve
    | ReadRange
    | SplitRange
    | Consume
    | ListReaders
    | ReleaseReader
    | Stage
    | Publish
    | DiscardStages
    | ListStages
    | MarkShipped
)
add_verbs(PipelineRequest)
