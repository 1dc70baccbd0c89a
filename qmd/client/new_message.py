"""A message before it is sent: what an application can say about it."""

from __future__ import annotations

import enum
from typing import Literal, TypedDict, Unpack

from qmd import frames

DeliveryName = Literal["automatic", "express", "recoverable", "transactional"]

_DELIVERIES: dict[str, int] = {
    "automatic": frames.AUTOMATIC,
    "express": frames.EXPRESS,
    "recoverable": frames.RECOVERABLE,
    "transactional": frames.TRANSACTIONAL,
}


class Acknowledge(enum.IntFlag):
    """Which acknowledgment messages the admin queue shall get.  [MS-MQMQ] 2.2.19.3"""

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
    dead_letter: bool
    journal: bool
    body_type: int
    application_tag: int
    extension: bytes
    response_queue: str
    admin_queue: str
    acknowledge: int


class Properties(_PlainProperties, total=False):
    """What can be said about a new message; every one may be left out.

    `delivery`: "automatic" takes the kind of the destination where the queue is ours,
    and recoverable where it is not.  Times are whole seconds from now: left out, the
    first is 4 days and the second has no end.  `dead_letter`: keep a copy, with the
    reason, when it cannot be delivered.  `journal`: keep a copy when it was.
    `correlation_id`: the id of another message, as text, or 20 bytes.
    """

    delivery: DeliveryName
    correlation_id: str | bytes


def new_message(
    destination: str,
    body: bytes | str = b"",
    *,
    delivery: DeliveryName = "automatic",
    correlation_id: str | bytes = b"",
    **properties: Unpack[_PlainProperties],
) -> frames.NewMessage:
    """A message for `send_many`; see `Properties`.  Text is sent as UTF-8.

    Raises ValueError for a delivery that does not exist, and InvalidName for a
    correlation id that is none.
    """
    if delivery not in _DELIVERIES:
        raise ValueError(f"delivery is {delivery!r}; it must be one of {', '.join(_DELIVERIES)}")
    return frames.NewMessage(
        destination,
        body.encode() if isinstance(body, str) else bytes(body),
        delivery=_DELIVERIES[delivery],
        correlation_id=_correlation_bytes(correlation_id),
        **properties,
    )


def _correlation_bytes(correlation: str | bytes) -> bytes:
    if isinstance(correlation, bytes):
        return correlation
    if not correlation:
        return b""
    from protocol.identifiers import parse_correlation  # pulls in the codec: not at import

    return parse_correlation(correlation)
