"""What the control socket speaks: length-prefixed MessagePack frames, pipelined.

    frame = u32 little-endian length of the rest | one MessagePack array

A request is an array that begins with its verb and the caller's number for it;
the reply repeats the number.  Replies may come in another order than the
requests, so a caller may have many requests under way.  A request that changes
something is answered only after the change is on disk.

Both ends check every frame against the types below; a frame that does not fit
is answered with an error and the connection stays, one whose length is over
`FRAME_BYTES_MAX` ends it.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, get_args

import msgspec

VERSION = 1
FRAME_BYTES_MAX = 64 * 1024 * 1024  # a batch of messages; one body is at most 4 MB
# In one request.  Without it a frame of empty messages would take forty times its size in memory.
MESSAGES_MAX = 65_536
TOKEN_BYTES_MAX = 64
LENGTH_BYTES = 4
_LENGTH = struct.Struct("<I")

# The `delivery` of a new message.  The first two are also the wire's values.
EXPRESS = 0
RECOVERABLE = 1
TRANSACTIONAL = 2
AUTOMATIC = 3  # by the kind of the queue where it is ours; recoverable where it is not

# `wait_s` of a request: how long it may wait for a message.
NO_WAIT = 0.0
FOREVER = -1.0

UNLIMITED = -1  # a quota that is none

INFINITE_S = 0xFFFFFFFF  # a time-to-reach-queue or time-to-be-received without an end


Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES_MAX)]
TransactionId = Annotated[bytes, msgspec.Meta(max_length=16)]
LookupIds = Annotated[list[int], msgspec.Meta(max_length=MESSAGES_MAX)]
# Times and counts that go to disk: SQLite's numbers have 63 bits and a sign.
Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
MOMENT_MS_MAX = 253_402_300_799_999  # since 1970: the end of the year 9999
Moment = Annotated[int, msgspec.Meta(ge=0, le=MOMENT_MS_MAX)]


class NewMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message as an application hands it over.  Times are in whole seconds."""

    destination: str
    body: bytes
    label: str = ""
    delivery: int = AUTOMATIC
    priority: int = 3
    time_to_reach_queue_s: int | None = None
    time_to_be_received_s: int | None = None
    dead_letter: bool | None = None  # None: kept here if it fails, and see `Confirmations.asks`
    journal: bool = False
    body_type: int = 0
    correlation_id: bytes = b""
    application_tag: int = 0
    extension: bytes = b""
    response_queue: str = ""
    admin_queue: str = ""
    acknowledge: int = 0  # the bits of MessagePropertiesHeader.Flags
    sender_id: bytes = b""  # a SID, [MS-DTYP] 2.4.2; proves nothing without a signature
    connector_type: bytes = b""  # a GUID's 16 bytes
    message_class: int = 0  # of an application's own; needs a connector type
    report_queue: str = ""  # the message is traced, and report messages go there
    dead_letter_queue: str = ""  # of ours; instead of the system's, never on the wire


class StoredMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message as a queue gives it: the packet, and what is known beside it."""

    lookup_id: int
    arrived_at_ms: int
    packet: bytes
    reason: str | None = None
    abort_count: int = 0
    move_count: int = 0
    last_move_at_ms: int | None = None
    expires_at_s: int | None = None  # the last second of its life, by the queue manager's own clock


class ImportedMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message that was exported, as it was."""

    packet: bytes
    arrived_at_ms: Moment
    reason: str | None = None
    abort_count: Amount = 0
    move_count: Amount = 0
    last_move_at_ms: Moment | None = None
    expires_in_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = (
        None  # what was left of its life; None: it has no end
    )


class Choice(msgspec.Struct, array_like=True, frozen=True):
    """Which messages of a queue are meant; what is left out does not matter.

    A message id is its source's GUID and its number: 20 bytes, as in a correlation id.  Of label,
    reason and destination a part will do, in any case; the class is named as `peek` shows it.
    """

    lookup_ids: LookupIds = []
    message_ids: Annotated[list[bytes], msgspec.Meta(max_length=MESSAGES_MAX)] = []
    label: str = ""
    reason: str = ""
    message_class: str = ""
    destination: str = ""
    arrived_before_ms: int | None = None
    arrived_after_ms: int | None = None
    correlation_ids: Annotated[list[bytes], msgspec.Meta(max_length=MESSAGES_MAX)] = []


EVERY_MESSAGE = Choice()


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """How much of a queue one request is about.

    At most `limit` messages from lookup id `start` on, of those that had arrived when the first
    piece was asked for: that is `until` in its answer, and 0 in the question.
    """

    limit: int = MESSAGES_MAX
    start: Amount = 0
    until: Amount = 0


class Request(msgspec.Struct, array_like=True, frozen=True):
    number: int


class Hello(Request, tag="hello", frozen=True):
    """-> {version, queue_manager, name}"""

    version: int = VERSION


