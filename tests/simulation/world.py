"""Hosts with real queue managers and applications, on one clock, and how they die and return.

A host has a network interface, a disk, a clock that is never quite right, and processes: the
daemon (`qmd.daemon.serve`, all of it) and applications, which reach it through `qmd.client` and its
control socket.  Every choice comes from the world's one source of random numbers.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import aiosqlite

from qmd.assembly.components import Assembly
from qmd.config.file import parse_settings
from qmd.config.settings import Settings
from qmd.daemon import serve
from qmd.runtime.environment import Environment
from qmd.runtime.systemd import ServiceManager
from storage import Storage, StorageOptions
from storage.errors import StorageError
from tests.simulation import vfs
from tests.simulation.disk import DiskOfStorage, PowerLoss, SimulatedDisk
from tests.simulation.loop import Clock, Handle, ProcessLoop, Scheduler
from tests.simulation.network import Network

EPOCH_S = 1_700_000_000  # the wall clock's time when a world begins
PORT = 1801
READ_S = 20e-6  # what a look into the database takes at least
SYNC_S = 200e-6
RESTART_S_MAX = 3.0
LOOK_S = 0.1

Main = Callable[[], Coroutine[Any, Any, Any]]


class World:
    """One seed's world.  `trace` gets a line for each thing that happens, where one is wanted."""

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
        self.seen: Counter[str] = Counter()  # how often each kind of thing happened
        #: Asked when a client was told that its messages are safe.
        self.on_confirmation: Callable[[Host], None] = lambda host: None
        #: An application was just told that something is done, or is given.
        self.on_told: Callable[[], None] = lambda: None
        self.on_power_loss: Callable[[], None] = lambda: None
        #: Something of a host has become durable.
        self.on_sync: Callable[[Host], None] = lambda host: None
        #: A daemon has opened its database, and goes by what it finds there.
        self.on_opened: Callable[[Host], None] = lambda host: None
        #: A daemon has ended as it was told to.
        self.on_stopped: Callable[[Host], None] = lambda host: None
        #: Asked with its connection when a daemon begins to write what has gathered.
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
        """Until then, or until something has failed."""
        self.scheduler.run(until)

    def run_until(self, is_over: Callable[[], bool], *, seconds_max: float) -> bool:
        """Until it is over, which is looked at now and then; False when it is not in time."""
        end = self.now + seconds_max
        while not (over := is_over()) and self.now < end and not self.failures:
            self.run(self.now + LOOK_S)
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

    def client_was_told(self, host: Host) -> None:
        self.on_told()
        self.on_confirmation(host)

    def draw_power_loss(self) -> tuple[PowerLoss, float]:
        """What is kept, and how long it lasts."""
        kind = self.random.choice(list(PowerLoss))
        return kind, self.random.uniform(0.1, 2 * RESTART_S_MAX)

    def end(self) -> None:
        """Let go of everything."""
        for host in self.hosts.values():
            host.bury()
        self.scheduler.bury()


class Process:
    """A running program."""

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
        """As SIGKILL: nothing of it runs any more, its kernel closes what it had open."""
        if self.is_alive:
            self.host.world.happened(f"{self.kind} killed", self.host.name)
            self._die(self.host.world.network.process_died)

    def end(self) -> None:
        """It is over, by itself."""
        if self.is_alive:
            self._die(self.host.world.network.process_died)

    def vanish(self) -> None:
        """As with its host's power."""
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
    """A computer with a queue manager.  `stall_probability`: of each sync, which takes thrice
    `sync_s` on average; what is read takes twice `read_s`."""

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
        # Not at once: SQLite stands in the middle of something.
        self.disk.on_off = lambda: world.scheduler.after(0.0, self._disk_went_off)
        self.disk.on_sync = lambda: world.on_sync(self)
        self.disk.on_fault = lambda fault: world.seen.update((f"disk fault: {fault.value}",))
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
        self.daemon_life = 0  # changes whenever what is only in the daemon's memory is lost
        self.keep_down = False  # the supervisor does not start it again
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
        """The daemon's insides, once it listens."""
        server = self.interface.ports.get(PORT)
        factory: Any = server.factory if server is not None else None
        return None if factory is None else cast(Assembly, factory.func.__self__)

    # Processes.

    def start(self) -> None:
        """The host is on: its daemon and its applications are started."""
        self.start_daemon()
        for name in self.programs:
            self.start_application(name)

    def start_daemon(self) -> None:
        if self.daemon is not None or not self.is_on or self.keep_down:
            return
        self.starts += 1
        self._faults_met = self.disk.faults_met
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
        """Start one, and again with the host."""
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
        """It returned, or raised; what is left of it goes with the process."""
        if not process.is_alive:
            return
        error = None if process.main.cancelled() else process.main.exception()
        self.world.note("daemon ended", self.name, repr(error))
        if error is not None and not self._is_excused(error):
            cause = error.__cause__ or error
            self.world.fail(f"the daemon of {self.name} ended: {error!r} from {cause!r}")
        if error is None and not self.disk.is_off:
            self.world.on_stopped(self)
        process.end()

    def _is_excused(self, error: BaseException) -> bool:
        """Only a disk that failed may end a daemon."""
        if self.disk.is_off:
            return True  # the power has gone, and with it the process in a moment
        if self.disk.faults_met == self._faults_met:
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
        """Everything stops; the disk forgets.  `back_after_s` None: until `return_power`."""
        if not self.is_on:
            return
        self.world.happened("power lost", self.name, kind.value)
        self.world.seen[f"power lost, and kept of what was not synced: {kind.value}"] += 1
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
        if not self.is_on:
            self.interface.has_power = True
            self.boots += 1
            self.booted_at = self.clock.local(self.world.now)
            self.world.note("power back", self.name)
            self.world.network.power_returned(self.interface)
            self.start()

    def bury(self) -> None:
        self.disk._reopen()
        self._close_databases()
        vfs.unmount(self.disk)

    # The database's thread.

    def connect(self, path: str) -> aiosqlite.Connection:
        """As `aiosqlite.connect`; its calls run inline, one after the other, in their time.

        The two private names are the ones that `storage.engine.connection` uses as well.
        """
        daemon = self.daemon
        assert daemon is not None
        connection = aiosqlite.connect(vfs.uri(path), uri=True)
        self._databases.append(connection)
        # The first connection of a storage writes, the second reads.
        writes = len(self._databases) == 1
        calls = DatabaseCalls(self, daemon.loop, connection, writes=writes)
        connection._tx = calls  # type: ignore[assignment]
        connection._thread = _NoThread()  # type: ignore[assignment]
        return connection

    def call_time_s(self, *, writes: bool) -> float:
        """How long the disk takes for a call; now and then it hangs."""
        source = self.world.random
        if not writes:
            return self.read_s + source.expovariate(1 / self.read_s)
        took = self.sync_s + source.expovariate(1 / (2 * self.sync_s))
        if source.random() < self.stall_probability:
            took += source.expovariate(1 / 0.1)
        return took + max(0.0, self.stalled_until - self.world.now)

    def _disk_went_off(self) -> None:
        """The power went in the middle of an act."""
        if self.disk.is_off:
            kind, back_after_s = self.world.draw_power_loss()
            self.lose_power(kind, back_after_s=back_after_s)

    def _close_databases(self) -> None:
        for connection in self._databases:
            database, connection._connection = connection._connection, None
            if database is not None:
                database.close()
        self._databases.clear()


