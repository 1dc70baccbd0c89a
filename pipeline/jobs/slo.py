"""Service level objectives: how many messages were in time, day by day.  docs/jobs.md, "slo"

A message counts on the day on which it was sent.  It is in time if the stage was logged within the
limit; late if it was logged later, if the message died, or if the log of its destination was read
beyond the limit without that event; and if its sender's log was, without an acknowledgment.
Otherwise it is undecided, and a later run decides it.

Days after tomorrow, by the clock of the run, are those of a wrong clock: they do not move the time
over which an objective counts, nor the time until which logs are complete, and are counted apart.

Only messages on which every objective has decided are added to the sums; of all others the events
are kept, and counted anew in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.events import LogFile, text_hashes
from pipeline.jobs.audit.facts import coded, ids_of, is_internal, is_local
from pipeline.jobs.incremental.believed import believed
from pipeline.jobs.incremental.known_events import DAY_MS
from pipeline.jobs.incremental.memory import Memory, joined
from pipeline.jobs.incremental.new_events import each_once
from pipeline.jobs.objectives import Objective

Frame = Any
Array = Any

#: How long an undecided message is kept, by the newest event of its sender.
WAIT_DAYS = 30

_COLUMNS = ("host", "kind", "message_id", "queue")
_SENT, _ACCEPTED, _RECEIVED, _DIED, _ACKED = 1, 2, 3, 4, 5
_KINDS = {
    "sent": _SENT,
    "accepted": _ACCEPTED,
    "received": _RECEIVED,
    "order_acknowledged": _ACKED,
    "session_acknowledged": _ACKED,
    **dict.fromkeys(
        ("expired", "purged", "queue_deleted", "rejected", "unroutable", "dead_lettered",
         "discarded", "damaged", "vanished"),
        _DIED,
    ),
}  # fmt: skip
#: `owner`: the queue manager that logged it.
_EVENT = (
    "source bigint, number bigint, stage bigint, at_ms bigint, host string, queue string,"
    " owner bigint"
)
_NAMES = [each.split()[0] for each in _EVENT.split(", ")]
_SUMS = ["objective", "day", "in_time", "late", "slowest_ms"]
#: The table `objectives`.
RESULT = ["objective", "stage", "within_ms", "target_percent", "days", "messages", "in_time",
          "late", "undecided", "after_tomorrow", "percent", "budget_used_percent", "burn_rate",
          "slowest_ms", "is_met"]  # fmt: skip


def slo(
    engine: Any,
    files: Sequence[LogFile],
    memory: Memory,
    objectives: Sequence[Objective],
    progress: Callable[[str], None] = lambda text: None,
    *,
    now_ms: int | None = None,
) -> dict[str, Frame]:
    """Return the tables `objectives` (one row for each) and `by_day`.

    They cover `files` and the content of `memory`; the new content is staged there.  A changed
    objective begins anew with the new files: give `--again` to count everything.  `now_ms` is the
    time of the run; that of this host unless given.
    """
    progress(f"reading the messages of {len(files)} files")
    fresh = each_once(engine, files, memory.seen(), _COLUMNS, _EVENT, _events)
    try:
        new = fresh.to_pandas()
    finally:
        fresh.close()
    logs = _Logs(*believed(memory.see(fresh.stretches), now_ms))
    progress("comparing them with the objectives")
    rows = joined(memory.read("open", _no_rows()), new[_NAMES] if len(new) else _no_rows())
    messages = _messages(rows)
    messages = _with_receivers(messages, memory)
    counted, is_open = _judged(messages, objectives, logs)
    waits = messages.index[is_open.any(axis=1)]
    waits = waits.union(_without_sending(messages, logs.newest))
    is_final = ~counted.message.isin(waits)
    final = _summed(memory.read("sums", _no_sums()), counted[is_final])
    memory.stage("sums", final)
    keys = pd.MultiIndex.from_frame(rows[["source", "number"]])
    memory.stage("open", rows[keys.isin(waits)].reset_index(drop=True))
    sums = _summed(final, counted[~is_final])
    undecided = dict(zip([each.id for each in objectives], is_open.sum(axis=0), strict=True))
    return _tables(objectives, sums, undecided, logs.day_last)


def _summed(*parts: Frame) -> Frame:
    both = joined(*(part[_SUMS] for part in parts))
    together = {"in_time": "sum", "late": "sum", "slowest_ms": "max"}
    return both.groupby(["objective", "day"], as_index=False).agg(together)[_SUMS]


def _without_sending(messages: Frame, newest: int) -> Any:
    """Return messages that arrived, and were sent in files that may come later."""
    at_ms = messages.accepted_ms.fillna(messages.received_ms)
    since = newest - WAIT_DAYS * DAY_MS
    return messages.index[messages.sent_ms.isna() & (at_ms >= since)]


def _events(table: Any, names: dict[int, str]) -> Iterable[Any]:
    """Return the events of messages between hosts."""
    stage = coded(table.column("kind"), _KINDS, 0).astype(np.int64)
    source, number, has_id = ids_of(table.column("message_id").combine_chunks())
    owner = text_hashes(table.column("queue_manager"))
    own = source == owner
    queues = table.column("queue")
    here, internal = is_local(queues), is_internal(queues)
    by_source = np.isin(stage, (_SENT, _DIED, _ACKED)) & own & ~here & ~internal
    by_other = np.isin(stage, (_ACCEPTED, _RECEIVED, _DIED)) & ~own & here
    at = pa.array(np.flatnonzero(has_id & (by_source | by_other)))
    if len(at) == 0:
        return []

    def text(name: str) -> Any:
        return pc.fill_null(table.column(name).combine_chunks().take(at).cast(pa.string()), "")

    chosen = at.to_numpy()
    arrays = [
        pa.array(source[chosen]), pa.array(number[chosen]), pa.array(stage[chosen]),
        table.column("at_ms").combine_chunks().take(at).cast(pa.int64()), text("host"),
        text("queue"), pa.array(owner[chosen]),
    ]  # fmt: skip
    return [pa.RecordBatch.from_arrays(arrays, names=_NAMES)]


def _no_rows() -> Frame:
    kinds = {"bigint": np.int64, "string": object}
    fields = [each.split() for each in _EVENT.split(", ")]
    return pd.DataFrame({name: pd.Series(dtype=kinds[kind]) for name, kind in fields})


def _no_sums() -> Frame:
    return pd.DataFrame(
        {name: pd.Series(dtype=object if name == "objective" else np.int64) for name in _SUMS}
    )


def _messages(rows: Frame) -> Frame:
    """Return a row for each message, with the first time of each stage (NaN: none)."""
    by = ["source", "number"]
    rows = rows.sort_values([*by, "stage", "at_ms", "host"])
    keys = rows[by].drop_duplicates().set_index(by).index

    def first(stage: int, column: str) -> Any:
        some = rows[rows.stage == stage].drop_duplicates(by).set_index(by)[column]
        if column == "owner":
            some = some.astype("Int64")  # hashes have 64 bits, which a missing one would cut
        return some.reindex(keys)

    return pd.DataFrame(
        {
            "sent_ms": first(_SENT, "at_ms"),
            "from_host": first(_SENT, "host").fillna(""),
            "destination": first(_SENT, "queue").fillna(""),
            "accepted_ms": first(_ACCEPTED, "at_ms"),
            "to_host": first(_ACCEPTED, "host").fillna(""),
            "queue": first(_ACCEPTED, "queue").fillna(""),
            "to_owner": first(_ACCEPTED, "owner"),
            "received_ms": first(_RECEIVED, "at_ms"),
            "died_ms": first(_DIED, "at_ms"),
            "acked_ms": first(_ACKED, "at_ms"),
        },
        index=keys,
    )


def _with_receivers(messages: Frame, memory: Memory) -> Frame:
    """Return messages that did not arrive with the host that has stored others for their queue."""
    empty = pd.DataFrame({"destination": [], "to_host": []}, dtype=object)
    empty["to_owner"] = pd.Series(dtype=np.int64)
    some = messages[(messages.to_host != "") & (messages.destination != "")]
    new = some[list(empty.columns)].astype({"to_owner": np.int64})
    routes = joined(memory.read("routes", empty), new).drop_duplicates("destination")
    routes = routes.sort_values("destination", ignore_index=True)
    memory.stage("routes", routes)
    of = routes.set_index("destination")
    hosts = messages.destination.map(of.to_host)
    owners = messages.destination.map(of.to_owner.astype("Int64"))
    return messages.assign(
        to_host=messages.to_host.where(messages.to_host != "", hosts.fillna("")),
        to_owner=messages.to_owner.fillna(owners),
    )


class _Logs:
    """The times for which each log was read without a gap, up to the end of the day `day_last`."""

    def __init__(self, stretches: Frame, day_last: int) -> None:
        self.day_last = day_last
        last = stretches.at_last
        self.newest = int(last.max()) if last.notna().any() else 0
        s = stretches.sort_values(["host", "block_first", "index_first"])
        behind = s.groupby("host").block_last.cummax().groupby(s.host).shift(fill_value=-2)
        chain = (s.block_first > behind + 1).cumsum()
        # Nothing precedes the first block of a log.
        begin = s.at_first.mask(s.block_first <= 1, -np.inf)
        s = s.assign(begin=begin)
        parts = s.groupby(["host", chain]).agg(first=("begin", "min"), last=("at_last", "max"))
        self._of = {
            int(host): each[["first", "last"]].to_numpy(np.float64)
            for host, each in parts.groupby(level=0)
        }

    def cover(self, hosts: Array, first: Array, last: Array) -> Array:
        """Return whether each host's log was read for all of a time."""
        found = np.zeros(len(hosts), bool)
        for host in np.unique(hosts):
            mine = hosts == host
            for begin, end in self._of.get(int(host), ()):
                found[mine] |= (begin <= first[mine]) & (last[mine] < end)
        return found


