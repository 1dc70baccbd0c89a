"""Injected faults: the affected messages and hosts, the changed columns, and the truth.

The truth is the list of findings that the audit must make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.generator.faults import FAULTS, HOST_FAULTS
from pipeline.generator.messages import Messages
from pipeline.generator.plan import DAY_US, Array, Fleet, host_name

#: Steps of a message; the columns `has_...` give whether each is in the logs.
_FLAGS = ("sent", "transmitted", "accepted", "acked", "received")


class InjectedFaults:
    """The faults of a fleet: affected messages and hosts, changed columns, and the truth."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator, messages: Messages) -> None:
        m, n = messages, messages.size
        self.m = m
        self.truth: list[dict[str, Any]] = []
        self.host_truth: list[dict[str, Any]] = []
        self.skew_ms = np.zeros(fleet.hosts, np.int64)
        self.no_log: set[int] = set()
        self.late: set[int] = set()
        self.hole: dict[int, tuple[int, int]] = {}
        self.twice: set[int] = set()
        for flag in _FLAGS:
            setattr(self, f"has_{flag}", np.ones(n, bool))
        self.has_acked: Array
        self.has_sent: Array
        self.has_transmitted: Array
        self.has_accepted: Array
        self.has_received: Array
        #: kind, message, time (us), at its target, more columns
        self.extra: list[tuple[str, int, int, bool, dict[str, Any]]] = []
        self.number_at_target: dict[int, int] = {}  # message -> difference of its number there
        self.guids = [
            f"{rng.integers(1 << 32):08x}-{rng.integers(1 << 16):04x}-4{rng.integers(1 << 12):03x}"
            f"-a{rng.integers(1 << 12):03x}-{rng.integers(1 << 48):012x}"
            for _ in range(fleet.hosts)
        ]
        #: How many of each fault had no place: a fault needs a stream with enough messages.
        self.left_out: dict[str, int] = {}
        self._inject_in_hosts(fleet, rng)
        self._touched = np.zeros(n, bool)
        whole = ~np.isin(np.arange(fleet.hosts), [*self.no_log, *self.late, *self.hole])
        self._provable = whole[m.source] & whole[m.target]
        few = rng.random(fleet.streams) < 0.1
        for name in FAULTS:
            for at in range(fleet.faults.get(name, 0)):
                if not self._inject(name, rng, few, is_edge=at % 4 == 0):
                    self.left_out[name] = self.left_out.get(name, 0) + 1

    def _inject_in_hosts(self, fleet: Fleet, rng: np.random.Generator) -> None:
        free = list(rng.permutation(fleet.hosts))
        for name in HOST_FAULTS:
            for _ in range(fleet.faults.get(name, 0)):
                if len(free) < 2:  # an audit needs two hosts that can be believed
                    self.left_out[name] = self.left_out.get(name, 0) + 1
                    continue
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

    def _inject(self, name: str, rng: np.random.Generator, few: Array, *, is_edge: bool) -> bool:
        """Inject one fault: in a few streams, so that several faults meet in one; or in any.

        Returns whether there was a place for it.
        """
        m = self.m
        is_plain = name.startswith("plain")
        wanted = 1 if is_plain else 2 if name == "express_lost" else 0
        fits = self._provable & (m.delivery == wanted) & (m.counts >= 12)
        streams = np.flatnonzero(fits & few)
        if len(streams) == 0 or rng.random() < 0.3:
            streams = np.flatnonzero(fits)
        if len(streams) == 0:
            return False
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
                return True
        return False

    def _apply(self, name: str, i: int, rng: np.random.Generator) -> bool:
        """Inject a fault at message `i` and record it; return whether that is possible."""
        at = _INJECTIONS[name](self, name, i, rng)
        if at is None:
            return False
        if kind := FAULTS[name]:
            self._record(kind, at)
        return True

    # Each of the following methods injects the fault `name` at message `i`.  It returns the
    # message that the truth names, or None if the fault cannot be injected there.

    def _lose(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        if name == "lost" and i == self._last(i):
            return None  # the audit could not distinguish it from a message on its way
        self.has_accepted[i] = self.has_received[i] = False
        self.has_acked[i] = name != "lost"
        return i

    def _duplicate(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        later = int(self.m.accepted[i]) + int(rng.choice([0, 5_000_000, 4 * 3_600_000_000]))
        self.extra.append(("accepted", i, later + 1, True, {}))
        self.extra.append(("received", i, later + 900_000, True, {"again": True}))
        return i

    def _reorder(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        m, by = self.m, 1 if name == "reordered" else 4
        if i + by > self._last(i):
            return None
        m.accepted[i] = m.accepted[i + by] + 1
        m.received[i] = max(int(m.received[i]), int(m.accepted[i]) + 500)
        m.acked[i] = max(int(m.acked[i]), int(m.accepted[i]) + 500)
        return i

    def _skip_number(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        if not self._is_followed(i):
            return None  # a gap shows only if a message follows in the same sequence
        for flag in _FLAGS:
            getattr(self, f"has_{flag}")[i] = False
        return i

    def _deliver_dead(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self._dead_at_source(i, int(self.m.sent[i]) + 60_000_000, "expired", 0)
        return i

    def _receive_twice(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self.extra.append(("received", i, int(self.m.received[i]) + 7_000_000, True, {}))
        return i

    def _expire_in_queue(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        at = int(self.m.accepted[i]) + 3_000_000
        self.m.received[i] = at + 5_000_000
        self.has_received[i] = name == "received_dead"
        self.extra.append(("expired", i, at, True, {"class": 1}))
        self.extra.append(("dead_lettered", i, at, True, {"class": 1}))
        return i

    def _forge(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self.has_sent[i] = self.has_transmitted[i] = self.has_acked[i] = False
        return i

    def _reuse_number(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        m = self.m
        if not self._is_followed(i):
            return None
        # The next message is sent, and arrives, under the number of this one.
        m.number[i + 1] = m.number[i]
        if i + 2 <= self._last(i) and m.ordinal[i + 2] == m.ordinal[i]:
            same = slice(i + 2, self._end_of_sequence(i))
            m.number[same] -= 1
        return i + 1

    def _change_number(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        if not self._is_followed(i):
            return None
        # The receiver has exchanged the numbers of both messages: a finding for each.
        self.number_at_target |= {i: 1, i + 1: -1}
        self._record(FAULTS[name], i + 1)
        return i

    def _expire_at_source(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
        self.has_transmitted[i] = bool(rng.random() < 0.5)
        self._dead_at_source(i, int(self.m.sent[i]) + 1000, "expired", 0, keep=name == "expired")
        return i

    def _refuse(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
        at, why = int(self.m.accepted[i]), int(rng.integers(2, 5))
        self.extra.append(("refused", i, at, True, {"class": why}))
        self.extra.append(("final_ack_sent", i, at, True, {"class": why}))
        self._dead_at_source(i, at + 1000, "final_ack_received", why)
        return i

    def _resend(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        at = int(self.m.accepted[i])
        self.extra.append(("retransmitted", i, at - 50, False, {}))
        self.extra.append(("duplicate", i, at + 40, True, {}))
        return i

    def _restart(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        m, rest = self.m, slice(i, self._last(i) + 1)
        high, ordinal, number = (each[rest] for each in (m.high, m.ordinal, m.number))
        until_next = high == high[0]  # of these restarts
        high += 500_000 + int(m.stream[i])
        ordinal[until_next] -= ordinal[0] - 1
        number[until_next & (ordinal == 1)] -= number[0] - 1
        return i

    def _lose_express(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        self.has_accepted[i] = self.has_received[i] = False
        return i

    def _leave_pending(self, name: str, i: int, rng: np.random.Generator) -> int | None:
        if i != self._last(i):
            return None
        self.has_accepted[i] = self.has_received[i] = self.has_acked[i] = False
        return i

    def _last(self, i: int) -> int:
        """Return the last message of the stream of message `i`."""
        return int(self.m.first[int(self.m.stream[i]) + 1]) - 1

    def _is_followed(self, i: int) -> bool:
        """Return whether another message follows message `i` in its sequence."""
        return i != self._last(i) and bool(self.m.ordinal[i + 1] == self.m.ordinal[i])

    def _dead_at_source(self, i: int, at: int, how: str, why: int, *, keep: bool = True) -> None:
        self.extra.append((how, i, at, False, {"class": why}))
        self.extra.append(("dead_lettered" if keep else "discarded", i, at, False, {"class": why}))

    def _end_of_sequence(self, i: int) -> int:
        m = self.m
        end = int(m.first[int(m.stream[i]) + 1])
        other = np.flatnonzero(m.ordinal[i:end] != m.ordinal[i])
        return i + int(other[0]) if len(other) else end

    def _record(self, kind: str, i: int) -> None:
        """Add a finding about message `i` to the truth."""
        m = self.m
        source = int(m.source[m.stream[i]])
        self.truth.append(
            {
                "kind": kind,
                "message": i,  # replaced by a readable id when all faults are injected
                "source": self.guids[source],
            }
        )

    def settle(self) -> None:
        """Resolve the messages of the truth: their numbers are final only after all faults."""
        m = self.m
        for each in self.truth:
            i = each.pop("message")
            each["stream"] = int(m.stream[i])
            is_plain = not m.transactional[i]
            has_id = each["kind"] != "gap"
            each["message_id"] = f"{each['source']}\\{m.message_number[i]}" if has_id else ""
            each["sequence_id"] = None if is_plain else int(m.high[i] << 32 | m.ordinal[i])
            each["sequence_number"] = None if is_plain else int(m.number[i])
            each["from"] = host_name(int(m.source[m.stream[i]]))
            each["to"] = host_name(int(m.target[m.stream[i]]))


_INJECTIONS: dict[str, Callable[[InjectedFaults, str, int, np.random.Generator], int | None]] = {
    "lost": InjectedFaults._lose,
    "acked_not_stored": InjectedFaults._lose,
    "plain_not_stored": InjectedFaults._lose,
    "duplicated": InjectedFaults._duplicate,
    "plain_duplicated": InjectedFaults._duplicate,
    "reordered": InjectedFaults._reorder,
    "delayed": InjectedFaults._reorder,
    "gap": InjectedFaults._skip_number,
    "delivered_dead": InjectedFaults._deliver_dead,
    "ended_twice": InjectedFaults._receive_twice,
    "received_dead": InjectedFaults._expire_in_queue,
    "expired_there": InjectedFaults._expire_in_queue,
    "never_sent": InjectedFaults._forge,
    "number_reused": InjectedFaults._reuse_number,
    "wrong_number": InjectedFaults._change_number,
    "expired": InjectedFaults._expire_at_source,
    "discarded": InjectedFaults._expire_at_source,
    "refused": InjectedFaults._refuse,
    "resent": InjectedFaults._resend,
    "restart": InjectedFaults._restart,
    "express_lost": InjectedFaults._lose_express,
    "pending": InjectedFaults._leave_pending,
}
