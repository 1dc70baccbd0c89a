"""Writers: applications that send messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qmd.client import (
    ClientError,
    QueueManager,
    QueueManagerError,
    connect,
    new_message,
)
from tests.simulation.acknowledgments import QUEUE as ACKNOWLEDGMENTS
from tests.simulation.applications import (
    PAUSE_S,
    RECONNECT_S,
    Destination,
    DestinationList,
    MessageKind,
    Sending,
    Topic,
    attempt,
)
from tests.simulation.message_records import Outcome, Sent, mark
from tests.simulation.oracle import Oracle
from tests.simulation.queue_catalogue import SHARED_NAMES
from tests.simulation.world import Host

DELAYED_PROBABILITY, CANCELLED_PROBABILITY = 0.3, 0.3
# The clock of a host may be slower than that of the world.
SLOWEST_CLOCK = 0.9
# A restart of a host continues its own clock from the last stored time, at most 60 s old, by the
# wall clock, which is up to 2 % too fast.
AHEAD_S = 1.2
GROUPS = 3  # of one life of a writer
PAUSE_S_MAX = 120.0  # between two requests of a writer


@dataclass(slots=True, kw_only=True)
class WriterSettings:
    """The manner in which a writer works."""

    mode: str  # "one", "batch", "pipeline"
    journal: bool
    pause_s: float
    batch_max: int
    body_bytes_max: int
    dead_letter: bool | None
    retry: bool
    requested_acks: int = 0  # flags
    delays: random.Random | None = None  # some messages are delayed, and some of them cancelled
    delay_s_max: float = 3.0
    has_groups: bool = False  # messages for queues that several readers share have groups


class Writer:
    """An application that sends `count` messages to its destinations; each is a stream."""

    def __init__(
        self,
        host: Host,
        name: str,
        oracle: Oracle,
        destinations: list[Destination | DestinationList],
        count: int,
        settings: WriterSettings,
    ) -> None:
        self.host = host
        self.name = name
        self.left = count
        self._oracle = oracle
        self._random = host.world.random
        self.destinations = destinations
        self._settings = settings
        self._life = 0
        #: Returns the life of the daemon that has all topics.
        self.topics_life: Callable[[], int] = lambda: -1

    def stop(self) -> None:
        """Send no more messages after the present request."""
        self.left = 0

    async def run(self) -> None:
        self._life += 1
        while self.left > 0:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    # Before the queues exist every request would fail.
                    if not self.host.interface.is_fenced:
                        await self._send_all(client)
            await asyncio.sleep(PAUSE_S)

    async def _send_all(self, client: QueueManager) -> None:
        settings = self._settings
        while self.left > 0:
            if settings.mode == "one":
                await self._send_request(client, 1)
            elif settings.mode == "batch":
                await self._send_request(client, self._random.randint(1, settings.batch_max))
            else:
                await self._send_stream(client, self._random.randint(1, settings.batch_max))
            if settings.pause_s:
                await asyncio.sleep(
                    min(self._random.expovariate(1 / settings.pause_s), PAUSE_S_MAX)
                )

    async def _send_request(self, client: QueueManager, count: int) -> None:
        """Send messages in one request, which is done as a whole or not at all."""
        request = self._oracle.next_request()
        sent = [self._attempt(self._choose(), request) for _ in range(min(count, self.left))]
        messages = [
            new_message(sending.destination.format_name, sending.body, **sending.properties)
            for sending in sent
        ]
        try:
            ids = await client.send_many(messages, retry=self._settings.retry)
        except QueueManagerError as refusal:
            self._refused(sent, refusal)
        else:
            for sending, sent_id in zip(sent, ids, strict=True):
                sending.confirmed(self._oracle, sent_id)
            self.host.world.notify_confirmation(self.host)
            for sending, sent_id in zip(sent, ids, strict=True):
                await self._cancel(client, sending, sent_id)

    async def _cancel(self, client: QueueManager, sending: Sending, sent_id: str) -> None:
        """Cancel some of the delayed messages."""
        delays = self._settings.delays
        if delays is None or "delay_s" not in sending.properties or len(sending.messages) > 1:
            return
        if delays.random() >= CANCELLED_PROBABILITY:
            return
        (message,) = sending.messages
        # Until the answer, and if there is none:
        message.outcome, message.may_be_lost = Outcome.ANY, True
        delay_s = sending.properties["delay_s"]
        if delay_s < 1 and delays.random() < 0.5:  # the worst moment is that of its release
            await asyncio.sleep(max(delay_s + delays.uniform(-0.01, 0.01), 0))
        if await client.cancel_delayed(sent_id):
            self.host.world.happened("message cancelled", self.host.name)
            self._oracle.refused(message)  # it must not be anywhere, nor be received

    async def _send_stream(self, client: QueueManager, count: int) -> None:
        """Send messages one after the other without waiting for confirmations."""
        destination = self._choose()
        confirmations: list[tuple[Sending, asyncio.Future[str]]] = []
        try:
            async with client.sender(destination.format_name, window=16) as sender:
                for _ in range(min(count, self.left)):
                    sending = self._attempt(destination, self._oracle.next_request())
                    confirmed = await sender.send(sending.body, **sending.properties)
                    confirmed.add_done_callback(self._when_confirmed(sending))
                    confirmations.append((sending, confirmed))
        except QueueManagerError as refusal:
            self.host.world.note("refused", self.name, refusal)

    def _when_confirmed(self, sending: Sending) -> Any:
        def report(confirmed: asyncio.Future[str]) -> None:
            if confirmed.cancelled():
                return
            error = confirmed.exception()
            if error is None:
                sending.confirmed(self._oracle, confirmed.result())
                self.host.world.notify_confirmation(self.host)
            elif isinstance(error, QueueManagerError):
                self._refused([sending], error)

        return report

    def _refused(self, sent: list[Sending], refusal: QueueManagerError) -> None:
        self.host.world.happened(f"request refused: {refusal.code}", self.host.name)
        for sending in sent:
            for message in sending.messages:
                self._oracle.refused(message)

    def _choose(self) -> Destination | DestinationList:
        chosen = self._random.choice(self.destinations)
        while isinstance(chosen, Topic) and self.topics_life() != self.host.daemon_life:
            chosen = self._random.choice(self.destinations)
        return chosen

    def _attempt(self, destination: Destination | DestinationList, request: int) -> Sending:
        self.left -= len(destination.elements)
        settings, source, kind = self._settings, self._random, destination.kind
        size = int(settings.body_bytes_max * source.random() ** 4)
        priority = 3 if kind.delivery == "transactional" else source.choice((0, 3, 3, 7))
        messages = [
            self._message(each, kind, priority, request, self._oracle.next_number())
            for each in destination.elements
        ]
        number = attempt(self.host, self._oracle, messages, kind.delivery, destination)
        properties: dict[str, Any] = {
            "delivery": kind.delivery,
            "priority": priority,
            "dead_letter": settings.dead_letter,
            "journal": settings.journal,
            "time_to_reach_queue_s": kind.lifetime_s,
            "time_to_be_received_s": kind.receive_within_s,
        }
        if settings.has_groups and kind.queue in SHARED_NAMES:
            properties["group"] = f"{self.name}.{self._life}.{number % GROUPS}"
        self._delay(messages, properties)
        if settings.requested_acks:
            properties["acknowledge"] = settings.requested_acks
            properties["admin_queue"] = f"DIRECT=OS:{self.host.name}\\private$\\{ACKNOWLEDGMENTS}"
        return Sending(messages, destination, mark(number) + bytes(size), properties)

    def _delay(self, messages: list[Sent], properties: dict[str, Any]) -> None:
        """Delay some messages; the oracle learns when they may be received first."""
        delays, delivery = self._settings.delays, properties["delivery"]
        # An express message is not one any more when it is delayed.
        if delays is None or delivery == "express" or delays.random() >= DELAYED_PROBABILITY:
            return
        delay_s = delays.random() * self._settings.delay_s_max
        properties["delay_s"] = delay_s
        properties.pop("group", None)  # others of the group would overtake it
        world = self.host.world
        world.happened("message delayed", self.host.name)
        for message in messages:
            message.is_ordered = False  # others overtake it
            message.not_before_s = world.now + SLOWEST_CLOCK * delay_s - AHEAD_S

    def _message(
        self,
        destination: Destination,
        sent_as: MessageKind,
        priority: int,
        request: int,
        number: int,
    ) -> Sent:
        settings, kind = self._settings, destination.kind
        asks = settings.dead_letter or (
            settings.dead_letter is None and sent_as.receive_within_s is not None
        )
        has_end = sent_as.receive_within_s is not None or sent_as.lifetime_s is not None
        if kind.delivery == "transactional":
            priority = 3  # transactional messages have no priority
        return Sent(
            number=number,
            stream=f"{self.name}.{self._life} {kind.delivery} with priority {priority}"
            f" to {destination.format_name}",
            source=self.host.name,
            target=destination.host,
            queue=f"private$\\{kind.queue}",
            delivery=kind.delivery,
            outcome=kind.outcome,
            wants_dead_letter=settings.dead_letter is not False,
            wants_journal=settings.journal,
            is_kept=kind.keeps,
            is_ordered=kind.is_ordered,
            # Without dead letter the source releases it when its time is over.
            is_awaited=kind.delivery == "transactional"
            and bool(asks or (settings.journal and not has_end)),
            requested_acks=settings.requested_acks,
            lifetime_s=kind.lifetime_s or sent_as.receive_within_s,
            request=request,
            lives=self._oracle.state.lives(self.host.name, destination.host),
        )
