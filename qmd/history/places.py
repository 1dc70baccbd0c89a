"""Places of messages: plain values that say where a message is, in a local or an outgoing queue.

A place has a `kind` ("queue", "journal", "dead_letter", "outgoing", ...), the name of its queue,
and facts about the message there.  `qmd/history/explanation.py` makes sentences of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from protocol import parse_user_message
from protocol.errors import MalformedPacket
from protocol.security_marks import has_security
from qmd.control_protocol.messages import StoredMessage
from qmd.core.packet_fields import is_transactional, message_number, sent_time_s, source_of
from qmd.message.shared_packet import head_of, whole_message
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from qmd.transfer import sequence_renewal
from storage.tables import retries, whereabouts
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK

if TYPE_CHECKING:
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

AHEAD_MAX = 100_000  # messages ahead of one that are counted
AHEAD_FEW = 1000  # the same for another queue manager's request

Value = dict[str, Any]
MessageId = tuple[bytes, int]  # GUID of its source, number


class LocalPlaces:
    """The places of messages in local queues."""

    def __init__(self, services: Services, queues: LocalQueues) -> None:
        self._services = services
        self._queues = queues

    async def at_key(self, key: int, ahead_max: int = AHEAD_MAX) -> tuple[MessageId, Value] | None:
        """Return the message with this key and its place, or None.

        The position in the queue is counted up to `ahead_max` messages.
        """
        queue = self._queues.by_id.get(key >> LOOKUP_BITS)
        if queue is None:
            return None
        express = queue.express.get(key & LOOKUP_MASK)
        if express is not None:
            head = head_of(express.packet)
            of = source_of(head), message_number(head)
            return of, self.of_express(queue, whole_message(express))
        found = await self._services.storage.read(
            partial(whereabouts.in_queue, key=key, ahead_max=ahead_max)
        )
        if found is None:
            return None
        row, packet = found.row, found.row.packet
        place = self._place(
            queue,
            key & LOOKUP_MASK,
            packet,
            row.arrived_at_ms if row.last_move_at_ms is None else row.last_move_at_ms,
            row.reason,
            found.ahead,
            row.expires_at_s,
        )
        if queue.parent is not None:
            due_ms = await self._services.storage.read(partial(retries.find, key=key))
            ahead_s = self._services.environment.time() - self._services.clock.now
            place["retry_at_ms"] = None if due_ms is None else due_ms + int(ahead_s * 1000)
        return (source_of(packet), message_number(packet)), place

    def _place(
        self,
        queue: LocalQueue,
        lookup_id: int,
        packet: bytes,
        since_ms: int,
        reason: str | None,
        ahead: int | None,
        expires_at_s: int | None,
    ) -> Value:
        taker = next((each for each in queue.takers if each.has(queue, lookup_id)), None)
        return {
            "kind": _kind_of(queue, reason),
            "queue": queue.name,
            "lookup_id": lookup_id,
            "position": None if ahead is None else ahead + 1,
            "since_ms": since_ms,
            "taken": queue.is_busy_with(lookup_id),
            "taken_by": None
            if taker is None
            else {"client": taker.who, "at_ms": wall_ms(self._services, taker.took_at_s)},
            "readers_waiting": len(queue.waiters),
            "transactional": is_transactional(packet),
            "reason": reason,
            "expires_at_ms": end_ms(self._services, None if queue.is_system else expires_at_s),
            "signer": _signer(packet),
        }

    def of_express(self, queue: LocalQueue, message: StoredMessage) -> Value:
        """Return the place of an express message."""
        return self._place(
            queue,
            message.lookup_id,
            message.packet,
            message.arrived_at_ms,
            None,
            None,
            message.expires_at_s,
        )


def _signer(packet: bytes) -> Value | None:
    """Return the verified signer of a message in a queue of here, or None.

    It is as of `qmd.message_security.signer_facts`.
    """
    if not has_security(packet):
        return None
    try:
        message = parse_user_message(packet)
    except MalformedPacket:  # a damaged one is shown as such
        return None
    if message.security is None:
        return None
    from qmd.message_security.signer_facts import signer_facts

    return signer_facts(message)


class OutgoingPlaces:
    """The places of messages in outgoing queues."""

    def __init__(
        self, services: Services, outgoing: OutgoingQueues, identities: IdentityConflicts
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._identities = identities

    def queue_by_id(self, outgoing_id: int) -> OutgoingQueue | None:
        """Return the outgoing queue with this id, or None."""
        queues = self._outgoing.queues
        return next((queue for queue in queues if queue.id == outgoing_id), None)

    async def at_key(self, key: int, ahead_max: int = AHEAD_MAX) -> tuple[MessageId, Value] | None:
        """Return the message with this key and its place, or None.

        The position in the queue is counted up to `ahead_max` messages.
        """
        found = await self._services.storage.read(
            partial(whereabouts.in_outgoing, key=key, ahead_max=ahead_max)
        )
        queue = self.queue_by_id(key >> LOOKUP_BITS)
        if found is None or queue is None:
            return None
        packet = found.row.packet
        expires_at_s = found.row.expires_at_s
        place = self.place(queue, key & LOOKUP_MASK, packet, found.ahead, expires_at_s)
        return (source_of(packet), message_number(packet)), place

    def place(
        self,
        queue: OutgoingQueue,
        key: int,
        packet: bytes,
        ahead: int | None,
        expires_at_s: int | None,
    ) -> Value:
        """Return the place of a message; `ahead` is the number of messages ahead of it."""
        link, now = queue.link, self._services.loop.time()
        transactional = key >= TRANSACTIONAL_FIRST
        if transactional:
            transmitted = queue.find_transmitted(key) is not None
            number = queue.number_of(key)
        else:
            transmitted, number = key in queue.in_flight, None
        timer = queue.sequence.next_timer()
        last = link.retry.last
        connection = link.connection
        return {
            "kind": "outgoing",
            "queue": queue.destination,
            "lookup_id": key,
            "position": None if ahead is None else ahead + 1,
            "since_ms": sent_time_s(packet) * 1000,
            "address": link.name if connection is None else f"{connection.host}:{connection.port}",
            "paused": queue.paused,
            "connected": connection is not None,
            "transmitted": transmitted and connection is not None,
            "transactional": transactional,
            "doubt": queue.doubt if transactional else "",
            "unanswered": sequence_renewal.unanswered(queue) if transactional else "",
            "sequence_number": number,
            "resend_in_s": None
            if timer is None or not transactional
            else round(max(0.0, timer - now), 1),
            "address_known": link.is_reachable,
            "failures": link.retry.failures,
            "last_result": last.result if last is not None else "",
            "refusal_remedy": self._identities.remedy_of_refusal(link.retry.last),
            "next_attempt_in_s": round(max(0.0, link.retry.next_attempt - now), 1),
            "expires_at_ms": end_ms(self._services, expires_at_s),
        }


def wall_ms(services: Services, at_s: float) -> int:
    """Return the wall-clock time, by its present state, of a time of the queue manager's clock."""
    return int((services.environment.time() + at_s - services.clock.now) * 1000)


def end_ms(services: Services, last_s: int | None) -> int | None:
    """Return the wall-clock time at which a message with this last second expires."""
    return None if last_s is None else wall_ms(services, last_s + 1)


def _kind_of(queue: LocalQueue, reason: str | None) -> str:
    if queue.key.endswith(";journal"):
        return "journal"
    # Only dead letters have a reason, in the queues of the system and in those of applications.
    is_dead = queue.key in ("system$;deadletter", "system$;deadxact") or reason is not None
    return "dead_letter" if is_dead else "queue"
