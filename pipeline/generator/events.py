"""The events of messages and faults of one host, sorted by time."""

from __future__ import annotations

import numpy as np

from pipeline.generator.injected_faults import InjectedFaults
from pipeline.generator.messages import Messages
from pipeline.generator.plan import DAY_US, KIND, Array, Fleet


class Events:
    """Columns of all events of one host, sorted by time.

    Those of all hosts together would need most of the memory of a generator.
    """

    def __init__(self, fleet: Fleet, m: Messages, faults: InjectedFaults, host: int) -> None:
        from_here, to_here = _messages_of(m, m.source == host), _messages_of(m, m.target == host)
        plain = ~m.transactional
        columns: list[tuple[Array, ...]] = []

        def add(kind: str, which: Array, us: Array, is_there: Array) -> None:
            chosen = which[is_there[which]]
            columns.append(
                (
                    us[chosen],
                    np.full(len(chosen), KIND[kind], np.int8),
                    chosen,
                    np.full(len(chosen), -1, np.int8),
                )
            )

        add("sent", from_here, m.sent, faults.has_sent)
        add("transmitted", from_here, m.transmitted, faults.has_transmitted)
        add("accepted", to_here, m.accepted, faults.has_accepted)
        add("order_acknowledged", from_here, m.acked, faults.has_acked & ~plain)
        add("session_acknowledged", from_here, m.acked, faults.has_acked & plain)
        add("received", to_here, m.received, faults.has_received)
        extra = [
            each for each in faults.extra
            if (m.target if each[3] else m.source)[m.stream[each[1]]] == host
        ]  # fmt: skip
        if extra:
            columns.append(
                (
                    np.array([each[2] for each in extra], np.int64),
                    np.array([KIND[each[0]] for each in extra], np.int8),
                    np.array([each[1] for each in extra], np.int32),
                    np.array([each[4].get("class", -1) for each in extra], np.int8),
                )
            )
        # The daemon starts before all other events, and again at the end of each day.
        starts = [-1_000_000, *(DAY_US * (day + 1) - 30_000_000 for day in range(fleet.days))]
        columns.append(
            (
                np.array(starts, np.int64),
                np.zeros(len(starts), np.int8),
                np.full(len(starts), -1, np.int32),
                np.full(len(starts), -1, np.int8),
            )
        )
        us, kind, of, why = (np.concatenate(each) for each in zip(*columns, strict=True))
        columns.clear()
        # Ties keep the order above, which is that of a message's life.
        order = np.argsort(us, kind="stable")
        self.us, self.kind, self.of, self.why = us[order], kind[order], of[order], why[order]
        self.again = np.zeros(len(order), bool)
        if extra:
            flags = np.zeros(len(order), bool)
            place = len(order) - len(starts) - len(extra)
            flags[place : place + len(extra)] = [bool(each[4].get("again")) for each in extra]
            self.again = flags[order]


def _messages_of(m: Messages, streams: Array) -> Array:
    """Return the messages of the chosen streams, in their order."""
    ranges = [
        np.arange(m.first[stream], m.first[stream + 1], dtype=np.int32)
        for stream in np.flatnonzero(streams)
    ]
    return np.concatenate(ranges) if ranges else np.zeros(0, np.int32)
