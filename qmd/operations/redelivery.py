"""Redelivery of messages that an application failed to process, by the policy of their queue.

    abort, give back as failed ─► count it ─► at its place again
                                         ├──► subqueue `;retry`, until its time has come
                                         └──► subqueue `;poison`, or dead letter
                                    one commit

The abort count is stored with the message, so neither a restart nor another receiver begins anew.
docs/retries.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol.message_class import MessageClass
from qmd.core import retry_policy
from qmd.core.retry_policy import Again, End, RetryPolicy, Wait
from qmd.errors import Refusal
from qmd.message.shared_packet import once_more_aborted, whole_message
from qmd.queues.local_queue import LocalQueue, Reader
from storage.tables import retries as rows
from storage.tables.keys import LOOKUP_BITS
from storage.tables.retries import PolicyRow, RetryRow

if TYPE_CHECKING:
    from qmd.control_protocol.messages import RetryProperties
    from qmd.operations.move import Mover
    from qmd.operations.receive import MessageReceiver
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

RETRY, POISON = "retry", "poison"
#: Different waits of messages that fail together: those with the same wait are moved together.
WAITS_MAX = 8
REASON_CHARACTERS_MAX = 1000
ATTEMPTS_MAX = 1_000_000
DELAY_S_MAX = 365 * 86_400.0
FACTOR_MAX = 100.0


class _Wait(NamedTuple):
    """A message that failed, and the seconds for which it waits."""

    lookup_id: int
    seconds: float


class Redelivery:
    """The retry policies of queues, and the messages that fail."""

    def __init__(
        self,
        services: Services,
        mover: Mover,
        dead_letters: DeadLetters,
        receiver: MessageReceiver,
        queues: LocalQueues,
    ) -> None:
        self._services = services
        self._mover = mover
        self._dead_letters = dead_letters
        self._receiver = receiver
        self._queues = queues
        self._tasks: set[asyncio.Task[None]] = set()
        #: Called with the time, by the queue manager's own clock, of a message that waits.
        self.on_waiting: Callable[[int], None] = lambda due_ms: None
        self.waited_count = 0
        self.ended_count = 0

    def restore(self, policies: list[PolicyRow]) -> None:
        """Load the stored policies."""
        for row in policies:
            queue = self._queues.by_id.get(row.queue_id)
            if queue is not None:
                queue.retry = RetryPolicy(
                    row.attempts,
                    row.immediate,
                    row.delay_ms / 1000,
                    row.factor,
                    row.delay_max_ms / 1000,
                    row.jitter,
                    End(row.ends),
                )

    async def set(self, queue: LocalQueue, policy: RetryPolicy | None) -> None:
        """Set the policy of a queue; None: messages that fail return to their place at once.

        Raises Refusal.
        """
        if queue.is_read_only:
            raise Refusal(
                "subqueue_unchanged",
                f"{queue.name} has no retry policy of its own",
                "Set that of a queue to which applications send.",
            )
        batch = self._services.storage.batch
        if policy is None:
            await batch.run(partial(rows.remove_policy, queue_id=queue.id))
        else:
            check(policy)
            row = PolicyRow(
                queue.id,
                policy.attempts,
                policy.immediate,
                round(policy.delay_s * 1000),
                policy.factor,
                round(policy.delay_max_s * 1000),
                policy.jitter,
                policy.end.value,
            )
            await batch.run(partial(rows.set_policy, row=row))
        queue.retry = policy

    def failed(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        reason: str,
        transaction: str,
        policy: RetryPolicy | None,
        *,
        counted: bool,
    ) -> list[int]:
        """Move messages that `reader` took and failed to process as the policy says, with the open
        batch; return those that stay at their places, which the caller puts back.

        `policy` replaces that of the queue.  `counted`: the abort counts are raised with this
        batch; else they count earlier failures.
        """
        policy = policy or queue.retry
        if policy is None or queue.is_read_only or queue.deleted:
            return lookup_ids
        waiting: dict[tuple[int, str], list[_Wait]] = {}  # by their failures, and the wait as text
        ended: dict[int, list[int]] = {}  # by their failures
        staying: list[int] = []
        draw = int.from_bytes(self._services.environment.urandom(4), "big") / (1 << 32)
        for index, lookup_id in enumerate(lookup_ids):
            failures = queue.taken[lookup_id].abort_count + counted
            part = (draw + index % WAITS_MAX / WAITS_MAX) % 1
            step = retry_policy.next_step(policy, failures, part) if failures else Again()
            if isinstance(step, Again):
                staying.append(lookup_id)
            elif isinstance(step, Wait):
                group = failures, f"{step.seconds:.1f} s"
                waiting.setdefault(group, []).append(_Wait(lookup_id, step.seconds))
            else:
                ended.setdefault(failures, []).append(lookup_id)
        ended_count = sum(map(len, ended.values()))
        if ended and policy.end is End.DEAD_LETTER and not self._may_end(ended_count):
            # They end after their next failure.
            staying, ended, ended_count = sorted([*staying, *chain(*ended.values())]), {}, 0
        if counted:
            for lookup_id in chain(*ended.values()):
                _count(queue, lookup_id)
            for each in chain(*waiting.values()):
                _count(queue, each.lookup_id)
        for (failures, seconds), waits in waiting.items():
            why = f"it failed {_times(failures)}; it is tried again after {seconds}: {reason}"
            self._send_away(
                *(reader, queue, RETRY, [each.lookup_id for each in waits], _cut(why), transaction),
                [each.seconds for each in waits],
            )
            self.waited_count += len(waits)
        for failures, those in ended.items():
            why = _cut(f"it failed {_times(failures)}; the last time: {reason}")
            if policy.end is End.POISON:
                self._send_away(reader, queue, POISON, those, why, transaction, None)
            else:
                self._reject(reader, queue, those, why)
            log.info(
                "messages_given_up",
                queue=queue.name,
                messages=len(those),
                lookup_id=those[0],
                reason=why,
            )
        self.ended_count += ended_count
        return staying

    async def stop(self) -> None:
        """Wait for moves that have begun."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _may_end(self, messages: int) -> bool:
        # For each message: an acknowledgment, a final ack, and a copy.
        return self._services.ids.suffice(3 * messages)

    def _reject(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int], why: str) -> None:
        self._dead_letters.end(
            queue,
            [(lookup_id, queue.taken[lookup_id].packet) for lookup_id in lookup_ids],
            MessageClass.NACK_RECEIVE_REJECTED,
            detail=why,
        )
        self._receiver.let_go(reader, queue, lookup_ids)

    def _send_away(
        self,
        reader: Reader,
        queue: LocalQueue,
        subqueue: str,
        lookup_ids: list[int],
        why: str,
        transaction: str,
        seconds: list[float] | None,
    ) -> None:
        """Move taken messages to a subqueue; in `;retry` each waits for its seconds."""
        name = f"{queue.name};{subqueue}"
        target = next((each for each in queue.subqueues if each.name == name), None)
        if target is not None and not target.deleted:
            self._move(reader, queue, target, lookup_ids, why, transaction, seconds)
            return
        # The first message: its subqueue is created first, and nothing takes it meanwhile.
        holder = Reader(who="the retry policy of its queue")
        reader.hand_over(queue, lookup_ids, holder)
        task = self._services.loop.create_task(
            self._create_and_move(holder, queue, name, lookup_ids, why, transaction, seconds)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create_and_move(
        self,
        holder: Reader,
        queue: LocalQueue,
        name: str,
        lookup_ids: list[int],
        why: str,
        transaction: str,
        seconds: list[float] | None,
    ) -> None:
        try:
            target = await self._mover.target(queue, name)
            messages = [queue.taken[each] for each in lookup_ids if each in queue.taken]
            self._mover.check(queue, target, messages)
        except Refusal as refusal:
            log.info("retry_not_delayed", queue=queue.name, reason=refusal.text)
            self._receiver.return_held(holder, queue, lookup_ids)
            return
        self._move(holder, queue, target, lookup_ids, why, transaction, seconds)

    def _move(
        self,
        reader: Reader,
        queue: LocalQueue,
        target: LocalQueue,
        lookup_ids: list[int],
        why: str,
        transaction: str,
        seconds: list[float] | None,
    ) -> None:
        moved = self._mover.move_taken(reader, queue, target, lookup_ids, transaction, why)
        if seconds is None:
            return
        self._services.clock.deadline_s(0)  # the batch has the present time by our clock
        now = self._services.clock.now
        due = [int((now + each) * 1000) for each in seconds]
        base = target.id << LOOKUP_BITS
        found = [RetryRow(base | each, at_ms) for each, at_ms in zip(moved, due, strict=True)]
        batch = self._services.storage.batch
        batch.run(partial(rows.add, rows=found))
        batch.when_durable(partial(self.on_waiting, min(due)))


def changed(policy: RetryPolicy | None, given: RetryProperties) -> RetryPolicy | None:
    """Return a policy with the given changes; None: there is none any more.  Raises Refusal."""
    if given.off:
        return None
    base = policy or RetryPolicy(attempts=10)
    values = {
        name: value
        for name in base._fields
        if name != "end" and (value := getattr(given, name)) is not None
    }
    if given.end is not None:
        try:
            values["end"] = End(given.end)
        except ValueError:
            raise Refusal(
                "bad_retry_policy",
                f"there is no end {given.end!r} of retries",
                f"It is one of {', '.join(End)}.",
            ) from None
    new = base._replace(**values)
    if given.delay_max_s is None and new.delay_max_s < new.delay_s:
        new = new._replace(delay_max_s=new.delay_s)
    check(new)
    return new


def check(policy: RetryPolicy) -> None:
    """Raise Refusal for a policy with values that make no sense."""
    for is_right, text in (
        (0 <= policy.attempts <= ATTEMPTS_MAX, f"attempts are 0 (no limit) to {ATTEMPTS_MAX}"),
        (0 <= policy.immediate <= ATTEMPTS_MAX, f"immediate attempts are 0 to {ATTEMPTS_MAX}"),
        (0 <= policy.delay_s <= DELAY_S_MAX, "a delay is 0 to 365 days"),
        (policy.delay_s <= policy.delay_max_s <= DELAY_S_MAX, "the longest delay is that or more"),
        (1 <= policy.factor <= FACTOR_MAX, f"the factor is 1 to {FACTOR_MAX:g}"),
        (0 <= policy.jitter <= 1, "the jitter is 0 to 1"),
    ):
        if not is_right:
            raise Refusal(
                "bad_retry_policy", f"the retry policy is not valid: {text}", "Correct that value."
            )


def _count(queue: LocalQueue, lookup_id: int) -> None:
    """Raise the abort count of a taken message in memory, as the open batch does on the disk."""
    held = queue.express.get(lookup_id)
    if held is not None:
        held = queue.express[lookup_id] = once_more_aborted(held)
        queue.taken[lookup_id] = whole_message(held)
    else:
        queue.taken[lookup_id] = whole_message(once_more_aborted(queue.taken[lookup_id]))


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _cut(reason: str) -> str:
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    return f"{reason[: REASON_CHARACTERS_MAX - 4]} ..."
