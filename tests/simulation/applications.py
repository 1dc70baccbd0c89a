"""Programs that use a queue manager through `qmd.client`, and tell the oracle what they were told.

Each is the main function of a process that may be killed at any moment and is started again; what
it has to do is kept here, outside of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qmd.client import (
    ClientError,
    Message,
    NotConnected,
    NotHandedOver,
    OutcomeUnknown,
    QueueExists,
    QueueManager,
    QueueManagerError,
    connect,
    copies_of,
    new_message,
)
from tests.simulation.acknowledgments import QUEUE as ACKNOWLEDGMENTS
from tests.simulation.oracle import Fate, Oracle, Sent, Totals, mark
from tests.simulation.world import Host

RECONNECT_S = 5.0
PAUSE_S = 0.2  # after everything that failed
PAUSE_S_MAX = 120.0  # between two requests of a writer
WAIT_S, WAIT_S_MAX = 5.0, 60.0  # for messages; longer, the longer there were none
NAPS, NAP_S = 0.05, (0.5, 3.0)  # of readers who sleep now and then
TAKER_LOOKS, TAKER_LOOK_S = 100, 0.002
# Whole seconds are cut off at both ends, and hosts' clocks go differently fast.
TIME_MARGIN_S, TIME_DRIFT = 3.0, 0.05
REJECTED = 0.2  # of what somebody takes in transactions who is picky
ROUND_S, ROUND_S_MAX = 0.25, 5.0  # of an operator; the longer it takes, the longer it takes


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that a host shall have."""

    name: str
    transactional: bool
    quota_bytes: int | None = None
    journal: bool = False  # what is received from it is kept there

    @property
    def key(self) -> str:
        return f"private$\\{self.name}"


@dataclass(frozen=True, slots=True)
class Kind:
    """To which queue messages go, how, and how they must end."""

    queue: str
    delivery: str
    fate: Fate = Fate.RECEIVED
    lifetime_s: int | None = None  # to reach the queue
    receive_within_s: int | None = None
    keeps: bool = False  # its queue has a journal
    is_ordered: bool = True  # not where several receive from it


