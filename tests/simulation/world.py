"""A world: hosts with real queue managers and applications, on one virtual clock.

A host has a network interface, a disk, an inaccurate clock, and processes: the complete daemon
(`qmd.daemon.serve`), and applications, which reach it through `qmd.client` and its control socket.
Every choice comes from the world's one source of random numbers.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

import aiosqlite

from qmd.assembly.components import Assembly
from qmd.daemon import serve
from qmd.runtime.systemd import ServiceManager
from storage.errors import StorageError
from tests.simulation import vfs
from tests.simulation.database_thread import DatabaseCalls, NoThread, WatchedConnection
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.simulation.host_environment import (
    PORT,
    HostEnvironment,
    settings,
)
from tests.simulation.loop import Clock, ProcessLoop, Scheduler
from tests.simulation.network import Network

READ_S = 20e-6  # the least time of a read from the database
SYNC_S = 200e-6
RESTART_S_MAX = 3.0
POLL_S = 0.1

Main = Callable[[], Coroutine[Any, Any, Any]]


class World:
    """The world of one seed; `trace`, if given, gets a line for each event."""

    def __init__(
        self,
        seed: int,
        *,
        delay_s: tuple[float, float] = (0.0002, 0.005),
        fragmentation: float = 0.1,
        characteristics: int = vfs.POWERSAFE_OVERWRITE,
        trace: list[str] | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.scheduler = Scheduler(self.random)
        self.network = Network(self.scheduler, delay_s=delay_s, fragmentation=fragmentation)
        self.hosts: dict[str, Host] = {}
        self.failures: list[str] = []
        self.seen: Counter[str] = Counter()  # kind of event -> how often it happened
        #: Called when a queue manager has confirmed a request to a client.
        self.on_confirmation: Callable[[Host], None] = lambda host: None
        #: Called when the clock of a host without power was set forward.
        self.on_step_without_power: Callable[[Host], None] = lambda host: None
        #: Called when an application has received a result or a message.
        self.on_result: Callable[[], None] = lambda: None
        self.on_power_loss: Callable[[], None] = lambda: None
        #: Called when a write of a host has become durable.
        self.on_sync: Callable[[Host], None] = lambda host: None
        #: Called when a daemon has opened its database.
        self.on_opened: Callable[[Host], None] = lambda host: None
        #: Called when a daemon has stopped in good order.
        self.on_stopped: Callable[[Host], None] = lambda host: None
        #: Called with its connection when a daemon is about to commit.
        self.on_commit: Callable[[Host, sqlite3.Connection], None] = lambda host, database: None
        self.network.on_second = lambda source, target: self.happened(
            "a second session", source.name, target.name
        )
        self.trace = trace
        vfs.begin(seed, characteristics=characteristics)
        if trace is not None:
            self.network.note = self.note

    @property
    def now(self) -> float:
        return self.scheduler.now

    def add_host(self, name: str, configuration: str = "", **options: Any) -> Host:
        host = self.hosts[name] = Host(
            self, name, f"10.0.0.{len(self.hosts) + 1}", configuration, **options
        )
        return host

    def run(self, until: float) -> None:
        """Run until a time, or until a check has failed."""
        self.scheduler.run(until)

    def run_until(self, is_over: Callable[[], bool], *, seconds_max: float) -> bool:
        """Run until `is_over` returns true; return False if it does not within `seconds_max`."""
        end = self.now + seconds_max
        while not (over := is_over()) and self.now < end and not self.failures:
            self.run(self.now + POLL_S)
        return over

    def fail(self, text: str) -> None:
        self.scheduler.is_stopped = True
        self.failures.append(f"at {self.now:.6f} s: {text}")
        self.note("FAILURE", text)

    def note(self, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:.9f} {' '.join(map(str, what))}")

    def happened(self, what: str, *where: object) -> None:
        self.seen[what] += 1
        self.note("***", what, *where)

    def notify_confirmation(self, host: Host) -> None:
        """Report that an application of `host` has received a confirmation."""
        self.on_result()
        self.on_confirmation(host)

    def draw_power_loss(self) -> tuple[PowerLoss, float]:
        """Draw the unsynced writes that a loss of power keeps, and its length in seconds."""
        kind = self.random.choice(list(PowerLoss))
        return kind, self.random.uniform(0.1, 2 * RESTART_S_MAX)

    def end(self) -> None:
        """Release the processes, disks and databases of the world."""
        for host in self.hosts.values():
            host.release()
        self.scheduler.release()


class Process:
    """A running program of a host."""

    def __init__(self, host: Host, name: str, main: Main, on_end: Callable[[Process], None]):
        world = host.world
        self.host = host
        self.name = name
        self.loop = ProcessLoop(
            world.scheduler,
            f"{host.name}.{name}",
            clock=host.clock,
            network=world.network,
            host=host.interface,
        )
        self.loop.on_death = self.kill
        self.main = self.loop.spawn(main)
        self.main.add_done_callback(lambda _: on_end(self))
        self._on_death: list[Callable[[], None]] = []

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def when_dead(self, callback: Callable[[], None]) -> None:
        self._on_death.append(callback)

    def kill(self) -> None:
        """Kill the process, as SIGKILL does; its kernel closes its connections."""
        if self.is_alive:
            self.host.world.happened(f"{self.kind} killed", self.host.name)
            self._die(self.host.world.network.process_died)

    def end(self) -> None:
        """End the process after its main function has returned."""
        if self.is_alive:
            self._die(self.host.world.network.process_died)

    def vanish(self) -> None:
        """End the process with the power of its host."""
        if self.is_alive:
            self._die(self.host.world.network.power_lost)

    def _die(self, break_connections: Callable[[ProcessLoop], None]) -> None:
        for place in (self.host.interface.ports, self.host.interface.files):
            for server in list(place.values()):
                if server.loop is self.loop:
                    server.close()
        if self.loop.unhandled:
            self.host.world.fail(f"{self.loop.name}: {self.loop.unhandled[0]}")
        self.host.world.scheduler.drop(self.loop, self.main)
        break_connections(self.loop)
        for callback in self._on_death:
            callback()


class Host:
    """A computer with a queue manager.

    `stall_probability`: of each sync, which takes three times `sync_s` on average.  A read takes
    twice `read_s` on average.
    """

    def __init__(
        self,
        world: World,
        name: str,
        address: str,
        configuration: str,
        *,
        clock: Clock | None = None,
        stall_probability: float = 0.01,
        sync_s: float = SYNC_S,
        read_s: float = READ_S,
    ) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.interface = world.network.add(name, address)
        self.disk = SimulatedDisk(name, world.random)
        self.disk.digest = 0 if world.trace is not None else None
        # Later: SQLite is in the middle of a call.
        self.disk.on_off = lambda: world.scheduler.after(0.0, self._disk_went_off)
        self.disk.on_sync = lambda: world.on_sync(self)
        self.disk.faults.on_met = lambda fault: world.seen.update((f"disk fault: {fault.value}",))
        vfs.mount(self.disk)
        self.clock = clock or Clock()
        self.wall_offset_s, self.wall_rate = 0.0, 1.0
        self.boots = 0
        self.booted_at = self.clock.local(world.now)
        self.stall_probability = stall_probability
        self.sync_s = sync_s
        self.read_s = read_s
        self.stalled_until = 0.0
        self.settings = settings(name, address, configuration)
        self.environment = HostEnvironment(self)
        self.daemon: Process | None = None
        self.applications: dict[str, Process] = {}
        self.programs: dict[str, Main] = {}  # applications that are started with the host
        self.when_application_dies: dict[str, Callable[[], None]] = {}
        self.starts = 0
        self.daemon_life = 0  # changes whenever the daemon's memory is lost
        self.keep_down = False  # the supervisor does not start the daemon
        self._faults_met = 0
        self._databases: list[aiosqlite.Connection] = []

    @property
    def control_socket(self) -> str:
        return str(self.settings.control.socket)

    @property
    def is_on(self) -> bool:
        return self.interface.has_power

    @property
    def manager(self) -> Assembly | None:
        """The components of the daemon; None until it listens."""
        server = self.interface.ports.get(PORT)
        factory: Any = server.factory if server is not None else None
        return None if factory is None else cast(Assembly, factory.func.__self__)

    # Processes.

    def start(self) -> None:
        """Start the daemon and the applications."""
        self.start_daemon()
        for name in self.programs:
            self.start_application(name)

    def start_daemon(self) -> None:
        if self.daemon is not None or not self.is_on or self.keep_down:
            return
        self.starts += 1
        self._faults_met = self.disk.faults.met
        self.world.note("start", self.name)
        self.daemon = Process(
            self,
            f"daemon-{self.starts}",
            lambda: serve(self.settings, self.environment, ServiceManager({})),
            self._daemon_ended,
        )
        self.daemon.when_dead(self._daemon_died)

    def start_application(self, name: str) -> None:
        process = self.applications.get(name)
        if self.is_on and (process is None or not process.is_alive):
            process = Process(self, name, self.programs[name], self._application_ended)
            self.applications[name] = process
            if name in self.when_application_dies:
                process.when_dead(self.when_application_dies[name])

    def run_application(self, name: str, main: Main) -> Process:
        """Start an application, now and whenever the host starts."""
        self.programs[name] = main
        self.start_application(name)
        return self.applications[name]

    def _daemon_died(self) -> None:
        self.daemon = None
        self.daemon_life += 1
        self.disk.process_died()
        self._close_databases()
        if self.is_on:
            delay_s = self.world.random.uniform(0.01, RESTART_S_MAX)
            self.world.scheduler.after(delay_s, self.start_daemon)

    def _daemon_ended(self, process: Process) -> None:
        """End the daemon's process after its main function has returned or raised an error."""
        if not process.is_alive:
            return
        error = None if process.main.cancelled() else process.main.exception()
        self.world.note("daemon ended", self.name, repr(error))
        if error is not None and not self._is_excused(error):
            cause = error.__cause__ or error
            self.world.fail(f"the daemon of {self.name} ended: {error!r} from {cause!r}")
        # A stop that runs into its time limit leaves the rest to the next start, as a crash does.
        lock = self.disk.find(f"/{self.name}/data/lock")
        has_closed = lock is not None and lock.contents.size() == 0
        if error is None and has_closed and not self.disk.is_off:
            self.world.on_stopped(self)
        process.end()

    def _is_excused(self, error: BaseException) -> bool:
        """Return whether an error may end a daemon: only one of its disk may."""
        if self.disk.is_off:
            return True  # the loss of power ends the process in a moment
        if self.disk.faults.met == self._faults_met:
            return False
        cause = error.__cause__ or error
        return isinstance(error, StorageError) and isinstance(
            cause, sqlite3.Error | OSError | StorageError
        )

    def _application_ended(self, process: Process) -> None:
        if not process.is_alive:
            return
        error = process.main.exception()
        if error is not None:
            self.world.fail(f"{process.loop.name}: {error!r}")
        del self.programs[process.name]
        process.end()

    # Power.

    def lose_power(self, kind: PowerLoss, *, back_after_s: float | None) -> None:
        """Stop all processes and lose unsynced writes.

        The power returns after `back_after_s`; None: with `return_power`.
        """
        if not self.is_on:
            return
        self.world.happened("power lost", self.name, kind.value)
        self.world.seen[f"power lost, and unsynced writes kept: {kind.value}"] += 1
        self.interface.has_power = False
        processes = [*self.applications.values(), *([self.daemon] if self.daemon else [])]
        for process in processes:
            process.vanish()
        self.applications.clear()
        self.disk.lose_power(kind)
        self._close_databases()
        self.world.on_power_loss()
        if back_after_s is not None:
            self.world.scheduler.after(back_after_s, self.return_power)

    def return_power(self) -> None:
        """Start the host again."""
        if not self.is_on:
            self.interface.has_power = True
            self.boots += 1
            self.booted_at = self.clock.local(self.world.now)
            self.world.note("power back", self.name)
            self.world.network.power_returned(self.interface)
            self.start()

    def release(self) -> None:
        """Close the databases and unmount the disk."""
        self.disk.close_handles()
        self._close_databases()
        vfs.unmount(self.disk)

    # The database.

    def connect(self, path: str) -> aiosqlite.Connection:
        """Open a database as `aiosqlite.connect` does; its calls run in virtual time, one by one.

        `storage.engine.connection` uses the same two private names.
        """
        daemon = self.daemon
        assert daemon is not None
        factory = type("OfHost", (WatchedConnection,), {"host": self})
        connection = aiosqlite.connect(vfs.uri(path), uri=True, factory=factory)
        self._databases.append(connection)
        # The storage opens the connection that writes first, then the one that reads.
        writes = len(self._databases) == 1
        calls = DatabaseCalls(self, daemon.loop, connection, writes=writes)
        connection._tx = calls  # type: ignore[assignment]
        connection._thread = NoThread()  # type: ignore[assignment]
        return connection

    def call_time_s(self, *, writes: bool) -> float:
        """Draw the time that the disk takes for a call; sometimes it hangs."""
        source = self.world.random
        if not writes:
            return self.read_s + source.expovariate(1 / self.read_s)
        took = self.sync_s + source.expovariate(1 / (2 * self.sync_s))
        if source.random() < self.stall_probability:
            took += source.expovariate(1 / 0.1)
        return took + max(0.0, self.stalled_until - self.world.now)

    def _disk_went_off(self) -> None:
        """Complete a loss of power that began in an act of the disk."""
        if self.disk.is_off:
            kind, back_after_s = self.world.draw_power_loss()
            self.lose_power(kind, back_after_s=back_after_s)

    def _close_databases(self) -> None:
        for connection in self._databases:
            database, connection._connection = connection._connection, None
            if database is not None:
                database.close()
        self._databases.clear()
