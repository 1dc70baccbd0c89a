"""Building of packets from new messages. [MS-MQMQ] 2.2.20

The packet is built once, when the message is accepted, and kept unchanged: on disk, in an outgoing
queue, on the wire. Only the fields that a later transmission changes (the previous sequence number,
the session header) are patched into a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from protocol import (
    BaseFlags,
    BaseHeader,
    DebugFlags,
    DebugHeader,
    DirectQueueName,
    MessageClass,
    MessagePropertiesHeader,
    MqfAddressHeader,
    MqfElement,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
    PrivateQueueName,
    PropertyFlags,
    SecurityFlags,
    SecurityHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_user_message,
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
    MQF_ADMIN,
    MQF_DESTINATION,
    MQF_DIRECT,
    MQF_DISTRIBUTION_LIST,
    MQF_PRIVATE,
    MQF_PUBLIC,
    MQF_RESPONSE,
    MQF_SIGNATURE,
)
from protocol.security_data import (
    AES_PROVIDER,
    PROVIDER_RSA_AES,
    ProviderInfo,
    build_provider,
)
from protocol.security_id import SENDER_ID_BYTES_MAX
from qmd.control_protocol.messages import AUTOMATIC, EXPRESS, INFINITE_S, TRANSACTIONAL, NewMessage
from qmd.errors import Refusal

LABEL_CHARACTERS_MAX = 249  # [MS-MQMQ] 2.2.19.3: 0xFA characters with the null
TIME_TO_REACH_QUEUE_DEFAULT_S = 345_600  # 4 days, [MS-MQDMPR] 3.1.1.12
PRIORITY_MAX = 7
REPLY_QUEUES_MAX = 100  # of one message; each of its acknowledgments is sent to all of them
TRANSACTION_INDEX_MASK = 0xFFFFF  # 20 bits, [MS-MQMQ] 2.2.20.5

_SIGNATURE = 0x524F494C  # "LIOR", [MS-MQMQ] 2.2.19.1
_VERSION = 0x10
# Types of queue names in UserHeader, [MS-MQMQ] 2.2.19.2
_PRIVATE_HERE, _PRIVATE, _PUBLIC, _PRIVATE_ELSEWHERE, _DIRECT = 2, 3, 5, 6, 7
DISTRIBUTION_LIST = -1  # not one of these types: allowed only as an element of a multiple name
_TRANSACTION, _PROPERTIES = 1 << 20, 1 << 21
_SECURITY = 1 << 19
_CONNECTOR = 1 << 22
_MULTI_QUEUE = 1 << 23
_DEBUG, _TRACING = 1 << 5, 1 << 8  # BaseHeader.Flags
_CLASS_BITS = 0xE1FF  # bits that applications may use, [MS-MQMQ] 2.2.18.1.6
_NEGATIVE_JOURNAL, _POSITIVE_JOURNAL = 1 << 8, 1 << 9
# The values of Windows in unsigned, unencrypted messages.
_HASH_SHA1, _CIPHER_RC4 = 0x8004, 0x6801
_NO_CORRELATION = bytes(20)
_PROVIDER = ProviderInfo(PROVIDER_RSA_AES, AES_PROVIDER)
_ITEM_BYTES_MAX = 0xFFFF  # of a SecurityHeader
_FIXED_BYTES = 16 + 48 + 56  # BaseHeader, UserHeader, MessagePropertiesHeader
_TRANSACTION_BYTES = 20


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


def check(new: NewMessage) -> None:
    """Raise Refusal for a value that no packet can carry."""
    if len(new.label) > LABEL_CHARACTERS_MAX or (
        not new.label.isascii() and len(new.label.encode("utf-16-le")) > 2 * LABEL_CHARACTERS_MAX
    ):
        raise Refusal(
            "label_too_long",
            f"the label has {len(new.label.encode('utf-16-le')) // 2} characters (UTF-16);"
            f" {LABEL_CHARACTERS_MAX} are allowed",
            "Shorten the label, or put the text into the body.",
        )
    if "\0" in new.label:
        raise Refusal("label_has_null", "the label contains a null character", "Leave it out.")
    if new.correlation_id and len(new.correlation_id) != 20:
        raise Refusal(
            "bad_correlation_id",
            f"the correlation id has {len(new.correlation_id)} bytes; it must have 20",
            "Give a message id, or 20 bytes in hexadecimal.",
        )
    if not 0 <= new.priority <= PRIORITY_MAX:
        raise Refusal(
            "bad_priority",
            f"priority {new.priority} is not between 0 and {PRIORITY_MAX}",
            "7 is the highest, 3 the default.",
        )
    if not 0 <= new.delivery <= AUTOMATIC:
        raise Refusal("bad_delivery", f"there is no delivery {new.delivery}", "It is 0 to 3.")
    for value, what, unit in (
        (new.time_to_reach_queue_s, "time-to-reach-queue", " s"),
        (new.time_to_be_received_s, "time-to-be-received", " s"),
        (new.body_type, "body type", ""),
        (new.application_tag, "application tag", ""),
    ):
        if value is not None and not 0 <= value <= 0xFFFFFFFF:
            raise Refusal(
                "number_out_of_range",
                f"a {what} of {value}{unit} does not fit: it must be between 0 and"
                f" {0xFFFFFFFF}{unit}",
                "For no limit, give `never`." if unit else "",
            )
    if not 0 <= new.acknowledge <= 0x0F:
        raise Refusal(
            "bad_acknowledge",
            f"{new.acknowledge} is not a combination of the four acknowledgments",
        )
    if bool(new.acknowledge) != bool(new.admin_queue):
        raise Refusal(
            "acknowledge_needs_queue",
            "acknowledgments are requested, and no administration queue is named for them"
            if new.acknowledge
            else "an administration queue is named, and no acknowledgments are requested",
            "Give both or neither.",
        )
    _check_rare(new)


def _check_rare(new: NewMessage) -> None:
    if len(new.sender_id) > SENDER_ID_BYTES_MAX:
        raise Refusal(
            "bad_sender_id",
            f"the sender id has {len(new.sender_id)} bytes; {SENDER_ID_BYTES_MAX} are allowed",
            "Give a security identifier such as S-1-5-21-1-2-1001.",
        )
    if _has_security(new) or new.hash_algorithm or new.privacy_level or new.encryption_algorithm:
        _check_security(new)
    if new.connector_type and len(new.connector_type) != 16:
        raise Refusal(
            "bad_connector_type",
            f"the connector type has {len(new.connector_type)} bytes; it must have 16",
            "Give a GUID.",
        )
    if new.message_class:
        if not new.connector_type:
            raise Refusal(
                "class_needs_connector",
                "only a message of a connector can have a class of its own",
                "Name the connector type as well, or omit the class.",
            )
        # [MS-MQMQ] 2.2.18.1.6: the class of order acks is reserved for queue managers.
        if not 0 <= new.message_class <= 0xFFFF or new.message_class & ~_CLASS_BITS:
            raise Refusal(
                "bad_class",
                f"the class 0x{new.message_class:x} has bits outside of 0x{_CLASS_BITS:04x}",
                "Choose another number.",
            )
        if new.message_class == MessageClass.ORDER_ACK:
            raise Refusal(
                "bad_class",
                "the class 0x00ff belongs to queue managers",
                "Choose another number.",
            )


def _check_security(new: NewMessage) -> None:
    if max(map(len, (new.signature, new.certificate, new.encryption_key))) > _ITEM_BYTES_MAX:
        raise Refusal(
            "bad_signature_size",
            f"a signature, certificate or key has more than {_ITEM_BYTES_MAX} bytes",
        )
    for value in (new.hash_algorithm, new.privacy_level, new.encryption_algorithm):
        if not 0 <= value <= 0xFFFFFFFF:
            raise Refusal("number_out_of_range", f"an algorithm of {value} does not fit")
    if bool(new.signature) != bool(new.certificate):
        raise Refusal(
            "signature_needs_certificate",
            "a signature and the certificate of its signer require each other",
            "Give both or neither.",
        )


def packet_size(
    new: NewMessage,
    destination: QueueAddress,
    admin: QueueAddress,
    response: QueueAddress,
    delivery: int,
    destinations: tuple[QueueAddress, ...] = (),
) -> int:
    """Return the size in bytes of the packet that `compose` will build."""
    label = 2 * len(new.label) + 2 if new.label else 0
    if label and not new.label.isascii():
        label = len(new.label.encode("utf-16-le")) + 2
    size = (
        _FIXED_BYTES
        + destination.size
        + admin.size
        + response.size
        + (_TRANSACTION_BYTES if delivery == TRANSACTIONAL else 0)
        + (label + len(new.extension) + len(new.body) + 3 & ~3)
    )
    if new.connector_type:
        size += 16
    if _has_security(new):
        size += _security_size(new)
    if new.report_queue:
        size += 20
    if destinations or admin.several or response.several:
        size += multi_queue_size(destinations or _each(destination), admin, response)
    return size


def compose(
    new: NewMessage,
    *,
    source: bytes,
    destination: QueueAddress,
    admin: QueueAddress,
    response: QueueAddress,
    message_number: int,
    sent_time_s: int,
    delivery: int,
    position: tuple[int, int, int] | None,
    dead_letter: bool | None = None,
    is_first: bool = True,
    is_last: bool = True,
    time_to_reach_queue_s: int = TIME_TO_REACH_QUEUE_DEFAULT_S,
    report_queue: bytes | None = None,
    destinations: tuple[QueueAddress, ...] = (),
    signature_type: int = 0,
) -> bytes:
    """Return the packet of `new`, which `check` has accepted, without a session header.

    `position` is (sequence id, number, transaction index) of a transactional message, which may be
    the first and the last of its transaction; `dead_letter` says whether it requests
    dead-lettering; `report_queue` is the GUID of the queue that receives the reports about a traced
    message; `destinations` are all elements of a multiple destination name; `signature_type` is the
    style of a signature that was verified, for a queue of this host.
    """
    is_multiple = bool(destinations or admin.several or response.several)
    priority = 0 if delivery == TRANSACTIONAL else new.priority
    time_to_reach_s = new.time_to_reach_queue_s
    flags = (
        _fixed_flags(new, delivery, dead_letter)
        | destination.type << 10
        | admin.type << 13
        | response.type << 16
        | (_MULTI_QUEUE if is_multiple else 0)
    )
    return build_user_message(
        UserMessage(
            BaseHeader(
                _VERSION,
                0,
                BaseFlags(priority | (0 if report_queue is None else _DEBUG | _TRACING)),
                _SIGNATURE,
                0,
                time_to_reach_queue_s if time_to_reach_s is None else time_to_reach_s,
            ),
            UserHeader(
                source,
                destination.queue_manager,
                INFINITE_S if new.time_to_be_received_s is None else new.time_to_be_received_s,
                sent_time_s & 0xFFFFFFFF,
                message_number,
                UserFlags(flags),
                destination.value,
                admin.value,
                response.value,
                new.connector_type or None,
            ),
            None if position is None else _transaction(position, is_first << 2 | is_last << 3),
            _security(new, bool(destinations), signature_type) if _has_security(new) else None,
            _properties(new),
            None if report_queue is None else DebugHeader(DebugFlags(1), 0, report_queue),
            None,
            _multi_queue(new, destinations, destination, admin, response) if is_multiple else None,
            None,
        )
    )


def _fixed_flags(new: NewMessage, delivery: int, dead_letter: bool | None) -> int:
    """Return the flags of the UserHeader that do not depend on queues.  [MS-MQMQ] 2.2.19.2"""
    if dead_letter is None:
        dead_letter = new.dead_letter is not False
    return (
        _PROPERTIES
        | (0 if delivery == EXPRESS else 1 << 5)
        | (_NEGATIVE_JOURNAL if dead_letter else 0)
        | (_POSITIVE_JOURNAL if new.journal else 0)
        | (_TRANSACTION if delivery == TRANSACTIONAL else 0)
        | (_SECURITY if _has_security(new) else 0)
        | (_CONNECTOR if new.connector_type else 0)
    )


def _transaction(position: tuple[int, int, int], first_and_last: int) -> TransactionHeader:
    """Return the header of a transactional message; `position` as in `compose`."""
    sequence_id, number, index = position
    return TransactionHeader(
        TransactionFlags(first_and_last | (index & TRANSACTION_INDEX_MASK) << 4),
        sequence_id,
        number,
        max(number - 1, 0),
        None,
    )


def _properties(new: NewMessage) -> MessagePropertiesHeader:
    """Return the header with the label, the extension and the body."""
    label = b"" if not new.label else new.label.encode("utf-16-le") + b"\0\0"
    return MessagePropertiesHeader(
        PropertyFlags(new.acknowledge),
        len(label) // 2,
        new.message_class,
        new.correlation_id or _NO_CORRELATION,
        new.body_type,
        new.application_tag,
        len(new.body),
        len(new.body),
        new.privacy_level,
        new.hash_algorithm or _HASH_SHA1,
        new.encryption_algorithm or _CIPHER_RC4,
        len(new.extension),
        label,
        new.extension,
        new.body,
    )


def _has_security(new: NewMessage) -> bool:
    return bool(new.sender_id or new.signature or new.encryption_key or new.certificate)


def _security(new: NewMessage, in_list: bool, signature_type: int) -> SecurityHeader:
    """Return a header with the sender, who is proven by a signature only. [MS-MQMQ] 2.2.20.6

    in_list: the signature is in the list of the queues, which it covers. [MS-MQMQ] 2.2.20.3

    The provider is named with an encrypted body, [MS-MQQB] 3.1.7.1.5; a signature alone is one of
    the default provider.
    """
    is_encrypted = bool(new.encryption_key)
    flags = SecurityFlags.of(
        sender_type=1 if new.sender_id else 0,
        body_encrypted=int(is_encrypted),
        signature_type=signature_type,
        default_provider=int(bool(new.signature) and not is_encrypted),
        data_present=1,
    )
    return SecurityHeader(
        flags,
        *(0, 0, 0, 0, 0),
        new.sender_id,
        new.encryption_key,
        b"" if in_list else new.signature,
        new.certificate,
        build_provider(_PROVIDER) if is_encrypted else b"",
    )


def _security_size(new: NewMessage) -> int:
    """Return the size in bytes of the SecurityHeader of a message that has one."""
    items = [new.sender_id, new.encryption_key, new.signature, new.certificate]
    if new.encryption_key:
        items.append(build_provider(_PROVIDER))
    return 16 + sum(len(item) + 3 & ~3 for item in items)


def _multi_queue(
    new: NewMessage,
    destinations: tuple[QueueAddress, ...],
    destination: QueueAddress,
    admin: QueueAddress,
    response: QueueAddress,
) -> MultiQueueFormatHeader:
    """Return the header with all queues; other headers have room for one. [MS-MQMQ] 2.2.20.1"""
    return MultiQueueFormatHeader(
        _list(MQF_DESTINATION, destinations or _each(destination)),
        _list(MQF_ADMIN, _each(admin)),
        _list(MQF_RESPONSE, _each(response)),
        MqfSignatureHeader(MQF_SIGNATURE, 0, 0, new.signature if destinations else b""),
    )


def _list(header_id: int, addresses: tuple[QueueAddress, ...]) -> MqfAddressHeader:
    return MqfAddressHeader(0, header_id, 0, 0, tuple(map(_element, addresses)))


def _each(address: QueueAddress) -> tuple[QueueAddress, ...]:
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
    for addresses in (destinations, _each(admin), _each(response)):
        end = 12
        for address in addresses:
            end += 2
            if address.type == _DIRECT:
                end += len(address.value.name)
            else:
                end = (end + 3 & ~3) + (16 if address.type in (_PUBLIC, DISTRIBUTION_LIST) else 20)
        size += end + 3 & ~3
    return size
