"""Violations: sentences of the specification that a packet breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from protocol.acknowledgments import ACK_BODY_BYTES, ORDER_ACK_LABEL
from protocol.flags import FlagWord
from protocol.headers import INFINITE, UserHeader
from protocol.identifiers import NULL_GUID
from protocol.message_class import MessageClass
from protocol.records import ConnectionParameters, EstablishConnection, UserMessage
from qmd.interop.fields import unknown_bits

_FILL = bytes([0x5A]) * 512
_QB, _MQ = "MS-MQQB", "MS-MQMQ"
_ACK_TIMEOUT_MS = range(0x4E20, 0x1D4C0 + 1)
_RECOVERABLE_ACK_MS = range(0x1F4, 0x1D4C0 + 1)


class Violation(NamedTuple):
    """A broken sentence: where it stands, its verb, and the observation."""

    clause: str
    verb: str  # MUST or SHOULD
    text: str

    def __str__(self) -> str:
        return f"{self.verb} of {self.clause}: {self.text}"


def must(document: str, section: str, text: str) -> Violation:
    """Return a violation of a MUST."""
    return Violation(f"{document} {section}", "MUST", text)


def should(document: str, section: str, text: str) -> Violation:
    """Return a violation of a SHOULD."""
    return Violation(f"{document} {section}", "SHOULD", text)


def unused_bits(clause: str, name: str, flags: FlagWord) -> Iterator[Violation]:
    """Yield a violation if bits without a meaning are set."""
    if odd := unknown_bits(flags):
        yield Violation(clause, "SHOULD", f"{name} has the reserved bits 0x{odd:X}")


def internal(packet: Any) -> Iterator[Violation]:
    """Yield what is wrong with the common headers of an internal packet."""
    yield from unused_bits(f"{_MQ} 2.2.19.1", "BaseHeader.Flags", packet.base.flags)
    yield from unused_bits(f"{_QB} 2.2.1", "InternalHeader.Flags", packet.internal.flags)
    if packet.base.time_to_reach_queue != INFINITE:
        yield must(_MQ, "2.2.19.1", "BaseHeader.TimeToReachQueue of an internal packet is finite")
    if packet.internal.reserved:
        yield must(_QB, "2.2.1", "InternalHeader.Reserved is not zero")


def request(packet: EstablishConnection) -> Iterator[Violation]:
    """Yield what is wrong with a connection request."""
    yield from _establish(packet)
    if packet.internal.flags.connection_refused:
        yield must(_QB, "3.1.5.2.3", "InternalHeader.Flags.CS of a request is set")
    if packet.client == NULL_GUID:
        yield must(_QB, "3.1.5.2.3", "ClientGuid names no queue manager")


def response(packet: EstablishConnection, asked: EstablishConnection) -> Iterator[Violation]:
    """Yield what is wrong with the response to a connection request."""
    yield from _establish(packet)
    place = "3.1.5.3.1"
    if packet.client != asked.client:
        yield must(_QB, place, "ClientGuid is not that of the request")
    if packet.timestamp != asked.timestamp:
        yield must(_QB, place, "TimeStamp is not that of the request")
    if packet.operating_system.no_ping != asked.operating_system.no_ping:
        yield must(_QB, place, "OperatingSystem.SE is not that of the request")
    if packet.padding != _FILL:
        yield must(_QB, "2.2.3.1", "the padding of a response is not 0x5A alone")
    is_refused = bool(packet.internal.flags.connection_refused)
    if packet.server == NULL_GUID:
        yield must(_QB, place, "ServerGuid names no queue manager")
    elif not is_refused and asked.server not in (NULL_GUID, packet.server):
        yield must(_QB, "2.2.1", "a request for another queue manager is accepted")


def _establish(packet: EstablishConnection) -> Iterator[Violation]:
    yield from internal(packet)
    if packet.operating_system.constant != 0x10:
        yield must(_QB, "2.2.3.1", "OperatingSystem.RE is not 0x10")
    yield from unused_bits(f"{_QB} 2.2.3.1", "OperatingSystem", packet.operating_system)
    if packet.reserved:
        yield must(_QB, "2.2.3.1", "Reserved is not zero")


def parameters(
    packet: ConnectionParameters, asked: ConnectionParameters | None
) -> Iterator[Violation]:
    """Yield what is wrong with connection parameters; `asked`: they answer these."""
    yield from internal(packet)
    if packet.reserved:
        yield must(_QB, "2.2.2.1", "Reserved is not zero")
    if asked is None:
        if packet.ack_timeout not in _ACK_TIMEOUT_MS:
            yield must(_QB, "2.2.2.1", f"AckTimeout of {packet.ack_timeout} ms is out of range")
        if packet.recoverable_ack_timeout not in _RECOVERABLE_ACK_MS:
            found = packet.recoverable_ack_timeout
            yield must(_QB, "2.2.2.1", f"RecoverableAckTimeout of {found} ms is out of range")
        return
    if packet.ack_timeout != asked.ack_timeout:
        yield must(_QB, "3.1.5.4.1", "AckTimeout is not that of the request")
    if packet.recoverable_ack_timeout != asked.recoverable_ack_timeout:
        yield must(_QB, "3.1.5.4.1", "RecoverableAckTimeout is not that of the request")


def message(packet: UserMessage) -> Iterator[Violation]:
    """Yield what is wrong with a user message by itself."""
    user, properties = packet.user, packet.properties
    yield from unused_bits(f"{_MQ} 2.2.19.1", "BaseHeader.Flags", packet.base.flags)
    yield from unused_bits(f"{_MQ} 2.2.19.2", "UserHeader.Flags", user.flags)
    yield from unused_bits(f"{_MQ} 2.2.19.3", "MessagePropertiesHeader.Flags", properties.flags)
    if packet.transaction is not None:
        flags = packet.transaction.flags
        yield from unused_bits(f"{_MQ} 2.2.20.5", "TransactionHeader.Flags", flags)
        if packet.base.flags.priority:
            yield must(_MQ, "2.2.19.1", "a transactional message has a priority")
        if not packet.transaction.sequence_number:
            yield must(_MQ, "2.2.20.5", "TxSequenceNumber is 0")
        if packet.transaction.previous_number >= max(packet.transaction.sequence_number, 1):
            yield must(_MQ, "2.2.20.5", "PreviousTxSequenceNumber is not below TxSequenceNumber")
    if packet.security is not None:
        yield from unused_bits(f"{_MQ} 2.2.20.6", "SecurityHeader.Flags", packet.security.flags)
        if packet.security.flags.authenticated or packet.security.flags.signature_type:
            yield must(_MQ, "2.2.20.6", "SecurityHeader.Flags.AU or AS is set")
    yield from _destination(user)
    if properties.flags and not user.flags.admin_type and packet.multi_queue is None:
        yield must(_MQ, "2.2.19.2", "acknowledgments are requested and no queue for them is named")


def _destination(user: UserHeader) -> Iterator[Violation]:
    kind, is_named = user.flags.destination_type, user.queue_manager_address != NULL_GUID
    if kind == 7 and is_named:
        yield must(_MQ, "2.2.19.2", "QueueManagerAddress of a direct name is not null")
    if kind in (3, 5) and not is_named:
        yield must(_MQ, "2.2.19.2", "QueueManagerAddress of a private or public name is null")


def almost_ordering(packet: UserMessage) -> Iterator[Violation]:
    """Yield what keeps an ordinary message from being the order ack that its class states."""
    properties = packet.properties
    if properties.message_class != MessageClass.ORDER_ACK:
        return
    if packet.base.flags:
        yield must(_QB, "2.2.4", "BaseHeader.Flags of an order ack are not 0")
    if properties.label != ORDER_ACK_LABEL:
        yield must(_QB, "2.2.4", 'the label of an order ack is not "QM Ordering Ack"')
    if len(properties.body) != ACK_BODY_BYTES:
        yield must(_QB, "2.2.4", "MessageSize of an order ack is not 0x24")
    yield must(_QB, "2.2.4", "a message with the class of order acks is none")


def ordering(packet: UserMessage, *, is_relayed: bool = False) -> Iterator[Violation]:
    """Yield what is wrong with the headers of an order ack or a final ack.

    One that is relayed has the hops of its way.
    """
    user, properties = packet.user, packet.properties
    section = "2.2.4" if properties.message_class == MessageClass.ORDER_ACK else "2.2.5"
    if properties.flags:
        yield must(_QB, section, "MessagePropertiesHeader.Flags are not 0")
    if properties.body_type:
        yield must(_QB, section, "BodyType is not VT_EMPTY")
    if section == "2.2.5" and user.flags.delivery != 1:
        yield must(_QB, section, "UserHeader.Flags.DM of a final ack is not 1")
    others = user.flags.replace(delivery=0, destination_type=0, properties_header=0)
    if is_relayed:
        others = others.replace(hops=0)
    if others:
        yield must(_QB, section, f"UserHeader.Flags has other bits: 0x{int(others):X}")
    if section == "2.2.4" and any(properties.body[16:]):
        yield should(_QB, "2.2.4.1", "the reserved bytes of the body are not 0")
