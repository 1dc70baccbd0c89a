"""A sender behind address translation: it cannot be dialled, and its address may change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from protocol import parse_user_message
from qmd.client import Acknowledge
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.queues.outgoing_queue import OutgoingQueue
from tests.integration.managers import Host, Hosts, hosted, until


class Translator:
    """A router with address translation.

    It connects clients of `port` to `target`, which sees `address` as their address.  No process
    listens at `address`.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.address = "127.0.0.41"
        self.port = 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(
            "127.0.0.1", self._target, local_addr=(self.address, 0)
        )
        self._ends |= {writer, onward}
        for source, to in ((reader, onward), (there, writer)):
            task = asyncio.create_task(self._pass_on(source, to))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                to.write(data)
                await to.drain()
        to.close()

    def cut(self) -> None:
        """Abort all connections."""
        for each in self._ends:
            each.transport.abort()
        self._ends.clear()


@contextlib.asynccontextmanager
async def translating(target: Host) -> AsyncIterator[Translator]:
    translator = Translator(target.port)
    server = await asyncio.start_server(translator.connected, "127.0.0.1", 0)
    translator.port = server.sockets[0].getsockname()[1]
    try:
        yield translator
    finally:
        server.close()
        translator.cut()
        await asyncio.gather(*translator._tasks, return_exceptions=True)


def _dialled(host: Host) -> list[OutgoingQueue]:
    """Return the outgoing queues of the host with failed attempts to connect."""
    return [each for each in host.outgoing.queues if each.link.retry.failures]


@hosted
async def test_every_kind_of_acknowledgment_goes_back_over_the_session_of_its_message(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    acks = await a.create("acks")
    async with translating(b) as router:
        orders = f"DIRECT=TCP:127.0.0.1:{router.port}\\private$\\orders"
        await a.send(
            orders,
            b"1",
            b"2",
            delivery=TRANSACTIONAL,
            # The translated address: only the session leads there.
            admin_queue=f"DIRECT=TCP:{router.address}\\private$\\acks",
            acknowledge=int(Acknowledge.POSITIVE_ARRIVAL | Acknowledge.NEGATIVE_RECEIVE),
            time_to_be_received_s=60,
        )
        await until(lambda: a.sending_to(orders).messages == 0, "the order acks")
        await until(lambda: acks.messages == 2, "the acknowledgments of the arrival")
        await b.purger.purge(b.queue("orders"))  # final acks, and negative ones
        await until(lambda: acks.messages == 4, "the acknowledgments of the end")
        await until(lambda: not any(each.messages for each in b.outgoing.queues), "their acks")

        assert not _dialled(b), "somebody dialled a translated address"
    ended = [parse_user_message(each.packet) for each in await a.peek("acks")]
    assert [each.properties.message_class for each in ended][:2] == [2, 2]


@hosted
async def test_a_host_with_a_changed_address_keeps_its_streams(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    async with translating(b) as router:
        orders = f"DIRECT=TCP:127.0.0.1:{router.port}\\private$\\orders"
        for number in range(30):
            if number % 10 == 5:  # while messages are outstanding
                router.address = f"127.0.0.{50 + number}"
                router.cut()
            await a.send(orders, b"%d" % number, delivery=TRANSACTIONAL)
        await until(lambda: a.sending_to(orders).messages == 0, "all order acks")

    assert await b.receive("orders") == [b"%d" % number for number in range(30)]
    (stream,) = b.incoming_streams.all()
    assert stream.source == a.id
