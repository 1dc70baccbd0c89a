"""Survey of all fingerprints: the knowledge of each stream and host, and the suspect streams.

Everything here is as large as the fleet (streams, queues, hosts), not as its logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pipeline.jobs.audit.clock_samples import SAMPLES, clock_bounds
from pipeline.jobs.audit.coverage import complete_until, cover, holes_of
from pipeline.jobs.audit.facts import ARRIVAL_MAX, Role
from pipeline.jobs.audit.fingerprints import RowKind, follows
from pipeline.jobs.audit.other_histories import MET, STARTS, starts
from pipeline.jobs.audit.presence import MISSED, PRESENT, still_there
from pipeline.jobs.audit.settled import (
    NUMBERS,
    SEGMENT,
    Numbers,
    Stretches,
    in_pairs,
    joined,
    others_of,
    pairs_of,
)
from pipeline.jobs.audit.stream_links import elsewhere, goes_where_it_should, link

Frame = Any

#: The columns of each merged run that are kept between audits.
RUN_COLUMNS = ["what", "source", "stream", "key_first", "key_last", "place_first", "place_last",
               "block_first", "block_last", "host", "queue", "at_first", "at_last"]  # fmt: skip


@dataclass
class Survey:
    """The knowledge of one audit before it examines single messages."""

    names: dict[int, str]
    hosts: dict[int, str]  # queue managers with a log
    named_at: dict[int, int]
    aliases: dict[str, int]  # every name that each of them has had, in lower case
    runs: Frame  # merged, of all time
    streams: Frame  # one row for each stream of these files or carried over
    holes: Frame  # missing stretches of logs: host, blocks, times
    covered: Frame  # stretches that were read
    segments: Frame  # settled parts of streams, including those that these files settle
    numbers: Numbers  # given by each source
    arrived: Numbers  # arrival numbers of each host
    departed: Numbers  # arrival numbers of each host
    departed_numbers: Numbers  # numbers of each source; its kind is the role
    unarrived: Numbers = field(init=False)  # departed, and no other event names them
    again_places: Numbers  # of `departed`: earlier and in these files
    again_numbers: Numbers  # of all roles
    again: Frame  # settled.AGAIN, of earlier runs
    present: Frame  # presence.PRESENT
    missed: Frame  # presence.MISSED
    inventories: Frame  # presence.INVENTORY, the newest of each host
    starts: Frame  # other_histories.STARTS
    met: Frame  # other_runs.MET
    suspect_streams: set[tuple[int, int]] = field(default_factory=set)  # their events are read
    judged_streams: set[tuple[int, int]] = field(default_factory=set)  # these, and open ones
    suspect_plain: set[int] = field(default_factory=set)
    suspect_queues: set[tuple[int, int]] = field(default_factory=set)
    dead: Frame = None  # source, number, role
    imported: Frame = None  # source, number
    twice: set[int] = field(default_factory=set)  # hosts with some events in several files
    restored: set[int] = field(default_factory=set)  # that logged it, in these files
    events: int = 0
    clock_bounds: Frame = None  # clocks.BOUNDS, of these files
    samples: Frame = None  # that await the events of their other side
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> error


class EarlierState(Protocol):
    """The part of `state.State` that a survey reads; the state is built from surveys."""

    names: dict[int, str]
    hosts: dict[int, str]
    named_at: dict[int, int]  # the block from which on a host has its name
    aliases: dict[str, int]
    runs: Frame
    covered: Frame
    routes: Frame
    segments: Frame
    carried: Frame
    numbers: Frame
    arrived: Frame
    departed: Frame
    departed_numbers: Frame
    again: Frame
    resent: Frame
    samples: Frame
    present: Frame
    missed: Frame
    inventories: Frame
    starts: Frame
    met: Frame


def survey(rows: Frame, known: EarlierState, *, full: bool) -> tuple[Survey, Frame]:
    """Return the survey and the known routes.

    `rows` are those of `fingerprint`; `known` is the state after earlier audits.
    """
    new = _Fingerprints(rows)
    routes = pd.concat(
        [known.routes, new.of(RowKind.ROUTE)[["host", "queue", "source"]]]
    ).drop_duplicates()
    covered, twice = cover(pd.concat([known.covered, new.of(RowKind.COVERED)]))
    both_sides = pd.concat([new.of(RowKind.SENT), new.of(RowKind.ACCEPTED)])
    merged = _merge(both_sides)
    runs = _merge(pd.concat([known.runs, merged[RUN_COLUMNS]])) if len(known.runs) else merged
    stretches = Stretches(covered)
    holes = complete_until(holes_of(covered), known.inventories)
    samples = pd.concat([known.samples, new.of(RowKind.SAMPLE)[SAMPLES]])
    bounds, samples = clock_bounds(samples, holes)
    unsettled = _unsettled(known)
    acknowledged = new.of(RowKind.ACKNOWLEDGED)
    orphans = _orphans(acknowledged[acknowledged.stream >= 0], merged, known)
    streams = _streams(both_sides, merged, known, unsettled | orphans, stretches)
    names, hosts, named_at, aliases = new.names(known)
    link(streams, runs, hosts, aliases, names, routes)
    found = Survey(
        names,
        hosts,
        named_at,
        aliases,
        runs[RUN_COLUMNS],
        streams,
        holes,
        covered,
        known.segments,
        new.numbers(known),
        new.arrived(known),
        *new.departed(known),
        known.again,
        known.present,
        pd.concat([known.missed, new.missed()]).drop_duplicates(ignore_index=True),
        known.inventories,
        starts(known.starts, new.starts(), pd.concat([known.covered, new.of(RowKind.COVERED)])),
        pd.concat([known.met, new.met()]).drop_duplicates(ignore_index=True),
        dead=new.of(RowKind.DEAD)[["source", "key_first", "key_last"]].drop_duplicates(),
        imported=new.of(RowKind.IMPORTED)[["source", "key_first"]].drop_duplicates(),
        twice=twice,
        restored=set(new.of(RowKind.RESTORED).host.tolist()),
        events=int(new.of(RowKind.COVERED).key_last.sum()),
        clock_bounds=bounds,
        samples=samples,
        unreadable=dict(text.split("\n", 1) for text in new.of(RowKind.UNREADABLE).text),
    )
    found.present = still_there(known.present, new.waiting(), found.departed_numbers)
    found.unarrived = found.departed.without(found.arrived)
    streams["is_clean"] &= goes_where_it_should(streams, names)
    found.suspect_streams = pairs_of(streams) if full else _suspects(streams, hosts) | orphans
    # A stream of these files is settled here only if it is not examined message by message.
    settled = _settled(streams[~in_pairs(streams, found.suspect_streams)], merged)
    # Segments of suspect streams are joined when their messages are known.
    segments = pd.concat([known.segments, settled])
    waits = in_pairs(segments, found.suspect_streams)
    found.segments = pd.concat(
        [joined(segments[~waits], stretches, others_of(known.carried)), segments[waits]],
        ignore_index=True,
    )
    found.judged_streams = (
        found.suspect_streams | unsettled | _in_parts(found.segments) & pairs_of(streams)
    )
    _suspect_beside_streams(found, new, acknowledged[acknowledged.stream < 0], full=full)
    return found, routes


def _suspect_beside_streams(
    found: Survey, new: _Fingerprints, acknowledged: Frame, *, full: bool
) -> None:
    """Find the sources of messages without a stream, and the queues, whose events are read."""
    found.suspect_plain = _plain(new.of(RowKind.PLAIN), acknowledged, found, full=full)
    found.suspect_plain |= elsewhere(new.of(RowKind.PLAIN_QUEUE), found.names)
    found.suspect_queues = _queues(new.of(RowKind.CAME), new.of(RowKind.LEFT), full=full)


class _Fingerprints:
    """The rows of `fingerprint`, by their kind."""

    def __init__(self, rows: Frame) -> None:
        self._none = rows.iloc[:0]
        self._by_kind = {RowKind(kind): part for kind, part in rows.groupby("what")}

    def of(self, kind: RowKind) -> Frame:
        return self._by_kind.get(kind, self._none)

    def names(
        self, known: EarlierState
    ) -> tuple[dict[int, str], dict[int, str], dict[int, int], dict[str, int]]:
        """Return the known and new names: of hashes, of hosts, with their blocks, and aliases."""
        names = self.of(RowKind.NAME)
        # The last name of a renamed host counts; messages are sent to the earlier names as well.
        # Its earlier files may come later.
        named = self.of(RowKind.HOST).sort_values("block_first")
        hosts, named_at = dict(known.hosts), dict(known.named_at)
        for host, name, block in zip(named.host, named.text, named.block_first, strict=True):
            if block >= named_at.get(int(host), 0):
                hosts[int(host)], named_at[int(host)] = name, int(block)
        return (
            known.names | dict(zip(names.key_first, names.text, strict=True)),
            hosts,
            named_at,
            known.aliases
            | {
                name.casefold(): int(host)
                for host, name in zip(named.host, named.text, strict=True)
            },
        )

    def numbers(self, known: EarlierState) -> Numbers:
        """Return the known and new numbers that sources gave to messages."""
        new = self.of(RowKind.NUMBERS)[["source", "stream", "key_first", "key_last"]]
        return Numbers(pd.concat([known.numbers, new.set_axis(NUMBERS, axis=1)]))

    def waiting(self) -> Frame:
        """Return the messages that arrived in queues, as `PRESENT`."""
        columns = ["host", "source", "key_first", "stream", "block_first", "at_first", "queue"]
        return self.of(RowKind.WAITS)[columns].set_axis(PRESENT, axis=1)

    def missed(self) -> Frame:
        """Return the messages that queue managers have missed, as `MISSED`."""
        columns = ["host", "source", "key_first", "block_first", "at_first", "queue"]
        return self.of(RowKind.MISSED)[columns].set_axis(MISSED, axis=1)

    def starts(self) -> Frame:
        """Return the starts of queue managers, as `STARTS`."""
        columns = ["host", "block_first", "at_first", "at_last", "source"]
        return self.of(RowKind.STARTED)[columns].set_axis(STARTS, axis=1)

    def met(self) -> Frame:
        """Return the runs that queue managers have met, as `MET`."""
        columns = ["host", "block_first", "place_first", "at_first", "source"]
        return self.of(RowKind.MET)[columns].set_axis(MET, axis=1)

    def arrived(self, known: EarlierState) -> Numbers:
        """Return the known and new arrival numbers of each host."""
        new = self.of(RowKind.ARRIVED)[["source", "stream", "key_first", "key_last"]]
        return Numbers(pd.concat([known.arrived, new.set_axis(NUMBERS, axis=1)]))

    def departed(self, known: EarlierState) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return the known and new departures by place and number, and those that are both."""
        found, again = [], []
        for kind, old in (
            (RowKind.DEPARTED, known.departed),
            (RowKind.DEPARTED_NUMBERS, known.departed_numbers),
        ):
            new = self.of(kind)[["source", "stream", "key_first", "key_last"]]
            new = new.set_axis(NUMBERS, axis=1)
            found.append(Numbers(pd.concat([old, new])))
            again.append(
                Numbers(new.assign(is_express=0)).and_in(Numbers(old.assign(is_express=0)))
            )
        return found[0], found[1], again[0], again[1]