@dataclass(frozen=True, slots=True)
class Destination:
    host: str
    format_name: str
    kind: Kind

    @property
    def elements(self) -> tuple[Destination, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class Several:
    """Queues that get one message together.  `kind`: how it is sent; the elements say what becomes
    of each copy."""

    elements: tuple[Destination, ...]
    kind: Kind

    @property
    def format_name(self) -> str:
        return ",".join(each.format_name for each in self.elements)


@dataclass(slots=True, kw_only=True)
class Habits:
    """How a writer works."""

    way: str  # "one", "batch", "pipeline"
    journal: bool
    pause_s: float
    batch_max: int
    body_bytes_max: int
    dead_letter: bool | None
    retry: bool
    wishes: int = 0  # to hear of its messages


class Writer:
    """Sends `count` messages to its destinations, each in a stream of its own."""

    def __init__(
        self,
        host: Host,
        name: str,
        oracle: Oracle,
        destinations: list[Destination | Several],
        count: int,
        habits: Habits,
    ) -> None:
        self.host = host
        self.name = name
        self.left = count
        self._oracle = oracle
        self._random = host.world.random
        self.destinations = destinations
        self._habits = habits
        self._life = 0

    def stop(self) -> None:
        """Whatever is under way is the last."""
        self.left = 0

    async def run(self) -> None:
        self._life += 1
        while self.left > 0:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    # Without queues all it would learn is that there are none.
                    if not self.host.interface.is_fenced:
                        await self._send_all(client)
            await asyncio.sleep(PAUSE_S)

    async def _send_all(self, client: QueueManager) -> None:
        habits = self._habits
        while self.left > 0:
            if habits.way == "one":
                await self._send_request(client, 1)
            elif habits.way == "batch":
                await self._send_request(client, self._random.randint(1, habits.batch_max))
            else:
                await self._send_stream(client, self._random.randint(1, habits.batch_max))
            if habits.pause_s:
                await asyncio.sleep(min(self._random.expovariate(1 / habits.pause_s), PAUSE_S_MAX))

    async def _send_request(self, client: QueueManager, count: int) -> None:
        """All of them or none."""
        request = self._oracle.next_request()
        sent = [self._attempt(self._choose(), request) for _ in range(min(count, self.left))]
        messages = [
            new_message(sending.destination.format_name, sending.body, **sending.properties)
            for sending in sent
        ]
        try:
            ids = await client.send_many(messages, retry=self._habits.retry)
        except QueueManagerError as refusal:
            self._refused(sent, refusal)
        else:
            for sending, sent_id in zip(sent, ids, strict=True):
                sending.confirmed(self._oracle, sent_id)
            self.host.world.client_was_told(self.host)

    async def _send_stream(self, client: QueueManager, count: int) -> None:
        """One after the other without waiting."""
        destination = self._choose()
        confirmations: list[tuple[Sending, asyncio.Future[str]]] = []
        try:
            async with client.sender(destination.format_name, window=16) as sender:
                for _ in range(min(count, self.left)):
                    sending = self._attempt(destination, self._oracle.next_request())
                    confirmed = await sender.send(sending.body, **sending.properties)
                    confirmed.add_done_callback(self._hearer(sending))
                    confirmations.append((sending, confirmed))
        except QueueManagerError as refusal:
            self.host.world.note("refused", self.name, refusal)

    def _hearer(self, sending: Sending) -> Any:
        def hear(confirmed: asyncio.Future[str]) -> None:
            if confirmed.cancelled():
                return
            error = confirmed.exception()
            if error is None:
                sending.confirmed(self._oracle, confirmed.result())
                self.host.world.client_was_told(self.host)
            elif isinstance(error, QueueManagerError):
                self._refused([sending], error)

        return hear

    def _refused(self, sent: list[Sending], refusal: QueueManagerError) -> None:
        self.host.world.happened(f"request refused: {refusal.code}", self.host.name)
        for sending in sent:
            for message in sending.messages:
                self._oracle.refused(message)

    def _choose(self) -> Destination | Several:
        return self._random.choice(self.destinations)

    def _attempt(self, destination: Destination | Several, request: int) -> Sending:
        self.left -= len(destination.elements)
        habits, source, kind = self._habits, self._random, destination.kind
        size = int(habits.body_bytes_max * source.random() ** 4)
        priority = 3 if kind.delivery == "transactional" else source.choice((0, 3, 3, 7))
        messages = [
            self._message(each, kind, priority, request, self._oracle.next_number())
            for each in destination.elements
        ]
        number = attempt(self.host, self._oracle, messages, kind.delivery, destination)
        properties: dict[str, Any] = {
            "delivery": kind.delivery,
            "priority": priority,
            "dead_letter": habits.dead_letter,
            "journal": habits.journal,
            "time_to_reach_queue_s": kind.lifetime_s,
            "time_to_be_received_s": kind.receive_within_s,
        }
        if habits.wishes:
            properties["acknowledge"] = habits.wishes
            properties["admin_queue"] = f"DIRECT=OS:{self.host.name}\\private$\\{ACKNOWLEDGMENTS}"
        return Sending(messages, destination, mark(number) + bytes(size), properties)

    def _message(
        self, destination: Destination, sent_as: Kind, priority: int, request: int, number: int
    ) -> Sent:
        habits, kind = self._habits, destination.kind
        asks = habits.dead_letter or (
            habits.dead_letter is None and sent_as.receive_within_s is not None
        )
        has_end = sent_as.receive_within_s is not None or sent_as.lifetime_s is not None
        if kind.delivery == "transactional":
            priority = 3  # whatever is said: it has none
        return Sent(
            number=number,
            stream=f"{self.name}.{self._life} {kind.delivery} with priority {priority}"
            f" to {destination.format_name}",
            source=self.host.name,
            target=destination.host,
            queue=f"private$\\{kind.queue}",
            delivery=kind.delivery,
            fate=kind.fate,
            wants_dead_letter=habits.dead_letter is not False,
            wants_journal=habits.journal,
            is_kept=kind.keeps,
            is_ordered=kind.is_ordered,
            # Who wants no dead letter lets it go when it could not arrive or be received any more.
            is_awaited=kind.delivery == "transactional"
            and bool(asks or (habits.journal and not has_end)),
            wishes=habits.wishes,
            lifetime_s=kind.lifetime_s or sent_as.receive_within_s,
            request=request,
            lives=self._oracle.lives(self.host.name, destination.host),
        )


def attempt(
    host: Host, oracle: Oracle, messages: list[Sent], how: str, destination: Destination | Several
) -> int:
    """They are about to be sent there, several as copies of one; returns the mark to bear."""
    number = messages[0].number
    if len(messages) > 1:
        oracle.attempted_copies(messages)
        host.world.happened("sent to several queues", host.name)
    else:
        oracle.attempted(messages[0])
    host.world.note("send", host.name, number, how, destination.format_name)
    return number


@dataclass(frozen=True, slots=True)
class Sending:
    messages: list[Sent]  # one for each copy
    destination: Destination | Several
    body: bytes
    properties: dict[str, Any]

    def confirmed(self, oracle: Oracle, sent_id: str) -> None:
        if len(self.messages) > 1:
            oracle.confirmed_copies(self.messages, copies_of(sent_id))
        else:
            oracle.confirmed(self.messages[0], sent_id)


class Reader:
    """Receives from one queue for ever.  `way`: "take", "receive" or "each"."""

    def __init__(
        self,
        host: Host,
        queue: Queue,
        oracle: Oracle,
        *,
        way: str,
        batch: int,
        pause_s: float,
        rejects: float = 0.0,
    ) -> None:
        self.host = host
        self.queue = queue
        self._rejects = rejects  # so often it will not have what it took
        self._oracle = oracle
        self._random = host.world.random
        self._way = way
        self._batch = batch
        self._pause_s = pause_s
        self._wait_s = WAIT_S
        self.work_s = pause_s  # with what it has taken
        self.naps: random.Random | None = None  # when it sleeps: whatever has a time to live dies

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
            await asyncio.sleep(PAUSE_S)

    def process_died(self) -> None:
        self._oracle.reader_died(self.host.name, self.queue.key)

    def _hands(self, client: QueueManager, count: int = 0) -> None:
        """So many messages may be removed from the queue, and not be here yet."""
        self._oracle.in_hands[self.host.name, self.queue.key] = count + len(client.unread)

    async def _receive_all(self, client: QueueManager) -> None:
        receive = {"take": self._take, "receive": self._receive, "each": self._receive_each}
        while True:
            await self._nap()
            if await receive[self._way](client):
                self._wait_s = WAIT_S
            else:
                self._wait_s = min(1.5 * self._wait_s, WAIT_S_MAX)
            if self._pause_s:
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))

    async def _nap(self) -> None:
        if self.naps is not None and self.naps.random() < NAPS:
            await asyncio.sleep(self.naps.uniform(*NAP_S))

    # Each way returns whether there was anything.

    async def _take(self, client: QueueManager) -> bool:
        return await self._take_from(client, self.queue.name, self._wait_s)

    async def _take_from(self, client: QueueManager, name: str, wait_s: float) -> bool:
        life = self.host.daemon_life
        taken = await client.take(name, self._batch, timeout_s=wait_s)
        if not taken:
            return False
        self._check_what_they_say(taken.messages)
        if name.endswith(";sorted") and not all(message.move_count for message in taken.messages):
            self.host.world.fail(f"what was moved to {name} of {self.host.name} was never moved")
        if self.work_s:
            await asyncio.sleep(self._random.expovariate(1 / self.work_s))
        await self._nap()
        if self._random.random() < 0.1:
            await taken.give_back()
            return True
        numbers = self._numbers(taken.messages)
        self._check_priorities(name, taken.messages)
        self._oracle.removing(numbers)
        is_unwanted = self._random.random() < self._rejects
        try:
            await (taken.reject("not wanted") if is_unwanted else taken.remove())
        except (QueueManagerError, NotConnected):
            self._oracle.not_removed(numbers)  # otherwise nobody knows
        else:
            self._oracle.not_removed(numbers)
            if is_unwanted:
                self.host.world.happened("messages rejected", self.host.name)
                self._oracle.rejected(self.host.name, numbers)
            else:
                self._received(taken.messages, life)
            self.host.world.on_told()
        return True

    async def _receive(self, client: QueueManager) -> bool:
        life = self.host.daemon_life
        self._hands(client, self._batch)
        try:
            messages = await client.receive_many(
                self.queue.name, self._batch, timeout_s=self._wait_s
            )
        except OutcomeUnknown as failure:
            self._oracle.removing(self._numbers(failure.messages))
            raise
        finally:
            self._hands(client)
        self._received(messages, life)
        if messages:
            self._check_what_they_say(messages)
            self.host.world.on_told()
        return bool(messages)

    async def _receive_each(self, client: QueueManager) -> bool:
        life = self.host.daemon_life
        found = False
        self._hands(client, self._batch)
        left_early = self._random.random() < 0.1
        try:
            each = client.receive_each(self.queue.name, timeout_s=self._wait_s, batch=self._batch)
            async with contextlib.aclosing(each) as messages:
                async for message in messages:
                    found = True
                    self._received([message], life)
                    if left_early and self._random.random() < 0.2:
                        break
        except OutcomeUnknown as failure:
            self._oracle.removing(self._numbers(failure.messages))
            raise
        finally:
            self._hands(client)
        return found

    def _received(self, messages: Iterable[Message], life_before: int | None) -> None:
        """`life_before`: of the daemon, when the messages were asked for."""
        host = self.host
        life = life_before if life_before == host.daemon_life else None
        for number in self._numbers(messages):
            host.world.note("received", host.name, number)
            self._oracle.received(host.name, self.queue.key, number, life)

    def _numbers(self, messages: Iterable[Message]) -> list[int]:
        return numbers_of(self._oracle, self.host, self.queue, messages)

    def _check_what_they_say(self, messages: Iterable[Message]) -> None:
        """Nothing is given whose time was over, nor what came too late; clocks drift, and as long
        as nobody has set one they tell how late it is."""
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
                    world.fail(f"{message.id} came {late_s:.1f} s too late, and was taken")
            if receive_s is not None and not world.seen["process hung"]:
                late_s = self.host.environment.wall_clock() - sent_s - receive_s
                if late_s > margin_s:
                    world.fail(f"{message.id} was given {late_s:.1f} s after its time was over")

    def _check_priorities(self, name: str, messages: Iterable[Message]) -> None:
        """Of what was there together, the most urgent comes first."""
        priorities = [message.priority for message in messages]
        if priorities != sorted(priorities, reverse=True):
            self.host.world.fail(f"{name} of {self.host.name} gave priorities {priorities}")


