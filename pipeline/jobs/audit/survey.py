"""Survey: from all fingerprints, what is known of each stream and host, and which are suspect.

Everything here is as large as the fleet (streams, queues, hosts), not as its logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pipeline.jobs import clocks
from pipeline.jobs.audit.facts import ARRIVAL_MAX, HALF, Role
from pipeline.jobs.audit.fingerprints import What, follows
from pipeline.jobs.audit.settled import (
    COVERED,
    NUMBERS,
    SEGMENT,
    Numbers,
    Stretches,
    in_pairs,
    joined,
    keys_of,
    pairs_of,
)

Frame = Any
END = np.int64(1) << np.int64(62)  # of a log: behind any block, and any time

#: Times of events of messages; `stream` is the role.
SAMPLES = ["source", "stream", "key_first", "host", "at_first"]
_SAMPLES_MAX = 100_000
_DAY_MS = 86_400_000
_CLOCK_RIGHT_MS = 1000
_MANY = 20  # stretches of a log without adjacent blocks
_FIRST_KEY = 1 << int(HALF) | 1  # of a stream

#: The columns of each merged run that are kept between audits.
RUN_COLUMNS = ["what", "source", "stream", "key_first", "key_last", "place_first", "place_last",
               "block_first", "block_last", "host", "queue", "at_first", "at_last"]  # fmt: skip


@dataclass
class Survey:
    """The knowledge of one audit before it examines single messages."""

    names: dict[int, str]
    hosts: dict[int, str]  # queue managers with a log
    aliases: dict[str, int]  # every name that each of them has had, in lower case
    runs: Frame  # merged, of all time
    streams: Frame  # one row for each stream of these files or carried over
    holes: Frame  # missing stretches of logs: host, blocks, times
    covered: Frame  # stretches that were read
    segments: Frame  # settled parts of streams, including those that these files settle
    numbers: Numbers  # given by each source
    suspect_streams: set[tuple[int, int]] = field(default_factory=set)  # their events are read
    judged_streams: set[tuple[int, int]] = field(default_factory=set)  # these, and open ones
    suspect_plain: set[int] = field(default_factory=set)
    suspect_queues: set[tuple[int, int]] = field(default_factory=set)
    dead: Frame = None  # source, number, role
    twice: set[int] = field(default_factory=set)  # hosts with some events in several files
    events: int = 0
    clock_bounds: Frame = None  # clocks.BOUNDS, of these files
    samples: Frame = None  # that await the events of their other side
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> error


class Known(Protocol):
    """The part of `state.State` that a survey reads; the state is built from surveys."""

    names: dict[int, str]
    hosts: dict[int, str]
    aliases: dict[str, int]
    runs: Frame
    covered: Frame
    routes: Frame
    segments: Frame
    carried: Frame
    numbers: Frame
    samples: Frame


def survey(rows: Frame, known: Known, *, full: bool) -> tuple[Survey, Frame]:
    """Return the survey and the known routes.

    `rows` are those of `fingerprint`; `known` is the state after earlier audits.
    """
    by_what = {What(what): part for what, part in rows.groupby("what")}
    nothing = rows.iloc[:0]

    def of(what: What) -> Frame:
        return by_what.get(what, nothing)

    names = known.names | dict(zip(of(What.NAME).key_first, of(What.NAME).text, strict=True))
    # The last name of a renamed host counts; messages are sent to the earlier names as well.
    named = of(What.HOST).sort_values("block_first")
    hosts = known.hosts | dict(zip(named.host, named.text, strict=True))
    aliases = known.aliases | {
        name.casefold(): int(host) for host, name in zip(named.host, named.text, strict=True)
    }
    routes = pd.concat(
        [known.routes, of(What.ROUTE)[["host", "queue", "source"]]]
    ).drop_duplicates()
    covered, twice = _cover(pd.concat([known.covered, of(What.COVERED)]))
    new = pd.concat([of(What.SENT), of(What.ACCEPTED)])
    merged_new = _merge(new)
    runs = (
        _merge(pd.concat([known.runs, merged_new[RUN_COLUMNS]])) if len(known.runs) else merged_new
    )
    stretches = Stretches(covered)
    numbers = Numbers(
        pd.concat(
            [
                known.numbers,
                of(What.NUMBERS)[["source", "stream", "key_first", "key_last"]].set_axis(
                    NUMBERS, axis=1
                ),
            ]
        )
    )
    samples = pd.concat([known.samples, of(What.SAMPLE)[SAMPLES]])
    holes = _holes(covered)
    bounds, samples = _clock_bounds(samples, holes)
    unsettled = _unsettled(known)
    told = of(What.TOLD)
    orphans = _orphans(told[told.stream >= 0], merged_new, known)
    streams = _streams(new, merged_new, known, unsettled | orphans, stretches)
    _link(streams, runs, hosts, aliases, names, routes)
    found = Survey(
        names,
        hosts,
        aliases,
        runs[RUN_COLUMNS],
        streams,
        holes,
        covered,
        known.segments,
        numbers,
        dead=of(What.DEAD)[["source", "key_first", "key_last"]].drop_duplicates(),
        twice=twice,
        events=int(of(What.COVERED).key_last.sum()),
        clock_bounds=bounds,
        samples=samples,
        unreadable=dict(text.split("\n", 1) for text in of(What.UNREADABLE).text),
    )
    # If more was accepted than sent, a message of another stream to this queue may have repeated.
    s = streams
    strange = (
        ~s.is_clean
        & s.source.isin(list(hosts))
        & (
            (s.accepted_count > s.sent_count)
            | (s.accepted_first < s.sent_first)
            | (s.accepted_last > s.sent_last)
        )
    )
    beside = s.group.isin(s.group[strange])
    is_new = (s.sent_runs >= 0) | (s.accepted_runs >= 0)
    found.suspect_streams = pairs_of(streams[is_new & (~s.is_clean | beside)]) | orphans
    if full:
        found.suspect_streams = pairs_of(streams)
    # A stream of these files is settled here only if it is not examined message by message.
    settled = _whole(streams[~in_pairs(streams, found.suspect_streams)], merged_new)
    found.segments = joined(pd.concat([known.segments, settled]), stretches, keys_of(known.carried))
    found.judged_streams = (
        found.suspect_streams | unsettled | _not_whole(found.segments) & pairs_of(streams)
    )
    found.suspect_plain = _plain(of(What.PLAIN), told[told.stream < 0], found, full=full)
    found.suspect_queues = _queues(of(What.CAME), of(What.LEFT), full=full)
    return found, routes


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


def _unsettled(known: Known) -> set[tuple[int, int]]:
    """Return streams with more than a single segment that begins with a sequence."""
    some = known.carried[known.carried.stream >= 0]
    return pairs_of(some) | _not_whole(known.segments)


def _not_whole(segments: Frame) -> set[tuple[int, int]]:
    """Return streams with several segments, or with one that begins inside a sequence."""
    several = segments.duplicated(["source", "stream"], keep=False)
    return pairs_of(segments[several | (segments.key_first & 0xFFFF_FFFF != 1)])


def _orphans(told: Frame, new: Frame, known: Known) -> set[tuple[int, int]]:
    """Return streams with acknowledged messages of which no sending was read."""
    by = ["source", "stream"]
    told = told.groupby(by, as_index=False).agg(
        first=("key_first", "min"), last=("key_last", "max")
    )
    sent = new[new.what == What.SENT].groupby(by).agg(sent=("key_first", "min"))
    told = told.join(sent.astype("Int64"), on=by)
    told = told[~(told.sent <= told["first"]).fillna(False)]  # includes streams without sending
    segments = known.segments[in_pairs(known.segments, pairs_of(told))]
    parts = {pair: part for pair, part in segments.groupby(by)}
    found = set()
    for row in told.itertuples():
        pair = int(row.source), int(row.stream)
        last = row.last if pd.isna(row.sent) else min(row.last, int(row.sent) - 1)
        part = parts.get(pair)
        # Open messages are known one by one, and searched in any case.
        if part is None or not ((part.key_first <= row.first) & (last <= part.key_last)).any():
            found.add(pair)
    return found


def _whole(streams: Frame, new: Frame) -> Frame:
    """Return the streams that are clean in these files, as segments."""
    clean = streams[streams.is_clean][["source", "stream"]]
    sides = {
        what: new[new.what == what].merge(clean, on=["source", "stream"])
        for what in (What.SENT, What.ACCEPTED)
    }
    sent, accepted = sides[What.SENT], sides[What.ACCEPTED]
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


def _ends_before(known: Known) -> Frame:
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
    new: Frame, merged: Frame, known: Known, more: set[tuple[int, int]], stretches: Stretches
) -> Frame:
    """Return one row for each stream of these files and of `more`, with both sides."""
    key = ["source", "stream"]

    def side(what: What, name: str) -> Frame:
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

    streams = side(What.SENT, "sent").join(side(What.ACCEPTED, "accepted"), how="outer")
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


def _clock_bounds(samples: Frame, holes: Frame) -> tuple[Frame, Frame]:
    """Return bounds of how far the receiver's clock is ahead of the sender's, and samples.

    The samples are those that await events not yet read; the newest if there are many.
    """

    def of(*roles: Role) -> Frame:
        some = samples[samples.stream.isin(roles)].rename(columns={"key_first": "number"})
        # An event that happened twice shows nothing about clocks; a copy of one event is harmless.
        some = some.drop_duplicates(["source", "number", "host", "at_first"])
        return some.drop_duplicates(["source", "number"], keep=False)[
            ["source", "number", "host", "at_first"]
        ]

    both = of(Role.SENT).merge(of(Role.ACCEPTED), on=["source", "number"], suffixes=("_sent", ""))
    acked = of(Role.ORDER_ACKED, Role.SESSION_ACKED)[["source", "number", "at_first"]]
    both = both.merge(acked, on=["source", "number"], how="left", suffixes=("", "_acked"))
    # An acknowledged message may have come earlier, in a stretch that was not read.
    is_unsure = np.zeros(len(both), bool)
    begin = both.at_first_sent.to_numpy(np.float64) - _CLOCK_RIGHT_MS
    end = both.at_first_acked.astype("Float64").to_numpy(np.float64, na_value=-np.inf)
    for hole in holes.itertuples():
        is_unsure |= (
            (both.host == hole.host).to_numpy()
            & (hole.at_first <= end + _CLOCK_RIGHT_MS)
            & (hole.at_last >= begin)
        )
    both["at_from"] = (both.at_first - both.at_first_acked.astype("Int64")).mask(is_unsure)
    both["at_to"] = (both.at_first - both.at_first_sent).astype("Int64")
    both["day"] = both.at_first_sent // _DAY_MS
    bounds = both.groupby(["source", "host", "day"], as_index=False).agg(
        at_from=("at_from", "max"), at_to=("at_to", "min")
    )
    done = both[~is_unsure][["source", "number"]].rename(columns={"number": "key_first"})
    rest = samples.merge(done.assign(done=True), on=["source", "key_first"], how="left")
    rest = rest[rest.done.isna()].sort_values("at_first").tail(_SAMPLES_MAX)
    waiting = rest[SAMPLES].astype(np.int64).reset_index(drop=True)
    return bounds[clocks.BOUNDS], waiting


def _wrapping_sum(values: Any) -> int:
    return int(np.add.reduce(values.to_numpy(np.int64)))


def _link(
    streams: Frame,
    runs: Frame,
    hosts: dict[int, str],
    by_name: dict[str, int],
    names: dict[int, str],
    routes: Frame,
) -> None:
    """Find the receiver of each stream, and the next stream of the same source and queue.

    A restart, or another queue manager product, may begin a stream with new ids.  Messages missing
    at the end of one stream are then skipped when the next stream is accepted.
    """
    n = len(streams)
    accepted = runs[runs.what == What.ACCEPTED]
    sent = runs[runs.what == What.SENT]
    # Add the streams of earlier runs: a new stream may follow one of these.
    by = ["source", "stream"]
    here = list(zip(streams.source, streams.stream, strict=True))
    at = {pair: i for i, pair in enumerate(here)}
    for pair in zip(runs.source, runs.stream, strict=True):
        at.setdefault(pair, len(at))
    ever = pd.DataFrame(list(at), columns=by, dtype=np.int64)
    of_accepted = accepted.groupby(by).agg(
        accepted_host=("host", "first"), block=("block_first", "min"), place=("place_first", "min"),
        began=("key_first", "min"),
    )  # fmt: skip
    of_sent = sent.groupby(by).agg(sent_queue=("queue", "first"), sent_block=("block_first", "min"))
    for side_of in (of_accepted, of_sent):
        ever = ever.join(side_of.astype("Int64"), on=by)  # 64-bit integers, with nulls
    ever = ever.fillna(-1).astype(np.int64)
    parent = list(range(len(ever)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    known: dict[tuple[Any, ...], int] = {}
    for side, frame in (("sent", sent), ("accepted", accepted)):
        unique = frame[["source", "stream", "host", "queue"]].drop_duplicates()
        for source, stream, host, queue in unique.itertuples(index=False):
            i = at.get((source, stream))
            if i is None:
                continue
            key = (side, source, host if side == "accepted" else 0, queue)
            parent[root(i)] = root(known.setdefault(key, i))
    known_routes = routes[["host", "queue", "source"]].itertuples(index=False)
    guids = {(host, queue): peer for host, queue, peer in known_routes if peer in hosts}
    groups: dict[int, list[int]] = {}
    for i in range(len(ever)):
        groups.setdefault(root(i), []).append(i)
    receiver = np.zeros(len(ever), np.int64)
    following, following_sent = np.full((2, len(ever)), -1, np.int64)
    source_at, stream_at = ever.source.to_numpy(), ever.stream.to_numpy()
    accepted_at, queue_at = ever.accepted_host.to_numpy(), ever.sent_queue.to_numpy()
    block_at, place_at = ever.block.to_numpy(), ever.place.to_numpy()
    sent_at, began_at = ever.sent_block.to_numpy(), ever.began.to_numpy()
    last_at = streams.accepted_place_last.to_numpy()
    clean = streams.is_clean.to_numpy().copy()
    group_at = np.zeros(len(ever), np.int64)
    for number, members in enumerate(groups.values()):
        members.sort(key=lambda i: stream_at[i])
        where = next((int(accepted_at[i]) for i in members if accepted_at[i] not in (0, -1)), 0)
        if where == 0:
            for i in members:
                name = names.get(int(queue_at[i]), "")
                where = guids.get((source_at[i], queue_at[i]), 0) or by_name.get(host_in(name), 0)
                if where:
                    break
        behind, behind_sent, place, of_host = -1, -1, END, 0
        for i in reversed(members):
            group_at[i] = number
            # The stream's own receiver, if any of it was stored: others of its group may go
            # elsewhere.
            receiver[i] = accepted_at[i] if accepted_at[i] not in (0, -1) else where
            if of_host == receiver[i]:  # blocks are those of one host
                following[i], following_sent[i] = behind, behind_sent
            if block_at[i] >= 0:
                if i < n and last_at[i] > place and clean[i]:
                    clean[i] = False  # it continues after the next one has begun
                place = min(place, place_at[i])
                # Otherwise the first message that was read may not be the first of the stream.
                is_begin = began_at[i] == _FIRST_KEY
                behind, behind_sent = (int(block_at[i]), int(sent_at[i])) if is_begin else (-1, -1)
                of_host = int(receiver[i])
    streams["receiver"], streams["following"] = receiver[:n], following[:n]
    streams["following_sent"] = following_sent[:n]
    streams["group"] = group_at[:n]
    streams["is_clean"] = clean


def host_in(name: str) -> str:
    """Return the computer in a direct format name; "" for other names."""
    kind, colon, rest = name.partition(":")
    if not colon or not kind.casefold().startswith("direct="):
        return ""
    return rest.partition("\\")[0].partition(":")[0].casefold()


def queue_in(name: str) -> str:
    """Return the queue part of a direct format name; other names unchanged."""
    return name.partition("\\")[2] if host_in(name) else name


def _cover(rows: Frame) -> tuple[Frame, set[int]]:
    """Return merged stretches, and the hosts with repeated blocks."""
    rows = rows[COVERED].sort_values(["host", "block_first", "block_last"], ignore_index=True)
    if len(rows) == 0:
        return rows, set()
    reached = rows.groupby("host").block_last.cummax()
    before = reached.groupby(rows.host).shift(fill_value=-(1 << 60))
    latest = rows.groupby("host").at_last.cummax().groupby(rows.host).shift(fill_value=-(1 << 60))
    is_later = rows.block_first > before  # and not a repetition
    rows["at_sum"] = np.maximum(rows.at_sum, (latest - rows.at_first).where(is_later, 0))
    begins = rows.block_first > before + 1
    merged = rows.groupby(begins.cumsum(), sort=False).agg(
        host=("host", "first"),
        block_first=("block_first", "min"),
        block_last=("block_last", "max"),
        at_first=("at_first", "min"),
        at_last=("at_last", "max"),
        count=("count", "sum"),
        at_sum=("at_sum", "max"),
    )
    merged = merged.reset_index(drop=True)
    expected = merged.block_last - merged.block_first + 1
    twice = set(merged[merged["count"] > expected].host)
    merged["count"] = np.minimum(merged["count"], expected)
    return merged, twice


def _holes(covered: Frame) -> Frame:
    """Return the missing parts of each log: before, between and behind its stretches."""
    found = []
    for host, part in covered.groupby("host"):
        part = part.sort_values("block_first")
        # If a queue manager does not number blocks consecutively, holes are not visible.
        blocks = part["count"].sum()
        # Otherwise: a log with missing stretches has few large gaps, or as much was read as is
        # missing.
        span = part.block_last.max() - part.block_first.min() + 1
        if len(part) > _MANY and len(part) * 10 > blocks * 9 and blocks * 4 < span:
            last = part.iloc[-1]
            found.append((host, last.block_last + 1, END, part.at_last.max(), END))
            continue
        before_block, before_at = 0, -END
        for row in part.itertuples():
            if row.block_first > before_block + 1:
                found.append((host, before_block + 1, row.block_first - 1, before_at, row.at_first))
            before_block, before_at = row.block_last, row.at_last
        found.append((host, before_block + 1, END, before_at, END))
    frame = pd.DataFrame(
        found, columns=["host", "block_first", "block_last", "at_first", "at_last"]
    )
    return frame.astype(np.int64)


def _plain(rows: Frame, told: Frame, found: Survey, *, full: bool) -> set[int]:
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
    source = told.source.to_numpy(np.int64)
    first, last = told.key_first.to_numpy(np.int64), told.key_last.to_numpy(np.int64)
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


def low(key: int) -> tuple[int, int]:
    """Return the lower half of the sequence id, and the number."""
    return key >> int(HALF), key & 0xFFFF_FFFF
