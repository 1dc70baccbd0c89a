"""Waiting times of other clients during attacks on the daemon, compared with quiet times.

    python -m benchmarks.attacks [--seconds S] [--rounds N] [--only WORD] [--real-time] [--apart]

A real daemon serves three well-behaved clients all the time: a queue manager that delivers
recoverable messages one by one, each until it is acknowledged; an application that sends one by
one, each until it is on disk; and an application that receives them one by one, each until its
removal is on disk.  Quiet turns and attacks alternate, and the p50 and the p99 of an attack are
divided by those of the quiet turns beside it.  The attacks are those of
tests/process/test_attacks.py, repeated, and those of attackers.py.

Attackers are processes of the lowest priority (nice 19), because real ones would be on other
computers.  "a busy neighbour" shows the processor time that they take nevertheless: it counts in a
loop and sends nothing.  With `--apart` attackers have a processor of their own, and the daemon and
the measured clients share the other ones, also in quiet turns.

With `--real-time`, which needs root, the daemon and the measured clients go before all other
processes of the machine, so that other work on it does not count. Attackers then have the highest
ordinary priority, and go before that other work too. Use it: without it p99 is mostly the time for
which others have the processor.
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

from benchmarks import attackers
from tests.process import test_attacks as attacks
from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts, empty_queues, free_port
from tests.process.processes import busy_s
from tests.process.remote import RemoteQueueManager
from tests.process.watch import SIDE

Act = Callable[..., None]

KINDS = ("delivery", "sending", "receiving")
OTHER_USER = 64_001
PAUSE_S = 0.002
RATIO_MAX = 2.0
_context = multiprocessing.get_context("forkserver")


def attacks_on(
    daemon: Daemon, ping_port: int, tls_port: int
) -> dict[str, tuple[Act, tuple[object, ...]]]:
    """Return each attack by name: the function to repeat, and its arguments."""
    port, path = daemon.port, daemon.folder / "qmd.sock"
    few = 2_000
    return {
        "a busy neighbour": (attackers.count_on, (port,)),
        "connections that send nothing": (attacks.stay_silent, (port, few)),
        "sessions that come and go": (attacks.connect_and_leave, (port, few)),
        "senders of single bytes": (attacks.send_byte_by_byte, (port, 20)),
        "giant packets that are announced": (attacks.announce_much, (port, 20, 300_000)),
        "50 senders of 4 MB": (attackers.send_giants, (port, 50, "plain")),
        "50 senders of 4 MB to no queue": (attackers.send_giants, (port, 50, "nowhere")),
        "all sessions": (attackers.hold_sessions, (port, 1200)),
        "120 messages a second with 100 administration queues each": (
            attackers.ask_for_acknowledgments,
            (port, 120, 100),
        ),
        "handshakes of TLS": (attackers.begin_tls, (tls_port, 64)),
        "pings": (attackers.ping, (port, ping_port)),
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
        "an application that sends much": (attackers.send_much, (path, OTHER_USER, 4, 100)),
        "one over 200 connections": (attackers.send_much, (path, OTHER_USER, 200, 100)),
        "one that sends 4 MB each": (attackers.send_much, (path, OTHER_USER, 8, 4_000_000)),
        "one with 80,000 receives": (attackers.wait_for_messages, (path, OTHER_USER, 20)),
        "one with 1,000 silent clients": (attackers.come_and_go, (path, OTHER_USER, 1_000)),
    }


def _attack(
    act: Act, arguments: tuple[object, ...], processors: set[int], *, real_time: bool
) -> None:
    if real_time:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # other work on this machine is no help
    else:
        os.nice(19)
    os.sched_setaffinity(0, processors)
    os.close(2)  # hide the errors after the daemon closes the connection
    while True:
        try:
            act(*arguments)
        except Exception:  # the daemon has closed its connection, for example
            time.sleep(0.01)


@contextlib.contextmanager
def attacked(
    act: Act, arguments: tuple[object, ...], processors: set[int], *, real_time: bool
) -> Iterator[None]:
    process = _context.Process(
        target=_attack,
        args=(act, arguments, processors),
        kwargs={"real_time": real_time},
        daemon=True,
    )
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


def go_first(daemon: Daemon) -> None:
    """Give this process and the daemon a real-time priority: neither waits for other processes.

    Otherwise the figures are those of a busy machine, not of the daemon.  Raises PermissionError.
    """
    assert daemon.process is not None
    for thread in (0, *map(int, os.listdir(f"/proc/{daemon.process.pid}/task"))):
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


@dataclass(slots=True)
class WaitingTimes:
    """Durations of each operation in seconds, and the daemon's processor time meanwhile."""

    busy: float = 0.0  # CPU seconds of each second
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def ms(self, kind: str, part: float) -> float:
        """Return a percentile of an operation in milliseconds."""
        ordered = sorted(self.seconds[kind])
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    def __add__(self, other: WaitingTimes) -> WaitingTimes:
        seconds = {kind: self.seconds[kind] + other.seconds[kind] for kind in KINDS}
        return WaitingTimes((self.busy + other.busy) / 2, seconds)


