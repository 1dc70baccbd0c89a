"""A host of which a snapshot was put back: the history that is gone has few or many messages."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_copies import run_of
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Event, Fleet, Host, Message, Stream


class Snapshot:
    """`papa` was put back; `alpha`, `quebec` and `romeo` speak with it, and with each other.

    Losses are planted in what the logs have, each followed by another message of its stream.  The
    log of papa has nothing of the history that is gone.
    """

    def __init__(self, seed: int) -> None:
        self.f = f = Fleet(random.Random(seed))
        self.chance = chance = f.chance
        self.hosts = [Host(name, chance) for name in ("alpha", "papa", "quebec", "romeo")]
        self.papa = self.hosts[1]
        self.pace = chance.choice([2000, MINUTE, 10 * MINUTE])
        self.streams: dict[tuple[Host, Host], Stream] = {}
        self.at = float(MIDNIGHT)
        for host in self.hosts:
            self._start(host, 7)
        self._work(chance.randint(10, 60))
        self.copied = self.at
        self._work(chance.choice([2, 5, 20]), loses=False, pace=chance.choice([MINUTE, HOUR]))
        self.at += chance.choice([2000, 20 * MINUTE])
        self.restored = self.at
        self._start(self.papa, 8)
        # Neither side knows the last numbers of the other one any more.
        self.streams = {ends: one for ends, one in self.streams.items() if self.papa not in ends}
        self._work(chance.randint(10, 60))
        for source in self.hosts:
            for to in self.hosts:
                if source is not to:
                    self._send(source, to)

    def _start(self, host: Host, starts: int) -> None:
        run = run_of(host, starts, self.chance.getrandbits(64))
        self.at += 10
        host.record(self.at, "started", peer=run)
        for other in self.hosts:
            if other is not host:
                other.record(self.at + 5, "met", peer=run)

    def _send(self, source: Host, to: Host) -> None:
        self.at += 100
        stream = self.streams.setdefault((source, to), Stream(source))
        self.f.life(Message(source, to, "usual", stream), self.at)

    def _work(self, count: int, *, loses: bool = True, pace: float = 0) -> None:
        for _ in range(count):
            self.at += self.chance.expovariate(1 / (pace or self.pace)) + 100
            source, to = self.chance.sample(self.hosts, 2)
            if loses and self.chance.random() < 0.1:
                stream = self.streams.setdefault((source, to), Stream(source))
                self.f.sent(lost := Message(source, to, "usual", stream), self.at)
                self.f.acked(lost, self.at + 20)
                self.f.wrong("acked_not_stored", lost)
                self.at += 100
            self._send(source, to)

    @property
    def looks_like_a_crash(self) -> bool:
        """Whether papa did all that is gone within a minute: an audit accuses it then."""
        gone = [event["at"] for event in self.papa.events if self._is_gone(event)]
        return bool(gone) and max(gone) - self.copied < MINUTE + 1000

    def _is_gone(self, event: Event) -> bool:
        return self.copied + 200 < event["at"] < self.restored

    def logged(self) -> list[Host]:
        """Return the hosts with the events of their logs: the history that is gone has none."""
        self.papa.events = [event for event in self.papa.events if not self._is_gone(event)]
        return self.hosts

    def write(self, folder: Path) -> None:
        """Write the log of each host in two files."""
        for host in self.logged():
            rows = host.rows()
            middle = self.chance.choice(rows)["block"]
            for part in range(2):
                some = [row for row in rows if (row["block"] >= middle) == bool(part)]
                table = pa.Table.from_pylist(some, schema=arrow_schema())
                parquet.write_table(table, folder / f"{host.name}-{part}.parquet")
