"""The pushing of messages: for each push one loop, which delivers its queue in order.

    take ──► POST ──► 2xx: remove          (a kill in between delivers it again: same webhook-id)
                 └──► else: give back as failed, at its place ──► pause, take it again
                                       └──► after the last attempt: dead letter or poison queue

The daemon counts the failures, with the message, so that neither a restart of the door nor one of
the daemon begins anew.  A target that fails again and again is not tried for a time (its circuit is
open); messages wait in their queue meanwhile, and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from qmd.client.errors import ClientError
from qmd.client.message import Message
from qmd.client.receiver import Taken
from qmd.control_protocol.messages import RetryProperties
from qmd.core.retry_policy import RetryPolicy
from qmd.doors.http import cloud_events
from qmd.doors.http.pushes import PushError, PushFile, StoredPush
from qmd.doors.http.receiving import take
from qmd.doors.http.sessions import Session
from qmd.doors.http.webhook import (
    DeliveryFailed,
    Network,
    Target,
    deliver,
    signature,
    target_of,
)
from qmd.doors.patience import pause_s, policy_of

log = structlog.get_logger()

LOOK_S = 1.0  # between two looks at the file
WAIT_S = 5.0  # for a message
FAULT_PAUSE_S = 2.0  # after an error of the daemon
OPEN_AFTER = 5  # failures of a target in a row
OPEN_FIRST_S, OPEN_LAST_S = 5.0, 300.0
REASON_CHARACTERS_MAX = 400


class Circuit:
    """The failures of one target in a row; after some of them it is left alone for a time."""

    def __init__(self) -> None:
        self.failures = 0
        self._open_until = 0.0
        self._pause_s = OPEN_FIRST_S
        self._trying = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the target has failed so often that it is tried by one message at a time."""
        return self.failures >= OPEN_AFTER

    @contextlib.asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Enter when the target may be tried; an error inside counts as a failure of it."""
        async with self._trying if self.is_open else contextlib.nullcontext():
            now = asyncio.get_running_loop().time
            if self.is_open:
                await asyncio.sleep(max(0.0, self._open_until - now()))
            try:
                yield
            except DeliveryFailed:
                self.failures += 1
                if self.is_open:
                    self._open_until = now() + self._pause_s * random.uniform(0.8, 1.2)  # nosec B311: jitter
                    self._pause_s = min(2 * self._pause_s, OPEN_LAST_S)
                raise
            self.failures, self._pause_s = 0, OPEN_FIRST_S


class Pusher:
    """The pushes of one door."""

    def __init__(
        self,
        file: PushFile,
        allowed: Sequence[Network | str],
        session: Callable[[], Awaitable[Session]],
    ) -> None:
        """`session()` returns that of the user of the door, whose rights all pushes have."""
        self._file = file
        self._allowed = allowed
        self._session = session
        self._loops: dict[str, tuple[StoredPush, asyncio.Task[None]]] = {}
        self._circuits: dict[Target, Circuit] = {}

    async def run(self) -> None:
        """Follow the definitions until it is cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            self.follow({})

    def look(self) -> None:
        """Follow the definitions as they are now; a file that cannot be read changes nothing."""
        with contextlib.suppress(PushError):
            self.follow(self._file.read())

    def follow(self, pushes: dict[str, StoredPush]) -> None:
        """Start and stop loops, so that they are those of the definitions."""
        loop = asyncio.get_running_loop()
        ended: dict[str, asyncio.Task[None]] = {}
        for name, (push, task) in list(self._loops.items()):
            if pushes.get(name) != push or task.done():
                task.cancel()
                ended[name] = task
                del self._loops[name]
        for name, push in pushes.items():
            if name not in self._loops and not push.paused:
                self._loops[name] = push, loop.create_task(self._push(push, ended.get(name)))

    async def _push(self, push: StoredPush, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # it gives back the message that it has taken
        while True:
            try:
                taken = await take(await self._session(), push.queue, 1, WAIT_S)
                if taken:
                    await self._deliver(push, taken)
            except ClientError as error:
                log.warning("push_waits", push=push.name, queue=push.queue, reason=str(error))
                await asyncio.sleep(FAULT_PAUSE_S)
            except Exception:
                log.exception("http_failed", push=push.name)
                await asyncio.sleep(FAULT_PAUSE_S)

    async def _deliver(self, push: StoredPush, taken: Taken) -> None:
        """Deliver a taken message, or give it back as failed and pause.

        A message without attempts left ends then, by the policy of its queue.
        """
        message, left_s = taken.messages[0], 0.0
        circuit = self._circuits.setdefault(target_of(push.url)._replace(path=""), Circuit())
        try:
            try:
                async with circuit.attempt():
                    if taken.is_lost:
                        return  # it is in its queue again
                    await self._post(push, message)
                await taken.remove()
            except DeliveryFailed as failure:
                left_s = await self._failed(push, taken, failure)
        except BaseException:
            await asyncio.shield(taken.give_back())
            raise
        await asyncio.sleep(left_s)

    async def _failed(self, push: StoredPush, taken: Taken, failure: DeliveryFailed) -> float:
        """Give a message back as failed; return for how many seconds to wait."""
        failures = taken.messages[0].abort_count + 1
        reason = f"push {push.name}: {failure}"[:REASON_CHARACTERS_MAX]
        log.warning("push_failed", push=push.name, attempt=failures, reason=reason)
        policy = await self._policy(push)
        in_place = RetryProperties(attempts=policy.attempts, delay_s=0, end=policy.end.value)
        await taken.give_back(failed=True, reason=reason, retry=in_place)
        return pause_s(push, policy, failures, failure.retry_after_s)

    async def _policy(self, push: StoredPush) -> RetryPolicy:
        """Return the policy of the queue of a push, or that of the push if the queue has none."""
        try:
            facts = await (await self._session()).qm.show_queue(push.queue)
        except ClientError as error:
            # Without the right to see properties, the values of the push hold.
            log.warning("push_without_policy", push=push.name, reason=str(error))
            facts = {}
        return policy_of(push, facts)

    async def _post(self, push: StoredPush, message: Message) -> None:
        await post(
            push.url, message, push.queue, self._allowed, push.timeout_s, push.key,
            "push_targets of the section [http]",
        )  # fmt: skip


async def post(
    url: str,
    message: Message,
    queue: str,
    allowed: Sequence[Network | str],
    timeout_s: float,
    key: bytes,
    setting: str,
    *further: tuple[str, str],
) -> None:
    """Deliver a message to a URL, signed with `key`.  Raises DeliveryFailed.

    `setting` names the list of allowed targets; `further` are more headers.
    """
    timestamp, body = int(time.time()), message.body
    headers, media = cloud_events.to_binary(message)
    await deliver(
        url,
        (
            *headers,
            ("content-type", media),
            ("webhook-id", message.id),
            ("webhook-timestamp", str(timestamp)),
            ("webhook-signature", signature(key, message.id, timestamp, body)),
            ("qmd-queue", cloud_events.header_value(queue)),
            ("qmd-label", cloud_events.header_value(message.label)),
            ("qmd-attempt", str(message.abort_count + 1)),
            *further,
            ("user-agent", "qmd"),
        ),
        body,
        allowed,
        timeout_s,
        setting,
    )
