"""The acknowledgments that are messages: to administration queues and to order queues.

An administration acknowledgment tells an application what became of its message
([MS-MQQB] 3.1.7.15); an order ack or final ack tells the sending queue manager
([MS-MQQB] 3.1.7.17).  Whether one is to be sent says `fate`; here it becomes a
packet, addressed by what the original says.
"""

from __future__ import annotations

from protocol import (
    INFINITE,
    NULL_GUID,
    ORDER_QUEUE_NUMBER,
    PACKET_BYTES_MAX,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    FinalAckBody,
    MessageClass,
    MessagePropertiesHeader,
    OrderAckBody,
    PrivateQueueName,
    PropertyFlags,
    UserFlags,
    UserHeader,
    UserMessage,
    build_final_ack,
    build_order_ack,
    build_user_message,
    order_queue_name,
    patch_sent,
)
from protocol.acknowledgments import ACK_BODY_BYTES
from protocol.headers import (
    DIRECT_QUEUE,
    NO_QUEUE,
    PRIVATE_ON_DESTINATION,
    PRIVATE_ON_SOURCE,
    PRIVATE_QUEUE,
    PUBLIC_QUEUE,
    QueueName,
)
from protocol.identifiers import correlation_bytes
from protocol.names.multi_queue import MQF_DIRECT, MQF_DISTRIBUTION_LIST
from qmd.core.packet_fields import final_ack_body
from qmd.core.sequence import Position

AckDestination = DirectQueueName | PrivateQueueName | bytes
"""A direct name, a private queue of a queue manager, or the GUID of a public queue."""

ADMINISTRATION_QUEUES_MAX = 100  # of one message; ours
BODIES_BYTES_MAX = PACKET_BYTES_MAX  # that all acknowledgments of one message bring back; ours
POSITIVE_ARRIVAL = 0x01  # MessagePropertiesHeader.Flags.PA
PRIORITY = 3  # the default, [MS-MQMQ] 2.2.19.1

# Acknowledgments that bring the body of the original back are the negative ones.
_WITHOUT_BODY = frozenset({MessageClass.ACK_REACH_QUEUE, MessageClass.ACK_RECEIVE})
# SHA-1 and RC4: what unsigned, unencrypted messages carry.
_HASH_ALGORITHM, _ENCRYPTION_ALGORITHM = 0x8004, 0x6801


def administration_queues(original: UserMessage, own_id: bytes) -> list[AckDestination]:
    """Who is to be told of the original: each once, in the order in which they stand there.

    The one of the UserHeader, and those of a MultiQueueFormatHeader ([MS-MQMQ] 2.2.20.1), of which
    that one mostly is the first.  Of a longer list only the first ADMINISTRATION_QUEUES_MAX: a
    peer must not be able to make thousands of messages out of one.  Distribution lists need a
    directory, and are left out.
    """
    found: dict[AckDestination, None] = {}
    if (first := _administration_queue(original.user, own_id)) is not None:
        found[first] = None
    if original.multi_queue is not None:
        for element in original.multi_queue.admin.elements:
            if len(found) == ADMINISTRATION_QUEUES_MAX:
                break
            if element.format_type == MQF_DIRECT:
                assert isinstance(element.name, bytes)
                found[DirectQueueName(len(element.name), element.name)] = None
            elif element.format_type != MQF_DISTRIBUTION_LIST:
                found[element.name] = None
    return list(found)


def brings_body(original: UserMessage, message_class: int) -> bool:
    """Whether an acknowledgment of this class has the body of the original."""
    encrypted = original.security is not None and original.security.flags.body_encrypted
    return message_class not in _WITHOUT_BODY and not encrypted


def build_acknowledgment(
    original: UserMessage,
    message_class: int,
    *,
    destination: AckDestination,
    own_id: bytes,
    message_number: int,
    sent_time: int,
    with_body: bool = True,
) -> bytes:
    """The packet for `destination`, one of the original's administration queues.

    `message_number` is a fresh one of ours, `sent_time` in seconds since 1970 UTC.
    A body is left out if with it the packet would be larger than any packet may be, or unless it is
    to be `with_body`.
    """
    body = original.properties.body if with_body and brings_body(original, message_class) else b""
    user = _user_header(original.user, destination, own_id, message_number, sent_time)
    packet = _build(original, message_class, user, body)
    if len(packet) > PACKET_BYTES_MAX:
        packet = _build(original, message_class, user, b"")
    return packet


def order_queue_of(
    queue_manager: bytes, address: str, *, by_direct_name: bool
) -> DirectQueueName | PrivateQueueName:
    """Where order acks and final acks go.

    `by_direct_name`: the messages came with direct names, so that we know the
    peer by its IP `address`; otherwise by the GUID of the original sender.
    """
    if by_direct_name:
        return order_queue_name(address)
    return PrivateQueueName(queue_manager, ORDER_QUEUE_NUMBER)


def order_ack_packet(
    position: Position,
    *,
    destination: DirectQueueName | PrivateQueueName,
    own_id: bytes,
    message_number: int,
    sent_time: int,
) -> bytes:
    """The packet that acknowledges everything up to `position`, which is on disk."""
    assert position.number > 0
    return build_order_ack(
        source_queue_manager=own_id,
        destination=destination,
        message_number=message_number,
        sent_time=sent_time,
        body=OrderAckBody(position.sequence_id, position.number, position.number - 1),
    )


