"""Building of packets from new messages. [MS-MQMQ] 2.2.20

The packet is built once, when the message is accepted, and kept unchanged: on disk, in an outgoing
queue, on the wire. Only the fields that a later transmission changes (the previous sequence number,
the session header) are patched into a copy.
"""

from __future__ import annotations

from protocol import (
    BaseFlags,
    BaseHeader,
    DebugFlags,
    DebugHeader,
    MessagePropertiesHeader,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
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
from protocol.names.multi_queue import (
    MQF_ADMIN,
    MQF_DESTINATION,
    MQF_RESPONSE,
    MQF_SIGNATURE,
)
from protocol.security_data import (
    AES_PROVIDER,
    PROVIDER_RSA_AES,
    ProviderInfo,
    build_provider,
)
from qmd.control_protocol.messages import EXPRESS, INFINITE_S, TRANSACTIONAL, NewMessage
from qmd.message.addresses import QueueAddress, address_list, each_address, multi_queue_size
from qmd.message.limits import has_security

TIME_TO_REACH_QUEUE_DEFAULT_S = 345_600  # 4 days, [MS-MQDMPR] 3.1.1.12
TRANSACTION_INDEX_MASK = 0xFFFFF  # 20 bits, [MS-MQMQ] 2.2.20.5

_SIGNATURE = 0x524F494C  # "LIOR", [MS-MQMQ] 2.2.19.1
_VERSION = 0x10
_TRANSACTION, _PROPERTIES = 1 << 20, 1 << 21
_SECURITY = 1 << 19
_CONNECTOR = 1 << 22
_MULTI_QUEUE = 1 << 23
_DEBUG, _TRACING = 1 << 5, 1 << 8  # BaseHeader.Flags
_NEGATIVE_JOURNAL, _POSITIVE_JOURNAL = 1 << 8, 1 << 9
# The values of Windows in unsigned, unencrypted messages.
_HASH_SHA1, _CIPHER_RC4 = 0x8004, 0x6801
_NO_CORRELATION = bytes(20)
_PROVIDER = ProviderInfo(PROVIDER_RSA_AES, AES_PROVIDER)
_FIXED_BYTES = 16 + 48 + 56  # BaseHeader, UserHeader, MessagePropertiesHeader
_TRANSACTION_BYTES = 20


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
    if has_security(new):
        size += _security_size(new)
    if new.report_queue:
        size += 20
    if destinations or admin.several or response.several:
        size += multi_queue_size(destinations or each_address(destination), admin, response)
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
            _security(new, bool(destinations), signature_type) if has_security(new) else None,
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
        | (_SECURITY if has_security(new) else 0)
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
        address_list(MQF_DESTINATION, destinations or each_address(destination)),
        address_list(MQF_ADMIN, each_address(admin)),
        address_list(MQF_RESPONSE, each_address(response)),
        MqfSignatureHeader(MQF_SIGNATURE, 0, 0, new.signature if destinations else b""),
    )
