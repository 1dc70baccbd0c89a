"""Receiving of messages by readers: take, remove, reject, give back.

take ──► the reader gets a copy ──► remove ──► (commit) ──► removed, and answered
                                    give back, or the connection ends ──► ready again
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from protocol.message_class import MessageClass
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import StoredMessage
from qmd.core.packet_fields import has_admin_queue, may_want_word, wants_final_ack
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind, identity_of
from qmd.message.shared_packet import Held
from qmd.queues.local_queue import EXPIRED_MAX, HELD, LocalQueue, Reader, Waiter
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    from qmd.core.retry_policy import RetryPolicy
    from qmd.events.recorder import Recorder
    from qmd.message.shared_packet import Parts
    from qmd.operations.large_ends import LargeEnds
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.prepared_ends import PreparedEnd
    from qmd.queues.quarantine import Damage
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


REFILL_ROWS = 512
REFILL_BYTES = 4 * 1024 * 1024
Matches = Callable[[StoredMessage], bool]
#: More messages of a reader that ends return in parts (large_ends.py): one takes some 10 µs.
AT_ONCE = 1024
#: More acknowledgments of receipt are made in parts (large_removals.py): one takes some 100 µs.
ACKNOWLEDGED_AT_ONCE = 256
#: Final acks that take as long as an acknowledgment to an administration queue.
FINAL_ACKS_OF_ONE = 16
NUMBERS_SPARE = 10_000  # half of the message numbers reserved for acknowledgments and dead letters


class MessageReceiver:
    """Service for the readers of queues."""

    def __init__(
        self,
        services: Services,
        damage: Damage,
        dead_letters: DeadLetters,
        parts: Parts,
        queues: LocalQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._damage = damage
        self._dead_letters = dead_letters
        self._parts = parts
        self._queues = queues
        self._recorder = recorder

    def connect(self, redeliver: Callable[..., list[int]]) -> None:
        """Set `Redelivery.failed`, which is created later."""
        self._redeliver = redeliver

    def connect_large(self, ends: LargeEnds) -> None:
        """Set the work in parts for readers that end with many messages, which is created later."""
        self._large_ends = ends

    def take(
        self,
        reader: Reader,
        queue: LocalQueue,
        limit: int,
        wait_s: float,
        answer: Callable[[list[StoredMessage]], None],
    ) -> Waiter:
        """Take up to `limit` messages; `answer` gets them at once, or when there are some.

        After `wait_s` seconds it gets none; a negative time has no end.  Returns the request.
        """
        waiter = Waiter(reader, limit, wait_s != frames.NO_WAIT, answer)
        queue.waiters.append(waiter)
        self.serve(queue)
        if wait_s > 0 and waiter in queue.waiters:
            self._services.timers.at(
                self._services.loop.time() + wait_s, waiter, partial(self._time_out, queue)
            )
        return waiter

    def withdraw(self, queue: LocalQueue, waiter: Waiter) -> None:
        """End a request that may still wait, without an answer."""
        if waiter in queue.waiters:
            queue.waiters.remove(waiter)
            self._services.timers.cancel(waiter)

    def _time_out(self, queue: LocalQueue, waiter: Waiter) -> None:
        if waiter in queue.waiters:
            queue.waiters.remove(waiter)
            waiter.answer([])

    def serve(self, queue: LocalQueue) -> None:
        """Give ready messages to waiting readers, in the order of their requests."""
        for watcher in queue.watchers:
            if not watcher.done():
                watcher.set_result(None)
        now_s = self._services.clock.now_s
        while queue.waiters:
            waiter = queue.waiters[0]
            messages = queue.take(waiter.reader, waiter.limit, now_s)
            if queue.expired:
                may_be_more = len(queue.expired) >= EXPIRED_MAX
                self._dead_letters.expire_received(queue)
                if may_be_more and not messages:
                    self._services.storage.batch.when_durable(partial(self.serve, queue))
                    return
            if not messages:
                break
            queue.waiters.popleft()
            self._services.timers.cancel(waiter)
            waiter.answer(messages)
        if queue.window.wants_refill or queue.window.needs_refill:
            self._refill(queue)
        elif queue.waiters and queue.window.horizon is None:
            self._answer_impatient(queue)

    def _answer_impatient(self, queue: LocalQueue) -> None:
        """Answer the requests that do not wait: the queue is empty."""
        impatient = [waiter for waiter in queue.waiters if not waiter.wait]
        for waiter in impatient:
            queue.waiters.remove(waiter)
            waiter.answer([])

    def _refill(self, queue: LocalQueue) -> None:
        start = queue.window.begin_refill()
        self._services.storage.batch.read_after(
            partial(
                message_rows.page,
                queue_id=queue.id,
                from_lookup=start,
                rows_max=REFILL_ROWS,
                bytes_max=REFILL_BYTES,
            ),
            partial(self._refilled, queue),
        )

    def _refilled(self, queue: LocalQueue, rows: list[MessageRow]) -> None:
        entries = [
            (row.key & LOOKUP_MASK, self._held(row), len(row.packet))
            for row in self._damage.whole_messages(queue, rows)
        ]
        size = sum(len(row.packet) for row in rows)
        queue.window.refill(entries, complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)
        self.serve(queue)

    def _held(self, row: MessageRow) -> Held:
        stored = stored_message(row)
        return stored if row.part_id is None else self._parts.held(stored, row.part_id)

    def remove(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        token: bytes,
        done: Callable[[int], None],
        *,
        transaction: str = "",
        prepared: PreparedEnd | None = None,
    ) -> None:
        """Remove messages that `reader` took; `done(count)` is called when this is durable.

        Their senders are notified if they requested it; `prepared` has the acknowledgments of many
        messages.  Raises Refusal.
        """
        lookup_ids = self.own(reader, queue, lookup_ids)
        messages = list(map(queue.taken.__getitem__, lookup_ids))
        self._recorder.record(
            EventHeader(Kind.RECEIVED, queue=queue.name, transaction=transaction),
            [message.packet for message in messages],
            places=lookup_ids,
            lazily=True,  # the deletions make the batch be written
        )
        self._dead_letters.received(queue, messages, prepared)
        self._let_go(reader, queue, lookup_ids, token, done)

    def reject(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        detail: str,
        token: bytes,
        done: Callable[[int], None],
        *,
        total: int = 0,
        prepared: PreparedEnd | None = None,
    ) -> None:
        """Remove messages that `reader` took and rejects; `detail` is its reason.

        They become dead letters, at their source or here: docs/decisions/0010.  `done(count)` is
        called when this is durable; `total` is the count if they are the last of more messages.
        `prepared` has their acknowledgments.  Raises Refusal.
        """
        lookup_ids = self.own(reader, queue, lookup_ids)
        messages = [(lookup_id, queue.taken[lookup_id].packet) for lookup_id in lookup_ids]
        self.check_rejectable(queue)
        ends = MessageClass.NACK_RECEIVE_REJECTED
        self._dead_letters.end(queue, messages, ends, detail=detail, prepared=prepared)
        self._let_go(reader, queue, lookup_ids, token, done, total)

    def acknowledges_many(self, queue: LocalQueue, lookup_ids: Collection[int]) -> bool:
        """Return whether the removal of taken messages needs so many acknowledgments that they are
        made in parts: `LargeRemovals`."""
        if len(lookup_ids) <= ACKNOWLEDGED_AT_ONCE or queue.holds_ended:
            return False
        taken, left = queue.taken, ACKNOWLEDGED_AT_ONCE * FINAL_ACKS_OF_ONE
        others: list[bytes] = []
        for lookup_id in lookup_ids:
            message = taken.get(lookup_id)
            if message is None:
                continue
            if has_admin_queue(message.packet):
                left -= FINAL_ACKS_OF_ONE
                if left < 0:
                    return True
            else:
                others.append(message.packet)
        # Only more messages than this can ask for so many final acks: the others are not looked at.
        return len(others) > left and sum(map(wants_final_ack, others)) > left

    def check_rejectable(self, queue: LocalQueue) -> None:
        """Raise Refusal for a queue of which no messages can be rejected."""
        if queue.holds_ended:
            raise Refusal(
                "ended_before",
                f"the delivery of the messages in {queue.name} has ended before, and no sender"
                " waits for an outcome",
                "Receive it instead.",
            )

    def own(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> list[int]:
        """Return the lookup ids without duplicates.  Raises Refusal if one was not taken."""
        mine = reader.taken.get(queue, set())
        once = set(lookup_ids)
        if len(once) == len(lookup_ids) and once <= mine:
            return lookup_ids
        lookup_ids = list(dict.fromkeys(lookup_ids))
        missing = [lookup_id for lookup_id in lookup_ids if lookup_id not in mine]
        if missing:
            raise Refusal(
                "not_taken",
                f"message {missing[0]} of {queue.name} was not taken on this connection",
                "Take messages first; they return to their queue when their connection ends.",
            )
        return lookup_ids

    def check_numbers(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> None:
        """Raise Refusal if message numbers do not suffice for the acknowledgments of messages.

        Callers use this before `remove` and `reject`.
        """
        mine = reader.taken.get(queue, set())
        # For each message: an acknowledgment, a final ack, and a copy.
        if not self._services.ids.suffice(3 * len(lookup_ids), spare=NUMBERS_SPARE) and any(
            each in mine and may_want_word(queue.taken[each].packet) for each in lookup_ids
        ):
            raise Refusal(
                "busy",
                "more acknowledgments wait for the disk than can be given a number now",
                "Try again in a moment.",
            )

    def _let_go(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        token: bytes,
        done: Callable[[int], None],
        total: int = 0,
    ) -> None:
        reader.begin_removal(queue, lookup_ids)
        count = total or len(lookup_ids)
        batch = self._services.storage.batch
        if lookup_ids:
            _delete(batch, queue, lookup_ids)
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(count), self._services.clock.now_s)
        batch.when_durable(partial(self._removed, queue, lookup_ids, count, done))

    def _removed(
        self, queue: LocalQueue, lookup_ids: list[int], count: int, done: Callable[[int], None]
    ) -> None:
        queue.leaving.difference_update(lookup_ids)
        queue.forget(lookup_ids)
        done(count)

    def abort(
        self, reader: Reader, transaction: str, reason: str, policy: RetryPolicy | None = None
    ) -> int:
        """Return the messages that an aborted transaction received to their queues; return their
        number.

        Their abort counts are incremented, unless the application has not seen them.  Those that
        failed too often are moved by the retry policy of their queue, or by `policy`.  Many return
        in parts: `LargeEnds.abort_of`.
        """
        self.stop_waiting(reader)
        count = 0
        for queue, mine in list(reader.taken.items()):
            count += len(mine)
            if len(mine) > AT_ONCE:
                self._large_ends.fail_later(
                    reader, queue, sorted(mine), reason, transaction, policy
                )
            elif mine:
                self.fail(reader, queue, sorted(mine), reason, transaction, policy)
        return count

    def fail(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        reason: str,
        transaction: str = "",
        policy: RetryPolicy | None = None,
    ) -> int:
        """Return messages of which the processing failed to their places; return their number.

        Their abort counts are incremented, unless the application has not seen them.  The retry
        policy of their queue, or `policy`, may move them elsewhere, with the open batch.
        """
        lookup_ids = self.own(reader, queue, lookup_ids)
        messages = [queue.taken[lookup_id] for lookup_id in lookup_ids]
        self._recorder.record(
            EventHeader(Kind.ABORTED, queue=queue.name, reason=reason, transaction=transaction),
            [message.packet for message in messages],
            places=lookup_ids,
        )
        counted, staying = not reader.is_unread, lookup_ids
        if counted:
            keys = [queue.id << LOOKUP_BITS | lookup_id for lookup_id in lookup_ids]
            self._services.storage.batch.run(partial(message_rows.count_abort, keys=keys))
        if queue.retry is not None or policy is not None:
            staying = self._redeliver(
                reader, queue, lookup_ids, reason, transaction, policy, counted=counted
            )
        self._put_back(reader, queue, staying, aborted=counted)
        return len(lookup_ids)

    def let_go(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> None:
        """Delete messages that `reader` took with the open batch, which has their consequences."""
        self._let_go(reader, queue, lookup_ids, b"", lambda count: None)

    def return_held(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> None:
        """Return messages that `reader` holds to their places; no attempt has failed."""
        self._put_back(reader, queue, lookup_ids)

    def is_waiting(self, reader: Reader) -> bool:
        """Return whether `reader` waits for messages of any queue."""
        return any(
            waiter.reader is reader
            for queue in self._queues.by_key.values()
            for waiter in queue.waiters
        )

    def stop_waiting(self, reader: Reader) -> None:
        """Answer the waiting requests of `reader` with no messages."""
        for queue in self._queues.by_key.values():
            for waiter in [waiter for waiter in queue.waiters if waiter.reader is reader]:
                queue.waiters.remove(waiter)
                self._services.timers.cancel(waiter)
                waiter.answer([])

    def stop_waiting_at(self, reader: Reader, queue: LocalQueue) -> int:
        """Answer the requests of `reader` that wait at one queue with no messages."""
        ended = [waiter for waiter in queue.waiters if waiter.reader is reader]
        for waiter in ended:
            queue.waiters.remove(waiter)
            self._services.timers.cancel(waiter)
            waiter.answer([])
        return len(ended)

    def give_back(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        why: str = "its reader gave it back",
    ) -> int:
        """Return messages that `reader` took to their old places; return their number."""
        mine = reader.taken.get(queue, set())
        returning = [lookup_id for lookup_id in lookup_ids if lookup_id in mine]
        for lookup_id in returning:
            source, number = identity_of(queue.taken[lookup_id].packet)
            self._recorder.provoked(
                EventHeader(Kind.ABORTED, queue=queue.name, reason=why),
                source,
                number,
                place=lookup_id,
            )
        return self._put_back(reader, queue, lookup_ids)

    def _put_back(
        self, reader: Reader, queue: LocalQueue, lookup_ids: list[int], *, aborted: bool = False
    ) -> int:
        now_s = self._services.clock.now_s
        count = queue.put_back(reader, lookup_ids, now_s, aborted=aborted)
        if queue.expired:
            self._dead_letters.expire_received(queue)
        if count:
            self.serve(queue)
        return count

    def leave(self, reader: Reader) -> None:
        """Return all messages that `reader` took and did not remove: its connection has ended."""
        reader.has_left = True
        # Its waiting requests end first: they would get the messages that it gives back.
        for queue in self._queues.by_key.values():
            for waiter in [waiter for waiter in queue.waiters if waiter.reader is reader]:
                queue.waiters.remove(waiter)
                self._services.timers.cancel(waiter)
        why = "its reader's connection ended"
        for queue, mine in list(reader.taken.items()):
            if len(mine) > AT_ONCE:
                self._large_ends.give_back_later(reader, queue, sorted(mine), why)
            elif mine:
                self.give_back(reader, queue, sorted(mine), why)


def stored_message(row: MessageRow) -> StoredMessage:
    """Return the message of a row, as readers get it."""
    return StoredMessage(
        row.key & LOOKUP_MASK,
        row.arrived_at_ms,
        row.packet,
        row.reason,
        row.abort_count,
        row.move_count,
        row.last_move_at_ms,
        row.expires_at_s,
    )


def _delete(batch: Batch, queue: LocalQueue, lookup_ids: list[int]) -> None:
    """Delete the rows of taken messages, as one run if they follow each other."""
    base, first, count = queue.id << LOOKUP_BITS, lookup_ids[0], len(lookup_ids)
    messages = list(map(queue.taken.__getitem__, lookup_ids))
    size = None
    if HELD not in messages:  # its bytes are not known
        size = sum([len(message.packet) for message in messages])
    if size is not None and count > 1 and lookup_ids == list(range(first, first + count)):
        batch.delete_messages(runs=[(base | first, base | lookup_ids[-1], size)])
    else:
        batch.delete_messages([base | lookup_id for lookup_id in lookup_ids], size=size)
