"""Disposition of a message that reached its end: dead letters, journal copies, acknowledgments.

The end of a message is a message class ([MS-MQMQ] 2.2.18.1.6) and a place. The place is the
*source*, which took the message from an application and is responsible for it, or the
*destination*, which hosts its queue (or should):

                       destination                          source
    stored             acknowledgment (PA)                  journal (JP, not transactional)
    received           acknowledgment (PR), final ack       journal (JP, transactional)
    not delivered      acknowledgment (NA), final ack,      acknowledgment (NA, if detected
                       possibly a dead letter               here), dead letter (JN)
    not received       acknowledgment (NR), final ack,      dead letter (JN)
                       possibly a dead letter

A non-transactional queue rejects a transactional message. The computer that hosts the queue then
keeps the message in its transactional dead-letter queue, whatever the sender requested. The same
holds for a message to an unknown queue, and for a non-transactional message to a transactional
queue. A message that was in its queue and was not received is kept at the place where no other
computer keeps it: docs/decisions/0010.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from protocol import MessageClass, UserMessage, parse_user_message
from qmd.core.packet_fields import end_fields, source_of

DeadLetterQueue = Literal["deadletter", "deadxact"]

NEGATIVE = 0x8000  # the message failed
RECEPTION = 0x4000  # the message had reached its queue

# These acknowledgments would disclose to an untrusted peer which queues exist here and how access
# to them is restricted. [MS-MQQB] 3.1.7.15, <28>
INSECURE = frozenset(
    {
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
        MessageClass.NACK_ACCESS_DENIED,
        MessageClass.NACK_BAD_SIGNATURE,
        MessageClass.NACK_BAD_ENCRYPTION,
        MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
    }
)
# Rejections by the destination queue, or because it does not exist: the computer where that
# happened keeps the message.
KEPT_AT_DESTINATION = frozenset(
    {
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
        MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE,
        MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE,
        MessageClass.NACK_BAD_SIGNATURE,
        MessageClass.NACK_BAD_ENCRYPTION,
        MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
        MessageClass.NACK_HOP_COUNT_EXCEEDED,
    }
)


# The source has already released a non-transactional message when its destination rejects it, so
# the destination keeps a copy if the message requests one. The first class is [MS-MQQB] 3.1.5.8.8;
# the second is needed because no other queue manager knows of a message that arrived too late.
KEPT_IF_WANTED = frozenset(
    {MessageClass.NACK_QUEUE_EXCEED_QUOTA, MessageClass.NACK_REACH_QUEUE_TIMEOUT}
)


class Consequences(NamedTuple):
    """Actions that follow the end of a message; a class of None means that nothing is sent."""

    dead_letter: DeadLetterQueue | None = None  # queue that keeps the message, with its class
    journal: bool = False  # keep a copy in the machine journal
    acknowledgment: int | None = None  # class of the message to the administration queue
    final_ack: int | None = None  # class of the packet to the sender's order queue


NOTHING = Consequences()

# Classes of messages that queue managers send, not applications.
SYSTEM_CLASSES = frozenset(MessageClass) - {MessageClass.NORMAL}

# Results of an operator's command: messages from other computers are deleted, and their queue
# managers are notified.
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
    """Return the actions that follow the end of `message`.

    `is_local`, at the destination: this queue manager is also the source, so no final ack is
    needed. `by_final_ack`: the destination reported the end to the source, and has sent the
    acknowledgments. If the source knows that a message has arrived (session ack, order ack), the
    message ends as ACK_REACH_QUEUE. Messages that queue managers send themselves are neither kept
    nor acknowledged ([MS-MQQB] <2>, <62>); but a rejected transactional message gets a final ack
    whatever its class, because its sender must release it.
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


class EndsAtDestination:
    """The consequences of one end of many messages at their destination.

    Most messages that end together have the same fields.  Only the first of them is parsed, which
    takes 20 µs.
    """

    def __init__(self, message_class: int, *, own_id: bytes, insecure_nacks: bool) -> None:
        """`own_id` is the GUID of this queue manager."""
        self._message_class = message_class
        self._own_id = own_id
        self._insecure_nacks = insecure_nacks
        self._known: dict[tuple[bool, tuple[int, ...]], Consequences] = {}

    def is_local(self, packet: bytes) -> bool:
        """Return whether this queue manager is the source of a message."""
        return source_of(packet) == self._own_id

    def of(self, packet: bytes) -> Consequences:
        """Return the consequences of the end of this message, as `consequences` does."""
        is_local = source_of(packet) == self._own_id
        key = is_local, end_fields(packet)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = consequences(
                parse_user_message(packet),
                self._message_class,
                at_source=False,
                insecure_nacks=self._insecure_nacks,
                is_local=is_local,
            )
        return found


