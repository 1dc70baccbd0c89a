"""The header that lists all destination queues of a message (MS-MQMQ 2.2.20.1 to 2.2.20.3).

The list is information only: the packet itself goes to UserHeader.DestinationQueue.  Each address
header is followed by padding to a multiple of four, whether or not its HeaderSize counts it.
"""

# No `from __future__ import annotations` here: the annotations are the layout.

from typing import Annotated, NamedTuple

from protocol.codec.vocabulary import (
    Align,
    Aligned,
    Int16ul,
    Int32ul,
    Measured,
    Octets,
    Rebuild,
    Refuse,
    Repeat,
    Rule,
    ScannedText,
    Switch,
    Within,
    layout,
    len_,
    this,
)
from protocol.headers import LARGE_PACKET_BYTES_MAX, PrivateQueueName

MQF_PUBLIC = 1
MQF_PRIVATE = 2
MQF_DIRECT = 3
MQF_DISTRIBUTION_LIST = 6

MQF_DESTINATION = 0x0064
MQF_ADMIN = 0x00C8
MQF_RESPONSE = 0x012C
MQF_SIGNATURE = 0x015E

MQF_ELEMENTS_MAX = 10_000  # per list; a limit of ours, so that one packet cannot delay the others
MQF_ADDRESS_BYTES_MIN = 12


class MqfElement(NamedTuple):
    """One queue of a list (MS-MQMQ 2.2.18.1.4).

    The type of `name` depends on `format_type`: 1 the GUID of a public queue, 2 a PrivateQueueName,
    3 a direct format name as UTF-16LE with its null, 6 the GUID of a distribution list.
    """

    format_type: Annotated[int, Int16ul]
    name: Annotated[
        PrivateQueueName | bytes,
        Switch(
            this.format_type,
            {
                MQF_DIRECT: ScannedText(),
                MQF_PUBLIC: Aligned(4, Octets(16)),
                MQF_PRIVATE: Aligned(4, layout(PrivateQueueName)),
                MQF_DISTRIBUTION_LIST: Aligned(4, Octets(16)),
            },
            default=Refuse("MUST be 1, 2, 3 or 6", "format_type", back=2),
        ),
    ]


class MqfAddressHeader(NamedTuple):
    """A list of queues (MS-MQMQ 2.2.20.2); `header_id` gives their role."""

    header_size: Annotated[
        int,
        Measured(
            start=0,
            minimum=MQF_ADDRESS_BYTES_MIN,
            maximum=LARGE_PACKET_BYTES_MAX,
            rule="MUST be 0x0C bytes to the size of the packet",
        ),
    ]
    header_id: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    element_count: Annotated[
        int,
        Rebuild(Int32ul, len_(this.elements)),
        Rule(this.element_count <= MQF_ELEMENTS_MAX, "MUST NOT be over 10000 (our limit)"),
    ]
    elements: Annotated[
        tuple[MqfElement, ...],
        Within(this.header_size - MQF_ADDRESS_BYTES_MIN, Repeat(this.element_count, MqfElement)),
        Align(4),
    ]


class MqfSignatureHeader(NamedTuple):
    """A signature over the lists (MS-MQMQ 2.2.20.3); opaque."""

    header_id: Annotated[int, Int16ul, Rule(this.header_id == MQF_SIGNATURE, "MUST be 0x015E")]
    reserved: Annotated[int, Int16ul]
    size: Annotated[int, Rebuild(Int32ul, len_(this.signature))]  # bytes
    signature: Annotated[bytes, Octets(this.size), Align(4)]


class MultiQueueFormatHeader(NamedTuple):
    """The destination, admin and response queues of this message (MS-MQMQ 2.2.20.1)."""

    destination: Annotated[
        MqfAddressHeader,
        Rule(
            this.destination.header_id == MQF_DESTINATION,
            "MUST be 0x0064",
            "destination.header_id",
        ),
    ]
    admin: Annotated[
        MqfAddressHeader,
        Rule(this.admin.header_id == MQF_ADMIN, "MUST be 0x00C8", "admin.header_id"),
    ]
    response: Annotated[
        MqfAddressHeader,
        Rule(this.response.header_id == MQF_RESPONSE, "MUST be 0x012C", "response.header_id"),
    ]
    signature: MqfSignatureHeader
