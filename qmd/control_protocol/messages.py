"""Frames of the control socket: length-prefixed MessagePack, pipelined.

    frame = u32 little-endian length of the rest | one MessagePack array

A request is an array that begins with its verb and a number chosen by the caller; the reply repeats
the number. Replies may come in another order than the requests, so a caller may have many requests
in progress. A request that changes something is answered only after the change is on disk.

Both ends check every frame against the types below, and against those of the other modules of this
package, which `add_verbs` registers. A frame that does not match is answered with an error and the
connection stays open; a frame with a length above `FRAME_BYTES_MAX` closes it.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec

from qmd.control_protocol.frame_buffer import FRAME_BYTES_MAX as FRAME_BYTES_MAX
from qmd.control_protocol.frame_buffer import LENGTH
from qmd.control_protocol.frame_buffer import FrameBuffer as FrameBuffer
from qmd.control_protocol.frame_buffer import FrameError as FrameError

VERSION = 1
# In one request. Without it a frame of empty messages would take forty times its size in memory.
MESSAGES_MAX = 65_536
TOKEN_BYTES_MAX = 64
LENGTH_BYTES = 4
#: Longer frames are not copied behind their length.
LONG_BYTES = 64 * 1024

# Values of `delivery` in a new message. The first two are also the values on the wire.
EXPRESS = 0
RECOVERABLE = 1
TRANSACTIONAL = 2
AUTOMATIC = 3  # by the type of a local queue; recoverable for other queues

# `wait_s` of a request: how long it may wait for a message.
NO_WAIT = 0.0
FOREVER = -1.0

UNLIMITED = -1  # no quota

INFINITE_S = 0xFFFFFFFF  # a time-to-reach-queue or time-to-be-received without limit


Token = Annotated[bytes, msgspec.Meta(max_length=TOKEN_BYTES_MAX)]
TransactionId = Annotated[bytes, msgspec.Meta(max_length=16)]
LookupIds = Annotated[list[int], msgspec.Meta(max_length=MESSAGES_MAX)]
# Times and counts that are stored: integers of SQLite have 63 bits and a sign.
Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
MOMENT_MS_MAX = 253_402_300_799_999  # since 1970: the end of the year 9999
Moment = Annotated[int, msgspec.Meta(ge=0, le=MOMENT_MS_MAX)]


class NewMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message as submitted by an application. Times are in whole seconds."""

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
    message_class: int = 0  # application-defined; needs a connector type
    report_queue: str = ""  # the message is traced, and report messages go there
    dead_letter_queue: str = ""  # a local queue instead of the system's; never on the wire
    # Message security, [MS-MQMQ] 2.2.19.3, 2.2.20.6.
    signature: bytes = b""  # MSMQ 2.0, over the bytes of `SigningParts`
    certificate: bytes = b""  # of the signer, DER
    hash_algorithm: int = 0
    privacy_level: int = 0  # 5: the body is encrypted with AES
    encryption_algorithm: int = 0  # 0: the default
    encryption_key: bytes = b""  # not empty: the body is encrypted already
    # Not before: a time of the wall clock, or a delay from now on; 0: at once.  docs/delayed.md
    deliver_at_ms: Moment = 0
    delay_ms: Moment = 0


class StoredMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message as returned from a queue: the packet, and data stored beside it."""

    lookup_id: int
    arrived_at_ms: int
    packet: bytes
    reason: str | None = None
    abort_count: int = 0
    move_count: int = 0
    last_move_at_ms: int | None = None
    expires_at_s: int | None = None  # last second of its lifetime, by the queue manager's own clock


class ImportedMessage(msgspec.Struct, array_like=True, frozen=True):
    """An exported message, unchanged."""

    packet: bytes
    arrived_at_ms: Moment
    reason: str | None = None
    abort_count: Amount = 0
    move_count: Amount = 0
    last_move_at_ms: Moment | None = None
    expires_in_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = (
        None  # the rest of its lifetime; None: no limit
    )


class Choice(msgspec.Struct, array_like=True, frozen=True):
    """Selection of messages of a queue; omitted fields match every message.

    A message id is the GUID and the number of its source: 20 bytes, as in a correlation id. Label,
    reason and destination match as substrings without regard to case; the class is named as in
    `peek`.
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
    where: str = ""  # a selector: qmd/core/selectors