def _suspects(streams: Frame, hosts: dict[int, str]) -> set[tuple[int, int]]:
    """Return the streams of these files that must be examined message by message."""
    s = streams
    # If more was accepted than sent, a message of another stream to this queue may have repeated.
    exceeds = (
        ~s.is_clean
        & s.source.isin(list(hosts))
        & (
            (s.accepted_count > s.sent_count)
            | (s.accepted_first < s.sent_first)
            | (s.accepted_last > s.sent_last)
        )
    )
    beside = s.group.isin(s.group[exceeds])
    is_new = (s.sent_runs >= 0) | (s.accepted_runs >= 0)
    return pairs_of(streams[is_new & (~s.is_clean | beside)])


def _merge(runs: Frame) -> Frame:
    """Merge runs of one side of one stream that follow each other."""
    if len(runs) == 0:
        return runs
    by = ["what", "source", "stream", "key_first", "place_first"]
    runs = runs.sort_values(by, ignore_index=True)
    same = np.zeros(len(runs), bool)
    a, b = runs.iloc[:-1], runs.iloc[1:]
    same[1:] = (
        (a.what.values == b.what.values)
        & (a.source.values == b.source.values)
        & (a.stream.values == b.stream.values)
        & (a.host.values == b.host.values)
        & (a.queue.values == b.queue.values)
        & follows(a.key_last.values, b.key_first.values)
        & (b.place_first.values > a.place_last.values)
    )
    run = np.cumsum(~same)
    how = {
        "what": "first", "source": "first", "stream": "first", "host": "first", "queue": "first",
        "key_first": "first", "key_last": "last", "place_first": "first", "place_last": "last",
        "block_first": "first", "block_last": "last", "at_first": "first", "at_last": "last",
        "at_min": "min", "at_max": "max", "number_first": "first", "number_last": "last",
    }  # fmt: skip
    how = {name: each for name, each in how.items() if name in runs}
    return runs.groupby(run, sort=False).agg(how).reset_index(drop=True)


