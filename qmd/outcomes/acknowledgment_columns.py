"""Acknowledgments of many messages that end in one commit, made in parts before it.

    add ──(between other work)──► columns ──► write: one turn of the loop, one batch

To make an acknowledgment, to find its way and to put it into its queue takes 70 to 120 µs, so that
65,536 of them held the event loop for seconds.  Those that go one way are a column here, and are
put into their queue together, 1 µs each.  Nothing is sent before `write`: until then, the messages
have not ended.  A way that has changed meanwhile, and acknowledgments that wait for the directory,
are handled one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from protocol.identifiers import NULL_GUID
from protocol.names.format_name import PublicName
from protocol.patching import with_queue_manager
from qmd.control_protocol.messages import StoredMessage
from qmd.core.acknowledgment import brings_body
from qmd.core.packet_fields import is_express, reach_time_s, receive_time_s
from qmd.message.limits import PRIORITY_MAX
from qmd.outcomes.planned_acknowledgments import IN_MEMORY_MAX, Planned, PlannedFinalAcks
from qmd.queues.local_rows import LocalRows
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.put import put_all, put_outgoing

if TYPE_CHECKING:
    from protocol import UserMessage
    from protocol.names.format_name import FormatName
    from qmd.naming.destinations import Route
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.planned_acknowledgments import Aim
    from qmd.outcomes.post import Post
    from qmd.queues.answer_limits import AnswerLimits
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


class _Column:
    """The acknowledgments that go one way, as parallel lists."""

    __slots__ = ("aim", "numbers", "packets", "route", "source")

    def __init__(self, source: bytes, aim: Aim, route: Route | str) -> None:
        self.source = source  # of the acknowledged messages
        self.aim = aim
        self.route = route  # or why no queue takes them
        self.numbers: list[int] = []  # of the acknowledged messages
        self.packets: list[bytes] = []


class AcknowledgmentColumns:
    """The acknowledgments of one class of messages that end together."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        answer_limits: AnswerLimits,
        acknowledgments: Acknowledgments,
        post: Post,
        message_class: int,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._limits = answer_limits
        self._acknowledgments = acknowledgments
        self._post = post
        self._class = message_class
        #: By their way; None: acknowledgments that go one by one.
        self._columns: dict[Hashable, _Column | None] = {}
        self._one_by_one: list[Planned] = []
        self._final_acks = PlannedFinalAcks(message_class)
        self.count = 0  # of acknowledgments

    def add(self, original: UserMessage) -> None:
        """Make the acknowledgments of one message.  Message numbers must be left for them."""
        planned = self._acknowledgments.plan(original, self._class)
        self.count += len(planned.packets)
        if len(planned.packets) > 1 and brings_body(original, self._class):
            self._one_by_one.append(planned)  # they are stored with one common end
            return
        alone: list[tuple[Aim, bytes]] = []
        for aim, packet in planned.packets:
            column = self._column(planned.source, aim, packet)
            if column is None:
                alone.append((aim, packet))
                continue
            column.numbers.append(planned.number)
            column.packets.append(_addressed(packet, aim, column.route))
        if alone or planned.not_made or planned.left_out:
            self._one_by_one.append(planned._replace(packets=alone))

    def add_final_acks(self, originals: Sequence[bytes]) -> None:
        """Make the final acks of messages.  Message numbers must be left for them."""
        self._acknowledgments.plan_final_acks(originals, self._final_acks)
        self.count += len(originals)

    def write(self) -> None:
        """Send all of them with the open batch, which ends their messages.

        As many lookup ids must be left.
        """
        batch = self._services.storage.batch
        for column in self._columns.values():
            if column is not None:
                self._write(column, batch)
        for planned in self._one_by_one:
            self._acknowledgments.send(planned, batch)
        self._acknowledgments.send_planned(self._final_acks, batch)

    def _column(self, source: bytes, aim: Aim, packet: bytes) -> _Column | None:
        key = source, aim, is_express(packet)
        if key not in self._columns:
            found = self._route(aim)
            self._columns[key] = None if found is None else _Column(source, aim, found)
        return self._columns[key]

    def _route(self, aim: Aim) -> Route | str | None:
        """Return the queue that takes the acknowledgments, or why none does; None: the directory
        must be asked."""
        if self._acknowledgments.must_wait(aim):
            return None
        return self._post.route_of(aim.name, via=aim.via, asked=aim.asked)

    def _write(self, column: _Column, batch: Batch) -> None:
        aim, route = column.aim, column.route
        now = self._acknowledgments.aim(column.source, aim.name)
        if now != aim or self._route(aim) != route:
            for number, packet in zip(column.numbers, column.packets, strict=True):
                self._send_alone(column.source, number, now, aim.name, packet, batch)
            return
        if isinstance(route, str):
            self._drop(column, 0, route)
            return
        fitting, reason = self._room(column, route)
        if fitting < len(column.numbers):
            self._drop(column, fitting, reason)
        if fitting:
            self._put(column, route, fitting, batch)

    def _send_alone(
        self,
        source: bytes,
        number: int,
        aim: Aim | str,
        name: FormatName,
        packet: bytes,
        batch: Batch,
    ) -> None:
        """Send an acknowledgment of which the way has changed; `aim` is the present one."""
        planned = Planned(source, number, self._class, [], [], 0)
        if isinstance(aim, str):
            planned.not_made.append((name, aim))
        else:
            planned.packets.append((aim, packet))
        self._acknowledgments.send(planned, batch)

    def _drop(self, column: _Column, start: int, reason: str) -> None:
        numbers = column.numbers[start:]
        self._acknowledgments.drop(column.aim, column.source, numbers, self._class, reason)

    def _room(self, column: _Column, route: Route) -> tuple[int, str]:
        """Return how many acknowledgments have room, and why not more.

        Only those that a message of another host asks for have limits.
        """
        count = len(column.packets)
        if column.aim.asked is None:
            return count, ""
        sizes = list(accumulate(map(len, column.packets)))

        def refusal(messages: int) -> str:
            size = sizes[messages - 1]
            if isinstance(route, OutgoingQueue):
                return self._limits.no_room(route, size, messages)
            return "" if route.has_room(size) else f"{route.name} is full"

        if not refusal(count):
            return count, ""
        fitting = bisect_left(range(1, count), True, key=lambda each: bool(refusal(each)))
        return fitting, refusal(fitting + 1)

    def _put(self, column: _Column, route: Route, count: int, batch: Batch) -> None:
        """Put the first `count` acknowledgments of a column into their queue."""
        packets = column.packets[:count]
        first = packets[0]
        keys = self._services.ids.next_lookup_ids(PRIORITY_MAX - (first[2] & 7), count)
        self._post.record_all_sent(route, packets, keys)
        if isinstance(route, OutgoingQueue):
            deadline_s = self._deadline_s(column.aim, first)
            self._put_outgoing(route, keys, packets, deadline_s, batch)
        else:
            expires_at_s = self._services.clock.deadline_s(receive_time_s(first))
            self._put_here(route, keys, packets, expires_at_s, batch)
        self._acknowledgments.record_sent(
            column.aim, column.source, column.numbers[:count], self._class
        )

    def _deadline_s(self, aim: Aim, packet: bytes) -> int | None:
        """Return the last second in which an acknowledgment may leave."""
        age_s = reach_time_s(packet)
        if aim.asked is not None:
            age_s = int(self._services.settings.consequences.age_s)
        return self._services.clock.deadline_s(age_s)

    def _put_here(
        self,
        queue: LocalQueue,
        keys: list[int],
        packets: list[bytes],
        expires_at_s: int | None,
        batch: Batch,
    ) -> None:
        wall_ms = int(self._services.environment.time() * 1000)
        express = is_express(packets[0])
        size = sum(map(len, packets))
        if not express and len(packets) > IN_MEMORY_MAX:
            queue.count_in(len(packets), size)
            expiries = [expires_at_s] * len(keys)
            batch.insert_messages(LocalRows(queue.id, keys, packets, wall_ms, expiries), size)
            batch.when_durable(partial(queue.deliver_from_disk, keys))
            return
        messages = [
            StoredMessage(key, wall_ms, packet, expires_at_s=expires_at_s)
            for key, packet in zip(keys, packets, strict=True)
        ]
        if express:
            queue.count_in(len(messages), size)
            queue.deliver((), messages)
        else:
            put_all(queue, messages, batch)
            batch.when_durable(partial(queue.deliver, messages))

    def _put_outgoing(
        self,
        queue: OutgoingQueue,
        keys: list[int],
        packets: list[bytes],
        deadline_s: int | None,
        batch: Batch,
    ) -> None:
        outgoing = self._outgoing
        if is_express(packets[0]):
            appended = [
                outgoing.append(queue, key, packet, batch, deadline_s=deadline_s)
                for key, packet in zip(keys, packets, strict=True)
            ]
            outgoing.appended(queue, appended)
            return
        appended = put_outgoing(queue, keys, packets, batch, deadline_s)
        if len(packets) > IN_MEMORY_MAX:
            batch.when_durable(partial(outgoing.all_appended_on_disk, {queue: keys[0]}))
        else:
            batch.when_durable(partial(outgoing.appended, queue, appended))


def _addressed(packet: bytes, aim: Aim, route: Route | str) -> bytes:
    """Return the packet with the queue manager of a public queue, if the directory has named it."""
    if isinstance(aim.name, PublicName) and isinstance(route, OutgoingQueue):
        guid = route.address.queue_manager
        return packet if guid == NULL_GUID else with_queue_manager(packet, guid)
    return packet
