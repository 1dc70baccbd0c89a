"""New messages: the properties that an application can set before it sends one."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict, Unpack, cast
from uuid import UUID

from qmd.bodies.nrbf_values import NrbfObject
from qmd.client import tracing
from qmd.client.understood import understood
from qmd.control_protocol import messages as frames
from qmd.properties.block import with_properties
from qmd.properties.values import CONTENT_TYPE, GROUP, MessageProperties, Value

#: The body of a new message: bytes, text, or with `formatter` a value that some formatter writes.
#: Each formatter writes some of these types, and checks the values within a list or dictionary.
Body = (
    bytes
    | bytearray
    | memoryview
    | str
    | bool
    | int
    | float
    | Decimal
    | datetime
    | timedelta
    | UUID
    | list[Any]
    | tuple[Any, ...]
    | dict[Any, Any]
    | NrbfObject
    | None
)
Formatter = Literal["", "xml", "binary", "activex", "json", "text", "utf-16", "bytes"]

DeliveryName = Literal["automatic", "express", "recoverable", "transactional"]

_DELIVERIES: dict[str, int] = {
    "automatic": frames.AUTOMATIC,
    "express": frames.EXPRESS,
    "recoverable": frames.RECOVERABLE,
    "transactional": frames.TRANSACTIONAL,
}


_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_ADVANCED = 5  # the privacy level with AES, [MS-MQMQ] 2.2.19.3
_NONE: Mapping[Any, Any] = {}
_CIPHERS = {"aes128": 0x660E, "aes192": 0x660F, "aes256": 0x6610}


class Acknowledge(enum.IntFlag):
    """The acknowledgment messages that the admin queue receives.  [MS-MQMQ] 2.2.19.3"""

    POSITIVE_ARRIVAL = 1
    POSITIVE_RECEIVE = 2
    NEGATIVE_ARRIVAL = 4
    NEGATIVE_RECEIVE = 8
    # The combinations that have a name of their own.  [MS-MQDMPR] 3.1.1.12
    FULL_REACH_QUEUE = POSITIVE_ARRIVAL | NEGATIVE_ARRIVAL
    FULL_RECEIVE = POSITIVE_RECEIVE | NEGATIVE_ARRIVAL | NEGATIVE_RECEIVE
    NACK_REACH_QUEUE = NEGATIVE_ARRIVAL
    NACK_RECEIVE = NEGATIVE_ARRIVAL | NEGATIVE_RECEIVE


class _PlainProperties(TypedDict, total=False):
    label: str
    priority: int
    time_to_reach_queue_s: int | None
    time_to_be_received_s: int | None
    dead_letter: bool | None
    journal: bool
    application_tag: int
    response_queue: str
    admin_queue: str
    acknowledge: int
    message_class: int
    report_queue: str
    dead_letter_queue: str


class Properties(_PlainProperties, total=False):
    """The properties of a new message, all of them optional.

    `delivery`: "automatic" selects the kind of the destination if the queue is local or the
    directory knows it, and recoverable otherwise.  Times are whole seconds from now: by default,
    the first is 4 days and the second is unlimited.
    `dead_letter`: keep a copy, with the reason, when the message cannot be delivered; True also
    requests that the receipt of a transactional message be confirmed, as a time-to-be-received does
    when `dead_letter` is omitted.
    `journal`: keep a copy when the message was delivered.
    `correlation_id`: the id of another message, as text, or 20 bytes.
    `body_type`: a VT_ code of [MS-MQMQ] 2.2.12, or its name, such as "VT_LPWSTR".
    `admin_queue`, `response_queue`: a queue, or several, separated by commas.
    `sender_id`: a security identifier, such as "S-1-5-21-..." or its bytes; it proves nothing.
    `connector_type`: a GUID; with one, the application can define a `message_class` of its own.
    `report_queue`: trace the message: queue managers on its way report to this queue, which is a
    queue of this computer or `PUBLIC=guid`.
    `dead_letter_queue`: a queue of this computer, of the message's kind, that keeps the message
    when it cannot be delivered; the default is the system's dead-letter queue.
    `formatter`: write the body, any value, as an application on Windows does: "xml"
    (XmlMessageFormatter), "binary" (BinaryMessageFormatter), "activex" (ActiveXMessageFormatter),
    or as "json", "text" (UTF-8), "utf-16" (no mark) or "bytes".  `root`: the name of the class of a
    dictionary, for "xml".
    `properties`: named values of the application, such as {"region": "east", "weight": 3}; they
    reach the receiver, and selectors can refer to them.  `group`: the id of the group of the
    message.  An application that uses OpenTelemetry sends the context of its current span with
    them, as `traceparent`.  `content_type`: the MIME type of the body.  `standard`, `annotations`,
    `footer`, `more`: see `MessageProperties`.  `extension`: bytes of the application, beside them.
    `encrypt`: encrypt the body for the destination's host, of which the key must be known: True, or
    "aes128", "aes192" or "aes256".  A message that stays on this computer is not encrypted.
    `deliver_at`: do not deliver before this time, by the wall clock of this computer; it has a time
    zone.  `delay_s`: do not deliver before so many seconds have passed.  docs/delayed.md
    """

    formatter: Formatter
    root: str
    delivery: DeliveryName
    correlation_id: str | bytes
    body_type: int | str
    sender_id: str | bytes
    connector_type: str | bytes
    encrypt: bool | str
    properties: Mapping[str, Value]
    group: str
    content_type: str
    standard: Mapping[str, Value]
    annotations: Mapping[Any, Value]
    footer: Mapping[Any, Value]
    more: Mapping[str, Value]
    extension: bytes
    deliver_at: datetime | None
    delay_s: float


def new_message(
    destination: str,
    body: Body = b"",
    *,
    formatter: Formatter = "",
    root: str = "",
    delivery: DeliveryName = "automatic",
    correlation_id: str | bytes = b"",
    body_type: int | str = 0,
    sender_id: str | bytes = b"",
    connector_type: str | bytes = b"",
    encrypt: bool | str = False,
    properties: Mapping[str, Value] = _NONE,
    group: str = "",
    content_type: str = "",
    standard: Mapping[str, Value] = _NONE,
    annotations: Mapping[Any, Value] = _NONE,
    footer: Mapping[Any, Value] = _NONE,
    more: Mapping[str, Value] = _NONE,
    extension: bytes = b"",
    deliver_at: datetime | None = None,
    delay_s: float = 0,
    **plain: Unpack[_PlainProperties],
) -> frames.NewMessage:
    """Return a message for `send_many`; see `Properties`.  Text is sent as UTF-8.

    Raises ValueError for an unknown delivery or formatter, for a value that the formatter cannot
    write, for a property that cannot be encoded, for a time without a zone and for a negative
    delay, TypeError for a body that is neither bytes nor text without one, and BadName for an
    invalid correlation id, body type, sender id or connector type.
    """
    if formatter:
        from qmd.bodies.content import write_content

        body, written_type = write_content(body, formatter, root=root)
        body_type = body_type or written_type
    if isinstance(body, int):
        raise TypeError(f"the body is {body!r}; it must be bytes or text")  # bytes(5) has five
    if delivery not in _DELIVERIES:
        raise ValueError(f"delivery is {delivery!r}; it must be one of {', '.join(_DELIVERIES)}")
    if group or content_type:
        named = {GROUP: group, CONTENT_TYPE: content_type}
        standard = {**standard, **{name: value for name, value in named.items() if value}}
    if trace := tracing.current():
        properties = {**trace, **properties}
    if properties or standard or annotations or footer or more:
        own = MessageProperties(properties, standard, annotations, footer, more)
        extension = with_properties(own, extension)
    others = plain or correlation_id or sender_id or connector_type or extension or deliver_at
    if not (others or delay_s) and type(body) is bytes and body_type == 0 and encrypt is False:
        # Most messages have no more than this: the call below takes three times as long.
        return frames.NewMessage(destination, body, delivery=_DELIVERIES[delivery])
    return frames.NewMessage(
        destination,
        body if type(body) is bytes else _bytes_of(body),
        delivery=_DELIVERIES[delivery],
        # Few messages have the others: each call takes a tenth of the time of this function.
        correlation_id=_correlation_bytes(correlation_id) if correlation_id else b"",
        body_type=body_type if type(body_type) is int else _body_type(body_type),
        sender_id=_sender_id(sender_id) if sender_id else b"",
        connector_type=_guid(connector_type) if connector_type else b"",
        privacy_level=_ADVANCED if encrypt else 0,
        encryption_algorithm=0 if encrypt is False else _cipher(encrypt),
        extension=extension,
        deliver_at_ms=0 if deliver_at is None else _time_ms(deliver_at),
        delay_ms=_delay_ms(delay_s) if delay_s else 0,
        **plain,
    )


def _bytes_of(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    return bytes(memoryview(cast(bytes, body)))  # a view, because `bytes` takes lists too


def _time_ms(moment: datetime) -> int:
    """Return a time in milliseconds since 1970, rounded up."""
    if moment.tzinfo is None:
        raise ValueError(f"deliver_at is {moment!r}: it must have a time zone, such as UTC")
    return max(-(-(moment - _EPOCH) // _MILLISECOND), 1)


def _delay_ms(delay_s: float) -> int:
    """Return a delay in milliseconds, rounded up."""
    if not 0 <= delay_s * 1000 <= frames.MOMENT_MS_MAX:  # also for nan
        raise ValueError(f"delay_s is {delay_s!r}: it must be a number of seconds from now")
    return math.ceil(delay_s * 1000)


def _cipher(encrypt: bool | str) -> int:
    if isinstance(encrypt, bool):
        return 0
    if encrypt not in _CIPHERS:
        raise ValueError(f"encrypt is {encrypt!r}; it must be one of {', '.join(_CIPHERS)}")
    return _CIPHERS[encrypt]


# The functions below import the codec when they are called: not at import.


def _body_type(given: int | str) -> int:
    if isinstance(given, int):
        return given
    from protocol.body_type import parse_body_type

    return understood(parse_body_type, given, "body type")


def _sender_id(given: str | bytes) -> bytes:
    if isinstance(given, bytes) or not given:
        return given or b""
    from protocol.security_id import parse_security_id

    return understood(parse_security_id, given, "security identifier")


def _guid(given: str | bytes) -> bytes:
    if isinstance(given, bytes) or not given:
        return given or b""
    from protocol.identifiers import guid_bytes

    return understood(guid_bytes, given, "GUID")


def _correlation_bytes(correlation: str | bytes) -> bytes:
    if isinstance(correlation, bytes):
        return correlation
    if not correlation:
        return b""
    from protocol.identifiers import parse_correlation  # imports the codec: not at import

    return understood(parse_correlation, correlation, "message id")
