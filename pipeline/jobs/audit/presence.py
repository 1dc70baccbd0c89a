"""Messages that should be in a queue, compared with the inventories of queue managers.

`qmd ship` writes an inventory: the ids of all stored messages at one position of the log.  A
message that arrived before that position, that no event has ended, and that the inventory does not
name has vanished: its row was lost, or a backup was restored that does not have it.

A queue manager also misses rows itself, and logs an event for each (docs/decisions/0057): the
audit believes it, also without an inventory, and accuses a message once if both show it.

The newest inventory of each queue manager decides: a message that vanished is missing in all later
ones.  So the order in which inventories and logs are read makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.events import Unreadable, hash_of, read_rows
from pipeline.jobs.audit.facts import GONE, Role
from pipeline.jobs.audit.settled import Numbers, Stretches
from pipeline.stores import store_at

if TYPE_CHECKING:
    from pipeline.jobs.audit.survey import Survey

Frame = Any
Array = Any

#: Messages that arrived in a queue of `host`, and that no event has ended.
PRESENT = ["host", "source", "number", "epoch", "block", "at_ms", "queue"]
#: Messages that the queue manager `host` has missed in `queue` of its database.
MISSED = ["host", "source", "number", "block", "at_ms", "queue"]
#: Ranges of numbers that an inventory of `host` names; `source` is 0 if it names none.
#: All events from before `taken_at_ms` are in blocks up to `block`; 0: not known.
INVENTORY = ["host", "epoch", "block", "at_ms", "source", "first", "last", "taken_at_ms"]

#: The columns that an inventory of every release has; no row has a null in the first four.
_OF_FILE = ("queue_manager", "epoch", "block", "at_ms", "source", "first", "last")
_NAMED = re.compile(
    r"(?:^|/)inventory/day=[^/]+/host=[^/]+/([0-9a-f-]{36})(?:-e(\d+))?-(\d{16})-\d{16}\.parquet$"
)
_EVENTS = "/events"


def find(inputs: Sequence[str]) -> list[str]:
    """Return the newest inventory of each queue manager below `inputs`, as paths or URLs.

    An input may be a folder of `qmd ship`, its folder `events`, or a folder that holds several.
    """
    newest: dict[str, tuple[tuple[int, int], str]] = {}
    for each in inputs:
        fs, root, is_local = store_at(each)
        beside = f"{root[: -len(_EVENTS)]}/inventory" if root.endswith(_EVENTS) else root
        for path in {*fs.find(root), *fs.find(beside)}:
            if named := _NAMED.search(str(path)):
                position = int(named[2] or 1), int(named[3])
                where = str(path) if is_local else fs.unstrip_protocol(path)
                newest[named[1]] = max(newest.get(named[1], ((0, 0), "")), (position, where))
    return [path for _, path in newest.values()]


def read(paths: Sequence[str]) -> tuple[Frame, dict[str, str]]:
    """Return inventories as `INVENTORY`, and path -> error of those that cannot be read.

    Without an inventory an audit misses messages that vanished, and says nothing wrong.
    """
    rows: list[tuple[int, ...]] = []
    broken: dict[str, str] = {}
    for path in paths:
        try:
            rows += _rows(path)
        except Unreadable as error:
            broken[path] = error.why
    return pd.DataFrame(rows, columns=INVENTORY).astype(np.int64), broken


def _rows(path: str) -> list[tuple[int, ...]]:
    listed = read_rows(path, _OF_FILE)
    hashes = {text: hash_of(text) for each in listed if (text := each["source"])}
    return [
        (
            hash_of(each["queue_manager"]), each["epoch"], each["block"], each["at_ms"],
            hashes.get(each["source"], 0), each["first"] or 0, each["last"] or 0,
            each.get("taken_at_ms") or 0,
        )
        for each in listed
    ]  # fmt: skip


def newest(*frames: Frame) -> Frame:
    """Return the newest of several inventories of each host."""
    both = pd.concat(frames).drop_duplicates()
    if len(both) == 0:
        return both
    order = ["epoch", "block", "taken_at_ms"]
    last = both[["host", *order]].sort_values(order).drop_duplicates("host", keep="last")
    return both.merge(last, on=["host", *order]).reset_index(drop=True)


def still_there(known: Frame, new: Frame, departed: Numbers) -> Frame:
    """Return the messages of `PRESENT` that have not departed."""
    both = pd.concat([known, new]).drop_duplicates(["host", "source", "number", "epoch", "block"])
    both = both.astype(np.int64)
    source, number = both.source.to_numpy(), both.number.to_numpy()
    gone = np.zeros(len(both), bool)
    for role in GONE:
        gone |= departed.of_kind(source, number, int(role))
    return both[~gone].reset_index(drop=True)


def _decided(found: Survey, rows: Frame) -> tuple[Array, Array]:
    """Return which rows an inventory of their host decides, and the epoch of that inventory.

    `rows` has host, epoch (0: not known), block, at_ms.  All of the log from the event to the
    inventory must have been read.
    """
    heads = found.inventories.drop_duplicates("host")[["host", "epoch", "block", "at_ms"]]
    heads = heads.rename(columns={name: f"inv_{name}" for name in ("epoch", "block", "at_ms")})
    with_head = rows[["host", "epoch", "block", "at_ms"]].merge(heads, on="host", how="left")
    values = {name: with_head[name].fillna(-1).to_numpy(np.int64) for name in with_head}
    epoch, own = values["inv_epoch"], values["epoch"]
    is_older = np.where(
        own > 0, own < epoch, (epoch > 1) & (values["at_ms"] <= values["inv_at_ms"])
    )
    before = ((own == epoch) | (own == 0)) & (values["block"] <= values["inv_block"])
    stretches = Stretches(found.covered)
    here = stretches.of(values["host"], values["block"])
    there = stretches.of(values["host"], values["inv_block"])
    return (epoch > 0) & (is_older | before) & (here >= 0) & (here == there), is_older


def _is_named(found: Survey, host: Array, source: Array, number: Array) -> Array:
    """Return which messages the inventory of their host names."""
    named = np.zeros(len(host), bool)
    for each, part in found.inventories.groupby("host"):
        at = np.flatnonzero(host == each)
        ranges = part[["source", "first", "last"]].assign(is_express=0)
        named[at] = Numbers(ranges).have(source[at], number[at], express=False)
    return named


def vanished(found: Survey, columns: Sequence[str]) -> Frame:
    """Return findings, with the columns of candidates: messages that are in their queue no more."""
    some = [_not_listed(found), _missed_in_queues(found)]
    lost = pd.concat([each for each in some if len(each)] or some[:1], ignore_index=True)
    # The event has the time at which its queue manager missed the message: it comes last.
    lost = lost.drop_duplicates(["host", "source", "number"], keep="last")
    return lost.reindex(columns=list(columns)).astype({name: "Int64" for name in columns[1:]})


def _not_listed(found: Survey) -> Frame:
    """Return the messages that should be in a queue, and that the inventory does not name."""
    rows = found.present
    if len(rows) == 0 or len(found.inventories) == 0:
        return rows.iloc[:0].assign(kind=[], stream=[])
    is_decided, is_older = _decided(found, rows)
    is_decided &= ~_is_named(
        found, *(rows[name].to_numpy() for name in ("host", "source", "number"))
    )
    lost = rows[is_decided].assign(
        kind=np.where(is_older[is_decided], "rolled_back", "vanished"), stream=-1
    )
    return lost.drop_duplicates(["host", "source", "number"])


def _missed_in_queues(found: Survey) -> Frame:
    """Return the messages that a queue manager has missed in a queue of its own.

    One that an application received nevertheless was in the memory of its queue manager.
    """
    rows = found.missed
    queues = _queues_of(rows, found)
    is_copy = queues.str.contains(";", regex=False).to_numpy(bool)
    source, number = rows.source.to_numpy(np.int64), rows.number.to_numpy(np.int64)
    received = found.departed_numbers.of_kind(source, number, int(Role.RECEIVED))
    chosen = ~queues.str.contains("=", regex=False).to_numpy(bool) & (is_copy | ~received)
    return rows[chosen].assign(kind="vanished", stream=-1)


def missed_on_the_way(found: Survey) -> Frame:
    """Return the messages that a queue manager has missed in a queue to another host."""
    queues = _queues_of(found.missed, found)
    return found.missed[queues.str.contains("=", regex=False).to_numpy(bool)]


def _queues_of(rows: Frame, found: Survey) -> Frame:
    """Return the names of the queues; of objects, as pandas takes an empty column for numbers."""
    return pd.Series([found.names.get(int(each), "") for each in rows.queue], rows.index, object)


def not_on_its_way(rows: Frame, found: Survey) -> Array:
    """Return which of the candidates `pending` their source does not have any more."""
    asked = pd.DataFrame(
        {
            "host": rows.source.to_numpy(np.int64),
            "epoch": 0,
            "block": rows.sent_block.fillna(-1).to_numpy(np.int64),
            "at_ms": rows.sent_at.fillna(0).to_numpy(np.int64),
        }
    )
    if len(found.inventories) == 0 or len(rows) == 0:
        return np.zeros(len(rows), bool)
    is_decided, _ = _decided(found, asked)
    source, number = asked.host.to_numpy(), rows.number.fillna(0).to_numpy(np.int64)
    return is_decided & ~_is_named(found, source, source, number)


def missed_at(rows: Frame, found: Survey) -> Frame:
    """Return for each of the candidates when a queue manager on its way missed it; null: never."""
    on_way = missed_on_the_way(found)
    times = on_way.groupby(["source", "number"]).at_ms.min().astype("Int64")
    keys = pd.MultiIndex.from_arrays([rows.source.astype(np.int64), rows.number.fillna(0)])
    return pd.Series(times.reindex(keys).array, index=rows.index, dtype="Int64")
