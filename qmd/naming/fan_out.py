"""Destinations of several queues, and the copies for them.  [MS-MQMQ] 2.1.7, 2.2.20.1

    destination ──► Several ──────────► Copies ──────────► packets in the open batch
        naming/destinations.py   operations/send_checks.py   operations/send_copies.py

Each queue gets a packet of its own.  A queue that the destination names twice gets two packets, and
a distribution list is replaced by its queues at its place: a send to several queues is equivalent
to sends to one queue after the other.  docs/many-destinations.md describes the consequences for
order.  One packet is composed; the others are copies of it with other heads.
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
from qmd.message.addresses import DISTRIBUTION_LIST, QueueAddress, queue_address, reply_address
from qmd.message.shared_packet import split

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue

    Route = LocalQueue | OutgoingQueue

SHARED_BYTES_MIN = 512  # of a part that is stored once for all copies: a smaller part costs more

_DESTINATION_BITS = 7 << 10  # of UserHeader.Flags
_MULTI_QUEUE = 1 << 23
_PACKET_SIZE_OFFSET, _FLAGS_OFFSET, _DESTINATION_OFFSET = 8, 60, 64
_HEADERS_MAX = 16  # kept for one destination
_U32 = struct.Struct("<I")
#: BaseHeader: the constant fields, PacketSize and TimeToReachQueue; UserHeader: the source, the
#: queue manager of the destination, times, number and flags.
_FIXED = struct.Struct("<8sII16s16s8sII")
_TRANSACTION = struct.Struct("<IQII")  # as in sent packets, [MS-MQMQ] 2.2.20.5


@dataclass(slots=True, eq=False)
class Several:
    """The queues that a destination stands for.

    `addresses` is the list in each packet: the elements, each distribution list followed by its
    queues.
    """

    resolution: Resolution
    addresses: tuple[QueueAddress, ...]
    #: The queues of the targets, valid until a queue is created or deleted.
    routes: list[Route] = field(default_factory=list)
    generation: int = -1
    #: The MultiQueueFormatHeader by administration and response queue: to build it takes 7 µs for
    #: each element.
    headers: dict[tuple[str, str], bytes] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The queues of the destination, in order."""
        return self.resolution.targets

    def refused(self, target: Target, refusal: Refusal) -> Refusal:
        """Return `refusal` with the name of the element that it is about."""
        elements = elements_of(self.resolution.name)
        element = elements[target.element]
        where = str(element)
        if len(elements) > 1:
            where = f"element {target.element + 1} of {len(elements)}, {element}"
        if isinstance(element, DistributionListName):
            where += f": its member {target.name}"
        return Refusal(refusal.code, f"{where}: {refusal.text}", refusal.remedy)

    def keep(self, queues: tuple[str, str], header: bytes) -> None:
        """Keep the header for the next packets with the same queues for answers."""
        if len(self.headers) >= _HEADERS_MAX:
            self.headers.clear()
        self.headers[queues] = header


@dataclass(slots=True)
class Copies:
    """The copies of one message, checked: the queue and the delivery of each."""

    several: Several
    routes: Sequence[Route]
    deliveries: list[int]
    #: `others` are the indexes of copies that are sent one by one.  `alike` are the indexes of the
    #: other copies, in lists: all copies of a list go to queues elsewhere, or all to queues of this
    #: computer, with the same delivery.
    others: Sequence[int]
    alike: Sequence[Sequence[int]]
    #: Indexes of copies that their queue, which is on this computer, refuses.
    misfits: frozenset[int] = frozenset()


def several_of(resolution: Resolution, *, own_name: str) -> Several:
    """Return the queues of a destination; in packets, `own_name` replaces the host `.`.

    A packet lists every queue that gets a copy ([MS-MQMQ] 2.2.20.1), and the distribution lists
    themselves before their queues.  Raises Refusal for more queues than a header can list.
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
    """Return the address of an element of a MultiQueueFormatHeader; None: there is no form for it.

    [MS-MQMQ] 2.2.18.1.4 has forms for public, private and direct names, and distribution lists; the
    queue of a connector is listed as the public queue by which it is found.
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
    """Return a packet with `header` added; it must not have a MultiQueueFormatHeader yet."""
    (size,) = _U32.unpack_from(packet, _PACKET_SIZE_OFFSET)
    (flags,) = _U32.unpack_from(packet, _FLAGS_OFFSET)
    assert size == len(packet)
    assert not flags & _MULTI_QUEUE
    changed = bytearray(packet)
    _U32.pack_into(changed, _PACKET_SIZE_OFFSET, size + len(header))
    _U32.pack_into(changed, _FLAGS_OFFSET, flags | _MULTI_QUEUE)
    return bytes(changed) + header


class Heads:
    """Heads of further copies, built from the packet of the first copy with their delivery.

    This takes 1 µs for each copy (measured); composing a packet takes 30 µs, and more for each
    queue that it lists.
    """

    def __init__(self, packet: bytes, destination: QueueAddress) -> None:
        """Take the fields of `packet`, the copy for `destination`."""
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
        """Return the head of the copy for `destination`; `position` is the sequence id and number
        of a transactional copy."""
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
