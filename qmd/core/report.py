"""Report messages: notifications about the progress of a traced message.

[MS-MQQB] 3.1.5.8.9 when it has arrived, 3.1.7.1.7 when it is forwarded.
"""

from __future__ import annotations

from protocol import (
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    MessageClass,
    MessagePropertiesHeader,
    PropertyFlags,
    UserFlags,
    UserHeader,
    UserMessage,
    build_user_message,
)
from protocol.body_type import BodyType
from protocol.headers import INFINITE, PUBLIC_QUEUE
from protocol.identifiers import correlation_bytes, guid_text
from qmd.core.acknowledgment import PRIORITY

TIME_TO_REACH_QUEUE_S = 345_600  # a limit, because report messages are express and stay in memory

_HASH_ALGORITHM, _ENCRYPTION_ALGORITHM = 0x8004, 0x6801  # as in every unsigned message


def report_label(original: UserMessage, at: str) -> str:
    """Return the label for the original and a time-date, by the ABNF of [MS-MQQB] 3.1.5.8.9."""
    user = original.user
    source = guid_text(user.source_queue_manager)
    head = f"{source[:4]}:{user.message_number:08X}:{user.flags.hops:02X}"
    return f"{head} received by {source} at {at}"


def report_body(original: UserMessage, target: str, next_hop: str | None) -> str:
    """Return the body of a report.

    `target` is the destination's format name; `next_hop` is the IP address to which the message is
    forwarded, None on arrival.
    """
    lines = [
        f"<MESSAGE ID>{original.user.message_number:08X}</MESSAGE ID>",
        f"<TARGET QUEUE>{target}</TARGET QUEUE>",
    ]
    if next_hop is not None:
        lines.append(f"<NEXT HOP>{next_hop}</NEXT HOP>")
        # The specification has this blank.
        lines.append(f"<HOP COUNT>{original.user.flags.hops:02X} </HOP COUNT>")
    return "".join(f"{line}\r\n" for line in lines)


def build_report(
    original: UserMessage,
    *,
    target: str,
    next_hop: str | None,
    own_id: bytes,
    addressee: bytes,
    message_number: int,
    sent_time: int,
    at: str,
) -> bytes:
    """Return the report packet for the public queue that the original's DebugHeader names.

    The report is an express message. `addressee` is the GUID of the queue manager that is assumed
    to host the queue, `at` the `sent_time` as the time-date of the label.
    """
    assert original.debug is not None
    assert original.debug.queue is not None, "a traced message names its report queue"
    label = report_label(original, at)
    body = report_body(original, target, next_hop).encode("utf-16-le")
    flags = UserFlags.of(destination_type=PUBLIC_QUEUE, properties_header=1)
    user = UserHeader(
        own_id,
        addressee,
        INFINITE,
        sent_time,
        message_number,
        flags,
        original.debug.queue,
        None,
        None,
        None,
    )
    properties = MessagePropertiesHeader(
        flags=PropertyFlags(0),
        label_length=0,
        message_class=MessageClass.REPORT,
        correlation_id=correlation_bytes(
            original.user.source_queue_manager, original.user.message_number
        ),
        body_type=BodyType.VT_LPWSTR,
        application_tag=0,
        message_size=0,
        allocation_body_size=len(body),
        privacy_level=0,
        hash_algorithm=_HASH_ALGORITHM,
        encryption_algorithm=_ENCRYPTION_ALGORITHM,
        extension_size=0,
        label=label.encode("utf-16-le") + b"\0\0",
        extension=b"",
        body=body,
    )
    base = BaseHeader(VERSION, 0, BaseFlags(PRIORITY), SIGNATURE, 0, TIME_TO_REACH_QUEUE_S)
    return build_user_message(
        UserMessage(base, user, None, None, properties, None, None, None, None)
    )
