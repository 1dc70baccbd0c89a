"""The messages of a fleet: when each is sent, arrives, is acknowledged and received; numbers."""

from __future__ import annotations

import numpy as np

from pipeline.generator.plan import DAY_US, QUEUES, Array, Fleet


class Messages:
    """Columns of all messages, by stream and then by time.  Times in us since the start."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator) -> None:
        self.start_us = int(fleet.start.timestamp()) * 1_000_000
        hosts, streams, total = fleet.hosts, fleet.streams, fleet.messages
        span_us = fleet.days * DAY_US
        self.source = rng.integers(0, hosts, streams)
        self.target = (self.source + rng.integers(1, hosts, streams)) % hosts
        self.queue = rng.integers(0, len(QUEUES), streams)
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

        # More messages by day than by night: the density is inverted to times.
        hours = np.linspace(0, 24 * fleet.days, 24 * fleet.days * 6 + 1)
        density = 1.2 + np.sin((hours - 8) / 24 * 2 * np.pi)
        reached = np.concatenate(([0], np.cumsum(density[1:])))
        us = np.interp(rng.random(n), reached / reached[-1], hours / hours[-1]) * (span_us * 0.97)
        key = stream.astype(np.int64) * (span_us * 2) + us.astype(np.int64)
        key.sort()
        sent = key - stream.astype(np.int64) * (span_us * 2)
        # Every other stream sends in batches of about twenty.
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

        # A new sequence begins when everything before it is acknowledged.
        begins = np.ones(n, bool)
        begins[1:] = (stream[1:] != stream[:-1]) | (sent[1:] > self.acked[:-1])
        ordinal = np.cumsum(begins)
        self.ordinal = ordinal - ordinal[self.first[:-1]][stream] + 1
        index = np.arange(n)
        self.number = index - np.maximum.accumulate(np.where(begins, index, 0)) + 1
        self.position = index - self.first[:-1][stream] + 1
        # Sources begin sequences in the same second, so sequence ids of several sources coincide.
        rank = np.zeros(streams, np.int64)
        for host in range(hosts):
            mine = np.flatnonzero(self.source == host)
            rank[mine] = np.arange(len(mine))
        self.high = (1_789_000_000 + rank)[stream]

        # A source numbers its messages across all of its streams.
        self.message_number = np.empty(n, np.int64)
        by_source = np.argsort(self.source[stream].astype(np.int64) * (span_us * 2) + sent)
        sources = self.source[stream][by_source]
        heads = np.ones(n, bool)
        heads[1:] = sources[1:] != sources[:-1]
        self.message_number[by_source] = at - np.maximum.accumulate(np.where(heads, at, 0)) + 1
        self.transactional = (self.delivery == 0)[stream]

    def _in_order(self, us: Array) -> Array:
        """Return times at which no message of a stream overtakes another."""
        far = np.int64(1) << 44
        offset = self.stream.astype(np.int64) * far
        return np.maximum.accumulate(us + offset) - offset

    def _after_outages(
        self, fleet: Fleet, rng: np.random.Generator, arrived: Array, span_us: int
    ) -> Array:
        """Delay the arrivals at a host during its outages to the end of the outage."""
        target = self.target[self.stream]
        for host in np.flatnonzero(rng.random(fleet.hosts) < fleet.outages / 2):
            begin = int(rng.random() * span_us * 0.9)
            end = begin + int(rng.integers(60, 2400)) * 1_000_000
            late = (target == host) & (arrived >= begin) & (arrived < end)
            arrived = np.where(late, end + (arrived - begin) // 1000, arrived)
        return arrived