class Login(Request, tag="login", frozen=True):
    """The first request of a connection over TCP; on the control socket it says no more than hello.

    -> as `Hello`, and {scopes, token: its name}
    """

    version: int = VERSION
    token: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Send(Request, tag="send", frozen=True):
    """Store all of the messages or none, in this order.  -> [message id as text, ...]

    A message to several queues has an id for each of its copies: there it is a list of them.

    With a token the request can be asked about later (`Outcome`), so that one
    whose answer was lost is not done twice.  With `once`, a token that was there
    before is answered as it was then, and nothing is sent again.  With a
    transaction nothing is sent before it commits.
    """

    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    token: Token = b""
    transaction: TransactionId = b""
    once: bool = False


class Take(Request, tag="take", frozen=True):
    """Take up to `limit` messages; nobody else sees them until they are settled.

    -> [StoredMessage, ...], empty when the time ran out.  They go back to their
    old place when this connection ends, or with `GiveBack`.  In a transaction its
    end settles them: commit removes them, abort puts them back.
    """

    queue: str
    limit: int = 1
    wait_s: float = NO_WAIT
    transaction: TransactionId = b""


class TakeChosen(Request, tag="take_chosen", frozen=True):
    """Take messages wherever they stand; else as `Take`.  -> [StoredMessage, ...]"""

    queue: str
    choice: Choice
    limit: int = 1
    wait_s: float = NO_WAIT
    transaction: TransactionId = b""


class Look(Request, tag="look", frozen=True):
    """The message at a lookup id (`which` is "this"), or beside it ("next", "previous"), or at an
    end of the queue ("first", "last"), taken or not.  -> [StoredMessage], or []"""

    queue: str
    which: str
    lookup_id: int = 0


class OpenExclusive(Request, tag="open_exclusive", frozen=True):
    """From now on, and as long as this connection lives, nobody else receives from the queue."""

    queue: str


class CloseExclusive(Request, tag="close_exclusive", frozen=True):
    """Others may receive again."""

    queue: str


class Remove(Request, tag="remove", frozen=True):
    """Remove messages that this connection took, for good.  -> their number"""

    queue: str
    lookup_ids: LookupIds
    token: Token = b""


class Reject(Request, tag="reject", frozen=True):
    """Remove messages that this connection took, as rejected by their application.  -> their number

    Their senders are told so; what no sender keeps goes to a dead-letter queue here.
    """

    queue: str
    lookup_ids: LookupIds
    reason: str = ""
    token: Token = b""


class GiveBack(Request, tag="give_back", frozen=True):
    """Put messages that this connection took back to their old place.  -> their number"""

    queue: str
    lookup_ids: LookupIds


class Peek(Request, tag="peek", frozen=True):
    """Look at messages from lookup id `start` on, in order.  -> [StoredMessage, ...]"""

    queue: str
    start: int = 0
    limit: int = 1
    wait_s: float = NO_WAIT


class Move(Request, tag="move", frozen=True):
    """Move messages to another queue of this computer, all of the piece in one commit.

    A subqueue is created by the first move to it.  A dead letter that leaves its dead-letter queue
    is a normal message again.  -> {messages, bytes, taken: passed over because somebody has them,
    next: where the next piece starts, or None, until}.  A dry run says the same and does nothing.
    """

    queue: str
    target: str
    choice: Choice = EVERY_MESSAGE
    piece: Piece = Piece()
    dry_run: bool = False
    token: Token = b""


class Resend(Request, tag="resend", frozen=True):
    """Send messages again as new ones, and remove the old ones, all of the piece in one commit.

    To where they were sent, or `to`; label and body can be changed.  The old message's id is the
    new one's correlation id where there was none.  `keep`: the old ones stay.
    -> {messages, bytes, taken, next, until, ids}
    """

    queue: str
    choice: Choice = EVERY_MESSAGE
    piece: Piece = Piece()
    to: str = ""
    label: str | None = None
    body: bytes | None = None
    keep: bool = False
    dry_run: bool = False
    token: Token = b""


class DeadLetters(Request, tag="dead_letters", frozen=True):
    """What is in a dead-letter queue, grouped by why.

    -> [{queue, class, destination, reason, messages, bytes, oldest_at_ms, ...}, ...]
    """

    queue: str


