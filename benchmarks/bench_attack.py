"""Waiting times of other clients during attacks on the daemon, compared with quiet times.

    python -m benchmarks.bench_attack [--seconds S] [--rounds N] [--only WORD] [--apart] [--json]

A real daemon serves two well-behaved clients all the time: a queue manager that delivers
recoverable messages one by one, each until it is acknowledged, and an application that sends one by
one, each until it is on disk.  Quiet turns and attacks alternate, and the p99 of an attack is
divided by that of the quiet turns beside it.  The attacks are those of
tests/process/test_attacks.py, repeated.

Attackers are processes of the lowest priority (nice 19), because real ones would be on other
computers.  "a busy neighbour" shows the processor time that they take nevertheless: it counts in a
loop and sends nothing.  With `--apart` attackers have a processor of their own, and the daemon and
the measured clients share the other ones, also in quiet turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.process import test_attacks as attacks
from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts, empty_queues
from tests.process.processes import busy_s
from tests.process.remote import RemoteQueueManager
from tests.process.watch import SIDE

Act = Callable[..., None]

PAUSE_S = 0.002
RATIO_MAX = 2.0
_context = multiprocessing.get_context("forkserver")


def count_on(port: int) -> None:
    """Count in a loop; attack nothing."""
    for _ in range(10_000_000):
        pass


def attacks_on(daemon: Daemon) -> dict[str, tuple[Act, tuple[object, ...]]]:
    """Return each attack by name: the function to repeat, and its arguments."""
    port, path = daemon.port, daemon.folder / "qmd.sock"
    few = 2_000
    return {
        "a busy neighbour": (count_on, (port,)),
        "connections that send nothing": (attacks.stay_silent, (port, few)),
        "sessions that come and go": (attacks.connect_and_leave, (port, few)),
        "senders of single bytes": (attacks.send_byte_by_byte, (port, 20)),
        "giant packets that are announced": (attacks.announce_much, (port, 20, 300_000)),
        "peers that never read": (attacks.never_read, (port, 4, 2)),
        **{
            f"a flood of {kind}": (attacks.flood, (port, kind, 1_000_000))
            for kind in ("unknown queue", "order acks", "refused", "gaps", "duplicates")
        },
        **{
            f"{many} floods of {kind}": (attacks.flood_over_many, (port, many, kind, 1_000_000))
            for kind in ("unknown queue", "refused")
            for many in (200, 900)
        },
        "garbage on the control socket": (attacks.send_garbage, (path, 300)),
        "requests with unread answers": (attacks.ask_and_never_read, (path, 20_000)),
    }


def _attack(act: Act, arguments: tuple[object, ...], processors: set[int]) -> None:
    os.nice(19)
    os.sched_setaffinity(0, processors)
    os.close(2)  # hide the errors after the daemon closes the connection
    while True:
        with contextlib.suppress(OSError, EOFError, AssertionError):
            act(*arguments)


@contextlib.contextmanager
def attacked(act: Act, arguments: tuple[object, ...], processors: set[int]) -> Iterator[None]:
    process = _context.Process(target=_attack, args=(act, arguments, processors), daemon=True)
    process.start()
    try:
        time.sleep(0.5)  # let the attack begin
        yield
    finally:
        process.kill()
        process.join()


def share_out(daemon: Daemon, *, apart: bool) -> set[int]:
    """Return the attackers' processors; with `apart`, keep the daemon and this process off them."""
    every = sorted(os.sched_getaffinity(0))
    if not apart:
        return set(every)
    if len(every) < 2:
        raise SystemExit("--apart needs two processors")
    attackers, others = {every[0]}, set(every[1:])
    assert daemon.process is not None
    os.sched_setaffinity(0, others)
    for thread in os.listdir(f"/proc/{daemon.process.pid}/task"):
        os.sched_setaffinity(int(thread), others)
    return attackers


