"""Readers of data pipelines: they reserve, read and consume, and stop at any point.

A reader may be killed between all of its requests, and so may its daemon.  The next run begins
where the last one has consumed to; it consumes a part of what it has read, reads it again, or
releases it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from qmd.client import ClientError, Message, QueueManager, QueueManagerError, connect
from qmd.client.pipeline import ReadQueue, Run, each_message
from tests.simulation.applications import PAUSE_S, RECONNECT_S, Queue, numbers_of
from tests.simulation.oracle import Oracle
from tests.simulation.reader import Reader
from tests.simulation.reservation_oracle import Positions
from tests.simulation.world import Host

WAIT_S, WAIT_S_MAX = 0.05, 2.0  # between two requests that found nothing
RELEASE_PROBABILITY, FORGET_PROBABILITY = 0.05, 0.3
AGAIN_PROBABILITY, PART_PROBABILITY = 0.1, 0.4
END_PROBABILITY = 0.05  # of a run, after it has read
LIMITS = (1, 3, 10, 1000)
#: Requests of a sweeper are so far apart: it returns most messages at first.
SWEEP_S = 0.3


class RangeReader:
    """A reader of a pipeline on one queue; `shared` leaves the messages in it."""

    def __init__(
        self, host: Host, queue: Queue, oracle: Oracle, name: str, *, shared: bool, work_s: float
    ) -> None:
        self.host = host
        self.queue = queue
        self.name = name
        self.shared = shared
        #: Decides about releases; None: no more of them.
        self.releases: random.Random | None = random.Random(f"releases {host.world.seed} {name}")
        self._oracle = oracle
        self._random = host.world.random
        self._work_s = work_s
        self._in_doubt: dict[Positions, list[int]] = {}  # messages that may be consumed
        if shared:
            oracle.reservations.add_reader(host.name, queue.key, name)

    async def run(self) -> None:
        while True:
            try:
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    while True:
                        await self._run_once(client)
            except ClientError as failure:
                self.host.world.note("reader", self.host.name, self.name, failure)
            await asyncio.sleep(PAUSE_S)

    async def _run_once(self, client: QueueManager) -> None:
        """Run the reader until it ends, or is released."""
        run = await client.pipeline.open_reader(self.name, [self.queue.name], shared=self.shared)
        (held,) = run.queues
        positions = self._opened(held)
        start, wait_s = held.position, WAIT_S
        while True:
            limit = self._random.choice(LIMITS)
            reserved = await client.pipeline.reserve(run, held.queue, start, messages_max=limit)
            positions.was_reserved(start, reserved.end, limit)
            if reserved.end == start:
                await asyncio.sleep(wait_s)
                wait_s = min(1.5 * wait_s, WAIT_S_MAX)
                continue
            wait_s = WAIT_S
            await self._read(client, held, positions, start, reserved.end)
            if self._work_s:
                await asyncio.sleep(self._random.expovariate(1 / self._work_s))
            if self._random.random() < AGAIN_PROBABILITY:
                await self._read(client, held, positions, start, reserved.end)
            if await self._ends_early(client, held, positions):
                return
            end = reserved.end
            if self._random.random() < PART_PROBABILITY:
                end = self._random.randint(start, end)
            if end > start:
                await self._consume(client, run, held, positions, end)
            start = end

    def _opened(self, held: ReadQueue) -> Positions:
        oracle, world = self._oracle.reservations, self.host.world
        place = self.host.name, self.queue.key, self.name, held.queue
        positions = oracle.positions(*place, shared=self.shared)
        if positions.is_releasing and held.position == held.reserved == 0 < positions.reserved:
            world.happened("reader forgotten without an answer", self.host.name)
            self._settle(positions, [])
            oracle.forgot(*place)
            positions = oracle.positions(*place, shared=self.shared)
        if held.position > positions.consumed and not positions.is_releasing:
            world.happened("range consumed without an answer", self.host.name)
        if held.reserved > held.position:
            world.happened("reservations of an earlier run", self.host.name)
        self._settle(positions, positions.opened(held.position, held.reserved))
        return positions

    async def _read(
        self, client: QueueManager, held: ReadQueue, positions: Positions, after: int, until: int
    ) -> None:
        found: list[tuple[int, Message]] = []
        limit = self._random.choice(LIMITS)
        rows = client.pipeline.read(held.queue, after, until, reader=self.name, limit=limit)
        async with contextlib.aclosing(rows) as frames:
            async for frame in frames:
                found += [(at, Message(stored)) for at, stored in each_message(frame)]
        numbers = numbers_of(self._oracle, self.host, self.queue, [message for _, message in found])
        new = [number for number in numbers if number not in positions.known]
        self._oracle.reservations.given(self.host.name, self.queue.key, new)
        ats = [at for at, _ in found]
        positions.read(after, until, list(zip(ats, numbers, strict=True)))

    async def _ends_early(
        self, client: QueueManager, held: ReadQueue, positions: Positions
    ) -> bool:
        """Release the reader sometimes, and end the run sometimes."""
        if self.releases is None:
            return False
        if self.shared or self.releases.random() >= RELEASE_PROBABILITY:
            return self.releases.random() < END_PROBABILITY
        forget = self.releases.random() < FORGET_PROBABILITY
        positions.is_releasing = True
        await client.pipeline.release_reader(self.name, forget=forget)
        positions.released()
        if forget:
            self._oracle.reservations.forgot(self.host.name, self.queue.key, self.name, held.queue)
        else:
            positions.consumed = positions.consuming = positions.reserved
        self.host.world.happened(
            "reader forgotten" if forget else "reader released", self.host.name
        )
        return True

    async def _consume(
        self, client: QueueManager, run: Run, held: ReadQueue, positions: Positions, end: int
    ) -> None:
        world = self.host.world
        numbers = positions.begin_consume(end)
        if not self.shared:
            self._oracle.state.begin_removal(numbers)
            self._in_doubt[positions] = numbers
        try:
            await client.pipeline.consume(run, {held.queue: end})
        except QueueManagerError as refusal:
            world.happened(f"consumption refused: {refusal.code}", self.host.name)
            raise
        self._settle(positions, positions.consumed_to(end))
        world.happened("range consumed", self.host.name)
        world.on_result()

    def _settle(self, positions: Positions, consumed: list[int]) -> None:
        """Report the outcome of a consumption."""
        if self.shared:
            return
        self._oracle.state.end_removal(self._in_doubt.pop(positions, []))
        for number in consumed:
            self.host.world.note("received", self.host.name, number)
            self._oracle.received(self.host.name, self.queue.key, number, None)


class Sweeper(Reader):
    """A reader that removes messages which all readers of a shared queue have consumed.

    It returns all others, so that the readers meet messages that an application has taken.
    """

    async def _take_from(self, client: QueueManager, name: str, wait_s: float) -> bool:
        await asyncio.sleep(self._random.expovariate(1 / SWEEP_S))
        taken = await client.take(name, self._batch, timeout_s=wait_s)
        if not taken:
            return False
        numbers = self._hold(taken.messages)
        if self.work_s:
            await asyncio.sleep(self._random.expovariate(1 / self.work_s))
        self._settle()
        seen = self._oracle.reservations.was_seen_by_all
        if not all(seen(self.host.name, self.queue.key, number) for number in numbers):
            await taken.give_back()
            return True
        self._oracle.state.begin_removal(numbers)
        try:
            await taken.remove()
        except QueueManagerError:
            self._oracle.state.end_removal(numbers)
        else:
            self._oracle.state.end_removal(numbers)
            self._received(taken.messages, None)
        return True
