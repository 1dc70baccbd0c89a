"""Links of streams: the receiver of each stream, and the stream that follows it.

A restart, or another queue manager product, may begin a stream with new ids.  Messages missing at
the end of one stream are then skipped when the next stream is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit.coverage import END
from pipeline.jobs.audit.facts import HALF, Role
from pipeline.jobs.audit.fingerprints import RowKind

Frame = Any
_FIRST_KEY = 1 << int(HALF) | 1  # of a stream


def link(
    streams: Frame,
    runs: Frame,
    hosts: dict[int, str],
    by_name: dict[str, int],
    names: dict[int, str],
    routes: Frame,
) -> None:
    """Add to `streams` the receiver, the group, and the block at which the next stream begins.

    Streams of the same source and queue, or of the same source and receiving queue, are one group.
    """
    ever = _every_stream(streams, runs)
    known_routes = routes[["host", "queue", "source"]].itertuples(index=False)
    guids = {(host, queue): peer for host, queue, peer in known_routes if peer in hosts}
    links = _Links(ever, streams)
    source_at, stream_at = ever.source.to_numpy(), ever.stream.to_numpy()
    queue_at = ever.sent_queue.to_numpy()
    for number, members in enumerate(_groups(ever, runs)):
        members.sort(key=lambda i: stream_at[i])
        routes_of = ((source_at[i], int(queue_at[i])) for i in members)
        host = links.accepting_host(members) or _routed_host(routes_of, guids, by_name, names)
        links.add_group(number, members, host)
    n = len(streams)
    streams["receiver"], streams["following"] = links.receiver[:n], links.following[:n]
    streams["following_sent"] = links.following_sent[:n]
    streams["group"] = links.group[:n]
    streams["is_clean"] = links.is_clean


def _every_stream(streams: Frame, runs: Frame) -> Frame:
    """Return a row for each of `streams`, and then for each stream of earlier runs.

    A new stream may follow one of the earlier ones.
    """
    by = ["source", "stream"]
    pairs = dict.fromkeys(zip(streams.source, streams.stream, strict=True))
    pairs |= dict.fromkeys(zip(runs.source, runs.stream, strict=True))
    ever = pd.DataFrame(list(pairs), columns=by, dtype=np.int64)
    of_accepted = runs[runs.what == RowKind.ACCEPTED].groupby(by).agg(
        accepted_host=("host", "first"), block=("block_first", "min"), place=("place_first", "min"),
        began=("key_first", "min"),
    )  # fmt: skip
    of_sent = runs[runs.what == RowKind.SENT].groupby(by).agg(
        sent_queue=("queue", "first"), sent_block=("block_first", "min")
    )  # fmt: skip
    for side_of in (of_accepted, of_sent):
        ever = ever.join(side_of.astype("Int64"), on=by)  # 64-bit integers, with nulls
    return ever.fillna(-1).astype(np.int64)


def _groups(ever: Frame, runs: Frame) -> list[list[int]]:
    """Return the rows of `ever` by group."""
    parent = list(range(len(ever)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    at = {pair: i for i, pair in enumerate(zip(ever.source, ever.stream, strict=True))}
    known: dict[tuple[Any, ...], int] = {}
    for side in (RowKind.SENT, RowKind.ACCEPTED):
        columns = ["source", "stream", "host", "queue"]
        unique = runs.loc[runs.what == side, columns].drop_duplicates()
        for source, stream, host, queue in unique.itertuples(index=False):
            i = at[source, stream]
            key = (side, source, host if side == RowKind.ACCEPTED else 0, queue)
            parent[root(i)] = root(known.setdefault(key, i))
    groups: dict[int, list[int]] = {}
    for i in range(len(ever)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


def _routed_host(
    routes: Iterable[tuple[int, int]],
    guids: dict[tuple[int, int], int],
    by_name: dict[str, int],
    names: dict[int, str],
) -> int:
    """Return the host to which the first known one of `routes` (host, queue) leads; else 0."""
    for host, queue in routes:
        found = guids.get((host, queue), 0) or by_name.get(host_in(names.get(queue, "")), 0)
        if found:
            return found
    return 0


class _Links:
    """The columns that `link` adds, for all streams."""

    def __init__(self, ever: Frame, streams: Frame) -> None:
        n = len(ever)
        self.receiver, self.group = np.zeros((2, n), np.int64)
        self.following, self.following_sent = np.full((2, n), -1, np.int64)
        self.is_clean = streams.is_clean.to_numpy().copy()
        self._place_last = streams.accepted_place_last.to_numpy()
        self._accepted_host = ever.accepted_host.to_numpy()
        self._block, self._place = ever.block.to_numpy(), ever.place.to_numpy()
        self._sent_block, self._began = ever.sent_block.to_numpy(), ever.began.to_numpy()

    def accepting_host(self, members: list[int]) -> int:
        """Return the host that accepted the first accepted stream of a group; else 0."""
        hosts = (int(self._accepted_host[i]) for i in members)
        return next((host for host in hosts if host not in (0, -1)), 0)

    def add_group(self, number: int, members: list[int], host: int) -> None:
        """Link the streams of one group, sorted by their ids; `host` is the default receiver."""
        behind, behind_sent, place, of_host = -1, -1, END, 0
        for i in reversed(members):
            self.group[i] = number
            # The stream's own receiver, if any of it was stored: other streams of its group may
            # go elsewhere.
            accepted_host = self._accepted_host[i]
            self.receiver[i] = accepted_host if accepted_host not in (0, -1) else host
            if of_host == self.receiver[i]:  # blocks are those of one host
                self.following[i], self.following_sent[i] = behind, behind_sent
            if self._block[i] >= 0:
                in_files = i < len(self.is_clean)
                if in_files and self._place_last[i] > place and self.is_clean[i]:
                    self.is_clean[i] = False  # it continues after the next one has begun
                place = min(place, self._place[i])
                # Otherwise the first message that was read may not be the first of the stream.
                is_begin = self._began[i] == _FIRST_KEY
                behind, behind_sent = (
                    (int(self._block[i]), int(self._sent_block[i])) if is_begin else (-1, -1)
                )
                of_host = int(self.receiver[i])


def host_in(name: str) -> str:
    """Return the computer in a direct format name; "" for other names."""
    kind, colon, rest = name.partition(":")
    if not colon or not kind.casefold().startswith("direct="):
        return ""
    return rest.partition("\\")[0].partition(":")[0].casefold()


def queue_in(name: str) -> str:
    """Return the queue part of a direct format name; other names unchanged."""
    return name.partition("\\")[2] if host_in(name) else name


def goes_where_it_should(streams: Frame, names: dict[int, str]) -> Any:
    """Return which streams were stored in the queue to which they were sent, as far as known."""
    wanted = destinations(names, streams.sent_queue.unique().tolist())
    right = (
        queue == -1 or sent not in wanted or queue in wanted[sent]
        for sent, queue in zip(streams.sent_queue, streams.accepted_queue, strict=True)
    )
    return np.fromiter(right, bool, len(streams))


def destinations(names: dict[int, str], queues: Iterable[int]) -> dict[int, set[int]]:
    """Return for direct names (as hashes) the hashes of the local names that are their queue.

    Names of queues are the same in capitals.
    """
    by_name: dict[str, set[int]] = {}
    for known, text in names.items():
        by_name.setdefault(text.casefold(), set()).add(known)
    found = {}
    for each in queues:
        name = names.get(each, "")
        local = queue_in(name) if host_in(name) else ""
        if local and ";" not in local:
            found[each] = by_name.get(local.casefold(), set())
    return found


def elsewhere(sums: Frame, names: dict[int, str]) -> set[int]:
    """Return sources of which messages without a stream may be in another queue than they were for.

    `sums` are the rows `PLAIN_QUEUE`.  Queues are compared only if their direct names are known: a
    message that was redirected, or sent by another kind of name, may be anywhere.
    """
    suspect: set[int] = set()
    for source, part in sums.groupby("source"):
        sent = part[part.key_first == int(Role.SENT)]
        stored = part[part.key_first == int(Role.ACCEPTED)]
        wanted = destinations(names, sent.queue.unique().tolist())
        if wanted.keys() != set(sent.queue):
            continue
        for queues in {frozenset(each) for each in wanted.values()}:
            for_them = [name for name, each in wanted.items() if each & queues]
            there = stored[stored.queue.isin({q for name in for_them for q in wanted[name]})]
            if _total(sent[sent.queue.isin(for_them)]) != _total(there):
                suspect.add(int(source))
    return suspect


def _total(rows: Frame) -> tuple[int, int]:
    hashes = rows.hashes.to_numpy(np.int64).view(np.uint64)
    return int(rows["count"].sum()), int(hashes.sum())
