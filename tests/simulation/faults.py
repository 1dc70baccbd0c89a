"""The faults of processes, of the network and of disks.

Each fault is a method that takes the host for which it was drawn.
"""

from __future__ import annotations

import random

from tests.simulation.disk import Fault
from tests.simulation.world import Host, World

RESTART_S_MAX = 2.0
DRAWN_FAULTS = (Fault.WRITE_ERROR, Fault.SYNC_ERROR, Fault.READ_ERROR, Fault.NO_SPACE)
FAILED_SYNCS = (1, 1, 2, 3)  # in a row
SHORT_READS_PROBABILITY = 0.5  # of the failing reads


class ProcessFaults:
    """Faults of daemons and applications."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random

    def kill_daemon(self, host: Host) -> None:
        if host.daemon is not None:
            host.daemon.kill()

    def kill_daemon_in_a_turn(self, host: Host) -> None:
        """Kill the daemon after a number of callbacks, in the middle of a turn of its loop."""
        if host.daemon is not None:
            host.daemon.loop.turns_left = self.random.randrange(1, 1000)

    def stop_daemon(self, host: Host) -> None:
        """Send the daemon SIGTERM, as systemd does."""
        if host.daemon is not None and host.daemon.loop.signals:
            self.world.happened("daemon stopped", host.name)
            callback, arguments = next(iter(host.daemon.loop.signals.values()))
            host.daemon.loop.call_soon(callback, *arguments)

    def kill_application(self, host: Host) -> None:
        """Kill a reader or writer, and start it again later."""
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
        """Freeze a process for a while, as SIGSTOP does."""
        processes = [host.daemon, *host.applications.values()]
        process = self.random.choice(processes)
        if process is not None:
            seconds = self.random.expovariate(1.0)
            self.world.happened("process hung", process.loop.name)
            process.loop.frozen_until = self.world.now + seconds
            # The scheduler must stop at this time: otherwise it does not find the process ready.
            self.world.scheduler.after(seconds, _do_nothing)


class NetworkFaults:
    """Faults of connections, and of the lines between hosts."""

    def __init__(self, world: World, *, pace_s: float, time_scale: float) -> None:
        self.world = world
        self.random = world.random
        self._pace_s = pace_s
        self._time_scale = time_scale

    def cut_connection(self, host: Host) -> None:
        """Reset a connection of the host."""
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
        """Lose everything that is sent over a connection, of any host."""
        connections = list(self.world.network.connections)
        if connections:
            self.world.happened("connection silenced")
            self.world.network.silence(self.random.choice(connections))

    def cut_within_a_packet(self, host: Host) -> None:
        """Reset a connection, of any host, after some bytes of the following writes."""
        connections = [each for each in self.world.network.connections if not each.is_silent]
        if connections:
            self.world.happened("connection to be cut at a byte")
            connection = self.random.choice(connections)
            connection.bytes_left = self.random.randrange(self.random.choice((40, 400, 4_000)))

    def slow_down(self, host: Host) -> None:
        """Give the host's line a low rate for a while."""
        network, interface = self.world.network, host.interface
        if interface.bytes_per_s is None:
            self.world.happened("slow line", host.name)
            network.is_slow = True
            interface.bytes_per_s = self.random.choice((500.0, 4_000.0, 50_000.0))
            seconds = self._pace_s * self.random.uniform(1, 20)
            self.world.scheduler.after(seconds, self._speed_up, host)

    def _speed_up(self, host: Host) -> None:
        host.interface.bytes_per_s = None

    def partition(self, host: Host) -> None:
        """Block the way from the host to another one for a while, and perhaps the way back."""
        other = self.random.choice(list(self.world.hosts.values()))
        seconds = self.random.choice((0.1, 1.0, 8.0, 8.0 * self._time_scale)) * self.random.random()
        both_ways = self.random.random() < 0.5
        if other is not host:
            self.world.happened("partition", host.name, other.name, both_ways)
            self.world.seen["partition in one direction"] += not both_ways
            self.world.network.block(host.address, other.address, seconds)
            if both_ways:
                self.world.network.block(other.address, host.address, seconds)


class DiskFaults:
    """Faults of disks that keep their contents."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        # Sources of their own, so that older choices did not change.
        self._syncs_random = random.Random(f"syncs {world.seed}")
        self._reads_random = random.Random(f"reads {world.seed}")

    def stall_disk(self, host: Host) -> None:
        """Make the disk slow, and perhaps stop it for a while."""
        self.world.happened("disk hung", host.name)
        host.stall_probability = self.random.choice((0.01, 0.01, 0.5))
        host.stalled_until = self.world.now + self.random.choice((0.0, self.random.expovariate(1)))

    def fail_disk(self, host: Host) -> None:
        """Plan errors of the disk."""
        fault = self.random.choice(DRAWN_FAULTS)
        if fault is Fault.READ_ERROR and self._reads_random.random() < SHORT_READS_PROBABILITY:
            fault = Fault.SHORT_READ
        self.world.happened(f"disk fault planned: {fault.value}", host.name)
        # After one failed sync the next may be that of closing the database.
        count = self._syncs_random.choice(FAILED_SYNCS) if fault is Fault.SYNC_ERROR else 1
        host.disk.faults.plan(fault, after_acts=self.random.randrange(20), count=count)

    def fill_disk(self, host: Host) -> None:
        """Leave only a little room on the disk for a while."""
        if host.disk.capacity_bytes is None:
            self.world.happened("disk full", host.name)
            room = self.random.choice((0, 10_000, 200_000))
            host.disk.capacity_bytes = host.disk.used_bytes() + room
            self.world.scheduler.after(self.random.uniform(0.1, 4), self._empty_disk, host)

    def _empty_disk(self, host: Host) -> None:
        host.disk.capacity_bytes = None


def _do_nothing() -> None:
    pass
