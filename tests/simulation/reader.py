"""Readers: applications that receive messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

from qmd.client import (
    ClientError,
    Message,
    NotConnected,
    NotHandedOver,
    OutcomeUnknown,
    QueueManager,
    QueueManagerError,
    connect,
)
from tests.simulation.acknowledgments import QUEUE as ACKNOWLEDGMENTS
from tests.simulation.applications import (
    PAUSE_S,
    RECONNECT_S,
    WAIT_S,
    WAIT_S_MAX,
    Queue,
    numbers_of,
)
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host

PAUSE_PROBABILITY, READER_PAUSE_S = 0.05, (0.5, 3.0)  # of readers that pause now and then
# Both ends round to whole seconds, and the clocks of hosts have different rates.
TIME_MARGIN_S, TIME_DRIFT = 3.0, 0.05


class Reader:
    """An application that receives from one queue without end.

    `mode` is "take", "receive" or "each".
    """

    def __init__(
        self,
        host: Host,
        queue: Queue,
        oracle: Oracle,
        *,
        mode: str,
        batch: int,
        pause_s: float,
        reject_probability: float = 0.0,
    ) -> None:
        self.host = host
        self.queue = queue
        self._reject_probability = reject_probability  # of each batch that it takes
        self._oracle = oracle
        self._random = host.world.random
        self._mode = mode
        self._batch = batch
        self._pause_s = pause_s
        self._wait_s = WAIT_S
        self.work_s = pause_s  # how long it holds messages that it has taken
        #: Decides when it pauses, so that messages expire; None: never.
        self.pauses: random.Random | None = None
        self._held: list[int] = []  # messages that it has taken, as it was notified

    async def run(self) -> None:
        self._wait_s = WAIT_S
        while True:
            try:
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    await self._receive_all(client)
            except NotHandedOver as rest:
                self._received(rest.messages, None)
            except ClientError as failure:
                self.host.world.note("reader", self.host.name, failure)
            self._settle()
            await asyncio.sleep(PAUSE_S)

    def _hold(self, messages: Iterable[Message]) -> list[int]:
        """Report messages that were taken; return their numbers."""
        self._held = self._numbers(messages)
        self._oracle.reservations.taken(self.host.name, self.queue.key, self._held)
        return self._held

    def _settle(self) -> None:
        """Report that taken messages may be back in the queue from now on."""
        self._oracle.reservations.settling(self.host.name, self.queue.key, self._held)
        self._held = []

    def process_died(self) -> None:
        self._settle()
        self._oracle.reader_died(self.host.name, self.queue.key)

    def _report_in_delivery(self, client: QueueManager, count: int = 0) -> None:
        """Report how many messages may be removed from the queue, and are not received yet."""
        count += len(client.unread)
        self._oracle.set_in_delivery(self.host.name, self.queue.key, count)

    async def _receive_all(self, client: QueueManager) -> None:
        receive = {"take": self._take, "receive": self._receive, "each": self._receive_each}
        while True:
            await self._pause()
            if await receive[self._mode](client):
                self._wait_s = WAIT_S
            else:
                self._wait_s = min(1.5 * self._wait_s, WAIT_S_MAX)
            if self._pause_s:
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))

    async def _pause(self) -> None:
        if self.pauses is not None and self.pauses.random() < PAUSE_PROBABILITY:
            await asyncio.sleep(self.pauses.uniform(*READER_PAUSE_S))

    # The modes; each returns whether there were messages.

    async def _take(self, client: QueueManager) -> bool:
        return await self._take_from(client, self.queue.name, self._wait_s)

    async def _take_from(self, client: QueueManager, name: str, wait_s: float) -> bool:
        life = self.host.daemon_life
        taken = await client.take(name, self._batch, timeout_s=wait_s)
        if not taken:
            return False
        numbers = self._hold(taken.messages)
        self._check_times(taken.messages)
        if name.endswith(";sorted") and not all(message.move_count for message in taken.messages):
            self.host.world.fail(f"messages in {name} of {self.host.name} have no move count")
        if self.work_s:
            await asyncio.sleep(self._random.expovariate(1 / self.work_s))
        await self._pause()
        self._settle()
        if self._random.random() < 0.1:
            await taken.give_back()
            return True
        self._check_priorities(name, taken.messages)
        self._oracle.state.begin_removal(numbers)
        is_unwanted = self._random.random() < self._reject_probability
        try:
            await (taken.reject("not wanted") if is_unwanted else taken.remove())
        except (QueueManagerError, NotConnected):
            # After any other error the outcome is unknown.
            self._oracle.state.end_removal(numbers)
        else:
            self._oracle.state.end_removal(numbers)
            if is_unwanted:
                self.host.world.happened("messages rejected", self.host.name)
                self._oracle.rejected(self.host.name, numbers)
            else:
                self._received(taken.messages, life)
            self.host.world.on_result()
        return True

    async def _receive(self, client: QueueManager) -> bool:
        life = self.host.daemon_life
        self._report_in_delivery(client, self._batch)
        try:
            messages = await client.receive_many(
                self.queue.name, self._batch, timeout_s=self._wait_s
            )
        except OutcomeUnknown as failure:
            self._oracle.state.begin_removal(self._numbers(failure.messages))
            raise
        finally:
            self._report_in_delivery(client)
        self._received(messages, life)
        if messages:
            self._check_times(messages)
            self.host.world.on_result()
        return bool(messages)

    async def _receive_each(self, client: QueueManager) -> bool:
        life = self.host.daemon_life
        found = False
        self._report_in_delivery(client, self._batch)
        ends_early = self._random.random() < 0.1
        try:
            each = client.receive_each(self.queue.name, timeout_s=self._wait_s, batch=self._batch)
            async with contextlib.aclosing(each) as messages:
                async for message in messages:
                    found = True
                    self._received([message], life)
                    if ends_early and self._random.random() < 0.2:
                        break
        except OutcomeUnknown as failure:
            self._oracle.state.begin_removal(self._numbers(failure.messages))
            raise
        finally:
            self._report_in_delivery(client)
        return found

    def _received(self, messages: Iterable[Message], life_before: int | None) -> None:
        """Report received messages; `life_before`: of the daemon, when they were requested."""
        host = self.host
        life = life_before if life_before == host.daemon_life else None
        for number in self._numbers(messages):
            host.world.note("received", host.name, number)
            self._oracle.received(host.name, self.queue.key, number, life)

    def _numbers(self, messages: Iterable[Message]) -> list[int]:
        return numbers_of(self._oracle, self.host, self.queue, messages)

    def _check_times(self, messages: Iterable[Message]) -> None:
        """Check that no message was delivered after its time, or accepted after it.

        Clocks drift, and a clock that was set proves nothing.
        """
        world = self.host.world
        if world.seen["clock set"]:
            return
        margin_s = TIME_MARGIN_S + TIME_DRIFT * world.now
        for message in messages:
            sent_s = message.sent_at.timestamp()
            reach_s, receive_s = message.time_to_reach_queue, message.time_to_be_received
            if reach_s is not None:
                late_s = message.arrived_at.timestamp() - sent_s - reach_s
                if late_s > margin_s:
                    world.fail(f"{message.id} arrived {late_s:.1f} s too late, and was accepted")
            if receive_s is not None and not world.seen["process hung"]:
                late_s = self.host.environment.wall_clock() - sent_s - receive_s
                if late_s > margin_s:
                    world.fail(f"{message.id} was delivered {late_s:.1f} s after its time")

    def _check_priorities(self, name: str, messages: Iterable[Message]) -> None:
        """Check that of the messages of one batch the most urgent comes first."""
        priorities = [message.priority for message in messages]
        if priorities != sorted(priorities, reverse=True):
            self.host.world.fail(f"{name} of {self.host.name} gave priorities {priorities}")


class SubqueueReader(Reader):
    """A reader that moves messages to a subqueue and takes them there, or moves them back."""

    has_subqueue = True  # perhaps since an earlier life

    async def _take(self, client: QueueManager) -> bool:
        name, sorted_name = self.queue.name, f"{self.queue.name};sorted"
        moved = await client.move(name, sorted_name, limit=self._random.randint(1, self._batch))
        if moved.messages:
            self.has_subqueue = True
            self.host.world.happened("messages moved", self.host.name)
            if self._random.random() < 0.1:
                await client.move(sorted_name, name)
                return True
        if self.has_subqueue:
            try:
                if await self._take_from(client, sorted_name, 0.0):
                    return True
            except QueueManagerError:  # there is no subqueue: a new disk, or no message yet
                self.has_subqueue = False
        return bool(await client.peek(name, timeout_s=self._wait_s))


class AcknowledgmentReader:
    """A reader of the acknowledgments for the messages of its host's writers.

    `journal`: its queue has a journal, which must stay empty.
    """

    def __init__(self, host: Host, oracle: Oracle, *, journal: bool) -> None:
        self.host = host
        self.queue = Queue(ACKNOWLEDGMENTS, False, journal=journal)
        self._oracle = oracle

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    wait_s = WAIT_S
                    while True:
                        received = await self._receive(client, wait_s)
                        wait_s = WAIT_S if received else min(1.5 * wait_s, WAIT_S_MAX)
            await asyncio.sleep(PAUSE_S)

    async def _receive(self, client: QueueManager, wait_s: float) -> bool:
        taken = await client.take(self.queue.name, 50, timeout_s=wait_s)
        if not taken:
            return False
        for message in taken.messages:
            self.host.world.happened(
                f"acknowledgment: {message.message_class}", self.host.name, message.id
            )
            self._oracle.acknowledgments.received(self.host.name, message)
        await taken.remove()
        for message in taken.messages:
            self._oracle.acknowledgments.removed(message)
        return True
