"""The headers of a user message, each declared once (MS-MQMQ 2.2.19 and 2.2.20).

The layout of a user message; a flag announces each header in [ ]:

    BaseHeader UserHeader [TransactionHeader] [SecurityHeader] MessagePropertiesHeader
    [DebugHeader] [SoapHeader] [MultiQueueFormatHeader] | [SessionHeader]

PacketSize counts up to the bar.  Integers are little-endian.  GUIDs and texts stay bytes: names and
labels are UTF-16LE with their terminating null, GUIDs have the byte order of the wire.  Sizes and
counts are computed when a header is built; given values are not used.  Reserved bits and bytes are
kept and never checked.
"""

# No `from __future__ import annotations` here: the annotations are the layout.

from typing import Annotated, NamedTuple

from protocol.codec.vocabulary import (
    ABSENT,
    Align,
    AlignTo,
    Int8ul,
    Int16ul,
    Int32ul,
    Int64ul,
    Measured,
    Octets,
    Present,
    Rebuild,
    Refuse,
    Rule,
    Switch,
    Term,
    WideText,
    layout,
    len_,
    this,
)
from protocol.flags import (
    BaseFlags,
    DebugFlags,
    PropertyFlags,
    SecurityFlags,
    TransactionFlags,
    UserFlags,
)

VERSION = 0x10
SIGNATURE = 0x524F494C  # on the wire "LIOR"
PACKET_BYTES_MIN = 20  # BaseHeader and InternalHeader: no packet is shorter
PACKET_BYTES_MAX = 0x00400000  # MS-MQMQ 2.2.19.1
# An extension of ours, for hosts that agreed on it.  Codecs accept packets of this size; framing.py
# limits the size that a connection may receive.
LARGE_PACKET_BYTES_MAX = 0x04000000
HOPS_MAX = 0x1D  # MS-MQMQ 2.2.19.2
LABEL_CHARACTERS_MAX = 0xFA  # with the null, MS-MQMQ 2.2.19.3
INFINITE = 0xFFFFFFFF  # seconds: never expires
SESSION_HEADER_BYTES = 16
USER_FLAGS_OFFSET = 60

# Queue name types of UserHeader.Flags (MS-MQMQ 2.2.19.2).
NO_QUEUE = 0
SAME_AS_ADMIN = 1
PRIVATE_ON_SOURCE = 2
PRIVATE_ON_DESTINATION = 3
PRIVATE_ON_ADMIN_HOST = 4
PUBLIC_QUEUE = 5
PRIVATE_QUEUE = 6
DIRECT_QUEUE = 7


class BaseHeader(NamedTuple):
    """The first 16 bytes of every packet (MS-MQMQ 2.2.19.1)."""

    version: Annotated[int, Int8ul, Rule(this.version == VERSION, "MUST be 0x10")]
    reserved: Annotated[int, Int8ul]
    flags: Annotated[BaseFlags, Int16ul]
    signature: Annotated[int, Int32ul, Rule(this.signature == SIGNATURE, "MUST be 0x524F494C")]
    packet_size: Annotated[  # bytes up to and without a piggybacked SessionHeader
        int,
        Measured(
            start=8,
            minimum=PACKET_BYTES_MIN,
            maximum=LARGE_PACKET_BYTES_MAX,
            rule="MUST be 20..0x00400000 bytes",
        ),
    ]
    time_to_reach_queue: Annotated[int, Int32ul]  # seconds since sent_time; INFINITE


class DirectQueueName(NamedTuple):
    """A direct format name without its "DIRECT=" (MS-MQMQ 2.2.18.1.5.2)."""

    # bytes of `name`; the specification's name of the field overrides the method of tuples
    count: Annotated[int, Rebuild(Int16ul, len_(this.name))]  # type: ignore[assignment]
    name: Annotated[bytes, WideText(this.count), Align(4)]


class PrivateQueueName(NamedTuple):
    """A private queue of a named queue manager (MS-MQMQ 2.2.18.1.7.2)."""

    queue_manager: Annotated[bytes, Octets(16)]
    number: Annotated[int, Int32ul]


QueueName = DirectQueueName | PrivateQueueName | bytes | int | None
"""Queue name by type: 7 a DirectQueueName, 6 a PrivateQueueName, 5 the GUID of a public queue, 2..4
the number of a private queue, 0 and 1 None.
"""

