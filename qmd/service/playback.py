"""Playback: calls leave the queue, each in one transaction, and their operations are run.

    receive ─► known, and tried too often? ─► end as poison
       │
       └► run the operation ─► success: commit
                            └► exception: abort, with the retry policy of the service: the call
                               returns to its place at once, or after a wait in `;retry`

The number of attempts of a call is its abort count, which the queue manager keeps; the number of
cycles is half of its move count.  So neither is lost with this process.  The queue manager also
ends the waits (`qmd/operations/redelivery.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import structlog

from qmd.client import (
    ClientError,
    Message,
    MessageTaken,
    NoSuchMessage,
    NoSuchQueue,
    QueueManager,
    RetryProperties,
    Transaction,
    TransactionAborted,
    chosen,
    no_transaction,
)
from qmd.service.contract import (
    Operation,
    Service,
    ServiceError,
    check_against_queue,
    retry_policy,
)
from qmd.service.outage_log import OutageLog
from qmd.service.proxy import EXTENSION

log = structlog.get_logger()

DRAIN_S = 30.0
RETRY_LOOK_S_MIN, RETRY_LOOK_S_MAX = 0.05, 60.0
UNREACHABLE_PAUSE_S = 1.0
BRING_BACK_MESSAGES = 256  # in one commit
REASON_CHARACTERS_MAX = 1000  # limit of the queue manager
FAILURES_KEPT_MAX = 10_000  # texts of the last failure, for calls that may be retried

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """The call for which an operation is run."""

    message: Message
    #: The transaction of the playback, the operation's own one, or None.
    transaction: Transaction | None
    #: 1 for the first attempt.
    attempt: int
    qm: QueueManager


_current: ContextVar[Call] = ContextVar("qmd_call")


def current_call() -> Call:
    """Return the call that is being played.  Raises LookupError outside of an operation."""
    return _current.get()


@dataclass(slots=True)
class Counts:
    """The counters of a player."""

    played: int = 0
    failed: int = 0
    delayed: int = 0
    poisoned: int = 0
    returned: int = 0
    busy_s: float = 0.0


class _Fault(ServiceError):
    """A poison message stays in its queue, and the service stops."""


class Player:
    """A player for the calls of one service: `await player.run()`, until `stop`."""

    def __init__(self, service: Service, qm: QueueManager, *, queue: str = "") -> None:
        self._service = service
        self._qm = qm
        self._queue = queue or service.queue
        self._stopping = asyncio.Event()
        self._is_system = False
        self._retry: RetryProperties | None = None
        self._failures: OrderedDict[str, str] = OrderedDict()  # the last failure, by message id
        self._outages = OutageLog(self._queue)
        self.counts = Counts()

    @property
    def retry_queue(self) -> str:
        return f"{self._queue};retry"

    @property
    def poison_queue(self) -> str:
        return f"{self._queue};poison"

    @property
    def name(self) -> str:
        return type(self._service).__name__

    def metrics(self) -> dict[str, tuple[float, str]]:
        """Return the counters by name: the value, and its description."""
        counts = self.counts
        return {
            "qmd_service_calls_played_total": (
                counts.played,
                "Calls that were played successfully.",
            ),
            "qmd_service_calls_failed_total": (counts.failed, "Attempts that raised an error."),
            "qmd_service_calls_delayed_total": (counts.delayed, "Calls moved to ;retry."),
            "qmd_service_calls_returned_total": (counts.returned, "Calls moved back from ;retry."),
            "qmd_service_calls_poisoned_total": (counts.poisoned, "Calls that were given up."),
            "qmd_service_busy_seconds_total": (counts.busy_s, "Time spent in operations."),
        }

    def stop(self) -> None:
        """Take no further call; `run` returns when the calls under way are done."""
        self._stopping.set()

    async def run(self, *, drain_s: float = DRAIN_S) -> None:
        """Play calls until `stop`, and then wait at most `drain_s` for calls under way.

        Raises ServiceError for a service that does not fit its queue, and for a poison message when
        `poison` is "fault".
        """
        await self._check()
        await self._service.started()
        log.info(
            "service_started", service=self.name, queue=self._queue,
            concurrency=self._service.concurrency,
        )  # fmt: skip
        tasks = [asyncio.create_task(self._work()) for _ in range(self._service.concurrency)]
        if self._service.exactly_once and not self._is_system:
            tasks.append(asyncio.create_task(self._bring_back()))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            _, late = await asyncio.wait(tasks, timeout=drain_s)
            if late:
                log.warning("calls_cut_off", calls=len(late), after_s=drain_s)
        finally:
            for task in [*tasks, stopped]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._service.stopping()
            log.info("service_stopped", **msgspec.to_builtins(self.counts))
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _check(self) -> None:
        if not self._queue:
            raise ServiceError(f"{self.name} names no queue: set its queue, or run it with --queue")
        facts = await self._qm.show_queue(self._queue)
        self._is_system = bool(facts.get("system"))
        if not self._is_system:  # such a queue has no subqueues
            self._retry = retry_policy(self._service)
        if not self._is_system:
            check_against_queue(type(self._service), facts)
        elif self._service.poison not in ("drop", "fault"):
            raise ServiceError(
                f"{self.name}: {facts['name']} belongs to the queue manager and"
                ' has no subqueues: its poison must be "drop" or "fault"'
            )

    # Playing calls, one after the other.

    async def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._service.exactly_once:
                    await self._play_one()
                else:
                    await self._play_one_loosely()
            except TransactionAborted as aborted:
                log.warning("playback_aborted", queue=self._queue, reason=str(aborted))
            except ServiceError:
                raise
            except ClientError as error:
                self._outages.write(error)
                await self._unless_stopping(asyncio.sleep(UNREACHABLE_PAUSE_S))

    async def _play_one(self) -> None:
        async with self._qm.transaction() as transaction:
            message = await self._unless_stopping(transaction.receive(self._queue, timeout_s=None))
            if message is None:
                # A call may have arrived at this moment, but was not looked at.
                await transaction.abort("the service stops", unread=True)
                return
            operation, arguments, fault = self._understand(message)
            if fault is not None:
                await self._end_poison(transaction, message, fault)
                return
            if await self._is_tried_too_often(transaction, message):
                return
            assert operation is not None
            call = Call(message, transaction, message.abort_count + 1, self._qm)
            if operation.playback == "participate":
                try:
                    await self._run(operation, arguments, call)
                    await transaction.commit()
                except Exception as error:
                    failure = f"{operation.name} failed: {_words(error)}"
                    self._failures[message.id] = failure
                    if len(self._failures) > FAILURES_KEPT_MAX:
                        self._failures.popitem(last=False)
                    await transaction.abort(_cut(failure), retry=self._retry)
                    self._tell_failure(operation, call, error, "it will be played again")
                    self._tell_delay(message, message.abort_count + 1)
                else:
                    self.counts.played += 1
                    self._failures.pop(message.id, None)
                return
            await transaction.commit()  # it has left the queue, whatever its outcome
        await self._play_apart(operation, arguments, message)

    async def _play_one_loosely(self) -> None:
        """Play a call of a non-transactional queue: a failed call is lost, and logged."""
        message = await self._unless_stopping(self._qm.receive(self._queue, timeout_s=None))
        if message is None:
            return
        operation, arguments, fault = self._understand(message)
        if operation is None:
            self.counts.poisoned += 1
            log.error("call_lost", message_id=message.id, queue=self._queue, reason=fault)
            return
        await self._play_apart(operation, arguments, message)

    async def _play_apart(
        self, operation: Operation, arguments: dict[str, Any], message: Message
    ) -> None:
        """Play a call that has left its queue already."""
        try:
            if operation.playback == "ignore":
                call = Call(message, None, message.abort_count + 1, self._qm)
                await self._run(operation, arguments, call)
            else:
                async with self._qm.transaction() as own:
                    call = Call(message, own, message.abort_count + 1, self._qm)
                    await self._run(operation, arguments, call)
        except Exception as error:
            self._tell_failure(operation, call, error, "it is not played again")
        else:
            self.counts.played += 1

    async def _run(self, operation: Operation, arguments: dict[str, Any], call: Call) -> None:
        method = getattr(self._service, operation.name)
        began = asyncio.get_running_loop().time()
        token = _current.set(call)
        # Log lines of the operation itself contain them too.
        bound = structlog.contextvars.bind_contextvars(
            message_id=call.message.id, operation=operation.name
        )
        try:
            if operation.playback == "ignore":
                with no_transaction():
                    await _called(method, operation, arguments, call.message)
            else:
                await _called(method, operation, arguments, call.message)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            _current.reset(token)
            spent_s = asyncio.get_running_loop().time() - began
            self.counts.busy_s += spent_s
        log.info(
            "call_played",
            message_id=call.message.id,
            operation=operation.name,
            attempt=call.attempt,
            ms=round(1000 * spent_s, 3),
        )

    def _tell_failure(self, operation: Operation, call: Call, error: Exception, then: str) -> None:
        self.counts.failed += 1
        log.error(
            "call_failed",
            message_id=call.message.id,
            operation=operation.name,
            attempt=call.attempt,
            then=then,
            exc_info=error,
        )

    def _understand(self, message: Message) -> tuple[Operation | None, dict[str, Any], str | None]:
        """Return the operation and its arguments, or why the message is not a valid call."""
        operations = self._service.operations
        operation = operations.get(message.label)
        if operation is None or operation.takes_everything:
            operation = next((each for each in operations.values() if each.takes_everything), None)
            if operation is None:
                return None, {}, f"there is no operation {message.label!r}"
            return operation, {}, None
        encoding = "json"  # a sender that does not know services can write JSON
        if message.extension.startswith(EXTENSION):
            encoding = message.extension[len(EXTENSION) :].decode("ascii", "replace")
        if encoding not in ("json", "msgpack"):
            return None, {}, f"its encoding {encoding!r} is unknown"
        try:
            return operation, operation.decode(encoding, message.body), None  # type: ignore[arg-type]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, {}, f"its arguments cannot be read: {error}"

    # Failed calls.

    async def _is_tried_too_often(self, transaction: Transaction, message: Message) -> bool:
        """Handle a call that has used up the attempts of a cycle; return whether it was one.

        Such a call has not yet waited in `;retry` for that cycle.
        """
        service = self._service
        tries = service.receive_retries + 1
        cycles = message.abort_count // tries
        if (
            message.abort_count == 0
            or message.abort_count % tries
            or self._waited(message) >= cycles
        ):
            return False
        failures = f"it failed {message.abort_count} times"
        if message.id in self._failures:  # else another process played it; its history has it
            failures += f"; the last time: {self._failures[message.id]}"
        if cycles > service.retry_cycles or self._is_system:
            self._failures.pop(message.id, None)
            await self._end_poison(transaction, message, _cut(failures))
            return True
        # Its last failure was the end of its process, which did not say how long it waits.
        await transaction.abort(_cut(failures), unread=True, retry=self._retry)
        self._tell_delay(message, message.abort_count)
        return True

    def _tell_delay(self, message: Message, failures: int) -> None:
        """Log that a call waits, if it does so after this number of failures."""
        service = self._service
        cycle, rest = divmod(failures, service.receive_retries + 1)
        if rest or cycle > service.retry_cycles or self._is_system:
            return
        self.counts.delayed += 1
        log.warning(
            "call_delayed",
            message_id=message.id,
            attempts=failures,
            cycle=cycle,
            again_in_s=service.retry_delay_s,
        )

    def _waited(self, message: Message) -> int:
        """Return the number of cycles that it has waited for: each moves it away and back."""
        return message.move_count // 2

    async def _end_poison(self, transaction: Transaction, message: Message, why: str) -> None:
        self.counts.poisoned += 1
        how = self._service.poison
        if self._is_system and how != "drop":
            how = "fault"
        log.error(
            "call_poisoned",
            message_id=message.id,
            label=message.label,
            then=how,
            reason=why,
            remedy=self._remedy(message, how),
        )
        if how == "fault":
            await transaction.abort(why)
            raise _Fault(
                f"message {message.lookup_id} of {self._queue} cannot be played: {why}; it is "
                "still there: receive it, or move it away, and start the service again"
            )
        if how == "move":
            await transaction.move(
                self._queue, [message.lookup_id], self.poison_queue, reason=_cut(why)
            )
        elif how == "reject":
            await transaction.reject(self._queue, [message.lookup_id], _cut(why))
        await transaction.commit()

    def _remedy(self, message: Message, how: str) -> str:
        """Return the remedy for a call that was given up."""
        if how == "move":
            return (
                f"Correct the cause, and move it back: qmd move '{self.poison_queue}' "
                f"'{self._queue}' --lookup-id {message.lookup_id}"
            )
        if how == "reject":
            return (
                "Correct the cause; its sender has it in a dead-letter queue: qmd dead-letter list"
            )
        if how == "fault":
            return "Receive it, or move it away, and start the service again."
        return "Correct the cause; the caller has to call again."

    async def _bring_back(self) -> None:
        """Move calls that have been in `;retry` for long enough back to the queue, until `stop`.

        The queue manager does so with those that failed; others were moved there by hand, or by an
        earlier version.
        """
        while not self._stopping.is_set():
            pause_s = min(self._service.retry_delay_s, RETRY_LOOK_S_MAX)
            try:
                pause_s = await self._bring_back_what_is_due()
            except NoSuchQueue:
                pass  # no call has waited there yet
            except ClientError as error:
                self._outages.write(error)
            await self._unless_stopping(asyncio.sleep(max(pause_s, RETRY_LOOK_S_MIN)))

    async def _bring_back_what_is_due(self) -> float:
        """Move due calls back; return in how many seconds further calls may be due.

        A call that is moved there later waits for a whole delay, so none is due sooner than that.
        """
        delay_s, now = self._service.retry_delay_s, datetime.now(UTC)
        next_s = min(delay_s, RETRY_LOOK_S_MAX)
        due: list[int] = []
        async for message in self._qm.peek_each(self.retry_queue):
            left_s = 0.0
            if message.last_move_at is not None:
                left_s = delay_s - (now - message.last_move_at).total_seconds()
            if left_s <= 0:
                due.append(message.lookup_id)
            else:
                next_s = min(next_s, left_s)
        for first in range(0, len(due), BRING_BACK_MESSAGES):
            await self._move_back(due[first : first + BRING_BACK_MESSAGES])
        return next_s

    async def _move_back(self, lookup_ids: list[int]) -> None:
        """Move calls back at once, or one by one when another process has taken some of them."""
        try:
            moved = await self._qm.move(
                self.retry_queue, self._queue, chosen(lookup_ids=lookup_ids)
            )
            self.counts.returned += moved.messages
        except (NoSuchMessage, MessageTaken):
            if len(lookup_ids) > 1:
                for lookup_id in lookup_ids:
                    await self._move_back([lookup_id])

    async def _unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or None when the service is to stop first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stopped):
                each.cancel()
            await asyncio.wait((task, stopped))


async def _called(
    method: Any, operation: Operation, arguments: dict[str, Any], message: Message
) -> None:
    if operation.takes_everything:
        await method(message)
    else:
        await method(**arguments)


def _words(error: Exception) -> str:
    """Return a text such as "ValueError: order 17 has no lines"."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _cut(reason: str) -> str:
    """Cut a reason to the length that the queue manager accepts."""
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    return f"{reason[: REASON_CHARACTERS_MAX - 4]} ..."
