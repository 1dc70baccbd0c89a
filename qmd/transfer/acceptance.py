"""Acceptance: decides whether a received message is accepted, refused, or known.

The steps have the order of [MS-MQQB] 3.1.5.8, as `docs/protocol-notes.md` reads it:

    may the session bring it? ──► received before? ──► room? ──► too late?
        ──► for another computer? ──► a queue of ours? ──► may the queue take it?
        ──► is it secure? ──► next of its sequence? ──► room in the queue? ──► accepted
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import UserMessage
from protocol.headers import HOPS_MAX
from protocol.message_class import MessageClass
from qmd.core.packet_fields import reach_time_s, time_left_s
from qmd.core.peer_instance import Lack
from qmd.outcomes.nack import why_not
from qmd.transfer.decision import HANDLED, KNOWN, Decision, Verdict, no_room, refused
from qmd.transfer.relay_rules import is_acknowledgment

if TYPE_CHECKING:
    from protocol.like_packets import Run
    from qmd.errors import Refusal
    from qmd.message_security.checking import Checked
    from qmd.peers.connection import PeerConnection
    from qmd.peers.next_hop import NextHops
    from qmd.peers.shortage import Shortage
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from qmd.transfer.local_destinations import LocalDestinations
    from qmd.transfer.relay import Relay
    from qmd.transfer.sender_access import SenderAccess
    from qmd.transfer.sequence_order import SequenceOrder
    from qmd.transfer.speakers import Speakers

_EXPRESS_BITS = 0x60
_HOPS = 0x1F
_LACKS = {
    "computer_full": Lack.COMPUTER,
    "disk_full": Lack.DISK,
    "express_full": Lack.EXPRESS,
}


class Acceptance:
    """Decides about received messages."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        known_messages: KnownMessages,
        local_destinations: LocalDestinations,
        next_hops: NextHops,
        relay: Relay,
        sequence_order: SequenceOrder,
        senders: SenderAccess,
        speakers: Speakers,
        shortage: Shortage,
    ) -> None:
        self._services = services
        self._admission = admission
        self._known_messages = known_messages
        self._local_destinations = local_destinations
        self._next_hops = next_hops
        self._relay = relay
        self._sequence_order = sequence_order
        self._senders = senders
        self._speakers = speakers
        self._shortage = shortage

    def decide(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        security: Checked | None = None,
        *,
        wall_ms: int,
        now: float,
    ) -> Decision:
        """Decide about a message of a session, and count its position if it is accepted.

        security: the check of a message for this host with a SecurityHeader; wall_ms: milliseconds
        since 1970; now: the clock of the event loop, in seconds.  A message for another computer is
        in its outgoing queue when this returns.
        """
        user, is_transactional = message.user, message.transaction is not None
        assert connection.session is not None
        source = user.source_queue_manager
        if denial := self._speakers.refusal(connection, source):
            return denial
        if not is_transactional and self._known_messages.is_duplicate(
            connection, source, user.message_number
        ):
            return KNOWN
        size = len(packet)
        full = self._admission.is_full(
            size, express_bytes=0 if user.flags & _EXPRESS_BITS else size
        )
        if full is not None:
            return self._decide_without_room(connection, message, packet, full, wall_ms, now)
        left_s = time_left_s(packet, reach_time_s(packet), wall_ms // 1000)
        too_late = left_s is not None and left_s < 0
        if too_late and not is_transactional:
            return refused(MessageClass.NACK_REACH_QUEUE_TIMEOUT)
        if self._relay.enabled:
            decision = self._relay.take(connection, message, packet, wall_ms, now)
            if decision is not None:
                return decision
        if source != connection.session.remote_id:
            self._next_hops.learn_way_back(source, connection)
        queue = self._local_destinations.find(message)
        if queue is None:
            return self._decide_without_queue(connection, message)
        if (cannot := why_not(queue, message)) is not None:
            return refused(cannot, queue)
        insecure = self._senders.refusal(connection, message, queue, security)
        has_room = queue.has_room(size)
        if is_transactional:
            # The source makes a dead letter of a refused message.  Another copy of it may be on its
            # way, at a relay or in an earlier session.
            refusal = self._known_messages.refusal(connection, source, user.message_number)
            decision = self._sequence_order.check(
                connection,
                message,
                queue,
                now,
                can_be_taken=has_room and not too_late and refusal is None and insecure is None,
            )
            if decision.verdict is not Verdict.ACCEPTED:
                return decision
            if too_late:
                return refused(MessageClass.NACK_REACH_QUEUE_TIMEOUT)
            if refusal is not None:
                return refused(refusal, queue)
        else:
            decision = Decision(Verdict.ACCEPTED, queue)
        if insecure is None and not has_room:
            return refused(MessageClass.NACK_QUEUE_EXCEED_QUOTA, queue)
        return decision if insecure is None else insecure

    def accepts_run(
        self,
        connection: PeerConnection,
        message: UserMessage,
        run: Run,
        decision: Decision,
        now: float,
    ) -> bool:
        """Accept messages that follow `message` and are like it, all or none.

        `decision` is that about `message`, in this turn of the loop.  All that it depended on holds
        for them too, except for the room that they need and their own numbers.  If this returns
        False, nothing is accepted, and each of them needs a decision of its own.
        """
        queue, stream = decision.queue, decision.stream
        if decision.verdict is not Verdict.ACCEPTED or queue is None:
            return False
        source, transaction = message.user.source_queue_manager, message.transaction
        first, count = run.first_position, len(run.packets)
        size = sum(map(len, run.packets))
        if (
            self._relay.enabled
            or self._known_messages.has_any(connection, source, run.message_numbers)
            or (
                stream is not None
                and transaction is not None
                and not stream.sequence.is_next(transaction.sequence_id, first, first - 1)
            )
            or not queue.has_room(size)
            or self._admission.is_full(size, messages=count) is not None
        ):
            return False
        if stream is None or transaction is None:
            return True
        last = first + count - 1
        return stream.sequence.offer(transaction.sequence_id, last, first - 1, now)

    def _handled(self, connection: PeerConnection, message: UserMessage) -> bool:
        """Pass a message for an internal queue to it; return whether it was one."""
        queue = self._local_destinations.find_internal(message)
        if queue is not None:
            queue.received(connection, message)
        return queue is not None

    def _decide_without_room(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        full: Refusal,
        wall_ms: int,
        now: float,
    ) -> Decision:
        """Decide about a message while this queue manager has no room for messages.

        Relayed acknowledgments are taken: the messages that fill this computer may leave it only
        after them (docs/decisions/0087).
        """
        if self._handled(connection, message):  # it needs no room
            return HANDLED
        if (
            self._relay.enabled
            and is_acknowledgment(message)
            and self._admission.lets_acknowledgment_pass(len(packet))
        ):
            decision = self._relay.take(connection, message, packet, wall_ms, now)
            if decision is not None:
                return decision
        # The sender keeps what is not acknowledged: [MS-MQQB] 3.1.5.8.8.
        self._shortage.note(_LACKS.get(full.code, Lack.OTHER), now)
        self._services.log_limited("session_closed_for_lack_of_room", "room", reason=full.text)
        return no_room(f"no room for messages: {full.text}")

    def _decide_without_queue(self, connection: PeerConnection, message: UserMessage) -> Decision:
        """Decide about a message for an internal queue, or for a queue that does not exist."""
        if self._handled(connection, message):
            return HANDLED
        if (
            not self._local_destinations.is_addressed_here(message)
            and message.user.flags & _HOPS == HOPS_MAX
        ):
            # [MS-MQQB] 3.1.5.8.2: no queue manager may pass it on.
            return refused(MessageClass.NACK_HOP_COUNT_EXCEEDED)
        return refused(MessageClass.NACK_BAD_DESTINATION_QUEUE)
