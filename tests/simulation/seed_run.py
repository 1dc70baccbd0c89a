"""The run of one seed: a world is drawn, suffers faults, heals, and is checked.

run_seed(seed) -> draw a world -> inject faults, and check for losses -> heal everything
  -> check that every promised message is in its place, and that the reported figures are right
  -> cut the power of all hosts -> check again
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.database_examination import Totals, compare
from tests.simulation.disk import PowerLoss
from tests.simulation.drawn_world import DrawnWorld
from tests.simulation.fault_injector import FaultInjector
from tests.simulation.inspection import Inspector
from tests.simulation.isolation import isolated, limits_set, one_source
from tests.simulation.loop import Stuck
from tests.simulation.message_records import Found
from tests.simulation.oracle import Oracle
from tests.simulation.population import Population
from tests.simulation.queue_operator import ReportedState
from tests.simulation.quiescence import Quiescence
from tests.simulation.range_reader import RangeReader
from tests.simulation.reader import Reader
from tests.simulation.world import Host

HEALING_S_MAX = 900.0


@dataclass(slots=True)
class SeedResult:
    """The result of a run; `failures` is empty when every promise was kept."""

    seed: int
    failures: list[str]
    messages: int = 0
    received: int = 0  # by applications
    taken_over: int = 0  # by queue managers from others, as the log of each reports
    pieces: int = 0  # that the network carried
    turns: int = 0
    seconds: float = 0.0  # of virtual time
    cpu_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def deliveries(self) -> int:
        """Messages delivered to applications and to other queue managers."""
        return self.received + self.taken_over


def run_seed(seed: int, *, trace: bool = False, is_last: bool = False) -> SeedResult:
    """Run one seed; `is_last`: the process ends with it."""
    lines: list[str] | None = [] if trace else None
    seen: Counter[str] = Counter()
    with isolated(lines, seen, is_last=is_last):
        result = _run_seed(seed, lines, is_last=is_last)
    result.seen.update(seen)
    return result


def _run_seed(seed: int, trace: list[str] | None, *, is_last: bool) -> SeedResult:
    drawn = DrawnWorld(seed, trace)
    with one_source(drawn.world.random), limits_set(drawn.limits):
        seed_run = SeedRun(drawn)
        try:
            seed_run.run()
        except Stuck as stuck:
            seed_run.world.fail(f"no progress: {stuck}")
        result = seed_run.result()
        if not is_last:
            seed_run.world.end()
        return result


class SeedRun:
    """One world, its population and its phases."""

    def __init__(self, drawn: DrawnWorld) -> None:
        self._drawn = drawn
        self.world = world = drawn.world
        self.oracle = Oracle(
            world.fail,
            # A foreign queue manager never dies.
            life_of=lambda name: world.hosts[name].daemon_life if name in world.hosts else 0,
            was_full=lambda name: name in world.hosts and world.hosts[name].disk.was_full,
        )
        self.oracle.now = lambda: world.now
        world.on_step_without_power = lambda host: self.oracle.had_step_without_power(host.name)
        self._topology = topology = drawn.topology
        if topology is not None:
            self.oracle.state.relays = topology.relays
            self.oracle.is_order_of_plain_kept = not topology.has_direct_route
            self.oracle.reservations.is_order_of_plain_kept = not topology.has_direct_route
        self._population = population = Population(drawn, self.oracle)
        self._queue_names = [queue.name for queue in drawn.queues]
        self.fault_injector = FaultInjector(
            world,
            may_lose_disk=world.random.random() < 0.5,
            time_scale=drawn.time_scale,
            issue_command=self._issue_command,
            lose_disk=self.lose_disk,
        )
        self._inspector = Inspector(world, self.oracle)
        self._quiescence = Quiescence(world, self.oracle, population)
        self._taken_over = 0
        self._paused: dict[str, set[str]] = {name: set() for name in world.hosts}

    # The phases.

    def run(self) -> None:
        """Run the phase of faults, heal the world and check it."""
        world = self.world
        for host in world.hosts.values():
            host.start()
        for foreign in self._population.foreign_managers:
            foreign.start()
        self.fault_injector.start()
        for when, name, queue in self._drawn.deletions():
            world.scheduler.at(when, self._delete, name, queue)
        if (disk_loss := self._drawn.disk_loss()) is not None:
            when, name = disk_loss
            world.scheduler.at(when, self._lose_disk_of_route, world.hosts[name])
        for one, other in self._topology.closed_pairs if self._topology is not None else ():
            source, target = world.hosts[one].address, world.hosts[other].address
            world.network.block(source, target, self._drawn.faults_s)
        self._inspector.start()
        world.run(self._drawn.faults_s)
        self._inspector.stop()
        self.heal()
        self.check_end()
        if not world.failures and world.random.random() < 0.3:
            for host in world.hosts.values():
                host.lose_power(PowerLoss.NONE, back_after_s=1.0)
            self._wait_for_quiescence()
            self.check_end()

    def heal(self) -> None:
        """End all faults, so that everything must arrive."""
        world, population = self.world, self._population
        if world.failures:
            return
        world.note("*** healing")
        self.fault_injector.stop()
        for foreign in population.foreign_managers:
            foreign.stop()
        for writer in population.writers:
            writer.stop()
        for reader in population.readers:
            if isinstance(reader, Reader):
                reader.pauses = None
            elif isinstance(reader, RangeReader):
                reader.releases = None
        for name, operator in population.operators.items():
            operator.is_monitoring = True
            # Nothing else is sure to wake a paused queue.
            operator.commands = [("resume", there) for there in sorted(self._paused[name])]
        self._wait_for_quiescence()

    def _wait_for_quiescence(self) -> None:
        self._quiescence.reset()
        is_quiet = self.world.run_until(self._quiescence.is_quiet, seconds_max=HEALING_S_MAX)
        if not is_quiet and not self.world.failures:
            activity = self._quiescence.activity()
            self.world.fail(f"not quiet after {HEALING_S_MAX:g} s: {activity}")

    def check_end(self) -> None:
        """Check that every message is in its place, and that the reported figures are right."""
        world = self.world
        if world.failures:
            return
        found = {
            name: self._inspector.examine(host, with_log=True) for name, host in world.hosts.items()
        }
        for name, operator in self._population.operators.items():
            assert operator.state is not None
            self._check_figures(name, operator.state, found[name])
        self.oracle.check(list(found.values()), at_the_end=True)
        logged = Counter[str]()
        for each in found.values():
            logged.update(each.logged)
        self._taken_over = logged["accepted"] + logged["relayed on its way"]
        world.seen.update({f"logged: {kind}": count for kind, count in logged.items()})

    def _check_figures(self, name: str, state: ReportedState, found: Found) -> None:
        """Compare the figures that a queue manager reports with its database.

        Express messages are not on disk, so that their queues have to be empty, except those for a
        host that has lost its disk, which wait for one that does not come back.
        """
        world = self.world
        manager = world.hosts[name].manager
        stored = dict(found.outgoing)
        for queue in () if manager is None else manager.outgoing.queues:
            size = sum(len(packet) for packet, _ in queue.express.values())
            messages, others = stored.get(queue.destination, Totals(0, 0))
            if size:
                stored[queue.destination] = Totals(messages + len(queue.express), others + size)
        for difference in (
            *compare(name, state.queues, found.queues),
            *compare(name, state.outgoing, stored),
        ):
            world.fail(difference)
        if any(queue.endswith(" for others") for queue in state.outgoing):
            world.happened("messages passed on", name)
        reported = state.status["bytes"]
        kept = sum(totals.bytes for totals in found.awaiting.values())
        if state.awaiting_bytes != kept:
            world.fail(f"{name} says that {state.awaiting_bytes} bytes wait, and {kept} do")
        total = sum(t.bytes for t in (*state.queues.values(), *state.outgoing.values())) + kept
        if reported != total:
            world.fail(f"{name} says that it has {reported} bytes, and its queues have {total}")

    def result(self) -> SeedResult:
        """Return the result of the run."""
        world = self.world
        world.seen["a session counted beyond its 16 bits"] += self._drawn.session_counts.wrapped()
        result = SeedResult(
            world.seed,
            list(world.failures),
            messages=len(self.oracle.messages),
            received=sum(len(message.received) for message in self.oracle.messages.values()),
            taken_over=self._taken_over,
            pieces=world.network.delivered_count,
            turns=world.scheduler.steps,
            seconds=world.now,
            seen=+world.seen,  # without events that did not happen
        )
        if world.trace is not None:
            digests = {name: host.disk.digest for name, host in world.hosts.items()}
            world.note("disks", digests)
            result.trace = world.trace
        return result

    # Faults that concern more than one host's hardware.

    def lose_disk(self, host: Host) -> None:
        """Replace the host's disk by an empty one; no host reaches it before it has queues."""
        if not host.is_on:
            return
        self.world.happened("disk lost", host.name)
        if self._topology is not None:
            relays = self._topology.relays
            self.world.seen["disk lost on a route over a relay"] += 1
            self.world.seen["disk lost on a route over two relays"] += len(relays) > 1
            self.world.seen["disk of a relay lost"] += host.name in relays
        self.oracle.lost_disk(host.name, self._inspector.examine(host, durable=False))
        host.lose_power(PowerLoss.NONE, back_after_s=None)
        host.disk.wipe()
        host.interface.is_fenced = True
        self.world.scheduler.after(1.0, host.return_power)

    def _lose_disk_of_route(self, host: Host) -> None:
        self.fault_injector.may_lose_disk = True
        if not self.fault_injector.is_over:
            self.fault_injector.lose_disk(host)

    def _issue_command(self, host: Host) -> None:
        """Draw a command for the operator of a host."""
        source = self.world.random
        commands = self._population.operators[host.name].commands
        destinations = self._population.destinations_from(host.name)
        verb = source.choice(("pause", "resume", "resume", "kick", "peek", "purge", "delete"))
        scratch = source.choice(("scratch", "scratch_orders"))
        if verb == "peek":
            commands.append((verb, source.choice(self._queue_names)))
        elif verb == "purge":
            commands.append((verb, scratch))
        elif verb == "delete":
            commands += [(verb, scratch), ("create", scratch)]
        elif destinations:
            there = source.choice(destinations)
            commands.append((verb, there))
            if verb == "pause":
                self._paused[host.name].add(there)

    def _delete(self, name: str, queue: str) -> None:
        commands = self._population.operators[name].commands
        commands += [("delete", queue), ("create", queue)]