_QUEUE_NAMES: dict[int, Term] = {
    DIRECT_QUEUE: layout(DirectQueueName),
    NO_QUEUE: ABSENT,
    SAME_AS_ADMIN: ABSENT,
    PRIVATE_ON_SOURCE: Int32ul,
    PRIVATE_ON_DESTINATION: Int32ul,
    PRIVATE_ON_ADMIN_HOST: Int32ul,
    PUBLIC_QUEUE: Octets(16),
    PRIVATE_QUEUE: layout(PrivateQueueName),
}


def _queue_name(queue: str, allowed: set[int]) -> Term:
    """Return the construct for the queue name type in the flags; other types close the session."""
    rule = f"MUST be one of {', '.join(map(str, sorted(allowed)))}"
    return Switch(
        this.flags[f"{queue}_type"],
        {kind: con for kind, con in _QUEUE_NAMES.items() if kind in allowed},
        default=Refuse(rule, f"flags.{queue}_type", offset=USER_FLAGS_OFFSET),
    )


class UserHeader(NamedTuple):
    """The source and the destination of a message (MS-MQMQ 2.2.19.2)."""

    source_queue_manager: Annotated[bytes, Octets(16)]  # of the original sender, not of a router
    queue_manager_address: Annotated[bytes, Octets(16)]  # null for direct names
    time_to_be_received: Annotated[int, Int32ul]  # seconds since sent_time; INFINITE
    sent_time: Annotated[int, Int32ul]  # seconds since 1970 UTC
    message_number: Annotated[int, Int32ul]  # MessageID: unique per source queue manager
    flags: Annotated[
        UserFlags,
        Int32ul,
        Rule(this.flags.hops <= HOPS_MAX, "MUST be 0..0x1D", "flags.hops"),
        Rule(this.flags.delivery <= 1, "MUST be 0 or 1", "flags.delivery"),
        Rule(
            this.flags.delivery >= this.flags.transaction_header,
            "MUST NOT be 0 in a transactional message",
            "flags.delivery",
        ),
        Rule(this.flags.properties_header == 1, "MUST be set", "flags.properties_header"),
        Rule(this.flags.http_header == 0, "MUST NOT be set", "flags.http_header"),
    ]
    destination_queue: Annotated[QueueName, _queue_name("destination", {0, 3, 5, 7})]
    admin_queue: Annotated[QueueName, _queue_name("admin", {0, 2, 3, 5, 6, 7})]
    response_queue: Annotated[QueueName, _queue_name("response", {0, 1, 2, 3, 4, 5, 6, 7})]
    connector_type: Annotated[bytes | None, Present(this.flags.connector_type, Octets(16))]


class TransactionHeader(NamedTuple):
    """A message's place in its transactional sequence (MS-MQMQ 2.2.20.5).

    Number 0 is out of the field's range, but the packet is not rejected here: a message that has no
    number yet is stored with 0, and no receiving sequence accepts it.
    """

    flags: Annotated[TransactionFlags, Int32ul]
    sequence_id: Annotated[int, Int64ul]  # TimeStamp in the high half, Ordinal in the low
    sequence_number: Annotated[int, Int32ul]
    previous_number: Annotated[int, Int32ul]  # 0: the first of its sequence
    connector: Annotated[bytes | None, Present(this.flags.connector, Octets(16))]


class SecurityHeader(NamedTuple):
    """The sender's identity and signature (MS-MQMQ 2.2.20.6).  All five items stay opaque.

    The sizes decide which items are present; the specification's own example has data without the
    flag for it.
    """

    flags: Annotated[
        SecurityFlags,
        Int16ul,
        Rule(this.flags.sender_type <= 2, "MUST be 0, 1 or 2", "flags.sender_type"),
    ]
    sender_id_size: Annotated[
        int,
        Rebuild(Int16ul, len_(this.sender_id)),
        Rule(
            (this.flags.sender_type != 0) | (this.sender_id_size == 0),
            "MUST be 0 for sender type 0",
        ),
    ]
    encryption_key_size: Annotated[int, Rebuild(Int16ul, len_(this.encryption_key))]
    signature_size: Annotated[int, Rebuild(Int16ul, len_(this.signature))]
    certificate_size: Annotated[
        int,
        Rebuild(Int32ul, len_(this.certificate)),
        Rule(this.certificate_size <= 0xFFFF, "MUST be 0..0xFFFF bytes"),
    ]
    provider_size: Annotated[
        int,
        Rebuild(Int32ul, len_(this.provider)),
        Rule(
            this.sender_id_size
            + this.encryption_key_size
            + this.signature_size
            + this.certificate_size
            + this.provider_size
            > 0,
            "MUST NOT be 0 with the four other sizes",
        ),
    ]
    sender_id: Annotated[bytes, Octets(this.sender_id_size), Align(4)]
    encryption_key: Annotated[bytes, Octets(this.encryption_key_size), Align(4)]
    signature: Annotated[bytes, Octets(this.signature_size), Align(4)]
    certificate: Annotated[bytes, Octets(this.certificate_size), Align(4)]
    provider: Annotated[bytes, Octets(this.provider_size), Align(4)]


