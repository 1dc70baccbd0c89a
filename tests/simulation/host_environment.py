"""The environment and the settings that a simulated host gives to its daemon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qmd.config.file import parse_settings
from qmd.config.settings import Settings
from qmd.runtime.environment import Environment
from storage import Storage, StorageOptions
from tests.simulation.storage_disk import DiskOfStorage

if TYPE_CHECKING:
    from tests.simulation.world import Host

T = TypeVar("T")

EPOCH_S = 1_700_000_000  # the wall clock's time when a world begins
PORT = 1801


class _Listening:
    """A listener: the simulated network accepts connections at once, without a backlog."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.address: tuple[str, int] = server.sockets[0].getsockname()
        self.close = server.close


class HostEnvironment(Environment):
    """The environment of a daemon on a simulated host."""

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
        return 0.0  # code takes no virtual time

    def aside(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = loop.create_future()
        loop.call_soon(lambda: done.cancelled() or done.set_result(work()))
        return done

    async def look_up(self, host: str, port: int) -> list[tuple[Any, ...]]:
        return list(await asyncio.get_running_loop().getaddrinfo(host, port))

    async def listen(
        self, open_listeners: Any, factory: Any, at: Any, backlog: int
    ) -> list[_Listening]:
        return [_Listening(await asyncio.get_running_loop().create_server(factory, *at))]

    def boot_id(self) -> int:
        return self._host.boots

    def urandom(self, size: int) -> bytes:
        return self._host.world.random.randbytes(size)

    async def open_storage(
        self,
        folder: Path,
        options: StorageOptions,
        *,
        now_ms: int,
        new_id: bytes,
        new_seed: bytes,
    ) -> Storage:
        host = self._host
        storage = await Storage.open(
            folder,
            options,
            now_ms=now_ms,
            new_id=new_id,
            new_seed=new_seed,
            connect=host.connect,
            disk=DiskOfStorage(host.disk),
        )
        host.world.on_opened(host)
        return storage

    def bind(self, path: Path, mode: int, group: str) -> Any:
        return _BoundSocket(str(path))

    async def accept_clients(self, accept: Any, factory: Any, bound: Any) -> None:
        await asyncio.get_running_loop().create_unix_server(factory, sock=bound)

    @contextlib.contextmanager
    def no_collection(self) -> Iterator[None]:
        yield

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
    """Parse the settings of a host as from a configuration file in the folder `/NAME`."""
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
