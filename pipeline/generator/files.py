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
from pipeline.generator.strikes import Strikes
from qmd.cli.event_files import arrow_schema
from storage.tables.keys import (
    ARRIVAL_BITS,
    OUTGOING_TRANSACTIONAL_LEVEL,
    TRANSACTIONAL_LEVEL,
)

_PLAIN_LEVEL = 4  # of the default priority, 3


def write(fleet: Fleet, m: Messages, faults: Strikes, events: Events, folder: Path) -> int:
    """Write one file for each host and day; return the number of events."""
    tables = Tables(fleet, m, faults, events)
    hosts = [host for host in range(fleet.hosts) if host not in faults.no_log]
    with ThreadPoolExecutor(2) as pool:  # numpy and Arrow release the GIL
        return sum(pool.map(lambda host: tables.write(host, folder), hosts))


class Tables:
    """The events of one host as a table of the exported schema."""

    def __init__(self, fleet: Fleet, m: Messages, faults: Strikes, events: Events) -> None:
        self._fleet, self._m, self._faults, self._events = fleet, m, faults, events
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
        faults, events, fleet = self._faults, self._events, self._fleet
        rows = slice(events.starts[host], events.starts[host + 1])
        us = np.maximum(events.us[rows], 0)
        at_ms = (self._m.start_us + us) // 1000 + faults.skew_ms[host]
        # Events within a few ms are one commit.
        begins = np.ones(len(us), bool)
        begins[1:] = us[1:] - us[:-1] > 5000
        block = np.cumsum(begins)
        place = np.arange(len(us))
        index = place - np.maximum.accumulate(np.where(begins, place, 0))
        table = self._table(host, rows, at_ms, block, index)
        day = (at_ms - self._m.start_us // 1000) // (DAY_US // 1000)
        keep = np.ones(len(us), bool)
        if host in faults.late:  # the last day, by the clock of this host
            keep &= day < fleet.days - 1
        if host in faults.hole:
            begin, end = faults.hole[host]
            # A hole ends at the end of a block.
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
            # Usually one contiguous range, which needs no copy.
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
            return np.isin(kind, [KIND[name] for name in names])

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
        # A message that leaves a queue leaves the place that it got on arrival.
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
            text(np.maximum(why, 0), list(CLASSES)),
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
        labels = [*LABELS, ""]
        label = np.where(dead, m.queue[stream], len(LABELS))
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
            "kind": text(kind, list(KINDS)),
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


#: As in the daemon's exports: repeated texts as dictionaries, everything else plain.
_REPEATED = True
_ENCODINGS = None
