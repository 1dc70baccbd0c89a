"""Release of delayed messages: at its time, a message is sent to its queue.

    due ─► checked as any message ─► one batch: its row deleted, the message sent ══(commit)══►
              │
              ├─ full, or the directory is unavailable: its destination waits, others go on
              └─ refused (its queue was deleted, ...): dead letter, with the reason

Messages are released in pieces, in the order of their times; a piece is committed before the next
is read.  The commit of a release deletes the row, so a message is sent once, wherever a crash
happens.  docs/delayed.md
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from protocol import parse_user_message
from protocol.errors import InvalidName
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName
from protocol.names.format_name import PrivateName, PublicName, parse_destination
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.core import delay
from qmd.core.disposition import consequences
from qmd.core.packet_fields import is_kept_as_dead
from qmd.directory.interface import DirectoryAway
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from qmd.message.addresses import NO_ADDRESS, QueueAddress, queue_address
from qmd.naming.fan_out import Copies
from qmd.operations.delayed import stored_message
from qmd.outcomes.dead_letter import UNWANTED
from qmd.queues.local_queue import LocalQueue
from qmd.queues.quarantine import log_damaged
from storage.tables import delayed as rows

if TYPE_CHECKING:
    from qmd.bulk.directory_answers import DirectoryAnswers
    from qmd.events.recorder import Recorder
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.operations.delayed import DelayedMessages
    from qmd.operations.packet_composer import PacketComposer
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import SendChecks
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.runtime.services import Services
    from storage.tables.delayed import DelayedRow

log = structlog.get_logger()

PIECE_MESSAGES = 256
PIECE_BYTES = 4 * 1024 * 1024
TURN_MESSAGES = 64  # released before other work has its turn: some 4 ms
#: The clocks are compared so often while a message is delayed: the wall clock may be set.
LOOK_S = 1.0
RETRY_S = 5.0  # until a destination that had no room, or was unknown, is tried again

#: Refusals that pass: the message stays delayed, and is tried again.
PASSING = frozenset(
    {
        *("queue_full", "computer_full", "express_full", "disk_full", "sequence_full"),
        *("busy", "stopping", "too_many_queues", "directory_away", "directory_not_asked"),
    }
)
#: The class of a message that cannot be sent, by the code of the refusal; others are deleted.
_CLASSES = {
    "no_such_queue": MessageClass.NACK_BAD_DESTINATION_QUEUE,
    "not_transactional": MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE,
    "needs_transactional": MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE,
    "right_missing": MessageClass.NACK_ACCESS_DENIED,
}


class DelayedRelease:
    """The release of delayed messages; one task runs it."""

    def __init__(
        self,
        services: Services,
        housekeeping: Housekeeping,
        delayed: DelayedMessages,
        checks: SendChecks,
        message_sender: MessageSender,
        unsendable: UnsendableMessages,
        new_answers: Callable[[], DirectoryAnswers],
        check_queue: Callable[[LocalQueue, str, int], None],
    ) -> None:
        """`check_queue(queue, client, sent_at_ms)` refuses messages for a former queue."""
        self._check_queue = check_queue
        self._services = services
        self._housekeeping = housekeeping
        self._delayed = delayed
        self._checks = checks
        self._message_sender = message_sender
        self._unsendable = unsendable
        self._new_answers = new_answers
        self._blocked: dict[str, float] = {}  # destination -> loop time of the next attempt
        self._wake = asyncio.Event()
        delayed.on_earlier = self._wake.set

    async def run(self) -> None:
        """Release messages until cancelled.  Raises StorageError when the storage has failed."""
        may_be_more = False
        while True:
            if not may_be_more:
                await self._pause()
            may_be_more = await self._housekeeping.attempt(
                "release delayed messages", self.release, otherwise=False, is_strict=True
            )

    async def _pause(self) -> None:
        """Wait until a message may be due; at most LOOK_S while any is delayed."""
        self._wake.clear()
        left_s = delay.wait_s(*self._delayed.next, self._delayed.now)
        if left_s is None:
            await self._wake.wait()
            return
        self._services.clock.look(is_needed=True)
        now = self._services.loop.time()
        if left_s == 0 and self._blocked:  # what is due now waits for its destination
            left_s = max(min(self._blocked.values()) - now, 0)
        with contextlib.suppress(TimeoutError):
            # A timer may fire a little early, and the message is not due then.
            await asyncio.wait_for(self._wake.wait(), min(left_s + 0.001, LOOK_S))

    async def release(self) -> bool:
        """Release one piece of the messages that are due; return whether there may be more."""
        left_s = delay.wait_s(*self._delayed.next, self._delayed.now)
        if left_s is None or left_s > 0:
            return False
        now = self._services.loop.time()
        self._blocked = {queue: at for queue, at in self._blocked.items() if at > now}
        try:
            found = await self._delayed.due(self._blocked, PIECE_MESSAGES, PIECE_BYTES)
            await self._release(found)
        finally:
            self._delayed.release_ends()
        await self._services.storage.batch.barrier()
        if not found:
            await self._delayed.look()
        return bool(found)

    async def _release(self, found: Sequence[DelayedRow]) -> None:
        answers = self._new_answers()
        for index, row in enumerate(found):
            if self._services.lifecycle.stopping:
                return
            if index and not index % TURN_MESSAGES:
                await asyncio.sleep(0)  # other work has its turn
            if row.queue in self._blocked:
                continue
            if not row.is_whole:
                self._delayed.count_out(row)
                self._unsendable.set_aside(row)
                continue
            new, numbers = stored_message(row)
            await self._services.ids.ensure(len(numbers))
            try:
                # From its last check on, the message is released in this turn of the loop.
                await answers.complete(partial(self._release_one, row, new, numbers))
            except Refusal as refusal:
                if refusal.code in PASSING or isinstance(refusal, DirectoryAway):
                    self._block(row.queue, refusal)
                    continue
                await self._end(row, new, numbers, refusal, answers)

    def _release_one(self, row: DelayedRow, new: NewMessage, numbers: list[int]) -> None:
        """Send a message with the batch that deletes its row.  Raises Refusal, MustAsk: then
        nothing has changed."""
        self._delayed.count_out(row)
        try:
            way = self._checked(row, self._unsendable.with_queue(new))
        except (Refusal, InvalidName):
            self._delayed.count_in(row)
            raise
        self._delete(row)
        self._send(new, way, numbers)

    def _checked(self, row: DelayedRow, new: NewMessage) -> object:
        """Return the way of a message.  Raises Refusal, InvalidName, MustAsk."""
        (way,) = self._checks.check([new])
        for route in way.routes if isinstance(way, Copies) else way[:1]:
            if isinstance(route, LocalQueue):
                self._check_queue(route, row.owner, row.sent_at_ms)
        return way

    def _send(self, new: NewMessage, way: object, numbers: list[int]) -> None:
        number: object = numbers if isinstance(way, Copies) else numbers[0]
        new = self._unsendable.with_queue(new)
        self._message_sender.release(new, way, number)  # type: ignore[arg-type]
        self._delayed.released_count += 1

    def _delete(self, row: DelayedRow) -> None:
        self._services.storage.batch.run(partial(rows.delete, numbers=[row.number]))

    def _block(self, queue: str, refusal: Refusal) -> None:
        self._blocked[queue] = self._services.loop.time() + RETRY_S
        self._services.log_limited(
            "delayed_messages_wait",
            queue,
            queue=queue,
            code=refusal.code,
            reason=refusal.text,
            remedy=refusal.remedy,
        )

    async def _end(
        self,
        row: DelayedRow,
        new: NewMessage,
        numbers: list[int],
        refusal: Refusal,
        answers: DirectoryAnswers,
    ) -> None:
        """End a message that is refused; of a message to several queues, only the refused copies.

        All of its copies are sent or ended in the commit that deletes its row.
        """
        if len(numbers) == 1:
            self._delayed.count_out(row)
            self._delete(row)
            self._unsendable.end(new, row.queue, numbers[0], refusal)
            return
        names = row.queue.split(",")
        copies = [
            (msgspec.structs.replace(new, destination=name), name, number)
            for name, number in zip(names, numbers, strict=True)
        ]
        for copy, _, _ in copies:  # the directory is asked before anything changes
            with contextlib.suppress(Refusal):
                await answers.complete(partial(self._checks.check, [copy]))
        answers.call(partial(self._end_copies, row, copies))

    def _end_copies(self, row: DelayedRow, copies: Sequence[tuple[NewMessage, str, int]]) -> None:
        self._delayed.count_out(row)
        self._delete(row)
        for copy, name, number in copies:
            copy = self._unsendable.with_queue(copy)
            try:
                way = self._checked(row, copy)
            except MustAsk as ask:
                self._unsendable.end(copy, name, number, ask)
            except Refusal as refused:
                self._unsendable.end(copy, name, number, refused)
            else:
                self._send(copy, way, [number])


class UnsendableMessages:
    """Ends delayed messages that cannot be sent at their time."""

    def __init__(
        self,
        services: Services,
        composer: PacketComposer,
        acknowledgments: Acknowledgments,
        dead_letters: DeadLetters,
        own_dead_letters: NamedDeadLetterQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._composer = composer
        self._acknowledgments = acknowledgments
        self._dead_letters = dead_letters
        self._own_dead_letters = own_dead_letters
        self._recorder = recorder

    def with_queue(self, new: NewMessage) -> NewMessage:
        """Return the message; without its own dead-letter queue, if that was deleted meanwhile."""
        if not new.dead_letter_queue:
            return new
        try:
            self._own_dead_letters.check(new.dead_letter_queue, new.delivery)
        except Refusal:  # the system's dead-letter queue serves
            return msgspec.structs.replace(new, dead_letter_queue="")
        return new

    def end(self, new: NewMessage, queue: str, number: int, refusal: Refusal) -> None:
        """End a message with the open batch; `queue` is its destination."""
        batch, wall = self._services.storage.batch, self._services.environment.time()
        message_class = _CLASSES.get(refusal.code, MessageClass.NACK_DELETED)
        reason = f"It was delayed, and could not be sent to {queue} at its time: {refusal.text}"
        new = self.with_queue(new)
        position = (0, 0) if new.delivery == TRANSACTIONAL else None
        packet = self._composer.compose(
            new, int(wall), self._address(queue), number, new.delivery, position, (0, True, True)
        )
        if new.dead_letter_queue:
            own = self._own_dead_letters.check(new.dead_letter_queue, new.delivery)
            self._own_dead_letters.add(number, own, "", 0, batch, express=True)
        header = EventHeader(
            Kind.UNSENDABLE, queue=queue, message_class=message_class, reason=reason
        )
        self._recorder.record(header, [packet])
        original = parse_user_message(packet)
        result = consequences(
            original,
            message_class,
            at_source=True,
            insecure_nacks=True,  # for an application of this computer
        )
        if result.acknowledgment is not None:
            self._acknowledgments.to_application(original, result.acknowledgment, batch)
        if is_kept_as_dead(packet, discard=new.dead_letter is False):
            self._dead_letters.dead_letter(packet, message_class, reason, int(wall * 1000), queue)
        else:
            discarded = header._replace(kind=Kind.DISCARDED, reason=UNWANTED)
            self._recorder.record(discarded, [packet])
        log.warning(
            "delayed_message_not_sent", queue=queue, number=number, code=refusal.code, reason=reason
        )

    def set_aside(self, row: DelayedRow) -> None:
        """Keep a message that is not what was stored for an operator, with the open batch."""
        at_s = int(self._services.environment.time())
        batch = self._services.storage.batch
        batch.run(partial(rows.set_aside, number=row.number, at_s=at_s))
        if self._recorder.enabled:
            header = EventHeader(Kind.DAMAGED, queue=row.queue)
            event = self._recorder.group(header, self._services.id, lists=NO_LISTS)
            event.numbers.append(row.number)
        log_damaged(row.queue, [row.number])

    def _address(self, queue: str) -> QueueAddress:
        try:
            name = parse_destination(queue, local_host=self._services.name)
        except InvalidName:
            return NO_ADDRESS
        if isinstance(name, DirectName | PublicName | PrivateName):
            return queue_address(name)
        return NO_ADDRESS
