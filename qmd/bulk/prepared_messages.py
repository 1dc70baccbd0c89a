"""Messages of a request that is not uniform: checked and composed in parts, sent in one turn.

    add, arrange (a part in each turn of the loop) ──► columns ──► check, write: one turn, one batch

The last turn compares the queues with those that the parts found, adds the sizes up, and gives the
packets their places.  Their rows are in one batch, so that the request is one commit.  Few messages
are not arranged in columns: `MessageSender` puts them into the batch one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from qmd.bulk.message_columns import MessageColumns
from qmd.bulk.message_shapes import NotUniform
from qmd.control_protocol.messages import EXPRESS
from qmd.errors import Refusal
from qmd.message.shared_packet import whole
from qmd.naming.fan_out import Copies
from qmd.operations.delayed import DelayedRows, is_delayed
from qmd.operations.send import Numbers
from qmd.queues.local_queue import LocalQueue
from qmd.queues.quotas import queue_refusal

if TYPE_CHECKING:
    from qmd.bulk.arrival_answers import ArrivalAnswers
    from qmd.bulk.column_writer import ColumnWriter
    from qmd.control_protocol.messages import NewMessage
    from qmd.message.prepared import PreparedPackets
    from qmd.message.shared_packet import Packet
    from qmd.naming.destinations import Route
    from qmd.naming.fan_out import Several
    from qmd.operations.delayed import DelayedMessages
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import Chosen, SendChecks
    from qmd.outcomes.prepared_ends import PreparedEnd
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import WorkParts


class _Condition:
    """Messages that differ in nothing that a check depends on but their size."""

    __slots__ = ("bytes", "example", "several", "way")

    def __init__(self, example: NewMessage, way: Chosen, several: Several | None) -> None:
        self.example = example  # the largest one
        self.bytes = _size(example)
        self.way = way
        self.several = several


class PreparedMessages:
    """The packets of one request, before they are sent."""

    def __init__(
        self,
        services: Services,
        checks: SendChecks,
        admission: Admission,
        sender: MessageSender,
        *,
        arrivals: ArrivalAnswers,
        writer: ColumnWriter,
        delayed: DelayedMessages,
        new_refusals: Callable[[], PreparedEnd],
        transaction: bytes = b"",
        owner: str = "",
    ) -> None:
        """`arrivals` makes acknowledgments, and `writer` puts columns into the open batch.
        `new_refusals` begins the acknowledgments of copies that a queue refuses.

        `transaction` is the id of the one that sends the messages, or b""; `owner` is the client
        that may cancel delayed messages.
        """
        self._arrivals = arrivals
        self._writer = writer
        self._delayed = delayed
        self._new_refusals = new_refusals
        self._columns: MessageColumns | None = None
        self._ids: list[object] = []  # of arranged messages
        self._answered: set[int] = set()  # the numbers of messages with an acknowledgment
        self._services = services
        self._checks = checks
        self._admission = admission
        self._sender = sender
        self._transaction = transaction.hex()
        self._in_transaction = bool(transaction)
        self._owner = owner
        self._messages: list[NewMessage] = []
        self._ways: list[Chosen] = []
        self._numbers: list[object] = []
        self._packets: list[PreparedPackets] = []
        self._conditions: dict[Hashable, _Condition] = {}
        self._index: int | None = None  # of the transaction
        self._at_once = 0  # messages that are not delayed
        self._by_queue: dict[LocalQueue, int] = {}  # bytes
        self._bytes = self._express_bytes = self._stored_bytes = 0
        self._copies = 0
        self._unstored = 0  # messages of which nothing is stored

    @property
    def numbers(self) -> list[object]:
        """The numbers of the messages; of copies, lists of numbers."""
        return self._numbers

    @property
    def copies(self) -> int:
        """The number of packets in all."""
        return self._copies

    @property
    def acknowledgments(self) -> int:
        """The number of acknowledgments of its messages that are made."""
        columns = self._columns
        refused = () if columns is None else columns.refused.values()
        return self._arrivals.count + sum(each.end.acknowledgments for each in refused)

    def copies_of(self, some: slice) -> int:
        """Return the number of packets of some added messages."""
        return sum(
            [len(each.routes) if isinstance(each, Copies) else 1 for each in self._ways[some]]
        )

    def add(
        self,
        part: Sequence[NewMessage],
        numbers: Sequence[object] | None = None,
        several: Sequence[Several | None] | None = None,
        last: int | None = None,
    ) -> None:
        """Check the next messages, and make their packets.

        `numbers` and `several` are those of a transaction; `last` is the place of the last one of
        its messages, of which delayed ones do not count.  Raises Refusal, MustAsk.
        """
        messages = list(part)
        ways = self._checks.check(
            messages, in_transaction=self._in_transaction, is_part=True, several=several
        )
        if numbers is None:
            numbers = self._sender.numbers_of(ways)
        for at, (new, way, number) in enumerate(zip(messages, ways, numbers, strict=True)):
            if self._in_transaction:
                if self._index is None:
                    self._index = self._sender.next_indexes(1)
                bounds = self._index, self._at_once == 0, self._at_once == last
                self._at_once += not is_delayed(new)
            else:
                bounds = self._sender.next_indexes(1), True, True
            packets = self._sender.prepare(new, way, number, bounds)
            self._count(new, way, packets, several[at] if several else None)
            self._messages.append(new)
            self._ways.append(way)
            self._numbers.append(number)
            self._packets.append(packets)
            if not isinstance(way, Copies):
                self._acknowledge(new, way, number, packets[way[1]])

    def _acknowledge(
        self, new: NewMessage, way: tuple[Route, int], number: object, packet: bytes
    ) -> None:
        """Make the acknowledgment of a message that is acknowledged when it is stored here."""
        route, delivery = way
        is_usual = delivery != EXPRESS and not new.report_queue and not is_delayed(new)
        if is_usual and self._arrivals.wants(new, route) and isinstance(number, int):
            with contextlib.suppress(NotUniform):
                self._arrivals.add([packet])
                self._answered.add(number)

    def arrange(self, some: slice) -> None:
        """Arrange added messages in columns, after all were added; the next ones each time.

        A number must be left for each packet, and one for its acknowledgment.
        """
        if self._columns is None:
            self._columns = MessageColumns(self._new_refusals)
            self._now = self._delayed.now
        messages, numbers = self._messages[some], self._numbers[some]
        for new, way, number, packets in zip(
            messages, self._ways[some], numbers, self._packets[some], strict=True
        ):
            if not (is_delayed(new) and self._delay(self._columns, new, way, number)):
                self._put(self._columns, new, way, number, packets)
        self._ids += self._sender.ids(numbers)
        self._packets[some] = [{}] * len(messages)  # they are in the columns now

    def _delay(self, columns: MessageColumns, new: NewMessage, way: Chosen, number: object) -> bool:
        """Add a message that is sent later; return False if it is due already."""
        made = columns.delayed
        if made is None:
            made = columns.delayed = DelayedRows(self._transaction, self._owner)
        return self._delayed.add(made, new, way, cast(Numbers, number), now=self._now)

    def _put(
        self,
        columns: MessageColumns,
        new: NewMessage,
        way: Chosen,
        number: object,
        packets: PreparedPackets,
    ) -> None:
        if not isinstance(way, Copies):
            route, delivery = way
            self._put_one(columns, new, route, delivery, cast(int, number), packets[delivery])
            return
        copies = self._sender.spread(new, way, number, packets)
        for index, each in enumerate(cast(list[int], number)):
            route, delivery, packet = way.routes[index], way.deliveries[index], copies[index]
            if index in way.misfits:
                columns.refuse(new, route, each, packet)
            else:
                self._put_one(columns, new, route, delivery, each, packet)

    def _put_one(
        self,
        columns: MessageColumns,
        new: NewMessage,
        route: Route,
        delivery: int,
        number: int,
        packet: Packet,
    ) -> None:
        columns.put(new, route, delivery, number, packet)
        if number not in self._answered and self._arrivals.wants(new, route):
            complete = whole(packet)
            try:
                self._arrivals.add([complete])
            except NotUniform:
                columns.unanswered.append(complete)

    def check(self) -> bool:
        """Return True if all messages can be sent now as they were made.  Raises Refusal."""
        conditions = list(self._conditions.values())
        ways = self._checks.check(
            [each.example for each in conditions],
            in_transaction=self._in_transaction,
            is_part=True,
            several=[each.several for each in conditions],
            messages_in_all=self._copies,
        )
        if not all(_is_same(each.way, way) for each, way in zip(conditions, ways, strict=True)):
            raise changed()
        if not self._arrivals.is_as_before():
            raise changed()
        for queue, size in self._by_queue.items():
            if not queue.has_room(size):
                raise queue_refusal(queue, size)
        full = self._admission.is_full(
            self._bytes,
            express_bytes=self._express_bytes,
            messages=self._copies,
            stored=self._stored_bytes,
        )
        if full is not None:
            raise full
        return True

    def write(self, token: bytes, done: Callable[[list[object]], None]) -> None:
        """Send the messages in the turn of the loop of their `check`, as `MessageSender.send`.

        `token` is that of the request, or the id of the transaction.
        """
        if self._columns is not None:
            answer = partial(done, self._ids)
            self._writer.write(self._columns, self._numbers, token, self._transaction, answer)
            self._sender.sent_count += self._columns.count
            self._arrivals.write()
            return
        self._sender.take_over(
            self._messages,
            self._ways,
            token,
            done,
            numbers=self._numbers,
            in_transaction=self._in_transaction,
            owner=self._owner,
            prepared=self._packets,
            answered=self._answered,
        )
        self._arrivals.write()

    @property
    def is_express(self) -> bool:
        """Whether all of them, and their copies, are express, so that nothing is stored."""
        return self._unstored == len(self._messages)

    def record(self, token: bytes) -> None:
        """Record the outcome of express messages, in the turn of the loop of their `check`."""
        if token:
            result = msgspec.msgpack.encode(self._numbers)
            batch = self._services.storage.batch
            batch.record_outcome(token, result, self._services.clock.now_s)

    async def write_in_parts(
        self, parts: WorkParts, token: bytes, done: Callable[[list[object]], None]
    ) -> None:
        """Send express messages after their `check` and `record`, between other work.

        An outcome is on disk before: a client that asks for it must not send them again.  Raises
        Refusal if a queue is deleted meanwhile: the messages before it were sent.
        """
        if token:
            await self._services.storage.batch.barrier()
        ids: list[object] = []
        async for some in parts.of(len(self._messages)):
            ways = self._ways[some]
            for way in ways:
                for route in way.routes if isinstance(way, Copies) else way[:1]:
                    if _is_deleted(route):
                        raise _deleted(route)
            self._sender.take_over(
                self._messages[some],
                ways,
                b"",
                ids.extend,
                numbers=self._numbers[some],
                owner=self._owner,
                prepared=self._packets[some],
            )
        done(ids)

    def _count(
        self, new: NewMessage, way: Chosen, packets: PreparedPackets, several: Several | None
    ) -> None:
        condition = (
            *(new.destination, new.admin_queue, new.response_queue, new.report_queue),
            *(new.dead_letter_queue, new.dead_letter, new.delivery, new.privacy_level),
            *(bool(new.signature), bool(new.encryption_key), id(several) if several else 0),
        )
        known = self._conditions.get(condition)
        if known is None:
            self._conditions[condition] = _Condition(new, way, several)
        elif _size(new) > known.bytes:
            known.example, known.bytes = new, _size(new)
        if not isinstance(way, Copies):
            route, delivery = way
            self._unstored += _is_unstored(new, delivery)
            self._add(route, delivery, len(packets[delivery]))
            return
        self._unstored += all(_is_unstored(new, delivery) for delivery in way.deliveries)
        for route, delivery in zip(way.routes, way.deliveries, strict=True):
            self._add(route, delivery, len(packets[delivery]), is_copy=True)
        self._stored_bytes += max(map(len, packets.values()))

    def _add(self, route: object, delivery: int, size: int, *, is_copy: bool = False) -> None:
        self._copies += 1
        self._bytes += size
        if delivery == EXPRESS:
            self._express_bytes += size
        if not is_copy:
            self._stored_bytes += size
        if isinstance(route, LocalQueue):
            self._by_queue[route] = self._by_queue.get(route, 0) + size


def changed() -> Refusal:
    """Return the refusal of messages whose queues are others now than when they were prepared."""
    return Refusal(
        "busy",
        "a queue of the request has changed while its messages were prepared, and none of them was"
        " sent",
        "Send them again.",
    )


def _is_unstored(new: NewMessage, delivery: int) -> bool:
    """Return whether a message is in memory only, with all that it causes."""
    return delivery == EXPRESS and not (new.report_queue or is_delayed(new))


def _is_deleted(route: Route) -> bool:
    return isinstance(route, LocalQueue) and route.deleted


def _deleted(route: Route) -> Refusal:
    assert isinstance(route, LocalQueue)
    return Refusal(
        "no_such_queue",
        f"{route.name} was deleted while express messages were sent, and those before it were sent",
        "Send the others to queues that exist.",
    )


def _size(new: NewMessage) -> int:
    return len(new.body) + len(new.extension)


def _is_same(before: Chosen, now: Chosen) -> bool:
    """Return whether a message still goes the way that was found for it."""
    if isinstance(before, Copies) and isinstance(now, Copies):
        return (
            len(before.routes) == len(now.routes)
            and all(one is other for one, other in zip(before.routes, now.routes, strict=True))
            and before.deliveries == now.deliveries
            and before.misfits == now.misfits
        )
    if isinstance(before, Copies) or isinstance(now, Copies):
        return False
    return before[0] is now[0] and before[1] == now[1]
