"""Readable names of hosts, queues and messages for the findings of the audit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit.facts import HALF, key_parts
from pipeline.jobs.audit.findings import COPY_VANISHED, FINDING_SCHEMA, KINDS
from pipeline.jobs.audit.stream_links import host_in, queue_in
from pipeline.jobs.audit.survey import Survey

Frame = Any

_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_STREAM_COLUMNS = [
    *("source", "stream", "from_host", "to_host", "queue", "sent", "accepted", "mean_ms", "open"),
]


class Labels:
    """Names of hosts, queues and messages by their hashes."""

    def __init__(self, found: Survey, routes: Frame) -> None:
        self._names, self._hosts = found.names, found.hosts
        self._streams, self._by_name = found.streams, found.aliases
        self._routes: dict[tuple[int, int], int] = {}
        self._unknown: dict[tuple[int, int], int] = {}  # peers without a log
        self._guid_names: dict[int, str] = {}
        for host, queue, peer in routes[["host", "queue", "source"]].itertuples(index=False):
            self._add_route(host, queue, peer)

    def _add_route(self, host: int, queue: int, peer: int) -> None:
        name = host_in(self._names.get(queue, ""))
        if peer in self._hosts:
            self._routes[host, queue] = peer
        else:
            self._unknown[host, queue] = peer
            if name and name not in self._by_name:  # otherwise it is a relay
                self._guid_names.setdefault(peer, name)

    def host(self, host: int) -> str:
        return self._hosts.get(host) or self._guid_names.get(host) or self._names.get(host, "")

    def taker(self, source: int, queue: int, acked_by: Any) -> int:
        """Return the host that has acknowledged a message, or should have; it may be a relay."""
        peer = 0 if pd.isna(acked_by) else int(acked_by)
        # The GUID, or the address if the GUID was unknown.
        if peer in self._hosts or _GUID.fullmatch(self._names.get(peer, "")):
            return peer
        return self._unknown.get((source, queue)) or self.receiver(source, queue)

    def acknowledger(self, peer: int) -> int:
        """Return the host of a peer, or 0 if only an address is known that no name matches."""
        text = self._names.get(peer, "")
        if peer in self._hosts or _GUID.fullmatch(text):
            return peer
        return self._by_name.get(text.partition(":")[0].casefold(), 0)

    def receiver(self, source: int, queue: int) -> int:
        known = self._routes.get((source, queue))
        return known or self._by_name.get(host_in(self._names.get(queue, "")), 0)

    def absent(self, row: Any) -> str:
        """Return the host of the missing log that leaves this candidate undecided."""
        if row.covering:
            return self.host(int(row.covering))
        queue = self._names.get(int(row.sent_queue), "") if pd.notna(row.sent_queue) else ""
        return host_in(queue) or queue or "unknown"

    def about(self, kind: str, host: int, detail: str, at_ms: Any) -> dict[str, Any]:
        return dict.fromkeys(FINDING_SCHEMA.names) | {
            "kind": kind,
            "host": self.host(int(host)),
            "at_ms": at_ms,
            "detail": detail,
        }

    def finding(self, row: Any) -> dict[str, Any]:
        source = self._names.get(int(row.source), "")
        has_key = pd.notna(row.key) and row.stream >= 0
        to_host = self.host(int(row.host)) if pd.notna(row.host) else ""
        sent_queue = self._names.get(int(row.sent_queue), "") if pd.notna(row.sent_queue) else ""
        sequence_id = number = until = None
        if has_key:
            ordinal, number = key_parts(int(row.key))
            sequence_id = int(row.stream) << int(HALF) | ordinal
            if pd.notna(row.until_key):
                until = key_parts(int(row.until_key))[1]
        queue = self._names.get(int(row.queue), "") if pd.notna(row.queue) else ""
        is_copy = row.kind == "vanished" and ";" in queue
        return {
            "kind": row.kind,
            "host": to_host,
            "from_host": self.host(int(row.source)) or source,
            "to_host": to_host or host_in(sent_queue),
            "queue": queue if pd.notna(row.queue) else queue_in(sent_queue),
            "message_id": f"{source}\\{int(row.number)}" if pd.notna(row.number) else "",
            "sequence_id": sequence_id,
            "sequence_number": number,
            "until_number": until,
            "at_ms": int(row.at_ms) if pd.notna(row.at_ms) else None,
            "detail": COPY_VANISHED if is_copy else KINDS[row.kind],
        }

    def streams(self, findings: Frame, open_rows: Frame) -> Frame:
        s = self._streams
        if len(s) == 0:
            return pd.DataFrame(columns=_STREAM_COLUMNS)
        opened = open_rows.groupby(["source", "stream"]).size()
        queue = np.where(s.accepted_queue > -1, s.accepted_queue, s.sent_queue)
        queue = [
            self._names.get(int(a), "") or queue_in(self._names.get(int(b), ""))
            for a, b in zip(s.accepted_queue, s.sent_queue, strict=True)
        ]
        to_host = [
            self.host(int(receiver)) or host_in(self._names.get(int(q), ""))
            for receiver, q in zip(s.receiver, s.sent_queue, strict=True)
        ]
        sent, accepted = s.sent_count.clip(lower=0), s.accepted_count.clip(lower=0)
        same = (sent == accepted) & (sent > 0)
        delay = np.where(same, (s.accepted_at_sum - s.sent_at_sum) / sent.clip(lower=1), np.nan)
        return pd.DataFrame(
            {
                "source": s.source,
                "stream": s.stream,
                "from_host": [self.host(int(source)) or self._names.get(int(source), "")
                              for source in s.source],
                "to_host": to_host,
                "queue": queue,
                "sent": sent,
                "accepted": accepted,
                "mean_ms": delay,
                "open": [int(opened.get(pair, 0))
                         for pair in zip(s.source, s.stream, strict=True)],
            }
        )  # fmt: skip
