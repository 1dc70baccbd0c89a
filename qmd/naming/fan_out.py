"""A message to many queues is one packet for each of them.  [MS-MQMQ] 2.1.7, 2.2.20.1

    destination ──► Several ──► Copies ──► packets in the open batch
       directory/resolving.py   sending.py   handover.py

Elements are sent to as often as they were written, and a distribution list is expanded in its
place: sending to several queues means what sending to one after the other means.  What follows from
that for order is in docs/many-destinations.md.  One packet is composed; all others are copies of it
with another head.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from protocol import transaction_offset
from protocol.identifiers import NULL_GUID
from protocol.names.format_name import (
    ConnectorName,
    DirectName,
    DistributionListName,
    PrivateName,
    PublicName,
    SingleName,
    parse_destination,
)
from protocol.names.multi_queue import MQF_ELEMENTS_MAX
from qmd.directory.resolver import Resolution
from qmd.directory.spelling import elements_of
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.message.build import (
    DISTRIBUTION_LIST,
    QueueAddress,
    queue_address,
    reply_address,
)
from qmd.message.shared_packet import split

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue

    Route = LocalQueue | OutgoingQueue

SHARED_BYTES_MIN = 512  # of a part that is stored once for all: below it, a row is cheaper

_DESTINATION_BITS = 7 << 10  # of UserHeader.Flags
_MULTI_QUEUE = 1 << 23
_PACKET_SIZE_OFFSET, _FLAGS_OFFSET, _DESTINATION_OFFSET = 8, 60, 64
_HEADERS_MAX = 16  # kept of one destination
_U32 = struct.Struct("<I")
#: Of BaseHeader what does not change, PacketSize and TimeToReachQueue; of UserHeader source,
#: destination's manager, times, number and flags.
_FIXED = struct.Struct("<8sII16s16s8sII")
_TRANSACTION = struct.Struct("<IQII")  # as it is sent, [MS-MQMQ] 2.2.20.5


@dataclass(slots=True, eq=False)
class Several:
    """What a destination of several queues stands for.

    `addresses` are what each packet lists: the elements, and the queues of each distribution list
    behind it.
    """

    resolution: Resolution
    addresses: tuple[QueueAddress, ...]
    #: Where the targets lead, as long as no queue came or went.
    routes: list[Route] = field(default_factory=list)
    generation: int = -1
    #: The MultiQueueFormatHeader by administration and response queue: it takes 7 µs an element.
    headers: dict[tuple[str, str], bytes] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.resolution.targets

    def refused(self, target: Target, refusal: Refusal) -> Refusal:
        """The same refusal, which names the element that it is about."""
        elements = elements_of(self.resolution.name)
        element = elements[target.element]
        where = str(element)
        if len(elements) > 1:
            where = f"element {target.element + 1} of {len(elements)}, {element}"
        if isinstance(element, DistributionListName):
            where += f": its member {target.name}"
        return Refusal(refusal.code, f"{where}: {refusal.text}", refusal.remedy)

    def keep(self, queues: tuple[str, str], header: bytes) -> None:
        """The next packets to the same queues have the same header."""
        if len(self.headers) >= _HEADERS_MAX:
            self.headers.clear()
        self.headers[queues] = header


@dataclass(slots=True)
class Copies:
    """One message to several queues, checked: how each of them gets it."""

    several: Several
    routes: Sequence[Route]
    deliveries: list[int]
    #: Indexes of those that are handed over one by one, and of those that are kept on disk in the
    #: same way: lists of some that all go elsewhere, or all stay here, with the same delivery.
    others: Sequence[int]
    alike: Sequence[Sequence[int]]
    #: Indexes of those that their queue, one of ours, will refuse when they get there.
    misfits: frozenset[int] = frozenset()


def several_of(resolution: Resolution, *, own_name: str) -> Several:
    """`own_name` is what others call this computer, where the name says nothing of one.

    A packet lists every queue that gets a copy ([MS-MQMQ] 2.2.20.1), and the distribution lists
    themselves beside their queues.  Raises Refusal for more than a header can list.
    """
    members: dict[int, list[SingleName]] = {}
    for target in resolution.targets:
        members.setdefault(target.element, []).append(_seen_from_outside(target.name, own_name))
    listed: list[SingleName] = []
    seen = parse_destination(str(resolution.name), local_host=own_name)
    for index, element in enumerate(elements_of(seen)):
        listed.append(element)
        if isinstance(element, DistributionListName):
            listed += members.get(index, ())
    addresses = tuple(filter(None, map(list_address, listed)))
    if len(addresses) > MQF_ELEMENTS_MAX:
        raise Refusal(
            "too_many_targets",
            f"{str(resolution.name)[:80]} stands for {len(addresses)} queues and lists of queues;"
            f" {MQF_ELEMENTS_MAX} are the most that a packet can list",
            "Send to parts of it.",
        )
    return Several(resolution, addresses)


def _seen_from_outside(name: SingleName, own_name: str) -> SingleName:
    if isinstance(name, DirectName) and name.host == ".":
        return replace(name, host=own_name)
    return name


def list_address(name: SingleName) -> QueueAddress | None:
    """How an element stands in a MultiQueueFormatHeader; None: it has no form for that kind.

    [MS-MQMQ] 2.2.18.1.4 knows public, private and direct names, and distribution lists; a
    connector's queue stands there as the public one that it is found as.
    """
    if isinstance(name, ConnectorName):
        return queue_address(PublicName(name.connector))
    if isinstance(name, DistributionListName):
        return QueueAddress(DISTRIBUTION_LIST, name.distribution_list, NULL_GUID, 16)
    if isinstance(name, PrivateName):
        return reply_address(name)
    if isinstance(name, DirectName | PublicName):
        return queue_address(name)
    return None


def with_multi_queue_header(packet: bytes, header: bytes) -> bytes:
    """A packet that has none, with that one."""
    (size,) = _U32.unpack_from(packet, _PACKET_SIZE_OFFSET)
    (flags,) = _U32.unpack_from(packet, _FLAGS_OFFSET)
    assert size == len(packet)
    assert not flags & _MULTI_QUEUE
    changed = bytearray(packet)
    _U32.pack_into(changed, _PACKET_SIZE_OFFSET, size + len(header))
    _U32.pack_into(changed, _FLAGS_OFFSET, flags | _MULTI_QUEUE)
    return bytes(changed) + header


class Heads:
    """Makes the heads of further copies out of the packet of one that is sent in the same way.

    Measured: 1 µs each, where composing a packet takes 30, and more for each queue that it lists.
    """

    def __init__(self, packet: bytes, destination: QueueAddress) -> None:
        """`destination` is that of `packet`."""
        self._base, _, self._reach_s, self._source, _, self._times, _, flags = _FIXED.unpack_from(
            packet
        )
        self._flags = flags & ~_DESTINATION_BITS
        transaction, end = transaction_offset(packet), split(packet)
        other_queues = _DESTINATION_OFFSET + destination.size
        self._transaction_flags = 0
        if transaction is None:
            self._queues, self._rest = b"", packet[other_queues:end]
        else:
            self._queues = packet[other_queues:transaction]
            self._transaction_flags, *_ = _TRANSACTION.unpack_from(packet, transaction)
            self._rest = packet[transaction + _TRANSACTION.size : end]
        self._is_transactional = transaction is not None
        self._other_bytes = len(packet) - destination.size

    def head(
        self, destination: QueueAddress, number: int, position: tuple[int, int] | None
    ) -> bytes:
        """`position`: sequence id and number of a transactional one."""
        fixed = _FIXED.pack(
            self._base,
            self._other_bytes + destination.size,
            self._reach_s,
            self._source,
            destination.queue_manager,
            self._times,
            number,
            self._flags | destination.type << 10,
        )
        if not self._is_transactional:
            return fixed + destination.wire + self._rest
        assert position is not None
        sequence_id, place = position
        return b"".join(
            (
                fixed,
                destination.wire,
                self._queues,
                _TRANSACTION.pack(
                    self._transaction_flags, sequence_id, place, place - 1 if place else 0
                ),
                self._rest,
            )
        )
