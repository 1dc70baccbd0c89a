"""Operators: applications that create, pause, purge and delete the queues of a host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from qmd.client import (
    ClientError,
    QueueExists,
    QueueManager,
    QueueManagerError,
    RetryProperties,
    connect,
)
from tests.simulation.acknowledgments import QUEUE as ACKNOWLEDGMENTS
from tests.simulation.applications import PAUSE_S, RECONNECT_S, Queue, Topic
from tests.simulation.message_records import Totals
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host

TAKER_LOOKS, TAKER_LOOK_S = 100, 0.002
ROUND_S, ROUND_S_MAX = 0.25, 5.0  # the pause between rounds, which grows


class Operator:
    """An application that creates the queues of a host, runs commands and reads its state."""

    def __init__(self, host: Host, queues: list[Queue], *, pace_s: float = ROUND_S) -> None:
        self.host = host
        self.queues = queues
        self.state: ReportedState | None = None  # of the latest round; reset after its evaluation
        self.last_state: ReportedState | None = None
        self.is_monitoring = False
        self._pace_s = pace_s
        self._is_deleting = False  # the administration queue
        self.commands: list[tuple[str, str]] = []  # (verb, queue)
        self.topics: list[Topic] = []
        self.topics_life = -1  # of the daemon that has all topics
        self.oracle: Oracle | None = None  # is notified when there is no administration queue

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    await self._make_queues(client)
                    self.host.interface.is_fenced = False
                    round_s = ROUND_S
                    while True:
                        await self._run_commands(client)
                        if not self.is_monitoring:
                            round_s = self._pace_s
                        else:
                            round_s = min(round_s, ROUND_S_MAX)
                            self.state = self.last_state = await read_state(client)
                            round_s = min(1.2 * round_s, ROUND_S_MAX)
                        await asyncio.sleep(round_s)
            await asyncio.sleep(PAUSE_S)

    async def _make_queues(self, client: QueueManager) -> None:
        there = {queue["name"].casefold() for queue in await client.list_queues()}
        for queue in self.queues:
            if queue.key in there:
                continue
            with contextlib.suppress(QueueExists):
                await client.create_queue(
                    queue.name,
                    transactional=queue.transactional,
                    quota_bytes=queue.quota_bytes,
                    journal=queue.journal,
                    retry=_retry(queue.retry_delay_s),
                    groups=queue.groups,
                )
        await self._make_topics(client)
        if self.oracle is not None and not self._is_deleting:
            self.oracle.administration_queue_exists(self.host.name)

    async def _make_topics(self, client: QueueManager) -> None:
        """Create the topics; writers use them once they are complete."""
        life = self.host.daemon_life
        for topic in self.topics:
            await client.topics.create(topic.name)
            for number, each in enumerate(topic.elements):
                await client.topics.subscribe(topic.name, f"s{number}", each.format_name)
        self.topics_life = life

    async def _wait_for_taker(self, name: str) -> None:
        """Wait until a reader has taken messages of a queue: the worst moment to delete them."""
        for _ in range(TAKER_LOOKS):
            manager = self.host.manager
            queue = manager.queues.by_key.get(f"private$\\{name}") if manager is not None else None
            if queue is None or queue.taken:
                return
            await asyncio.sleep(TAKER_LOOK_S)

    async def _run_commands(self, client: QueueManager) -> None:
        """Run the commands.

        A command during which the daemon dies is repeated only while the operator is monitoring:
        all commands are then to resume a queue.
        """
        while self.commands:
            command = verb, name = self.commands[0]
            if not self.is_monitoring:
                self.commands.pop(0)
            act: Callable[[str], Awaitable[object]] = {
                "pause": client.pause_outgoing,
                "resume": client.resume_outgoing,
                "kick": client.kick_outgoing,
                "peek": lambda name: client.peek(name, limit=1000),
                "purge": client.purge_queue,
                "delete": client.delete_queue,
                "create": lambda _: self._make_queues(client),
            }[verb]
            self.host.world.happened(f"operator: {verb}", self.host.name, name)
            if verb in ("delete", "purge"):
                await self._wait_for_taker(name)
            if verb == "delete" and name == ACKNOWLEDGMENTS and self.oracle is not None:
                self.host.world.happened("administration queue deleted", self.host.name)
                self.oracle.acknowledgments.queue_is_being_deleted(self.host.name)
                self._is_deleting = True  # for good, if the outcome stays unknown
            with contextlib.suppress(QueueManagerError):  # there is no such queue yet
                await act(name)
            self._is_deleting = False
            if self.is_monitoring and self.commands[:1] == [command]:
                self.commands.pop(0)


@dataclass(frozen=True, slots=True)
class ReportedState:
    """The state that a queue manager reports."""

    queues: dict[str, Totals]
    outgoing: dict[str, Totals]
    status: dict[str, Any]
    awaiting_bytes: int  # of messages that arrived elsewhere and are not received


def _retry(delay_s: float) -> RetryProperties | None:
    """Return a policy without end, so that each message is received at last."""
    if not delay_s:
        return None
    return RetryProperties(attempts=0, delay_s=delay_s, factor=1.5, delay_max_s=4 * delay_s)


async def read_state(client: QueueManager) -> ReportedState:
    """Read the state of a queue manager."""
    queues = await client.list_queues(system=True)
    outgoing = await client.list_outgoing()
    return ReportedState(
        {queue["name"].casefold(): Totals(queue["messages"], queue["bytes"]) for queue in queues},
        {queue["destination"]: Totals(queue["messages"], queue["bytes"]) for queue in outgoing},
        await client.status(),
        sum(queue["awaiting_bytes"] for queue in outgoing),
    )