class MessagePropertiesHeader(NamedTuple):
    """The properties that the application sees (MS-MQMQ 2.2.19.3).

    Label, extension and body follow each other without padding.  Undefined classes, body types and
    algorithms pass through.
    """

    flags: Annotated[PropertyFlags, Int8ul]
    label_length: Annotated[  # characters with the null; 0: no label
        int,
        Rebuild(Int8ul, len_(this.label) // 2),
        Rule(this.label_length <= LABEL_CHARACTERS_MAX, "MUST be 0..0xFA"),
    ]
    message_class: Annotated[int, Int16ul]
    correlation_id: Annotated[bytes, Octets(20)]
    body_type: Annotated[int, Int32ul]
    application_tag: Annotated[int, Int32ul]
    message_size: Annotated[int, Rebuild(Int32ul, len_(this.body))]  # bytes
    allocation_body_size: Annotated[int, Int32ul]  # allocated by the sender; not a length
    privacy_level: Annotated[int, Int32ul]
    hash_algorithm: Annotated[int, Int32ul]
    encryption_algorithm: Annotated[int, Int32ul]
    extension_size: Annotated[int, Rebuild(Int32ul, len_(this.extension))]  # bytes
    label: Annotated[bytes, WideText(this.label_length * 2, optional=True)]  # b"": none
    extension: Annotated[bytes, Octets(this.extension_size)]
    body: Annotated[bytes, Octets(this.message_size), Align(4)]


class DebugHeader(NamedTuple):
    """The destination of trace reports about this message (MS-MQMQ 2.2.20.8)."""

    flags: Annotated[
        DebugFlags,
        Int16ul,
        Rule(this.flags.queue_type <= 1, "MUST be 0 or 1", "flags.queue_type"),
    ]
    reserved: Annotated[int, Int16ul]
    queue: Annotated[bytes | None, Present(this.flags.queue_type, Octets(16))]


class SoapHeader(NamedTuple):
    """Two texts for applications (MS-MQMQ 2.2.20.7); b"" where a length is 0.

    The specification does not say whether the second section is aligned: we align it when building
    and read both forms.
    """

    header_section: Annotated[int, Int16ul, Rule(this.header_section == 0x0320, "MUST be 0x0320")]
    header_reserved: Annotated[int, Int16ul]
    header_length: Annotated[int, Rebuild(Int32ul, len_(this.header) // 2)]  # characters
    header: Annotated[bytes, WideText(this.header_length * 2, optional=True), AlignTo(b"\x84\x03")]
    body_section: Annotated[int, Int16ul, Rule(this.body_section == 0x0384, "MUST be 0x0384")]
    body_reserved: Annotated[int, Int16ul]
    body_length: Annotated[int, Rebuild(Int32ul, len_(this.body) // 2)]  # characters
    body: Annotated[bytes, WideText(this.body_length * 2, optional=True), Align(4)]


class SessionHeader(NamedTuple):
    """A session acknowledgment (MS-MQMQ 2.2.20.4).  The four counters wrap at 16 bits."""

    ack_number: Annotated[int, Int16ul]  # messages received
    recoverable_ack_number: Annotated[int, Int16ul]  # the number of bit 0; 0: none
    recoverable_ack_flags: Annotated[int, Int32ul]  # bit k: that number + k is on disk
    sent_number: Annotated[int, Int16ul]  # messages sent, this one included
    recoverable_sent_number: Annotated[int, Int16ul]
    window_size: Annotated[int, Int16ul]  # messages
    reserved: Annotated[int, Int16ul]
