"""Demonstration: two queue managers, 22,000 messages, four kills, and repeated network cuts.

    python -m benchmarks.demo

    client ──20,000 transactional──► A ──wire──► B ──► client
    client ◄── A ◄──wire── B ◄──1,000 recoverable and 1,000 express── client

A and B are processes of their own, and the wire is a TCP proxy.  While the messages travel, each
queue manager is killed (SIGKILL) and started again twice, and the wire is cut repeatedly.
Exit code 0: every transactional message arrived exactly once and in order, every recoverable one
exactly once, and no express one twice.  Otherwise 1: the errors are listed, and the data is kept.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks.pair import Daemon, nothing_is_left, run, stopped_at_end
from benchmarks.progress import Display, Progress
from benchmarks.tally import Tally, delivery_of
from benchmarks.verdict import Outcome, broken_promises, reasons, table, verdict
from benchmarks.wire_cutter import WireCutter
from qmd.client import QueueManager

TRANSACTIONAL_MESSAGES = 20_000
RECOVERABLE_MESSAGES = 1_000
EXPRESS_MESSAGES = 1_000
BREAKS = ("cut", "kill A", "cut", "kill B", "cut", "kill A", "cut", "kill B", "cut")
# Transactional messages between two breaks; each break comes while they travel.
STAGE_MESSAGES = TRANSACTIONAL_MESSAGES // (len(BREAKS) + 1)

TIMEOUT_S = 45.0  # the run must end within a minute, also if it fails
RECONNECT_S = 10.0
QUIET_S = 0.5  # after the end: wait for a duplicate

EXIT_OK = 0
EXIT_WRONG = 1
EXIT_INTERRUPTED = 130


class Demo:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.outcome = Outcome(
            Tally("transactional", TRANSACTIONAL_MESSAGES),
            Tally("recoverable", RECOVERABLE_MESSAGES),
            Tally("express", EXPRESS_MESSAGES),
        )
        self._progress = Progress(2 * TRANSACTIONAL_MESSAGES)  # each is sent and delivered
        self._breaks = Progress(len(BREAKS))
        self.display = Display(self._progress)
        self._a, self._b = Daemon(folder / "a", "A"), Daemon(folder / "b", "B")
        self._wires = [WireCutter(self._b.port), WireCutter(self._a.port)]

    async def run(self) -> None:
        """Run the demonstration; raise the error that stops it early."""
        a, b = self._a, self._b
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stopped_at_end(a, b))
            await asyncio.gather(_create_and_start(a), _create_and_start(b))
            for wire in self._wires:
                await stack.enter_async_context(wire)
            at_a = await stack.enter_async_context(a.client(reconnect_s=RECONNECT_S))
            at_b = await stack.enter_async_context(b.client(reconnect_s=RECONNECT_S))
            await at_b.create_queue("orders", transactional=True)
            await at_a.create_queue("replies")
            self.display.report(f"A (process {a.pid}) and B (process {b.pid}) serve")
            await stack.enter_async_context(asyncio.timeout(TIMEOUT_S))
            await self._exchange(at_a, at_b)

    async def _exchange(self, at_a: QueueManager, at_b: QueueManager) -> None:
        started_s = self.display.elapsed_s
        settled = asyncio.Event()
        async with asyncio.TaskGroup() as receiving:
            drawing = receiving.create_task(self.display.keep_drawing())
            receiving.create_task(self._receive(at_a, "replies", settled))
            receiving.create_task(self._receive(at_b, "orders", settled))
            async with asyncio.TaskGroup() as sending:
                sending.create_task(self._send_transactional(at_a))
                sending.create_task(self._send_plain(at_b))
                sending.create_task(self._break({"A": at_a, "B": at_b}))
            await nothing_is_left(at_a, at_b)
            self.outcome.seconds = self.display.elapsed_s - started_s
            settled.set()
            for client in (at_a, at_b):
                await self._add_counters(client)
            drawing.cancel()

    # Sending and receiving.

    async def _send_transactional(self, at_a: QueueManager) -> None:
        tally = self.outcome.transactional
        async with at_a.sender(self._b.destination("orders", port=self._wires[0].port)) as sender:
            for number in range(tally.total):
                await self._breaks.reach(number // STAGE_MESSAGES / len(BREAKS))
                confirmed = await sender.send(tally.body(number), delivery=tally.delivery)
                confirmed.add_done_callback(partial(self._confirmed, tally, number))

    async def _send_plain(self, at_b: QueueManager) -> None:
        """Send recoverable and express messages in turns, in step with the transactional ones."""
        kinds = (self.outcome.recoverable, self.outcome.express)
        total = RECOVERABLE_MESSAGES + EXPRESS_MESSAGES
        async with at_b.sender(self._a.destination("replies", port=self._wires[1].port)) as sender:
            for index in range(total):
                await self._progress.reach(index / total)
                tally, number = kinds[index % 2], index // 2
                tally.kills_before[number] = self.outcome.kills
                confirmed = await sender.send(tally.body(number), delivery=tally.delivery)
                confirmed.add_done_callback(partial(self._confirmed, tally, number))

    def _confirmed(self, tally: Tally, number: int, confirmed: asyncio.Future[str]) -> None:
        if not confirmed.cancelled() and confirmed.exception() is None:
            tally.confirmed(number, confirmed.result())
            if tally is self.outcome.transactional:
                self._progress.advance()

    async def _receive(self, client: QueueManager, queue: str, settled: asyncio.Event) -> None:
        """Receive until all is settled, and no message arrives for a while."""
        tallies: dict[str, Tally] = {tally.delivery: tally for tally in self.outcome.tallies}
        is_last = False
        while not is_last:
            is_last = settled.is_set()
            async for message in client.receive_each(queue, timeout_s=QUIET_S):
                tally = tallies.get(delivery_of(message.body), self.outcome.transactional)
                tally.arrived(message.body, message.id)
                if tally is self.outcome.transactional:
                    self._progress.advance()

    # Breaks.

    async def _break(self, clients: dict[str, QueueManager]) -> None:
        for stage, what in enumerate(BREAKS):
            await self._progress.reach((stage + 0.5) / (len(BREAKS) + 1))
            if what == "cut":
                await self._cut()
            else:
                daemon = self._a if what == "kill A" else self._b
                await self._kill(daemon, clients[daemon.name])
            self._breaks.advance()

    async def _cut(self) -> None:
        await self._wires[0].connected()
        connections = sum(wire.cut() for wire in self._wires)
        self.outcome.cuts += connections
        self.display.report(f"cut the wire: {connections} connections aborted on both sides")

    async def _kill(self, daemon: Daemon, client: QueueManager) -> None:
        await self._add_counters(client)  # the next process counts from 0
        pid, killed_s = daemon.pid, self.display.elapsed_s
        self.outcome.kills += 1
        await daemon.kill()
        self.display.report(f"killed {daemon.name} (process {pid})")
        await daemon.start()
        took_s = self.display.elapsed_s - killed_s
        self.display.report(
            f"{daemon.name} serves again after {took_s:.1f} s (process {daemon.pid})"
        )

    async def _add_counters(self, client: QueueManager) -> None:
        status = await client.status()
        self.outcome.resent += status["resent"]
        self.outcome.duplicates_refused += status["duplicates_refused"]


async def _create_and_start(daemon: Daemon) -> None:
    await daemon.create()
    await daemon.start()


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="qmd-demo-"))
    demo = Demo(folder)
    wrong: list[str] = []
    try:
        run(demo.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        shutil.rmtree(folder, ignore_errors=True)
        demo.display.clear()
        print("interrupted: both queue managers were ended, and their data is removed")
        return EXIT_INTERRUPTED
    except Exception as failure:
        demo.outcome.seconds = demo.display.elapsed_s
        wrong = reasons(failure)
    demo.display.clear()
    wrong += broken_promises(demo.outcome)
    print("\n".join(["", *table(demo.outcome), "", *verdict(demo.outcome, wrong, folder)]))
    if wrong:
        return EXIT_WRONG
    shutil.rmtree(folder)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