class Sorter(Reader):
    """Moves what comes to a subqueue, and takes it there; or moves it back, and begins again."""

    has_sorted = True  # perhaps, by an earlier life

    async def _take(self, client: QueueManager) -> bool:
        name, sorted_name = self.queue.name, f"{self.queue.name};sorted"
        moved = await client.move(name, sorted_name, limit=self._random.randint(1, self._batch))
        if moved.messages:
            self.has_sorted = True
            self.host.world.happened("messages moved", self.host.name)
            if self._random.random() < 0.1:
                await client.move(sorted_name, name)
                return True
        if self.has_sorted:
            try:
                if await self._take_from(client, sorted_name, 0.0):
                    return True
            except QueueManagerError:  # there is none: the disk was replaced, or nothing came yet
                self.has_sorted = False
        return bool(await client.peek(name, timeout_s=self._wait_s))


class Listener:
    """Hears what becomes of the messages that its host's writers send.  `journal`: of its queue,
    in which nothing must ever be."""

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
                        heard = await self._hear(client, wait_s)
                        wait_s = WAIT_S if heard else min(1.5 * wait_s, WAIT_S_MAX)
            await asyncio.sleep(PAUSE_S)

    async def _hear(self, client: QueueManager, wait_s: float) -> bool:
        taken = await client.take(self.queue.name, 50, timeout_s=wait_s)
        if not taken:
            return False
        for message in taken.messages:
            self.host.world.happened(f"heard: {message.message_class}", self.host.name, message.id)
            self._oracle.acknowledged(self.host.name, message)
        await taken.remove()
        for message in taken.messages:
            self._oracle.acknowledgments.removed(message)
        return True


