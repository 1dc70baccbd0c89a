"""Acknowledgments: messages to administration queues, and final acks to queue managers.

An administration acknowledgment is an ordinary message ([MS-MQQB] 3.1.7.15). A final ack must reach
the source of the message even when the session that brought the message has ended ([MS-MQQB]
3.1.7.17). The address of the source is therefore stored in the name of its outgoing queue,
"NAME via GUID".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol import (
    ORDER_QUEUE_NUMBER,
    DirectQueueName,
    UserMessage,
)
from protocol.errors import InvalidName
from protocol.identifiers import guid_text
from protocol.names.direct_name import PORT, Transport
from protocol.names.format_name import DirectName, FormatName, PrivateName, PublicName
from qmd.core.acknowledgment import (
    BODIES_BYTES_MAX,
    AckDestination,
    FinalAcks,
    administration_queues,
    brings_body,
    build_acknowledgment,
    final_ack_packet,
    order_queue_of,
)
from qmd.core.internal_names import ORDER_QUEUE
from qmd.core.packet_fields import names_destination_directly, source_of
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from qmd.message.limits import PRIORITY_MAX
from qmd.message.shared_packet import SharedEnd
from qmd.outcomes.administration_names import administration_name
from qmd.outcomes.deferred_acknowledgments import DeferredAcknowledgments
from qmd.outcomes.planned_acknowledgments import (
    IN_MEMORY_MAX,
    Aim,
    Planned,
    PlannedFinalAcks,
    WayBack,
)
from qmd.queues.outgoing_names import parse_queue_name
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.put import put_outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.answer_ways import AnswerWays
    from qmd.outcomes.post import Post
    from qmd.queues.answer_limits import AnswerLimits
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

FINAL_ACK_AGE_S = 30 * 86400  # a source that was away for longer has given up its message
WAYS_BACK_MAX = 10_000  # sources with an outgoing queue for final acks in memory


class Acknowledgments:
    """Builds acknowledgments and sends them."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        destinations: Destinations,
        deferred_acknowledgments: DeferredAcknowledgments,
        answer_ways: AnswerWays,
        answer_limits: AnswerLimits,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._recorder = recorder
        self._destinations = destinations
        self._ways_back: dict[tuple[bytes, bool], WayBack] = {}
        self._ways = answer_ways
        self._limits = answer_limits
        self._deferred = deferred_acknowledgments

    def connect(self, session_with: Callable[[bytes], PeerSession | None], post: Post) -> None:
        """Set the collaborators that are created later.

        `session_with` returns the session with the queue manager of a GUID, or None.
        """
        self._session_with = session_with
        self._post = post

    def restore(self) -> None:
        """Read the addresses of sources from the names of the restored outgoing queues."""
        for queue in self._outgoing.queues:
            name, via, _ = parse_queue_name(queue.destination)
            if via is not None and isinstance(name, DirectName) and name.queue == ORDER_QUEUE:
                self._ways.met(via, name.host, name.host)

    def to_application(
        self,
        original: UserMessage,
        message_class: int,
        batch: Batch,
        connection: PeerSession | None = None,
    ) -> None:
        """Send an acknowledgment to each administration queue that the original names.

        [MS-MQQB] 3.1.7.15. The acknowledgments go to the open batch. `connection` is the session
        that brings the original at this moment.
        """
        self.send(self.plan(original, message_class, connection), batch, connection)

    def plan(
        self,
        original: UserMessage,
        message_class: int,
        connection: PeerSession | None = None,
    ) -> Planned:
        """Build the acknowledgments for the administration queues that the original names.

        The first ones contain the body of the original, up to BODIES_BYTES_MAX in all: one message
        of 4 MB must not cause a hundred messages of 4 MB. The message of another host has limits
        (`AnswerWays`, `AnswerLimits`).
        """
        body_bytes = len(original.properties.body) if brings_body(original, message_class) else 0
        left_bytes = BODIES_BYTES_MAX
        source, number = original.user.source_queue_manager, original.user.message_number
        packets: list[tuple[Aim, bytes]] = []
        not_made: list[tuple[FormatName, str]] = []
        destinations = administration_queues(original, self._services.id)
        left_out = 0
        is_ours = connection is None and source == self._services.id
        if not is_ours and len(destinations) > 1:
            allowed = self._allowed(source, len(destinations), connection)
            left_out = len(destinations) - allowed
            del destinations[allowed:]
        for destination in destinations:
            name = self._administration_name(destination)
            if name is None:
                continue
            aim = self.aim(source, name, connection)
            if isinstance(aim, str):
                not_made.append((name, aim))
                continue
            with_body = body_bytes <= left_bytes
            left_bytes -= body_bytes if with_body else 0
            packet = build_acknowledgment(
                original,
                message_class,
                destination=destination,
                own_id=self._services.id,
                message_number=self._services.ids.next_message_number(),
                sent_time=int(self._services.environment.time()),
                with_body=with_body,
            )
            packets.append((aim, packet))
        return Planned(source, number, message_class, packets, not_made, left_out)

    def aim(
        self, source: bytes, name: FormatName, connection: PeerSession | None = None
    ) -> Aim | str:
        """Return the way to an administration queue, or why it gets no acknowledgment.

        `source` is the queue manager of the original.
        """
        asked = None
        if connection is not None or source != self._services.id:
            way = self._ways.way(source, name, connection)
            if isinstance(way, str):
                return way
            asked = way
        if asked is not None and asked.via is not None:
            return Aim(name, asked, None)
        return Aim(name, asked, self._session_to(source, name))

    def must_wait(self, aim: Aim) -> bool:
        """Return whether the directory must be asked about an administration queue."""
        name = aim.name
        return isinstance(name, PublicName) and self._deferred.must_wait(name, aim.asked)

    def send(self, planned: Planned, batch: Batch, connection: PeerSession | None = None) -> None:
        """Send the acknowledgments of one message with the open batch, and record its outcome.

        An acknowledgment that the limits of its host do not permit is recorded as not made.
        """
        source, number, message_class, packets, *_ = planned
        shared = SharedEnd()
        not_made = list(planned.not_made)
        for (name, asked, via), packet in packets:
            if isinstance(name, PublicName) and self._deferred.must_wait(name, asked):
                self._deferred.add(name, packet, batch, asked)  # which records the outcome, too
                continue
            dropped = self._post.send_packet(
                name, packet, batch, via=via, asked=asked, shared=shared
            )
            if dropped and asked is not None:
                self._limits.count_not_made(asked.by, "no room or no way")
                not_made.append((name, dropped))
                continue
            self._record(name, source, [number], message_class, dropped)
        if not_made or planned.left_out:
            self._count_not_made(planned, connection)
            self._record_not_made(planned._replace(not_made=not_made), connection)

    def record_sent(self, aim: Aim, source: bytes, numbers: list[int], message_class: int) -> None:
        """Record that messages of one source were acknowledged to a queue."""
        self._record(aim.name, source, numbers, message_class)

    def drop(
        self, aim: Aim, source: bytes, numbers: list[int], message_class: int, reason: str
    ) -> None:
        """Record that messages of one source get no acknowledgment, because of `reason`."""
        name, asked = aim.name, aim.asked
        about = str(name) if asked is None else asked.by
        self._services.log_limited(
            *("acknowledgment_not_sent", about),
            queue=str(name),
            count=len(numbers),
            reason=reason,
        )
        if asked is None:
            self._record(name, source, numbers, message_class, reason)
            return
        self._limits.count_not_made(asked.by, "no room or no way", len(numbers))
        for number in numbers:
            planned = Planned(source, number, message_class, [], [(name, reason)], 0)
            self._record_not_made(planned, None)

    def _allowed(self, source: bytes, wanted: int, connection: PeerSession | None) -> int:
        """Return how many of the administration queues of a message of another host count."""
        by = self._ways.asked(source, connection).by
        if connection is not None:
            connection.count_useless(wanted - 1)  # the work of many messages
        return 1 + self._limits.take_copies(by, wanted - 1)

    def _record(
        self,
        name: FormatName,
        source: bytes,
        numbers: list[int],
        message_class: int,
        dropped: str = "",
    ) -> None:
        """Record that messages were acknowledged to a queue, or why they were not."""
        self._note(
            EventHeader(
                Kind.UNACKNOWLEDGED if dropped else Kind.ACKNOWLEDGED,
                message_class=message_class,
                to_queue=str(name),
                reason=dropped,
            ),
            source,
            numbers,
        )

    def _note(self, header: EventHeader, source: bytes, numbers: list[int]) -> None:
        if self._recorder.enabled:
            self._recorder.group(header, source, lists=NO_LISTS).numbers.extend(numbers)

    def _count_not_made(self, planned: Planned, connection: PeerSession | None) -> None:
        """Count the administration queues of a message that its host may not name."""
        by = self._ways.asked(planned.source, connection).by
        for reason, count in (
            ("administration queue elsewhere", len(planned.not_made)),
            ("too many administration queues", planned.left_out),
        ):
            if count:
                self._limits.count_not_made(by, reason, count)

    def _record_not_made(self, planned: Planned, connection: PeerSession | None) -> None:
        """Record in one event the acknowledgments of a message that another host does not get."""
        source, not_made, left_out = planned.source, planned.not_made, planned.left_out
        by = self._ways.asked(source, connection).by
        name, reasons = "", []
        if not_made:
            name, reasons = str(not_made[0][0]), [not_made[0][1]]
        if len(not_made) > 1:
            reasons.append(f"{len(not_made) - 1} further administration queues get none, too")
        if left_out:
            reasons.append(
                f"{left_out} administration queues are left out, because {by} asks for too many"
                " ([consequences] copies_per_second)"
            )
        reason = "; ".join(reasons)
        self._services.log_limited("acknowledgment_not_sent", by, queue=name, reason=reason)
        header = EventHeader(
            Kind.UNACKNOWLEDGED,
            message_class=planned.message_class,
            to_queue=name,
            reason=reason,
        )
        if self._recorder.enabled:
            listed = self._recorder.shared(by, header, source)
            if listed is not None:
                self._note(listed, source, [planned.number])

    def _administration_name(self, destination: AckDestination) -> FormatName | None:
        """Return the name of an administration queue, or None if the original has an invalid one.

        Then its sender gets no acknowledgment.
        """
        try:
            return administration_name(destination)
        except InvalidName as error:
            self._services.log_limited("no_administration_queue", "name", reason=str(error))
            return None

    def _session_to(self, guid: bytes, name: FormatName) -> bytes | None:
        """Return `guid` if it has a session and `name` is a queue at its address, or None.

        [MS-MQQB] 1.3.5.1. The name contains no port. If several queue managers share an address,
        only the session leads to the right one.
        """
        connection = self._session_with(guid)
        if (
            connection is not None
            and isinstance(name, DirectName)
            and name.transport == "TCP"
            and (name.host, name.port) == (connection.host, PORT)
        ):
            return guid
        return None

    def final_ack(
        self, original: UserMessage, message_class: int, *, address: str, is_beside: bool = True
    ) -> bytes:
        """Return the packet that reports a refusal to the source. [MS-MQQB] 3.1.7.17

        `address` is that of the sending queue manager; `is_beside` says whether that is the source.
        """
        return final_ack_packet(
            original,
            message_class,
            destination=order_queue_of(
                original.user.source_queue_manager,
                address,
                by_direct_name=isinstance(original.user.destination_queue, DirectQueueName)
                and is_beside,
            ),
            own_id=self._services.id,
            message_number=self._services.ids.next_message_number(),
            sent_time=int(self._services.environment.time()),
        )

    def send_final_acks(self, packets: Sequence[bytes], message_class: int, batch: Batch) -> None:
        """Send final acks to the sources of accepted messages that have ended.

        [MS-MQQB] 3.1.7.2.2. `batch` contains the end of the messages as well, so that a crash
        cannot lose the final ack of an end.
        """
        planned = PlannedFinalAcks(message_class)
        self.plan_final_acks(packets, planned)
        self._send_planned(planned, batch)

    def plan_final_acks(self, packets: Sequence[bytes], planned: PlannedFinalAcks) -> None:
        """Build final acks, which `send_planned` sends when their messages end.

        Message numbers must be left for them.
        """
        sent_time = int(self._services.environment.time())
        next_number, message_class = self._services.ids.next_message_number, planned.message_class
        ways: dict[tuple[bytes, bool], WayBack | None] = {}  # that are found in this call
        by_way = planned.by_way
        for packet in packets:
            key = source_of(packet), names_destination_directly(packet)
            way = ways[key] if key in ways else ways.setdefault(key, self._way_back(packet))
            if way is None:
                planned.without_way.append(packet)
                continue
            ack = way.acks.packet(
                packet, message_class, message_number=next_number(), sent_time=sent_time
            )
            originals, acks = by_way.setdefault(way, ([], []))
            originals.append(packet)
            acks.append(ack)

    def send_planned(self, planned: PlannedFinalAcks, batch: Batch) -> None:
        """Send final acks with the open batch, which ends their messages.

        Those of a way that has changed since they were built are built anew.
        """
        for way, (originals, _) in list(planned.by_way.items()):
            if self._way_back(originals[0]) is not way:
                del planned.by_way[way]
                self.send_final_acks(originals, planned.message_class, batch)
        self._send_planned(planned, batch)

    def _send_planned(self, planned: PlannedFinalAcks, batch: Batch) -> None:
        message_class = planned.message_class
        for packet in planned.without_way:
            self._no_way_back(packet, message_class)
        deadline_s = self._services.clock.deadline_s(FINAL_ACK_AGE_S)
        for way, (originals, acks) in planned.by_way.items():
            keys = self._services.ids.next_lookup_ids(PRIORITY_MAX, len(acks))
            appended = put_outgoing(way.queue, keys, acks, batch, deadline_s)
            self._post.record_all_sent(way.queue, acks, keys)
            if len(acks) > IN_MEMORY_MAX:
                on_disk = {way.queue: keys[0]}
                batch.when_durable(partial(self._outgoing.all_appended_on_disk, on_disk))
            else:
                batch.when_durable(partial(self._outgoing.appended, way.queue, appended))
            self._recorder.record(
                EventHeader(
                    Kind.FINAL_ACK_SENT,
                    peer=guid_text(source_of(originals[0])),
                    message_class=message_class,
                    to_queue=way.queue.destination,
                ),
                originals,
                batch=batch,
            )

    def _no_way_back(self, packet: bytes, message_class: int) -> None:
        """Record that a message gets no final ack: the limits of its host permit no queue for it.

        Its source gives it up after the interval of its confirmation.
        """
        source = source_of(packet)
        by = self._ways.asked(source, None).by
        self._limits.count_not_made(by, "final ack")
        header = EventHeader(
            Kind.UNACKNOWLEDGED,
            peer=guid_text(source),
            message_class=message_class,
            reason=f"there is no outgoing queue for final acks to {by} ([consequences])",
        )
        if self._recorder.enabled:
            listed = self._recorder.shared(by, header, source)
            if listed is not None:
                self._recorder.record(listed, [packet])

    def expect_final_ack(self, packet: bytes) -> None:
        """Prepare the final ack of a message that is being accepted.

        This stores the address of its source in the same commit: after a restart there may be no
        session with the source, and its address is stored nowhere else.
        """
        self._way_back(packet)

    def forget_idle_ways(self) -> None:
        """Drop references to idle outgoing queues; they are created again on demand."""
        self._ways_back = {
            key: way for key, way in self._ways_back.items() if not way.queue.is_idle
        }

    def met(self, connection: PeerSession) -> None:
        """Remember the address of a queue manager, with which a session was opened."""
        session = connection.session
        if session is not None and session.remote_id is not None:
            self._ways.met(session.remote_id, connection.host, connection.origin)

    def _way_back(self, packet: bytes) -> WayBack | None:
        """Return the way to the order queue of the message's source; None if nothing leads there.

        [MS-MQQB] 3.1.7.17. It uses any present or later session with the source; if the address of
        the source is known, the link dials it.
        """
        source = source_of(packet)
        by_direct_name = names_destination_directly(packet)
        connection = self._session_with(source)
        way = self._ways_back.get((source, by_direct_name))
        host = self._ways.host_of(source) if connection is None else connection.host
        if way is not None and (not host or way.host == host):
            return way
        name: FormatName = PrivateName(source, ORDER_QUEUE_NUMBER)
        via = None
        if host:
            with contextlib.suppress(InvalidName):  # an address with a scope has no name
                name = DirectName(Transport.TCP, host, PORT, ORDER_QUEUE, private=True)
                via = source
        try:
            queue = self._destinations.route_name(
                name,
                for_acknowledgments=True,
                via=via,
                asked=self._ways.asked(source, connection),
            )
        except Refusal as refusal:
            self._services.log_limited("acknowledgment_not_sent", str(name), reason=refusal.text)
            return way
        assert isinstance(queue, OutgoingQueue)
        destination = order_queue_of(source, host, by_direct_name=bool(host) and by_direct_name)
        if len(self._ways_back) >= WAYS_BACK_MAX:
            self._ways_back.clear()
        way = WayBack(queue, host, FinalAcks(destination, self._services.id))
        self._ways_back[source, by_direct_name] = way
        return way
