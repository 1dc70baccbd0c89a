"""Random kills of drivers, workers and the queue manager: every message must arrive once.

    python -m tests.pipeline.kills [--kills 200] [--minutes N] [--seed N] [--cluster] [--standby N]

Two streams run continuously: from one queue to Parquet files, and from another one to a third
queue; a producer sends to both.  A kill is a SIGKILL of

    driver      the driver, Java and Python; another one continues with its checkpoint
    daemon      the queue manager; it is restarted at once
    worker      a Python process of Spark that reads or writes
    executor    with --cluster: the Java process of an executor, with its descendants; a
                standalone master with two workers starts another one

Spark starts slowly.  Therefore a started driver stands by, touches nothing, and takes over as soon
as the previous one is killed; the other kinds of kills fill the time that its successor needs.

With --minutes the kills end after that time.  In the end all messages are read, and every message
of every stream must be in the files and in the third queue exactly once, and in order; the other
queues must be empty.

The last line gives the number of kills of each kind and their outcomes.  The exit code is 0 when
every message arrived once and in order, 1 when one did not, and 2 without a result: the run was
interrupted, or a process did not start within minutes.  No process is left running.

"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qmd.client import connect
from tests.pipeline.cluster import Cluster
from tests.pipeline.kill_driver import CHECKPOINTS, finish_streams, start_streams
from tests.pipeline.kill_processes import (
    BATCH_S,
    STREAMS,
    Driver,
    NotJudged,
    Producer,
    command_line,
    descendants,
)
from tests.process.harness import Daemon

DRAIN_S = 1800.0
STALLS_MAX = 5  # drivers in one run without a batch in that time
KINDS = ("driver", "daemon", "worker", "executor")


class NotExact(AssertionError):
    """A message is lost, duplicated or out of order."""


class Kills:
    """One run in a folder of its own.

    `standby` is the number of drivers that stand by, `pause_s` the time between two batches.
    `session` reads what is left at the end; without it, another driver does.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        cluster: bool = False,
        standby: int = 0,
        pause_s: float = 0.0,
        session: Any = None,
    ) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.daemon = Daemon(folder / "a")
        self.daemon.start_s = BATCH_S
        self.socket = self.daemon.folder / "qmd.sock"
        # Drivers that stand by have executors too.
        workers = 2 * (1 + standby)
        self.cluster = Cluster(folder / "cluster", workers=workers) if cluster else None
        self.driver: Driver | None = None
        self.standby: list[Driver] = []
        self.standby_wanted = standby
        self.pause_s = pause_s
        self.session = session
        self.starts = 0
        self.done: Counter[str] = Counter()

    # -- the driver --

    def start_driver(self, *, once: bool = False) -> None:
        ready = [] if once else [each for each in self.standby if each.is_ready]
        if ready:
            self.driver = ready[0]
            self.standby.remove(ready[0])
            self.driver.go()
        else:
            self.driver = self._started("--once" if once else "")
        if not once:
            self._fill_up()

    def _started(self, word: str) -> Driver:
        self.starts += 1
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"
        }
        master = self.cluster.master if self.cluster else "local[2,20]"
        return Driver(
            [
                *(str(self.socket), str(self.folder), "--master", master),
                *("--seed", str(self.starts), "--pause", str(self.pause_s)),
                *([word] if word else []),
            ],
            self.folder / f"driver{self.starts}.log",
            {**environment, **(self.cluster.environment if self.cluster else {})},
        )

    def _fill_up(self) -> None:
        """Start drivers that stand by; some may have ended by themselves."""
        for each in [each for each in self.standby if not each.is_alive]:
            each.kill()
            self.standby.remove(each)
        while len(self.standby) < self.standby_wanted:
            self.standby.append(self._started("--wait"))

    def kill_driver(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.log.unlink()
        self.driver = None

    def committed(self) -> list[int]:
        """Return the last batch of each stream that its sink has committed."""
        found = []
        for checkpoint in CHECKPOINTS:
            names = []
            with contextlib.suppress(FileNotFoundError):
                names = os.listdir(self.folder / checkpoint / "commits")
            found.append(max((int(name) for name in names if name.isdigit()), default=-1))
        return found

    def wait_for_batches(self, more: int) -> None:
        """Wait until both streams have finished `count` batches; restart a failed driver."""
        wanted = [batch + more for batch in self.committed()]
        deadline = time.monotonic() + BATCH_S
        while any(map(operator.lt, self.committed(), wanted)):
            if self.driver is not None and not self.driver.is_alive:
                self._begin_again()
            if time.monotonic() > deadline:
                reported = f"no batch for {BATCH_S:.0f} s:\n{self.log()}"
                self.done["no batch in time"] += 1
                if self.done["no batch in time"] > STALLS_MAX:
                    raise NotJudged(reported)
                print(reported, flush=True)
                self._begin_again()
                deadline = time.monotonic() + BATCH_S
            time.sleep(0.05)

    def _begin_again(self) -> None:
        """Start a driver again: a query fails after a long outage of its daemon or many kills."""
        self.done["driver ended by itself"] += 1
        self.kill_driver()
        self.start_driver()

    def log(self) -> str:
        if self.driver is None:
            return ""
        return self.driver.log.read_text(errors="replace")[-4000:]

    # -- killing --

    def kill(self, what: str) -> None:
        """Kill a process; count the kill if there was one."""
        if what == "driver":
            self.kill_driver()
            self.start_driver()
        elif what == "daemon":
            self.daemon.restart()
        else:
            self._kill_one("pyspark" if what == "worker" else "CoarseGrainedExecutorBackend")
        self.done[what] += 1

    def _kill_one(self, words: str) -> None:
        """Kill a process of the active driver with these words in its command line."""
        deadline = time.monotonic() + BATCH_S
        while not (found := self._processes(words)):
            if time.monotonic() > deadline:
                raise NotJudged(f"no {words} to kill:\n{self.log()}")
            if self.driver is not None and not self.driver.is_alive:
                self._begin_again()
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(found), signal.SIGKILL)

    def _processes(self, words: str) -> list[int]:
        assert self.driver is not None
        ours = descendants(self.driver.pid)
        if self.cluster is not None:
            name = self.driver.application
            executors = [
                pid
                for each in self.cluster.pids
                for pid in descendants(each)
                if name and name in command_line(pid)
            ]
            ours += [pid for each in executors for pid in [each, *descendants(each)]]
        found = [pid for pid in ours if words in command_line(pid)]
        if "CoarseGrained" not in words:
            found = [pid for pid in found if "java" not in command_line(pid).split("\0")[0]]
        return found

    def run(
        self,
        kills: int,
        kinds: list[str],
        *,
        for_s: float = float("inf"),
        report: Any = lambda text: None,
    ) -> None:
        """Run so many kills, or fewer when the time is over.

        Raises NotExact, with all errors; after any other exception there is no result.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            if self.cluster is not None:
                stack.enter_context(self.cluster)
            self.daemon.start()
            for queue in ("to_lake", "to_copy", "out"):
                self.daemon.create(queue, transactional=True)
            producer = Producer(self.socket, pause_s=max(0.02, self.pause_s / 10))
            producer.start()
            stack.callback(producer.stopping.set)
            self.start_driver()
            self.wait_for_batches(2)
            began = time.monotonic()
            ends = began + for_s
            for number in range(kills):
                if time.monotonic() > ends:
                    break
                # The kinds alternate, so that a short run has them all.
                what = kinds[number] if number < len(kinds) else self._any(kinds)
                time.sleep(self.chance.random() * 1.5)
                self.kill(what)
                if self.chance.random() < 0.7:  # otherwise the next kill would follow immediately
                    self.wait_for_batches(1)
                minutes = (time.monotonic() - began) / 60
                report(
                    f"{number + 1} of {kills} after {minutes:.1f} min: {what},"
                    f" batches {self.committed()}, {2 * STREAMS * producer.sent} sent"
                )
            self.wait_for_batches(1)
            sent = producer.end()
            report(f"{2 * STREAMS * sent} messages were sent; reading all that is left")
            self._drain()
            self.verify(sent)
            report(
                f"exact: {2 * STREAMS * sent} messages, each once and in order; {self.summary()}"
            )

    def summary(self) -> str:
        kills = {kind: self.done[kind] for kind in KINDS if self.done[kind]}
        beside = {what: count for what, count in self.done.items() if what not in KINDS}
        return f"{sum(kills.values())} kills {kills}" + (
            f", beside them {beside}" if beside else ""
        )

    def _any(self, kinds: list[str]) -> str:
        """Choose a kind: the driver if another one can take over at once, otherwise a fast one."""
        self._fill_up()
        if any(each.is_ready for each in self.standby) and "driver" in kinds:
            return "driver"
        return self.chance.choice([kind for kind in kinds if kind != "driver"] or kinds)

    def _drain(self) -> None:
        self.kill_driver()
        for each in self.standby:
            each.kill()
        self.standby.clear()
        if self.session is not None:
            chance = random.Random(self.starts)
            queries = start_streams(self.session, self.socket, self.folder, chance, once=True)
            finish_streams(queries, self.folder)
            assert (self.daemon.count("to_lake"), self.daemon.count("to_copy")) == (0, 0)
            return
        deadline = time.monotonic() + DRAIN_S
        while True:
            self.start_driver(once=True)
            assert self.driver is not None
            try:
                code = self.driver.process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as late:
                raise NotJudged(f"the last run does not end:\n{self.log()}") from late
            last, self.driver = self.driver, None
            last.kill()  # possible remains of the killed process
            if code != 0:
                # Spark gives its Python processes ten seconds to start, also on a busy machine.
                self.done["last run failed"] += 1
            elif self.daemon.count("to_lake") == 0 and self.daemon.count("to_copy") == 0:
                return
            if time.monotonic() > deadline:
                reported = last.log.read_text(errors="replace")[-4000:]
                raise NotJudged(f"messages are left in the queues:\n{reported}")

    def _end(self) -> None:
        for each in [*self.standby, *([self.driver] if self.driver else [])]:
            each.kill()
        self.standby.clear()
        self.daemon.kill()

    # -- results --

    def verify(self, sent: int) -> None:
        wrong = [
            *(f"files: {text}" for text in differences(self.filed(), sent)),
            *(f"third queue: {text}" for text in differences(self.copied(), sent)),
        ]
        if wrong:
            raise NotExact("\n".join(wrong[:50]))

    def filed(self) -> Iterator[tuple[str, int]]:
        """Yield the rows that readers of the Parquet folder see, in order."""
        from pyarrow import parquet

        rows = []
        for path in committed_files(self.folder / "lake"):
            columns = parquet.read_table(path, columns=["position", "label", "body"]).to_pydict()
            rows += zip(columns["position"], columns["label"], columns["body"], strict=True)
        for _, label, body in sorted(rows):
            yield label, int(body)

    def copied(self) -> Iterator[tuple[str, int]]:
        return iter(asyncio.run(self._copied()))

    async def _copied(self) -> list[tuple[str, int]]:
        async with connect(self.socket) as qm:
            return [(each.label, int(each.body)) async for each in qm.peek_each("out")]


def differences(found: Iterator[tuple[str, int]], sent: int) -> Iterator[str]:
    """Yield the lost, duplicated and unordered messages."""
    streams: dict[str, list[int]] = {f"stream {number}": [] for number in range(STREAMS)}
    for label, number in found:
        streams.setdefault(label, []).append(number)
    for label, numbers in streams.items():
        if numbers == list(range(sent)):
            continue
        counts = Counter(numbers)
        lost = sorted(set(range(sent)) - counts.keys())
        doubled = sorted(number for number, count in counts.items() if count > 1)
        yield f"{label}: lost {lost[:9]}, doubled {doubled[:9]}, {len(numbers)} of {sent}"
        if not lost and not doubled:
            at = next(at for at, number in enumerate(numbers) if number != at)
            yield f"{label}: out of order from {numbers[max(0, at - 2) : at + 3]} on"


def committed_files(folder: Path) -> list[Path]:
    """Return the files of Spark's own list, which its readers see; kills leave others."""
    log = folder / "_spark_metadata"
    compact = [name for name in os.listdir(log) if name.endswith(".compact")]
    newest = max((int(name.removesuffix(".compact")) for name in compact), default=-1)
    names = [f"{newest}.compact"] if newest >= 0 else []
    names += [name for name in os.listdir(log) if name.isdigit() and int(name) > newest]
    found = []
    for name in names:
        for line in (log / name).read_text().splitlines()[1:]:
            found.append(Path(json.loads(line)["path"].removeprefix("file://")))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="kill for so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--standby", type=int, default=1, help="drivers that wait for their turn")
    arguments = parser.parse_args()
    kinds = list(KINDS if arguments.cluster else KINDS[:-1])
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="qmd-kills-") as folder:
        run = Kills(
            Path(folder), arguments.seed, cluster=arguments.cluster, standby=arguments.standby
        )
        signal.signal(signal.SIGTERM, _interrupted)
        try:
            run.run(
                arguments.kills,
                kinds,
                for_s=60 * arguments.minutes,
                report=lambda text: print(text, flush=True),
            )
        except NotExact as failure:
            print(f"{failure}\nNOT EXACT: {run.summary()}", flush=True)
            return 1
        except (Exception, KeyboardInterrupt) as failure:
            traceback.print_exc()
            print(f"NOT JUDGED ({type(failure).__name__}): {run.summary()}", flush=True)
            return 2
    return 0


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
