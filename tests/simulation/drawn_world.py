"""The world that a seed draws: its hosts, queues, network, limits and configurations.

Most choices have a usual value and some rare ones: a window of one message, a resend after a
second, limits of the code so low that every queue outgrows its memory.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation import acknowledgments, vfs
from tests.simulation.applications import Queue
from tests.simulation.loop import Clock
from tests.simulation.message_records import Outcome
from tests.simulation.queue_catalogue import (
    GROUPS_PROBABILITY,
    KINDS,
    LOCKS_PROBABILITY,
    OPTIONAL_PROBABILITY,
    OPTIONAL_QUEUES,
    QUEUES,
    RANGES_PROBABILITY,
    SHARED_NAMES,
    SHARED_PROBABILITY,
    SHARED_QUEUES,
    TOPICS_PROBABILITY,
    UNREAD,
    UNREAD_PROBABILITY,
    VIEWED_QUEUES,
)
from tests.simulation.session_counts import SessionCounts
from tests.simulation.topology import draw_topology
from tests.simulation.transport import Transport
from tests.simulation.world import READ_S, World

FAULTS_S = (2.0, 12.0)  # how long faults are injected
# Some worlds are long: outages of minutes, which run through the table of resends.
LONG_PROBABILITY = 0.06
LONG_TIME_SCALE = 60.0
# Some worlds are busy: long streams in large batches, and readers that receive many at once.
BUSY_PROBABILITY = 0.5
# The time of a sync: a slow disk commits much at once, and much happens meanwhile.
SYNC_S = (0.0002, 0.0002, 0.003)
BUSY_SYNC_S = (0.0002, 0.003, 0.01)
# The time of a read from the database: meanwhile other commits happen.
READS_S = (READ_S, READ_S, 0.002, 0.02)

# Some worlds send one message to several queues.
LISTS_PROBABILITY = 0.4
# Their limits are drawn from a source of their own, so that worlds without lists do not change.
LIMITS_OF_LISTS = {
    "qmd.operations.send_copies.SHARED_BYTES_MIN": (1, 100),
    "qmd.peers.packet_reader.TURN_PACKETS_MAX": (1, 3, 64),
    "qmd.control.server.TURN_REQUESTS_MAX": (1, 3, 256),
    "qmd.runtime.fair_scheduler.SHARED_PACKETS": (1, 256),
    "qmd.runtime.fair_scheduler.DISK_WAITS_MAX": (1, 4),
}

# In some worlds small commits are made at once, on the event loop: all, or while the disk is quick;
# in the others never, so that all of them take time, in which much may happen.
AT_ONCE_PROBABILITY = 0.4
AT_ONCE_LIMIT = "storage.engine.writer.AT_ONCE_S"
AT_ONCE_S = (0.002, 1000)
SMALL_LOG_LIMIT = "storage.engine.checkpoint.SMALL_LOG_BYTES"
SMALL_LOG_BYTES = (20_000, 200_000, 8_000_000)

# In some worlds writers delay some of their messages, and cancel some of these.
DELAYS_PROBABILITY = 0.4
LIMITS_OF_DELAYS = {
    "qmd.maintenance.delayed_release.PIECE_MESSAGES": (1, 3, 256),
    "qmd.maintenance.delayed_release.RETRY_S": (0.2,),
}

# In some worlds aborted messages wait before they are received again.
RETRIES_PROBABILITY = 0.35

# In some worlds messages go over relays.
RELAYS_PROBABILITY = 0.3
# The room of a relay that has little: less than a configuration may say, for one message of the
# largest size, which is smaller in busy worlds.
RELAY_BYTES_FEW, BUSY_RELAY_BYTES_FEW, RELAY_BYTES_MANY = 80_000, 8_000, 2_000_000

# In some worlds writers ask for acknowledgments.
ACKNOWLEDGED_PROBABILITY = 0.35
# In some of those the administration queues are deleted with their contents.
ADMINISTRATION_DELETED_PROBABILITY = 0.5
# In some worlds readers pause now and then, so that messages expire in their queues.
PAUSES_PROBABILITY = 0.3
# In some worlds the readers of queues that are purged and deleted hold messages for long.
SLOW_READERS_PROBABILITY = 0.4
SLOW_DELETIONS_PROBABILITY = 0.7
# In some worlds these queues have journals, which are deleted with them.
SCRATCH_JOURNALS_PROBABILITY = 0.4
# In some worlds transactions reject some of the messages that they receive.
REJECTING_FORWARDERS_PROBABILITY = 0.35
# In some worlds there is a foreign receiver.
FOREIGN_RECEIVER_PROBABILITY = 0.25
# The probability of deletions beside the commands of operators.
DELETIONS_PROBABILITY = 0.2
# The probability that a host of a route over two relays loses its disk.
DISK_LOSS_PROBABILITY = 0.7
WRAP_PROBABILITY = 0.2

# Limits of the code under test, and their low values.
LIMITS = {
    "qmd.queues.outgoing_queue.WINDOW_ENTRIES_MAX": (1, 3, 10),
    "qmd.queues.outgoing_queue.IN_FLIGHT_ENTRIES_MAX": (1, 3),
    "qmd.queues.local_queue.WINDOW_ENTRIES_MAX": (1, 3, 10),
    "qmd.queues.local_queue.TAKE_BYTES_MAX": (100, 5_000),
    "qmd.queues.outgoing_refill.REFILL_ROWS": (1, 2, 7),
    "qmd.operations.receive.REFILL_ROWS": (1, 2, 7),
    "qmd.operations.browse.PEEK_ROWS_MAX": (2,),
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
# The limit of the rows that refill each window.  With a low window it is a multiple of the window:
# otherwise reading hundreds of rows for each message would be most of the cost of such a world.
REFILLS = {
    "qmd.queues.outgoing_queue.WINDOW_ENTRIES_MAX": "qmd.queues.outgoing_refill.REFILL_ROWS",
    "qmd.queues.local_queue.WINDOW_ENTRIES_MAX": "qmd.operations.receive.REFILL_ROWS",
}
REFILLED_WINDOWS = 4
# Some busy worlds have low windows as well: much arrives while they are refilled.
NARROW_PROBABILITY = 0.35
NARROW_WINDOWS, NARROW_REFILLS = (3, 10, 30), (1.2, 4)


def _limits_of_commits(source: random.Random) -> dict[str, float]:
    if source.random() >= AT_ONCE_PROBABILITY:
        return {AT_ONCE_LIMIT: 0}
    return {
        AT_ONCE_LIMIT: source.choice(AT_ONCE_S),
        SMALL_LOG_LIMIT: source.choice(SMALL_LOG_BYTES),
    }


class DrawnWorld:
    """A world with its hosts, as a seed draws them; nothing has happened in it yet."""

    def __init__(self, seed: int, trace: list[str] | None) -> None:
        self.seed = seed
        self.random = source = random.Random(f"world {seed}")
        self.is_busy = source.random() < BUSY_PROBABILITY
        self.is_long = not self.is_busy and source.random() < LONG_PROBABILITY
        self.time_scale = LONG_TIME_SCALE if self.is_long else 1.0
        low_limits = source.choice((0.0, 0.2, 0.7)) if not self.is_busy else 0.05
        self.world = World(
            seed,
            delay_s=source.choice(((0.0001, 0.001), (0.0002, 0.02), (0.01, 0.3))),
            fragmentation=source.choice((0.0, 0.1, 0.5)),
            characteristics=source.choice((vfs.POWERSAFE_OVERWRITE, vfs.POWERSAFE_OVERWRITE, 0)),
            trace=trace,
        )
        self.faults_s = source.uniform(*FAULTS_S) * self.time_scale
        self.limits = self._draw_limits(low_limits)
        self._is_near_the_wrap = source.random() < WRAP_PROBABILITY
        self.session_counts = SessionCounts(source)
        self.world.network.on_open = self._opened
        self.lists_random = random.Random(f"lists {seed}")
        self.has_lists = self.lists_random.random() < LISTS_PROBABILITY
        if self.has_lists and self.lists_random.random() < 0.5:
            for limit, values in LIMITS_OF_LISTS.items():
                self.limits[limit] = self.lists_random.choice(values)
        self.limits |= _limits_of_commits(random.Random(f"commits {seed}"))
        delays_random = random.Random(f"delays {seed}")
        self.has_delays = delays_random.random() < DELAYS_PROBABILITY
        if self.has_delays:
            for limit, values in LIMITS_OF_DELAYS.items():
                self.limits[limit] = delays_random.choice(values)
        retries_random = random.Random(f"retries {seed}")
        self.has_retries = retries_random.random() < RETRIES_PROBABILITY
        self.queues = self._draw_queues()
        if self.has_retries:
            delay_s = retries_random.choice((0.01, 0.1, 0.5))
            self.queues = tuple(
                replace(queue, retry_delay_s=delay_s) if queue.name == "work" else queue
                for queue in self.queues
            )
        names = {queue.name for queue in self.queues} | {"missing"}
        self.kinds = [kind for kind in KINDS if kind.queue in names]
        self.has_rejecting_forwarders = self._draw(
            f"movers {seed}", REJECTING_FORWARDERS_PROBABILITY
        )
        if self.has_rejecting_forwarders:
            self.kinds = [
                replace(kind, outcome=Outcome.RECEIVED_OR_DEAD) if kind.queue == "work" else kind
                for kind in self.kinds
            ]
        # Of these queues the order is not defined.
        unordered = {"work"} if self.has_retries else set()
        unordered |= {"sorted", "sorted_news"} if self.has_ranges else set()
        self.kinds = [
            replace(kind, is_ordered=False) if kind.queue in unordered else kind
            for kind in self.kinds
        ]
        host_names: tuple[str, ...] = ("anna", "bert", "carl")[: source.choice((2, 2, 3))]
        topology_random = random.Random(f"roads {seed}")
        has_relays = topology_random.random() < RELAYS_PROBABILITY
        self.topology = draw_topology(topology_random) if has_relays else None
        if self.topology is not None:
            host_names = self.topology.names
        self.acknowledgments_random = random.Random(f"acknowledgments {seed}")
        self.has_acknowledgments = self.acknowledgments_random.random() < ACKNOWLEDGED_PROBABILITY
        self.foreign_receiver_deviation = self._draw_foreign_receiver()
        self.has_slow_readers = self._draw(f"hands {seed}", SLOW_READERS_PROBABILITY)
        self.has_pauses = self._draw(f"naps {seed}", PAUSES_PROBABILITY)
        self.administration_random = random.Random(f"administration queues {seed}")
        self._add_hosts(host_names)

    def _draw(self, source: str, probability: float) -> bool:
        """Draw one choice from a source of its own, so that no other choice depends on it."""
        return random.Random(source).random() < probability

    def _draw_limits(self, probability: float) -> dict[str, float]:
        """Draw low limits of the code under test; `probability`: of each."""
        limits = {
            limit: self.random.choice(values)
            for limit, values in LIMITS.items()
            if self.random.random() < probability
        }
        for window, refill in REFILLS.items():
            if window in limits:
                limits.setdefault(refill, REFILLED_WINDOWS * limits[window])
        windows_random = random.Random(f"windows {self.seed}")
        if self.is_busy and windows_random.random() < NARROW_PROBABILITY:
            for window, refill in REFILLS.items():
                limits[window] = windows_random.choice(NARROW_WINDOWS)
                limits[refill] = int(windows_random.choice(NARROW_REFILLS) * limits[window])
        return limits

    def _draw_queues(self) -> tuple[Queue, ...]:
        seed = self.seed
        queues = QUEUES + tuple(
            queue
            for queue in OPTIONAL_QUEUES
            if self.random.random() < OPTIONAL_PROBABILITY and not self.is_long
        )
        if self._draw(f"journals {seed}", SCRATCH_JOURNALS_PROBABILITY):
            queues = tuple(
                replace(queue, journal=True) if queue.name.startswith("scratch") else queue
                for queue in queues
            )
        if self._draw(f"attics {seed}", UNREAD_PROBABILITY) and not self.is_long:
            queues += UNREAD
        if self._draw(f"rivals {seed}", SHARED_PROBABILITY) and not self.is_long:
            queues += SHARED_QUEUES
        self.has_ranges = self._draw(f"ranges {seed}", RANGES_PROBABILITY) and not self.is_long
        if self.has_ranges:
            queues += VIEWED_QUEUES
        self.has_locks = self._draw(f"locks {seed}", LOCKS_PROBABILITY)
        self.has_groups = self.has_locks and self._draw(f"groups {seed}", GROUPS_PROBABILITY)
        self.has_topics = self._draw(f"topics {seed}", TOPICS_PROBABILITY)
        if self.has_groups:
            queues = tuple(
                replace(queue, groups=True) if queue.name in SHARED_NAMES else queue
                for queue in queues
            )
        return queues

    def _draw_foreign_receiver(self) -> float | None:
        """Draw the deviation probability of a foreign receiver; None: there is none.

        A foreign receiver knows neither relays nor acknowledgments.
        """
        source = random.Random(f"strange queues {self.seed}")
        is_possible = self.topology is None and not self.has_acknowledgments
        if is_possible and source.random() < FOREIGN_RECEIVER_PROBABILITY:
            return source.choice((0.0, 0.1, 0.5))
        return None

    def _add_hosts(self, names: tuple[str, ...]) -> None:
        source = self.random
        reads_random = random.Random(f"how long reads take {self.seed}")
        for name in names:
            host = self.world.add_host(
                name,
                self._configuration(name),
                clock=Clock(offset_s=source.uniform(0, 1e6), rate=source.uniform(0.98, 1.02)),
                stall_probability=source.choice((0.0, 0.01, 0.1)),
                sync_s=source.choice(BUSY_SYNC_S if self.is_busy else SYNC_S),
                read_s=reads_random.choice(READS_S),
            )
            host.wall_rate = source.uniform(0.98, 1.02)
            routing = host.settings.routing
            if routing.relay_bytes_max < RELAY_BYTES_MANY and self._is_only_relay(name):
                few = BUSY_RELAY_BYTES_FEW if self.is_busy else RELAY_BYTES_FEW
                routing = replace(routing, relay_bytes_max=few)
                host.settings = replace(host.settings, routing=routing)

    def _is_only_relay(self, name: str) -> bool:
        """Return whether a host is the only relay.

        Two full relays that have to take each other's messages would wait for each other.
        """
        return self.topology is not None and self.topology.relays == (name,)

    @property
    def is_slow_to_relay(self) -> bool:
        """Whether many messages would go over relays with long delays, perhaps one at a time."""
        return self.topology is not None and self.is_busy and self.world.network.is_far

    def _configuration(self, name: str) -> str:
        source = self.random
        routing = self.topology.configurations[name] if self.topology is not None else ""
        resend = source.choice(('"1s", "2s", "5s"', '"3s"', '"30s"', '"1s", "10s", "60s", "30s"'))
        page_bytes = random.Random(f"pages {self.seed} {name}").choice((4096, 8192))
        if self.is_slow_to_relay:
            resend = '"60s"'  # otherwise resends and their answers exceed the network's capacity
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
            page_bytes = {page_bytes}
            commit_rows_max = {source.choice((4, 2048, 2048))}
            {routing}
        """

    def deletions(self) -> list[tuple[float, str, str]]:
        """Draw the queues that are deleted: time, host and queue of each."""
        names, found = list(self.world.hosts), []
        source = self.administration_random
        if self.has_acknowledgments and source.random() < ADMINISTRATION_DELETED_PROBABILITY:
            for _ in range(source.choice((1, 2, 5))):
                when = source.random() * self.faults_s
                found.append((when, source.choice(names), acknowledgments.QUEUE))
        source = random.Random(f"deletions {self.seed}")
        probability = SLOW_DELETIONS_PROBABILITY if self.has_slow_readers else DELETIONS_PROBABILITY
        if source.random() < probability:
            for _ in range(source.choice((1, 2, 5))):
                queue = source.choice(("scratch", "scratch_orders"))
                found.append((source.random() * self.faults_s, source.choice(names), queue))
        return found

    def disk_loss(self) -> tuple[float, str] | None:
        """Draw when a host loses its disk, and its name; None: no host does.

        Only worlds with a route over two relays draw it: they are few, and would lose disks rarely.
        """
        source = random.Random(f"amnesia {self.seed}")
        if (
            self.topology is None
            or len(self.topology.relays) < 2
            or source.random() >= DISK_LOSS_PROBABILITY
        ):
            return None
        if self.is_busy:
            return None  # windows of one message may need longer than the phase of healing
        names = (*self.topology.names, *self.topology.relays)
        return source.random() * self.faults_s, source.choice(names)

    def _opened(self, end: Transport) -> None:
        near, far = (each.host.name for each in end.connection.ends)
        if self.topology is not None and not self.topology.allows_connection(near, far):
            self.world.fail(f"{near} has a connection with {far}, against its routes")
        if self._is_near_the_wrap:
            self.session_counts.begin_near_the_wrap(end)
