"""Virtual time: one event loop for each simulated process, and one scheduler for all of them.

A loop runs its ready callbacks in the order in which they became ready, as asyncio and uvloop do.
The scheduler draws the process that runs next.  When no process is ready, it advances the time to
the earliest timer or delivery.  Nothing waits in real time, nothing happens at the same time, and
the same seed gives the same run.

A dead process leaves its tasks suspended.  Python would run their `finally` blocks if they were
destroyed, so that the scheduler keeps them, in a loop that accepts nothing any more, until the end
of the seed (`release`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import random
import sys
import warnings
import weakref
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

TURN_S_MAX = 20e-6  # the longest turn of a loop; no loop spins without end at one instant
STEPS_MAX = 5_000_000  # turns in one run; a run with more makes no progress


class Stuck(Exception):
    """The run makes no progress."""


class SimulatedTask(asyncio.Task[Any]):
    """A task hashed by a serial number, not by its address, so that sets have one order."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, loop: ProcessLoop, **options: Any
    ) -> None:
        self._serial = next(loop.serials)
        super().__init__(coroutine, loop=loop, **options)
        loop.tasks.add(self)

    def __hash__(self) -> int:
        return self._serial


class SimulatedFuture(asyncio.Future[Any]):
    """A future hashed by a serial number, likewise."""

    def __init__(self, *, loop: ProcessLoop) -> None:
        self._serial = next(loop.serials)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class Scheduler:
    """The clock of a world, and the heap of its timers and deliveries."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.now = 0.0
        self.steps = 0
        self.is_stopped = False
        self.loops: list[ProcessLoop] = []
        self.ready: list[ProcessLoop] = []  # loops with ready callbacks
        self._heap: list[tuple[float, int, ProcessLoop | None, events.Handle | None, Any]] = []
        self._serial = 0
        self._dead: list[ProcessLoop] = []
        self._running: ProcessLoop | None = None

    def at(self, when: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back at `when`, outside of all processes."""
        self._serial += 1
        entry = (when, self._serial, None, None, (callback, arguments))
        heapq.heappush(self._heap, entry)

    def after(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back after a delay, outside of all processes."""
        self.at(self.now + delay_s, callback, *arguments)

    def wake(self, when: float, loop: ProcessLoop, handle: events.Handle) -> None:
        """Make `handle` ready in its loop at `when`."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, loop, handle, None))

    def run(self, until: float) -> None:
        """Run until the given time, or until `is_stopped` is set."""
        choose, ready, heap, pop = self.random.random, self.ready, self._heap, heapq.heappop
        while not self.is_stopped:
            now = self.now
            while heap and heap[0][0] <= now:
                _, _, loop, handle, own = pop(heap)
                if loop is None:
                    callback, arguments = own
                    self.let_run(None)
                    callback(*arguments)
                elif not (loop.is_dead or handle._cancelled):  # type: ignore[union-attr]
                    loop._ready.append(handle)
                    if not loop.is_ready:
                        loop.is_ready = True
                        ready.append(loop)
            if ready:
                self.steps += 1
                if self.steps > STEPS_MAX:
                    raise Stuck(f"{STEPS_MAX} turns, at {self.now:.3f} s")
                if len(ready) > 1:
                    index = int(choose() * len(ready))
                    loop, ready[index] = ready[index], ready[-1]
                    ready.pop()
                else:
                    loop = ready.pop()
                if loop.frozen_until > now:
                    loop.is_ready = False
                    self.at(loop.frozen_until, loop.become_ready)
                    continue
                loop.take_turn()  # it stays `is_ready`, so that it is not listed twice
                if loop._ready:
                    ready.append(loop)
                else:
                    loop.is_ready = False
                self.now += choose() * TURN_S_MAX
            elif heap and heap[0][0] <= until:
                self.now = max(now, heap[0][0])
            else:
                self.now = max(now, until)
                break
        self.let_run(None)

    def let_run(self, loop: ProcessLoop | None) -> None:
        """Set the running loop of asyncio; None: no process runs."""
        if self._running is not loop:
            self._running = loop
            events._set_running_loop(loop)

    def drop(self, loop: ProcessLoop, *belongings: object) -> None:
        """Keep the belongings of a process that died; nothing of it runs any more."""
        loop.die(belongings)
        self.loops.remove(loop)
        self._dead.append(loop)

    def release(self) -> None:
        """Release all processes, living and dead; see `silence`."""
        for loop in list(self.loops):
            self.drop(loop)
        for loop in self._dead:
            loop.belongings.clear()
        self._dead.clear()
        self._heap.clear()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the messages of dead tasks that are destroyed.

    Their `finally` blocks run then, with objects that are dead as well, and report errors.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


class Handle(events.Handle):
    """An asyncio handle that ignores the debug mode of its loop."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None = None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False  # the other attributes serve the debug mode


class TimerHandle(Handle, events.TimerHandle):
    """An asyncio timer handle, likewise."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None = None,
    ) -> None:
        Handle.__init__(self, callback, args, loop, context)
        self._when = when
        self._scheduled = False


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one process: a list of ready callbacks without selector.

    `clock` converts the scheduler's time to that of the process (`time()`), and back.  `network`
    implements servers and connections.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, *, clock: Clock, network: Any, host: Any
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.host = host  # its interface in the network
        self.is_dead = False
        self.is_ready = False
        self.frozen_until = 0.0  # as after SIGSTOP
        self.turns_left: int | None = None  # callbacks until its death
        self.on_death: Callable[[], None] = lambda: None
        self.unhandled: list[str] = []  # errors that no handler caught
        self.signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self.belongings: list[object] = []
        self.connections: dict[Any, None] = {}  # its ends of connections
        self.serials = itertools.count(1)  # of its tasks and futures
        #: The tasks of this loop; `asyncio.all_tasks` would visit those of all loops.
        self.tasks: weakref.WeakSet[SimulatedTask] = weakref.WeakSet()
        self._clock = clock
        self._network = network
        super().__init__()
        self.set_debug(False)  # despite PYTHONASYNCIODEBUG, which costs a third of the speed
        self.set_task_factory(self._make_task)
        scheduler.loops.append(self)

    # Calls of the scheduler.

    def become_ready(self) -> None:
        """List the loop as ready if it has ready callbacks."""
        if self._ready and not self.is_ready:
            self.is_ready = True
            self.scheduler.ready.append(self)

    def take_turn(self) -> None:
        """Run one iteration: the callbacks that are ready now."""
        ready = self._ready
        self.scheduler.let_run(self)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # as `Handle._run`
                    text = f"Exception in callback {handle._callback!r}"
                    self.call_exception_handler({"message": text, "exception": error})
            if self.turns_left is not None:
                self.turns_left -= 1
                if self.turns_left <= 0 and not self.is_dead:
                    self.on_death()
            if self.is_dead or not ready:
                break

    def spawn(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start the process's first task."""
        self.scheduler.let_run(self)
        try:
            return contextvars.Context().run(lambda: self.create_task(main()))
        finally:
            self.scheduler.let_run(None)

    def die(self, belongings: tuple[object, ...]) -> None:
        self.is_dead = True
        self.belongings += [*belongings, list(self.tasks), list(self._ready)]
        self._ready.clear()

    # The interface of asyncio.

    def time(self) -> float:
        return self._clock.local(self.scheduler.now)

    def call_soon(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self.is_ready:
                self.is_ready = True
                self.scheduler.ready.append(self)
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        timer = TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self.scheduler.wake(self._clock.world(when), self, timer)
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def is_running(self) -> bool:
        return not self.is_dead

    def close(self) -> None:
        pass

    def __del__(self) -> None:
        pass

    def create_future(self) -> Any:
        return SimulatedFuture(loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        return SimulatedTask(coroutine, loop=self, name=f"{self.name}", **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.signals[sig] = (callback, args)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise NotImplementedError("threads are not deterministic")

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return self._network.listen(self, protocol_factory, port)

    async def create_unix_server(
        self, protocol_factory: Any, path: Any = None, **options: Any
    ) -> Any:
        return self._network.listen_unix(self, protocol_factory, options["sock"])

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self._network.connect(self, protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        known = self._network.interfaces.get(host)
        return [(2, 1, 6, "", (host if known is None else known.address, port))]

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **options: Any
    ) -> Any:
        return await self._network.connect_unix(self, protocol_factory, path)


class Clock:
    """A computer's clock, which converts between its time and the scheduler's."""

    def __init__(self, *, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._offset_s = offset_s
        self._rate = rate

    def local(self, now: float) -> float:
        return self._offset_s + self._rate * now

    def world(self, local: float) -> float:
        return (local - self._offset_s) / self._rate


def sleeping(loop: ProcessLoop, delay_s: float) -> Awaitable[None]:
    """Sleep by the scheduler's clock, not by that of a process."""
    future = loop.create_future()
    handle = Handle(_wake, (future,), loop, None)
    loop.scheduler.wake(loop.scheduler.now + delay_s, loop, handle)
    awaitable: Awaitable[None] = future
    return awaitable


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