@dataclass(slots=True)
class WaitingTimes:
    """Durations of each operation in seconds, and the daemon's processor time meanwhile."""

    busy: float = 0.0  # CPU seconds of each second
    delivery_s: list[float] = field(default_factory=list)
    sending_s: list[float] = field(default_factory=list)

    def p99_ms(self) -> tuple[float, float]:
        return _p99_ms(self.delivery_s), _p99_ms(self.sending_s)


def _p99_ms(times_s: list[float]) -> float:
    ordered = sorted(times_s)
    return 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


class RegularClients:
    """The well-behaved clients, which must be served during attacks."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._path = daemon.folder / "qmd.sock"
        self._remote = RemoteQueueManager()
        self._peer = self._remote.connect(daemon.port)
        self._client = ControlClient(self._path)

    def wait(self, seconds: float) -> WaitingTimes:
        waits = WaitingTimes()
        began_s, busy_before_s = time.monotonic(), busy_s(self._daemon.pid)
        end = began_s + seconds
        while (began := time.monotonic()) < end:
            self._peer.send(self._remote.message(SIDE, bytes(100), recoverable=True), timeout_s=30)
            self._peer.wait_stored(30)
            between = time.monotonic()
            self._client.done("send", [[f"private$\\{SIDE}", bytes(100)]])
            waits.delivery_s.append(between - began)
            waits.sending_s.append(time.monotonic() - between)
            time.sleep(PAUSE_S)
        waits.busy = (busy_s(self._daemon.pid) - busy_before_s) / (time.monotonic() - began_s)
        return waits

    def close(self) -> None:
        self._client.close()
        self._remote.close()


def measure(
    seconds: float,
    rounds: int,
    only: str,
    show: Callable[[str, dict[str, Any]], None],
    *,
    apart: bool = False,
) -> dict[str, Any]:
    """Return for each attack the ratios of its rounds, and their times in milliseconds."""
    found: dict[str, Any] = {}
    hosts = Hosts()
    try:
        daemon = hosts.daemon(start=True)
        daemon.create(SIDE, "plain")
        daemon.create("orders", transactional=True)
        others = RegularClients(daemon)
        processors = share_out(daemon, apart=apart)
        others.wait(1.0)
        for name, (act, arguments) in attacks_on(daemon).items():
            if only not in name:
                continue
            row = found[name] = {"delivery": [], "sending": [], "ms": [], "busy": []}
            before = others.wait(seconds)
            for _ in range(rounds):
                with attacked(act, arguments, processors):
                    under = others.wait(seconds)
                time.sleep(0.3)
                empty_queues(daemon)
                after = others.wait(seconds)
                quiet = WaitingTimes(
                    (before.busy + after.busy) / 2,
                    before.delivery_s + after.delivery_s,
                    before.sending_s + after.sending_s,
                )
                before = after
                row["busy"].append((round(quiet.busy, 2), round(under.busy, 2)))
                for kind, calm, now in zip(
                    ("delivery", "sending"), quiet.p99_ms(), under.p99_ms(), strict=True
                ):
                    row[kind].append(now / calm)
                    row["ms"].append((kind, round(calm, 2), round(now, 2)))
            show(name, row)
        others.close()
        return found
    finally:
        hosts.close()


def _show(name: str, row: dict[str, Any]) -> None:
    medians = [statistics.median(row[kind]) for kind in ("delivery", "sending")]
    figures = ", ".join(f"{kind} {calm} -> {now}" for kind, calm, now in row["ms"][:2])
    figures += ", busy {} -> {}".format(*row["busy"][0])
    over = "  more than twice" if max(medians) > RATIO_MAX else ""
    print(f"{name:36} {medians[0]:9.2f} {medians[1]:9.2f}   {figures}{over}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_attack")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--apart", action="store_true", help="attackers have their own processor")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    arguments_of_both = (chosen.seconds, chosen.rounds, chosen.only)
    if chosen.json:
        print(json.dumps(measure(*arguments_of_both, lambda *_: None, apart=chosen.apart)))
        return 0
    print(f"{'p99 under attack / in quiet':36} {'delivery':>9} {'sending':>9}   quiet -> now, ms")
    measure(*arguments_of_both, _show, apart=chosen.apart)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
