"""Dead letters: why and where messages died, which still wait, and how to requeue them.

docs/jobs.md

A dead letter waits until an event shows that it left its queue: requeued, received, purged, and so
on.  Dead letters that have left are summed by group.  The events of waiting ones are kept from run
to run, and so are events of leaving without a death, because a late file may contain the death.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.events import LogFile, hash_of
from pipeline.jobs.audit.facts import coded
from pipeline.jobs.incremental.believed import believed
from pipeline.jobs.incremental.known_events import DAY_MS
from pipeline.jobs.incremental.memory import Memory, joined
from pipeline.jobs.incremental.new_events import SparkEvents, each_once

Frame = Any

#: How long an event of leaving a dead-letter queue is kept without its death.
WAIT_DAYS = 30
EXAMPLES = 3

_COLUMNS = ("host", "kind", "message_id", "queue", "to_queue", "class", "label", "bytes", "reason")
_DIED, _LEFT = 1, 2
_KINDS = {
    **dict.fromkeys(("dead_lettered", "discarded"), _DIED),
    **dict.fromkeys(
        ("requeued", "received", "moved", "expired", "purged", "queue_deleted", "rejected",
         "damaged"),
        _LEFT,
    ),
}  # fmt: skip
_OURS = ("system$;deadletter", "system$;deadxact")

#: `queue`: the dead-letter queue; empty if the sender did not ask for a dead letter.
_SCHEMA = (
    "what bigint, host string, queue_manager string, queue string, message_id string, at_ms bigint,"
    " how string, message_class string, destination string, label string, bytes bigint,"
    " reason string"
)
_GROUP = ["host", "message_class", "queue", "label", "to_queue"]
_SUMS = ["messages", "bytes", "requeued", "received", "ended"]


def dead_letters(
    spark: Any,
    files: Sequence[LogFile],
    memory: Memory,
    progress: Callable[[str], None] = lambda text: None,
    *,
    now_ms: int | None = None,
) -> dict[str, Frame]:
    """Return the tables `groups` (most waiting first, with requeue commands) and `by_hour`.

    They cover `files` and the content of `memory`; the new content is staged there.  `now_ms` is
    the time of the run, if not that of this host.
    """
    progress(f"reading deaths: {len(files)} files")
    fresh = each_once(spark, files, memory.seen(), _COLUMNS, _SCHEMA, _rows)
    try:
        if isinstance(fresh, SparkEvents):
            died = fresh.rows.where(f"what = {_DIED}").toPandas()
            places = _dead_letter_queues(died, memory)
            names = [*_OURS, *places.queue.unique()]
            left = fresh.rows.where(f"what = {_LEFT}")
            left = left.where(left.queue.isin(names)).toPandas()
        else:
            rows = fresh.to_pandas()
            died = rows[rows.what == _DIED]
            places = _dead_letter_queues(died, memory)
            left = rows[(rows.what == _LEFT) & rows.queue.isin([*_OURS, *places.queue.unique()])]
    finally:
        fresh.close()
    own = left[~left.queue.isin(_OURS)].merge(places, on=["host", "queue"])
    left = joined(left[left.queue.isin(_OURS)], own)
    progress("finding the dead letters that wait")
    known = memory.read("open", _no_rows())
    judged = _judged(joined(known, died, left))
    seen, _ = believed(memory.see(fresh.stretches), now_ms)
    memory.stage("open", _kept(judged, seen))
    return _tables(judged[judged.what == _DIED], memory)


def _judged(rows: Frame) -> Frame:
    """Add the `fate` of each dead letter, and whether all of its message `is_over`.

    Each death is matched by one leaving, in order if a message dies more than once at a place.
    """
    same = ["host", "queue", "message_id"]
    rows = rows.sort_values([*same, "what", "at_ms"], ignore_index=True)
    is_death = rows.what == _DIED
    key = rows.groupby(same, sort=False).ngroup()
    died = is_death.groupby(key).transform("sum")
    left = (~is_death).groupby(key).transform("sum")
    nth = rows.groupby([key, is_death]).cumcount() + 1
    how = rows.how.fillna("~").groupby(key).transform("min")  # a death has none; "~" sorts last
    without_copy = rows.queue == ""
    fate = pd.Series(np.where(is_death & (nth > left), "waiting", how), rows.index)
    return rows.assign(
        fate=fate.where(~without_copy, ""),
        is_over=without_copy | (died == left),
        died=died,
        left_=left,
    )


def _rows(table: Any, names: dict[int, str]) -> Iterable[Any]:
    """Return deaths, and departures from queues that may contain dead letters."""
    what = coded(table.column("kind"), _KINDS, 0)
    table = table.append_column("what", pa.array(what.astype(np.int64)))
    table = table.filter(pa.array(what != 0))
    if len(table) == 0:
        return []
    died = pc.equal(table.column("what"), _DIED)
    queue = table.column("queue").cast(pa.string())
    source = pc.utf8_lower(pc.utf8_slice_codeunits(table.column("message_id"), 0, 36))
    host = pc.utf8_lower(table.column("queue_manager").cast(pa.string()))
    # An application's dead-letter queue contains only messages of its own queue manager.
    from_dead = pc.or_(
        pc.is_in(queue, pa.array(_OURS)),
        pc.and_(
            pc.equal(source, host),
            pc.invert(pc.or_(pc.match_substring(queue, "="), pc.ends_with(queue, ";journal"))),
        ),
    )
    place = pc.if_else(died, table.column("to_queue").cast(pa.string()), queue)
    columns = {
        "what": table.column("what"),
        "host": table.column("host"),
        "queue_manager": table.column("queue_manager"),
        "queue": pc.fill_null(place, ""),
        "message_id": table.column("message_id"),
        "at_ms": table.column("at_ms"),
        "how": pc.if_else(died, pa.scalar(None, pa.string()), table.column("kind").cast("string")),
        "message_class": pc.fill_null(table.column("class").cast(pa.string()), ""),
        "destination": queue,
        "label": pc.fill_null(table.column("label").cast(pa.string()), ""),
        "bytes": pc.fill_null(table.column("bytes"), 0),
        "reason": table.column("reason").cast(pa.string()),
    }
    plain = pa.table({name: _plain(column) for name, column in columns.items()})
    batches: list[Any] = plain.filter(pc.or_(died, from_dead)).combine_chunks().to_batches()
    return batches


def _plain(column: Any) -> Any:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _no_rows() -> Frame:
    types = {"bigint": np.int64, "string": object}
    fields = [each.split() for each in _SCHEMA.split(", ")]
    return pd.DataFrame({name: pd.Series(dtype=types[kind]) for name, kind in fields})


def _dead_letter_queues(died: Frame, memory: Memory) -> Frame:
    """Return the applications' dead-letter queues: those in which a death was read."""
    known = memory.read("places", _no_rows()[["host", "queue"]])
    new = died[~died.queue.isin(("", *_OURS))][["host", "queue"]]
    both = joined(known, new).drop_duplicates()
    both = both.sort_values(["host", "queue"], ignore_index=True)
    memory.stage("places", both)
    return both