EVERY_MESSAGE = Choice()


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Piece of a queue that one request processes.

    It has at most `limit` messages from lookup id `start` on, only those that had arrived when the
    first piece was requested: that is `until` in its answer, and 0 in the request.
    """

    limit: int = MESSAGES_MAX
    start: Amount = 0
    until: Amount = 0


class RetryProperties(msgspec.Struct, array_like=True, frozen=True):
    """A retry policy, or changes of one: fields that are None stay, or are the default.

    With 0 `attempts`, the number of attempts has no limit; `off` removes the policy.
    """

    attempts: int | None = None  # deliveries until the message ends; default 10
    immediate: int | None = None  # attempts that follow at once, before each wait; default 0
    delay_s: float | None = None  # the first wait in `;retry`; default 1 s
    factor: float | None = None  # of each wait to the next; default 2
    delay_max_s: float | None = None  # default 1 h, or the first wait
    jitter: float | None = None  # the part by which waits differ; default 0.2
    end: str | None = None  # "poison" (default), "dead-letter" or "stay"
    off: bool = False


class Request(msgspec.Struct, array_like=True, frozen=True):
    number: int


class Hello(Request, tag="hello", frozen=True):
    """Open the protocol. -> {version, queue_manager, name}"""

    version: int = VERSION


class Login(Request, tag="login", frozen=True):
    """Log in: the first request of a TCP connection, equivalent to `Hello` on the control socket.

    -> as `Hello`, and {scopes, token: its name}
    """

    version: int = VERSION
    token: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Send(Request, tag="send", frozen=True):
    """Store all of the messages or none, in this order. -> [message id as text, ...]

    A message to several queues has an id for each of its copies: its entry is a list of ids.

    With a token, `Outcome` can query the result later, so that a request with a lost answer is not
    executed twice. With `once`, a known token gets the earlier answer, and nothing is sent again.
    With a transaction, nothing is sent before it commits.

    A message with a later time of delivery is stored, and sent to its queue at that time.
    Express messages are not stored: if a queue of here is deleted while many of them are sent,
    those before it were sent.
    """

    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    token: Token = b""
    transaction: TransactionId = b""
    once: bool = False


class Take(Request, tag="take", frozen=True):
    """Take up to `limit` messages; they are hidden from other receivers until they are settled.

    -> [StoredMessage, ...], empty when the time expired

    The messages return to their place when this connection ends, or with `GiveBack`. In a
    transaction its end settles them: commit removes them, abort puts them back.
    """

    queue: str
    limit: int = 1
    wait_s: float = NO_WAIT
    transaction: TransactionId = b""


class TakeChosen(Request, tag="take_chosen", frozen=True):
    """Take messages from any place in the queue, as `Take` does. -> [StoredMessage, ...]"""

    queue: str
    choice: Choice
    limit: int = 1
    wait_s: float = NO_WAIT
    transaction: TransactionId = b""


class Look(Request, tag="look", frozen=True):
    """Look at one message, taken or not. -> [StoredMessage], or []

    `which` selects the message at a lookup id ("this"), beside it ("next", "previous"), or at an
    end of the queue ("first", "last").
    """

    queue: str
    which: str
    lookup_id: int = 0


class OpenExclusive(Request, tag="open_exclusive", frozen=True):
    """Open a queue exclusively: until this connection ends, no other receives from the queue."""

    queue: str


class CloseExclusive(Request, tag="close_exclusive", frozen=True):
    """Close a queue that was opened exclusively; other connections may receive again."""

    queue: str


class Remove(Request, tag="remove", frozen=True):
    """Remove messages that this connection took, with one commit. -> their number

    `Reject` and `GiveBack` end more than 1,024 with several commits: the answer, and the outcome of
    the token, come with the last one.  If the daemon ends before, the messages of later commits are
    at their places again.
    """

    queue: str
    lookup_ids: LookupIds
    token: Token = b""


class Reject(Request, tag="reject", frozen=True):
    """Remove messages that this connection took, as rejected by their application. -> their number

    Their senders are notified; messages that no sender keeps go to a dead-letter queue here.
    """

    queue: str
    lookup_ids: LookupIds
    reason: str = ""
    token: Token = b""


class GiveBack(Request, tag="give_back", frozen=True):
    """Put messages that this connection took back to their place. -> their number

    `failed`: their processing failed. That counts as an attempt, and the retry policy of the queue
    applies, or `retry` instead of it; the answer comes after the commit.
    """

    queue: str
    lookup_ids: LookupIds
    failed: bool = False
    reason: str = ""
    retry: RetryProperties | None = None


class Peek(Request, tag="peek", frozen=True):
    """Look at messages from lookup id `start` on, in order. -> [StoredMessage, ...]

    With a selector, `where`, only those that match it.
    """

    queue: str
    start: int = 0
    limit: int = 1
    wait_s: float = NO_WAIT
    where: str = ""


class Move(Request, tag="move", frozen=True):
    """Move messages to another queue of this computer, all of the piece in one commit.

    -> {messages, bytes, taken: skipped because a receiver has them, next: where the next piece
    starts, or None, until}

    A subqueue is created by the first move to it. A dead letter that leaves its dead-letter queue
    is a normal message again. A dry run returns the same and changes nothing.
    """

    queue: str
    target: str
    choice: Choice = EVERY_MESSAGE
    piece: Piece = Piece()
    dry_run: bool = False
    token: Token = b""


class Resend(Request, tag="resend", frozen=True):
    """Send messages again as new ones, and remove the old ones, all of the piece in one commit.

    -> {messages, bytes, taken, next, until, ids, destinations}; ids and destinations are those of
    the new messages, and are missing in the answer to a repeated request.

    The destination is the original one, or `to`; label and body can be changed. If the old message
    has no correlation id, its message id becomes the new one's correlation id. `keep`: the old
    messages stay.
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


