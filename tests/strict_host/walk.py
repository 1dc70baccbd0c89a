"""A random walk of a real daemon and a strict host over legal behaviour, from a seed.

Both send plain and transactional messages; manners, sessions and processes change at any time.  At
the end everything settles: each message arrived once, each stream in its order, and the strict host
found no fault.  `python -m tests.strict_host --walks 100 --first 1` runs many walks.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial

from tests.patience import END_S
from tests.process.harness import Daemon
from tests.strict_host.host import StrictHost
from tests.strict_host.manner import POLITE, drawn
from tests.strict_host.sockets import SocketHost
from tests.strict_host.variety import drawn_fields

DELIVERY = {"resend": ["500ms", "700ms", "1s"], "retry_first": "50ms", "retry_max": "200ms"}
PAUSE_S = 0.15


def _has_all(queue: str, count: int, host: StrictHost) -> bool:
    return len(host.bodies(queue)) >= count


class Walk:
    """One walk; `kills`: whether the daemon is killed in it."""

    def __init__(self, daemon: Daemon, seed: int, *, steps: int, kills: bool) -> None:
        self._daemon = daemon
        self._random = random.Random(seed)
        self._steps, self._kills = steps, kills
        self._peer = SocketHost(manner=drawn(self._random), seed=seed)
        self._peer.target = daemon.port
        with self._peer as host:
            host.has_gaps = kills
        self._numbers = 0
        self._to_daemon: dict[str, list[bytes]] = {"orders": [], "plain": []}
        self._to_host: dict[str, list[bytes]] = {"q": [], "recoverable": [], "express": []}
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """Walk, settle, and judge.  Raises AssertionError and TimeoutError."""
        try:
            acts = [self._host_sends, self._daemon_sends, self._change_manner, self._close]
            weights = [5, 4, 3, 1]
            if self._kills:
                acts, weights = [*acts, self._kill, self._restart_host], [*weights, 1, 1]
            for _ in range(self._steps):
                (act,) = self._random.choices(acts, weights)
                self.seen[act.__name__] += 1
                act()
                if self._random.random() < 0.5:
                    time.sleep(self._random.random() * PAUSE_S)
            self._settle()
        finally:
            self._peer.close()

    # -- acts --

    def _bodies(self, count: int) -> list[bytes]:
        self._numbers += count
        return [b"%d" % number for number in range(self._numbers - count, self._numbers)]

    def _host_sends(self) -> None:
        queue = self._random.choice(["orders", "orders", "plain"])
        bodies = self._bodies(self._random.choice([1, 3, 70]))
        with self._peer as host:
            for body in bodies:
                fields = drawn_fields(self._random) if self._random.random() < 0.3 else {}
                fields.update(body=body, admin=fields.get("admin"))
                if not fields.get("acks"):
                    fields.pop("admin")
                fields.pop("reach_s", None)
                if queue == "orders":
                    fields.pop("recoverable", None)
                    host.send_in_order("orders", **fields)
                else:
                    host.send("plain", **{**fields, "recoverable": True})
                self._to_daemon[queue].append(body)

    def _daemon_sends(self) -> None:
        kinds = {"q": "transactional", "recoverable": "recoverable"}
        if not self._kills:
            kinds["express"] = "express"
        queue, kind = self._random.choice(sorted(kinds.items()))
        bodies = self._bodies(self._random.choice([1, 3, 70]))
        self._daemon.send_all(self._peer.destination(queue), bodies, f"--{kind}")
        self._to_host[queue] += bodies

    def _change_manner(self) -> None:
        manner = drawn(self._random)
        if self._random.random() < 0.1:
            manner = replace(manner, sleeps=True)
        with self._peer as host:
            host.behave(manner)

    def _close(self) -> None:
        with self._peer as host:
            if host.sessions:
                self._random.choice(host.sessions).close("the walk closes it")

    def _kill(self) -> None:
        self._peer.daemon_is_killed = True
        self._daemon.restart()

    def _restart_host(self) -> None:
        with self._peer as host:
            host.restart()

    # -- the end --

    def _settle(self) -> None:
        peer = self._peer
        with peer as host:
            host.behave(POLITE)
        peer.wait(lambda host: not host.sending.pending, "the acknowledgments of the daemon")
        for queue, bodies in self._to_host.items():
            peer.wait(partial(_has_all, queue, len(bodies)), f"messages to {queue}")
        self._wait_released()
        peer.host.verdict.assert_clean()
        for queue, bodies in self._to_host.items():
            self._compare(queue, peer.host.bodies(queue), bodies)
        for queue, bodies in self._to_daemon.items():
            self._compare(queue, self._daemon.bodies(queue), bodies)

    def _wait_released(self) -> None:
        deadline = time.monotonic() + END_S
        while True:
            rows = self._daemon.json("outgoing", "list")
            waiting = [row for row in rows if str(self._peer.port) in row["destination"]]
            if not any(row["messages"] for row in waiting):
                return
            assert time.monotonic() < deadline, json.dumps(waiting) + self._peer.report()
            time.sleep(0.1)

    def _compare(self, queue: str, found: list[bytes], sent: list[bytes]) -> None:
        """Compare: nothing lost, nothing doubled; streams keep their order."""
        lost, more = Counter(sent) - Counter(found), Counter(found) - Counter(sent)
        assert not lost, f"lost from {queue}: {lost}"
        assert not more, f"doubled in {queue}: {more}"
        if queue in ("orders", "q"):
            assert found == sent, f"another order in {queue}"
