"""Queue managers in one process: real data folders, real sockets on loopback, a real loop.

    @hosted
    async def test_...(hosts: Hosts) -> None:
        a, b = await hosts.start("a"), await hosts.start("b")

`Remote` is the other end of a session, for tests that control the acts of that end.
Each error inside a queue manager fails the test.  At the end, memory and disk must agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvloop

from protocol import (
    FinalAckBody,
    OrderAckBody,
    build_final_ack,
    build_order_ack,
    order_ack_body,
    order_queue_name,
    parse_user_message,
    patch_sequence,
    transaction_offset,
)
from protocol.framing import PacketBuffer
from protocol.message_class import MessageClass
from protocol.names.format_name import parse_format_name
from qmd.config.settings import Settings
from qmd.control.server import ControlServer
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage, StoredMessage
from qmd.core.session import (
    Acknowledged,
    Closed,
    MessageReceived,
    Opened,
    Session,
    SessionSettings,
)
from qmd.daemon import _unhandled
from qmd.events.header import identity_of
from qmd.manager import QueueManager
from qmd.message.build import NO_ADDRESS, compose, queue_address, reply_address
from qmd.message.shared_packet import Packet, head_of
from qmd.queues.limits import Limits
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.runtime.clock import Clock
from qmd.runtime.environment import Environment
from storage import Storage
from storage.tables import awaiting
from storage.tables.keys import lookup_id_of, queue_id_of
from tests.ledger import Message, disagreements
from tests.patience import END_S
from tests.stored_packets import memory_bytes, unshared_parts

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
        return await self.message_receiver.peek(self.queue(queue), start, limit, frames.NO_WAIT)

    async def settled(self) -> None:
        """Wait until all acts are durable, and the acts that follow from them as well."""
        for _ in range(3):
            await self.storage.batch.run(lambda db: None)
            await asyncio.sleep(0)

    async def slow_read(self, of: str) -> threading.Event:
        """Stop the next read beside the writer after its first steps, if its SQL contains `of`.

        Returns an event; the read goes on when it is set.
        """
        finish = threading.Event()
        is_meant = False

        def slow_down(db: sqlite3.Connection) -> None:
            def begin(sql: str) -> None:
                nonlocal is_meant
                is_meant = of in sql

            def step() -> int:
                if is_meant:
                    finish.wait(PATIENCE_S)
                    db.set_progress_handler(None, 0)
                return 0

            db.set_trace_callback(begin)
            db.set_progress_handler(step, 4)

        await self.storage.read(slow_down)
        return finish

    @contextlib.contextmanager
    def held_disk(self) -> Iterator[None]:
        """Lock the database from another connection, so that no commit succeeds meanwhile."""
        database = self.services.settings.queue_manager.data / "queues.db"
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as intruder:
            intruder.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                intruder.execute("ROLLBACK")

    async def check(self) -> None:
        """Assert that memory, disk and the log of events agree about every message.

        No operation may be outstanding.
        """
        self.outgoing_release.release()  # instead of waiting for its timer
        await self.settled()
        failed = self.services.lifecycle.failed
        assert not failed.done(), failed.exception()
        state = await self.storage.read(_stored)
        express_packets: list[Packet] = []
        total = 0
        for queue in self.queues.by_key.values():
            express = [len(each.packet) for each in queue.express.values()]
            count, size = state.messages.get(queue.id, (0, 0))
            assert (queue.messages, queue.own_bytes) == (
                count + len(express),
                size + sum(express),
            ), queue.name
            express_packets += [each.packet for each in queue.express.values()]
            total += queue.own_bytes
        for sender in self.outgoing.queues:
            express = [len(packet) for packet, _ in sender.express.values()]
            count, size = state.outgoing.get(sender.id, (0, 0))
            assert (sender.messages, sender.bytes) == (count + len(express), size + sum(express)), (
                sender.destination
            )
            express_packets += [packet for packet, _ in sender.express.values()]
            total += sender.bytes
            waiting = state.awaiting.get(sender.id, (0, 0))
            assert (sender.awaiting.messages, sender.awaiting.bytes) == waiting, sender.destination
            total += sender.awaiting.bytes
        total += state.staged
        assert self.stage_store.bytes == state.staged
        assert self.usage.bytes == total
        assert self.usage.express_bytes == memory_bytes(express_packets)
        for queue in self.queues.by_key.values():
            reserved = state.reserved.get(queue.id, Counter())
            assert Counter(queue.reserved) == reserved, queue.name
            assert all(each in queue.taken for each in queue.reserved), queue.name
        in_memory: set[tuple[str, int | Message]] = {
            (queue.name, lookup_id)
            for queue in self.queues.by_key.values()
            for lookup_id in queue.express
        }
        for sender in self.outgoing.queues:
            for packet, _ in sender.express.values():
                in_memory.add((sender.destination, Message(*identity_of(head_of(packet)))))
        problems = await self.storage.read(partial(disagreements, in_memory=in_memory))
        assert not problems, "\n".join(problems)


class _Stored:
    """The stored messages and bytes of packets by queue."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[int, int]] = {}
        self.outgoing: dict[int, tuple[int, int]] = {}
        self.awaiting: dict[int, tuple[int, int]] = {}
        self.reserved: dict[int, Counter[int]] = {}  # queue id -> lookup id -> number of readers
        self.staged = 0


