"""Moves of messages between queues of this computer: to a subqueue and back, and out of a journal
or a dead-letter queue.  [MS-MQDMPR] 3.1.7.1.16

One commit removes a message from its queue, adds it to the other one, and records the event.  In
its new queue, a message has the place that its arrival and its priority give it.  Messages that are
moved in several pieces therefore stay in order, and a message that is moved away and back has its
old place again.

A message that leaves a journal or a dead-letter queue had ended and begins again: it becomes a
normal message, without the class and the reason of its end, and without a time-to-be-received,
which would end it immediately.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol import patch_class
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import Choice, Piece, StoredMessage
from qmd.core.packet_fields import INFINITE_S, is_transactional
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.message.limits import PRIORITY_MAX
from qmd.operations.move_target import NewSubqueue, was_deleted
from qmd.operations.move_unit import Answer, MessagesGone, Moved, MovedMessage, MoveUnit, Result
from qmd.operations.selection import Chosen
from qmd.queues.local_queue import HELD, LocalQueue, Reader
from qmd.queues.quotas import queue_refusal
from storage.errors import NoSuchQueue
from storage.tables.keys import ARRIVAL_BITS, ARRIVAL_MAX, TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.operations.move_target import MoveTargets
    from qmd.operations.selection import Selection
    from qmd.runtime.services import Services

log = structlog.get_logger()

_TIME_TO_BE_RECEIVED_OFFSET = 48  # [MS-MQMQ] 2.2.19.2
_INFINITE = struct.pack("<I", INFINITE_S)


class _Moving(NamedTuple):
    """A message that is being moved."""

    message: StoredMessage  # as it was
    moved: StoredMessage  # as it will be
    is_express: bool


class Mover:
    """Mover of messages, piece by piece; each piece is one commit."""

    def __init__(
        self,
        services: Services,
        recorder: Recorder,
        selection: Selection,
        targets: MoveTargets,
    ) -> None:
        self._services = services
        self._recorder = recorder
        self._selection = selection
        self._targets = targets

    async def move(
        self,
        source: LocalQueue,
        target_name: str,
        choice: Choice,
        piece: Piece,
        *,
        dry_run: bool = False,
        token: bytes = b"",
    ) -> Result:
        """Move one piece of the chosen messages; return the answer to the request `frames.Move`:
        the moved messages, their bytes, the messages that were taken, and the next piece.

        Raises Refusal.
        """
        target = self._targets.find(source, target_name)
        while True:
            chosen = await self._selection.choose(source, choice, piece)
            self._check(source, target, chosen.messages)
            if dry_run or not chosen.messages:
                answer = Answer(token, chosen.taken, chosen.next, chosen.until)
                return answer.result(len(chosen.messages), chosen.bytes)
            if not isinstance(target, LocalQueue):
                target = await self._targets.create(*target)
            try:
                return await self._move(source, target, chosen, token, is_named=_is_named(choice))
            except MessagesGone:
                pass  # received meanwhile: choose again, which raises the refusal

    # One piece.

    def _check(
        self,
        source: LocalQueue,
        target: LocalQueue | NewSubqueue,
        messages: list[StoredMessage],
    ) -> None:
        """Raise Refusal if a message does not fit the kind or the quota of the target."""
        owner = target if isinstance(target, LocalQueue) else target[0]
        for message in messages:
            if is_transactional(message.packet) != owner.transactional:
                raise _wrong_kind(owner, message)
        payer = owner.payer
        size = sum(len(message.packet) for message in messages)
        if payer is not source.payer and not payer.has_room(size):
            raise queue_refusal(payer, size)

    async def _move(
        self,
        source: LocalQueue,
        target: LocalQueue,
        chosen: Chosen,
        token: bytes,
        *,
        is_named: bool,
    ) -> Result:
        wall_ms = int(self._services.environment.time() * 1000)
        self.check(source, target, chosen.messages)  # they may have changed meanwhile
        mover = Reader()
        moving: list[_Moving] = []
        for message in chosen.messages:
            is_express = message.lookup_id in source.express
            if source.hold(mover, message.lookup_id):
                changed = self._moved(source, target, message, wall_ms)
                moving.append(_Moving(message, changed, is_express))
            elif is_named:
                for each in moving:
                    source.let_go(each.message, is_there=True)
                raise Refusal(
                    "message_taken",
                    f"message {message.lookup_id} of {source.name} has been taken by an"
                    " application",
                    "Try again when the application has finished with it, or end that application.",
                )
        answer = Answer(token, chosen.taken, chosen.next, chosen.until)
        run = self._store(source, target, moving, answer, is_named=is_named)
        try:
            moved = await asyncio.shield(run)
        except NoSuchQueue as error:
            raise was_deleted(target) from error
        log.info(
            "messages_moved",
            queue=source.name,
            to_queue=target.name,
            count=len(moved.lookup_ids),
        )
        return answer.result(len(moved.lookup_ids), moved.bytes)

    async def target(self, source: LocalQueue, name: str) -> LocalQueue:
        """Return the queue with this name as a target for messages of `source`.

        A new subqueue is created.  Raises Refusal.
        """
        return await self._targets.get(source, name)

    def check(self, source: LocalQueue, target: LocalQueue, messages: list[StoredMessage]) -> None:
        """Raise Refusal if these messages cannot be moved now."""
        for queue in (source, target):
            if queue.deleted:
                raise was_deleted(queue)
        self._check(source, target, messages)

    def move_taken(
        self,
        reader: Reader,
        source: LocalQueue,
        target: LocalQueue,
        lookup_ids: Sequence[int],
        transaction: str,
        reason: str = "",
    ) -> list[int]:
        """Move messages that `reader` took, with the open batch; their events have the reason.

        Returns their lookup ids in the target.  `check` must have accepted the move in the same
        turn of the event loop.
        """
        wall_ms = int(self._services.environment.time() * 1000)
        moving: list[_Moving] = []
        for lookup_id in lookup_ids:
            message = source.taken[lookup_id]
            moved = self._moved(source, target, message, wall_ms)
            is_express = lookup_id in source.express
            moving.append(_Moving(message, moved, is_express))
            if not is_express:
                source.taken[lookup_id] = HELD
        mine = reader.taken[source]
        mine.difference_update(lookup_ids)
        if not mine:
            source.takers.discard(reader)
        self._store(
            source,
            target,
            moving,
            None,
            is_named=False,
            transaction=transaction,
            reason=reason,
        )
        return [each.moved.lookup_id for each in moving]

    def _store(
        self,
        source: LocalQueue,
        target: LocalQueue,
        moving: list[_Moving],
        answer: Answer | None,
        *,
        is_named: bool,
        transaction: str = "",
        reason: str = "",
    ) -> asyncio.Future[Moved]:
        """Store the move of messages that are held for it, with the open batch."""
        stored = [each for each in moving if not each.is_express]
        size = sum(len(each.message.packet) for each in stored)
        # As for messages that arrive, the queues count them before the commit, and correct the
        # counts after it.
        source.count_out(len(stored), size)
        target.count_in(len(stored), size)
        recorded = self._recorder.for_unit().of_packets(
            EventHeader(
                Kind.MOVED,
                queue=source.name,
                to_queue=target.name,
                transaction=transaction,
                reason=reason,
            ),
            [each.message.packet for each in moving],
            places=[each.moved.lookup_id for each in moving],
        )
        unit = MoveUnit(
            self._services.id,
            source.id,
            target.id,
            [
                MovedMessage(
                    each.message.lookup_id,
                    each.moved.lookup_id,
                    each.message.packet,
                    None if each.moved.packet is each.message.packet else each.moved.packet,
                    each.is_express,
                )
                for each in moving
            ],
            recorded,
            answer,
            is_named,
            int(self._services.environment.time() * 1000),
            self._services.clock.now_s,
        )
        run = self._services.storage.batch.run(unit)
        run.add_done_callback(partial(self._settle, source, target, moving))
        return run

    def _moved(
        self, source: LocalQueue, target: LocalQueue, message: StoredMessage, wall_ms: int
    ) -> StoredMessage:
        """Return the message as it will be in its new queue."""
        packet, reason = message.packet, message.reason
        is_transactional_ = is_transactional(packet)
        level = TRANSACTIONAL_LEVEL if is_transactional_ else PRIORITY_MAX - (packet[2] & 7)
        leaves_family = target.payer is not source.payer
        if source.holds_ended or (reason is not None and leaves_family):
            packet, reason = _begun_again(packet), None
        return StoredMessage(
            level << ARRIVAL_BITS | message.lookup_id & ARRIVAL_MAX,
            message.arrived_at_ms,
            packet,
            reason,
            message.abort_count,
            message.move_count + 1,
            wall_ms,
            message.expires_at_s if packet is message.packet else None,
        )

    def _settle(
        self,
        source: LocalQueue,
        target: LocalQueue,
        moving: list[_Moving],
        done: asyncio.Future[Moved],
    ) -> None:
        """Update both queues after the commit, or after its failure."""
        if done.cancelled():
            return
        failure = done.exception()
        if failure is None:
            self._deliver(source, target, moving, done.result().lookup_ids)
        elif isinstance(failure, MessagesGone | NoSuchQueue):
            self._put_back(source, target, moving, failure)
        # For other failures, the storage failed and the daemon stops.

    def _deliver(
        self, source: LocalQueue, target: LocalQueue, moving: list[_Moving], found: set[int]
    ) -> None:
        """Remove stored moves from `source`, and let readers of `target` have them; `found` has the
        lookup ids that were still in `source`."""
        arrived: list[StoredMessage] = []
        express: list[StoredMessage] = []
        for each in moving:
            lookup_id, size = each.message.lookup_id, len(each.message.packet)
            if lookup_id not in found:
                # Another request has removed it, and updated the counts of its queue.
                source.let_go(each.message, is_there=False)
                _count_back(source, target, 1, size)
                continue
            source.forget([lookup_id])
            if each.is_express:
                target.count_in(1, size)
                express.append(each.moved)
            else:
                arrived.append(each.moved)
        target.deliver(arrived, express)

    def _put_back(
        self,
        source: LocalQueue,
        target: LocalQueue,
        moving: list[_Moving],
        failure: BaseException,
    ) -> None:
        """Return messages to `source`: the move failed, and none was moved."""
        gone = failure.lookup_ids if isinstance(failure, MessagesGone) else set()
        for each in moving:
            source.let_go(each.message, is_there=each.message.lookup_id not in gone)
            if not each.is_express:
                _count_back(source, target, 1, len(each.message.packet))
        source.wake_readers()


def _count_back(source: LocalQueue, target: LocalQueue, messages: int, size: int) -> None:
    """Undo the counting of a move.  The deletion of a queue waits for this."""
    source.count_in(messages, size)
    target.count_out(messages, size)


def _begun_again(packet: bytes) -> bytes:
    """Return the packet of an ended message as a normal one without a time-to-be-received."""
    at = _TIME_TO_BE_RECEIVED_OFFSET
    return patch_class(b"".join((packet[:at], _INFINITE, packet[at + 4 :])), MessageClass.NORMAL)


def _is_named(choice: Choice) -> bool:
    return bool(choice.lookup_ids or choice.message_ids)


def _wrong_kind(target: LocalQueue, message: StoredMessage) -> Refusal:
    is_, takes = ("is transactional", "is not")
    if target.transactional:
        is_, takes = ("is not transactional", "is")
    return Refusal(
        "wrong_kind_of_queue",
        f"message {message.lookup_id} {is_}, and {target.name} {takes}",
        "Move it to a queue of its kind, or send it again as another: `qmd resend`.",
    )
