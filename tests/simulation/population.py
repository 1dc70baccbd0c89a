"""The population of a world: its operators, readers, writers and foreign queue managers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation import acknowledgments, foreign_receiver
from tests.simulation.applications import Destination, DestinationList, MessageKind, Queue, Topic
from tests.simulation.drawn_world import DrawnWorld
from tests.simulation.foreign_receiver import ForeignReceiver
from tests.simulation.foreign_sender import ForeignSender
from tests.simulation.foreign_session import ForeignManager
from tests.simulation.forwarder import Forwarder
from tests.simulation.locking_reader import ExclusiveUse, LockingReader
from tests.simulation.message_records import Outcome
from tests.simulation.oracle import Oracle
from tests.simulation.queue_catalogue import (
    FOREIGN_KINDS,
    RANGE_PROBABILITY,
    SHARED_NAMES,
    UNREAD,
    VIEWED_NAMES,
)
from tests.simulation.queue_operator import Operator
from tests.simulation.range_reader import RangeReader, Sweeper
from tests.simulation.reader import AcknowledgmentReader, Reader, SubqueueReader
from tests.simulation.world import Host
from tests.simulation.writer import Writer, WriterSettings

WRITERS_MAX = 4
MESSAGES_MAX = 150
BUSY_MESSAGES = (300, 2000)
# The most that a writer of a busy world sends: further worlds find more than longer ones.
MANY_MESSAGES = 600
SLOW_WORK_S = 0.3
LIST_DELIVERIES = (*("transactional",) * 3, *("recoverable",) * 2, "express", "automatic")
LIST_ELEMENTS = (2, 2, 2, 3, 3, 5, 8)
FOREIGN_SENDER_PROBABILITY, FOREIGN_SENDER_MESSAGES = 0.25, (20, 150)


class Population:
    """The applications and foreign queue managers of a drawn world."""

    def __init__(self, drawn: DrawnWorld, oracle: Oracle) -> None:
        self._drawn = drawn
        self._oracle = oracle
        self._random = drawn.random
        self._destinations = _Destinations(drawn)
        self.operators: dict[str, Operator] = {}
        self.writers: list[Writer] = []
        self.readers: list[Reader | RangeReader | Forwarder | AcknowledgmentReader] = []
        self._uses: dict[str, ExclusiveUse] = {}  # of locked messages, by host
        self.foreign_sender: ForeignSender | None = None
        self.foreign_receiver: ForeignReceiver | None = None
        hosts = list(drawn.world.hosts.values())
        for host in hosts:
            self._add_local(host, hosts)
        for number in range(self._random.randint(1, WRITERS_MAX)):
            self._add_writer(number, hosts)
        self._add_foreign_managers(hosts)

    @property
    def foreign_managers(self) -> list[ForeignManager]:
        """The foreign queue managers of this world."""
        managers = (self.foreign_sender, self.foreign_receiver)
        return [each for each in managers if each is not None]

    def destinations_from(self, name: str) -> list[str]:
        """Return the format names of the queues elsewhere to which the writers of a host send."""
        return sorted(
            {
                element.format_name
                for writer in self.writers
                if writer.host.name == name
                for destination in writer.destinations
                for element in destination.elements
                if element.host != name
            }
        )

    def _add_local(self, host: Host, hosts: list[Host]) -> None:
        """Add the operator of a host, and a reader or forwarder for each of its queues."""
        drawn = self._drawn
        host.interface.is_fenced = True
        operator = self.operators[host.name] = Operator(
            host, list(drawn.queues), pace_s=0.25 * drawn.time_scale
        )
        host.programs["operator"] = operator.run
        if drawn.has_acknowledgments:
            journal = drawn.administration_random.random() < 0.3
            reader = AcknowledgmentReader(host, self._oracle, journal=journal)
            operator.queues.append(reader.queue)
            operator.oracle = self._oracle
            self.readers.append(reader)
            host.programs["acknowledgments"] = reader.run
        for queue in drawn.queues:
            if queue.name == "work":
                self._add_forwarder(host, queue, hosts)
            elif queue not in UNREAD and not self._add_range_readers(host, queue):
                self._add_reader(host, queue)
                if queue.name in SHARED_NAMES:
                    self._add_reader(host, queue, f"reader-{queue.name}-too")

    def _add_reader(self, host: Host, queue: Queue, name: str = "") -> None:
        source, drawn, name = self._random, self._drawn, name or f"reader-{queue.name}"
        is_picky, is_sorted = queue.name.startswith("picky"), queue.name.startswith("sorted")
        is_shared = queue.name in SHARED_NAMES
        modes = (
            ("take",) if is_picky or is_sorted or is_shared else ("take", "take", "receive", "each")
        )
        is_locking = is_shared and drawn.has_locks
        kind = LockingReader if is_locking else SubqueueReader if is_sorted else Reader
        reader = kind(
            host,
            queue,
            self._oracle,
            mode=source.choice(modes),
            reject_probability=0.3 if is_picky else 0.0,
            batch=source.choice((20, 100) if drawn.is_busy else (1, 5, 50)),
            pause_s=source.choice((0.0, 0.05) if drawn.is_busy else (0.0, 0.0, 0.0, 0.05, 1.0)),
        )
        if isinstance(reader, LockingReader):
            reader.uses = self._uses.setdefault(host.name, ExclusiveUse(host))
        if queue.name.startswith("scratch") and drawn.has_slow_readers:
            reader.work_s = SLOW_WORK_S
        if drawn.has_pauses:
            reader.pauses = random.Random(f"naps {drawn.seed} {host.name} {queue.name}")
        self._start_reader(reader, name)

    def _add_range_readers(self, host: Host, queue: Queue) -> bool:
        """Add readers of pipelines; return whether the queue needs no other reader."""
        drawn = self._drawn
        if not drawn.has_ranges:
            return False
        source = random.Random(f"ranges {drawn.seed} {host.name} {queue.name}")
        work_s = source.choice((0.0, 0.0, 0.05))
        if queue.name in VIEWED_NAMES:
            for name in ("one", "two")[: source.choice((1, 2, 2))]:
                self._add_range_reader(host, queue, f"reader-{queue.name}-{name}", work_s)
            sweeper = Sweeper(
                *(host, queue, self._oracle),
                mode="take",
                batch=source.choice((1, 5, 20)),
                pause_s=0.0,
            )
            self._start_reader(sweeper, f"reader-{queue.name}")
            return True
        if queue.name in SHARED_NAMES or queue.name.startswith("sorted"):
            self._add_range_reader(host, queue, f"reader-{queue.name}-range", work_s)
            return False
        if queue.name.startswith("picky") or source.random() >= RANGE_PROBABILITY:
            return False
        self._add_range_reader(host, queue, f"reader-{queue.name}", work_s)
        return True

    def _add_range_reader(self, host: Host, queue: Queue, name: str, work_s: float) -> None:
        shared = queue.name in VIEWED_NAMES
        reader = RangeReader(host, queue, self._oracle, name, shared=shared, work_s=work_s)
        self.readers.append(reader)
        host.programs[name] = reader.run

    def _start_reader(self, reader: Reader, name: str) -> None:
        self.readers.append(reader)
        reader.host.programs[name] = reader.run
        reader.host.when_application_dies[name] = reader.process_died

    def _add_forwarder(self, host: Host, queue: Queue, hosts: list[Host]) -> None:
        source, drawn, destinations = self._random, self._drawn, self._destinations
        kinds = [kind for kind in drawn.kinds if kind.delivery == "transactional"]
        kinds = [
            kind for kind in kinds if kind.outcome is Outcome.RECEIVED and kind.queue != queue.name
        ]
        forwarder = Forwarder(
            host,
            queue,
            f"mover-{host.name}",
            self._oracle,
            [
                *(
                    destinations.draw(host, source.choice(hosts), kinds)
                    for _ in range(source.randint(1, 3))
                ),
                *destinations.draw_lists(host, hosts, kinds),
            ],
            batch=source.choice((20, 100) if drawn.is_busy else (1, 1, 5)),
            sends_max=source.choice((1, 3)),
            abort_probability=source.choice((0.0, 0.1, 0.4)),
            pause_s=source.choice((0.0, 0.0, 0.05)),
        )
        if drawn.has_rejecting_forwarders:
            forwarder.rejections = random.Random(f"movers {drawn.seed} {host.name}")
        self.readers.append(forwarder)
        host.programs[f"reader-{queue.name}"] = forwarder.run

    def _add_writer(self, number: int, hosts: list[Host]) -> None:
        source, drawn = self._random, self._drawn
        host = source.choice(hosts)
        destinations: list[Destination | DestinationList] = [
            self._destinations.draw(host, source.choice(hosts)) for _ in range(source.randint(1, 3))
        ]
        destinations += self._destinations.draw_lists(host, hosts)
        if drawn.foreign_receiver_deviation is not None:
            destinations += [_foreign(kind) for kind in FOREIGN_KINDS]
        if drawn.has_slow_readers and number == 0:
            destinations.append(self._destinations.draw_scratch(hosts))
        name = f"writer-{number}"
        count = source.randint(*BUSY_MESSAGES if drawn.is_busy else (1, MESSAGES_MAX))
        count = min(count, MESSAGES_MAX if drawn.is_slow_to_relay else MANY_MESSAGES)
        settings = self._writer_settings(count)
        if drawn.has_topics:
            destinations = self._with_topics(host, name, destinations)
        writer = Writer(host, name, self._oracle, destinations, count, settings)
        operator = self.operators[host.name]
        writer.topics_life = lambda: operator.topics_life
        self.writers.append(writer)
        host.programs[name] = writer.run

    def _with_topics(
        self, host: Host, name: str, destinations: list[Destination | DestinationList]
    ) -> list[Destination | DestinationList]:
        """Return the destinations with topics instead of their lists."""
        topics = [
            Topic(each.elements, each.kind, f"{name}-{number}")
            for number, each in enumerate(destinations)
            if isinstance(each, DestinationList)
        ]
        self.operators[host.name].topics += topics
        return [each for each in destinations if isinstance(each, Destination)] + topics

    def _writer_settings(self, count: int) -> WriterSettings:
        """Draw how a writer works: all messages at once, or spread over the phase of faults."""
        source, drawn = self._random, self._drawn
        modes = ("batch", "pipeline") if drawn.is_busy else ("one", "batch", "pipeline")
        mode = source.choice(modes)
        batch_max = source.choice((40, 200) if drawn.is_busy else (3, 20))
        requests = count if mode == "one" else 2 * count / (1 + batch_max)
        return WriterSettings(
            mode=mode,
            journal=source.random() < 0.2,
            pause_s=source.choice((0.0, 0.2, 0.7, 1.0)) * drawn.faults_s / requests,
            batch_max=batch_max,
            body_bytes_max=source.choice((100, 2_000, 2_000 if drawn.is_busy else 60_000)),
            dead_letter=source.choice((None, None, True, False)),
            retry=source.random() < 0.8,
            requested_acks=self._requested_acks(),
            delays=random.Random(f"delays {drawn.seed} {len(self.writers)}")
            if drawn.has_delays
            else None,
            delay_s_max=3.0 * drawn.time_scale,
            has_groups=drawn.has_groups,
        )

    def _requested_acks(self) -> int:
        source = self._drawn.acknowledgments_random
        if not self._drawn.has_acknowledgments or source.random() < 0.2:
            return 0
        return source.choice(acknowledgments.REQUESTS)

    def _add_foreign_managers(self, hosts: list[Host]) -> None:
        drawn = self._drawn
        source = random.Random(f"strangers {drawn.seed}")
        if drawn.topology is None and source.random() < FOREIGN_SENDER_PROBABILITY:
            self.foreign_sender = ForeignSender(
                drawn.world,
                self._oracle,
                source.choice(hosts),
                source.choice(("orders", "invoices")),
                count=source.randint(*FOREIGN_SENDER_MESSAGES),
                deviation=source.choice((0.0, 0.1, 0.5)),
            )
        if drawn.foreign_receiver_deviation is not None:
            self.foreign_receiver = ForeignReceiver(
                drawn.world, self._oracle, drawn.foreign_receiver_deviation
            )


class _Destinations:
    """The destinations of writers and forwarders, as a seed draws them."""

    def __init__(self, drawn: DrawnWorld) -> None:
        self._drawn = drawn
        self._random = drawn.random
        self._prefixes: dict[tuple[str, str], str] = {}  # (host, queue) -> format name's beginning

    def draw(self, source_host: Host, host: Host, kinds: Sequence[MessageKind] = ()) -> Destination:
        """Draw a destination on `host` for an application of `source_host`."""
        source = self._random
        kinds = kinds or self._drawn.kinds
        kind = source.choice(kinds)
        while kind.outcome is Outcome.REFUSED and host is source_host:
            kind = source.choice(kinds)  # a local queue would refuse the request itself
        return self._destination(host, kind, source)

    def draw_scratch(self, hosts: list[Host]) -> Destination:
        """Draw a queue that is purged and deleted."""
        source = random.Random(f"scratch {self._drawn.seed}")
        kinds = [kind for kind in self._drawn.kinds if kind.queue.startswith("scratch")]
        return self._destination(source.choice(hosts), source.choice(kinds), source)

    def draw_lists(
        self, source_host: Host, hosts: list[Host], kinds: Sequence[MessageKind] = ()
    ) -> list[DestinationList]:
        """Draw lists of queues; `kinds`: those of a forwarder, which sends in transactions."""
        if not self._drawn.has_lists:
            return []
        count = self._drawn.lists_random.randint(1, 2)
        return [self._draw_list(source_host, hosts, kinds) for _ in range(count)]

    def _draw_list(
        self, source_host: Host, hosts: list[Host], kinds: Sequence[MessageKind]
    ) -> DestinationList:
        """Draw queues of any hosts, some of them twice, and some that will refuse their copy."""
        source = self._drawn.lists_random
        delivery = "transactional" if kinds else source.choice(LIST_DELIVERIES)
        receive_within_s = 1 if source.random() < 0.1 and not kinds else None
        elements: list[Destination] = []
        read = [queue for queue in self._drawn.queues if queue not in UNREAD]
        count = source.choice(LIST_ELEMENTS)
        while len(elements) < count:
            if elements and source.random() < 0.1:
                elements.append(source.choice(elements))
                continue
            host = source.choice(hosts)
            is_fit = source.random() < 0.93
            kind = self._kind_of_copy(source.choice(read), delivery, is_local=host is source_host)
            if kind is None or (kind.outcome is Outcome.REFUSED) is is_fit:
                continue
            if kinds and kind.outcome not in (Outcome.RECEIVED, Outcome.REFUSED):
                continue
            if kinds and kind.queue == "work":
                continue  # forwarders would multiply its messages without end
            if receive_within_s and kind.outcome is Outcome.REFUSED:
                continue  # it may expire before it reaches its queue
            if receive_within_s and kind.outcome is Outcome.RECEIVED:
                kind = replace(
                    kind, outcome=Outcome.RECEIVED_OR_DEAD, receive_within_s=receive_within_s
                )
            elements.append(self._destination(host, kind, source))
        sent_as = MessageKind("several", delivery, receive_within_s=receive_within_s)
        return DestinationList(tuple(elements), sent_as)

    def _kind_of_copy(self, queue: Queue, delivery: str, *, is_local: bool) -> MessageKind | None:
        """Return the kind of a copy for a queue; None: its refusal would fail the whole request."""
        if delivery == "automatic":
            delivery = "transactional" if is_local and queue.transactional else "recoverable"
        if queue.transactional != (delivery == "transactional"):
            if is_local and queue.transactional:
                return None
            return MessageKind(queue.name, delivery, Outcome.REFUSED)
        usual_delivery = "transactional" if queue.transactional else "recoverable"
        usual = next(
            kind
            for kind in self._drawn.kinds
            if (kind.queue, kind.delivery, kind.lifetime_s) == (queue.name, usual_delivery, None)
            and kind.receive_within_s is None
            and kind.outcome is not Outcome.REFUSED
        )
        return replace(usual, delivery=delivery)

    def _destination(self, host: Host, kind: MessageKind, source: random.Random) -> Destination:
        """Return a destination; a queue has one format name in a world, as order depends on it."""
        prefix = self._prefixes.setdefault(
            (host.name, kind.queue),
            source.choice((f"DIRECT=OS:{host.name}", f"DIRECT=TCP:{host.address}")),
        )
        return Destination(host.name, f"{prefix}\\private$\\{kind.queue}", kind)


def _foreign(kind: MessageKind) -> Destination:
    """Return a queue of the foreign receiver."""
    return Destination(
        foreign_receiver.NAME,
        f"DIRECT=TCP:{foreign_receiver.ADDRESS}\\private$\\{kind.queue}",
        kind,
    )