def _acknowledgment(
    message: UserMessage, message_class: int, *, insecure_nacks: bool
) -> int | None:
    """Return the class to send, or None. [MS-MQQB] 3.1.5.8.10, 3.1.7.2.1, 3.1.7.15"""
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
    """Return whether the source journals the message at this end.

    A non-transactional message is delivered when the next queue manager has it, a transactional one
    when an application has received it. [MS-MQQB] 3.1.5.5.4, 3.1.5.7
    """
    if _is_transactional(message):
        delivered = MessageClass.ACK_RECEIVE
    else:
        delivered = MessageClass.ACK_REACH_QUEUE
    return message_class == delivered and bool(message.user.flags.positive_journal)


def _is_kept(message: UserMessage, message_class: int, *, is_local: bool) -> bool:
    """Return whether the destination keeps the message as a dead letter."""
    if message_class & NEGATIVE and message_class & RECEPTION:
        wanted = bool(message.user.flags.negative_journal)
        if not _is_transactional(message):
            return wanted and message_class not in DESTROYED  # the source has released it
        # The source keeps its own copy if it requested a report of this end. A message that an
        # application rejected is kept, because an operator will want to inspect it.
        if wanted:
            return is_local
        return message_class == MessageClass.NACK_RECEIVE_REJECTED
    if message_class in KEPT_IF_WANTED:
        return not _is_transactional(message) and bool(message.user.flags.negative_journal)
    return message_class in KEPT_AT_DESTINATION


def _needs_final_ack(message: UserMessage, message_class: int) -> bool:
    """Return whether the sender still holds the message and must be notified.

    [MS-MQQB] 2.2.5, 3.1.7.2.2
    """
    if message.transaction is None:
        return False
    flags = message.user.flags
    if message_class & RECEPTION:
        return bool(
            flags.negative_journal or flags.positive_journal or message.transaction.flags.final_ack
        )
    # A message that arrived too late also expires at its sender, without a final ack.
    return bool(message_class & NEGATIVE and message_class != MessageClass.NACK_REACH_QUEUE_TIMEOUT)


def _dead_letter_queue(message: UserMessage) -> DeadLetterQueue:
    return "deadxact" if _is_transactional(message) else "deadletter"


def _is_transactional(message: UserMessage) -> bool:
    return message.transaction is not None


def reason_text(message_class: int, *, queue: str, detail: str = "") -> str:
    """Return a text that says why a message ended and how to solve it, for people.

    `detail` is inserted after the first sentence.
    """
    what, remedy = _REASONS.get(
        message_class, (f"The message to {{queue}} ended with class 0x{message_class:04x}", "")
    )
    sentence = what.format(queue=queue) + (f" ({detail})." if detail else ".")
    return f"{sentence} {remedy}" if remedy else sentence


# For each class: the event, without its full stop, and a remedy.
_REASONS: dict[int, tuple[str, str]] = {
    MessageClass.ACK_REACH_QUEUE: ("The message was stored in {queue}", ""),
    MessageClass.ACK_RECEIVE: ("The message was received from {queue} by an application", ""),
    MessageClass.NACK_BAD_DESTINATION_QUEUE: (
        "The destination computer has no queue {queue}",
        "Create the queue there or correct its name, then send the message again.",
    ),
    MessageClass.NACK_DELETED: (
        "The message was deleted before it reached {queue}",
        "Send it again if it is still needed. An operator purged its outgoing queue, or another"
        " message had the same number in its sequence because the sender was cloned or restored"
        " from a backup.",
    ),
    MessageClass.NACK_REACH_QUEUE_TIMEOUT: (
        "The message did not reach {queue} in time",
        "Find out why the destination computer is unreachable, or set a longer"
        " time-to-reach-queue.",
    ),
    MessageClass.NACK_QUEUE_EXCEED_QUOTA: (
        "The queue {queue} was full",
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
        "Send it without encryption, or exchange the keys of the two computers again.",
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
        "Send the message to the queue that replaces the deleted one.",
    ),
    MessageClass.NACK_QUEUE_PURGED: (
        "{queue} was purged with the message in it",
        "Send it again if it is still needed.",
    ),
    MessageClass.NACK_RECEIVE_TIMEOUT: (
        "The message was not received from {queue} in time",
        "Check that the receiving application runs, or set a longer time-to-be-received.",
    ),
    MessageClass.NACK_RECEIVE_REJECTED: (
        "The receiving application rejected the message in {queue}",
        "Find the reason in the log of the application, correct the message, then send it again.",
    ),
}
