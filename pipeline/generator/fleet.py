"""A fleet: its hosts, streams and messages as columns, everything for all messages at once.

Order of work: when each message is sent, arrives, is acknowledged and received (`_Messages`); which
of them meet a fault (`_Faults`); the events that all this makes (`_Events`); one file for each host
and day (`_write`).  The same fleet is the same to the byte: all chance comes from `seed`.

The rules that real daemons keep are kept here, but where a fault breaks one on purpose: numbers of
a sequence count from 1, and a new one begins when all before it is acknowledged; arrival numbers
grow with every message that comes to a host; the blocks of a log are numbered without gaps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from pipeline.generator.faults import FAULTS, HOST_FAULTS
from qmd.cli.event_files import arrow_schema
from storage.keys import ARRIVAL_BITS, OUTGOING_TRANSACTIONAL_LEVEL, TRANSACTIONAL_LEVEL

DAY_US = 86_400_000_000
TRUTH = "_truth.json"  # beside the files; names that begin so are of no log

_PLAIN_LEVEL = 4  # of the usual priority, 3
_KINDS = (
    *("started", "sent", "transmitted", "retransmitted", "out_of_order", "accepted", "duplicate"),
    *("refused", "session_acknowledged", "order_acknowledged", "final_ack_received", "received"),
    *("expired", "lost", "dead_lettered", "discarded", "final_ack_sent"),
)
_KIND = {name: code for code, name in enumerate(_KINDS)}
_CLASSES = ("nack_reach_queue_timeout", "nack_receive_timeout", "nack_access_denied",
            "nack_bad_destination_queue", "nack_queue_exceed_quota")  # fmt: skip
_LABELS = ("order", "invoice", "meter reading", "telemetry", "stock")
_QUEUES = ("orders", "invoices", "readings", "telemetry", "stock")

Array = Any  # of numpy
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What to make.  Figures are of the whole; `messages` is met exactly but for gaps."""

    hosts: int = 20
    streams: int = 100
    messages: int = 50_000
    days: int = 2
    start: datetime = datetime(2026, 9, 21, tzinfo=UTC)
    seed: int = 1
    faults: dict[str, int] = field(default_factory=dict)
    plain_share: float = 0.1  # of the streams: recoverable ones, and half as many express ones
    outages: int = 1  # of each host, on the average: nothing reaches it for a while

    def __post_init__(self) -> None:
        if self.hosts < 2 or self.streams < 1 or self.messages < self.streams or self.days < 1:
            raise ValueError(
                "a fleet has 2 hosts or more, 1 stream or more, no fewer messages than streams,"
                " and 1 day or more"
            )


