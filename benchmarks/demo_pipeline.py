"""Demonstration: two queue managers with Spark between them, each of which is killed.

    python -m benchmarks.demo_pipeline [--keep]

    client ──orders──► A ──wire──► B ──stream──► Parquet ──stream──► B ──wire──► A ──► client

Orders go to a queue of B; one stream of Spark writes them to Parquet, and another one sends the
written orders back to a queue of A.  Meanwhile Spark is killed once, with all its processes, and
each queue manager once (SIGKILL); all are started again.  In the end every order must be in the
files and in the queue of A exactly once, and in order; then the event logs of both queue managers
are audited.
Exit code 0: that is so.  Otherwise 1: the errors are listed, and the data is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.pair import Daemon, run, stopped_at_end
from qmd.client import QueueManager, new_message
from qmd.client.errors import ClientError

ORDERS = 6_000
LINES = 4  # lines of business; each is a stream with an order of its own
PIECE = 100  # orders of one send
TIMEOUT_S = 900.0  # on an idle machine the run takes a minute
POLL_S = 0.1
RECONNECT_S = 60.0


class Demo:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.folder = folder
        self.timeout_s = timeout_s
        self._a, self._b = Daemon(folder / "a", "A"), Daemon(folder / "b", "B")
        self._driver: asyncio.subprocess.Process | None = None
        self._began_at = time.monotonic()
        self.wrong: list[str] = []

    def report(self, line: str) -> None:
        print(f"{time.monotonic() - self._began_at:5.1f} s  {line}", flush=True)

    async def run(self) -> None:
        """Run the demonstration; raise the error that stops it early."""
        a, b = self._a, self._b
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stopped_at_end(a, b))
            stack.push_async_callback(self._kill_spark)
            await asyncio.gather(self._begin(a), self._begin(b))
            at_a = await stack.enter_async_context(a.client(reconnect_s=RECONNECT_S))
            at_b = await stack.enter_async_context(b.client(reconnect_s=RECONNECT_S))
            await at_b.create_queue("orders", transactional=True)
            await at_a.create_queue("returned", transactional=True)
            self.report(f"A (process {a.pid}) and B (process {b.pid}) serve; Spark is starting")
            await self._start_spark()
            await stack.enter_async_context(asyncio.timeout(self.timeout_s))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(at_a))
                await self._break()
            self.report(f"{ORDERS:,} orders are sent")
            await self._finish(at_b)
            await _until(self._returned_all(at_a))
            self.report("all of them are back at A")
            await self._check(at_a)
            await self._audit()

    async def _begin(self, daemon: Daemon) -> None:
        await daemon.create()
        await daemon.start()

    # -- steps --

    async def _send(self, at_a: QueueManager) -> None:
        """Send the orders slowly enough that the kills come in between."""
        destination = self._b.destination("orders")
        for first in range(0, ORDERS, PIECE):
            await at_a.send_many(
                [
                    new_message(
                        destination,
                        str(number // LINES),
                        label=f"line {number % LINES}",
                        delivery="transactional",
                    )
                    for number in range(first, first + PIECE)
                ]
            )
            await asyncio.sleep(0.1)

    async def _break(self) -> None:
        """Kill each process once, while the streams are active."""
        await self._batches(2)
        self.report("kill -9: queue manager B")
        await self._b.kill()
        await self._b.start()
        await self._batches(2)
        self.report("kill -9: Spark, with all its processes; and queue manager A")
        await asyncio.gather(self._kill_spark(), self._a.kill())
        await self._a.start()
        await self._start_spark()
        await self._batches(2)

    async def _finish(self, at_b: QueueManager) -> None:
        """Let the streams read to the end, and close them."""
        await _until(self._all_at_b)
        self.report("all of them are at B; Spark reads to the end")
        await self._end_spark()
        while (await at_b.show_queue("orders"))["messages"]:
            self.report("it has not come to its end: a last run does")
            await self._kill_spark()
            await self._start_spark("--once")
            assert self._driver is not None
            if await self._driver.wait():
                raise RuntimeError(f"Spark failed:\n{self._last_words()}")
            self._driver = None

    async def _all_at_b(self) -> bool:
        """Return whether A has sent all orders to B."""
        async with self._a.client() as at_a:
            return not (await at_a.status())["outgoing_messages"]

    def _returned_all(self, at_a: QueueManager) -> Callable[[], Awaitable[bool]]:
        async def are_there() -> bool:
            return int((await at_a.show_queue("returned"))["messages"]) >= ORDERS

        return are_there

    # -- Spark --

    async def _start_spark(self, *words: str) -> None:
        with (self.folder / "spark.log").open("ab") as log:
            self._driver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.demo_pipeline_driver"),
                *(str(self._b.control_socket), str(self.folder)),
                *(self._a.destination("returned"), *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _end_spark(self) -> None:
        """End the driver; it may have failed before, or fail now."""
        driver = self._driver
        assert driver is not None
        assert driver.stdin is not None
        with contextlib.suppress(ConnectionError):
            driver.stdin.write(b"\n")
            await driver.stdin.drain()
        await driver.wait()
        self._driver = None

    async def _kill_spark(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            # Java is in the driver's process group; the workers end when Java does.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            await driver.wait()

    async def _batches(self, more: int) -> None:
        """Wait until `more` batches are written; restart a run of Spark that has failed."""
        wanted = self._filed_batches() + more
        while self._filed_batches() < wanted:
            if self._driver is not None and self._driver.returncode is not None:
                self.report("a query has failed and is begun again")
                await self._start_spark()
            await asyncio.sleep(POLL_S)

    def _filed_batches(self) -> int:
        try:
            names = os.listdir(self.folder / "lake-checkpoint" / "commits")
        except FileNotFoundError:
            return 0
        return sum(name.isdigit() for name in names)

    def _last_words(self) -> str:
        return (self.folder / "spark.log").read_text(errors="replace")[-2000:]

    # -- results --

    async def _check(self, at_a: QueueManager) -> None:
        returned = [(one.label, int(one.body)) async for one in at_a.peek_each("returned")]
        self._compare("the queue of A", returned)
        self._compare("the files", await asyncio.to_thread(filed, self.folder / "lake"))

    def _compare(self, where: str, found: list[tuple[str, int]]) -> None:
        wrong = []
        for line in range(LINES):
            numbers = [number for label, number in found if label == f"line {line}"]
            expected = list(range(ORDERS // LINES))
            if numbers == expected:
                continue
            counts = Counter(numbers)
            lost = len(set(expected) - counts.keys())
            doubled = sum(count > 1 for count in counts.values())
            wrong.append(f"{where}, line {line}: {lost} lost, {doubled} doubled, or out of order")
        self.wrong += wrong
        if not wrong:
            self.report(f"{where}: {len(found):,} orders, each once and in order")

    async def _audit(self) -> None:
        """Run the job `audit` on the event logs of both queue managers."""
        logs = self.folder / "events"
        logs.mkdir()
        for daemon in (self._a, self._b):
            await self._qmd(
                *("--config", str(daemon.config), "events", "export"),
                *(str(logs / f"{daemon.name}.parquet"), "--format", "parquet"),
            )
        report = self.folder / "report"
        code, output = await self._qmd(
            *("pipeline", "run", "audit", "--input", str(logs), "--output", str(report)),
            check=False,
        )
        if code:
            self.wrong.append(f"the audit ended with {code}: {output[-1500:]}")
            return
        verdict = next(line for line in reversed(output.splitlines()) if "see " not in line)
        self.report(f"the audit of both logs: {verdict}")

    async def _qmd(self, *words: str, check: bool = True) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "qmd", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        code = process.returncode or 0
        if check and code:
            raise RuntimeError(f"qmd {' '.join(words)} ended with {code}: {output.decode()}")
        return code, output.decode(errors="replace")


def filed(folder: Path) -> list[tuple[str, int]]:
    """Return the rows of a folder that Spark has written, in the order of the queue."""
    from pyarrow import parquet

    log = folder / "_spark_metadata"
    newest = max((int(path.stem) for path in log.glob("*.compact")), default=-1)
    lists = [log / f"{newest}.compact"] if newest >= 0 else []
    lists += [path for path in log.iterdir() if path.name.isdigit() and int(path.name) > newest]
    rows = []
    for each in lists:
        for line in each.read_text().splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            table = parquet.read_table(path).to_pydict()
            rows += zip(table["position"], table["label"], table["body"], strict=True)
    return [(label, int(body)) for _, label, body in sorted(rows)]


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(POLL_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="give up after so many seconds",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    arguments = parser.parse_args()
    from pipeline.spark.session import NoJava, require_java

    try:
        require_java()
    except NoJava as none:
        print(f"qmd: {none}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="qmd-demo-pipeline-"))
    demo = Demo(folder, arguments.timeout)
    try:
        run(demo.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    except (TimeoutError, RuntimeError, ClientError, ExceptionGroup) as failure:
        demo.wrong.append(f"it did not come to its end: {failure!r}")
    if demo.wrong:
        print("\n".join(demo.wrong))
        print(f"the data is in {folder}")
        return 1
    demo.report("nothing was lost, nothing came twice, and all is in order")
    if arguments.keep:
        print(f"the data is in {folder}")
    else:
        report = Path(tempfile.mkdtemp(prefix="qmd-demo-report-"))
        shutil.copytree(folder / "report", report, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        demo.report(f"the audit's report, for a browser: {report / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