class DatabaseCalls:
    """Stands where aiosqlite has the queue of its thread."""

    def __init__(
        self, host: Host, loop: ProcessLoop, connection: aiosqlite.Connection, *, writes: bool
    ) -> None:
        self._host = host
        self._connection = connection
        self._loop = loop
        self._writes = writes
        self._calls: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._is_busy = False

    def put_nowait(self, call: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        self._calls.append(call)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """The call takes its time partly before it changes the disk, and partly after."""
        self._is_busy = True
        took = self._host.call_time_s(writes=self._writes)
        before = took * self._host.world.random.choice((0.0, 0.5, 1.0))
        self._later(before, self._do, took - before)

    def _do(self, rest_s: float) -> None:
        future, function = self._calls.popleft()
        if self._writes and self._connection._connection is not None:
            self._host.world.on_commit(self._host, self._connection._connection)
        result: Any = None
        error: Exception | None = None
        try:
            result = function()
        except Exception as caught:
            error = caught
        if self._host.disk.is_off:
            return  # the host goes with it
        if rest_s > 0:
            self._later(rest_s, self._finish, future, result, error)
        else:
            self._finish(future, result, error)

    def _finish(
        self, future: asyncio.Future[Any] | None, result: Any, error: Exception | None
    ) -> None:
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        if self._calls:
            self._begin()
        else:
            self._is_busy = False

    def _later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        scheduler = self._loop.scheduler
        handle = Handle(callback, arguments, self._loop, None)
        scheduler.wake(scheduler.now + delay_s, self._loop, handle)


class _NoThread:
    daemon = False

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass


class _Listening:
    """Connections are taken up as they come: the simulated network has no queue of them."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.address: tuple[str, int] = server.sockets[0].getsockname()
        self.close = server.close


class HostEnvironment(Environment):
    """What a daemon gets from a simulated host."""

    forgives_bugs = False

    def __init__(self, host: Host) -> None:
        self._host = host

    def wall_clock(self) -> float:
        host = self._host
        return EPOCH_S + host.wall_offset_s + host.wall_rate * host.world.now

    def boot_time(self) -> float:
        host = self._host
        return host.clock.local(host.world.now) - host.booted_at

    def busy_time(self) -> float:
        return 0.0  # whatever is done takes no time

    async def listen(
        self, open_listeners: Any, factory: Any, at: Any, backlog: int
    ) -> list[_Listening]:
        return [_Listening(await asyncio.get_running_loop().create_server(factory, *at))]

    def boot_id(self) -> int:
        return self._host.boots

    def urandom(self, size: int) -> bytes:
        return self._host.world.random.randbytes(size)

    async def open_storage(
        self, folder: Path, options: StorageOptions, *, now_ms: int, new_id: bytes
    ) -> Storage:
        host = self._host
        storage = await Storage.open(
            folder,
            options,
            now_ms=now_ms,
            new_id=new_id,
            connect=host.connect,
            disk=DiskOfStorage(host.disk),
        )
        host.world.on_opened(host)
        return storage

    def bind(self, path: Path, mode: int, group: str) -> Any:
        return _BoundSocket(str(path))

    def freeze_memory(self) -> None:
        pass

    def memory_bytes(self) -> int:
        return 1 << 30


class _BoundSocket:
    def __init__(self, path: str) -> None:
        self.path = path

    def close(self) -> None:
        pass


_settings: dict[tuple[str, str, str], Settings] = {}


def settings(name: str, address: str, configuration: str) -> Settings:
    """As from a configuration file in the folder `/NAME`."""
    key = (name, address, configuration)
    if key not in _settings:
        text = f"""
            queue_manager = {{name = "{name}", data = "data", run_as_root = true}}
            listen = {{address = "{address}", port = {PORT}}}
            peers = {{allow = ["10.0.0.0/8"]}}
            control = {{socket = "qmd.sock"}}
            {configuration}
        """
        _settings[key] = parse_settings(text, file=Path(f"/{name}/qmd.toml"), environment={})
    return _settings[key]
