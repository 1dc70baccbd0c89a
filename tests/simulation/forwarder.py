"""Forwarders: applications that receive and send in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from qmd.client import (
    ClientError,
    Message,
    QueueManager,
    QueueManagerError,
    connect,
)
from tests.simulation.applications import (
    PAUSE_S,
    RECONNECT_S,
    WAIT_S,
    WAIT_S_MAX,
    Destination,
    DestinationList,
    Queue,
    Sending,
    attempt,
    numbers_of,
)
from tests.simulation.message_records import Sent, mark
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host

REJECT_PROBABILITY = 0.2  # of each message that a rejecting forwarder receives


class Forwarder:
    """An application that receives from one queue and sends to others in one transaction.

    It runs without end, and aborts some transactions.
    """

    def __init__(
        self,
        host: Host,
        queue: Queue,
        name: str,
        oracle: Oracle,
        destinations: list[Destination | DestinationList],
        *,
        batch: int,
        sends_max: int,
        abort_probability: float,
        pause_s: float,
    ) -> None:
        self.host = host
        self.queue = queue
        self._name = name
        self._oracle = oracle
        self._random = host.world.random
        self._destinations = destinations
        self._batch = batch
        self._sends_max = sends_max
        self._abort_probability = abort_probability
        self._pause_s = pause_s
        #: Decides which messages are rejected; None: none of them.
        self.rejections: random.Random | None = None
        self._wait_s = WAIT_S
        self._life = 0

    async def run(self) -> None:
        self._life += 1
        self._wait_s = WAIT_S
        while True:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    while True:
                        if await self._forward(client):
                            self._wait_s = WAIT_S
                        else:
                            self._wait_s = min(1.5 * self._wait_s, WAIT_S_MAX)
            await asyncio.sleep(PAUSE_S)

    async def _forward(self, client: QueueManager) -> bool:
        """Run one transaction; return whether there were messages."""
        world, oracle = self.host.world, self._oracle
        transaction = client.transaction()
        await transaction.begin()
        taken = await transaction.receive_many(self.queue.name, self._batch, timeout_s=self._wait_s)
        if not taken:
            await transaction.abort()
            return False
        numbers = numbers_of(oracle, self.host, self.queue, taken)
        for number, message in zip(numbers, taken, strict=False):
            oracle.transactions.check_abort_count(number, message.abort_count)
        request = oracle.next_request()
        sendings = [
            self._attempt(self._random.choice(self._destinations), request)
            for _ in range(self._random.randint(1, self._sends_max))
        ]
        unwanted = self._unwanted(numbers, taken)
        rejected = list(unwanted)
        numbers = [number for number in numbers if number not in unwanted]
        oracle.state.begin_removal(rejected)
        work = oracle.transactions.committing(
            numbers, [message for sending in sendings for message in sending.messages]
        )
        ids: list[str] = []
        try:
            for sending in sendings:
                ids.append(
                    await transaction.send(
                        sending.destination.format_name, sending.body, **sending.properties
                    )
                )
            if unwanted:
                await transaction.reject(self.queue.name, list(unwanted.values()), "not wanted")
            if self._pause_s:
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            if self._random.random() < self._abort_probability:
                await transaction.abort("thought again")
                oracle.transactions.aborted(work)
                oracle.state.end_removal(rejected)
                if transaction._connection is not None and not transaction._connection.is_lost:
                    # The queue manager has confirmed the abort.
                    oracle.transactions.abort_confirmed(numbers + rejected)
                world.happened("transaction aborted by its application", self.host.name)
                world.notify_confirmation(self.host)
                return True
            await transaction.commit()
        except QueueManagerError as refusal:  # nothing was done
            oracle.transactions.aborted(work)
            oracle.state.end_removal(rejected)
            world.happened(f"transaction refused: {refusal.code}", self.host.name)
            await transaction.abort()
            return True
        # After any other error the outcome is unknown.
        oracle.transactions.committed(work)
        oracle.state.end_removal(rejected)
        if rejected:
            world.happened("messages rejected in a transaction", self.host.name)
            oracle.rejected(self.host.name, rejected)
        for sending, sent_id in zip(sendings, ids, strict=True):
            sending.confirmed(oracle, sent_id)
        for number in numbers:
            world.note("received", self.host.name, number)
            oracle.received(self.host.name, self.queue.key, number, None)
        world.notify_confirmation(self.host)
        return True

    def _unwanted(self, numbers: list[int], taken: Sequence[Message]) -> dict[int, int]:
        """Draw the messages to reject: number -> lookup id."""
        if self.rejections is None:
            return {}
        return {
            number: message.lookup_id
            for number, message in zip(numbers, taken, strict=False)
            if self.rejections.random() < REJECT_PROBABILITY
        }

    def _attempt(self, destination: Destination | DestinationList, request: int) -> Sending:
        messages = [
            self._message(each, request, self._oracle.next_number())
            for each in destination.elements
        ]
        number = attempt(self.host, self._oracle, messages, "moved", destination)
        # Large enough that the copies share their body.
        size = self._random.choice((0, 600)) if len(messages) > 1 else 0
        return Sending(messages, destination, mark(number) + bytes(size), {})

    def _message(self, destination: Destination, request: int, number: int) -> Sent:
        return Sent(
            number=number,
            stream=f"{self._name}.{self._life} to {destination.format_name}",
            source=self.host.name,
            target=destination.host,
            queue=f"private$\\{destination.kind.queue}",
            delivery="transactional",
            outcome=destination.kind.outcome,
            wants_dead_letter=True,
            wants_journal=False,
            is_kept=destination.kind.keeps,
            is_ordered=destination.kind.is_ordered,
            request=request,
            lives=self._oracle.state.lives(self.host.name, destination.host),
        )