def _unsettled(known: EarlierState) -> set[tuple[int, int]]:
    """Return streams with more than a single segment that begins with a sequence."""
    some = known.carried[known.carried.stream >= 0]
    return pairs_of(some) | _in_parts(known.segments)


def _in_parts(segments: Frame) -> set[tuple[int, int]]:
    """Return streams with several segments, or with one that begins inside a sequence."""
    several = segments.duplicated(["source", "stream"], keep=False)
    return pairs_of(segments[several | (segments.key_first & 0xFFFF_FFFF != 1)])


def _orphans(acknowledged: Frame, new: Frame, known: EarlierState) -> set[tuple[int, int]]:
    """Return streams with acknowledged messages of which no sending was read."""
    by = ["source", "stream"]
    acknowledged = acknowledged.groupby(by, as_index=False).agg(
        first=("key_first", "min"), last=("key_last", "max")
    )
    sent = new[new.what == RowKind.SENT].groupby(by).agg(sent=("key_first", "min"))
    acknowledged = acknowledged.join(sent.astype("Int64"), on=by)
    acknowledged = acknowledged[
        ~(acknowledged.sent <= acknowledged["first"]).fillna(False)
    ]  # includes streams without sending
    segments = known.segments[in_pairs(known.segments, pairs_of(acknowledged))]
    parts = {pair: part for pair, part in segments.groupby(by)}
    found = set()
    for row in acknowledged.itertuples():
        pair = int(row.source), int(row.stream)
        last = row.last if pd.isna(row.sent) else min(row.last, int(row.sent) - 1)
        part = parts.get(pair)
        # Open messages are known one by one, and searched in any case.
        if part is None or not ((part.key_first <= row.first) & (last <= part.key_last)).any():
            found.add(pair)
    return found


