"""The types of request and response bodies; OpenAPI describes them from these declarations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

QUERY_BATCH_MAX = 1000
Whole = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Seconds = Annotated[int, Meta(ge=0, le=0xFFFFFFFF, description="Seconds.")]
QueueName = Annotated[
    str,
    Meta(
        min_length=1, max_length=600, description="A queue in any spelling: `orders`, `orders@b`."
    ),
]
OptionalQueue = Annotated[str, Meta(max_length=2000, description="A queue, or empty.")]
Label = Annotated[str, Meta(max_length=249, description="At most 249 UTF-16 units.")]
Delivery = Literal["automatic", "express", "recoverable", "transactional"]
Acknowledgment = Literal[
    "positive_arrival", "positive_receive", "negative_arrival", "negative_receive"
]
Batch = Annotated[
    int, Meta(ge=1, le=QUERY_BATCH_MAX, description="The most messages in the answer.")
]
Wait = Annotated[
    float,
    Meta(ge=0, le=60, description="Seconds to wait for the first message; 0: do not wait."),
]
# It has 48 bits, so JavaScript represents it exactly.
LookupId = Annotated[int, Meta(ge=0, lt=1 << 48)]


class MessageProperties(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The properties of a message to send, besides its body."""

    label: Label = ""
    delivery: Annotated[
        Delivery,
        Meta(description="By default by the kind of the destination: see the manual."),
    ] = "automatic"
    priority: Annotated[int, Meta(ge=0, le=7)] = 3
    time_to_reach_queue_s: Seconds | None = None
    time_to_be_received_s: Seconds | None = None
    dead_letter: bool | None = None
    journal: bool = False
    body_type: Annotated[int, Meta(ge=0, le=0xFFFF, description="A VT_ code.")] = 0
    correlation_id: Annotated[str, Meta(max_length=100, description="The id of a message.")] = ""
    application_tag: Whole = 0
    response_queue: OptionalQueue = ""
    admin_queue: OptionalQueue = ""
    acknowledge: Annotated[list[Acknowledgment], Meta(max_length=4)] = []
    report_queue: OptionalQueue = ""
    dead_letter_queue: OptionalQueue = ""
    group: Annotated[str, Meta(max_length=1000, description="The id of its group.")] = ""
    deliver_at: (
        Annotated[
            datetime, Meta(tz=True, description="Do not deliver before this time, by RFC 3339.")
        ]
        | None
    ) = None
    delay_s: Annotated[
        float, Meta(ge=0, le=3_000_000_000, description="Do not deliver before so many seconds.")
    ] = 0


class ServiceBus(Struct, kw_only=True, forbid_unknown_fields=True):
    """Headers of a service bus, as its endpoints on Windows write them: docs/bodies.md."""

    framework: Literal["NServiceBus", "Rebus", "MassTransit"]
    headers: Annotated[dict[str, str], Meta(max_length=1000)]


