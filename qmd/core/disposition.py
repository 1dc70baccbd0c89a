"""What follows when a message has met its end: copies, acknowledgments, and a reason for people.

A message's end is a message class ([MS-MQMQ] 2.2.18.1.6) and a place.  At the
*source*, which took it from an application and answers for it, or at the
*destination*, which hosts its queue (or should):

                       destination                          source
    stored             acknowledgment (PA)                  journal (JP, not transactional)
    received           acknowledgment (PR), final ack       journal (JP, transactional)
    not delivered      acknowledgment (NA), final ack,      acknowledgment (NA, if it was found
                       perhaps a dead letter                out here), dead letter (JN)
    not received       acknowledgment (NR), final ack,      dead letter (JN)
                       perhaps a dead letter

A transactional message that a non-transactional queue refuses is kept in the
transactional dead-letter queue of the computer that hosts the queue, whatever
its sender asked for; a message for an unknown queue, and a plain one for a
transactional queue, likewise.  One that was in its queue and was not received is
kept where somebody else would not: docs/decisions/0010.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from protocol import MessageClass, UserMessage

DeadLetterQueue = Literal["deadletter", "deadxact"]

NEGATIVE = 0x8000  # it failed
RECEPTION = 0x4000  # it was in its queue

# Acknowledgments that would tell a stranger what this computer has and allows.
# [MS-MQQB] 3.1.7.15, <28>
INSECURE = frozenset(
    {
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
        MessageClass.NACK_ACCESS_DENIED,
        MessageClass.NACK_BAD_SIGNATURE,
        MessageClass.NACK_BAD_ENCRYPTION,
        MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
    }
)
# Refused by the queue that it names, or for want of one: kept where that happened.
KEPT_AT_DESTINATION = frozenset(
    {
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
        MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE,
        MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE,
        MessageClass.NACK_BAD_ENCRYPTION,
        MessageClass.NACK_HOP_COUNT_EXCEEDED,
    }
)


# A plain message whose sender has let it go when we had received it: kept if it asked for that.
# The first is [MS-MQQB] 3.1.5.8.8; of one that came too late nobody else would know.
KEPT_IF_WANTED = frozenset(
    {MessageClass.NACK_QUEUE_EXCEED_QUOTA, MessageClass.NACK_REACH_QUEUE_TIMEOUT}
)


class Consequences(NamedTuple):
    """What is to be done; classes are None where nothing is to be sent."""

    dead_letter: DeadLetterQueue | None = None  # keep it there, with its class
    journal: bool = False  # keep it in the machine journal
    acknowledgment: int | None = None  # class of the message to the administration queue
    final_ack: int | None = None  # class of the packet to the sender's order queue


NOTHING = Consequences()

# What queue managers send, and not applications.
SYSTEM_CLASSES = frozenset(MessageClass) - {MessageClass.NORMAL}

# An operator meant it: what others sent is gone, and their queue managers are told.
DESTROYED = frozenset({MessageClass.NACK_QUEUE_DELETED, MessageClass.NACK_QUEUE_PURGED})


def consequences(
    message: UserMessage,
    message_class: int,
    *,
    at_source: bool,
    insecure_nacks: bool,
    by_final_ack: bool = False,
    is_local: bool = False,
) -> Consequences:
    """What follows for `message` from its end.

    `is_local`, at the destination: it is the source as well, and tells itself nothing.
    `by_final_ack`: the source heard of it from the destination, which has then
    sent the acknowledgments.  A message that the source knows to have arrived
    (session ack, order ack) ends as ACK_REACH_QUEUE.  What queue managers send
    themselves is neither kept nor acknowledged ([MS-MQQB] <2>, <62>), but a
    refused transactional message must leave its sender whatever it claims to be.
    """
    assert at_source or not by_final_ack
    assert not (at_source and is_local)
    if message.properties.message_class in SYSTEM_CLASSES:
        if at_source or message_class & RECEPTION or not _needs_final_ack(message, message_class):
            return NOTHING
        return Consequences(final_ack=message_class)
    acknowledgment = _acknowledgment(message, message_class, insecure_nacks=insecure_nacks)
    if not at_source:
        is_kept = _is_kept(message, message_class, is_local=is_local)
        needs_final_ack = not is_local and _needs_final_ack(message, message_class)
        return Consequences(
            dead_letter=_dead_letter_queue(message) if is_kept else None,
            journal=is_local
            and message_class == MessageClass.ACK_RECEIVE
            and _is_journaled(message, message_class),
            acknowledgment=acknowledgment,
            final_ack=message_class if needs_final_ack else None,
        )
    if not message_class & NEGATIVE:
        return Consequences(journal=_is_journaled(message, message_class))
    is_found_here = not by_final_ack and not message_class & RECEPTION
    return Consequences(
        dead_letter=_dead_letter_queue(message) if message.user.flags.negative_journal else None,
        acknowledgment=acknowledgment if is_found_here else None,
    )


def _acknowledgment(
    message: UserMessage, message_class: int, *, insecure_nacks: bool
) -> int | None:
    """[MS-MQQB] 3.1.5.8.10, 3.1.7.2.1, 3.1.7.15"""
    wants = message.properties.flags
    wanted = {
        0: wants.positive_arrival,
        RECEPTION: wants.positive_receive,
        NEGATIVE: wants.negative_arrival,
        NEGATIVE | RECEPTION: wants.negative_receive,
    }[message_class & (NEGATIVE | RECEPTION)]
    if not wanted or (message_class in INSECURE and not insecure_nacks):
        return None
    return message_class


def _is_journaled(message: UserMessage, message_class: int) -> bool:
    """A plain message is delivered when the next queue manager has it, a transactional one when
    an application has received it.  [MS-MQQB] 3.1.5.5.4, 3.1.5.7"""
    if _is_transactional(message):
        delivered = MessageClass.ACK_RECEIVE
    else:
        delivered = MessageClass.ACK_REACH_QUEUE
    return message_class == delivered and bool(message.user.flags.positive_journal)


def _is_kept(message: UserMessage, message_class: int, *, is_local: bool) -> bool:
    """Whether it is kept where its queue is."""
    if message_class & NEGATIVE and message_class & RECEPTION:
        wanted = bool(message.user.flags.negative_journal)
        if not _is_transactional(message):
            return wanted and message_class not in DESTROYED  # its source has let it go
        # Its source keeps its own copy if it asked to hear of this end.  What an application has
        # rejected, somebody will want to see.
        if wanted:
            return is_local
        return message_class == MessageClass.NACK_RECEIVE_REJECTED
    if message_class in KEPT_IF_WANTED:
        return not _is_transactional(message) and bool(message.user.flags.negative_journal)
    return message_class in KEPT_AT_DESTINATION


def _needs_final_ack(message: UserMessage, message_class: int) -> bool:
    """Whether the sender still holds the message and must be told.  [MS-MQQB] 2.2.5, 3.1.7.2.2"""
    if message.transaction is None:
        return False
    flags = message.user.flags
    if message_class & RECEPTION:
        return bool(
            flags.negative_journal or flags.positive_journal or message.transaction.flags.final_ack
        )
    # One that came too late expires at its sender as well, which needs nobody for that.
    return bool(message_class & NEGATIVE and message_class != MessageClass.NACK_REACH_QUEUE_TIMEOUT)


def _dead_letter_queue(message: UserMessage) -> DeadLetterQueue:
    return "deadxact" if _is_transactional(message) else "deadletter"


def _is_transactional(message: UserMessage) -> bool:
    return message.transaction is not None


def reason_text(message_class: int, *, queue: str, detail: str = "") -> str:
    """Why a message ended, and what to do about it; `detail` is put behind the first sentence."""
    what, remedy = _REASONS.get(
        message_class, (f"The message to {{queue}} ended with class 0x{message_class:04x}", "")
    )
    sentence = what.format(queue=queue) + (f" ({detail})." if detail else ".")
    return f"{sentence} {remedy}" if remedy else sentence


# What happened, without its full stop, and what a person can do.
_REASONS: dict[int, tuple[str, str]] = {
    MessageClass.ACK_REACH_QUEUE: ("The message was stored in {queue}", ""),
    MessageClass.ACK_RECEIVE: ("The message was received from {queue} by an application", ""),
    MessageClass.NACK_BAD_DESTINATION_QUEUE: (
        "The computer that the message was sent to has no queue {queue}",
        "Create the queue there or correct its name, then send the message again.",
    ),
    MessageClass.NACK_DELETED: (
        "The message was deleted before it reached {queue}",
        "An operator has purged it on its way; or its place in its sequence was that of another"
        " message, because the sender was cloned or restored from a backup. Send it again if it is"
        " still wanted.",
    ),
    MessageClass.NACK_REACH_QUEUE_TIMEOUT: (
        "The message did not reach {queue} in the time that it was given",
        "Find out why that computer cannot be reached, or give messages a longer "
        "time-to-reach-queue.",
    ),
    MessageClass.NACK_QUEUE_EXCEED_QUOTA: (
        "The message found {queue} full",
        "Receive messages from the queue or raise its quota, then send the message again.",
    ),
    MessageClass.NACK_ACCESS_DENIED: (
        "The sender may not send to {queue}",
        "Ask the owner of the queue for the right to send.",
    ),
    MessageClass.NACK_HOP_COUNT_EXCEEDED: (
        "The message passed too many queue managers on its way to {queue}",
        "Look for a loop in the routes, then send the message again.",
    ),
    MessageClass.NACK_BAD_SIGNATURE: (
        "The signature of the message was not valid for {queue}",
        "Check the sender's certificate, then send the message again.",
    ),
    MessageClass.NACK_BAD_ENCRYPTION: (
        "The message could not be decrypted for {queue}",
        "Send it without encryption, or exchange the keys of the two computers anew.",
    ),
    MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE: (
        "The message is transactional, and {queue} is not",
        "Send it without a transaction, or to a transactional queue.",
    ),
    MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE: (
        "{queue} is transactional, and the message is not",
        "Send it within a transaction, or to a queue that is not transactional.",
    ),
    MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER: (
        "The computer of {queue} does not know the cryptographic provider of the message",
        "Send the message with a provider that both computers have.",
    ),
    MessageClass.NACK_QUEUE_DELETED: (
        "{queue} was deleted with the message in it",
        "Send the message to the queue that took its place.",
    ),
    MessageClass.NACK_QUEUE_PURGED: (
        "{queue} was purged with the message in it",
        "Send it again if it is still wanted.",
    ),
    MessageClass.NACK_RECEIVE_TIMEOUT: (
        "The message was not received from {queue} in the time that it was given",
        "See whether the receiving application runs, or give messages a longer "
        "time-to-be-received.",
    ),
    MessageClass.NACK_RECEIVE_REJECTED: (
        "The receiving application rejected the message in {queue}",
        "Its log says why; correct the message, then send it again.",
    ),
}
