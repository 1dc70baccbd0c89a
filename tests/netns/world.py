"""Three daemons in a hostile network, with kills, and the outcome of their messages.

Each stream is sent by one computer and received by another for the time of the faults.  Then the
network is healed, all daemons serve, and all messages must arrive: transactional ones exactly once
and in order, recoverable ones exactly once, no express one twice, and none lost without a kill.

"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.pair import Daemon, nothing_is_left, stopped_at_end
from benchmarks.tally import Tally
from benchmarks.verdict import broken_promises_of
from qmd.client import Properties, QueueManager
from tests.netns.network import HOSTS, Network

RECONNECT_S = 120.0  # limit of a client's wait for a daemon that is killed repeatedly
QUIET_S = 0.5  # time for a duplicate after all is settled
DELAY_S = 0.5
BURST_MESSAGES = 20
PAUSE_S = 0.7  # average time between two bursts of a stream
RESTART_S = 0.5  # of a killed daemon, which makes phases longer
DAY_S = 86_400
MESSAGES_MAX_PER_S = 100  # of one stream: three times the random number
MESSAGES_MAX = 10_000  # at least so many

# Timers as an operator of such lines sets them, so that an hour has many recoveries.
TIMERS = {
    "QMD_DELIVERY_ACK_TIMEOUT": "3s",
    "QMD_DELIVERY_CONNECT_TIMEOUT": "3s",
    "QMD_DELIVERY_RESEND": "1s,2s,5s",
    "QMD_DELIVERY_RETRY_FIRST": "100ms",
    "QMD_DELIVERY_RETRY_MAX": "2s",
    "QMD_PEERS_ALLOW": "10.77.0.0/16",
}


@dataclass
class Stream:
    """Messages of one kind from one computer to a queue on another one."""

    source: str
    target: str
    tally: Tally
    properties: Properties = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return f"{self.source}_{self.tally.delivery}"

    def end(self, sent: int) -> None:
        """End the stream; no more than `sent` messages were sent."""
        self.tally.total = sent
        del self.tally.ids[sent:]
        del self.tally.arrivals[sent:]


def streams(messages_max: int) -> list[Stream]:
    return [
        Stream("a", "b", Tally("transactional", messages_max)),
        Stream("b", "a", Tally("recoverable", messages_max)),
        Stream("b", "a", Tally("express", messages_max)),
        # The source keeps copies until their receipt is confirmed.
        Stream(
            "a",
            "c",
            Tally("transactional", messages_max),
            {"dead_letter": True, "time_to_be_received_s": DAY_S},
        ),
        Stream("c", "b", Tally("transactional", messages_max)),
        Stream("c", "a", Tally("recoverable", messages_max)),
    ]


@dataclass
class Report:
    """The acts of a run, and its errors."""

    harm: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    harmed_packets: int = 0
    resent: int = 0
    duplicates_refused: int = 0
    settled_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class World:
    """One run in an open `network`.  `report` gets a line per act."""

    def __init__(
        self, network: Network, folder: Path, seed: int, log: Callable[[str], None] = print
    ) -> None:
        self.report = Report()
        self._network = network
        self._chance = random.Random(seed)
        self._seed = seed
        self._log = log
        self._streams: list[Stream] = []
        self._daemons = {
            host: Daemon(
                folder / host,
                host,
                port=1801,
                environment=dict(TIMERS),
                address=network.address(host),
                prefix=network.prefix(host),
            )
            for host in HOSTS
        }
        self._clients: dict[str, QueueManager] = {}
        self._ending = asyncio.Event()
        self._settled = asyncio.Event()
        self._phase = 0

    async def run(self, seconds: float, *, settle_s: float) -> Report:
        """Cause faults for `seconds`, then wait up to `settle_s` for all messages."""
        self._streams = streams(MESSAGES_MAX + round(seconds * MESSAGES_MAX_PER_S))
        daemons = list(self._daemons.values())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stopped_at_end(*daemons))
            self._network.start_proxy(DELAY_S, self._seed)
            for daemon in daemons:
                await daemon.create()
                await daemon.start()
                client = daemon.client(reconnect_s=RECONNECT_S)
                self._clients[daemon.name] = await stack.enter_async_context(client)
            for stream in self._streams:
                await self._clients[stream.target].create_queue(
                    stream.queue, transactional=stream.tally.delivery == "transactional"
                )
            async with asyncio.TaskGroup() as receiving:
                for stream in self._streams:
                    receiving.create_task(self._receive(stream))
                async with asyncio.TaskGroup() as sending:
                    for stream in self._streams:
                        sending.create_task(self._send(stream))
                    sending.create_task(self._do_harm(seconds))
                await self._settle(settle_s)
                self._settled.set()
            for client in self._clients.values():
                status = await client.status()
                self.report.resent += status["resent"]
                self.report.duplicates_refused += status["duplicates_refused"]
        self._judge()
        return self.report

    async def _settle(self, settle_s: float) -> None:
        """Wait until each message has ended, and none in a dead-letter queue."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(settle_s):
                await nothing_is_left(*self._clients.values())
                await self._nothing_is_counted()
        except TimeoutError:
            for host, client in self._clients.items():
                left = [queue for queue in await client.list_queues(system=True)]
                left += await client.list_outgoing()
                self.report.wrong += [
                    f"after {settle_s:.0f} s on a sound network {host} still has {each['messages']}"
                    f" messages of {each['bytes']} bytes:"
                    f" {each.get('destination') or each.get('name')} {each.get('state', '')}"
                    for each in left
                    if each["messages"] or each["bytes"]
                ]
                status = await client.status()
                if status["bytes"]:
                    self.report.wrong.append(f"{host} still counts {status['bytes']} bytes")
        self.report.settled_s = loop.time() - started

    async def _nothing_is_counted(self) -> None:
        """Wait until no copy with an unconfirmed receipt is stored."""
        while True:
            states = [await client.status() for client in self._clients.values()]
            if not any(state["bytes"] for state in states):
                return
            await asyncio.sleep(0.1)

    def _judge(self) -> None:
        for stream in self._streams:
            tally = stream.tally
            found = broken_promises_of(tally, self.report.kills)
            name = f"{stream.source} to {stream.target}"
            self.report.wrong += [f"{name}: {line}" for line in found]
            self.report.lines.append(
                f"{name}  {tally.delivery:13}  {tally.sent:7,} sent  {tally.delivered:7,} delivered"
                f"  {len(tally.missing)} lost  {len(tally.doubled)} doubled"
                f"  {len(tally.out_of_order)} out of order"
            )

    # Traffic.

    async def _send(self, stream: Stream) -> None:
        tally = stream.tally
        address = self._network.address(stream.target)
        number, most = 0, tally.total - BURST_MESSAGES
        destination = f"DIRECT=TCP:{address}\\private$\\{stream.queue}"
        async with self._clients[stream.source].sender(destination) as sender:
            while not self._ending.is_set() and number < most:
                for _ in range(self._chance.randint(1, BURST_MESSAGES)):
                    tally.kills_before[number] = self.report.kills
                    confirmed = await sender.send(
                        tally.body(number), delivery=tally.delivery, **stream.properties
                    )
                    confirmed.add_done_callback(partial(_confirmed, tally, number))
                    number += 1
                await asyncio.sleep(2 * PAUSE_S * self._chance.random())
        stream.end(number)

    async def _receive(self, stream: Stream) -> None:
        """Receive until all is settled, and then no message arrives for a while."""
        is_last = False
        while not is_last:
            is_last = self._settled.is_set()
            client = self._clients[stream.target]
            async for message in client.receive_each(stream.queue, timeout_s=QUIET_S):
                stream.tally.arrived(message.body, message.id)

    # Faults.

    async def _do_harm(self, seconds: float) -> None:
        """Cause every kind of fault in random order, repeatedly, with kills in all of them."""
        loop = asyncio.get_running_loop()
        kinds: list[Callable[[float], Awaitable[None]]] = [
            *(self._lose, self._slow, self._flap, self._swallow, self._swallow_one_way),
            *(self._refuse, self._abort, self._half_open, self._calm),
        ]
        phase_s = max(2.0, min(20.0, seconds / len(kinds) - RESTART_S))
        end = loop.time() + seconds
        try:
            while loop.time() < end:
                self._chance.shuffle(kinds)
                for kind in kinds:
                    if loop.time() >= end and len(self.report.harm) == len(kinds):
                        break
                    name = kind.__name__.removeprefix("_")
                    self.report.harm[name] += 1
                    self._log(f"{loop.time() - end + seconds:7.1f} s  {name}")
                    async with asyncio.TaskGroup() as phase:
                        phase.create_task(_awaited(kind(phase_s)))
                        if kind != self._half_open and self._chance.random() < 0.7:
                            phase.create_task(self._kill_within(phase_s))
                    self._network.heal()
                    await self._start_what_stopped()
        finally:
            self._network.heal()
            self.report.harmed_packets = self._network.harmed_packets
            self._ending.set()

    async def _lose(self, seconds: float) -> None:
        self._network.lose(30)
        await asyncio.sleep(seconds)

    async def _slow(self, seconds: float) -> None:
        self._network.slow("64kbit")
        await asyncio.sleep(seconds)

    async def _flap(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            for act in (self._network.isolate, self._network.reconnect):
                for host in HOSTS:
                    act(host)
                await asyncio.sleep(1.0)

    async def _swallow(self, seconds: float) -> None:
        self._network.swallow(("a", "b"), ("b", "a"))
        await asyncio.sleep(seconds)

    async def _swallow_one_way(self, seconds: float) -> None:
        self._network.swallow(("b", "a"))
        await asyncio.sleep(seconds)

    async def _refuse(self, seconds: float) -> None:
        self._network.refuse(10)
        await asyncio.sleep(seconds)

    async def _abort(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            self._network.abort_connections(self._chance.choice(HOSTS))
            await asyncio.sleep(self._chance.random())

    async def _half_open(self, seconds: float) -> None:
        """Kill a daemon while it is cut off; the others believe that they are connected."""
        host = self._chance.choice(HOSTS)
        self._network.isolate(host)
        await self._kill(host)
        await asyncio.sleep(seconds / 2)
        self._network.reconnect(host)
        await asyncio.sleep(seconds / 2)

    async def _calm(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _kill_within(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._chance.random())
        await self._kill(self._chance.choice(HOSTS))

    async def _start_what_stopped(self) -> None:
        """Restart an ended daemon: no fault of a network may end one, so this is an error."""
        for daemon in self._daemons.values():
            process = daemon.process
            if process is not None and process.returncode is not None:
                self.report.wrong.append(
                    f"{daemon.name} stopped by itself, with exit code {process.returncode}:"
                    f" {daemon.last_words}"
                )
                await daemon.start()

    async def _kill(self, host: str) -> None:
        daemon = self._daemons[host]
        self.report.kills += 1
        self._log(f"           kill {host}")
        await daemon.kill()
        await daemon.start()


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _confirmed(tally: Tally, number: int, confirmed: asyncio.Future[str]) -> None:
    if not confirmed.cancelled() and confirmed.exception() is None:
        tally.confirmed(number, confirmed.result())
