"""The process of all triggers: one loop for each, which follows the file of definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import structlog

from qmd.client import QueueManager
from qmd.client.errors import ClientError
from qmd.client.message import Message
from qmd.triggers.conditions import matching_rules
from qmd.triggers.definition import PEEK, Rule, Trigger, TriggerError
from qmd.triggers.handling import Counts, Handler
from qmd.triggers.scanner import Scanner
from qmd.triggers.store import TriggerFile

if TYPE_CHECKING:
    import ipaddress

    from qmd.triggers.calls import Calls

log = structlog.get_logger()

LOOK_S = 1.0  # between two looks at the file
WAIT_S = 1.0  # between two looks at a queue to which nothing is added behind
FAULT_PAUSE_S = 2.0  # after an error of the daemon
#: A queue with messages that no rule matches is read again after so many times the reading took.
#: Neither actions nor the restart of a daemon are part of that.
REST = 20


class TriggerLoop:
    """The walk of one trigger through its queue."""

    def __init__(self, trigger: Trigger, qm: QueueManager, handler: Handler) -> None:
        self._trigger = trigger
        self._qm = qm
        self._handler = handler
        self._scanner = Scanner(qm, trigger.queue)
        self._places_count = 1 if trigger.serialized else trigger.concurrency
        self._places = asyncio.Semaphore(self._places_count)
        self._under_way: dict[int, asyncio.Task[None]] = {}  # by lookup id

    async def run(self, before: asyncio.Task[None] | None) -> None:
        """Process messages until it is cancelled; actions under way are ended then."""
        if before is not None:
            await asyncio.wait([before])  # it gives back the messages that it has
        try:
            while True:
                try:
                    await self._walk()
                except ClientError as error:
                    log.warning(
                        "trigger_waits", trigger=self._trigger.name,
                        queue=self._trigger.queue, reason=str(error),
                    )  # fmt: skip
                    await asyncio.sleep(FAULT_PAUSE_S)
                except Exception:
                    log.exception("trigger_failed", trigger=self._trigger.name)
                    await asyncio.sleep(FAULT_PAUSE_S)
        finally:
            await self._end()

    async def drain(self) -> None:
        """Begin no more actions, and wait for those under way."""
        for _ in range(self._places_count):
            await self._places.acquire()

    async def _walk(self) -> None:
        """Process all messages, then wait for others.  Raises ClientError.

        A message that was received and has failed stands at its place again, which the walk has
        passed; so the next walk begins anew.  A peeking trigger sees each message once.
        """
        now = asyncio.get_running_loop().time
        reading_s = 0.0
        while True:
            connection, began = self._qm.caller.live_connection, now()
            page = await self._scanner.page()
            if self._qm.caller.live_connection is connection:
                reading_s += now() - began
            if not page:
                break
            for message in page:
                if not await self._look_at(message):
                    break
                self._scanner.passed(message)
        rest_s = max(WAIT_S, REST * reading_s if self._trigger.kind != PEEK else 0.0)
        until = now() + rest_s
        while (left_s := until - now()) > 0:
            await self._scanner.wait(min(left_s, WAIT_S))
            if self._trigger.kind == PEEK or await self._scanner.page(1):
                return
        self._scanner.begin_again()

    async def _look_at(self, message: Message) -> bool:
        """Begin the processing of a message; return False if the walk must return to it first."""
        rules = matching_rules(self._trigger, message)
        if not rules or message.lookup_id in self._under_way:
            return True
        await self._places.acquire()
        if self._trigger.serialized:
            try:
                wait_s = await self._handler.handle(message, rules)
            finally:
                self._places.release()
            if wait_s is None:
                return True
            await asyncio.sleep(wait_s)
            return False
        task = asyncio.create_task(self._handle(message, rules))
        self._under_way[message.lookup_id] = task
        return True

    async def _handle(self, message: Message, rules: list[Rule]) -> None:
        try:
            await self._handler.handle(message, rules)
        except ClientError as error:
            log.warning(
                "trigger_waits", trigger=self._trigger.name,
                queue=self._trigger.queue, reason=str(error),
            )  # fmt: skip
            await asyncio.sleep(FAULT_PAUSE_S)
        except Exception:
            log.exception("trigger_failed", trigger=self._trigger.name)
        finally:
            self._under_way.pop(message.lookup_id, None)
            self._places.release()

    async def _end(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Runner:
    """All triggers of one file."""

    def __init__(
        self,
        file: TriggerFile,
        qm: QueueManager,
        *,
        runs_max: int,
        targets: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network | str],
    ) -> None:
        """`runs_max` actions run at once; `targets` are the hosts that URLs may name."""
        self._file = file
        self._qm = qm
        self._runs = asyncio.Semaphore(runs_max)
        self._targets = targets
        self._loops: dict[str, tuple[Trigger, TriggerLoop, asyncio.Task[None]]] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._trouble = ""
        self.counts = Counts()
        self._calls = cache(self._new_calls)

    async def run(self) -> None:
        """Follow the definitions until it is cancelled; actions under way are ended then."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._follow({})
            await self._settled()

    async def drain(self, drain_s: float) -> None:
        """Begin no more actions, and wait for those under way for at most `drain_s`."""
        loops = [asyncio.ensure_future(loop.drain()) for _, loop, _ in self._loops.values()]
        if not loops:
            return
        _, late = await asyncio.wait(loops, timeout=drain_s)
        if late:
            log.warning("trigger_actions_cut_off", triggers=len(late), after_s=drain_s)

    def look(self) -> None:
        """Follow the definitions as they are now; a file that cannot be read changes nothing."""
        try:
            triggers = self._file.read()
        except TriggerError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("trigger_file", reason=self._trouble)
            return
        self._trouble = ""
        self._follow({name: it for name, it in triggers.items() if it.enabled})

    def metrics(self) -> dict[str, tuple[float, str]]:
        """Return the counters by name: the value, and its description."""
        counts = self.counts
        return {
            "qmd_trigger_messages_total": (counts.messages, "Messages that matched a rule."),
            "qmd_trigger_runs_total": (counts.runs, "Actions that were run."),
            "qmd_trigger_failures_total": (counts.failed, "Actions that failed."),
            "qmd_trigger_rejected_total": (counts.rejected, "Messages that were rejected at once."),
            "qmd_trigger_busy_seconds_total": (counts.busy_s, "Time spent in actions."),
        }

    def _follow(self, triggers: dict[str, Trigger]) -> None:
        ended: dict[str, asyncio.Task[None]] = {}
        for name, (trigger, _, task) in list(self._loops.items()):
            if triggers.get(name) != trigger:
                task.cancel()
                ended[name] = task
                del self._loops[name]
        self._ending = [task for task in (*self._ending, *ended.values()) if not task.done()]
        for name, trigger in triggers.items():
            if name not in self._loops:
                handler = Handler(trigger, self._qm, self._runs, self.counts, self._calls)
                loop = TriggerLoop(trigger, self._qm, handler)
                task = asyncio.create_task(loop.run(ended.get(name)))
                self._loops[name] = trigger, loop, task
                log.info("trigger_started", trigger=name, queue=trigger.queue, kind=trigger.kind)

    async def _settled(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)

    def _new_calls(self) -> Calls:
        from qmd.triggers.calls import Calls

        return Calls(self._targets)