def _kept(judged: Frame, seen: Frame) -> Frame:
    """Return the rows to keep for the next run: all of every message with a waiting row."""
    newest = seen.groupby("host").at_last.max().fillna(0)
    hosts = {name: newest.get(hash_of(name), 0) for name in judged.queue_manager.unique()}
    since = judged.queue_manager.map(hosts).astype("int64") - WAIT_DAYS * DAY_MS
    kept = ~judged.is_over & ((judged.died > 0) | (judged.at_ms >= since))
    return judged[kept][list(_no_rows().columns)]


def _grouped(dead: Frame) -> Frame:
    """Return the sums for each group."""
    if len(dead) == 0:
        return _no_groups().assign(waiting=[], waiting_since_ms=[])
    dead = dead.sort_values(["at_ms", "message_id"])
    dead = dead.assign(
        to_queue=dead.queue, queue=dead.destination, messages=1,
        reason=dead.reason.fillna(""), first_ms=dead.at_ms, last_ms=dead.at_ms,
        examples=dead.at_ms.astype(str).str.zfill(15) + " " + dead.message_id,
        waiting=(dead.fate == "waiting").astype(np.int64),
        waiting_since_ms=dead.at_ms.where(dead.fate == "waiting"),
        requeued=(dead.fate == "requeued").astype(np.int64),
        received=(dead.fate == "received").astype(np.int64),
        ended=(~dead.fate.isin(("", "waiting", "requeued", "received"))).astype(np.int64),
    )  # fmt: skip
    sums = dead.groupby(_GROUP, as_index=False).agg(
        dict.fromkeys((*_SUMS, "waiting"), "sum")
        | {"first_ms": "min", "last_ms": "max", "waiting_since_ms": "min", "reason": "min"}
        | {"examples": lambda some: list(some[:EXAMPLES])}
    )
    return sums


