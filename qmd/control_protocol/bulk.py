"""What the control socket speaks for data pipelines: reserved ranges, range reads, stages.

The verbs that `qmd/control_protocol/messages.py` has no room for; docs/decisions/0019 says why they
are as they are.

A *reader* is a name that a pipeline chose, and a fence: each opening gives a higher one, and every
later request with a lower one is refused.  A reader counts the messages of each of its queues for
itself, 1, 2, 3 ..., in the order of their arrival as far as they were ready: that number is the
*position*, it is given when a message is reserved, and never to another.

A queue is named by its id, a GUID as text, wherever something of it is remembered: one that was
deleted and made anew has another.  `OpenReader` tells the ids.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    Amount,
    Choice,
    NewMessage,
    Request,
    add_verbs,
)

NAME_CHARACTERS_MAX = 200
QUEUES_MAX = 1000  # of one reader
ROWS_MAX = 65_536  # in one frame
ATTEMPTS_MAX = 65_536  # in one publication

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
QueueName = Annotated[str, msgspec.Meta(max_length=2000)]


class OpenReader(Request, tag="open_reader", frozen=True):
    """Begin a run of a reader: older runs of it can do nothing any more from now on.

    -> {reader, fence, queues: [{queue: its id, name, position: consumed up to it, reserved: up to
    it, shared}, ...]}, in the order asked for.  Queues by any spelling or id.

    `shared`: its messages stay in the queue when they are consumed, and other shared readers of the
    queue see them all; else its readers compete, and what is consumed is received.  A new reader
    begins with the oldest message (`start` "oldest") or with what arrives from now on ("newest").
    """

    reader: Name
    queues: Annotated[list[QueueName], msgspec.Meta(max_length=QUEUES_MAX)]
    shared: bool = False
    start: str = "oldest"


class Reserve(Request, tag="reserve", frozen=True):
    """Fix what comes behind the position `start`: at most so many messages and bytes of packets.

    -> {end, messages, bytes, more}: positions `start` + 1 to `end` are the reader's, on disk, until
    they are consumed or released; `end` is `start` when nothing is ready.  What an earlier request
    reserved behind `start` is given first, so a request whose answer was lost can be repeated.
    `more`: something is ready behind `end`, reserved or not.
    """

    reader: Name
    fence: int
    queue: QueueName
    start: Amount
    messages_max: int = ROWS_MAX
    bytes_max: int = 0  # 0: no limit
    one_always: bool = True  # of what is ready, though it alone has more bytes


class Filter(msgspec.Struct, array_like=True, frozen=True):
    """Which messages of a range are wanted.  Applied in the queue manager; texts are parts, in any
    case of their letters, so a caller that wants exact ones looks again."""

    choice: Choice = EVERY_MESSAGE
    # Of transactional messages: the sequence, and the first and last number in it that is wanted.
    sequence_id: int | None = None  # 64 bits without a sign
    sequence_from: Amount | None = None
    sequence_until: Amount | None = None


EVERYTHING = Filter()


class ReadRange(Request, tag="read_range", frozen=True):
    """Messages behind `after` up to `until`, in order; nothing is taken.  -> `Rows`, as an array

    With a reader: its reserved positions (no fence is asked for: executors read).  Without one: all
    messages that are there, by arrival number (the lower 44 bits of their lookup ids), of any
    queue: also journals, dead-letter queues, subqueues; `until` 0 is all that have arrived by now.
    """

    queue: QueueName
    after: Amount = 0
    until: Amount = 0
    limit: int = ROWS_MAX
    bytes_max: int = 8 * 1024 * 1024  # of packets in this answer; one message is always given
    reader: str = ""
    filter: Filter = EVERYTHING
    bodies: bool = True  # else packets end where their bodies begin


class Rows(msgspec.Struct, array_like=True, frozen=True):
    """Messages in columns.  Numbers are little-endian, one behind the other, without gaps.

    `next`: where the next request begins (its `after`), or None: that was all up to `until`.
    Of packet i: packets[offsets[i]:offsets[i + 1]]; there is one offset more than messages.
    In whole numbers of 8 bytes -1 stands for none.
    """

    count: int
    next: int | None
    until: int
    positions: bytes  # 8 bytes each: of the reader, or arrival numbers
    lookup_ids: bytes  # 8 bytes each
    arrived_at_ms: bytes  # 8 bytes each
    expires_at_s: bytes  # 8 bytes each; by the queue manager's own clock
    abort_counts: bytes  # 4 bytes each
    move_counts: bytes  # 4 bytes each
    offsets: bytes  # 4 bytes each
    packets: bytes
    reasons: list[str | None] | None = None  # None: none of them has one


class SplitRange(Request, tag="split_range", frozen=True):
    """How a range of a queue can be read in parts of about as many messages.

    -> {queue: its id, until, messages, bytes, ranges: [[after, until, messages], ...]}; by arrival
    number, as `ReadRange` without a reader.  `until` 0 fixes it: all that have arrived by now.
    """

    queue: QueueName
    parts: int = 1
    after: Amount = 0
    until: Amount = 0


class Consume(Request, tag="consume", frozen=True):
    """The reader is done with its messages up to these positions, by queue id.

    They leave their queue as if they had been received, and their senders are told so; those of a
    shared reader stay.  What was consumed before is not consumed again.  -> {messages, bytes}
    """

    reader: Name
    fence: int
    ends: dict[str, Amount]


class ListReaders(Request, tag="list_readers", frozen=True):
    """-> [{reader, fence, queue, name, shared, position, reserved, messages, bytes, opened_at_s,
    heard_at_s, reserved_since_s, consumed_messages, ...}, ...], one for each queue of a reader"""


class ReleaseReader(Request, tag="release_reader", frozen=True):
    """Forget a reader, or what it has to do with one queue: what it reserved is ready again.

    For operators.  A run of it that is still alive is refused from now on.  The positions that were
    reserved are used up: a checkpoint that has to read them again is told so.  `forget`: nothing is
    known of the reader afterwards, and one of that name begins anew.  -> {messages, bytes}
    """

    reader: Name
    queue: QueueName = ""
    dry_run: bool = False
    forget: bool = False


class Stage(Request, tag="stage", frozen=True):
    """Keep rows for a later publication; nobody sees them.  -> {rows, bytes} of this attempt

    An attempt is made of pieces, each known by the number of its first row (0 for the first one);
    a piece that comes again takes the place of the one before.
    """

    query: Name
    epoch: Amount
    partition: Amount
    attempt: Name
    first_row: Amount
    rows: Annotated[list[NewMessage], msgspec.Meta(max_length=ROWS_MAX)]


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """One that is to be published; `rows`: how many it has, so that none can be missing."""

    partition: Amount
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
    rows: Amount


class Publish(Request, tag="publish", frozen=True):
    """Send the rows of exactly these attempts, by partition, then row, all of them or none.

    -> {published: False if that was done before, messages, at_ms}; and of a query's other stages of
    this epoch or an earlier one nothing is left.  Of a query, epochs are published in ascending
    order.
    """

    query: Name
    epoch: Amount
    attempts: Annotated[list[Attempt], msgspec.Meta(max_length=ATTEMPTS_MAX)]


class DiscardStages(Request, tag="discard_stages", frozen=True):
    """Remove what was staged and not published: of a query and epoch, or of one attempt of it, or
    all that is older.  -> {stages, rows, bytes}"""

    query: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    epoch: Amount | None = None
    partition: Amount | None = None
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    older_than_s: Amount = 0


class ListStages(Request, tag="list_stages", frozen=True):
    """-> [{query, epoch, partition, attempt, rows, bytes, at_s}, ...]"""


class MarkShipped(Request, tag="mark_shipped", frozen=True):
    """The log of events is elsewhere up to and with this block: with keep_unshipped in the section
    [events] it may be forgotten here now.  -> the highest block that was ever marked"""

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
