"""Requests about queues, outgoing queues, sessions and histories."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    NO_WAIT,
    Choice,
    Piece,
    Request,
    RetryProperties,
    add_verbs,
)


class CreateQueue(Request, tag="create_queue", frozen=True):
    """Create a queue. -> the queue, as in `ShowQueue`"""

    name: str
    transactional: bool = False
    label: str = ""
    journal: bool = False
    quota_bytes: int | None = None  # None: the configured quota; UNLIMITED: no quota
    journal_quota_bytes: int | None = None  # the same
    public: bool = False  # registered in the directory
    authenticate: bool = False  # it takes signed messages only
    privacy: str = "optional"  # or none, body: the encrypted messages that it takes
    retry: RetryProperties | None = None  # None: failed messages return to their place at once
    groups: bool = False  # the messages of a group go to one reader at a time


class SetQueue(Request, tag="set_queue", frozen=True):
    """Change a queue; fields that are None stay unchanged. -> the queue, as in `ShowQueue`"""

    name: str
    quota_bytes: int | None = None  # UNLIMITED: no limit
    journal_quota_bytes: int | None = None  # the same
    journal: bool | None = None
    label: str | None = None
    authenticate: bool | None = None
    privacy: str | None = None
    retry: RetryProperties | None = None
    groups: bool | None = None


class DeleteQueue(Request, tag="delete_queue", frozen=True):
    """Delete a queue with its subqueues and its journal. -> {messages, bytes}: deleted with it

    A dry run returns the same and changes nothing.
    """

    name: str
    dry_run: bool = False


class PurgeQueue(Request, tag="purge_queue", frozen=True):
    """Remove messages, and notify senders that requested it. -> {messages, bytes, taken}

    `taken`: how many stay because a receiver has them. A dry run returns the same. With a piece,
    only that part of the messages is purged, as one commit. -> {..., next, until}
    """

    name: str
    choice: Choice = EVERY_MESSAGE
    dry_run: bool = False
    piece: Piece | None = None


class ListQueues(Request, tag="list_queues", frozen=True):
    """List the queues, system queues only on request. -> [queue, ...]"""

    system: bool = False


class ShowQueue(Request, tag="show_queue", frozen=True):
    """Show a queue.

    -> {name, format_name, label, transactional, journal, quota_bytes, messages, bytes, ...}
    """

    name: str


class DeadLetters(Request, tag="dead_letters", frozen=True):
    """Summarize a dead-letter queue, grouped by reason.

    -> [{queue, class, destination, reason, messages, bytes, oldest_at_ms, ...}, ...]
    """

    queue: str


class ListOutgoing(Request, tag="list_outgoing", frozen=True):
    """List the outgoing queues.

    -> [outgoing queue, ...]: {destination, address, state, messages, bytes, ...}
    """


class ShowOutgoing(Request, tag="show_outgoing", frozen=True):
    """Show an outgoing queue with its sequence and the history of its connection."""

    destination: str


class PeekOutgoing(Request, tag="peek_outgoing", frozen=True):
    """List messages that wait for a destination or for its acknowledgment, in the order of sending.

    -> {messages: [{id, label, state, delivery, bytes, ...}, ...], next: a lookup id, or None}

    `state` is waiting or unacknowledged: sent, but not acknowledged yet.  With `text` only messages
    with this text in label or id are listed, without regard to case.  The list begins with the
    lookup id `start`.  `next` is where it continues; None: it is at the end.
    """

    destination: str
    start: int = 0
    limit: int = 1000
    text: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ListAwaiting(Request, tag="list_awaiting", frozen=True):
    """List messages that arrived at a destination and are kept until receipt is confirmed.

    -> [{id, number, label, bytes, waits_since_s, given_up_in_s, ...}, ...]

    The list begins with the message number `start`.
    """

    destination: str
    start: int = 0
    limit: int = 1000


class GiveUpAwaiting(Request, tag="give_up_awaiting", frozen=True):
    """Stop waiting for confirmations: unconfirmed messages that arrived become dead letters.

    -> {messages}
    """

    destination: str


class PauseOutgoing(Request, tag="pause_outgoing", frozen=True):
    destination: str


class ResumeOutgoing(Request, tag="resume_outgoing", frozen=True):
    destination: str


class KickOutgoing(Request, tag="kick_outgoing", frozen=True):
    """Connect now, and resend all unacknowledged messages."""

    destination: str


class PurgeOutgoing(Request, tag="purge_outgoing", frozen=True):
    """Purge the messages that wait for a destination. -> {messages}"""

    destination: str


class ListSequences(Request, tag="list_sequences", frozen=True):
    """List the sequences. -> [{direction, peer or destination, queue, id, number, ...}, ...]"""


class ListSessions(Request, tag="list_sessions", frozen=True):
    """List the sessions. -> [{peer, address, role, state, sent, received, ...}, ...]"""


class Status(Request, tag="status", frozen=True):
    """Return the status of the queue manager.

    -> {name, queue_manager, version, uptime_s, listen, queues, messages, ...}
    """


class Why(Request, tag="why", frozen=True):
    """Explain what happened to a message, given its id or lookup id.

    -> {message_id, host, state, sentences, remedies, places, events, peers, ...}
    """

    message: Annotated[str, msgspec.Meta(max_length=200)]
    queue: str = ""
    ask: bool = True  # query the queue manager at the other end too


class Events(Request, tag="events", frozen=True):
    """Read the history of all messages, one entry for each event.

    -> {events: [...], cursor: where to continue, end: nothing more is there now, missing_blocks}

    The result begins at `cursor` or a time, or has the last events.
    """

    cursor: Annotated[str, msgspec.Meta(max_length=64)] = ""
    limit: int = 1000
    last: int = 0
    queue: str = ""
    kinds: Annotated[list[str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    since_ms: int = 0
    until_ms: int = 0
    wait_s: float = NO_WAIT


class Inventory(Request, tag="inventory", frozen=True):
    """Name all stored messages at one position of the event log.

    -> {host, queue_manager, block, at_ms, queues: [{table, queue, source, numbers}]}

    `block` is the newest block of the log then.  `table` is message, outgoing or awaiting.
    `numbers` has the number of each message of `source`, a GUID: four bytes each, lowest first.
    """


OperatorRequest = (
    CreateQueue
    | SetQueue
    | DeleteQueue
    | PurgeQueue
    | ListQueues
    | ShowQueue
    | DeadLetters
    | ListOutgoing
    | ShowOutgoing
    | PeekOutgoing
    | ListAwaiting
    | GiveUpAwaiting
    | PauseOutgoing
    | ResumeOutgoing
    | KickOutgoing
    | PurgeOutgoing
    | ListSequences
    | ListSessions
    | Status
    | Why
    | Events
    | Inventory
)

add_verbs(OperatorRequest)