def _tables(dead: Frame, memory: Memory) -> dict[str, Frame]:
    over = _summed([memory.read("groups", _no_groups()), _grouped(dead[dead.is_over])])
    memory.stage("groups", over)
    together = _summed([over, _grouped(dead[~dead.is_over])])
    waiting = _grouped(dead[dead.fate == "waiting"])
    waiting = waiting[[*_GROUP, "waiting", "waiting_since_ms", "examples"]]
    together = together.merge(waiting, how="left", on=_GROUP, suffixes=("", "_waiting"))
    together["waiting"] = together.waiting.astype("Int64").fillna(0).astype(np.int64)
    together["waiting_since_ms"] = together.waiting_since_ms.astype("Int64")
    chosen = [
        some if isinstance(some, list) else every
        for some, every in zip(together.examples_waiting, together.examples, strict=True)
    ]
    together["examples"] = [", ".join(each.partition(" ")[2] for each in some) for some in chosen]
    together["command"] = [command(row) if row.waiting else "" for row in together.itertuples()]
    together = together.sort_values(
        ["waiting", "messages", *_GROUP], ascending=[False, False, *[True] * len(_GROUP)],
        ignore_index=True,
    )  # fmt: skip
    names = [*_GROUP, "messages", "waiting", *_SUMS[1:], "first_ms", "last_ms", "waiting_since_ms",
             "reason", "examples", "command"]  # fmt: skip
    return {"groups": together[names], "by_hour": _hours(dead, memory)}


def _no_groups() -> Frame:
    types: dict[str, Any] = dict.fromkeys((*_GROUP, "reason", "examples"), object)
    types |= dict.fromkeys((*_SUMS, "first_ms", "last_ms"), np.int64)
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in types.items()})


def _summed(parts: Sequence[Frame]) -> Frame:
    names = list(_no_groups().columns)
    both = joined(*(part[names] for part in parts))
    if len(both) == 0:
        return both
    sums = both.groupby(_GROUP, as_index=False).agg(
        {name: "sum" for name in _SUMS}
        | {"first_ms": "min", "last_ms": "max", "reason": "min", "examples": _first}
    )
    return sums[names]


def _first(lists: Any) -> list[str]:
    return sorted({each for some in lists for each in some})[:EXAMPLES]


def _hours(dead: Frame, memory: Memory) -> Frame:
    keys = ["hour_ms", "message_class"]
    new = pd.DataFrame({
        "hour_ms": dead.at_ms - dead.at_ms % 3_600_000, "message_class": dead.message_class,
        "messages": 1, "waiting": (dead.fate == "waiting").astype(np.int64),
    })  # fmt: skip
    over = joined(memory.read("hours", new[:0]), new[dead.is_over])
    over = over.groupby(keys, as_index=False).sum()
    memory.stage("hours", over)
    both = joined(over, new[~dead.is_over]).groupby(keys, as_index=False).sum()
    both["hour"] = pd.to_datetime(both.hour_ms, unit="ms")
    return both.sort_values(keys, ignore_index=True)[["hour", *list(new.columns)[1:]]]


def command(group: Any) -> str:
    """Return the command with which an operator at `group.host` requeues its messages."""
    if not group.to_queue:
        return ""  # no dead letter was kept
    kept = "transactional-dead-letter" if group.to_queue.endswith("deadxact") else "dead-letter"
    words = ["qmd", "dead-letter", "requeue"]
    words += ["--queue", kept if group.to_queue.startswith("system$") else group.to_queue]
    for option, value in (
        ("--class", group.message_class),
        ("--destination", group.queue),
        ("--label", group.label),
    ):
        if value:
            words += [option, value]
    return " ".join(map(shlex.quote, words))
