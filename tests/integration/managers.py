"""Queue managers in one process: real data folders, real sockets on loopback, a real loop.

    @hosted
    async def test_...(hosts: Hosts) -> None:
        a, b = await hosts.start("a"), await hosts.start("b")

Each error inside a queue manager fails the test.  At the end, memory and disk must agree.
`tests.integration.remote` is the other end of a session, for tests that control its acts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvloop

from protocol import (
    parse_user_message,
)
from qmd.config.settings import Settings
from qmd.control.control_server import ControlServer
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage, StoredMessage
from qmd.daemon import _unhandled
from qmd.manager import QueueManager
from qmd.queues.limits import Limits
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.runtime.clock import Clock
from qmd.runtime.environment import Environment
from storage import Storage
from tests.integration.agreement import check_agreement
from tests.patience import END_S

PATIENCE_S = END_S
SCENARIO_S = 4 * END_S  # below the time limit of pytest
DEAD_LETTERS = "DIRECT=OS:.\\SYSTEM$;DEADLETTER"
TRANSACTIONAL_DEAD_LETTERS = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
JOURNAL = "DIRECT=OS:.\\SYSTEM$;JOURNAL"


def hosted(test: Callable[[Hosts], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Return a pytest function that runs `test` on the event loop of the daemon (uvloop)."""

    async def main(folder: Path) -> None:
        async with asyncio.timeout(SCENARIO_S), Hosts(folder) as hosts:
            await test(hosts)

    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(tmp_path))

    # Not functools.wraps: pytest would look for a fixture `hosts`.
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until(condition: Callable[[], object], what: str = "it") -> None:
    """Run the event loop until `condition` holds; fail after PATIENCE_S seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        await asyncio.sleep(0.0005)


class World(Environment):
    """The environment of one computer: real, but with clocks that a test controls."""

    forgives_bugs = False
    ahead_s = 0.0  # additional time that has passed on all clocks
    wall_step_s = 0.0  # a step by which the wall clock was set
    boots = 0  # number of restarts of the computer

    def wall_clock(self) -> float:
        return time.time() + self.ahead_s + self.wall_step_s

    def boot_time(self) -> float:
        return super().boot_time() + self.ahead_s

    def boot_id(self) -> int:
        return super().boot_id() ^ self.boots


class Host(QueueManager):
    """A queue manager that listens, with shortcuts for common operations of tests."""

    server: asyncio.Server
    control: ControlServer
    world: World
    folder: Path

    # Shortcuts to services that nearly every test uses.

    @property
    def id(self) -> bytes:
        return self.services.id

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.services.loop

    @property
    def storage(self) -> Storage:
        return self.services.storage

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def environment(self) -> Environment:
        return self.services.environment

    def __getattr__(self, name: str) -> Any:
        """Its components by their names."""
        return getattr(self.assembly, name)

    @property
    def port(self) -> int:
        return self.services.listening[0][1]

    @property
    def socket(self) -> Path:
        return self.folder / "control"

    def queue(self, name: str) -> LocalQueue:
        return self.destinations.find_queue(name)

    def sending_to(self, destination: str) -> OutgoingQueue:
        return self.destinations.find_outgoing(destination)

    async def create(
        self, name: str, *, transactional: bool = False, quota_bytes: int | None = None
    ) -> LocalQueue:
        return await self.administration.create(
            name, transactional=transactional, label="", journal=False, quota_bytes=quota_bytes
        )

    async def send(self, destination: str, *bodies: bytes, **properties: Any) -> list[str]:
        """Send one message per body in one request; return their ids when they are on disk."""
        return await self.handed_over(
            [NewMessage(destination, body, **properties) for body in bodies]
        )

    def handed_over(
        self, messages: list[NewMessage], token: bytes = b""
    ) -> asyncio.Future[list[str]]:
        done: asyncio.Future[list[str]] = self.loop.create_future()
        self.message_sender.send(messages, token, done.set_result)
        return done

    def taking(
        self, reader: Reader, queue: str, limit: int = 1, wait_s: float = frames.NO_WAIT
    ) -> asyncio.Future[list[StoredMessage]]:
        done: asyncio.Future[list[StoredMessage]] = self.loop.create_future()
        self.message_receiver.take(reader, self.queue(queue), limit, wait_s, done.set_result)
        return done

    async def take(
        self, reader: Reader, queue: str, limit: int = 1, wait_s: float = frames.NO_WAIT
    ) -> list[StoredMessage]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.taking(reader, queue, limit, wait_s)

    def removing(
        self, reader: Reader, queue: str, messages: Iterable[StoredMessage], token: bytes = b""
    ) -> asyncio.Future[int]:
        done: asyncio.Future[int] = self.loop.create_future()
        lookup_ids = [message.lookup_id for message in messages]
        self.message_receiver.remove(reader, self.queue(queue), lookup_ids, token, done.set_result)
        return done

    def give_back(self, reader: Reader, queue: str, messages: Iterable[StoredMessage]) -> int:
        lookup_ids = [message.lookup_id for message in messages]
        return self.message_receiver.give_back(reader, self.queue(queue), lookup_ids)

    async def receive(self, queue: str, limit: int = 4096) -> list[bytes]:
        """Take and remove up to `limit` messages; return their bodies."""
        reader = Reader()
        messages = await self.take(reader, queue, limit)
        await self.removing(reader, queue, messages)
        return bodies(messages)

    async def peek(self, queue: str, start: int = 0, limit: int = 1000) -> list[StoredMessage]:
        return await self.message_browser.peek(self.queue(queue), start, limit, frames.NO_WAIT)

    async def settled(self) -> None:
        """Wait until all acts are durable, and the acts that follow from them as well."""
        for _ in range(3):
            await self.storage.batch.run(lambda db: None)
            await asyncio.sleep(0)


class Hosts:
    """The queue managers of one test: `async with Hosts(tmp_path) as hosts`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Host] = {}
        self._worlds: dict[str, World] = {}  # outlive restarts of programs

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                for host in self._running.values():
                    await check_agreement(host)
        finally:
            for host in list(self._running.values()):
                await self.stop(host)

    async def start(
        self,
        name: str = "a",
        port: int = 0,
        *,
        limits: Limits = Limits(),  # noqa: B008
        **sections: Mapping[str, Any],
    ) -> Host:
        """Start a queue manager on the folder `name`, with `sections` of the configuration."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        settings = Settings()
        defaults: dict[str, dict[str, Any]] = {
            "queue_manager": {"data": folder / "data", "name": name},
            "remote": {"tokens": folder / "tokens"},
            "quotas": {"disk_reserve_bytes": 1_000_000},
            "delivery": {"retry_first_s": 0.005, "retry_max_s": 0.02},
        }
        for section in {*defaults, *sections}:
            changes = {**defaults.get(section, {}), **sections.get(section, {})}
            changed = replace(getattr(settings, section), **changes)
            settings = replace(settings, **{section: changed})
        world = self._worlds.setdefault(name, World())
        host = await Host.open(settings, world, name, limits=limits)
        assert isinstance(host, Host)
        host.world, host.folder = world, folder
        host.loop.set_exception_handler(partial(_unhandled, host))
        host.server = await host.loop.create_server(
            partial(host.make_connection, None), "127.0.0.1", port
        )
        host.services.listening.append(host.server.sockets[0].getsockname())
        host.control = ControlServer(host.components, HANDLERS)
        await host.control.start(host.socket, 0o600, "")
        host.start()
        self._running[name] = host
        return host

    async def stop(self, host: Host) -> None:
        del self._running[host.services.name]
        host.server.close()
        await host.control.stop(host.socket)
        await host.stop()

    async def reap(self, host: Host) -> None:
        """End all expired messages."""
        while await host.expiry.reap():
            pass
        await host.settled()

    async def restart(
        self,
        host: Host,
        *,
        limits: Limits = Limits(),  # noqa: B008
        **sections: Mapping[str, Any],
    ) -> Host:
        """Stop the queue manager; start it again with its folder and port."""
        port = host.port
        await self.stop(host)
        return await self.start(host.services.name, port, limits=limits, **sections)


def bodies(messages: Iterable[StoredMessage]) -> list[bytes]:
    return [parse_user_message(message.packet).properties.body for message in messages]
