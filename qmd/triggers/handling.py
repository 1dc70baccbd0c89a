"""One message of one trigger: receive it, run the actions of its rules, settle it.

    peek            actions                                     (a failure is only logged)
    receive         take ──► actions ──► remove
    transactional   transaction: receive ──► actions ──► commit, with the answers

After a failure a message that was received returns to its queue and counts as failed: the retry
policy of the queue applies, or the attempts and pauses of the trigger.  A serialized trigger waits
in front of the message instead, so that no other one overtakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from qmd.client import QueueManager
from qmd.client.choice import chosen
from qmd.client.errors import ClientError, NotConnected
from qmd.client.message import Message
from qmd.control_protocol.messages import Choice, RetryProperties
from qmd.core.retry_policy import RetryPolicy
from qmd.doors.patience import pause_s, policy_of
from qmd.triggers.definition import PEEK, TRANSACTIONAL, Program, Rule, Trigger, Url
from qmd.triggers.outcome import ActionFailed
from qmd.triggers.programs import run_program

if TYPE_CHECKING:
    from qmd.client.connection import Connection
    from qmd.client.transaction import Transaction
    from qmd.triggers.calls import Calls

log = structlog.get_logger()

REASON_CHARACTERS_MAX = 400
ALIVE_S = 5.0  # between two requests of a transaction while its actions run
RESPONSE = "response"

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """The counters of all triggers."""

    runs: int = 0
    failed: int = 0
    rejected: int = 0
    messages: int = 0
    busy_s: float = 0.0


class Handler:
    """The work of one trigger on messages."""

    def __init__(
        self,
        trigger: Trigger,
        qm: QueueManager,
        runs: asyncio.Semaphore,
        counts: Counts,
        calls: Callable[[], Calls],
    ) -> None:
        """`runs` limits the actions of all triggers; `calls()` returns the calls of URLs."""
        self._trigger = trigger
        self._qm = qm
        self._runs = runs
        self._counts = counts
        self._calls = calls

    async def handle(self, message: Message, rules: list[Rule]) -> float | None:
        """Process a message that matches these rules.  Raises ClientError.

        Returns the seconds to wait in front of it if it has failed and its order matters, else
        None.  Cancelled, it ends the action and gives the message back.
        """
        self._counts.messages += 1
        if self._trigger.kind == PEEK:
            with contextlib.suppress(ActionFailed):
                await self._act(message, rules, None)
            return None
        try:
            if self._trigger.kind == TRANSACTIONAL:
                await self._in_transaction(message, rules)
            else:
                await self._taken(message, rules)
        except _GivenBack as failure:
            return failure.pause_s
        return None

    async def _taken(self, message: Message, rules: list[Rule]) -> None:
        connection = await self._qm.caller.connection()
        taken = await self._qm.take(
            self._trigger.queue, 1, choice=chosen(lookup_ids=[message.lookup_id])
        )
        if not taken:
            return  # another receiver has it
        try:
            (found,) = taken.messages
            await _until_lost(connection, self._act(found, rules, None))
            await taken.remove()
        except ActionFailed as failure:
            if failure.is_final:
                self._counts.rejected += 1
                await taken.reject(self._reason(failure))
                return
            retry, wait_s = await self._retry(found, failure)
            await taken.give_back(failed=True, reason=self._reason(failure), retry=retry)
            raise _GivenBack(wait_s) from failure
        except BaseException:
            await asyncio.shield(taken.give_back())
            raise

    async def _in_transaction(self, message: Message, rules: list[Rule]) -> None:
        choice = chosen(lookup_ids=[message.lookup_id])
        transaction = self._qm.transaction()
        await transaction.begin()
        try:
            connection = await self._qm.caller.connection()
            found = await transaction.receive_chosen(self._trigger.queue, choice)
            if not found:
                await transaction.abort()
                return
            message = found[0]
            async with _kept_alive(transaction, self._trigger.queue, message.lookup_id):
                await _until_lost(connection, self._act(message, rules, transaction))
            await transaction.commit()
        except ActionFailed as failure:
            if failure.is_final:
                # Not in the transaction: answers of earlier rules must not leave.
                await transaction.abort(self._reason(failure), unread=True)
                await self._reject(choice, failure)
                return
            retry, wait_s = await self._retry(message, failure)
            await transaction.abort(self._reason(failure), retry=retry)
            raise _GivenBack(wait_s) from failure
        except asyncio.CancelledError:
            await asyncio.shield(transaction.abort("the trigger was stopped", unread=True))
            raise
        except BaseException as error:
            await asyncio.shield(transaction.abort(str(error)[:REASON_CHARACTERS_MAX]))
            raise

    async def _act(
        self, message: Message, rules: list[Rule], transaction: Transaction | None
    ) -> None:
        """Run the actions of all rules, in order.  Raises ActionFailed at the first failure."""
        for rule in rules:
            began = asyncio.get_running_loop().time()
            try:
                async with self._runs:
                    began = asyncio.get_running_loop().time()
                    await self._run(rule, message, transaction)
            except ActionFailed as failure:
                self._counts.failed += 1
                log.warning(
                    "trigger_action_failed", trigger=self._trigger.name, rule=rule.name,
                    message_id=message.id, attempt=message.abort_count + 1, reason=str(failure),
                )  # fmt: skip
                await self._note(message, rule, f"failed: {failure}")
                raise _of_rule(rule, failure) from failure
            finally:
                spent_s = asyncio.get_running_loop().time() - began
                self._counts.runs += 1
                self._counts.busy_s += spent_s
            log.info(
                "trigger_action_ran", trigger=self._trigger.name, rule=rule.name,
                message_id=message.id, attempt=message.abort_count + 1, ms=round(1000 * spent_s, 3),
            )  # fmt: skip
            await self._note(message, rule, f"succeeded in {spent_s:.3f} s")

    async def _run(self, rule: Rule, message: Message, transaction: Transaction | None) -> None:
        action = rule.action
        if isinstance(action, Program):
            output = await run_program(action, rule, self._trigger, message)
            if action.answer_to:
                await self._answer(action.answer_to, message, output.output, transaction)
        elif isinstance(action, Url):
            await self._calls().call(action, rule, self._trigger, message)
        else:
            raise ActionFailed("its action has no counterpart here", is_final=False)

    async def _answer(
        self, to: str, message: Message, body: bytes, transaction: Transaction | None
    ) -> None:
        """Send the output of a program, in the transaction if there is one."""
        destination = message.response_queue if to == RESPONSE else to
        if not destination:
            raise ActionFailed("the message names no response queue", is_final=True)
        send = self._qm.send if transaction is None else transaction.send
        try:
            await send(destination, body, label=message.label, correlation_id=message.id)
        except NotConnected:
            raise
        except ClientError as error:
            raise ActionFailed(f"its output could not be sent: {error}") from error

    async def _note(self, message: Message, rule: Rule, text: str) -> None:
        """Record a run in the history of its message, if this client may."""
        note = f"trigger {self._trigger.name}, rule {rule.name}: {text}"[:REASON_CHARACTERS_MAX]
        with contextlib.suppress(ClientError):
            await self._qm.note(self._trigger.queue, [message.lookup_id], note)

    async def _retry(
        self, message: Message, failure: ActionFailed
    ) -> tuple[RetryProperties | None, float | None]:
        """Return the policy to state, None for that of the queue; and the pause in front of it."""
        policy, is_own = await self._policy()
        wait_s = None
        if self._trigger.serialized:
            failures = message.abort_count + 1
            wait_s = pause_s(self._trigger, policy, failures, failure.retry_after_s)
            policy, is_own = policy._replace(delay_s=0.0), True
        if not is_own:
            return None, wait_s
        stated = RetryProperties(
            attempts=policy.attempts,
            delay_s=policy.delay_s,
            delay_max_s=policy.delay_max_s,
            jitter=policy.jitter,
            end=policy.end.value,
        )
        return stated, wait_s

    async def _policy(self) -> tuple[RetryPolicy, bool]:
        """Return the policy of the queue, or that of the trigger and True."""
        try:
            facts = await self._qm.show_queue(self._trigger.queue)
        except ClientError as error:
            log.warning("trigger_without_policy", trigger=self._trigger.name, reason=str(error))
            facts = {}
        return policy_of(self._trigger, facts), facts.get("retry") is None

    async def _reject(self, choice: Choice, failure: ActionFailed) -> None:
        async with await self._qm.take(self._trigger.queue, 1, choice=choice) as taken:
            if taken:
                self._counts.rejected += 1
                await taken.reject(self._reason(failure))

    def _reason(self, failure: ActionFailed) -> str:
        return f"trigger {self._trigger.name}: {failure}"[:REASON_CHARACTERS_MAX]


async def _until_lost(connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; end it when a connection is lost.  Raises NotConnected.

    The daemon gives the message back then, and the action must not go on beside its repetition.  So
    the connection is one from before the message was received: a later one can belong to the next
    daemon, which has given the message to the repetition.
    """
    lost = asyncio.Event()
    connection.when_closed(lost.set)
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise NotConnected(
            "the connection to the queue manager was lost while an action ran",
            "it is run again",
            code="connection_lost",
        )
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.wait([task, watch])


class _GivenBack(Exception):
    """The message has failed and is in its queue again."""

    def __init__(self, pause_s: float | None) -> None:
        self.pause_s = pause_s


def _of_rule(rule: Rule, failure: ActionFailed) -> ActionFailed:
    return ActionFailed(
        f"rule {rule.name}: {failure}",
        is_final=failure.is_final,
        retry_after_s=failure.retry_after_s,
    )


@contextlib.asynccontextmanager
async def _kept_alive(transaction: Transaction, queue: str, lookup_id: int) -> AsyncIterator[None]:
    """Keep a transaction from being aborted as idle while its actions run."""

    ended = asyncio.Event()

    async def ask() -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await ended.wait()
            if not ended.is_set():
                # It has this message already, so that nothing is received.
                await transaction.receive_chosen(queue, chosen(lookup_ids=[lookup_id]))

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        ended.set()  # a request that is cancelled would make the commit impossible
        await asyncio.wait([asking])
        if asking.exception() is not None:
            log.debug("trigger_transaction_ended", reason=str(asking.exception()))
