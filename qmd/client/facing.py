"""The wrapper that makes the client without `await` (`qmd.client.blocking`) from the other one.

It runs every coroutine of `QueueManager` (and of the objects that it returns: `Sender`, `Taken`,
`Transaction`, ...) in an event loop in a thread of its own, and waits for the result.  Several
threads may use it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from qmd.client.access import AccessControl
from qmd.client.directory import Directory
from qmd.client.forks import Home
from qmd.client.locked import Locked
from qmd.client.pipeline import Pipeline
from qmd.client.queue import Cursor, Queue
from qmd.client.queue_manager import RECONNECT_S, QueueManager
from qmd.client.queue_manager import connect as connect_async
from qmd.client.receiver import Taken
from qmd.client.sender import Sender
from qmd.client.topics import Topics
from qmd.client.transaction import Transaction

T = TypeVar("T")

_FACED = frozenset(
    (
        QueueManager,
        Transaction,
        Sender,
        Taken,
        Locked,
        Queue,
        Cursor,
        Directory,
        AccessControl,
        Topics,
        Pipeline,
    )
)


def connect(
    path: str | os.PathLike[str],
    *,
    reconnect_s: float = RECONNECT_S,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    client_certificate: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
) -> Blocking:
    """Return a `QueueManager` with methods that wait for results: `with connect(...) as qm`."""
    queue_manager = connect_async(
        path,
        reconnect_s=reconnect_s,
        token_file=token_file,
        ca_file=ca_file,
        client_certificate=client_certificate,
        client_key=client_key,
    )
    return facing(queue_manager)


def facing(queue_manager: QueueManager) -> Blocking:
    """Return the blocking form of a client that is not connected yet."""
    return face_of(QueueManager)(queue_manager, LoopThread(), owns_loop=True)


class LoopThread:
    """An event loop in a thread, from `start` to `stop`.

    A forked process has no such thread: `run` raises ClientError there.
    """

    def __init__(self) -> None:
        self.home = Home()

    def start(self) -> None:
        self.home.settle()
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)), name="qmd-client", daemon=True
        )
        self._thread.start()
        started.result()

    def stop(self) -> None:
        if self.home.is_elsewhere:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and wait for it; an interrupt of the waiting thread cancels it."""
        try:
            self.home.check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def follow(self, future: asyncio.Future[T]) -> concurrent.futures.Future[T]:
        async def wait() -> T:
            return await future

        followed = _Followed[T](self.home)
        inside = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        inside.add_done_callback(followed.follow)
        return followed

    async def _main(self, started: concurrent.futures.Future[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        started.set_result(None)
        await self._stopping.wait()


class _Followed(concurrent.futures.Future[T]):
    """A future that follows one in the loop; waiting in a forked process raises ClientError."""

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home

    def follow(self, inside: concurrent.futures.Future[T]) -> None:
        if not self.set_running_or_notify_cancel():
            return
        if inside.cancelled():
            self.set_exception(concurrent.futures.CancelledError())
        elif (failure := inside.exception()) is not None:
            self.set_exception(failure)
        else:
            self.set_result(inside.result())

    def result(self, timeout: float | None = None) -> T:
        self._home.check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._home.check()
        return super().exception(timeout)


class Blocking:
    """A wrapper with the attributes of `target` and with methods that wait for their result."""

    def __init__(self, target: Any, loop: LoopThread, *, owns_loop: bool = False) -> None:
        self._target = target
        self._loop = loop
        self._owns_loop = owns_loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if type(attribute) in _FACED:
            return face_of(type(attribute))(attribute, self._loop)
        if not callable(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*arguments: Any, **named: Any) -> Any:
            arguments = tuple(
                each._target if isinstance(each, Blocking) else each for each in arguments
            )

            async def in_the_loop() -> Any:
                result = attribute(*arguments, **named)
                return await result if inspect.isawaitable(result) else result

            return self._face(self._loop.run(in_the_loop()))

        return call

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def _enter(self) -> Blocking:
        if self._owns_loop:
            self._loop.start()
        try:
            self._loop.run(self._target.__aenter__())
        except BaseException:
            self._end()
            raise
        if isinstance(self._target, Transaction):
            # Each step runs in a separate task with a copy of the calling thread's context.
            self._target._enter_block()
        return self

    def _exit(self, *exc_info: Any) -> None:
        if isinstance(self._target, Transaction):
            self._target._leave_block()
        if self._loop.home.is_elsewhere:
            if isinstance(self._target, Transaction | Sender) and exc_info[0] is None:
                self._loop.home.check()  # its work is not done here: report that
            return
        try:
            self._loop.run(self._target.__aexit__(*exc_info))
        finally:
            self._end()

    def _end(self) -> None:
        if self._owns_loop:
            self._loop.stop()

    def _face(self, result: Any) -> Any:
        if type(result) in _FACED:
            return face_of(type(result))(result, self._loop)
        if isinstance(result, AsyncIterator):
            return self._iterate(result)
        if isinstance(result, asyncio.Future):
            return self._loop.follow(result)
        return result

    def _iterate(self, items: Any) -> Iterator[Any]:
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        try:
            while (item := self._loop.run(step())) is not end:
                yield item
        finally:
            if not self._loop.home.is_elsewhere:
                self._loop.run(items.aclose())


def face_of(kind: type[object]) -> type[Blocking]:
    """Return the wrapper class for `kind`, with `with`, `for` and `len` if it has them."""
    if kind not in _faces:
        _faces[kind] = _new_face(kind)
    return _faces[kind]


_faces: dict[type[object], type[Blocking]] = {}


def _new_face(kind: type[object]) -> type[Blocking]:
    special: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": "qmd.client.blocking"}
    if hasattr(kind, "__aenter__"):
        special |= {"__enter__": Blocking._enter, "__exit__": Blocking._exit}
    if hasattr(kind, "__aiter__"):
        special["__iter__"] = lambda self: self._iterate(aiter(self._target))
    if hasattr(kind, "__len__"):
        special["__len__"] = lambda self: len(self._target)
    return type(kind.__name__, (Blocking,), special)
