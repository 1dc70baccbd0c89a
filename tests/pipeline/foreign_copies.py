"""Two copies of a queue manager that run at the same time: a machine that was cloned.

The log of each copy begins with the events from before.  Other hosts speak with one copy at a time,
and name its run; a host that runs another program names none.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Host, Message, Stream
from tests.pipeline.foreign_parts import Key

COPIED = MIDNIGHT + 2 * HOUR
BEGIN = COPIED + 10 * MINUTE  # of the time at which both run


def run_of(host: Host, starts: int, nonce: int) -> str:
    return f"{host.guid}, run {starts} {nonce:016x}"


class Copies:
    """`original` and `copy` of a queue manager, and hosts with their ways to one of both.

    `alpha` speaks with the copy; `quebec`, and `romeo` without runs, speak with the original.
    """

    def __init__(self, seed: int) -> None:
        self.f = f = Fleet(random.Random(seed))
        self.chance = chance = f.chance
        self.alpha, self.quebec, self.romeo, self.original = (
            Host(name, chance) for name in ("alpha", "quebec", "romeo", "papa")
        )
        self.streams: dict[tuple[Host, Host], Stream] = {}
        first = self._run(self.original, 7)
        runs = {}
        for n, host in enumerate((self.alpha, self.quebec, self.romeo)):
            runs[host] = self._run(host, 3)
            host.record(MIDNIGHT + n, "started", peer=runs[host])
            if host is not self.romeo:
                host.record(MIDNIGHT + 10, "met", peer=first)
        self.original.record(MIDNIGHT + 5, "started", peer=first)
        for host in (self.alpha, self.quebec):
            self.original.record(MIDNIGHT + 10, "met", peer=runs[host])
        for n in range(chance.randint(3, 6)):
            for way, host in enumerate((self.alpha, self.quebec, self.romeo)):
                at = MIDNIGHT + ((n + 1) * 10 + way) * MINUTE
                self._both_ways(host, self.original, at)
        self.copy = self._copied()
        run = self._run(self.original, 8)
        self.copy.record(COPIED + 5 * MINUTE, "started", peer=run)
        self.alpha.record(COPIED + 6 * MINUTE, "met", peer=run)
        self.copy.record(COPIED + 6 * MINUTE, "met", peer=runs[self.alpha])
        if chance.random() < 0.5:
            again = self._run(self.original, 8)
            self.original.record(COPIED + 8 * MINUTE, "started", peer=again)
            self.quebec.record(COPIED + 9 * MINUTE, "met", peer=again)
            self.original.record(COPIED + 9 * MINUTE, "met", peer=runs[self.quebec])
            self.streams.clear()
        self.streams = {ends: one for ends, one in self.streams.items() if self.alpha not in ends}
        self.ended = BEGIN
        self.lost_at: dict[Key, float] = {}  # of each finding
        self._side_by_side()

    def _run(self, host: Host, starts: int) -> str:
        return run_of(host, starts, self.chance.getrandbits(64))

    def _copied(self) -> Host:
        original, copy = self.original, Host(self.original.name, self.chance)
        copy.guid, copy.events = original.guid, list(original.events)
        copy.messages, copy.streams = original.messages, original.streams + 100
        return copy

    def _both_ways(self, host: Host, papa: Host, at: float) -> None:
        for n, (source, to) in enumerate(((host, papa), (papa, host))):
            stream = self.streams.setdefault((source, to), Stream(source))
            self.f.life(Message(source, to, "usual", stream), at + n * 1000)

    def _side_by_side(self) -> None:
        """Let both copies work; each way loses a message."""
        for way, (host, papa) in enumerate(
            ((self.alpha, self.copy), (self.quebec, self.original), (self.romeo, self.original))
        ):
            at = BEGIN + way * 1234
            loses = self.chance.randint(0, 5)
            for n in range(self.chance.randint(6, 9)):
                at += self.chance.randint(2, 15) * MINUTE
                self._both_ways(host, papa, at)
                if n == loses:
                    message = Message(host, papa, "usual", self.streams[host, papa])
                    self.f.sent(message, at + 5000)
                    self.f.acked(message, at + 5020)
                    self.f.wrong("acked_not_stored", message)
                    self.lost_at["acked_not_stored", message.id, 0, 0] = at + 5020
            self.ended = max(self.ended, int(at) + MINUTE)

    @property
    def findings(self) -> Counter[Key]:
        return self.f.findings

    def write(self, folder: Path) -> None:
        """Write each log to a file with its name."""
        logs = {"alpha": self.alpha, "quebec": self.quebec, "romeo": self.romeo,
                "original": self.original, "copy": self.copy}  # fmt: skip
        for name, host in logs.items():
            table = pa.Table.from_pylist(host.rows(), schema=arrow_schema())
            parquet.write_table(table, folder / f"{name}.parquet")
