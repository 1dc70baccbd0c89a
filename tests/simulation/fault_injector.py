"""The fault injector: each seed has its own mixture of faults, and its own rate.

Each kind of fault gets a weight, often zero and sometimes a large one.  With one mixture for all
seeds, frequent faults would hide what rare ones find.
"""

from __future__ import annotations

from collections.abc import Callable

from qmd.core.sequence import NUMBER_MAX
from tests.simulation.faults import DiskFaults, NetworkFaults, ProcessFaults
from tests.simulation.transport import Transport
from tests.simulation.world import Host, World

WEIGHTS = (0, 0, 1, 1, 5)
PACES_S = (0.1, 0.3, 1.0, 3.0)
FAULTS = 19  # kinds of them


class FaultInjector:
    """Injects faults from `start` until `stop`.

    `time_scale` multiplies all times.  `issue_command` gives the operator of a host a command, and
    `lose_disk` replaces a host's disk.
    """

    def __init__(
        self,
        world: World,
        *,
        may_lose_disk: bool,
        time_scale: float,
        issue_command: Callable[[Host], None],
        lose_disk: Callable[[Host], None],
    ) -> None:
        self.world = world
        self.random = world.random
        self.is_over = False
        self.may_lose_disk = may_lose_disk
        self._replace_disk = lose_disk
        self._weights = [self.random.choice(WEIGHTS) for _ in range(FAULTS)]
        self.time_scale = time_scale
        self._pace_s = self.random.choice(PACES_S) * time_scale
        # Power losses right after a confirmation, and right after a host has sent something.
        self._after_confirmation = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self._after_write = self.random.choice((0.0, 0.0, 0.002, 0.01))
        processes, disks = ProcessFaults(world), DiskFaults(world)
        network = NetworkFaults(world, pace_s=self._pace_s, time_scale=time_scale)
        self._faults: tuple[Callable[[Host], None], ...] = (
            self.lose_power,
            self.lose_power_in_an_act,
            processes.kill_daemon,
            processes.kill_daemon_in_a_turn,
            processes.stop_daemon,
            processes.kill_application,
            processes.freeze,
            network.cut_connection,
            network.silence_connection,
            network.cut_within_a_packet,
            network.slow_down,
            network.partition,
            disks.stall_disk,
            disks.fail_disk,
            disks.fill_disk,
            self.set_clock,
            issue_command,
            self.skip_numbers,
            self.lose_disk,
        )
        assert len(self._faults) == FAULTS

    def start(self) -> None:
        """Begin to inject faults."""
        self.world.on_confirmation = self._confirmed
        self.world.network.on_write = self._written
        self._plan()

    def stop(self) -> None:
        """Inject no more faults, and cancel those that are planned."""
        self.is_over = True
        network = self.world.network
        network.blocked_until.clear()
        network.is_slow = False
        for connection in network.connections:
            connection.bytes_left = None
        for host in self.world.hosts.values():
            host.interface.bytes_per_s = None
            disk = host.disk
            disk.off_at_act = None
            disk.faults.clear()
            disk.capacity_bytes = None
            host.stall_probability = 0.01
            for process in (host.daemon, *host.applications.values()):
                if process is not None:
                    process.loop.turns_left = None

    def _plan(self) -> None:
        self.world.scheduler.after(self.random.expovariate(1 / self._pace_s), self._inject)

    def _inject(self) -> None:
        if self.is_over:
            return
        if any(self._weights):
            fault = self.random.choices(self._faults, self._weights)[0]
            fault(self.random.choice(list(self.world.hosts.values())))
        self._plan()

    def _confirmed(self, host: Host) -> None:
        if not self.is_over and self.random.random() < self._after_confirmation:
            self._lose_power_soon(host)

    def _written(self, end: Transport) -> None:
        if not self.is_over and self.random.random() < self._after_write:
            host = self.world.hosts.get(end.host.name)
            if host is not None:  # foreign queue managers lose no power
                self._lose_power_soon(host)

    def _lose_power_soon(self, host: Host) -> None:
        """Cut the host's power before anything else happens, or a moment later."""
        delay_s = self.random.choice((0.0, 0.0, 0.001, 0.02))
        self.world.scheduler.after(delay_s, self.lose_power, host)

    # Faults of whole hosts.

    def lose_power(self, host: Host) -> None:
        """Cut the host's power now."""
        if host.is_on and not self.is_over:
            kind, back_after_s = self.world.draw_power_loss()
            if self.random.random() < 0.3:
                back_after_s *= self.time_scale
            host.lose_power(kind, back_after_s=back_after_s)

    def lose_power_in_an_act(self, host: Host) -> None:
        """Cut the host's power in one of the next acts of its disk."""
        host.disk.off_at_act = host.disk.state.acts + self.random.randrange(1, 60)

    def set_clock(self, host: Host) -> None:
        """Set the wall clock forward or back."""
        self.world.happened("clock set", host.name)
        step_s = self.random.choice((-1, 1)) * self.random.choice((1.0, 60.0, 600.0))
        host.wall_offset_s += step_s
        if step_s > 0 and not host.is_on:
            self.world.on_step_without_power(host)
        self.world.seen["clock set back" if step_s < 0 else "clock set forward"] += 1

    def skip_numbers(self, host: Host) -> None:
        """Move the sequences of a host near the end of their 32-bit numbers."""
        manager = host.manager
        for queue in manager.outgoing.queues if manager is not None else ():
            sequence = queue.sequence
            if sequence.outstanding:
                last = NUMBER_MAX - self.random.randrange(40)
                sequence.next_number = max(sequence.next_number, last)
                self.world.happened("numbers skipped", host.name, queue.destination)

    def lose_disk(self, host: Host) -> None:
        """Replace the host's disk by an empty one, once in a world."""
        if self.may_lose_disk:
            self.may_lose_disk = False
            self._replace_disk(host)
