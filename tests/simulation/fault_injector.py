"""What goes wrong, and how often: every seed has bad habits of its own.

Each kind of mischief gets a weight, often none and sometimes a great one, and the whole a pace.
With one mixture for all seeds, frequent faults would hide what rare ones find.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from qmd.core.sequence import NUMBER_MAX
from tests.simulation.disk import Fault
from tests.simulation.network import Transport
from tests.simulation.world import Host, World

WEIGHTS = (0, 0, 1, 1, 5)
PACES_S = (0.1, 0.3, 1.0, 3.0)
RESTART_S_MAX = 2.0
DRAWN_FAULTS = (Fault.WRITE_ERROR, Fault.SYNC_ERROR, Fault.READ_ERROR, Fault.NO_SPACE)
SYNCS_THAT_FAIL = (1, 1, 2, 3)  # one after the other
SHORT_READS = 0.5  # of the reads that go wrong; drawn apart, so that all else stays as it was


class Mischief:
    """Begins with `start` and goes on until `stop`."""

    def __init__(
        self,
        world: World,
        *,
        may_wipe: bool,
        patience: float,
        give_order: Callable[[Host], None],
    ) -> None:
        self.world = world
        self.random = world.random
        self.is_over = False
        self.may_wipe = may_wipe
        self.wipe: Callable[[Host], None] = lambda host: None
        self._give_order = give_order
        self._of_syncs = random.Random(f"syncs {world.seed}")
        self._of_reads = random.Random(f"reads {world.seed}")
        self._weights = [self.random.choice(WEIGHTS) for _ in ACTS]
        self.patience = patience  # so many times as long as usual is everything
        self._pace_s = self.random.choice(PACES_S) * patience
        # Right after a promise, and right after something left the host, is the time to die.
        self._after_confirmation = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self._after_write = self.random.choice((0.0, 0.0, 0.002, 0.01))

    def start(self) -> None:
        self.world.on_confirmation = self._confirmed
        self.world.network.on_write = self._written
        self._plan()

    def stop(self) -> None:
        """Nothing new goes wrong, and what still would is called off."""
        self.is_over = True
        network = self.world.network
        network.walls.clear()
        network.is_slow = False
        for connection in network.connections:
            connection.bytes_left = None
        for host in self.world.hosts.values():
            host.interface.bytes_per_s = None
            disk = host.disk
            disk.off_at_act = None
            disk.forget_faults()
            disk.capacity_bytes = None
            host.stall_probability = 0.01
            for process in (host.daemon, *host.applications.values()):
                if process is not None:
                    process.loop.turns_left = None

    def _plan(self) -> None:
        self.world.scheduler.after(self.random.expovariate(1 / self._pace_s), self._act)

    def _act(self) -> None:
        if self.is_over:
            return
        if any(self._weights):
            act = self.random.choices(ACTS, self._weights)[0]
            act(self, self.random.choice(list(self.world.hosts.values())))
        self._plan()

    def _confirmed(self, host: Host) -> None:
        if not self.is_over and self.random.random() < self._after_confirmation:
            self._lose_power_soon(host)

    def _written(self, end: Transport) -> None:
        if not self.is_over and self.random.random() < self._after_write:
            host = self.world.hosts.get(end.host.name)
            if host is not None:  # a stranger's is none of ours
                self._lose_power_soon(host)

    def _lose_power_soon(self, host: Host) -> None:
        """Before anything else happens, or a moment later."""
        delay_s = self.random.choice((0.0, 0.0, 0.001, 0.02))
        self.world.scheduler.after(delay_s, self.lose_power, host)

    # The acts.

    def lose_power(self, host: Host) -> None:
        if host.is_on and not self.is_over:
            kind, back_after_s = self.world.draw_power_loss()
            if self.random.random() < 0.3:
                back_after_s *= self.patience
            host.lose_power(kind, back_after_s=back_after_s)

    def lose_power_in_an_act(self, host: Host) -> None:
        host.disk.off_at_act = host.disk.state.acts + self.random.randrange(1, 60)

    def kill_daemon(self, host: Host) -> None:
        if host.daemon is not None:
            host.daemon.kill()

    def kill_daemon_in_a_turn(self, host: Host) -> None:
        if host.daemon is not None:
            host.daemon.loop.turns_left = self.random.randrange(1, 1000)

    def stop_daemon(self, host: Host) -> None:
        """As systemd does it."""
        if host.daemon is not None and host.daemon.loop.signals:
            self.world.happened("daemon stopped", host.name)
            callback, arguments = next(iter(host.daemon.loop.signals.values()))
            host.daemon.loop.call_soon(callback, *arguments)

    def kill_application(self, host: Host) -> None:
        readers = [name for name in host.applications if name.startswith("reader")]
        writers = [name for name in host.applications if name.startswith("writer")]
        if readers and host.is_on:
            name = self.random.choice(self.random.choice((readers, writers or readers)))
            host.applications[name].kill()
            delay_s = self.random.uniform(0, RESTART_S_MAX)
            self.world.scheduler.after(delay_s, self._start_again, host, name)

    def _start_again(self, host: Host, name: str) -> None:
        if name in host.programs:
            host.start_application(name)

    def freeze(self, host: Host) -> None:
        processes = [host.daemon, *host.applications.values()]
        process = self.random.choice(processes)
        if process is not None:
            seconds = self.random.expovariate(1.0)
            self.world.happened("process hung", process.loop.name)
            process.loop.frozen_until = self.world.now + seconds
            self.world.scheduler.after(seconds, _look_up)  # or nobody would wake it

    def cut_connection(self, host: Host) -> None:
        network = self.world.network
        mine = [
            connection
            for connection in network.connections
            if any(end.host is host.interface for end in connection.ends)
        ]
        if mine:
            self.world.happened("connection cut", host.name)
            network.cut(self.random.choice(mine))

    def silence_connection(self, host: Host) -> None:
        connections = list(self.world.network.connections)
        if connections:
            self.world.happened("connection silenced")
            self.world.network.silence(self.random.choice(connections))

    def cut_within_a_packet(self, host: Host) -> None:
        """At any byte of what is written next."""
        connections = [each for each in self.world.network.connections if not each.is_silent]
        if connections:
            self.world.happened("connection to be cut at a byte")
            connection = self.random.choice(connections)
            connection.bytes_left = self.random.randrange(self.random.choice((40, 400, 4_000)))

    def slow_down(self, host: Host) -> None:
        """Its line is nearly dead for a while."""
        network, interface = self.world.network, host.interface
        if interface.bytes_per_s is None:
            self.world.happened("slow line", host.name)
            network.is_slow = True
            interface.bytes_per_s = self.random.choice((500.0, 4_000.0, 50_000.0))
            seconds = self._pace_s * self.random.uniform(1, 20)
            self.world.scheduler.after(seconds, self._speed_up, host)

    def _speed_up(self, host: Host) -> None:
        host.interface.bytes_per_s = None

    def build_wall(self, host: Host) -> None:
        """Nothing gets from here to there for a while; perhaps nothing back, either."""
        other = self.random.choice(list(self.world.hosts.values()))
        seconds = self.random.choice((0.1, 1.0, 8.0, 8.0 * self.patience)) * self.random.random()
        both_ways = self.random.random() < 0.5
        if other is not host:
            self.world.happened("wall", host.name, other.name, both_ways)
            self.world.seen["wall in one direction"] += not both_ways
            self.world.network.build_wall(host.address, other.address, seconds)
            if both_ways:
                self.world.network.build_wall(other.address, host.address, seconds)

    def stall_disk(self, host: Host) -> None:
        self.world.happened("disk hung", host.name)
        host.stall_probability = self.random.choice((0.01, 0.01, 0.5))
        host.stalled_until = self.world.now + self.random.choice((0.0, self.random.expovariate(1)))

    def fail_disk(self, host: Host) -> None:
        fault = self.random.choice(DRAWN_FAULTS)
        if fault is Fault.READ_ERROR and self._of_reads.random() < SHORT_READS:
            fault = Fault.SHORT_READ
        self.world.happened(f"disk fault planned: {fault.value}", host.name)
        # Who has failed to sync may not even close its database.
        count = self._of_syncs.choice(SYNCS_THAT_FAIL) if fault is Fault.SYNC_ERROR else 1
        host.disk.plan_fault(fault, after_acts=self.random.randrange(20), count=count)

    def fill_disk(self, host: Host) -> None:
        """No more than a little can be written for a while."""
        if host.disk.capacity_bytes is None:
            self.world.happened("disk full", host.name)
            room = self.random.choice((0, 10_000, 200_000))
            host.disk.capacity_bytes = host.disk.used_bytes() + room
            self.world.scheduler.after(self.random.uniform(0.1, 4), self._empty_disk, host)

    def _empty_disk(self, host: Host) -> None:
        host.disk.capacity_bytes = None

    def set_clock(self, host: Host) -> None:
        """Somebody corrects it."""
        self.world.happened("clock set", host.name)
        step_s = self.random.choice((-1, 1)) * self.random.choice((1.0, 60.0, 600.0))
        host.wall_offset_s += step_s
        self.world.seen["clock set back" if step_s < 0 else "clock set forward"] += 1

    def give_order(self, host: Host) -> None:
        self._give_order(host)

    def skip_numbers(self, host: Host) -> None:
        """As if four thousand million messages had gone before: numbers have 32 bits."""
        manager = host.manager
        for queue in manager.outgoing.queues if manager is not None else ():
            sequence = queue.sequence
            if sequence.outstanding:
                last = NUMBER_MAX - self.random.randrange(40)
                sequence.next_number = max(sequence.next_number, last)
                self.world.happened("numbers skipped", host.name, queue.destination)

    def lose_disk(self, host: Host) -> None:
        if self.may_wipe:
            self.may_wipe = False  # once in a world is bad enough
            self.wipe(host)


def _look_up() -> None:
    """Time comes to a moment at which nothing happens by itself."""


ACTS: tuple[Callable[[Mischief, Host], None], ...] = (
    Mischief.lose_power,
    Mischief.lose_power_in_an_act,
    Mischief.kill_daemon,
    Mischief.kill_daemon_in_a_turn,
    Mischief.stop_daemon,
    Mischief.kill_application,
    Mischief.freeze,
    Mischief.cut_connection,
    Mischief.silence_connection,
    Mischief.cut_within_a_packet,
    Mischief.slow_down,
    Mischief.build_wall,
    Mischief.stall_disk,
    Mischief.fail_disk,
    Mischief.fill_disk,
    Mischief.set_clock,
    Mischief.give_order,
    Mischief.skip_numbers,
    Mischief.lose_disk,
)