class Import(Request, tag="import", frozen=True):
    """Put exported messages into a queue, all of them in one commit. -> {messages, bytes}"""

    queue: str
    messages: Annotated[list[ImportedMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    dry_run: bool = False
    token: Token = b""


class Outcome(Request, tag="outcome", frozen=True):
    """Query the result of an earlier request. -> its answer, or None: it was not executed"""

    token: Token


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
    | Import
    | Outcome
)


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """The answer to request `number`; the class of its verb describes `result`."""

    number: int
    result: Any = None


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """The error answer: request `number` was not executed.

    `code` is for programs, the rest for people. Codes and ids are those of `qmd.catalogue`.
    """

    number: int
    code: str
    text: str
    remedy: str = ""
    id: str = ""


Reply = Done | Refused


class _Head(msgspec.Struct, array_like=True):
    """The beginning of any request; the rest is skipped."""

    verb: str
    number: int


_encoder = msgspec.msgpack.Encoder()
_all_requests: Any = AnyRequest  # including those of other modules, see `add_verbs`
_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyRequest)
_replies: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Reply)
_heads = msgspec.msgpack.Decoder(_Head)


def frame(value: msgspec.Struct) -> bytes:
    """Return a request or reply as a frame, including its length."""
    data = _encoder.encode(value)
    return LENGTH.pack(len(data)) + data


def buffers(value: msgspec.Struct) -> tuple[bytes, ...]:
    """Return the buffers of a frame: one, or two if it is long, so that it is not copied behind its
    length."""
    data = _encoder.encode(value)
    length = LENGTH.pack(len(data))
    return (length + data,) if len(data) < LONG_BYTES else (length, data)


def large_frame(value: msgspec.Struct) -> bytearray:
    """Return what `frame` returns, for a value of megabytes: it is not copied behind its length."""
    found = bytearray(LENGTH.size)
    _encoder.encode_into(value, found, LENGTH.size)
    LENGTH.pack_into(found, 0, len(found) - LENGTH.size)
    return found


def decode_request(data: bytes | memoryview) -> Request:
    """Decode a request.

    Raises msgspec.ValidationError or msgspec.DecodeError with the place of the error.
    """
    request: Request = _decode(_requests, data)
    return request


def add_verbs(verbs: Any) -> None:
    """Register requests of another module, one class or a union, for decoding."""
    global _all_requests, _requests
    _all_requests = _all_requests | verbs
    _requests = msgspec.msgpack.Decoder(_all_requests)


def all_verbs() -> tuple[type[Request], ...]:
    """Return the classes of all requests, including those of other modules."""
    return get_args(_all_requests)


def verb_of(request: Request | type[Request]) -> str:
    """Return the verb of a request, or of a class of requests."""
    return str(request.__struct_config__.tag)


def decode_reply(data: bytes | memoryview) -> Reply:
    """Decode a reply.

    Raises msgspec.ValidationError or msgspec.DecodeError with the place of the error.
    """
    reply: Reply = _decode(_replies, data)
    return reply


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (RecursionError, UnicodeDecodeError) as error:
        # Deeply nested arrays, or text that is not UTF-8.
        raise msgspec.DecodeError(str(error)) from error


def stored_messages(result: Any) -> list[StoredMessage]:
    """Convert the result of `Take` or `Peek` to messages."""
    return msgspec.convert(result, list[StoredMessage])


def request_number(data: bytes | memoryview) -> int:
    """Return the number of a request that could not be decoded, to answer it; 0: unknown."""
    try:
        head: _Head = _decode(_heads, data)
    except msgspec.DecodeError:
        return 0
    return head.number