def _settled(streams: Frame, new: Frame) -> Frame:
    """Return the clean ones of `streams` as segments."""
    clean = streams[streams.is_clean][["source", "stream"]]
    sides = {
        what: new[new.what == what].merge(clean, on=["source", "stream"])
        for what in (RowKind.SENT, RowKind.ACCEPTED)
    }
    sent, accepted = sides[RowKind.SENT], sides[RowKind.ACCEPTED]
    accepted = accepted.set_index(["source", "stream"]).reindex(
        pd.MultiIndex.from_frame(sent[["source", "stream"]])
    )
    values = {
        "source": sent.source, "stream": sent.stream, "sent_queue": sent.queue,
        **{name: sent[name] for name in ("key_first", "key_last", "number_first", "number_last")},
        **{f"sent_{name}": sent[name] for name in
           ("block_first", "block_last", "at_first", "at_last", "at_min", "at_max")},
        **{name: accepted[name].to_numpy() for name in
           ("host", "queue", "place_first", "place_last", "block_first", "block_last",
            "at_first", "at_last", "at_min", "at_max")},
    }  # fmt: skip
    return pd.DataFrame(values)[SEGMENT].astype(np.int64)


def _ends_before(known: EarlierState) -> Frame:
    """Return the last known key of each stream, and the last place."""
    by = ["source", "stream"]
    some = known.carried[(known.carried.stream >= 0) & known.carried.role.isin(_BOTH)]
    place = np.where(some.role == Role.ACCEPTED, some.place & ARRIVAL_MAX, -1)
    both = pd.concat(
        [
            known.segments[[*by, "key_last", "place_last"]],
            some.assign(key_last=some.key, place_last=place)[[*by, "key_last", "place_last"]],
        ]
    )
    return (
        both.groupby(by)
        .agg(old_last=("key_last", "max"), old_place=("place_last", "max"))
        .astype("Int64")
    )


_BOTH = (Role.SENT, Role.ACCEPTED)


