"""Event files: one for each host and day, in the schema of `qmd events export`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from pipeline.generator.events import Events
from pipeline.generator.injected_faults import InjectedFaults
from pipeline.generator.messages import Messages
from pipeline.generator.plan import (
    CLASSES,
    DAY_US,
    KIND,
    KINDS,
    LABELS,
    QUEUES,
    Array,
    Fleet,
    host_name,
)
from qmd.cli.event_files import arrow_schema
from storage.tables.keys import (
    ARRIVAL_BITS,
    OUTGOING_TRANSACTIONAL_LEVEL,
    TRANSACTIONAL_LEVEL,
)

_MANY = 5_000_000  # messages
_PLAIN_LEVEL = 4  # of the default priority, 3


def write(fleet: Fleet, m: Messages, faults: InjectedFaults, folder: Path) -> int:
    """Write one file for each host and day; return the number of events."""
    tables = Tables(fleet, m, faults)
    hosts = [host for host in range(fleet.hosts) if host not in faults.no_log]
    # numpy and Arrow release the GIL, but two large hosts at once need much memory.
    with ThreadPoolExecutor(2 if m.size < _MANY else 1) as pool:
        return sum(pool.map(lambda host: tables.write(host, folder), hosts))


class Tables:
    """The events of one host as a table of the exported schema."""

    def __init__(self, fleet: Fleet, m: Messages, faults: InjectedFaults) -> None:
        self._fleet, self._m, self._faults = fleet, m, faults
        self._schema = arrow_schema()
        hosts = range(fleet.hosts)
        self._names = [host_name(host) for host in hosts]
        self._guids = faults.guids
        self._addresses = [f"{name}:1801" for name in self._names]
        self._local = [f"private$\\{name}" for name in QUEUES]
        self._remote = [
            f"DIRECT=OS:{self._names[m.target[s]]}\\private$\\{QUEUES[m.queue[s]]}"
            for s in range(fleet.streams)
        ]

    def write(self, host: int, folder: Path) -> int:
        faults, fleet = self._faults, self._fleet
        events = Events(fleet, self._m, faults, host)
        lookup, has_lookup = _places(host, self._m, events)
        us = np.maximum(events.us, 0, out=events.us)
        at_ms = (self._m.start_us + us) // 1000 + faults.skew_ms[host]
        # Events within a few ms are one commit.
        begins = np.ones(len(us), bool)
        begins[1:] = us[1:] - us[:-1] > 5000
        block = np.cumsum(begins)
        heads = np.flatnonzero(begins)
        day = ((at_ms - self._m.start_us // 1000) // (DAY_US // 1000)).astype(np.int16)
        keep = np.ones(len(us), bool)
        if host in faults.late:  # the last day, by the clock of this host
            keep &= day < fleet.days - 1
        if host in faults.hole:
            begin, end = faults.hole[host]
            # A hole ends at the end of a block.
            inside = (us >= begin) & (us < end)
            keep &= ~np.isin(block, block[inside])
        del us, begins
        count = 0
        for each in np.unique(day[keep]):
            chosen = np.flatnonzero(keep & (day == each))
            moment = self._fleet.start.timestamp() + int(each) * 86_400
            text = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
            path = folder / f"day={text}" / f"host={self._names[host]}"
            path.mkdir(parents=True, exist_ok=True)
            # A day at a time: the texts of all events of a large host need much memory.
            part = self._table(
                HostEvents(host, chosen, self._m, events), at_ms[chosen],
                block[chosen], chosen - heads[block[chosen] - 1], lookup[chosen],
                has_lookup[chosen],
            )  # fmt: skip
            first = int(chosen[0])
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

    def _table(
        self, r: HostEvents, at_ms: Array, block: Array, index: Array, lookup: Array,
        has_lookup: Array,
    ) -> Any:  # fmt: skip
        number, has_sequence = self._numbers(r)
        sequence_id = r.m.high[r.message] << 32 | r.m.ordinal[r.message]
        class_, reason, to_queue, label = r.outcomes()
        queue, peer, message_id = self._names_of(r)
        n = r.count
        delivery = np.where(r.is_any("sent", "accepted"), r.m.delivery[r.stream], 3)
        block_text = pc.cast(pa.array(block), pa.string())
        index_text = pc.cast(pa.array(index), pa.string())
        columns = {
            "schema": np.ones(n, np.int32),
            "host": _text(np.full(n, r.host), self._names),
            "queue_manager": _text(np.full(n, r.host), self._guids),
            "cursor": pc.binary_join_element_wise(block_text, index_text, "."),
            "block": block,
            "index": index,
            "time": pa.array(at_ms).cast(pa.timestamp("ms", "UTC")),
            "at_ms": at_ms,
            "kind": _text(r.kind, list(KINDS)),
            "message_id": message_id,
            "queue": queue,
            "peer": peer,
            "lookup_id": pa.array(lookup, mask=~has_lookup),
            "sequence_id": pa.array(sequence_id, mask=~has_sequence).cast(pa.decimal128(20, 0)),
            "sequence_number": pa.array(number, mask=~has_sequence),
            "class": class_,
            "delivery": _text(delivery, ["transactional", "recoverable", "express", ""]),
            "bytes": np.where(r.is_about_none | r.is_any("duplicate"), 0, r.m.bytes[r.message]),
            "reason": reason,
            "to_queue": to_queue,
            "transaction": _text(np.zeros(n), [""]),
            "label": label,
            "correlation_id": _text(np.zeros(n), [""]),
        }
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def _numbers(self, r: HostEvents) -> tuple[Array, Array]:
        """Return the sequence number of each event, and which events have one."""
        number, at_target = r.m.number[r.message], self._faults.number_at_target
        if at_target:
            number = number.copy()
            changed = r.is_any("accepted") & np.isin(r.message, list(at_target))
            for each in np.flatnonzero(changed):
                number[each] += at_target[int(r.message[each])]
        has_sequence = r.transactional & r.is_any(
            "sent", "transmitted", "retransmitted", "accepted", "order_acknowledged"
        )
        return number, has_sequence

    def _names_of(self, r: HostEvents) -> tuple[Any, Any, Any]:
        """Return the queue, the peer and the message id of each event."""
        queue_names = [*self._remote, *self._local, ""]
        local = len(self._remote) + r.m.queue[r.stream]
        queue = np.where(
            r.is_about_none, len(queue_names) - 1, np.where(r.is_here, local, r.stream)
        )
        peers = [*self._guids, *self._addresses, ""]
        peer = np.full(r.count, len(peers) - 1)
        peer = np.where(r.is_any("transmitted", "retransmitted"), r.target, peer)
        peer = np.where(
            r.is_any("order_acknowledged", "session_acknowledged", "final_ack_received"),
            len(self._guids) + r.target,
            peer,
        )
        peer = np.where(
            r.is_any("accepted", "duplicate", "refused", "out_of_order"), r.source, peer
        )
        number_text = pc.cast(pa.array(r.m.message_number[r.message]), pa.string())
        ids = pc.binary_join_element_wise(_text(r.source, self._guids), number_text, "\\")
        message_id = pc.if_else(pa.array(r.is_about_none), "", ids)
        return _text(queue, queue_names), _text(peer, peers), message_id


def _places(host: int, m: Messages, events: Events) -> tuple[Array, Array]:
    """Return the lookup id of each event of a host, and which events have one."""
    n, kind, of = len(events.kind), events.kind, np.maximum(events.of, 0)

    def is_any(*names: str) -> Array:
        return np.isin(kind, [KIND[name] for name in names])

    transactional = m.transactional[of]
    lookup = np.zeros(n, np.int64)

    def enter(at: Array, number: Array) -> None:
        level = np.where(transactional[at], TRANSACTIONAL_LEVEL, _PLAIN_LEVEL)
        level[is_dead[at]] = TRANSACTIONAL_LEVEL
        lookup[at] = level.astype(np.int64) << ARRIVAL_BITS | number

    accepted, is_dead = is_any("accepted"), is_any("dead_lettered")
    has_lookup = accepted | is_dead
    arrivals = np.flatnonzero(has_lookup)
    enter(arrivals, np.arange(1, len(arrivals) + 1))
    sent = is_any("sent")
    has_lookup |= sent
    at = np.flatnonzero(sent)
    enter(at, m.message_number[of[at]])
    at = at[transactional[at]]
    lookup[at] = (OUTGOING_TRANSACTIONAL_LEVEL << ARRIVAL_BITS) | m.position[of[at]]
    # A message that leaves a queue leaves the place that it got on arrival.
    left = np.flatnonzero(is_any("received", "expired"))
    is_here = (kind[left] == KIND["received"]) | (m.source[m.stream[of[left]]] != host)
    left = left[is_here]
    has_lookup[left] = True
    arrivals = np.flatnonzero(accepted)
    arrivals = arrivals[np.argsort(of[arrivals], kind="stable")]
    if len(arrivals):
        after = np.searchsorted(of[arrivals], of[left]) + events.again[left]
        lookup[left] = lookup[arrivals[np.minimum(after, len(arrivals) - 1)]]
    return lookup, has_lookup


class HostEvents:
    """Some events of one host, with columns of their messages."""

    def __init__(self, host: int, rows: Array, m: Messages, events: Events) -> None:
        self.m, self.host = m, host
        self.kind, self.of, self.why = events.kind[rows], events.of[rows], events.why[rows]
        self.again = events.again[rows]
        self.count = len(self.kind)
        self.is_about_none = self.of < 0  # about no message: the start of the daemon
        self.message = np.maximum(self.of, 0)
        self.stream = m.stream[self.message]
        self.source, self.target = m.source[self.stream], m.target[self.stream]
        self.transactional = m.transactional[self.message]
        #: Whether the event is about a queue of this host.
        self.is_here = self.is_any(
            "accepted", "received", "refused", "duplicate", "out_of_order", "final_ack_sent"
        ) | ((self.source != host) & self.is_any("expired", "dead_lettered", "lost"))

    def is_any(self, *names: str) -> Array:
        """Return which events are of these kinds."""
        return np.isin(self.kind, [KIND[name] for name in names])

    def outcomes(self) -> tuple[Any, Any, Any, Any]:
        """Return the class, the reason, the dead-letter queue and the label of each event."""
        why, dead = self.why, self.is_any("dead_lettered")
        classes = pc.if_else(
            pa.array(why >= 0),
            _text(np.maximum(why, 0), list(CLASSES)),
            pa.scalar(None, pa.string()),
        )
        reason = np.where(self.is_about_none, 1, np.where(self.is_any("retransmitted"), 2, 0))
        reason = np.where(why == 0, 3, np.where(why == 1, 4, np.where(why > 1, 5, reason)))
        to_queue = np.where(dead, np.where(self.transactional, 2, 1), 0)
        label = np.where(dead, self.m.queue[self.stream], len(LABELS))
        return (
            classes,
            _text(reason, _REASONS),
            _text(to_queue, ["", "system$;deadletter", "system$;deadxact"]),
            _text(label, [*LABELS, ""]),
        )


def _text(codes: Array, values: list[str]) -> Any:
    """Return the value of each code, as an Arrow array."""
    indices = pa.array(codes.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(values)).cast(pa.string())


_REASONS = [
    "",
    "after a stop",
    "a new session began",
    "Its time to reach the queue was over.",
    "Its time to be received was over.",
    "The destination has refused it.",
]
#: As in the daemon's exports: repeated texts as dictionaries, everything else plain.
_REPEATED = True
_ENCODINGS = None