def final_ack_packet(
    original: UserMessage,
    message_class: int,
    *,
    destination: DirectQueueName | PrivateQueueName,
    own_id: bytes,
    message_number: int,
    sent_time: int,
) -> bytes:
    """The packet that tells the sender what became of its transactional message."""
    transaction = original.transaction
    assert transaction is not None, "only transactional messages are acknowledged so"
    return build_final_ack(
        source_queue_manager=own_id,
        destination=destination,
        message_number=message_number,
        sent_time=sent_time,
        message_class=message_class,
        body=FinalAckBody(
            transaction.sequence_id,
            transaction.sequence_number,
            transaction.previous_number,
            original.user.source_queue_manager,
            original.user.message_number,
        ),
    )


class FinalAcks:
    """The final acks to one order queue: alike but for a few numbers, which are patched in.

    Measured: 4 µs each, where `final_ack_packet` and the parse before it take 54.
    """

    def __init__(self, destination: DirectQueueName | PrivateQueueName, own_id: bytes) -> None:
        self._own_id = own_id
        self._destination = destination
        self._by_class: dict[int, bytes] = {}

    def packet(
        self, original: bytes, message_class: int, *, message_number: int, sent_time: int
    ) -> bytes:
        """What `final_ack_packet` makes for the same message, which is given as its packet."""
        template = self._by_class.get(message_class)
        if template is None:
            template = self._by_class[message_class] = build_final_ack(
                source_queue_manager=self._own_id,
                destination=self._destination,
                message_number=0,
                sent_time=0,
                message_class=message_class,
                body=FinalAckBody(0, 0, 0, NULL_GUID, 0),
            )
        packet = bytearray(template)
        patch_sent(packet, sent_time=sent_time, message_number=message_number)
        packet[-ACK_BODY_BYTES:] = final_ack_body(original)  # the body is the last of it
        return bytes(packet)


def _administration_queue(user: UserHeader, own_id: bytes) -> AckDestination | None:
    """UserHeader.AdminQueue as a name that means the same everywhere.  [MS-MQQB] 3.1.7.15"""
    queue, kind = user.admin_queue, user.flags.admin_type
    if kind == PRIVATE_ON_SOURCE:
        assert isinstance(queue, int)
        return PrivateQueueName(user.source_queue_manager, queue)
    if kind == PRIVATE_ON_DESTINATION:
        assert isinstance(queue, int)
        return PrivateQueueName(_destination_queue_manager(user, own_id), queue)
    assert not isinstance(queue, int)
    return queue


def _response_queue(user: UserHeader, own_id: bytes) -> tuple[int, QueueName]:
    """The original's destination, as type and name of a response queue."""
    queue, kind = user.destination_queue, user.flags.destination_type
    if kind == PRIVATE_ON_DESTINATION:
        assert isinstance(queue, int)
        manager = _destination_queue_manager(user, own_id)
        return PRIVATE_QUEUE, PrivateQueueName(manager, queue)
    assert kind in (NO_QUEUE, PUBLIC_QUEUE, DIRECT_QUEUE)
    return kind, queue


def _destination_queue_manager(user: UserHeader, own_id: bytes) -> bytes:
    """A null address is that of whom the message has reached: ours."""
    address = user.queue_manager_address
    return own_id if address == NULL_GUID else address


def _user_header(
    original: UserHeader,
    destination: AckDestination,
    own_id: bytes,
    message_number: int,
    sent_time: int,
) -> UserHeader:
    address = NULL_GUID
    queue: QueueName = destination
    if isinstance(destination, PrivateQueueName):
        kind, address, queue = (
            PRIVATE_ON_DESTINATION,
            destination.queue_manager,
            destination.number,
        )
    else:
        kind = DIRECT_QUEUE if isinstance(destination, DirectQueueName) else PUBLIC_QUEUE
    response_kind, response = _response_queue(original, own_id)
    flags = UserFlags.of(
        delivery=original.flags.delivery,
        destination_type=kind,
        response_type=response_kind,
        properties_header=1,
    )
    return UserHeader(
        own_id, address, INFINITE, sent_time, message_number, flags, queue, None, response, None
    )


def _build(original: UserMessage, message_class: int, user: UserHeader, body: bytes) -> bytes:
    properties = MessagePropertiesHeader(
        flags=PropertyFlags(0),
        label_length=0,
        message_class=message_class,
        correlation_id=correlation_bytes(
            original.user.source_queue_manager, original.user.message_number
        ),
        body_type=original.properties.body_type,
        application_tag=0,
        message_size=0,
        allocation_body_size=len(body),
        privacy_level=0,
        hash_algorithm=_HASH_ALGORITHM,
        encryption_algorithm=_ENCRYPTION_ALGORITHM,
        extension_size=0,
        label=original.properties.label,
        extension=b"",
        body=body,
    )
    base = BaseHeader(VERSION, 0, BaseFlags(PRIORITY), SIGNATURE, 0, INFINITE)
    return build_user_message(
        UserMessage(base, user, None, None, properties, None, None, None, None)
    )
