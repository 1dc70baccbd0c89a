"""Messages go from one queue of this computer to another: to a subqueue and back, out of a journal
or a dead-letter queue.  [MS-MQDMPR] 3.1.7.1.16

A message is off the one and on the other in one commit, and so is the event that tells of it.  It
keeps the place that its arrival and its priority give it, so whatever is moved in whatever pieces
stays in order; and one that is moved away and back is where it was.

What leaves a journal or a dead-letter queue has ended before and begins again: it is a normal
message, without the class and the reason of its end and without a time-to-be-received, which would
end it on the spot.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from protocol import patch_class
from protocol.errors import InvalidName
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName
from protocol.names.format_name import parse_destination
from protocol.names.path_name import LocalPath
from qmd.control_protocol.messages import Choice, Piece, StoredMessage
from qmd.core.packet_fields import INFINITE_S, is_transactional, message_number, source_of
from qmd.errors import Refusal
from qmd.events.recorder import Kind
from qmd.message.build import PRIORITY_MAX
from qmd.operations.selection import Chosen
from qmd.queues.local_queue import HELD, LocalQueue, Reader
from qmd.queues.quotas import queue_refusal
from storage.errors import NoSuchQueue, QueueExists, StoredError
from storage.tables import events, outcomes, own_dead_letters
from storage.tables import messages as message_rows
from storage.tables import queues as queue_rows
from storage.tables.keys import ARRIVAL_BITS, ARRIVAL_MAX, LOOKUP_BITS, TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.operations.queue_admin import QueueAdministration
    from qmd.operations.selection import Selection
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

_TIME_TO_BE_RECEIVED_OFFSET = 48  # [MS-MQMQ] 2.2.19.2
_INFINITE = struct.pack("<I", INFINITE_S)

Result = dict[str, Any]


class _Gone(Exception):
    """Messages that were named are not there any more: nothing is moved."""

    def __init__(self, lookup_ids: set[int]) -> None:
        super().__init__(lookup_ids)
        self.lookup_ids = lookup_ids


class _Moving(NamedTuple):
    """A message whose move is being committed."""

    message: StoredMessage  # as it was
    moved: StoredMessage  # as it will be
    is_express: bool


class Mover:
    """Moves messages, one piece in one commit."""

    def __init__(
        self,
        services: Services,
        selection: Selection,
        queues: LocalQueues,
        recorder: Recorder,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._selection = selection
        self._queues = queues
        self._recorder = recorder
        self._destinations = destinations

    def connect(self, administration: QueueAdministration) -> None:
        """Name the collaborators that are made after it."""
        self._administration = administration

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
        """Returns what the request `frames.Move` is answered with.  Raises Refusal."""
        target = self._find_target(source, target_name)
        while True:
            chosen = await self._selection.choose(source, choice, piece)
            self._check(source, target, chosen.messages)
            if dry_run or not chosen.messages:
                return _result(chosen, len(chosen.messages), chosen.bytes)
            if not isinstance(target, LocalQueue):
                target = await self._create_subqueue(*target)
            try:
                return await self._move(source, target, chosen, token, is_named=_is_named(choice))
            except _Gone:
                pass  # received since we looked: look again, and say so

    # The target.

    def _find_target(
        self, source: LocalQueue, name: str
    ) -> LocalQueue | tuple[LocalQueue, LocalPath]:
        """The queue; or of a subqueue that is not there yet its parent and its name."""
        destinations = self._destinations
        try:
            target = destinations.find_queue(name)
        except Refusal as refusal:
            if refusal.code != "no_such_queue":
                raise
            found = self._new_subqueue(name)
            if found is None:
                raise
            return found
        if target is source:
            raise Refusal("same_queue", f"{source.name} is where the messages are already")
        if target.holds_ended:
            raise Refusal(
                "queue_read_only",
                f"{target.name} is a journal or dead-letter queue",
                "Messages come there by their end only; move them to another queue.",
            )
        return target

    def _new_subqueue(self, name: str) -> tuple[LocalQueue, LocalPath] | None:
        try:
            parsed = parse_destination(name, local_host=".")
        except InvalidName:
            return None
        if not isinstance(parsed, DirectName) or not self._destinations.is_local(parsed):
            return None
        path = parsed.local_path
        if path.subqueue is None:
            return None
        parent = self._queues.by_key.get(path._replace(subqueue=None).key)
        if parent is None or parent.is_read_only:
            return None
        return parent, path

    async def _create_subqueue(self, parent: LocalQueue, path: LocalPath) -> LocalQueue:
        """By the first move to it, or by another one at the same time."""
        name = f"{parent.name};{path.subqueue}"
        try:
            with self._administration.places(1):
                row = await self._services.storage.batch.run(
                    partial(
                        queue_rows.create,
                        name=name,
                        transactional=parent.transactional,
                        now_s=int(self._services.environment.time()),
                        parent_id=parent.id,
                    )
                )
        except QueueExists:
            return self._queues.by_key[path.key]
        except NoSuchQueue as error:
            raise _was_deleted(parent) from error
        except StoredError as error:
            raise Refusal("too_many_queues", str(error)) from error
        if parent.deleted:
            raise _was_deleted(parent)
        if path.key in self._queues.by_key:  # two units of one commit: ours was the first
            return self._queues.by_key[path.key]
        log.info("subqueue_created", queue=name)
        return self._queues.adopt(row, 0, 0)

    # One piece.

    def _check(
        self,
        source: LocalQueue,
        target: LocalQueue | tuple[LocalQueue, LocalPath],
        messages: list[StoredMessage],
    ) -> None:
        """The rules of kinds and quotas, for all of the piece."""
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
        self.check(source, target, chosen.messages)  # others may have come first
        mover = Reader()
        moving: list[_Moving] = []
        for message in chosen.messages:
            is_express = message.lookup_id in source.express
            if source.hold(mover, message.lookup_id):
                moved = self._moved(source, target, message, wall_ms)
                moving.append(_Moving(message, moved, is_express))
            elif is_named:
                for each in moving:
                    source.let_go(each.message, is_there=True)
                raise Refusal(
                    "message_taken",
                    f"message {message.lookup_id} of {source.name} has been taken by an"
                    " application",
                    "Try again when it is done with it, or end that application.",
                )
        run = self._hand_over(
            source, target, moving, partial(_result, chosen), token, is_named=is_named
        )
        try:
            _, result = await asyncio.shield(run)
        except NoSuchQueue as error:
            raise _was_deleted(target) from error
        log.info(
            "messages_moved", queue=source.name, to_queue=target.name, count=result["messages"]
        )
        return result

    async def target_for(self, source: LocalQueue, name: str) -> LocalQueue:
        """Where messages of `source` may be moved: a new subqueue is made.  Raises Refusal."""
        target = self._find_target(source, name)
        return target if isinstance(target, LocalQueue) else await self._create_subqueue(*target)

    def check(self, source: LocalQueue, target: LocalQueue, messages: list[StoredMessage]) -> None:
        """Whether these may be moved now.  Raises Refusal."""
        for queue in (source, target):
            if queue.deleted:
                raise _was_deleted(queue)
        self._check(source, target, messages)

    def move_taken(
        self,
        reader: Reader,
        source: LocalQueue,
        target: LocalQueue,
        lookup_ids: Sequence[int],
        transaction: str,
        reason: str = "",
    ) -> None:
        """Move messages that `reader` took, and `check` has let through, with the open batch; their
        history says the reason."""
        wall_ms = int(self._services.environment.time() * 1000)
        moving: list[_Moving] = []
        for lookup_id in lookup_ids:
            message = source.taken[lookup_id]
            moved = self._moved(source, target, message, wall_ms)
            is_express = lookup_id in source.express
            moving.append(_Moving(message, moved, is_express))
            if not is_express:
                source.taken[lookup_id] = HELD
        reader.taken[source].difference_update(lookup_ids)
        self._hand_over(
            source,
            target,
            moving,
            lambda *_: {},
            b"",
            is_named=False,
            transaction=transaction,
            reason=reason,
        )

    def _hand_over(
        self,
        source: LocalQueue,
        target: LocalQueue,
        moving: list[_Moving],
        result_of: Callable[[int, int], Result],
        token: bytes,
        *,
        is_named: bool,
        transaction: str = "",
        reason: str = "",
    ) -> asyncio.Future[tuple[set[int], Result]]:
        """With the open batch; nobody else has what is moving."""
        now_s, wall_ms = self._services.clock.now_s, int(self._services.environment.time() * 1000)
        stored = [each for each in moving if not each.is_express]
        size = sum(len(each.message.packet) for each in stored)
        # As with what arrives, the books are right before the disk has it; and put right after.
        source.count_out(len(stored), size)
        target.count_in(len(stored), size)

        def unit(db: sqlite3.Connection) -> tuple[set[int], Result]:
            """The lookup ids of those that were there, and what is answered."""
            queue_rows.get(db, target.id)
            found = message_rows.move(
                db,
                [
                    message_rows.Move(
                        source.id << LOOKUP_BITS | each.message.lookup_id,
                        target.id << LOOKUP_BITS | each.moved.lookup_id,
                        None if each.moved.packet is each.message.packet else each.moved.packet,
                    )
                    for each in stored
                ],
                wall_ms,
            )
            gone = [each for each in stored if _key(source, each) not in found]
            if gone and is_named:
                raise _Gone({each.message.lookup_id for each in gone})
            done = [each for each in moving if each.is_express or _key(source, each) in found]
            own_dead_letters.moved(
                db,
                [
                    (
                        message_number(each.message.packet),
                        _key(source, each),
                        target.id << LOOKUP_BITS | each.moved.lookup_id,
                    )
                    for each in done
                    if not each.is_express and source_of(each.message.packet) == self._services.id
                ],
            )
            if done:
                told = self._recorder.events(
                    Kind.MOVED,
                    [each.message.packet for each in done],
                    queue=source.name,
                    places=[each.moved.lookup_id for each in done],
                    to_queue=target.name,
                    transaction=transaction,
                    reason=reason,
                )
                events.insert(db, told)
            size = sum(len(each.message.packet) for each in done)
            result = result_of(len(done), size)
            if token:
                outcomes.record(db, [(token, msgspec.msgpack.encode(result), now_s)])
            return {each.message.lookup_id for each in done}, result

        def settle(done: asyncio.Future[tuple[set[int], Result]]) -> None:
            if done.cancelled():
                return
            failure = done.exception()
            if failure is not None and not isinstance(failure, _Gone | NoSuchQueue):
                return  # the storage failed, and the daemon stops
            if failure is not None:
                self._put_back(source, target, moving, failure)
                return
            found, _ = done.result()
            self._settle(source, target, moving, found)

        run = self._services.storage.batch.run(unit)
        run.add_done_callback(settle)
        return run

    def _moved(
        self, source: LocalQueue, target: LocalQueue, message: StoredMessage, wall_ms: int
    ) -> StoredMessage:
        """The message as it will be."""
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
        self, source: LocalQueue, target: LocalQueue, moving: list[_Moving], found: set[int]
    ) -> None:
        """The commit has returned: off the one, on the other."""
        arrived: list[StoredMessage] = []
        express: list[StoredMessage] = []
        for each in moving:
            lookup_id, size = each.message.lookup_id, len(each.message.packet)
            if lookup_id not in found:
                # Somebody else has removed it, and counted it out.
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
        """Nothing was moved."""
        gone = failure.lookup_ids if isinstance(failure, _Gone) else set()
        for each in moving:
            source.let_go(each.message, is_there=each.message.lookup_id not in gone)
            if not each.is_express:
                _count_back(source, target, 1, len(each.message.packet))
        source.wake_readers()


def _key(source: LocalQueue, each: _Moving) -> int:
    return source.id << LOOKUP_BITS | each.message.lookup_id


def _count_back(source: LocalQueue, target: LocalQueue, messages: int, size: int) -> None:
    """As if they had not moved.  A queue that is being deleted waits for this."""
    source.count_in(messages, size)
    target.count_out(messages, size)


def _begun_again(packet: bytes) -> bytes:
    """A message that has ended, as it was before, and without a time-to-be-received."""
    at = _TIME_TO_BE_RECEIVED_OFFSET
    return patch_class(b"".join((packet[:at], _INFINITE, packet[at + 4 :])), MessageClass.NORMAL)


def _is_named(choice: Choice) -> bool:
    return bool(choice.lookup_ids or choice.message_ids)


def _result(chosen: Chosen, messages: int, size: int) -> Result:
    return {
        "messages": messages,
        "bytes": size,
        "taken": chosen.taken,
        "next": chosen.next,
        "until": chosen.until,
    }


def _was_deleted(queue: LocalQueue) -> Refusal:
    return Refusal("no_such_queue", f"{queue.name} was deleted meanwhile", "Nothing was moved.")


def _wrong_kind(target: LocalQueue, message: StoredMessage) -> Refusal:
    is_, takes = ("is transactional", "is not")
    if target.transactional:
        is_, takes = ("is not transactional", "is")
    return Refusal(
        "wrong_kind_of_queue",
        f"message {message.lookup_id} {is_}, and {target.name} {takes}",
        "Move it to a queue of its kind, or send it again as another: `qmd resend`.",
    )