class RegularClients:
    """The well-behaved clients, which must be served during attacks."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._path = daemon.folder / "qmd.sock"
        self._remote = RemoteQueueManager()
        self._peer = self._remote.connect(daemon.port)
        self._client = ControlClient(self._path)
        self._receiver = ControlClient(self._path)

    def wait(self, seconds: float) -> WaitingTimes:
        waits = WaitingTimes()
        began_s, busy_before_s = time.monotonic(), busy_s(self._daemon.pid)
        end = began_s + seconds
        while (began := time.monotonic()) < end:
            times = [began]
            for act in (self._deliver, self._send, self._receive):
                act()
                times.append(time.monotonic())
            for kind, start, stop in zip(KINDS, times, times[1:], strict=False):
                waits.seconds[kind].append(stop - start)
            time.sleep(PAUSE_S)
        waits.busy = (busy_s(self._daemon.pid) - busy_before_s) / (time.monotonic() - began_s)
        return waits

    def _deliver(self) -> None:
        self._peer.send(self._remote.message(SIDE, bytes(100), recoverable=True), timeout_s=30)
        self._peer.wait_stored(30)

    def _send(self) -> None:
        self._client.done("send", [[f"private$\\{SIDE}", bytes(100)]])

    def _receive(self) -> None:
        queue = f"private$\\{SIDE}"
        taken = self._receiver.done("take", queue, 2, 10.0)
        self._receiver.done("remove", queue, [each[0] for each in taken])

    def close(self) -> None:
        self._client.close()
        self._receiver.close()
        self._remote.close()


def measure(
    seconds: float,
    rounds: int,
    only: str,
    show: Callable[[str, dict[str, Any]], None],
    *,
    apart: bool = False,
    real_time: bool = False,
) -> dict[str, Any]:
    """Return for each attack the ratios of its rounds, and their times in milliseconds."""
    found: dict[str, Any] = {}
    hosts = Hosts()
    try:
        ping_port, tls_port = free_port(), free_port()
        daemon = hosts.daemon(
            listen={"ping": True, "ping_port": ping_port},
            tls={"enabled": True, "port": tls_port},
            control={"mode": "0666"},
            quotas={"queue": "500MB", "computer": "2GB"},
        )
        for folder in (daemon.folder, daemon.folder.parent):
            folder.chmod(0o711)  # an attacker is another user
        daemon.create(SIDE, "plain", "flood", "empty")
        daemon.create("orders", transactional=True)
        others = RegularClients(daemon)
        processors = share_out(daemon, apart=apart)
        if real_time:
            go_first(daemon)
        others.wait(1.0)
        for name, (act, arguments) in attacks_on(daemon, ping_port, tls_port).items():
            if not any(each in name for each in only.split(",")):
                continue
            row = found[name] = {kind: [] for kind in (*KINDS, "busy")}
            before = others.wait(seconds)
            for _ in range(rounds):
                with attacked(act, arguments, processors, real_time=real_time):
                    under = others.wait(seconds)
                time.sleep(0.3)
                empty_queues(daemon)
                after = others.wait(seconds)
                quiet, before = before + after, after
                row["busy"].append((quiet.busy, under.busy))
                for kind in KINDS:
                    row[kind].append(
                        [each.ms(kind, part) for each in (quiet, under) for part in (0.5, 0.99)]
                    )
            show(name, row)
        others.close()
        return found
    finally:
        hosts.close()


def ratio(row: dict[str, Any], kind: str, part: int) -> float:
    """Return the median of the rounds: p50 (part 0) or p99 (part 1), divided by the quiet one."""
    return statistics.median(ms[2 + part] / ms[part] for ms in row[kind])


def _show(name: str, row: dict[str, Any]) -> None:
    print(f"{name[:34]:34}", end="")
    for kind in KINDS:
        print(f" {ratio(row, kind, 0):6.1f} {ratio(row, kind, 1):6.1f}", end="")
    figures = [
        "{:.1f} -> {:.1f}".format(*(statistics.median(ms[i] for ms in row[kind]) for i in (1, 3)))
        for kind in KINDS
    ]
    over = "  more than twice" if max(ratio(row, kind, 1) for kind in KINDS) > RATIO_MAX else ""
    print(f"   {', '.join(figures)}{over}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--apart", action="store_true", help="attackers have their own processor")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="the daemon and the regular clients go before all other processes; needs root",
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    arguments_of_both = (chosen.seconds, chosen.rounds, chosen.only)
    how = {"apart": chosen.apart, "real_time": chosen.real_time}
    if chosen.json:
        print(json.dumps(measure(*arguments_of_both, lambda *_: None, **how)))
        return 0
    print(f"{'p50 and p99 under attack / in quiet':34}", end="")
    print("".join(f" {kind:>13}" for kind in KINDS) + "   p99 quiet -> now, ms")
    measure(*arguments_of_both, _show, **how)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
