"""Message classes: the kinds of acknowledgment messages, and the reasons of dead letters.

[MS-MQMQ] 2.2.18.1.6; those that only Windows sends, [MC-MQAC] 2.2.2.9.
"""

from qmd.catalogue.entry import Entry


def _class(number: int, code: str, name: str, value: int, *texts: str) -> Entry:
    what, cause, remedy = texts
    return Entry(number, code, what, cause, remedy, "", f"MQMSG_CLASS_{name}", value)


ENTRIES = (
    _class(
        2001,
        "report",
        "REPORT",
        0x0001,
        "The message reports a step of a traced message.",
        "The message was sent with tracing.",
        "Nothing is wrong.",
    ),
    _class(
        2002,
        "ack_reach_queue",
        "ACK_REACH_QUEUE",
        0x0002,
        "The message reached its queue.",
        "Its sender requested the acknowledgment.",
        "Nothing is wrong.",
    ),
    _class(
        2003,
        "order_ack",
        "ORDER_ACK",
        0x00FF,
        "The transactional messages so far were received in order.",
        "Queue managers acknowledge sequences to each other.",
        "Nothing is wrong.",
    ),
    _class(
        2004,
        "ack_receive",
        "ACK_RECEIVE",
        0x4000,
        "The message was received by an application.",
        "Its sender requested the acknowledgment.",
        "Nothing is wrong.",
    ),
    _class(
        2101,
        "nack_bad_destination_queue",
        "NACK_BAD_DST_Q",
        0x8000,
        "The destination queue does not exist.",
        "The destination computer has no queue of that name.",
        "Create the queue there or correct its name, then send the message again.",
    ),
    _class(
        2102,
        "nack_deleted",
        "NACK_DELETED",
        0x8001,
        "The message was deleted in transit.",
        "An operator purged its outgoing queue, or another message had the same number in its "
        "sequence because the sender was cloned or restored from a backup.",
        "Send it again if it is still needed. An operator purged its outgoing queue, or another"
        " message had the same number in its sequence because the sender was cloned or restored"
        " from a backup.",
    ),
    _class(
        2103,
        "nack_reach_queue_timeout",
        "NACK_REACH_QUEUE_TIMEOUT",
        0x8002,
        "The message did not reach its queue in time.",
        "Its time-to-reach-queue or time-to-be-received expired first: the other computer was "
        "off or unreachable, the outgoing queue was paused, or the time is too short. The "
        "reason of the dead letter names the obstacle.",
        "Find out why the destination computer is unreachable, or set a longer"
        " time-to-reach-queue.",
    ),
    _class(
        2104,
        "nack_queue_exceed_quota",
        "NACK_Q_EXCEED_QUOTA",
        0x8003,
        "The destination queue is full.",
        "It reached its quota.",
        "Receive messages from the queue or raise its quota, then send the message again.",
    ),
    _class(
        2105,
        "nack_access_denied",
        "NACK_ACCESS_DENIED",
        0x8004,
        "The sender may not send to the destination queue.",
        "The permissions of the queue do not include the sender. From qmd to Windows: messages "
        "of qmd carry no sender id, so the queue has to allow ANONYMOUS LOGON to send.",
        "Ask the owner of the queue for the right to send.",
    ),
    _class(
        2106,
        "nack_hop_count_exceeded",
        "NACK_HOP_COUNT_EXCEEDED",
        0x8005,
        "The message passed too many routing servers.",
        "Routes lead in a circle.",
        "Look for a loop in the routes, then send the message again.",
    ),
    _class(
        2107,
        "nack_bad_signature",
        "NACK_BAD_SIGNATURE",
        0x8006,
        "The signature of the message is not valid.",
        "It was changed on its way, or the destination does not know the certificate.",
        "Check the sender's certificate, then send the message again.",
    ),
    _class(
        2108,
        "nack_bad_encryption",
        "NACK_BAD_ENCRYPTION",
        0x8007,
        "The message could not be decrypted.",
        "The keys of the two computers do not match, or the destination accepts no "
        "encrypted messages.",
        "Send it without encryption, or exchange the keys of the two computers again.",
    ),
    _class(
        2109,
        "nack_could_not_encrypt",
        "NACK_COULD_NOT_ENCRYPT",
        0x8008,
        "The message could not be encrypted.",
        "A Windows sender found no key of the destination.",
        "Send it without encryption.",
    ),
    _class(
        2110,
        "nack_not_transactional_queue",
        "NACK_NOT_TRANSACTIONAL_Q",
        0x8009,
        "The message is transactional and the destination queue is not.",
        "A queue that is not transactional accepts no transactional messages; its kind "
        "cannot be changed.",
        "Send it without a transaction, or to a transactional queue.",
    ),
    _class(
        2111,
        "nack_not_transactional_message",
        "NACK_NOT_TRANSACTIONAL_MSG",
        0x800A,
        "The destination queue is transactional and the message is not.",
        "A transactional queue accepts transactional messages only; its kind cannot be changed.",
        "Send it within a transaction, or to a queue that is not transactional.",
    ),
    _class(
        2112,
        "nack_unsupported_crypto_provider",
        "NACK_UNSUPPORTED_CRYPTO_PROVIDER",
        0x800B,
        "The destination does not know the cryptographic provider of the message.",
        "The message is signed or encrypted in a way that the destination does not offer.",
        "Send the message with a provider that both computers have.",
    ),
    _class(
        2113,
        "nack_source_computer_guid_changed",
        "NACK_SOURCE_COMPUTER_GUID_CHANGED",
        0x800C,
        "The identity of the sending computer changed while the message was in transit.",
        "Message Queuing was reinstalled on a Windows sender.",
        "Send it again.",
    ),
    _class(
        2201,
        "nack_queue_deleted",
        "NACK_Q_DELETED",
        0xC000,
        "The queue was deleted with the message in it.",
        "An operator deleted the queue.",
        "Send the message to the queue that replaces the deleted one.",
    ),
    _class(
        2202,
        "nack_queue_purged",
        "NACK_Q_PURGED",
        0xC001,
        "The queue was purged with the message in it.",
        "An operator or an application emptied the queue.",
        "Send it again if it is still needed.",
    ),
    _class(
        2203,
        "nack_receive_timeout",
        "NACK_RECEIVE_TIMEOUT",
        0xC002,
        "The message was not received in time.",
        "It stayed in its queue until its time-to-be-received expired.",
        "Check that the receiving application runs, or set a longer time-to-be-received.",
    ),
    _class(
        2204,
        "nack_receive_timeout_at_sender",
        "NACK_RECEIVE_TIMEOUT_AT_SENDER",
        0xC003,
        "The receipt of the message was not confirmed in time.",
        "The sender waited for the confirmation of a transactional message until its time "
        "expired. The message may have been received nevertheless.",
        "Check at the destination before sending it again.",
    ),
    _class(
        2205,
        "nack_receive_rejected",
        "NACK_RECEIVE_REJECTED",
        0xC004,
        "The message was rejected by the receiving application.",
        "The application received it and reported that it cannot process it.",
        "Find the reason in the log of the application, correct the message, then send it again.",
    ),
)
