"""Answers of hosts over HTTP: messages that they will never accept are ended.  docs/srmp.md

A session has no packet by which its receiver refuses a message for good.  The door for SRMP, which
is the other end of the session, states it by a request instead, while the message is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qmd.core.disposition import NEGATIVE, RECEPTION
from qmd.core.packet_fields import message_number, source_of
from qmd.errors import Refusal
from qmd.message.shared_packet import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.way import Way
    from storage import Storage


class RefusedMessage(NamedTuple):
    """The identity of a refused message, and the end that it comes to."""

    source: bytes
    number: int
    message_class: int
    reason: str


async def reject(
    refused: RefusedMessage, link: Way | None, undeliverable: Undeliverable, storage: Storage
) -> int:
    """End a message that was handed to the session of a link; return when that is durable.

    Return 0 if none was: then it is handed again.  Raises Refusal for a class of another end.
    """
    if not refused.message_class & NEGATIVE or refused.message_class & RECEPTION:
        raise Refusal(
            "bad_class",
            f"0x{refused.message_class:04x} is no class of a message that was not delivered",
            "Use a negative class of arrival ([MS-MQMQ] 2.2.18.1.6).",
        )
    count = 0
    for queue in () if link is None else list(link.queues):
        for key in list(_keys(queue, refused)):
            undeliverable.refused(queue, key, refused.number, refused.message_class, refused.reason)
            count += 1
    if count:
        await storage.batch.barrier()
    return count


def _keys(queue: OutgoingQueue, refused: RefusedMessage) -> Iterator[int]:
    """Yield the keys of a message that was handed to a session."""
    if not queue.for_others:
        for sent in queue.transmitted:
            if sent.message_number == refused.number:
                yield sent.key
    for key, packet in queue.in_flight.items():
        if _is_it(whole(packet), refused):
            yield key
    for key, (packet, _) in queue.express.items():
        if _is_it(whole(packet), refused):
            yield key


def _is_it(packet: bytes, refused: RefusedMessage) -> bool:
    return message_number(packet) == refused.number and source_of(packet) == refused.source