class NewMessage(MessageProperties, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to send.  Its body is text, base64 or JSON: at most one of the three."""

    body: Annotated[str, Meta(description="Text, sent in UTF-8.")] | UnsetType = UNSET
    body_base64: Annotated[bytes, Meta(description="Any bytes.")] | UnsetType = UNSET
    body_json: Annotated[Any, Meta(description="A value, sent as JSON text.")] | UnsetType = UNSET
    extension_base64: bytes = b""
    service_bus: Annotated[
        ServiceBus | None, Meta(description="In place of the extension and of properties.")
    ] = None
    content_type: Annotated[str, Meta(max_length=1000, description="The type of the body.")] = ""
    properties: Annotated[
        dict[str, Any], Meta(description="Properties of the application; selectors read them.")
    ] = {}


class AddressedMessage(NewMessage, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to send, with its destination."""

    destination: QueueName


class NewMessages(Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages that are sent together: all of them or none, in this order."""

    messages: Annotated[list[AddressedMessage], Meta(min_length=1, max_length=10_000)]


class Sent(Struct, kw_only=True):
    """The message was sent: it is on disk."""

    id: str
    copies: list[str] = []  # of a message to several destinations: the id of each copy


class SentMessages(Struct, kw_only=True):
    """The messages were sent: they are on disk."""

    messages: list[Sent]


class Message(Struct, kw_only=True, omit_defaults=True):
    """A message of a queue."""

    id: str
    lookup_id: int
    label: str
    body_base64: bytes
    body_type: int
    priority: int
    delivery: Literal["express", "recoverable", "transactional"]
    message_class: str
    sent_at: str
    arrived_at: str
    source: str
    body: Annotated[str, Meta(description="The body, if it is text.")] | UnsetType = UNSET
    destination: str | None = None
    correlation_id: str | None = None
    application_tag: int = 0
    extension_base64: bytes = b""
    service_bus: Annotated[
        dict[str, Any] | None,
        Meta(description="Headers of NServiceBus, Rebus or MassTransit, and their meaning."),
    ] = None
    content_type: str = ""
    group: str = ""
    properties: dict[str, Any] = {}
    response_queue: str | None = None
    admin_queue: str | None = None
    acknowledge: list[str] = []
    time_to_reach_queue_s: int | None = None
    time_to_be_received_s: int | None = None
    journal: bool = False
    dead_letter: bool = False
    reason: Annotated[str | None, Meta(description="Of a dead letter.")] = None
    abort_count: int = 0
    move_count: int = 0
    authenticated: bool = False
    sender_id: str | None = None
    principals: list[str] = []


class LockedMessage(Message, kw_only=True, omit_defaults=True):
    """A message that is locked: other receivers do not see it."""

    lock_id: str
    locked_until: str


class Messages(Struct, kw_only=True):
    """Messages, the first one first."""

    messages: list[Message]


class LockedMessages(Struct, kw_only=True):
    """Locked messages, the first one first."""

    messages: list[LockedMessage]


class Page(Struct, kw_only=True):
    """A page of messages; `next` is the lookup id with which the next page starts."""

    messages: list[Message]
    next: int | None


class LockRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to lock, and for how long."""

    limit: Batch = 1
    wait_s: Wait = 0
    lock_s: Annotated[float, Meta(ge=1, le=43_200, description="Seconds until they return.")] = 30
    choice: Choice | None = None
    lock_id: Annotated[
        str,
        Meta(max_length=4000, description="Of a locked message of this queue: add to its lock."),
    ] = ""


class RenewRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """How long a lock lasts from now on."""

    lock_s: Annotated[float, Meta(ge=1, le=43_200)] = 30


class GiveBackRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Why a message is given back."""

    failed: Annotated[bool, Meta(description="Whether it counts as an attempt.")] = False
    reason: Annotated[str, Meta(max_length=500)] = ""


class RejectRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Why a message is rejected."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class Renewed(Struct, kw_only=True):
    """The lock lasts longer."""

    lock_id: str
    locked_until: str


class Choice(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages that match all of the given conditions; without conditions, every message."""

    lookup_ids: Annotated[list[LookupId], Meta(max_length=10_000)] = []
    ids: Annotated[list[str], Meta(max_length=10_000, description="Message ids.")] = []
    correlation_ids: Annotated[list[str], Meta(max_length=10_000)] = []
    label: Annotated[str, Meta(description="A part of the label.")] = ""
    reason: Annotated[str, Meta(description="A part of the reason.")] = ""
    message_class: str = ""
    destination: Annotated[str, Meta(description="A part of the destination.")] = ""
    group: Annotated[str, Meta(max_length=1000, description="The id of their group.")] = ""
    where: Annotated[
        str,
        Meta(max_length=10_000, description="A selector (JMS), such as `region = 'east'`."),
    ] = ""


class ReceiveRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to receive."""

    limit: Batch = 1
    wait_s: Wait = 0
    choice: Choice | None = None


class MoveRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to move, and to which queue."""

    target: QueueName
    choice: Choice = msgspec.field(default_factory=Choice)
    limit: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    dry_run: bool = False


class ResendRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to send again, and changes of them."""

    choice: Choice = msgspec.field(default_factory=Choice)
    to: OptionalQueue = ""
    label: Label | None = None
    body_base64: bytes | None = None
    keep: Annotated[bool, Meta(description="Whether the old messages stay.")] = False
    limit: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    dry_run: bool = False


class DelayedQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which delayed messages."""

    queue: OptionalQueue = ""
    start: LookupId = 0
    limit: Batch = 100


class DelayedPage(Struct, kw_only=True):
    """A page of delayed messages; `next` is the start of the next page."""

    messages: list[dict[str, Any]]
    next: int | None


class Moved(Struct, kw_only=True):
    """The number of messages and of their bytes; `taken`: skipped, a receiver has them."""

    messages: int
    bytes: int
    taken: int


class PurgeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to remove."""

    choice: Choice = msgspec.field(default_factory=Choice)
    dry_run: bool = False


class Count(Struct, kw_only=True):
    """A number of messages."""

    messages: int


class Retry(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A retry policy, or changes of one; absent fields stay, or are the default."""

    attempts: Annotated[int, Meta(ge=0, le=1_000_000, description="0: no limit.")] | None = None
    immediate: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    factor: Annotated[float, Meta(ge=1, le=100)] | None = None
    delay_max_s: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None
    end: Literal["poison", "dead-letter", "stay"] | None = None
    off: Annotated[bool, Meta(description="Remove the policy.")] = False


QuotaBytes = Annotated[int, Meta(ge=-1, lt=1 << 62, description="-1: no quota.")]


class NewQueue(Struct, kw_only=True, forbid_unknown_fields=True):
    """A queue to create."""

    name: Annotated[str, Meta(min_length=1, max_length=130)]
    transactional: bool = False
    label: Annotated[str, Meta(max_length=124)] = ""
    journal: bool = False
    quota_bytes: QuotaBytes | None = None
    journal_quota_bytes: QuotaBytes | None = None
    public: bool = False
    authenticate: bool = False
    privacy: Literal["none", "optional", "body"] = "optional"
    groups: Annotated[bool, Meta(description="Whether a group goes to one receiver at a time.")] = (
        False
    )
    retry: Retry | None = None


class QueueChanges(Struct, kw_only=True, forbid_unknown_fields=True):
    """Changes of a queue; other properties stay."""

    label: Annotated[str, Meta(max_length=124)] | None = None
    journal: bool | None = None
    quota_bytes: QuotaBytes | None = None
    journal_quota_bytes: QuotaBytes | None = None
    authenticate: bool | None = None
    privacy: Literal["none", "optional", "body"] | None = None
    groups: bool | None = None
    retry: Retry | None = None


class Subqueue(Struct, kw_only=True):
    """A subqueue."""

    name: str
    messages: int
    bytes: int


class Queue(Struct, kw_only=True):
    """A queue."""

    name: str
    format_name: str
    label: str
    transactional: bool
    journal: bool
    system: bool
    messages: int
    bytes: int
    quota_bytes: int | None
    quota_used_percent: float | None = None
    journal_quota_bytes: int | None = None
    authenticate: bool = False
    privacy: str | int = "optional"
    parent: str | None = None
    subqueues: list[Subqueue] = []
    journal_messages: int = 0
    taken: int = 0
    readers_waiting: int = 0
    created_at: str | None = None
    public: bool = False
    groups: bool = False
    groups_owned: int = 0
    retry: Retry | None = None


class Queues(Struct, kw_only=True):
    """Queues, by name."""

    queues: list[Queue]


class DeadLetterGroups(Struct, kw_only=True):
    """The messages of a dead-letter queue, grouped by reason and destination."""

    groups: list[dict[str, Any]]


class Facts(Struct, kw_only=True):
    """The state of the queue manager, as `qmd status --json` shows it."""

    name: str
    queue_manager: str
    release: str
    uptime_s: float


class Fate(Struct, kw_only=True):
    """The known facts about a message, as `qmd why --json` shows it."""

    message_id: str | None
    state: str
    sentences: list[str]
    remedies: list[str]


class Trace(Struct, kw_only=True):
    """The events of a message, in order of time."""

    events: list[dict[str, Any]]


class EventPage(Struct, kw_only=True):
    """Events, and the cursor of the next page; `end`: there are no more now."""

    events: list[dict[str, Any]]
    cursor: str
    end: bool


class Health(Struct, kw_only=True):
    """The state of the door, or of the daemon behind it."""

    status: str
    queue_manager: str | None = None


# Parameters of queries and headers.


class SendQuery(MessageProperties, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Properties of a message of which the body is the body of the request."""


class IdempotencyHeaders(Struct, kw_only=True):
    """A key of the client: with it a request is executed once, however often it is tried."""

    idempotency_key: (
        Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[\x21-\x7E]+$")] | None
    ) = msgspec.field(default=None, name="idempotency-key")


class PageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """A page of messages."""

    start: LookupId = 0
    limit: Batch = 100
    wait_s: Wait = 0


class SystemQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether system queues are listed."""

    system: bool = False


class DeleteQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether only the number of messages is returned."""

    dry_run: bool = False


class WhyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the message is, and whether the queue manager at the other end is asked."""

    queue: OptionalQueue = ""
    ask: bool = True


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which events, and from where."""

    cursor: Annotated[str, Meta(max_length=64, description="Of an earlier page or event.")] = ""
    queue: OptionalQueue = ""
    kinds: Annotated[list[str], Meta(max_length=100)] = []
    last: Annotated[int, Meta(ge=0, le=10_000, description="Begin with the last events.")] = 0
    limit: Batch = 1000
    wait_s: Wait = 0


class EventHeaders(Struct, kw_only=True):
    """The id of the last event that the client has: the stream goes on after it."""

    last_event_id: Annotated[str, Meta(max_length=64)] | None = msgspec.field(
        default=None, name="last-event-id"
    )