def _stored(db: sqlite3.Connection) -> _Stored:
    stored = _Stored()
    for table, totals in (("message", stored.messages), ("outgoing", stored.outgoing)):
        for key, size in db.execute(f"SELECT key, length(packet) + part_bytes FROM {table}"):
            count, before = totals.get(queue_id_of(key), (0, 0))
            totals[queue_id_of(key)] = count + 1, before + size
    stored.awaiting.update(awaiting.totals_by_queue(db))
    for (key,) in db.execute("SELECT key FROM reservation"):
        of_queue = stored.reserved.setdefault(queue_id_of(key), Counter())
        of_queue[lookup_id_of(key)] += 1
    (stored.staged,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM stage").fetchone()
    assert not unshared_parts(db), "parts that nobody needs any more"
    return stored


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
                    await host.check()
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


_numbers = itertools.count(1_000_000)


def bodies(messages: Iterable[StoredMessage]) -> list[bytes]:
    return [parse_user_message(message.packet).properties.body for message in messages]


def packet(
    body: bytes = b"",
    *,
    source: bytes,
    number: int,
    queue: str = "orders",
    delivery: int = frames.RECOVERABLE,
    position: tuple[int, int, int] | None = None,
    admin: str = "",
    sent_s: float | None = None,
    **properties: Any,
) -> bytes:
    """Return the packet of a message from another queue manager.

    `position` is (sequence id, number, previous number).
    """
    if position is not None:
        delivery = frames.TRANSACTIONAL
    built = compose(
        NewMessage("", body, **properties),
        source=source,
        destination=queue_address(parse_format_name(f"DIRECT=TCP:127.0.0.1\\private$\\{queue}")),
        admin=reply_address(parse_format_name(admin)) if admin else NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=number,
        sent_time_s=int(time.time() if sent_s is None else sent_s),
        delivery=delivery,
        position=None if position is None else (*position[:2], 0),
    )
    if position is None:
        return built
    changed, offset = bytearray(built), transaction_offset(built)
    assert offset is not None
    patch_sequence(changed, offset, *position)
    return bytes(changed)


class Remote(asyncio.Protocol):
    """The other end of a session.  It receives all messages, and acknowledges them on request."""

    def __init__(self, guid: bytes, *, initiator: bool, **settings: Any) -> None:
        self.guid = guid
        self.session = Session(
            initiator=initiator,
            own_id=guid,
            settings=SessionSettings(**settings),
            now=time.monotonic(),
        )
        self.messages: list[MessageReceived] = []
        self.acknowledged: list[object] = []
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.transport: Any = None
        self._initiator = initiator
        self._buffer = PacketBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._initiator:
            self.session.start(time.monotonic())
            self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.session.receive(self._buffer.feed(data), time.monotonic()):
            if isinstance(event, MessageReceived):
                self.messages.append(event)
            elif isinstance(event, Acknowledged):
                self.acknowledged += event.tokens
            elif isinstance(event, Opened):
                self.opened.set()
            elif isinstance(event, Closed):
                self.transport.close()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def flush(self) -> None:
        if data := self.session.data_to_send():
            self.transport.write(data)

    def send(self, *packets: bytes) -> None:
        """Send packets, as far as the window allows; the packet itself is the token."""
        for each in packets:
            express = not each[60] & 0x60
            self.session.send(each, recoverable=not express, token=each, now=time.monotonic())
        self.flush()

    def acknowledge(self) -> None:
        """Acknowledge all received recoverable messages as stored."""
        numbers = [each.recoverable_number for each in self.messages if each.recoverable_number]
        self.session.mark_stored(numbers, time.monotonic())
        self.flush()

    def order_ack(self, of: MessageReceived) -> None:
        """Send an order ack for all messages of the sequence up to this one."""
        transaction = of.message.transaction
        assert transaction is not None
        self.send(
            build_order_ack(
                source_queue_manager=self.guid,
                destination=order_queue_name("127.0.0.1"),
                message_number=next(_numbers),
                sent_time=int(time.time()),
                body=OrderAckBody(
                    transaction.sequence_id,
                    transaction.sequence_number,
                    transaction.sequence_number - 1,
                ),
            )
        )

    def final_ack(
        self, of: MessageReceived, message_class: int, *, message_number: int | None = None
    ) -> None:
        """Send a final ack for a message of the queue manager."""
        user, transaction = of.message.user, of.message.transaction
        assert transaction is not None
        self.send(
            build_final_ack(
                source_queue_manager=self.guid,
                destination=order_queue_name("127.0.0.1"),
                message_number=next(_numbers),
                sent_time=int(time.time()),
                message_class=message_class,
                body=FinalAckBody(
                    transaction.sequence_id,
                    transaction.sequence_number,
                    transaction.previous_number,
                    user.source_queue_manager,
                    user.message_number if message_number is None else message_number,
                ),
            )
        )

    def close(self) -> None:
        self.transport.abort()

    @property
    def ordinary(self) -> list[bytes]:
        """The bodies of the received messages of applications."""
        return [
            each.message.properties.body
            for each in self.messages
            if not each.message.properties.message_class
        ]

    @property
    def classes(self) -> Counter[int]:
        """The number of received messages by message class."""
        return Counter(each.message.properties.message_class for each in self.messages)

    @property
    def order_acks(self) -> list[tuple[int, int]]:
        """The sequence id and number of each received order ack."""
        return [
            order_ack_body(each.message)[:2]
            for each in self.messages
            if each.message.properties.message_class == MessageClass.ORDER_ACK
        ]


async def dial(host: Host, guid: bytes, **settings: Any) -> Remote:
    """Open a session with `host` as a queue manager `guid`."""
    _, remote = await host.loop.create_connection(
        partial(Remote, guid, initiator=True, **settings), "127.0.0.1", host.port
    )
    async with asyncio.timeout(PATIENCE_S):
        await remote.opened.wait()
    return remote


@contextlib.asynccontextmanager
async def listening(
    guid: bytes, *, port: int = 0, **settings: Any
) -> AsyncIterator[RemoteListener]:
    """Listen as a queue manager `guid` that other queue managers can connect to."""
    listener = RemoteListener(guid, settings)
    server = await asyncio.get_running_loop().create_server(listener.connected, "127.0.0.1", port)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        for remote in listener.remotes:
            remote.close()


class RemoteListener:
    """The accepted sessions, the latest one last."""

    def __init__(self, guid: bytes, settings: Mapping[str, Any]) -> None:
        self.guid = guid
        self.port = 0
        self.remotes: list[Remote] = []
        self._settings = settings

    def connected(self) -> Remote:
        self.remotes.append(Remote(self.guid, initiator=False, **self._settings))
        return self.remotes[-1]

    def name(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    async def session(self) -> Remote:
        await until(lambda: self.remotes and self.remotes[-1].opened.is_set(), "a session")
        return self.remotes[-1]


def guid(number: int) -> bytes:
    assert number
    return struct.pack("<16s", number.to_bytes(4, "big").rjust(16, b"\x11"))