def _streams(
    new: Frame, merged: Frame, known: EarlierState, more: set[tuple[int, int]], stretches: Stretches
) -> Frame:
    """Return one row for each stream of these files and of `more`, with both sides."""
    key = ["source", "stream"]

    def side(what: RowKind, name: str) -> Frame:
        these = new[new.what == what]
        sums = these.groupby(key).agg(
            **{
                f"{name}_count": ("count", "sum"),
                f"{name}_hashes": ("hashes", _wrapping_sum),
                f"{name}_at_sum": ("at_sum", "sum"),
            }
        )
        spans = (
            merged[merged.what == what]
            .groupby(key)
            .agg(
                **{
                    f"{name}_runs": ("what", "size"),
                    f"{name}_first": ("key_first", "min"),
                    f"{name}_last": ("key_last", "max"),
                    f"{name}_place": ("place_first", "min"),
                    f"{name}_place_last": ("place_last", "max"),
                    f"{name}_block": ("block_first", "min"),
                    f"{name}_block_last": ("block_last", "max"),
                    f"{name}_host": ("host", "first"),
                    f"{name}_queue": ("queue", "first"),
                }
            )
        )
        return sums.join(spans).astype("Int64")  # 64-bit integers, with nulls if one side lacks

    streams = side(RowKind.SENT, "sent").join(side(RowKind.ACCEPTED, "accepted"), how="outer")
    # Open streams are examined again, also if these files contain nothing of them.
    if more:
        pairs = pd.MultiIndex.from_tuples(sorted(more), names=key)
        streams = streams.reindex(streams.index.union(pairs))
    streams = streams.join(_ends_before(known))
    streams = streams.reset_index()
    columns = [name for name in streams.columns if name not in key]
    streams[columns] = streams[columns].fillna(-1).astype(np.int64)
    s = streams
    first_number = s.sent_first & 0xFFFF_FFFF

    def is_read(host: str, first: str, last: str) -> Any:
        one = stretches.of(s[host].to_numpy(), s[first].to_numpy())
        return (one >= 0) & (one == stretches.of(s[host].to_numpy(), s[last].to_numpy()))

    streams["is_clean"] = (
        (s.sent_runs == 1)
        & (s.accepted_runs == 1)
        & (s.sent_first == s.accepted_first)
        & (s.sent_last == s.accepted_last)
        & (s.sent_count == s.accepted_count)
        & (s.sent_hashes == s.accepted_hashes)
        & np.where(
            s.old_last < 0,
            first_number == 1,
            follows(s.old_last.values, s.sent_first.values),
        )
        & (s.accepted_place > s.old_place)
        & is_read("source", "sent_block", "sent_block_last")
        & is_read("accepted_host", "accepted_block", "accepted_block_last")
    )
    return streams


def _wrapping_sum(values: Any) -> int:
    return int(np.add.reduce(values.to_numpy(np.int64)))


def _plain(rows: Frame, acknowledged: Frame, found: Survey, *, full: bool) -> set[int]:
    """Return the sources of which messages without a sequence do not agree everywhere."""
    suspect: set[int] = set()
    for source, part in rows.groupby("source"):
        sides = {
            Role(role): (int(each["count"].sum()), _wrapping_sum(each.hashes))
            for role, each in part.groupby("key_first")
        }
        sent, accepted = sides.get(Role.SENT, (0, 0)), sides.get(Role.ACCEPTED, (0, 0))
        if full or sent != accepted:
            suspect.add(int(source))
    # Events of other hosts about a source's message need the source's own log.
    numbers, with_gaps = found.numbers, found.covered.host[found.covered.host.duplicated()]
    source = acknowledged.source.to_numpy(np.int64)
    first, last = (
        acknowledged.key_first.to_numpy(np.int64),
        acknowledged.key_last.to_numpy(np.int64),
    )
    known = [numbers.have(source, each, express=False) | numbers.have(source, each, express=True)
             for each in (first, last)]  # fmt: skip
    return suspect | set(source[~(known[0] & known[1]) | np.isin(source, with_gaps)].tolist())


def _queues(came: Frame, left: Frame, *, full: bool) -> set[tuple[int, int]]:
    """Return queues (host, name) where departures do not equal arrivals."""
    there = (
        came.groupby(["host", "queue"])
        .agg(count=("count", "sum"), hashes=("hashes", _wrapping_sum))
        .astype("Int64")
    )
    gone = (
        left.groupby(["host", "queue"])
        .agg(count=("count", "sum"), hashes=("hashes", _wrapping_sum))
        .astype("Int64")
    )
    both = gone.join(there, rsuffix="_came", how="left").fillna(-1)
    suspect = both[(both["count"] != both.count_came) | (both.hashes != both.hashes_came) | full]
    return set(suspect.index)
