"""The messages of a fleet: when each is sent, arrives, is acknowledged and received; numbers."""

from __future__ import annotations

import numpy as np

from pipeline.generator.plan import DAY_US, QUEUES, Array, Fleet


class Messages:
    """Columns of all messages, by stream and then by time.  Times in us since the start."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator) -> None:
        self.start_us = int(fleet.start.timestamp()) * 1_000_000
        self._span_us = fleet.days * DAY_US
        self._plan_streams(fleet, rng)
        self._plan_sending(fleet, rng)
        self._plan_transfer(fleet, rng)
        self._number_sequences(fleet)
        self._number_messages()

    def _plan_streams(self, fleet: Fleet, rng: np.random.Generator) -> None:
        """Choose the ends, the queue, the delivery and the number of messages of each stream."""
        hosts, streams, total = fleet.hosts, fleet.streams, fleet.messages
        self.source = rng.integers(0, hosts, streams)
        self.target = (self.source + rng.integers(1, hosts, streams)) % hosts
        self.queue = rng.integers(0, len(QUEUES), streams)
        kinds = rng.random(streams)
        if fleet.largest_share:
            kinds[0] = 1
        # 0 transactional, 1 recoverable, 2 express
        self.delivery = np.where(
            kinds < fleet.plain_share, np.where(kinds < fleet.plain_share / 3, 2, 1), 0
        )
        weights = rng.lognormal(0, 0.6, streams)
        if fleet.largest_share and streams > 1:
            weights[0] = weights[1:].sum() * fleet.largest_share / (1 - fleet.largest_share)
        self.counts = 1 + rng.multinomial(total - streams, weights / weights.sum())
        self.first = np.concatenate(([0], np.cumsum(self.counts)))
        self.stream = np.repeat(np.arange(streams, dtype=np.int32), self.counts)
        self.size = len(self.stream)
        self.transactional = (self.delivery == 0)[self.stream]

    def _plan_sending(self, fleet: Fleet, rng: np.random.Generator) -> None:
        """Choose the time at which each message is sent."""
        n, stream, span_us = self.size, self.stream, self._span_us
        # More messages by day than by night: the density is inverted to times.
        hours = np.linspace(0, 24 * fleet.days, 24 * fleet.days * 6 + 1)
        density = 1.2 + np.sin((hours - 8) / 24 * 2 * np.pi)
        cumulated = np.concatenate(([0], np.cumsum(density[1:])))
        us = np.interp(rng.random(n), cumulated / cumulated[-1], hours / hours[-1])
        us *= span_us * 0.97
        key = stream.astype(np.int64) * (span_us * 2) + us.astype(np.int64)
        key.sort()
        sent = key - stream.astype(np.int64) * (span_us * 2)
        # Every other stream sends in batches of about twenty.
        every = np.where(rng.random(fleet.streams) < 0.5, 20 * span_us // self.counts, 1)[stream]
        sent -= sent % every
        heads = np.ones(n, bool)
        heads[1:] = (sent[1:] != sent[:-1]) | (stream[1:] != stream[:-1])
        self.sent = sent + 100 * _since_head(heads)

    def _plan_transfer(self, fleet: Fleet, rng: np.random.Generator) -> None:
        """Choose the times of the transfer and the receive, and the size of each message."""
        n, stream = self.size, self.stream
        route_us = rng.lognormal(8.5, 0.8, fleet.streams)  # some ms
        transmitted = self.sent + 300 + rng.exponential(1500, n).astype(np.int64)
        arrived = transmitted + (route_us[stream] * (0.6 + rng.exponential(0.5, n))).astype(
            np.int64
        )
        self.accepted = self._in_order(self._after_outages(fleet, rng, arrived))
        self.transmitted = np.minimum(transmitted, self.accepted - 100)
        back = 200 + route_us[stream] * 0.4 + rng.exponential(800, n)
        self.acked = self._in_order(self.accepted + back.astype(np.int64))
        # Time that the consumer of each stream takes, in us.
        slow = np.where(rng.random(fleet.streams) < 0.1, 30_000_000.0, 40_000.0)
        self.received = self._in_order(
            self.accepted + 300 + (slow[stream] * rng.exponential(1.0, n)).astype(np.int64)
        )
        self.bytes = (300 + rng.gamma(2.0, 600, n)).astype(np.int64)

    def _number_sequences(self, fleet: Fleet) -> None:
        """Assign sequence ids, and the numbers within each sequence."""
        stream = self.stream
        # A new sequence begins when everything before it is acknowledged.
        begins = np.ones(self.size, bool)
        begins[1:] = (stream[1:] != stream[:-1]) | (self.sent[1:] > self.acked[:-1])
        ordinal = np.cumsum(begins)
        self.ordinal = ordinal - ordinal[self.first[:-1]][stream] + 1
        self.number = _since_head(begins) + 1
        self.position = np.arange(self.size) - self.first[:-1][stream] + 1
        # Sources begin sequences in the same second, so sequence ids of several sources coincide.
        rank = np.zeros(fleet.streams, np.int64)
        for host in range(fleet.hosts):
            mine = np.flatnonzero(self.source == host)
            rank[mine] = np.arange(len(mine))
        self.high = (1_789_000_000 + rank)[stream]

    def _number_messages(self) -> None:
        """Number the messages of each source across all of its streams."""
        source = self.source[self.stream]
        by_source = np.argsort(source.astype(np.int64) * (self._span_us * 2) + self.sent)
        sources = source[by_source]
        heads = np.ones(self.size, bool)
        heads[1:] = sources[1:] != sources[:-1]
        self.message_number = np.empty(self.size, np.int64)
        self.message_number[by_source] = _since_head(heads) + 1

    def _in_order(self, us: Array) -> Array:
        """Return times at which no message of a stream overtakes another."""
        far = np.int64(1) << 44
        offset = self.stream.astype(np.int64) * far
        return np.maximum.accumulate(us + offset) - offset

    def _after_outages(self, fleet: Fleet, rng: np.random.Generator, arrived: Array) -> Array:
        """Delay the arrivals at a host during its outages to the end of the outage."""
        target = self.target[self.stream]
        for host in np.flatnonzero(rng.random(fleet.hosts) < fleet.outages / 2):
            begin = int(rng.random() * self._span_us * 0.9)
            end = begin + int(rng.integers(60, 2400)) * 1_000_000
            late = (target == host) & (arrived >= begin) & (arrived < end)
            arrived = np.where(late, end + (arrived - begin) // 1000, arrived)
        return arrived


def _since_head(heads: Array) -> Array:
    """Return the distance of each row from the last head at or before it."""
    at = np.arange(len(heads))
    return at - np.maximum.accumulate(np.where(heads, at, 0))