class Import(Request, tag="import", frozen=True):
    """Put exported messages into a queue, all of them in one commit.  -> {messages, bytes}"""

    queue: str
    messages: Annotated[list[ImportedMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    dry_run: bool = False
    token: Token = b""


class Outcome(Request, tag="outcome", frozen=True):
    """What became of an earlier request.  -> its answer, or None: it was not done"""

    token: Token


class Begin(Request, tag="begin", frozen=True):
    """Begin a transaction of this connection; the caller chooses its id.

    It is aborted when nothing is heard of it for `idle_s` (0: the daemon's limit).
    """

    transaction: TransactionId
    idle_s: float = 0.0


class Settle(Request, tag="settle", frozen=True):
    """What the transaction's commit does with messages that it received: instead of removing them
    it moves them to the queue `target`, or, without one, rejects them; the history of each says the
    reason.  -> their number"""

    transaction: TransactionId
    queue: str
    lookup_ids: LookupIds
    target: str = ""
    reason: str = ""


class Commit(Request, tag="commit", frozen=True):
    """Everything of the transaction is done, as one.  -> [message id of what was sent, ...]

    `Outcome` with its id gives the same later, or None: nothing of it was done, and never will be.
    """

    transaction: TransactionId


class Abort(Request, tag="abort", frozen=True):
    """Nothing of the transaction is done.  -> how many messages went back to their queues

    `unread`: its application has not looked at what it received, so this is no attempt of it: the
    abort counts stay.
    """

    transaction: TransactionId
    reason: str = ""
    unread: bool = False


class Enlist(Request, tag="enlist", frozen=True):
    """A database is about to take part in the transaction, under a name that it always has."""

    transaction: TransactionId
    resource: str


class ForgetBranch(Request, tag="forget_branch", frozen=True):
    """The database has committed or rolled back, as was decided.  -> 1, or 0: it was forgotten"""

    transaction: TransactionId
    resource: str


class ListBranches(Request, tag="list_branches", frozen=True):
    """-> [{transaction, resource, decision, age_s}, ...] of databases that may not have heard"""


class ListTransactions(Request, tag="list_transactions", frozen=True):
    """-> [{transaction, age_s, idle_s, sent, received, ...}, ...] of those under way"""


AnyRequest = (
    Hello
    | Login
    | Send
    | Take
    | TakeChosen
    | Look
    | OpenExclusive
    | CloseExclusive
    | Remove
    | Reject
    | GiveBack
    | Peek
    | Move
    | Resend
    | DeadLetters
    | Import
    | Outcome
    | Begin
    | Settle
    | Commit
    | Abort
    | Enlist
    | ForgetBranch
    | ListBranches
    | ListTransactions
)


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """The answer to request `number`; what `result` is, its verb's class says."""

    number: int
    result: Any = None


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """Request `number` was not done.  `code` is for programs, the rest for people.

    Codes and ids are those of `qmd.catalogue`.
    """

    number: int
    code: str
    text: str
    remedy: str = ""
    id: str = ""


Reply = Done | Refused


class _Head(msgspec.Struct, array_like=True):
    """The beginning of any request; what follows is passed over."""

    verb: str
    number: int


_encoder = msgspec.msgpack.Encoder()
_all_requests: Any = AnyRequest  # and those of other modules, see `add_verbs`
_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyRequest)
_replies: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Reply)
_heads = msgspec.msgpack.Decoder(_Head)


class FrameError(Exception):
    """The bytes cannot be a frame: the connection has to end."""


def frame(value: msgspec.Struct) -> bytes:
    """A request or reply as a frame, length and all."""
    data = _encoder.encode(value)
    return _LENGTH.pack(len(data)) + data


def decode_request(data: bytes | memoryview) -> Request:
    """Raises msgspec.ValidationError or msgspec.DecodeError with the place of the fault."""
    request: Request = _decode(_requests, data)
    return request


def add_verbs(verbs: Any) -> None:
    """Requests of another module, one or a union of them: from now on they are decoded too."""
    global _all_requests, _requests
    _all_requests = _all_requests | verbs
    _requests = msgspec.msgpack.Decoder(_all_requests)


def all_verbs() -> tuple[type[Request], ...]:
    """The classes of all requests, those of other modules too."""
    return get_args(_all_requests)


def verb_of(request: Request | type[Request]) -> str:
    """The verb of a request, or of a class of them."""
    return str(request.__struct_config__.tag)


def decode_reply(data: bytes | memoryview) -> Reply:
    """Raises msgspec.ValidationError or msgspec.DecodeError with the place of the fault."""
    reply: Reply = _decode(_replies, data)
    return reply


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (RecursionError, UnicodeDecodeError) as error:
        # Arrays in arrays in arrays, or text that is not UTF-8.
        raise msgspec.DecodeError(str(error)) from error


def stored_messages(result: Any) -> list[StoredMessage]:
    """The result of `Take` or `Peek`, as the messages they are."""
    return msgspec.convert(result, list[StoredMessage])


def request_number(data: bytes | memoryview) -> int:
    """The number of a request that could not be decoded, or 0: to answer it all the same."""
    try:
        head: _Head = _decode(_heads, data)
    except msgspec.DecodeError:
        return 0
    return head.number


class FrameBuffer:
    """Bytes in pieces in, the insides of whole frames out."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._wanted = 0  # below this many bytes `_rest` holds no whole frame

    @property
    def wanted_bytes(self) -> int:
        """How long the frame is that is not whole yet, as far as that is known."""
        return self._wanted

    def set_limit(self, frame_bytes_max: int) -> None:
        """For the frames that come from now on."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> list[memoryview]:
        """The frames that are whole now.  Raises FrameError for a length over the limit."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        view, end, start = memoryview(data), len(data), 0
        frames: list[memoryview] = []
        while start + 4 <= end:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > self._frame_bytes_max:
                raise FrameError(
                    f"a frame of {length} bytes was announced; at most"
                    f" {self._frame_bytes_max} are accepted"
                )
            if start + 4 + length > end:
                self._wanted = 4 + length
                break
            frames.append(view[start + 4 : start + 4 + length])
            start += 4 + length
        else:
            self._wanted = 4
        self._rest += data[start:]
        return frames
