"""The events of messages and faults, sorted by host and time."""

from __future__ import annotations

import numpy as np

from pipeline.generator.injected_faults import InjectedFaults
from pipeline.generator.messages import Messages
from pipeline.generator.plan import DAY_US, KIND, Array, Fleet


class Events:
    """Columns of all events, sorted by host and time."""

    def __init__(self, fleet: Fleet, m: Messages, faults: InjectedFaults) -> None:
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
                    np.full(count, KIND[kind], np.int8),
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
                    np.array([KIND[each[0]] for each in extra], np.int8),
                    of,
                    np.array([each[4].get("class", -1) for each in extra], np.int8),
                )
            )
        hosts = np.arange(fleet.hosts, dtype=np.int16)
        # Each daemon starts before all other events, and again at the end of each day.
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
        # By host, then time; ties keep the order above, which is that of a message's life.
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
