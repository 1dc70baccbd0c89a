"""Addresses of queues, as packets carry them. [MS-MQMQ] 2.2.19.2, 2.2.20.1"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from protocol import (
    DirectQueueName,
    MqfAddressHeader,
    MqfElement,
    PrivateQueueName,
)
from protocol.identifiers import NULL_GUID
from protocol.names.format_name import (
    DirectName,
    FormatName,
    MultipleName,
    PrivateName,
    PublicName,
)
from protocol.names.multi_queue import (
    MQF_DIRECT,
    MQF_DISTRIBUTION_LIST,
    MQF_PRIVATE,
    MQF_PUBLIC,
)
from qmd.errors import Refusal

REPLY_QUEUES_MAX = 100  # of one message; each of its acknowledgments is sent to all of them

# Types of queue names in UserHeader, [MS-MQMQ] 2.2.19.2
_PRIVATE_HERE, _PRIVATE, _PUBLIC, _PRIVATE_ELSEWHERE, _DIRECT = 2, 3, 5, 6, 7
DISTRIBUTION_LIST = -1  # not one of these types: allowed only as an element of a multiple name


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue's name as in a packet: its type, its value, and the queue manager's GUID."""

    type: int
    value: Any
    queue_manager: bytes
    size: int  # of the value, with its padding
    # There may be several administration or response queues: this object is the first of them, and
    # this field has all.
    several: tuple[QueueAddress, ...] = ()
    #: The value with its padding; b"": not built yet. [MS-MQMQ] 2.2.19.2
    wire: bytes = field(default=b"", compare=False, repr=False)


NO_ADDRESS = QueueAddress(0, None, NULL_GUID, 0)


def queue_address(name: FormatName) -> QueueAddress:
    """Return the address for `name` as a destination. Raises Refusal for other kinds of names."""
    if isinstance(name, DirectName):
        wire = name.wire_bytes()
        size = 2 + len(wire) + 3 & ~3
        padded = (len(wire).to_bytes(2, "little") + wire).ljust(size, b"\0")
        return QueueAddress(_DIRECT, DirectQueueName(len(wire), wire), NULL_GUID, size, wire=padded)
    if isinstance(name, PrivateName):
        number = name.number.to_bytes(4, "little")
        return QueueAddress(_PRIVATE, name.number, name.queue_manager, 4, wire=number)
    if isinstance(name, PublicName):
        return QueueAddress(_PUBLIC, name.queue, NULL_GUID, 16, wire=name.queue)
    raise Refusal(
        "name_not_single",
        f"{name} is not a single queue to which a message can be addressed",
        "Use a direct name, for example DIRECT=OS:host\\private$\\orders.",
    )


def reply_address(name: FormatName, own_id: bytes = NULL_GUID) -> QueueAddress:
    """Return the address for `name` as administration or response queue of a message of `own_id`.

    Raises Refusal for too many queues, and as `queue_address`.
    """
    if isinstance(name, MultipleName):
        if len(name.elements) > REPLY_QUEUES_MAX:
            raise Refusal(
                "too_many_reply_queues",
                f"{len(name.elements)} queues are to get acknowledgments or answers;"
                f" {REPLY_QUEUES_MAX} are allowed",
                "Name fewer queues.",
            )
        several = tuple(reply_address(each, own_id) for each in name.elements)
        return replace(several[0], several=several)
    if isinstance(name, PrivateName):
        if name.queue_manager == own_id:
            return QueueAddress(_PRIVATE_HERE, name.number, own_id, 4)
        value = PrivateQueueName(name.queue_manager, name.number)
        return QueueAddress(_PRIVATE_ELSEWHERE, value, NULL_GUID, 20)
    return queue_address(name)


def address_list(header_id: int, addresses: tuple[QueueAddress, ...]) -> MqfAddressHeader:
    """Return the part of a MultiQueueFormatHeader with these addresses."""
    return MqfAddressHeader(0, header_id, 0, 0, tuple(map(_element, addresses)))


def each_address(address: QueueAddress) -> tuple[QueueAddress, ...]:
    """Return all queues of a field for one queue, which may be empty."""
    return address.several or ((address,) if address.type else ())


def _element(address: QueueAddress) -> MqfElement:
    if address.type == _DIRECT:
        return MqfElement(MQF_DIRECT, address.value.name)
    if address.type == _PUBLIC:
        return MqfElement(MQF_PUBLIC, address.value)
    if address.type in (_PRIVATE_HERE, _PRIVATE):
        return MqfElement(MQF_PRIVATE, PrivateQueueName(address.queue_manager, address.value))
    if address.type == DISTRIBUTION_LIST:
        return MqfElement(MQF_DISTRIBUTION_LIST, address.value)
    return MqfElement(MQF_PRIVATE, address.value)


def multi_queue_size(
    destinations: tuple[QueueAddress, ...], admin: QueueAddress, response: QueueAddress
) -> int:
    """Return the size in bytes of the MultiQueueFormatHeader, the last header of its packet."""
    size = 8  # of the signature header
    for addresses in (destinations, each_address(admin), each_address(response)):
        end = 12
        for address in addresses:
            end += 2
            if address.type == _DIRECT:
                end += len(address.value.name)
            else:
                end = (end + 3 & ~3) + (16 if address.type in (_PUBLIC, DISTRIBUTION_LIST) else 20)
        size += end + 3 & ~3
    return size
