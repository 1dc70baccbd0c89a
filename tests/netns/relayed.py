"""Five daemons, one of which is the only way between the others: `python -m tests.netns.relayed`.

    python -m tests.netns.relayed --messages 100000 [--seed N] [--ipv6]

Two of them send transactional messages to overlapping lists of queues; at intervals a daemon is cut
off or killed, the router too.  In the end each queue must have each message of each source to that
queue, once, in the order in which the source committed them.

Exit code 0: this holds.  1: the errors are listed, and the data stays.  2: this machine cannot
make such a network.

"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pair import Daemon, nothing_is_left, run, stopped_at_end
from qmd.client import QueueManager, new_message
from tests.netns.star import EVERYBODY, HOSTS, ROUTER, Star, why_not

BATCH = 50  # messages to lists, sent together: one commit
QUIET_S = 0.5  # time for a duplicate after all is settled
RECONNECT_S = 120.0
BODY_BYTES = 200
LISTED_MAX = 40

QUEUES = {"q1": "b", "q2": "b", "q3": "d", "q4": ROUTER}
SOURCES = ("a", "c")
LISTS = (("q1", "q2"), ("q2", "q3"), ("q3", "q4"), ("q2",), ("q1", "q2", "q3", "q4"))

TIMERS = {
    "QMD_DELIVERY_ACK_TIMEOUT": "3s",
    "QMD_DELIVERY_CONNECT_TIMEOUT": "2s",
    "QMD_DELIVERY_RESEND": "3s,5s,10s",
    "QMD_DELIVERY_RETRY_FIRST": "100ms",
    "QMD_DELIVERY_RETRY_MAX": "1s",
    "QMD_PEERS_ALLOW": "10.78.0.0/16,fd78::/16",
    "QMD_LOG_LEVEL": "warning",
}


@dataclass
class Report:
    """The acts of a run, and its errors."""

    sent: int = 0
    copies: int = 0
    kills: int = 0
    cuts: int = 0
    relayed: int = 0
    resent: int = 0
    duplicates_refused: int = 0
    sending_s: float = 0.0
    settled_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


class World:
    """One run in an open `star`."""

    def __init__(
        self,
        star: Star,
        folder: Path,
        seed: int,
        *,
        ipv6: bool = False,
        log: Callable[[str], None] = print,
    ) -> None:
        self.report = Report()
        self._star = star
        self._chance = random.Random(seed)
        self._log = log
        self._ipv6 = ipv6
        self._sent_all = asyncio.Event()
        self._settled = asyncio.Event()
        self._clients: dict[str, QueueManager] = {}
        self._expected: dict[tuple[str, str], list[int]] = {}  # by queue and source
        self._arrived: dict[tuple[str, str], list[int]] = {}
        self._daemons = {
            host: Daemon(
                folder / host,
                host,
                port=1801,
                environment=TIMERS | self._routing(host),
                address="::" if ipv6 else "0.0.0.0",
                prefix=star.prefix(host),
            )
            for host in EVERYBODY
        }

    def _routing(self, host: str) -> dict[str, str]:
        if host == ROUTER:
            net = "fd78::/16" if self._ipv6 else "10.78.0.0/16"
            return {"QMD_ROUTING_RELAY_FOR": net, "QMD_ROUTING_RELAY_TO": net}
        gate = self._star.gate6(host) if self._ipv6 else self._star.gate(host)
        return {"QMD_ROUTING_ROUTES": f"* via {gate}"}

    def _name(self, source: str, queue: str) -> str:
        """Return the name of the queue at `source`."""
        star, host = self._star, QUEUES[queue]
        if host == ROUTER:
            address = star.gate6(source) if self._ipv6 else star.gate(source)
        else:
            address = star.address6(host) if self._ipv6 else star.address(host)
        if self._ipv6:
            address = f"[{address}]"
        return f"DIRECT=TCP:{address}\\private$\\{queue}"

    async def run(self, messages: int, *, settle_s: float) -> Report:
        """Send so many messages to lists, with faults until all are sent; then all must arrive."""
        daemons = list(self._daemons.values())
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stopped_at_end(*daemons))
            async with asyncio.TaskGroup() as starting:
                for daemon in daemons:
                    starting.create_task(_begin(daemon))
            for daemon in daemons:
                client = daemon.client(reconnect_s=RECONNECT_S)
                self._clients[daemon.name] = await stack.enter_async_context(client)
            for queue, host in QUEUES.items():
                await self._clients[host].create_queue(queue, transactional=True)
                for source in SOURCES:
                    self._expected[queue, source] = []
                    self._arrived[queue, source] = []
            started = loop.time()
            async with asyncio.TaskGroup() as receiving:
                for queue in QUEUES:
                    receiving.create_task(self._receive(queue))
                async with asyncio.TaskGroup() as harm:
                    harm.create_task(self._do_harm())
                    async with asyncio.TaskGroup() as sending:
                        for source in SOURCES:
                            sending.create_task(self._send(source, messages // len(SOURCES)))
                    self._sent_all.set()
                self.report.sending_s = loop.time() - started
                await self._settle(settle_s)
                self._settled.set()
            for client in self._clients.values():
                status = await client.status()
                self.report.resent += status["resent"]
                self.report.duplicates_refused += status["duplicates_refused"]
                self.report.relayed += status["relayed"]
        self._judge()
        return self.report

    # Traffic.

    async def _send(self, source: str, messages: int) -> None:
        for first in range(0, messages, BATCH):
            batch = []
            for number in range(first, min(first + BATCH, messages)):
                queues = self._chance.choice(LISTS)
                destination = ",".join(self._name(source, queue) for queue in queues)
                body = f"{source} {number} ".encode().ljust(BODY_BYTES, b".")
                batch.append(new_message(destination, body, delivery="transactional"))
                for queue in queues:
                    self._expected[queue, source].append(number)
                self.report.copies += len(queues)
            await self._clients[source].send_many(batch)
            self.report.sent += min(BATCH, messages - first)

    async def _receive(self, queue: str) -> None:
        """Receive until all is settled, and then no message arrives for a while."""
        client = self._clients[QUEUES[queue]]
        is_last = False
        while not is_last:
            is_last = self._settled.is_set()
            async for message in client.receive_each(queue, timeout_s=QUIET_S):
                source, number, _ = message.body.decode().split(" ")
                self._arrived[queue, source].append(int(number))

    # Faults.

    async def _do_harm(self) -> None:
        """Cut one daemon off, and kill one; sometimes both at once."""
        try:
            await self._pause(0.1, 0.3)
            chance = 1.0  # both at the first time
            while not self._sent_all.is_set():
                async with asyncio.TaskGroup() as both:
                    if self._chance.random() <= chance:
                        both.create_task(self._cut(self._chance.choice(HOSTS)))
                    if self._chance.random() <= chance:
                        both.create_task(self._kill(self._chance.choice(EVERYBODY)))
                chance = 0.7
                await self._pause(0.5, 2.5)
        finally:
            for host in HOSTS:
                self._star.join(host)

    async def _cut(self, host: str) -> None:
        self._log(f"  cut {host}")
        self.report.cuts += 1
        self._star.cut(host)
        await self._pause(0.2, 3.0)
        self._star.join(host)

    async def _kill(self, host: str) -> None:
        self._log(f"  kill {host}")
        self.report.kills += 1
        daemon = self._daemons[host]
        await daemon.kill()
        await self._pause(0.0, 0.5)
        await daemon.start()

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(least_s, most_s))

    # The end.

    async def _settle(self, settle_s: float) -> None:
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(settle_s):
                await nothing_is_left(*self._clients.values())
        except TimeoutError:
            for host, client in self._clients.items():
                left = [*await client.list_queues(system=True), *await client.list_outgoing()]
                self.report.wrong += [
                    f"after {settle_s:.0f} s without harm {host} still has {each['messages']}"
                    f" messages: {each.get('destination') or each.get('name')}"
                    f" {each.get('explanation', '')}"
                    for each in left
                    if each["messages"]
                ]
        self.report.settled_s = asyncio.get_running_loop().time() - started

    def _judge(self) -> None:
        for (queue, source), expected in self._expected.items():
            arrived = self._arrived[queue, source]
            if arrived == expected:
                continue
            missing, more = set(expected) - set(arrived), len(arrived) - len(set(arrived))
            self.report.wrong.append(
                f"{queue} from {source}: {len(expected)} were for it, {len(arrived)} came;"
                f" {len(missing)} missing {sorted(missing)[:5]}, {more} doubled,"
                f" {sum(one > two for one, two in itertools.pairwise(arrived))}"
                " out of order"
            )


async def _begin(daemon: Daemon) -> None:
    await daemon.create()
    await daemon.start()


def lived(
    folder: Path,
    messages: int,
    seed: int,
    *,
    settle_s: float,
    ipv6: bool = False,
    log: Callable[[str], None] = print,
) -> Report:
    """Make a complete run with a network of its own."""
    star = Star()
    star.open()
    try:

        async def live() -> Report:
            return await World(star, folder, seed, ipv6=ipv6, log=log).run(
                messages, settle_s=settle_s
            )

        return run(live())
    finally:
        star.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.netns.relayed")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="only the result")
    chosen = parser.parse_args(arguments)
    if why := why_not():
        print(f"five daemons skipped: {why}")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="qmd-relayed-"))
    started = time.monotonic()
    report = lived(
        folder,
        chosen.messages,
        chosen.seed,
        settle_s=600.0,
        ipv6=chosen.ipv6,
        log=(lambda _: None) if chosen.quiet else print,
    )
    print(
        f"seed {chosen.seed}: {report.sent:,} messages to lists, {report.copies:,} copies;"
        f" {report.kills} kills, {report.cuts} cuts; handed over in {report.sending_s:.0f} s,"
        f" settled {report.settled_s:.0f} s later; {time.monotonic() - started:.0f} s in all"
    )
    print(
        f"since the last starts {report.relayed:,} relayed, {report.resent:,} resent,"
        f" {report.duplicates_refused:,} duplicates refused"
    )
    if not report.wrong:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print("THIS IS WRONG:", *report.wrong[:LISTED_MAX], sep="\n  ")
    print(f"logs and data are in {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