def _judged(messages: Frame, objectives: Sequence[Objective], logs: _Logs) -> tuple[Frame, Any]:
    """Return sums of the messages that are decided, and which are undecided, by objective."""
    is_open = np.zeros((len(messages), len(objectives)), bool)
    if len(messages) == 0:
        return _no_sums().assign(message=[]), is_open
    owners = messages.to_owner.fillna(0).to_numpy(np.int64)
    sources = messages.index.get_level_values("source").to_numpy(np.int64)
    is_acked = messages.acked_ms.notna().to_numpy()
    sent = messages.sent_ms.to_numpy(np.float64)
    queue = messages.queue.where(messages.queue != "", messages.destination)
    ways = pd.DataFrame({"a": messages.from_host, "b": messages.to_host, "q": queue})
    codes, _ = pd.factorize(pd.MultiIndex.from_frame(ways))
    firsts = ways.drop_duplicates().itertuples(index=False)
    distinct = [tuple(each) for each in firsts]
    parts = []
    for n, each in enumerate(objectives):
        about = np.array([each.is_about(*way) for way in distinct], bool)[codes] & ~np.isnan(sent)
        at_ms = messages[f"{each.stage}_ms"].to_numpy(np.float64)
        took = np.maximum(at_ms - sent, 0)
        is_there, died = ~np.isnan(at_ms), ~np.isnan(messages.died_ms.to_numpy(np.float64))
        limit = sent + each.within_ms + CLOCKS_MS
        is_over = logs.cover(owners, sent - CLOCKS_MS, limit)
        is_over |= ~is_acked & logs.cover(sources, sent, limit)
        decided = about & (is_there | died | is_over)
        in_time = decided & is_there & (took <= each.within_ms)
        is_open[:, n] = about & ~decided & (sent >= logs.newest - WAIT_DAYS * DAY_MS)
        parts.append(
            pd.DataFrame(
                {
                    "objective": each.id,
                    "day": (sent[decided] // DAY_MS).astype(np.int64),
                    "in_time": in_time[decided].astype(np.int64),
                    "late": (~in_time[decided]).astype(np.int64),
                    "slowest_ms": np.nan_to_num(took[decided]).astype(np.int64),
                    "message": messages.index[decided],
                }
            )
        )
    return pd.concat(parts, ignore_index=True), is_open


#: The clocks of two hosts may be apart by this much.
CLOCKS_MS = 2_000


def _tables(
    objectives: Sequence[Objective], sums: Frame, undecided: dict[str, int], day_last: int
) -> dict[str, Frame]:
    rows, days = [], []
    for each in objectives:
        mine = sums[sums.objective == each.id]
        beyond = mine[mine.day > day_last]
        mine = mine[mine.day <= day_last]
        last = int(mine.day.max()) if len(mine) else 0
        mine = mine[mine.day > last - each.days].sort_values("day")
        good, bad = int(mine.in_time.sum()), int(mine.late.sum())
        allowed = 1 - each.percent / 100
        total = good + bad
        latest = mine[mine.day == last]
        of_day = int(latest.in_time.sum() + latest.late.sum())
        rows.append(
            {
                "objective": each.name, "stage": each.stage, "within_ms": each.within_ms,
                "target_percent": each.percent, "days": each.days, "messages": total,
                "in_time": good, "late": bad, "undecided": int(undecided[each.id]),
                "after_tomorrow": int(beyond.in_time.sum() + beyond.late.sum()),
                "percent": 100 * good / total if total else None,
                "budget_used_percent": 100 * bad / (total * allowed) if total else None,
                "burn_rate": int(latest.late.sum()) / of_day / allowed if of_day else None,
                "slowest_ms": int(mine.slowest_ms.max()) if total else None,
                "is_met": 100 * good >= each.percent * total,
            }
        )  # fmt: skip
        days += [
            {
                "objective": each.name, "day": datetime.fromtimestamp(row.day * 86400, UTC).date(),
                "in_time": int(row.in_time), "late": int(row.late),
                "percent": 100 * row.in_time / (row.in_time + row.late),
            }
            for row in mine.itertuples()
        ]  # fmt: skip
    return {
        "objectives": pd.DataFrame(rows, columns=RESULT),
        "by_day": pd.DataFrame(days, columns=["objective", "day", "in_time", "late", "percent"]),
    }