def generate(fleet: Fleet, folder: Path, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Write the log of `fleet` below `folder`, which is replaced; returns the truth."""
    rng = np.random.default_rng(fleet.seed)
    progress("messages")
    messages = _Messages(fleet, rng)
    progress("faults")
    faults = _Faults(fleet, rng, messages)
    progress("events")
    events = _Events(fleet, messages, faults)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    progress("files")
    written = _write(fleet, messages, faults, events, folder)
    truth = {
        "fleet": {"hosts": fleet.hosts, "streams": fleet.streams, "days": fleet.days},
        "seed": fleet.seed,
        "events": written,
        "findings": faults.truth,
        "hosts": faults.host_truth,
    }
    (folder / TRUTH).write_text(json.dumps(truth, indent=1) + "\n")
    return truth


class _Messages:
    """Columns of all messages, by stream and within it by time.  Times in us since the start."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator) -> None:
        self.start_us = int(fleet.start.timestamp()) * 1_000_000
        hosts, streams, total = fleet.hosts, fleet.streams, fleet.messages
        span_us = fleet.days * DAY_US
        self.source = rng.integers(0, hosts, streams)
        self.target = (self.source + rng.integers(1, hosts, streams)) % hosts
        self.queue = rng.integers(0, len(_QUEUES), streams)
        kinds = rng.random(streams)
        # 0 transactional, 1 recoverable, 2 express
        self.delivery = np.where(
            kinds < fleet.plain_share, np.where(kinds < fleet.plain_share / 3, 2, 1), 0
        )
        weights = rng.lognormal(0, 0.6, streams)
        counts = 1 + rng.multinomial(total - streams, weights / weights.sum())
        self.counts = counts
        self.first = np.concatenate(([0], np.cumsum(counts)))
        stream = self.stream = np.repeat(np.arange(streams, dtype=np.int32), counts)
        n = self.size = len(stream)

        # More by day than by night: the density is turned into a time by its inverse.
        hours = np.linspace(0, 24 * fleet.days, 24 * fleet.days * 6 + 1)
        density = 1.2 + np.sin((hours - 8) / 24 * 2 * np.pi)
        reached = np.concatenate(([0], np.cumsum(density[1:])))
        us = np.interp(rng.random(n), reached / reached[-1], hours / hours[-1]) * (span_us * 0.97)
        key = stream.astype(np.int64) * (span_us * 2) + us.astype(np.int64)
        key.sort()
        sent = key - stream.astype(np.int64) * (span_us * 2)
        # Every other stream sends in batches of some twenty.
        every = np.where(rng.random(streams) < 0.5, 20 * span_us // counts, 1)[stream]
        sent -= sent % every
        heads = np.ones(n, bool)
        heads[1:] = (sent[1:] != sent[:-1]) | (stream[1:] != stream[:-1])
        at = np.arange(n)
        sent += 100 * (at - np.maximum.accumulate(np.where(heads, at, 0)))

        route_us = rng.lognormal(8.5, 0.8, streams)  # some ms
        transmitted = sent + 300 + rng.exponential(1500, n).astype(np.int64)
        arrived = transmitted + (route_us[stream] * (0.6 + rng.exponential(0.5, n))).astype(
            np.int64
        )
        arrived = self._after_outages(fleet, rng, arrived, span_us)
        self.sent = sent
        self.accepted = self._in_order(arrived)
        self.transmitted = np.minimum(transmitted, self.accepted - 100)
        back = 200 + route_us[stream] * 0.4 + rng.exponential(800, n)
        self.acked = self._in_order(self.accepted + back.astype(np.int64))
        slow = np.where(rng.random(streams) < 0.1, 30_000_000.0, 40_000.0)  # consumers, us
        self.received = self._in_order(
            self.accepted + 300 + (slow[stream] * rng.exponential(1.0, n)).astype(np.int64)
        )
        self.bytes = (300 + rng.gamma(2.0, 600, n)).astype(np.int64)

        # A new sequence begins where everything before it was acknowledged.
        begins = np.ones(n, bool)
        begins[1:] = (stream[1:] != stream[:-1]) | (sent[1:] > self.acked[:-1])
        ordinal = np.cumsum(begins)
        self.ordinal = ordinal - ordinal[self.first[:-1]][stream] + 1
        index = np.arange(n)
        self.number = index - np.maximum.accumulate(np.where(begins, index, 0)) + 1
        self.position = index - self.first[:-1][stream] + 1
        # Several sources begin in the same second, and so do their sequence ids.
        rank = np.zeros(streams, np.int64)
        for host in range(hosts):
            mine = np.flatnonzero(self.source == host)
            rank[mine] = np.arange(len(mine))
        self.high = (1_789_000_000 + rank)[stream]

        # The numbers that a source gives go through all of its streams.
        self.message_number = np.empty(n, np.int64)
        by_source = np.argsort(self.source[stream].astype(np.int64) * (span_us * 2) + sent)
        sources = self.source[stream][by_source]
        heads = np.ones(n, bool)
        heads[1:] = sources[1:] != sources[:-1]
        self.message_number[by_source] = at - np.maximum.accumulate(np.where(heads, at, 0)) + 1
        self.transactional = (self.delivery == 0)[stream]

    def _in_order(self, us: Array) -> Array:
        """No message of a stream overtakes another."""
        far = np.int64(1) << 44
        offset = self.stream.astype(np.int64) * far
        return np.maximum.accumulate(us + offset) - offset

    def _after_outages(
        self, fleet: Fleet, rng: np.random.Generator, arrived: Array, span_us: int
    ) -> Array:
        """What would arrive at a host while nothing reaches it arrives when that is over."""
        target = self.target[self.stream]
        for host in np.flatnonzero(rng.random(fleet.hosts) < fleet.outages / 2):
            begin = int(rng.random() * span_us * 0.9)
            end = begin + int(rng.integers(60, 2400)) * 1_000_000
            late = (target == host) & (arrived >= begin) & (arrived < end)
            arrived = np.where(late, end + (arrived - begin) // 1000, arrived)
        return arrived


class _Faults:
    """Which messages and hosts are struck, how that changes the columns, and what is true."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator, messages: _Messages) -> None:
        m, n = messages, messages.size
        self.m = m
        self.truth: list[dict[str, Any]] = []
        self.host_truth: list[dict[str, Any]] = []
        self.skew_ms = np.zeros(fleet.hosts, np.int64)
        self.no_log: set[int] = set()
        self.late: set[int] = set()
        self.hole: dict[int, tuple[int, int]] = {}
        self.twice: set[int] = set()
        for flag in ("sent", "transmitted", "accepted", "acked", "received"):
            setattr(self, f"has_{flag}", np.ones(n, bool))
        self.has_acked: Array
        self.has_sent: Array
        self.has_transmitted: Array
        self.has_accepted: Array
        self.has_received: Array
        #: kind, message, time (us), at its target, more columns
        self.extra: list[tuple[str, int, int, bool, dict[str, Any]]] = []
        self.number_at_target: dict[int, int] = {}  # by how much it is another one there
        self.guids = [
            f"{rng.integers(1 << 32):08x}-{rng.integers(1 << 16):04x}-4{rng.integers(1 << 12):03x}"
            f"-a{rng.integers(1 << 12):03x}-{rng.integers(1 << 48):012x}"
            for _ in range(fleet.hosts)
        ]
        self._hosts(fleet, rng)
        self._touched = np.zeros(n, bool)
        whole = ~np.isin(np.arange(fleet.hosts), [*self.no_log, *self.late, *self.hole])
        self._provable = whole[m.source] & whole[m.target]
        few = rng.random(fleet.streams) < 0.1
        for name in FAULTS:
            for at in range(fleet.faults.get(name, 0)):
                self._strike(name, rng, few, is_edge=at % 4 == 0)

    def _hosts(self, fleet: Fleet, rng: np.random.Generator) -> None:
        free = list(rng.permutation(fleet.hosts))
        for name in HOST_FAULTS:
            for _ in range(fleet.faults.get(name, 0)):
                if len(free) < 2:
                    return
                host = int(free.pop())
                if name == "clock":
                    skew = int(rng.integers(5_000, 900_000)) * (1 if rng.random() < 0.5 else -1)
                    self.skew_ms[host] = skew
                elif name == "no_log":
                    self.no_log.add(host)
                elif name == "late_log":
                    self.late.add(host)
                elif name == "log_hole":
                    begin = int(rng.random() * 0.6 * fleet.days * DAY_US) + DAY_US // 10
                    self.hole[host] = (begin, begin + DAY_US // 8)
                else:
                    self.twice.add(host)
                if kind := HOST_FAULTS[name]:
                    self.host_truth.append({"kind": kind, "host": host_name(host)})

    def _strike(self, name: str, rng: np.random.Generator, few: Array, *, is_edge: bool) -> None:
        """One fault somewhere: in few streams, so that several meet in one; or in any."""
        m = self.m
        is_plain = name.startswith("plain")
        wanted = 1 if is_plain else 2 if name == "express_lost" else 0
        fits = self._provable & (m.delivery == wanted) & (m.counts >= 12)
        streams = np.flatnonzero(fits & few)
        if len(streams) == 0 or rng.random() < 0.3:
            streams = np.flatnonzero(fits)
        if len(streams) == 0:
            return
        for _ in range(50):
            stream = int(rng.choice(streams))
            first, count = int(m.first[stream]), int(m.counts[stream])
            if is_edge:
                places = [first, first + count - 1, first + 1, first + count - 2]
            else:
                places = [first + int(rng.integers(1, count - 6))]
            for i in places:
                low, high = max(first, i - 1), min(first + count, i + 6)
                if self._touched[low:high].any() or not self._apply(name, i, rng):
                    continue
                self._touched[low:high] = True
                return

    def _apply(self, name: str, i: int, rng: np.random.Generator) -> bool:
        """Whether the fault can be here; then it is, and the truth knows."""
        m = self.m
        stream = int(m.stream[i])
        last = int(m.first[stream + 1]) - 1
        is_last = i == last
        same_next = not is_last and m.ordinal[i + 1] == m.ordinal[i]
        kind = FAULTS[name]
        if name in ("lost", "plain_not_stored", "acked_not_stored"):
            if name == "lost" and is_last:
                return False  # nobody could tell it from one that is still on its way
            self.has_accepted[i] = self.has_received[i] = False
            self.has_acked[i] = name != "lost"
        elif name in ("duplicated", "plain_duplicated"):
            later = int(m.accepted[i]) + int(rng.choice([0, 5_000_000, 4 * 3_600_000_000]))
            self.extra.append(("accepted", i, later + 1, True, {}))
            self.extra.append(("received", i, later + 900_000, True, {"again": True}))
        elif name in ("reordered", "delayed"):
            by = 1 if name == "reordered" else 4
            if i + by > last:
                return False
            m.accepted[i] = m.accepted[i + by] + 1
            m.received[i] = max(int(m.received[i]), int(m.accepted[i]) + 500)
            m.acked[i] = max(int(m.acked[i]), int(m.accepted[i]) + 500)
        elif name == "gap":
            if not same_next:
                return False  # what nothing follows in its sequence, nobody misses
            for flag in ("sent", "transmitted", "accepted", "acked", "received"):
                getattr(self, f"has_{flag}")[i] = False
        elif name == "delivered_dead":
            self._dead_at_source(i, int(m.sent[i]) + 60_000_000, "expired", 0)
        elif name == "ended_twice":
            self.extra.append(("received", i, int(m.received[i]) + 7_000_000, True, {}))
        elif name in ("received_dead", "expired_there"):
            at = int(m.accepted[i]) + 3_000_000
            m.received[i] = at + 5_000_000
            self.has_received[i] = name == "received_dead"
            self.extra.append(("expired", i, at, True, {"class": 1}))
            self.extra.append(("dead_lettered", i, at, True, {"class": 1}))
        elif name == "never_sent":
            self.has_sent[i] = self.has_transmitted[i] = self.has_acked[i] = False
        elif name == "number_reused":
            if not same_next:
                return False
            # The next one is sent, and arrives, under the number of this one.
            m.number[i + 1] = m.number[i]
            if i + 2 <= last and m.ordinal[i + 2] == m.ordinal[i]:
                same = slice(i + 2, self._end_of_sequence(i))
                m.number[same] -= 1
            i += 1
        elif name == "wrong_number":
            if not same_next or m.ordinal[min(i + 1, last)] != m.ordinal[i]:
                return False
            # Both are here, and the receiver has changed their numbers: found at both.
            self.number_at_target |= {i: 1, i + 1: -1}
            self._true(kind, i + 1)
        elif name in ("expired", "discarded"):
            self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
            self.has_transmitted[i] = bool(rng.random() < 0.5)
            self._dead_at_source(i, int(m.sent[i]) + 1000, "expired", 0, keep=name == "expired")
        elif name == "refused":
            self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
            at, why = int(m.accepted[i]), int(rng.integers(2, 5))
            self.extra.append(("refused", i, at, True, {"class": why}))
            self.extra.append(("final_ack_sent", i, at, True, {"class": why}))
            self._dead_at_source(i, at + 1000, "final_ack_received", why)
        elif name == "resent":
            at = int(m.accepted[i])
            self.extra.append(("retransmitted", i, at - 50, False, {}))
            self.extra.append(("duplicate", i, at + 40, True, {}))
        elif name == "restart":
            m.high[i : last + 1] += 500_000 + stream
            begin = int(m.ordinal[i])
            m.ordinal[i : last + 1] -= begin - 1
            of_first = m.ordinal[i : last + 1] == 1
            m.number[i : last + 1][of_first] -= m.number[i] - 1
        elif name == "express_lost":
            self.has_accepted[i] = self.has_received[i] = False
        elif name == "pending":
            if not is_last:
                return False
            self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
        else:
            raise AssertionError(name)
        if kind:
            self._true(kind, i)
        return True

    def _dead_at_source(self, i: int, at: int, how: str, why: int, *, keep: bool = True) -> None:
        self.extra.append((how, i, at, False, {"class": why}))
        self.extra.append(("dead_lettered" if keep else "discarded", i, at, False, {"class": why}))

    def _end_of_sequence(self, i: int) -> int:
        m = self.m
        end = int(m.first[int(m.stream[i]) + 1])
        other = np.flatnonzero(m.ordinal[i:end] != m.ordinal[i])
        return i + int(other[0]) if len(other) else end

    def _true(self, kind: str, i: int) -> None:
        m = self.m
        source = int(m.source[m.stream[i]])
        self.truth.append(
            {
                "kind": kind,
                "message": i,  # replaced by what a reader can use, when all faults are in
                "source": self.guids[source],
            }
        )

    def settle(self) -> None:
        """Numbers may have changed after a finding was noted: only now they are final."""
        m = self.m
        for each in self.truth:
            i = each.pop("message")
            is_plain = not m.transactional[i]
            has_id = each["kind"] != "gap"
            each["message_id"] = f"{each['source']}\\{m.message_number[i]}" if has_id else ""
            each["sequence_id"] = None if is_plain else int(m.high[i] << 32 | m.ordinal[i])
            each["sequence_number"] = None if is_plain else int(m.number[i])
            each["from"] = host_name(int(m.source[m.stream[i]]))
            each["to"] = host_name(int(m.target[m.stream[i]]))


class _Events:
    """Columns of all events, by host and time."""

    def __init__(self, fleet: Fleet, m: _Messages, faults: _Faults) -> None:
        faults.settle()
        source, target = m.source[m.stream], m.target[m.stream]
        plain = ~m.transactional
        columns: list[tuple[Array, ...]] = []
        everything = np.arange(m.size, dtype=np.int32)

        def add(kind: str, host: Array, us: Array, which: Array) -> None:
            count = int(which.sum())
            columns.append(
                (
                    host[which].astype(np.int16),
                    us[which],
                    np.full(count, _KIND[kind], np.int8),
                    everything[which],
                    np.full(count, -1, np.int8),
                )
            )

        add("sent", source, m.sent, faults.has_sent)
        add("transmitted", source, m.transmitted, faults.has_transmitted)
        add("accepted", target, m.accepted, faults.has_accepted)
        add("order_acknowledged", source, m.acked, faults.has_acked & ~plain)
        add("session_acknowledged", source, m.acked, faults.has_acked & plain)
        add("received", target, m.received, faults.has_received)
        extra = faults.extra
        if extra:
            of = np.array([each[1] for each in extra], np.int32)
            there = np.array([each[3] for each in extra], bool)
            columns.append(
                (
                    np.where(there, target[of], source[of]).astype(np.int16),
                    np.array([each[2] for each in extra], np.int64),
                    np.array([_KIND[each[0]] for each in extra], np.int8),
                    of,
                    np.array([each[4].get("class", -1) for each in extra], np.int8),
                )
            )
        hosts = np.arange(fleet.hosts, dtype=np.int16)
        # Each daemon is started before anything happens, and again at the end of each day.
        for moment in (-1_000_000, *(DAY_US * (day + 1) - 30_000_000 for day in range(fleet.days))):
            columns.append(
                (
                    hosts,
                    np.full(fleet.hosts, moment, np.int64),
                    np.zeros(fleet.hosts, np.int8),
                    np.full(fleet.hosts, -1, np.int32),
                    np.full(fleet.hosts, -1, np.int8),
                )
            )
        host, us, kind, of, why = (np.concatenate(each) for each in zip(*columns, strict=True))
        # By host, then time; in a tie the order above is that of a message's life.
        order = np.argsort(host.astype(np.int64) << 44 | (us + 2_000_000), kind="stable")
        self.host, self.us, self.kind = host[order], us[order], kind[order]
        self.of, self.why = of[order], why[order]
        self.again = np.zeros(len(order), bool)
        if extra:
            flags = np.zeros(len(host), bool)
            place = len(host) - fleet.hosts * (1 + fleet.days) - len(extra)
            flags[place : place + len(extra)] = [bool(each[4].get("again")) for each in extra]
            self.again = flags[order]
        self.starts = np.searchsorted(self.host, np.arange(fleet.hosts + 1))


def host_name(host: int) -> str:
    return f"host{host:03d}"


def _write(fleet: Fleet, m: _Messages, faults: _Faults, events: _Events, folder: Path) -> int:
    """One file for each host and day.  Returns how many events they hold."""
    tables = _Tables(fleet, m, faults, events)
    hosts = [host for host in range(fleet.hosts) if host not in faults.no_log]
    with ThreadPoolExecutor(2) as pool:  # numpy and Arrow let others run meanwhile
        return sum(pool.map(lambda host: tables.write(host, folder), hosts))


class _Tables:
    """Events of one host as a table of the exported schema."""

    def __init__(self, fleet: Fleet, m: _Messages, faults: _Faults, events: _Events) -> None:
        self._fleet, self._m, self._faults, self._events = fleet, m, faults, events
        self._schema = arrow_schema()
        hosts = range(fleet.hosts)
        self._names = [host_name(host) for host in hosts]
        self._guids = faults.guids
        self._addresses = [f"{name}:1801" for name in self._names]
        self._local = [f"private$\\{name}" for name in _QUEUES]
        self._remote = [
            f"DIRECT=OS:{self._names[m.target[s]]}\\private$\\{_QUEUES[m.queue[s]]}"
            for s in range(fleet.streams)
        ]

    def write(self, host: int, folder: Path) -> int:
        faults, events, fleet = self._faults, self._events, self._fleet
        rows = slice(events.starts[host], events.starts[host + 1])
        us = np.maximum(events.us[rows], 0)
        at_ms = (self._m.start_us + us) // 1000 + faults.skew_ms[host]
        # What happens within a few ms is one commit.
        begins = np.ones(len(us), bool)
        begins[1:] = us[1:] - us[:-1] > 5000
        block = np.cumsum(begins)
        place = np.arange(len(us))
        index = place - np.maximum.accumulate(np.where(begins, place, 0))
        table = self._table(host, rows, at_ms, block, index)
        day = (at_ms - self._m.start_us // 1000) // (DAY_US // 1000)
        keep = np.ones(len(us), bool)
        if host in faults.late:  # the last day, wherever the clock of this host sees it
            keep &= day < fleet.days - 1
        if host in faults.hole:
            begin, end = faults.hole[host]
            # A hole ends where a block does.
            inside = (us >= begin) & (us < end)
            keep &= ~np.isin(block, block[inside])
        count = 0
        for each in np.unique(day[keep]):
            chosen = np.flatnonzero(keep & (day == each))
            moment = self._fleet.start.timestamp() + int(each) * 86_400
            text = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
            path = folder / f"day={text}" / f"host={self._names[host]}"
            path.mkdir(parents=True, exist_ok=True)
            first, last = int(chosen[0]), int(chosen[-1])
            # Mostly one stretch, which costs no copy.
            part = (
                table.slice(first, last - first + 1)
                if last - first + 1 == len(chosen)
                else table.take(pa.array(chosen))
            )
            names = [f"events-{block[first]:012d}.parquet"]
            if host in faults.twice:
                names.append(f"events-{block[first]:012d}-again.parquet")
            for name in names:
                parquet.write_table(
                    part, path / name, compression="zstd", store_schema=False,
                    use_dictionary=_REPEATED, column_encoding=_ENCODINGS,
                )  # fmt: skip
            count += len(chosen)
        return count

    def _table(self, host: int, rows: slice, at_ms: Array, block: Array, index: Array) -> Any:
        m, faults, events = self._m, self._faults, self._events
        kind, of, why = events.kind[rows], events.of[rows], events.why[rows]
        n = len(kind)
        nothing = of < 0
        message = np.maximum(of, 0)
        stream = m.stream[message]
        source, target = m.source[stream], m.target[stream]
        transactional = m.transactional[message]

        def is_any(*names: str) -> Array:
            return np.isin(kind, [_KIND[name] for name in names])

        accepted, received = is_any("accepted"), is_any("received")
        dead = is_any("dead_lettered")
        at_source = source == host
        here = is_any(
            "accepted", "received", "refused", "duplicate", "out_of_order", "final_ack_sent"
        ) | (~at_source & is_any("expired", "dead_lettered", "lost"))
        arrivals = accepted | dead
        arrival = np.cumsum(arrivals)
        level = np.where(dead | transactional, TRANSACTIONAL_LEVEL, _PLAIN_LEVEL).astype(np.int64)
        sent = is_any("sent")
        lookup = np.where(
            sent & transactional,
            (OUTGOING_TRANSACTIONAL_LEVEL << ARRIVAL_BITS) | m.position[message],
            (level << ARRIVAL_BITS) | np.where(sent, m.message_number[message], arrival),
        )
        # What leaves a queue leaves the place where it came to.
        leaves = received | (is_any("expired") & here)
        first_place = np.zeros(n, np.int64)
        came = np.flatnonzero(accepted)
        order = np.argsort(of[came], kind="stable")
        by_message, places = of[came][order], lookup[came][order]
        left = np.flatnonzero(leaves)
        found = np.searchsorted(by_message, of[left])
        again = events.again[rows][left]
        after = np.minimum(found + again, len(by_message) - 1) if len(by_message) else found
        if len(by_message):
            first_place[left] = places[np.minimum(after, len(places) - 1)]
        lookup = np.where(leaves, first_place, lookup)
        has_lookup = sent | accepted | leaves | dead

        number = m.number[message]
        if faults.number_at_target:
            number = number.copy()
            changed = np.flatnonzero(accepted & np.isin(message, list(faults.number_at_target)))
            for each in changed:
                number[each] += faults.number_at_target[int(message[each])]
        has_sequence = (
            is_any("sent", "transmitted", "retransmitted", "accepted", "order_acknowledged")
            & transactional
        )
        sequence_id = m.high[message] << 32 | m.ordinal[message]

        def text(codes: Array, values: list[str]) -> Any:
            indices = pa.array(codes.astype(np.int32))
            return pa.DictionaryArray.from_arrays(indices, pa.array(values)).cast(pa.string())

        queue_names = [*self._remote, *self._local, ""]
        local = len(self._remote) + m.queue[stream]
        queue = np.where(nothing, len(queue_names) - 1, np.where(here, local, stream))
        peers = [*self._guids, *self._addresses, ""]
        peer = np.full(n, len(peers) - 1)
        peer = np.where(is_any("transmitted", "retransmitted"), target, peer)
        peer = np.where(
            is_any("order_acknowledged", "session_acknowledged", "final_ack_received"),
            len(self._guids) + target,
            peer,
        )
        peer = np.where(accepted | is_any("duplicate", "refused", "out_of_order"), source, peer)
        number_text = pc.cast(pa.array(m.message_number[message]), pa.string())
        ids = pc.binary_join_element_wise(text(source, self._guids), number_text, "\\")
        message_id = pc.if_else(pa.array(nothing), "", ids)
        begins = sent | accepted
        delivery = np.where(begins, m.delivery[stream], 3)
        classes = pc.if_else(
            pa.array(why >= 0),
            text(np.maximum(why, 0), list(_CLASSES)),
            pa.scalar(None, pa.string()),
        )
        reasons = [
            "",
            "after a stop",
            "a new session began",
            "Its time to reach the queue was over.",
            "Its time to be received was over.",
            "The destination has refused it.",
        ]
        reason = np.where(nothing, 1, np.where(is_any("retransmitted"), 2, 0))
        reason = np.where(why == 0, 3, np.where(why == 1, 4, np.where(why > 1, 5, reason)))
        dead_queue = ["", "system$;deadletter", "system$;deadxact"]
        to_queue = np.where(dead, np.where(transactional, 2, 1), 0)
        labels = [*_LABELS, ""]
        label = np.where(dead, m.queue[stream], len(_LABELS))
        block_text = pc.cast(pa.array(block), pa.string())
        index_text = pc.cast(pa.array(index), pa.string())
        columns = {
            "schema": np.ones(n, np.int32),
            "host": text(np.full(n, host), self._names),
            "queue_manager": text(np.full(n, host), self._guids),
            "cursor": pc.binary_join_element_wise(block_text, index_text, "."),
            "block": block,
            "index": index,
            "time": pa.array(at_ms).cast(pa.timestamp("ms", "UTC")),
            "at_ms": at_ms,
            "kind": text(kind, list(_KINDS)),
            "message_id": message_id,
            "queue": text(queue, queue_names),
            "peer": text(peer, peers),
            "lookup_id": pa.array(lookup, mask=~has_lookup),
            "sequence_id": pa.array(sequence_id, mask=~has_sequence).cast(pa.decimal128(20, 0)),
            "sequence_number": pa.array(number, mask=~has_sequence),
            "class": classes,
            "delivery": text(delivery, ["transactional", "recoverable", "express", ""]),
            "bytes": np.where(nothing | is_any("duplicate"), 0, m.bytes[message]),
            "reason": text(reason, reasons),
            "to_queue": text(to_queue, dead_queue),
            "transaction": text(np.zeros(n), [""]),
            "label": text(label, labels),
            "correlation_id": text(np.zeros(n), [""]),
        }
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)


#: As the daemon's exports have them: repeated texts once, all else as it is.
_REPEATED = True
_ENCODINGS = None
