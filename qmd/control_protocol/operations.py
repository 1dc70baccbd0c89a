"""What the control socket speaks about queues, outgoing queues, sessions and histories."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import EVERY_MESSAGE, NO_WAIT, Choice, Request, add_verbs


class CreateQueue(Request, tag="create_queue", frozen=True):
    """-> the queue, as `ShowQueue` gives it"""

    name: str
    transactional: bool = False
    label: str = ""
    journal: bool = False
    quota_bytes: int | None = None  # None: the configuration's; UNLIMITED: none
    journal_quota_bytes: int | None = None  # likewise
    public: bool = False  # registered in the directory


class SetQueue(Request, tag="set_queue", frozen=True):
    """Change a queue; what is None stays as it is.  -> the queue, as `ShowQueue` gives it"""

    name: str
    quota_bytes: int | None = None  # UNLIMITED: no limit
    journal_quota_bytes: int | None = None  # likewise
    journal: bool | None = None
    label: str | None = None


class DeleteQueue(Request, tag="delete_queue", frozen=True):
    """With its subqueues and its journal.  -> {messages, bytes}: what went with it, or would"""

    name: str
    dry_run: bool = False


class PurgeQueue(Request, tag="purge_queue", frozen=True):
    """Remove messages, and tell senders that asked for it.  -> {messages, bytes, taken}

    `taken`: how many stay, because somebody has them.  A dry run says the same.
    """

    name: str
    choice: Choice = EVERY_MESSAGE
    dry_run: bool = False


class ListQueues(Request, tag="list_queues", frozen=True):
    """-> [queue, ...]; system queues too when asked for"""

    system: bool = False


class ShowQueue(Request, tag="show_queue", frozen=True):
    """-> {name, format_name, label, transactional, journal, quota_bytes, messages, bytes, ...}"""

    name: str


class ListOutgoing(Request, tag="list_outgoing", frozen=True):
    """-> [outgoing queue, ...]: {destination, address, state, messages, bytes, ...}"""


class ShowOutgoing(Request, tag="show_outgoing", frozen=True):
    """-> one outgoing queue with its sequence and the history of its connection"""

    destination: str


class ListAwaiting(Request, tag="list_awaiting", frozen=True):
    """What has arrived at a destination and is kept until it was received there, from the message
    number `start` on.  -> [{id, number, label, bytes, waits_since_s, given_up_in_s, ...}, ...]"""

    destination: str
    start: int = 0
    limit: int = 1000


class GiveUpAwaiting(Request, tag="give_up_awaiting", frozen=True):
    """Wait no longer: all that has arrived there, and is not confirmed, becomes dead letters.

    -> {messages}
    """

    destination: str


class PauseOutgoing(Request, tag="pause_outgoing", frozen=True):
    destination: str


class ResumeOutgoing(Request, tag="resume_outgoing", frozen=True):
    destination: str


class KickOutgoing(Request, tag="kick_outgoing", frozen=True):
    """Connect now, and send everything unacknowledged again."""

    destination: str


class PurgeOutgoing(Request, tag="purge_outgoing", frozen=True):
    """End all that waits for a destination.  -> {messages}"""

    destination: str


class ListSequences(Request, tag="list_sequences", frozen=True):
    """-> [{direction, peer or destination, queue, id, number, ...}, ...]"""


class ListSessions(Request, tag="list_sessions", frozen=True):
    """-> [{peer, address, role, state, sent, received, ...}, ...]"""


class Status(Request, tag="status", frozen=True):
    """-> {name, queue_manager, version, uptime_s, listen, queues, messages, ...}"""


class Why(Request, tag="why", frozen=True):
    """What became of a message, by its id or lookup id.

    -> {message_id, host, state, sentences, remedies, places, events, peers, ...}
    """

    message: Annotated[str, msgspec.Meta(max_length=200)]
    queue: str = ""
    ask: bool = True  # the queue manager at the other end too


class Events(Request, tag="events", frozen=True):
    """The history of all messages, one event for each: from `cursor`, or a time, or the last ones.

    -> {events: [...], cursor: where to go on, end: nothing more is there now, missing_blocks}
    """

    cursor: Annotated[str, msgspec.Meta(max_length=64)] = ""
    limit: int = 1000
    last: int = 0
    queue: str = ""
    kinds: Annotated[list[str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    since_ms: int = 0
    until_ms: int = 0
    wait_s: float = NO_WAIT


OperatorRequest = (
    CreateQueue
    | SetQueue
    | DeleteQueue
    | PurgeQueue
    | ListQueues
    | ShowQueue
    | ListOutgoing
    | ShowOutgoing
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
)

add_verbs(OperatorRequest)