class Mover:
    """Takes from one queue and sends to others in one transaction, for ever; or thinks again."""

    def __init__(
        self,
        host: Host,
        queue: Queue,
        name: str,
        oracle: Oracle,
        destinations: list[Destination | Several],
        *,
        batch: int,
        sends_max: int,
        aborts: float,
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
        self._aborts = aborts
        self._pause_s = pause_s
        self.picks: random.Random | None = None  # who rejects some of what it takes, by chance
        self._wait_s = WAIT_S
        self._life = 0

    async def run(self) -> None:
        self._life += 1
        self._wait_s = WAIT_S
        while True:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    while True:
                        if await self._move(client):
                            self._wait_s = WAIT_S
                        else:
                            self._wait_s = min(1.5 * self._wait_s, WAIT_S_MAX)
            await asyncio.sleep(PAUSE_S)

    async def _move(self, client: QueueManager) -> bool:
        """One transaction; whether there was anything."""
        world, oracle = self.host.world, self._oracle
        transaction = client.transaction()
        await transaction.begin()
        taken = await transaction.receive_many(self.queue.name, self._batch, timeout_s=self._wait_s)
        if not taken:
            await transaction.abort()
            return False
        numbers = numbers_of(oracle, self.host, self.queue, taken)
        for number, message in zip(numbers, taken, strict=False):
            oracle.seen_aborted(number, message.abort_count)
        request = oracle.next_request()
        sendings = [
            self._attempt(self._random.choice(self._destinations), request)
            for _ in range(self._random.randint(1, self._sends_max))
        ]
        unwanted = self._unwanted(numbers, taken)
        rejected = list(unwanted)
        numbers = [number for number in numbers if number not in unwanted]
        oracle.removing(rejected)
        work = oracle.committing(
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
            if self._random.random() < self._aborts:
                await transaction.abort("thought again")
                oracle.aborted(work)
                oracle.not_removed(rejected)
                if transaction._connection is not None and not transaction._connection.is_lost:
                    oracle.abort_counts(numbers + rejected)  # we were told
                world.happened("transaction aborted by its application", self.host.name)
                world.client_was_told(self.host)
                return True
            await transaction.commit()
        except QueueManagerError as refusal:  # it says that nothing was done
            oracle.aborted(work)
            oracle.not_removed(rejected)
            world.happened(f"transaction refused: {refusal.code}", self.host.name)
            await transaction.abort()
            return True
        # Otherwise nobody knows how it ended.
        oracle.committed(work)
        oracle.not_removed(rejected)
        if rejected:
            world.happened("messages rejected in a transaction", self.host.name)
            oracle.rejected(self.host.name, rejected)
        for sending, sent_id in zip(sendings, ids, strict=True):
            sending.confirmed(oracle, sent_id)
        for number in numbers:
            world.note("received", self.host.name, number)
            oracle.received(self.host.name, self.queue.key, number, None)
        world.client_was_told(self.host)
        return True

    def _unwanted(self, numbers: list[int], taken: Sequence[Message]) -> dict[int, int]:
        """Those that it rejects, with where they are."""
        if self.picks is None:
            return {}
        return {
            number: message.lookup_id
            for number, message in zip(numbers, taken, strict=False)
            if self.picks.random() < REJECTED
        }

    def _attempt(self, destination: Destination | Several, request: int) -> Sending:
        messages = [
            self._message(each, request, self._oracle.next_number())
            for each in destination.elements
        ]
        number = attempt(self.host, self._oracle, messages, "moved", destination)
        # Great enough to be stored once for all.
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
            fate=destination.kind.fate,
            wants_dead_letter=True,
            wants_journal=False,
            is_kept=destination.kind.keeps,
            is_ordered=destination.kind.is_ordered,
            request=request,
            lives=self._oracle.lives(self.host.name, destination.host),
        )


def numbers_of(oracle: Oracle, host: Host, queue: Queue, messages: Iterable[Message]) -> list[int]:
    found = (oracle.number_of(host.name, queue.key, message) for message in messages)
    return [number for number in found if number is not None]


class Operator:
    """Makes the queues of a host, and looks after it: the `facts` of its latest round."""

    def __init__(self, host: Host, queues: list[Queue], *, pace_s: float = ROUND_S) -> None:
        self.host = host
        self.queues = queues
        self.facts: Facts | None = None  # of its latest round; taken away by who has seen them
        self.last_facts: Facts | None = None
        self.is_watching = False
        self._pace_s = pace_s
        self._is_deleting = False  # the administration queue
        self.orders: list[tuple[str, str]] = []  # a verb and what it is about
        self.oracle: Oracle | None = None  # that wants to know when nobody hears of messages

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ClientError):
                async with connect(self.host.control_socket, reconnect_s=RECONNECT_S) as client:
                    await self._make_queues(client)
                    self.host.interface.is_fenced = False
                    round_s = ROUND_S
                    while True:
                        await self._obey(client)
                        if not self.is_watching:
                            round_s = self._pace_s
                        else:
                            round_s = min(round_s, ROUND_S_MAX)
                            self.facts = self.last_facts = await look(client)
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
                )
        if self.oracle is not None and not self._is_deleting:
            self.oracle.hears_again(self.host.name)

    async def _wait_for_taker(self, name: str) -> None:
        """The worst moment to end messages is when somebody has some of them."""
        for _ in range(TAKER_LOOKS):
            manager = self.host.manager
            queue = manager.queues.by_key.get(f"private$\\{name}") if manager is not None else None
            if queue is None or queue.taken:
                return
            await asyncio.sleep(TAKER_LOOK_S)

    async def _obey(self, client: QueueManager) -> None:
        """An order that was under way when the daemon died is given again only in the end, when all
        of them are to resume."""
        while self.orders:
            order = verb, name = self.orders[0]
            if not self.is_watching:
                self.orders.pop(0)
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
                self.oracle.stops_hearing(self.host.name)
                self._is_deleting = True  # perhaps for ever, if nobody says how it went
            with contextlib.suppress(QueueManagerError):  # there is no such queue yet
                await act(name)
            self._is_deleting = False
            if self.is_watching and self.orders[:1] == [order]:
                self.orders.pop(0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a queue manager tells about itself."""

    queues: dict[str, Totals]
    outgoing: dict[str, Totals]
    status: dict[str, Any]
    awaiting_bytes: int  # of what has arrived elsewhere, and was not received there yet


async def look(client: QueueManager) -> Facts:
    queues = await client.list_queues(system=True)
    outgoing = await client.list_outgoing()
    return Facts(
        {queue["name"].casefold(): Totals(queue["messages"], queue["bytes"]) for queue in queues},
        {queue["destination"]: Totals(queue["messages"], queue["bytes"]) for queue in outgoing},
        await client.status(),
        sum(queue["awaiting_bytes"] for queue in outgoing),
    )
