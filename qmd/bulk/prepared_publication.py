"""A prepared publication: its packets are made in steps, and committed in one batch.

    prepare ──(some rows in each turn of the loop)──► packets ──► take_over: one turn, one batch

A publication may have a hundred thousand rows.  If the event loop sent them like the messages of an
application, all other work would wait for seconds.  Therefore the packets are made beforehand, and
the turn that commits them only assigns their places.

Messages with unusual properties (several destinations, acknowledgments of arrival in a local
queue, a report queue ...) are left to `MessageSender`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from protocol.headers import PACKET_BYTES_MAX
from qmd.bulk.message_shapes import MessageShape, NotUniform, ShapeBuilder
from qmd.bulk.publication_batch import PacketGroup, PublicationWriter
from qmd.control_protocol.messages import NewMessage
from qmd.core.sequence import NUMBER_MAX
from qmd.directory.resolver import MustAsk
from qmd.message.template import Row, shape, with_bounds
from qmd.operations.delayed import is_delayed
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quotas import queue_refusal

if TYPE_CHECKING:
    from qmd.bulk.arrival_answers import ArrivalAnswers
    from qmd.bulk.directory_answers import DirectoryAnswers
    from qmd.naming.destinations import Route
    from qmd.operations.send import MessageSender
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services

ROWS_A_TURN = 1_000  # some 5 ms
ROWS_OF_SHAPE_MIN = 3  # on the average, in one turn: a shape costs as much as two messages
SHAPES_MAX = 256  # a publication with more shapes is not uniform
EXAMPLE_BYTES_MAX = 16 * 1024  # the body of a message whose shape is kept for later requests
_CORRELATION_ID = 10  # the index of this field in a row


class Shapes:
    """The shapes of the messages of requests that follow each other.

    The routes of a publication are checked at its end, whenever its shapes were made.
    """

    def __init__(self) -> None:
        self._shapes: dict[Row, MessageShape] = {}
        self._second = 0  # of the wall clock: their packets state the time

    def of_second(self, second: int) -> dict[Row, MessageShape]:
        """Return the shapes of messages that are sent in this second; the caller adds others."""
        if second != self._second or len(self._shapes) >= SHAPES_MAX:
            self._shapes, self._second = {}, second
        return self._shapes


class PreparedPublication:
    """The packets of one publication, before they are committed."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        message_sender: MessageSender,
        answers: DirectoryAnswers,
        shape_builder: ShapeBuilder,
        writer: PublicationWriter,
        transaction: str = "",
        arrivals: ArrivalAnswers | None = None,
    ) -> None:
        """`transaction` is the id, as text, of the one that sends all messages; "": each is one.

        `arrivals` makes the acknowledgments of arrival here; without it, messages that ask for one
        are not uniform.
        """
        self._arrivals = arrivals
        shape_builder.acknowledges = arrivals is not None
        self._transaction = transaction
        self._index: int | None = None  # of the transaction
        self._services = services
        self._admission = admission
        self._message_sender = message_sender
        self._answers = answers
        self._shape_builder = shape_builder
        self._writer = writer
        self._sent_s = int(services.environment.time())
        self._shapes: dict[Row, MessageShape] = {}  # of its messages
        self._known: dict[Row, MessageShape] = {}  # of earlier publications in this second
        self._groups: list[PacketGroup] = []
        self.messages = 0

    def use_shapes(self, shapes: Shapes) -> None:
        """Use the shapes that earlier publications have made, as far as they still hold."""
        self._known = shapes.of_second(self._sent_s)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all messages, in their order."""
        return [number for group in self._groups for number in group.numbers]

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Make the packets of the next rows, in some turns of the loop.

        Raises NotUniform and StorageError.
        """
        for first in range(0, len(rows), ROWS_A_TURN):
            await self.prepare_some(rows[first : first + ROWS_A_TURN])
            await asyncio.sleep(0)

    async def prepare_some(
        self, rows: Sequence[Row], numbers: Sequence[int] | None = None
    ) -> Sequence[int]:
        """Make the packets of the next rows; return the numbers of their messages.

        They were allocated before, or are now.  Raises NotUniform and StorageError.
        """
        groups = [(key, list(alike)) for key, alike in groupby(rows, shape)]
        for key, alike in groups:
            if key not in self._shapes:
                example = NewMessage(*alike[0])
                self._shapes[key] = await self._answers.complete(partial(self._new_shape, example))
        if numbers is None:
            await self._services.ids.ensure(2 * len(rows))  # also of acknowledgments
            numbers = self._services.ids.next_message_numbers(len(rows))
        elif self._arrivals is not None:
            await self._services.ids.ensure(len(rows))
        self._add(groups, numbers)
        return numbers

    def prepare_now(self, rows: Sequence[Row]) -> None:
        """Make the packets of the next rows, in this turn of the loop.

        As many numbers must be left.  Raises NotUniform and MustAsk.
        """
        self._shape_builder.acknowledges = False  # the numbers for more messages may be missing
        groups = [(key, list(alike)) for key, alike in groupby(rows, shape)]
        if len({key for key, _ in groups}) * ROWS_OF_SHAPE_MIN > len(rows):
            raise NotUniform
        for key, alike in groups:
            if key not in self._shapes:
                known = self._known.get(key)
                if known is None:
                    example = NewMessage(*alike[0])
                    known = self._answers.call(partial(self._new_shape, example))
                    if _may_be_kept(example):
                        self._known[key] = known
                self._shapes[key] = known
        self._add(groups, self._services.ids.next_message_numbers(len(rows)), later=True)

    def _new_shape(self, example: NewMessage) -> MessageShape:
        if len(self._shapes) >= SHAPES_MAX or is_delayed(example):
            raise NotUniform
        return self._shape_builder.build(example, self._sent_s)

    def _add(
        self,
        groups: Sequence[tuple[Row, list[Row]]],
        numbers: Sequence[int],
        *,
        later: bool = False,
    ) -> None:
        """Add rows; with `later`, packets of a sequence are made when they have their places."""
        at = 0
        for key, some in groups:
            shape = self._shapes[key]
            group = self._groups[-1] if self._groups and self._groups[-1].shape is shape else None
            if group is None or group.make is not None:
                group = PacketGroup(shape)
                self._groups.append(group)
            mine = numbers[at : at + len(some)]
            packets: list[bytes] | None = []
            sizes = shape.template.sizes(some) if later and shape.in_sequence else None
            if sizes is not None:
                group.make = self._maker(shape, some, mine)
            else:
                packets = self._packets_of(shape, some, mine)
                if packets is None:
                    raise NotUniform
                sizes = [len(packet) for packet in packets]
            if any([row[_CORRELATION_ID] for row in some]) or group.correlation_ids:
                group.correlation_ids += [b""] * (len(group.numbers) - len(group.correlation_ids))
                group.correlation_ids += [row[_CORRELATION_ID] for row in some]
            group.numbers += mine
            group.packets += packets or ()
            group.sizes += sizes
            if self._arrivals is not None and self._arrivals.wants(shape.example, shape.queue):
                self._arrivals.add(packets or ())
            at += len(some)
        self.messages += len(numbers)

    def _maker(
        self, shape: MessageShape, rows: Sequence[Row], numbers: Sequence[int]
    ) -> Callable[[int, int], list[bytes]]:
        """Return the function that makes the packets of messages in a sequence."""
        index = self._message_sender.next_indexes(len(rows))

        def make(sequence_id: int, first: int) -> list[bytes]:
            place = sequence_id, first, first - 1
            packets = shape.template.packets(rows, numbers, index, place=place, follow=True)
            assert packets is not None, "their sizes were known"
            return packets

        return make

    def _packets_of(
        self, shape: MessageShape, rows: Sequence[Row], numbers: Sequence[int]
    ) -> list[bytes] | None:
        if not self._transaction:
            index = self._message_sender.next_indexes(len(rows))
            return shape.template.packets(rows, numbers, index)
        if self._index is None:
            self._index = self._message_sender.next_indexes(1)
        return shape.template.packets(rows, numbers, self._index, step=0)

    def take_over(self) -> None:
        """Add all messages to the open batch; they are ready when it is durable.

        Raises Refusal if there is no room for them, and NotUniform if their routes have changed
        since they were prepared.  In both cases nothing was added.
        """
        self.check()
        self.write()

    def check(self) -> None:
        """Check that all messages can be added now; raise as `take_over`."""
        size = self._check()
        full = self._admission.is_full(size, messages=self.messages)
        if full is not None:
            raise full

    def write(self, answer: Callable[[], None] | None = None) -> None:
        """Add all messages to the open batch, in the turn of the loop of their `check`.

        `answer` is called when they are durable, before others get them.
        """
        if self._transaction:
            first, last = self._groups[0].packets, self._groups[-1].packets
            first[0] = with_bounds(first[0], is_first=True, is_last=False)
            last[-1] = with_bounds(last[-1], is_first=False, is_last=True)
        self._writer.write(self._groups, self.messages, self._transaction, answer)
        if self._arrivals is not None:
            self._arrivals.write()
        self._message_sender.sent_count += self.messages

    def _check(self) -> int:
        """Return the size of all packets.  Raises Refusal and NotUniform, as `take_over`."""
        self._answers.call(self._check_routes)
        if self._arrivals is not None and not self._arrivals.is_as_before():
            raise NotUniform
        limit = self._services.settings.quotas.message_bytes_max
        by_queue: dict[Route, int] = {}
        in_sequence: dict[OutgoingQueue, int] = {}
        for group in self._groups:
            # A packet above the limit of a body may have an allowed body: `MessageSender` decides.
            if max(group.sizes) > min(PACKET_BYTES_MAX, limit):
                raise NotUniform
            queue = group.shape.queue
            by_queue[queue] = by_queue.get(queue, 0) + sum(group.sizes)
            if isinstance(queue, OutgoingQueue) and group.shape.in_sequence:
                in_sequence[queue] = in_sequence.get(queue, 0) + len(group.sizes)
        for queue, size in by_queue.items():
            if isinstance(queue, LocalQueue) and not queue.has_room(size):
                raise queue_refusal(queue, size)
        for queue, count in in_sequence.items():
            if queue.sequence.next_number + count > NUMBER_MAX:
                raise NotUniform  # the sequence may be full, or begin anew
        return sum(by_queue.values())

    def _check_routes(self) -> None:
        try:
            for shape in self._shapes.values():
                if self._shape_builder.route_of(shape.example) != (shape.queue, shape.delivery):
                    raise NotUniform
                if not self._shape_builder.is_accepted(shape.example):
                    raise NotUniform
        except MustAsk as ask:
            raise NotUniform from ask


def _may_be_kept(example: NewMessage) -> bool:
    """Return whether the shape of a message may be kept: no name in it is resolved elsewhere, and
    its example takes little memory."""
    return not (
        example.admin_queue or example.response_queue or len(example.body) > EXAMPLE_BYTES_MAX
    )
