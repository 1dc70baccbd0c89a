"""What a seed decides before anything happens: hosts, queues, who sends what, how they are set up.

Most choices have a usual value and some that are rarely met: a window of one message, a resend
after a second, limits of the code so low that every queue outgrows its memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qmd.core.session_acks import SessionAcks
from qmd.core.window import SendWindow
from tests.simulation import acknowledgments, foreign_receiver, vfs
from tests.simulation.applications import (
    Destination,
    Habits,
    Kind,
    Listener,
    Mover,
    Operator,
    Queue,
    Reader,
    Several,
    Sorter,
    Writer,
)
from tests.simulation.foreign import Wire
from tests.simulation.foreign_receiver import StrangeQueue
from tests.simulation.foreign_sender import Stranger
from tests.simulation.loop import Clock
from tests.simulation.network import Connection, Transport
from tests.simulation.oracle import Fate
from tests.simulation.topology import draw_roads
from tests.simulation.world import READ_S, Host, World

if TYPE_CHECKING:
    from tests.simulation.life import Story

MISCHIEF_S = (2.0, 12.0)
# Some worlds are long: outages of minutes, which run through the table of resends.
LONG = 0.06
PATIENCE = 60.0
WRITERS_MAX = 4
MESSAGES_MAX = 150
# Some worlds are busy: long streams in great batches, and readers who take many at once.
BUSY = 0.5
BUSY_MESSAGES = (300, 2000)
# So many of them are sent at most: another world shows more than more of the same.
MANY_MESSAGES = 600
# How fast disks are: much meets in one commit of a slow one, and much happens during it.
SYNC_S = (0.0002, 0.0002, 0.003)
BUSY_SYNC_S = (0.0002, 0.003, 0.01)
# And how long a look into the database takes: meanwhile others commit.
READS_S = (READ_S, READ_S, 0.002, 0.02)

QUEUES = (
    Queue("orders", True),
    Queue("invoices", True),
    Queue("news", False),
    Queue("small_orders", True, quota_bytes=6_000),
    Queue("small_news", False, quota_bytes=6_000),
    Queue("scratch", False),  # is purged, deleted and made again
    Queue("scratch_orders", True),  # likewise
    Queue("work", True),  # is read in transactions that send on what they read
)
# Some worlds have these as well.
SOME = 0.3
QUEUES_OF_SOME = (
    Queue("audited", True, journal=True),
    Queue("audited_news", False, journal=True),
    Queue("sorted", True),  # is moved to a subqueue before it is read
    Queue("sorted_news", False),
    Queue("picky", True),  # its readers reject what they do not like
    Queue("picky_news", False),
)
# In some worlds there are queues that several read: nobody can say in which order.
RIVALS = 0.25
QUEUES_OF_RIVALS = (Queue("shared", True), Queue("shared_news", False))
# In some nobody reads from these: whatever comes there dies there.
UNREAD_IN = 0.25
UNREAD = (Queue("attic_orders", True), Queue("attic", False))
# Where messages go, how, and how they end; those that come first come often.
KINDS = (
    *(Kind("orders", "transactional"),) * 4,
    *(Kind("invoices", "transactional"),) * 2,
    *(Kind("news", "recoverable"),) * 4,
    *(Kind("news", "express"),) * 2,
    Kind("orders", "transactional", Fate.PERHAPS, lifetime_s=2),
    Kind("news", "recoverable", Fate.PERHAPS, lifetime_s=2),
    Kind("news", "express", Fate.PERHAPS, lifetime_s=1),
    *(Kind("invoices", "transactional", Fate.PERHAPS, receive_within_s=1),) * 2,
    Kind("news", "recoverable", Fate.PERHAPS, receive_within_s=1),
    Kind("small_orders", "transactional", Fate.PERHAPS),
    Kind("small_news", "recoverable", Fate.PERHAPS),
    Kind("small_news", "express", Fate.PERHAPS),
    Kind("scratch", "recoverable", Fate.UNCERTAIN, keeps=True),
    Kind("scratch", "express", Fate.UNCERTAIN, keeps=True),
    Kind("scratch_orders", "transactional", Fate.UNCERTAIN, keeps=True),
    *(Kind("work", "transactional"),) * 4,
    *(Kind("audited", "transactional", keeps=True),) * 3,
    *(Kind("audited_news", "recoverable", keeps=True),) * 3,
    *(Kind("sorted", "transactional"),) * 3,
    *(Kind("sorted_news", "recoverable"),) * 3,
    *(Kind("attic_orders", "transactional", Fate.PERHAPS, receive_within_s=1),) * 4,
    *(Kind("attic", "recoverable", Fate.PERHAPS, receive_within_s=1),) * 3,
    *(Kind("attic", "express", Fate.PERHAPS, receive_within_s=2),) * 2,
    *(Kind("shared", "transactional", is_ordered=False),) * 3,
    *(Kind("shared_news", "recoverable", is_ordered=False),) * 3,
    *(Kind("picky", "transactional", Fate.PERHAPS),) * 2,
    *(Kind("picky_news", "recoverable", Fate.PERHAPS),) * 2,
    Kind("missing", "transactional", Fate.REFUSED),
    Kind("missing", "recoverable", Fate.REFUSED),
    Kind("orders", "recoverable", Fate.REFUSED),
    Kind("news", "transactional", Fate.REFUSED),
)

# Some worlds send one message to several queues.
LISTS = 0.4
LIST_DELIVERIES = (*("transactional",) * 3, *("recoverable",) * 2, "express", "automatic")
LIST_ELEMENTS = (2, 2, 2, 3, 3, 5, 8)
# Their limits are drawn apart, so that all else is as it was in worlds without.
KNOBS_OF_LISTS = {
    "qmd.operations.send_copies.SHARED_BYTES_MIN": (1, 100),
    "qmd.peers.packet_reader.TURN_PACKETS_MAX": (1, 3, 64),
    "qmd.control.server.TURN_REQUESTS_MAX": (1, 3, 256),
    "qmd.runtime.fair_scheduler.SHARED_PACKETS": (1, 256),
    "qmd.runtime.fair_scheduler.DISK_WAITS_MAX": (1, 4),
}

# In some worlds not everybody reaches everybody: messages go over a third host.
RELAYS = 0.3
# Where one of them has little room for others, it has less than a configuration may say: for one
# message of the greatest, which are smaller in busy worlds.
RELAY_BYTES_FEW, BUSY_RELAY_BYTES_FEW, RELAY_BYTES_MANY = 80_000, 8_000, 2_000_000

# In some worlds writers ask to hear what becomes of their messages.
ACKNOWLEDGED = 0.35
# And in some of those the queues where they hear it are deleted, with what is in them.
DEAF = 0.5
# In some worlds readers sleep now and then, and what nobody receives in time dies in its queue.
SLEEPY = 0.3

# In some worlds readers of what is purged and deleted work long with what they have taken.
SLOW_HANDS, SLOW_WORK_S = 0.4, 0.3
SLOW_DELETIONS = 0.7
# In some these have journals, which go with them.
SCRATCH_JOURNALS = 0.4

# In some worlds those who work in transactions reject some of what they take.
PICKY_MOVERS = 0.35

# In some a queue manager of another make sends as well.
STRANGERS, STRANGERS_MESSAGES = 0.25, (20, 150)
# And in some there is one to which messages go.
STRANGE_QUEUES = 0.25
STRANGE_KINDS = (
    Kind("abroad", "transactional"),
    Kind("news_abroad", "recoverable"),
    Kind("news_abroad", "express"),
)

# So often queues are deleted and made again, beside what operators are told to do.
DELETIONS = 0.2

AMNESIA = 0.7

# Limits of the code under test, and how low they may be.
KNOBS = {
    "qmd.queues.outgoing_queue.WINDOW_ENTRIES_MAX": (1, 3, 10),
    "qmd.queues.outgoing_queue.IN_FLIGHT_ENTRIES_MAX": (1, 3),
    "qmd.queues.local_queue.WINDOW_ENTRIES_MAX": (1, 3, 10),
    "qmd.queues.local_queue.TAKE_BYTES_MAX": (100, 5_000),
    "qmd.queues.outgoing_queues.REFILL_ROWS": (1, 2, 7),
    "qmd.operations.receive.REFILL_ROWS": (1, 2, 7),
    "qmd.operations.receive.PEEK_ROWS_MAX": (2,),
    "qmd.peers.transmitter.PUMP_MESSAGES_MAX": (1, 3),
    "qmd.peers.transmitter.PUMP_BYTES_MAX": (500,),
    "qmd.maintenance.expiry.EXPIRED_ROWS": (1, 3),
    "qmd.transfer.confirmation.GIVEN_UP_ROWS": (1, 3),
    "qmd.peers.connection.FINAL_ACKS_MAX": (1,),
    "qmd.peers.connection.WRITE_BYTES_HIGH": (1_000,),
    "qmd.peers.connection.WRITE_BYTES_LOW": (100,),
    "qmd.control.server.WRITE_BYTES_HIGH": (1_000,),
    "qmd.client.sender.BATCH_MESSAGES_MAX": (1, 5),
    "qmd.runtime.id_allocator.MESSAGE_NUMBERS_BLOCK": (50_000,),
}
# How much is read for a window, and of how low ones: more than it takes, but not hundreds of rows
# for each message, which would be most of what such a world costs.
REFILLS = {
    "qmd.queues.outgoing_queue.WINDOW_ENTRIES_MAX": "qmd.queues.outgoing_queues.REFILL_ROWS",
    "qmd.queues.local_queue.WINDOW_ENTRIES_MAX": "qmd.operations.receive.REFILL_ROWS",
}
REFILLED_WINDOWS = 4
# So many of the busy worlds have low windows as well: much arrives while they are filled.
NARROW = 0.35
NARROW_WINDOWS, NARROW_REFILLS = (3, 10, 30), (1.2, 4)


class DrawnWorld:
    """What a seed decides before anything happens."""

    def __init__(self, seed: int, trace: list[str] | None) -> None:
        source = random.Random(f"world {seed}")
        self.random = source
        self.is_busy = source.random() < BUSY
        self.is_long = not self.is_busy and source.random() < LONG
        self.patience = PATIENCE if self.is_long else 1.0
        self._low_limits = source.choice((0.0, 0.2, 0.7)) if not self.is_busy else 0.05
        self._counts: dict[Connection, tuple[tuple[int, int], tuple[int, int]]] = {}
        self._spelling: dict[tuple[str, str], str] = {}  # of each destination
        self.world = World(
            seed,
            delay_s=source.choice(((0.0001, 0.001), (0.0002, 0.02), (0.01, 0.3))),
            fragmentation=source.choice((0.0, 0.1, 0.5)),
            characteristics=source.choice((vfs.POWERSAFE_OVERWRITE, vfs.POWERSAFE_OVERWRITE, 0)),
            trace=trace,
        )
        self.mischief_s = source.uniform(*MISCHIEF_S) * self.patience
        self.knobs = {
            knob: source.choice(values)
            for knob, values in KNOBS.items()
            if source.random() < self._low_limits
        }
        for window, refill in REFILLS.items():
            if window in self.knobs:
                self.knobs.setdefault(refill, REFILLED_WINDOWS * self.knobs[window])
        of_windows = random.Random(f"windows {seed}")
        if self.is_busy and of_windows.random() < NARROW:
            for window, refill in REFILLS.items():
                self.knobs[window] = of_windows.choice(NARROW_WINDOWS)
                self.knobs[refill] = int(of_windows.choice(NARROW_REFILLS) * self.knobs[window])
        self._is_near_the_wrap = source.random() < 0.2
        self._near_the_wrap: list[SendWindow] = []
        self.world.network.on_open = self._opened
        self.of_lists = random.Random(f"lists {seed}")
        self.has_lists = self.of_lists.random() < LISTS
        if self.has_lists and self.of_lists.random() < 0.5:
            for knob, values in KNOBS_OF_LISTS.items():
                self.knobs[knob] = self.of_lists.choice(values)
        self.queues = QUEUES + tuple(
            queue for queue in QUEUES_OF_SOME if source.random() < SOME and not self.is_long
        )
        if random.Random(f"journals {seed}").random() < SCRATCH_JOURNALS:
            self.queues = tuple(
                replace(queue, journal=True) if queue.name.startswith("scratch") else queue
                for queue in self.queues
            )
        if random.Random(f"attics {seed}").random() < UNREAD_IN and not self.is_long:
            self.queues += UNREAD
        if random.Random(f"rivals {seed}").random() < RIVALS and not self.is_long:
            self.queues += QUEUES_OF_RIVALS
        names = {queue.name for queue in self.queues} | {"missing"}
        self.kinds = [kind for kind in KINDS if kind.queue in names]
        self.has_picky_movers = random.Random(f"movers {seed}").random() < PICKY_MOVERS
        if self.has_picky_movers:
            self.kinds = [
                replace(kind, fate=Fate.PERHAPS) if kind.queue == "work" else kind
                for kind in self.kinds
            ]
        names: tuple[str, ...] = ("anna", "bert", "carl")[: source.choice((2, 2, 3))]
        of_roads = random.Random(f"roads {seed}")
        self.roads = draw_roads(of_roads) if of_roads.random() < RELAYS else None
        if self.roads is not None:
            names = self.roads.names
        self.of_wishes = random.Random(f"acknowledgments {seed}")
        self.has_acknowledgments = self.of_wishes.random() < ACKNOWLEDGED
        of_strange_queues = random.Random(f"strange queues {seed}")
        self.strange_queue_odd: float | None = None
        is_possible = self.roads is None and not self.has_acknowledgments  # it knows none of these
        if is_possible and of_strange_queues.random() < STRANGE_QUEUES:
            self.strange_queue_odd = of_strange_queues.choice((0.0, 0.1, 0.5))
        self.has_slow_hands = random.Random(f"hands {seed}").random() < SLOW_HANDS
        self.has_naps = random.Random(f"naps {seed}").random() < SLEEPY
        self.of_administration = random.Random(f"administration queues {seed}")
        of_reads = random.Random(f"how long reads take {seed}")
        for name in names:
            host = self.world.add_host(
                name,
                self._configuration(name),
                clock=Clock(offset_s=source.uniform(0, 1e6), rate=source.uniform(0.98, 1.02)),
                stall_probability=source.choice((0.0, 0.01, 0.1)),
                sync_s=source.choice(BUSY_SYNC_S if self.is_busy else SYNC_S),
                read_s=of_reads.choice(READS_S),
            )
            host.wall_rate = source.uniform(0.98, 1.02)
            routing = host.settings.routing
            if routing.relay_bytes_max < RELAY_BYTES_MANY and self._is_only_relay(name):
                few = BUSY_RELAY_BYTES_FEW if self.is_busy else RELAY_BYTES_FEW
                routing = replace(routing, relay_bytes_max=few)
                host.settings = replace(host.settings, routing=routing)

    def _is_only_relay(self, name: str) -> bool:
        """Two that are full of what the other one has to take would wait for each other."""
        return self.roads is not None and self.roads.relays == (name,)

    @property
    def _is_toilsome(self) -> bool:
        """Much would go a long way over others, a message at a time perhaps."""
        return self.roads is not None and self.is_busy and self.world.network.is_far

    def _configuration(self, name: str) -> str:
        source = self.random
        routing = self.roads.configurations[name] if self.roads is not None else ""
        resend = source.choice(('"1s", "2s", "5s"', '"3s"', '"30s"', '"1s", "10s", "60s", "30s"'))
        if self._is_toilsome:
            resend = '"60s"'  # or more is sent again, and answered again, than these ways carry
        return f"""
            [delivery]
            window_size = {source.choice((1, 2, 5, 64, 64))}
            resend = [{resend}]
            retry_first = "{source.choice((10, 500))}ms"
            retry_max = "{source.choice((1, 5))}s"
            acknowledge_at_once = {str(source.random() < 0.7).lower()}
            idle_close = "{source.choice((2, 300))}s"
            order_ack_timeout = "{source.choice((50, 500))}ms"
            order_ack_delay_max = "{source.choice((1, 10))}s"
            {'connect_timeout = "2s"' if routing else ""}
            {"insecure_nacks = true" if self.has_acknowledgments else ""}
            [storage]
            checkpoint_pages = {source.choice((100, 4000))}
            commit_rows_max = {source.choice((4, 2048, 2048))}
            {routing}
        """

    def populate(self, story: Story) -> None:
        source, world = self.random, self.world
        hosts = list(world.hosts.values())
        for host in hosts:
            host.interface.is_fenced = True
            operator = story.operators[host.name] = Operator(
                host, list(self.queues), pace_s=0.25 * self.patience
            )
            host.programs["operator"] = operator.run
            if self.has_acknowledgments:
                journal = self.of_administration.random() < 0.3
                listener = Listener(host, story.oracle, journal=journal)
                operator.queues.append(listener.queue)
                operator.oracle = story.oracle
                story.readers.append(listener)
                host.programs["acknowledgments"] = listener.run
            for queue in self.queues:
                if queue.name == "work":
                    self._add_mover(story, host, queue, hosts)
                elif queue not in UNREAD:
                    self._add_reader(story, host, queue)
                    if queue in QUEUES_OF_RIVALS:
                        self._add_reader(story, host, queue, f"reader-{queue.name}-too")
        for number in range(source.randint(1, WRITERS_MAX)):
            host = source.choice(hosts)
            destinations: list[Destination | Several] = [
                self._destination(host, source.choice(hosts)) for _ in range(source.randint(1, 3))
            ]
            destinations += self._lists(host, hosts)
            if self.strange_queue_odd is not None:
                destinations += [self._strange(kind) for kind in STRANGE_KINDS]
            if self.has_slow_hands and number == 0:
                destinations.append(self._scratch(hosts))
            name = f"writer-{number}"
            drawn = source.randint(*BUSY_MESSAGES if self.is_busy else (1, MESSAGES_MAX))
            count = min(drawn, MESSAGES_MAX if self._is_toilsome else MANY_MESSAGES)
            habits = self._habits(count)
            writer = Writer(host, name, story.oracle, destinations, count, habits)
            story.writers.append(writer)
            host.programs[name] = writer.run
        self._let_in_strangers(story, hosts)

    def _let_in_strangers(self, story: Story, hosts: list[Host]) -> None:
        of_strangers, world = random.Random(f"strangers {self.world.seed}"), self.world
        if self.roads is None and of_strangers.random() < STRANGERS:
            story.stranger = Stranger(
                world,
                story.oracle,
                of_strangers.choice(hosts),
                of_strangers.choice(("orders", "invoices")),
                count=of_strangers.randint(*STRANGERS_MESSAGES),
                odd=of_strangers.choice((0.0, 0.1, 0.5)),
            )
        if self.strange_queue_odd is not None:
            story.strange_queue = StrangeQueue(world, story.oracle, self.strange_queue_odd)

    def _add_reader(self, story: Story, host: Host, queue: Queue, name: str = "") -> None:
        source, name = self.random, name or f"reader-{queue.name}"
        is_picky, is_sorted = queue.name.startswith("picky"), queue.name.startswith("sorted")
        is_shared = queue in QUEUES_OF_RIVALS
        ways = (
            ("take",) if is_picky or is_sorted or is_shared else ("take", "take", "receive", "each")
        )
        reader = (Sorter if is_sorted else Reader)(
            host,
            queue,
            story.oracle,
            way=source.choice(ways),
            rejects=0.3 if is_picky else 0.0,
            batch=source.choice((20, 100) if self.is_busy else (1, 5, 50)),
            pause_s=source.choice((0.0, 0.05) if self.is_busy else (0.0, 0.0, 0.0, 0.05, 1.0)),
        )
        if queue.name.startswith("scratch") and self.has_slow_hands:
            reader.work_s = SLOW_WORK_S
        if self.has_naps:
            reader.naps = random.Random(f"naps {self.world.seed} {host.name} {queue.name}")
        story.readers.append(reader)
        host.programs[name] = reader.run
        host.when_application_dies[name] = reader.process_died

    def _add_mover(self, story: Story, host: Host, queue: Queue, hosts: list[Host]) -> None:
        source = self.random
        kinds = [kind for kind in self.kinds if kind.delivery == "transactional"]
        kinds = [kind for kind in kinds if kind.fate is Fate.RECEIVED and kind.queue != queue.name]
        name = f"reader-{queue.name}"
        mover = Mover(
            host,
            queue,
            f"mover-{host.name}",
            story.oracle,
            [
                *(
                    self._destination(host, source.choice(hosts), kinds)
                    for _ in range(source.randint(1, 3))
                ),
                *self._lists(host, hosts, kinds),
            ],
            batch=source.choice((20, 100) if self.is_busy else (1, 1, 5)),
            sends_max=source.choice((1, 3)),
            aborts=source.choice((0.0, 0.1, 0.4)),
            pause_s=source.choice((0.0, 0.0, 0.05)),
        )
        if self.has_picky_movers:
            mover.picks = random.Random(f"movers {self.world.seed} {host.name}")
        story.readers.append(mover)
        host.programs[name] = mover.run

    def _habits(self, count: int) -> Habits:
        """Of a writer: all of its messages at once, or spread over the time of mischief."""
        source = self.random
        way = source.choice(("batch", "pipeline") if self.is_busy else ("one", "batch", "pipeline"))
        batch_max = source.choice((40, 200) if self.is_busy else (3, 20))
        requests = count if way == "one" else 2 * count / (1 + batch_max)
        return Habits(
            way=way,
            journal=source.random() < 0.2,
            pause_s=source.choice((0.0, 0.2, 0.7, 1.0)) * self.mischief_s / requests,
            batch_max=batch_max,
            body_bytes_max=source.choice((100, 2_000, 2_000 if self.is_busy else 60_000)),
            dead_letter=source.choice((None, None, True, False)),
            retry=source.random() < 0.8,
            wishes=self._wishes(),
        )

    def deletions(self) -> list[tuple[float, str, str]]:
        """When queues are deleted, on which host, and which."""
        names, found = list(self.world.hosts), []
        source = self.of_administration
        if self.has_acknowledgments and source.random() < DEAF:
            for _ in range(source.choice((1, 2, 5))):
                when = source.random() * self.mischief_s
                found.append((when, source.choice(names), acknowledgments.QUEUE))
        source = random.Random(f"deletions {self.world.seed}")
        if source.random() < (SLOW_DELETIONS if self.has_slow_hands else DELETIONS):
            for _ in range(source.choice((1, 2, 5))):
                queue = source.choice(("scratch", "scratch_orders"))
                found.append((source.random() * self.mischief_s, source.choice(names), queue))
        return found

    def amnesia(self) -> tuple[float, str] | None:
        """When a host loses its disk where there are two relays in a row, and which: few worlds
        have them, and the bad luck besides."""
        source = random.Random(f"amnesia {self.world.seed}")
        if self.roads is None or len(self.roads.relays) < 2 or source.random() >= AMNESIA:
            return None
        if self.is_busy:
            return None  # windows of one message may need longer than anybody looks on
        names = (*self.roads.names, *self.roads.relays)
        return source.random() * self.mischief_s, source.choice(names)

    def _wishes(self) -> int:
        if not self.has_acknowledgments or self.of_wishes.random() < 0.2:
            return 0
        return self.of_wishes.choice(acknowledgments.WISHES)

    def _opened(self, end: Transport) -> None:
        near, far = (each.host.name for each in end.connection.ends)
        if self.roads is not None and not self.roads.join(near, far):
            self.world.fail(f"{near} has a connection with {far}, and there is no road")
        if self._is_near_the_wrap:
            self.begin_near_the_wrap(end)

    def begin_near_the_wrap(self, end: Transport) -> None:
        """Sessions count in 16 bits: as if this one had carried some 65,000 messages already."""
        protocol = end.get_protocol()
        session = getattr(protocol, "session", None)
        if session is None and not isinstance(protocol, Wire):
            return
        counts = self._counts.setdefault(end.connection, self._draw_counts())
        near = end is end.connection.ends[0]
        sent, received = counts if near else counts[::-1]
        if session is None:
            protocol.sent, protocol.came = sent, received
            return
        session.outgoing = SendWindow(1, sent_count=sent[0], recoverable_sent_count=sent[1])
        self._near_the_wrap.append(session.outgoing)
        session.incoming = SessionAcks(
            received_count=received[0], recoverable_received_count=received[1]
        )

    def has_wrapped(self) -> bool:
        """Whether a session has come to the end of its 16 bits."""
        return any(
            window.recoverable_sent_count >= 65_536 and window.sent_count >= 65_536
            for window in self._near_the_wrap
        )

    def _draw_counts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of either end: messages sent, and how many of them were recoverable."""
        source = self.random
        ends = []
        for _ in range(2):
            recoverable = 65_536 - source.randrange(40)
            ends.append((recoverable + source.choice((0, 65_536)), recoverable))
        return ends[0], ends[1]

    def _destination(
        self, source_host: Host, host: Host, kinds: Sequence[Kind] = ()
    ) -> Destination:
        source = self.random
        kinds = kinds or self.kinds
        kind = source.choice(kinds)
        while kind.fate is Fate.REFUSED and host is source_host:
            kind = source.choice(kinds)  # an application here would be refused at once
        return self._to(host, kind, source)

    def _strange(self, kind: Kind) -> Destination:
        """A queue of a queue manager of another make."""
        return Destination(
            foreign_receiver.NAME,
            f"DIRECT=TCP:{foreign_receiver.ADDRESS}\\private$\\{kind.queue}",
            kind,
        )

    def _scratch(self, hosts: list[Host]) -> Destination:
        """A queue that is purged and deleted."""
        source = random.Random(f"scratch {self.world.seed}")
        kinds = [kind for kind in self.kinds if kind.queue.startswith("scratch")]
        return self._to(source.choice(hosts), source.choice(kinds), source)

    def _to(self, host: Host, kind: Kind, source: random.Random) -> Destination:
        """A queue has one name in a world: order is a matter of the name."""
        name = self._spelling.setdefault(
            (host.name, kind.queue),
            source.choice((f"DIRECT=OS:{host.name}", f"DIRECT=TCP:{host.address}")),
        )
        return Destination(host.name, f"{name}\\private$\\{kind.queue}", kind)

    def _lists(
        self, source_host: Host, hosts: list[Host], kinds: Sequence[Kind] = ()
    ) -> list[Several]:
        """Of whoever sends from there; `kinds`: a mover's, who sends in transactions."""
        if not self.has_lists:
            return []
        return [self._list(source_host, hosts, kinds) for _ in range(self.of_lists.randint(1, 2))]

    def _list(self, source_host: Host, hosts: list[Host], kinds: Sequence[Kind]) -> Several:
        """Queues of any hosts, some of them twice; and some that will refuse their copy."""
        source = self.of_lists
        delivery = "transactional" if kinds else source.choice(LIST_DELIVERIES)
        receive_within_s = 1 if source.random() < 0.1 and not kinds else None
        elements: list[Destination] = []
        read = [queue for queue in self.queues if queue not in UNREAD]
        count = source.choice(LIST_ELEMENTS)
        while len(elements) < count:
            if elements and source.random() < 0.1:
                elements.append(source.choice(elements))
                continue
            host = source.choice(hosts)
            is_fit = source.random() < 0.93
            kind = self._kind_of_copy(source.choice(read), delivery, is_local=host is source_host)
            if kind is None or (kind.fate is Fate.REFUSED) is is_fit:
                continue
            if kinds and kind.fate not in (Fate.RECEIVED, Fate.REFUSED):
                continue
            if kinds and kind.queue == "work":
                continue  # another mover's: each message there would become several, for ever
            if receive_within_s and kind.fate is Fate.REFUSED:
                continue  # its time may be over before it gets there
            if receive_within_s and kind.fate is Fate.RECEIVED:
                kind = replace(kind, fate=Fate.PERHAPS, receive_within_s=receive_within_s)
            elements.append(self._to(host, kind, source))
        sent_as = Kind("several", delivery, receive_within_s=receive_within_s)
        return Several(tuple(elements), sent_as)

    def _kind_of_copy(self, queue: Queue, delivery: str, *, is_local: bool) -> Kind | None:
        """How a copy gets to that queue, and how it ends; None: nothing would be sent to any."""
        if delivery == "automatic":
            delivery = "transactional" if is_local and queue.transactional else "recoverable"
        if queue.transactional != (delivery == "transactional"):
            if is_local and queue.transactional:
                return None
            return Kind(queue.name, delivery, Fate.REFUSED)
        way = "transactional" if queue.transactional else "recoverable"
        usual = next(
            kind
            for kind in self.kinds
            if (kind.queue, kind.delivery, kind.lifetime_s) == (queue.name, way, None)
            and kind.receive_within_s is None
            and kind.fate is not Fate.REFUSED
        )
        return replace(usual, delivery=delivery)
