"""The audit: both ends of every stream, joined across the fleet.  docs/jobs.md, "audit"

Two passes over what was not audited before, each through `pipeline.events.read_piece`:

    1. fingerprint    each piece of the log as some rows for each stream (`runs.py`); what agrees
                      on both sides is proved with that (`survey.py`)
    2. messages       events of suspect streams only (or all: `full`), shuffled once, by the
                      message's source; one row for each message, and the rules below

No rule uses a clock, but where nothing else can tell: what a log that ends too early would have
held.  What cannot be decided because a log is missing is no finding about a message: it stays open,
and is decided when the log comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.events import LogFile, pieces, read_piece
from pipeline.jobs import clocks
from pipeline.jobs.facts import (
    ARRIVAL_MAX,
    COLUMNS,
    EXPRESS,
    HALF,
    RECOVERABLE,
    Facts,
    Role,
    facts_of,
)
from pipeline.jobs.runs import SCHEMA, SPARK_SCHEMA, fingerprint, mixed
from pipeline.jobs.state import State
from pipeline.jobs.survey import END, Survey, host_in, low, queue_in, survey

Frame = Any
Progress = Callable[[str], None]

#: Findings in the order of how much they matter, and what each says.
KINDS = {
    "acked_not_stored": "The destination acknowledged it, and never stored it: it is lost.",
    "lost": "The destination went on to later messages without it: it is lost.",
    "duplicated": "The destination stored it more than once.",
    "ended_twice": "It left its place in a queue twice: it was received, or ended, a second time.",
    "delivered_and_dead": "It was delivered, and its sender keeps it as not delivered.",
    "reordered": "It was stored after a later message of its stream.",
    "wrong_number": "It was stored under another number than it was sent with.",
    "number_reused": "Two messages were sent under one number.",
    "never_sent": "The destination stored what nobody has sent.",
    "gap": "Its number was never given to a message: one is missing, and no expiry explains it.",
    "clock": "The clock of this computer is wrong.",
    "log_hole": "A stretch in the middle of the log of this computer is missing.",
    "late_log": "The log of this computer ends before what others tell about it.",
    "no_log": "There is no log of this computer.",
}
#: About logs and clocks: what they leave undecided is no loss.
ABOUT_HOSTS = ("clock", "log_hole", "late_log", "no_log")

FINDING_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("host", pa.string()),  # that the finding is about: of a clock or a log; else the receiver
        ("from_host", pa.string()),
        ("to_host", pa.string()),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("sequence_id", pa.decimal128(20, 0)),
        ("sequence_number", pa.int64()),
        ("until_number", pa.int64()),  # of a gap
        ("at_ms", pa.int64()),
        ("detail", pa.string()),
    ]
)

_DEAD_ROLES = (Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
_CLOCK_UNSURE_MS = 50  # offsets are no more exact than the way there and back
_SAMPLE = 64  # one message of so many tells about clocks
_FACT_SCHEMA = ", ".join(f"{name} bigint" for name in Facts._fields)
_ARROW_FACTS = pa.schema([(name, pa.int64()) for name in Facts._fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    full: bool = False
    clock_tolerance_ms: int = 1000
    findings_max: int = 100_000  # of one run; how many there were is counted all the same
    pictures: int = 0  # of so many findings their neighbours are looked up
    tasks: int = 0  # 0: by the size of the input and the session


@dataclass
class Picture:
    """A finding among its neighbours, of which `messages` has when each was sent and accepted."""

    kind: str
    source: int
    host: int
    key: int
    messages: Frame
    from_host: str = ""
    to_host: str = ""


@dataclass
class AuditResult:
    findings: Frame  # of FINDING_SCHEMA
    open: Frame  # what is undecided, by why: reason, host, messages
    streams: Frame  # for each: from, to, queue, sent, accepted, open, findings
    offsets_ms: dict[str, float]  # of the clocks of hosts, as far as they are known
    events: int
    messages: int
    suspects: int
    files: int
    seconds: float
    carried: Frame = None
    counts: dict[str, int] | None = None
    pictures: list[Picture] = field(default_factory=list)


def audit(
    spark: Any,
    files: Sequence[LogFile],
    state: State,
    settings: AuditSettings | None = None,
    progress: Progress = lambda text: None,
) -> AuditResult:
    """Audit `files`, which `state` has not seen; `state` knows them afterwards (in memory)."""
    settings = settings or AuditSettings()
    begun = time.monotonic()
    tasks = settings.tasks or _tasks(spark, files)
    progress(f"reading {len(files)} files")
    prints = _map(spark, files, tasks, _fingerprints, SPARK_SCHEMA).toPandas()
    found, routes = survey(
        prints,
        old_runs=state.runs,
        old_covered=state.covered,
        old_names=state.names,
        old_hosts=state.hosts,
        old_routes=state.routes,
        carried=state.carried_streams(),
        full=settings.full,
    )
    suspects = len(found.suspect_streams) + len(found.suspect_plain)
    progress(f"{found.events} events of {len(found.hosts)} hosts; {suspects} streams in full")
    facts = _suspect_facts(spark, files, tasks, found, state, full=settings.full)
    judged = _judge(spark, facts, found, routes, state, settings)
    judged.events = found.events
    judged.files = len(files)
    judged.suspects = suspects
    for picture in judged.pictures:
        labels = _Labels(found, routes)
        picture.from_host = labels.host(picture.source)
        picture.to_host = labels.host(picture.host)
    state.learn(files, found, routes, judged.carried)
    judged.seconds = time.monotonic() - begun
    return judged


def _tasks(spark: Any, files: Sequence[LogFile]) -> int:
    size = sum(file.size for file in files)
    return max(int(spark.sparkContext.defaultParallelism) * 2, size // (32 << 20), 1)


def _map(spark: Any, files: Sequence[LogFile], tasks: int, function: Any, schema: str) -> Any:
    """`function` of each piece of the files, as a table of `schema`."""
    work = [(number, part) for number, part in enumerate(pieces(files, tasks))]
    cut = spark.createDataFrame(
        pd.DataFrame(
            {
                "task": [number for number, _ in work],
                "path": [[path for path, _, _ in part] for _, part in work],
                "first": [[first for _, first, _ in part] for _, part in work],
                "last": [[last for _, _, last in part] for _, part in work],
            }
        ),
        "task int, path array<string>, first array<bigint>, last array<bigint>",
    )
    cut = cut.repartitionByRange(max(len(work), 1), "task")

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        def parts() -> Iterator[tuple[str, int, int]]:
            for batch in batches:
                for row in batch.to_pylist():
                    yield from zip(row["path"], row["first"], row["last"], strict=True)

        yield from function(parts())

    return cut.mapInArrow(each, schema)


def _fingerprints(parts: Iterator[tuple[str, int, int]]) -> Iterator[Any]:
    names: dict[int, str] = {}
    told: set[int] = set()
    hosts: dict[int, str] = {}
    held: list[Any] = []
    for part in parts:
        for table in read_piece(part, COLUMNS):
            fresh: dict[int, str] = {}
            facts = facts_of(table, fresh)
            new_hosts = _hosts_of(table, facts)
            new_hosts = {host: name for host, name in new_hosts.items() if host not in hosts}
            hosts |= new_hosts
            names = {key: text for key, text in fresh.items() if key not in told}
            told |= names.keys()
            held += fingerprint(facts, names, new_hosts)
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
    else:
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)


def _hosts_of(table: Any, facts: Facts) -> dict[int, str]:
    """The names of the queue managers that tell."""
    hosts, first = np.unique(facts.host, return_index=True)
    names = table.column("host")
    return {int(host): names[int(at)].as_py() or "" for host, at in zip(hosts, first, strict=True)}


def _suspect_facts(
    spark: Any,
    files: Sequence[LogFile],
    tasks: int,
    found: Survey,
    state: State,
    *,
    full: bool,
) -> Any:
    """The events that the rules need, with what was carried over."""
    streams = np.sort(_pair(found.suspect_streams))
    plain = np.array(sorted(found.suspect_plain), np.int64)
    queues = np.sort(_pair(found.suspect_queues))
    dead = pd.concat([found.dead, state.dead])
    messages = np.sort(mixed(dead.source.to_numpy(np.int64), dead.key_first.to_numpy(np.int64)))
    transport = np.zeros(len(Role), bool)
    transport[[Role.SENT, Role.ACCEPTED, Role.ORDER_ACKED, Role.SESSION_ACKED]] = True
    transport[Role.RELAYED] = True
    ends = np.zeros(len(Role), bool)
    ends[[Role.ENDED, Role.REFUSED, Role.DEAD_LATER]] = True
    leaves = np.zeros(len(Role), bool)
    leaves[[Role.RECEIVED, Role.LEFT]] = True

    def chosen(f: Facts) -> Any:
        moves, left = transport[f.role], leaves[f.role]
        if full:
            return moves | ends[f.role] | left
        has_stream = f.stream >= 0
        is_suspect = np.where(
            has_stream, _in(mixed(f.source, f.stream), streams), _in(f.source, plain)
        )
        return (
            ends[f.role]
            | (moves & is_suspect)
            | (moves & has_stream & (f.number % _SAMPLE == 1))
            | ((moves | left) & _in(mixed(f.source, f.number), messages))
            | (left & _in(mixed(f.host, f.queue), queues))
        )

    def select(parts: Iterator[tuple[str, int, int]]) -> Iterator[Any]:
        for part in parts:
            for table in read_piece(part, COLUMNS):
                facts = facts_of(table)
                some = facts.where(chosen(facts))
                yield pa.RecordBatch.from_arrays(
                    [pa.array(column.astype(np.int64)) for column in some], schema=_ARROW_FACTS
                )

    facts = _map(spark, files, tasks, select, _FACT_SCHEMA)
    if len(state.carried):
        facts = facts.unionByName(spark.createDataFrame(state.carried, _FACT_SCHEMA))
    facts = facts.repartition(max(spark.sparkContext.defaultParallelism * 2, 4), "source")
    if found.twice or len(state.carried):
        facts = facts.dropDuplicates(["source", "host", "block", "index"])
    return facts


def _pair(pairs: Iterable[tuple[int, int]]) -> Any:
    listed = list(pairs)
    left = np.array([left for left, _ in listed], np.int64)
    return mixed(left, np.array([right for _, right in listed], np.int64))


def _in(values: Any, among: Any) -> Any:
    """Whether each of `values` is among the sorted ones."""
    if len(among) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return among[at] == values


def _judge(
    spark: Any, facts: Any, found: Survey, routes: Frame, state: State, settings: AuditSettings
) -> AuditResult:
    """The rules.  Everything below is partitioned by `source`, as the events came."""
    from pyspark import StorageLevel

    facts = facts.persist(StorageLevel.DISK_ONLY)
    facts.createOrReplaceTempView("facts")
    _streams_view(spark, found, state)
    ended = spark.sql(_ENDED)
    ended.createOrReplaceTempView("ended")
    old = state.dead
    spark.createDataFrame(
        [
            (int(source), int(number), *(int(role == each) for each in _DEAD_ROLES))
            for source, number, role in old.itertuples(index=False)
        ],
        "source bigint, number bigint, old_ended int, old_refused int, old_dead_later int",
    ).groupBy("source", "number").max().toDF(
        "source", "number", "source_", "number_", "old_ended", "old_refused", "old_dead_later"
    ).createOrReplaceTempView("old_dead")
    spark.sql(_MESSAGES).createOrReplaceTempView("messages")
    spark.sql(_ORDERED).createOrReplaceTempView("ordered")
    candidates = spark.sql(_CANDIDATES).unionByName(spark.sql(_PLAIN)).unionByName(
        spark.sql(_LEFT_TWICE)
    ).unionByName(spark.sql(_CLOCK_BOUNDS))  # fmt: skip
    try:
        # Hashes have 64 bits: columns with nulls must not become floating.
        rows = _exact(candidates)
        judged, proved = _conclude(rows, found, routes, state, settings)
        if settings.pictures:
            judged.pictures = _pictures(spark, proved, settings.pictures)
    finally:
        facts.unpersist()
    return judged


def _exact(table: Any) -> Frame:
    return table.toArrow().to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _pictures(spark: Any, proved: Frame, most: int) -> list[Picture]:
    """Of some findings, of different kinds, the messages around them."""
    some = proved[proved.key.notna() & (proved.stream >= 0)]
    chosen = [
        row for kind in KINDS for row in some[some.kind == kind].head(1).itertuples()
    ][:most]  # fmt: skip
    if not chosen:
        return []
    spark.createDataFrame(
        [(n, int(row.source), int(row.stream), int(row.key)) for n, row in enumerate(chosen)],
        "n int, source bigint, stream bigint, wanted bigint",
    ).createOrReplaceTempView("chosen")
    near = _exact(spark.sql(_NEAR)).sort_values(["n", "key", "number"])
    found = []
    for n, row in enumerate(chosen):
        messages = near[near.n == n].assign(
            is_bad=lambda each, row=row: (
                (each.key == row.key) if pd.isna(row.number) else each.number == row.number
            )
        )
        found.append(Picture(row.kind, int(row.source), int(row.host) if pd.notna(row.host) else 0,
                             int(row.key), messages))  # fmt: skip
    return found


def _streams_view(spark: Any, found: Survey, state: State) -> None:
    """What is known of suspect streams from elsewhere: for the rules to look up."""
    streams = found.streams
    suspect = found.suspect_streams
    mask = [pair in suspect for pair in zip(streams.source, streams.stream, strict=True)]
    columns = ["source", "stream", "receiver", "following", "old_sent_last", "old_accepted_last"]
    some = streams.loc[mask, columns]
    old = state.runs
    if len(old):
        from pipeline.jobs.runs import What

        def runs(what: What, which: tuple[str, str]) -> Any:
            these = old[old.what == what]
            lists = {
                pair: part[["key_first", "key_last", *which]].values.tolist()
                for pair, part in these.groupby(["source", "stream"])
            }
            return [lists.get(pair, []) for pair in zip(some.source, some.stream, strict=True)]

        some = some.assign(
            old_sent=runs(What.SENT, ("block_first", "block_last")),
            old_accepted=runs(What.ACCEPTED, ("place_first", "place_last")),
        )
    else:
        some = some.assign(old_sent=[[] for _ in range(len(some))])
        some["old_accepted"] = some.old_sent
    schema = (
        ", ".join(f"{name} bigint" for name in columns)
        + ", old_sent array<array<bigint>>, old_accepted array<array<bigint>>"
    )
    rows = [tuple(row) for row in some.itertuples(index=False)]
    spark.createDataFrame(rows, schema).createOrReplaceTempView("streams")


_ARRIVAL = f"if(place >= 0, place & {ARRIVAL_MAX}, block << 20 | index)"

#: What speaks of a message and not of its stream.
_ENDED = f"""
SELECT source, number,
       count_if(role = {Role.ENDED}) AS ended,
       min(at_ms) FILTER (WHERE role = {Role.ENDED}) AS ended_at,
       count_if(role = {Role.REFUSED}) AS refused,
       count_if(role = {Role.DEAD_LATER}) AS dead_later,
       count_if(role = {Role.RECEIVED}) AS received,
       count_if(role = {Role.ORDER_ACKED}) AS acked_late,
       min(at_ms) FILTER (WHERE role = {Role.ORDER_ACKED}) AS acked_late_at
FROM facts
WHERE stream < 0 AND role IN ({Role.ENDED}, {Role.REFUSED}, {Role.DEAD_LATER}, {Role.RECEIVED},
                              {Role.ORDER_ACKED})
GROUP BY source, number
"""

#: One row for each message of a stream.
_MESSAGES = f"""
WITH each AS (
  SELECT source, stream, number,
    count_if(role = {Role.SENT}) AS sent,
    min(key) FILTER (WHERE role = {Role.SENT}) AS sent_key,
    min(at_ms) FILTER (WHERE role = {Role.SENT}) AS sent_at,
    min(block) FILTER (WHERE role = {Role.SENT}) AS sent_block,
    min(queue) FILTER (WHERE role = {Role.SENT}) AS sent_queue,
    count_if(role = {Role.ACCEPTED}) AS accepted,
    min(key) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_key,
    max(key) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_key_last,
    min({_ARRIVAL}) FILTER (WHERE role = {Role.ACCEPTED}) AS place,
    min(block) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_block,
    min(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at,
    max(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at_last,
    min_by(host, place) FILTER (WHERE role = {Role.ACCEPTED}) AS host,
    min_by(queue, place) FILTER (WHERE role = {Role.ACCEPTED}) AS queue,
    count_if(role = {Role.ORDER_ACKED}) AS acked,
    min(at_ms) FILTER (WHERE role = {Role.ORDER_ACKED}) AS acked_at
  FROM facts
  WHERE stream >= 0 AND role IN ({Role.SENT}, {Role.ACCEPTED}, {Role.ORDER_ACKED})
  GROUP BY source, stream, number
)
SELECT /*+ BROADCAST(old_dead, streams) */ each.*, coalesce(sent_key, accepted_key) AS key,
  coalesce(ended, 0) + coalesce(old_ended, 0) AS ended, ended_at,
  coalesce(refused, 0) + coalesce(old_refused, 0) AS refused,
  coalesce(dead_later, 0) + coalesce(old_dead_later, 0) AS dead_later,
  coalesce(received, 0) AS received,
  acked + coalesce(acked_late, 0) > 0 AS is_acked, coalesce(acked_at, acked_late_at) AS ack_at,
  streams.receiver, streams.following, streams.old_sent_last, streams.old_accepted_last,
  streams.old_sent, streams.old_accepted, streams.stream IS NOT NULL AS is_suspect
FROM each
LEFT JOIN ended USING (source, number)
LEFT JOIN old_dead USING (source, number)
LEFT JOIN streams USING (source, stream)
"""

#: With what was sent and accepted before and after it.
_ORDERED = """
SELECT *,
  lag(key) OVER by_key AS key_before,
  max(sent_key) OVER before AS sent_before,
  max(sent_block) OVER before AS sent_block_before,
  min(sent_block) OVER behind AS sent_block_after,
  max(accepted_block) OVER before AS accepted_block_before,
  min(accepted_block) OVER behind AS accepted_block_after,
  max(if(accepted > 0, key, NULL)) OVER (PARTITION BY source, stream ORDER BY place NULLS FIRST
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS overtaken_by
FROM messages
WINDOW by_key AS (PARTITION BY source, stream ORDER BY key, number),
  before AS (PARTITION BY source, stream ORDER BY key, number
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
  -- From the end: a frame that reaches to it would cost Spark the square of the stream.
  behind AS (PARTITION BY source, stream ORDER BY key DESC, number DESC
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

_NEAR = """
WITH near AS (
  SELECT m.key, m.number, m.sent_at, m.accepted_at, m.accepted_at_last, m.accepted, m.ended_at, c.n,
    row_number() OVER (PARTITION BY c.n, m.key > c.wanted ORDER BY abs(m.key - c.wanted)) AS nth
  FROM messages m JOIN chosen c ON m.source = c.source AND m.stream = c.stream
)
SELECT * FROM near WHERE nth <= 5
"""

# What a candidate is: `kind`, which message, and what its log must cover for it to be proved.
# `covering` is the host whose log is asked for; blocks of its log between which the event would
# be, as far as known; and moments by the clock of `clock_of` between which it would be.
_COLUMNS = (
    "kind string, source bigint, number bigint, stream bigint, key bigint, until_key bigint,"
    " host bigint, queue bigint, sent_queue bigint, at_ms bigint, covering bigint,"
    " block_from bigint, block_to bigint, clock_of bigint, at_from bigint, at_to bigint,"
    " sent_at bigint, sent_block bigint, accepted_at bigint, accepted_block bigint, place bigint,"
    " ack_at bigint, grade bigint"
)
_NAMES = [each.split()[0] for each in _COLUMNS.split(", ")]


def _select(kind: str, **named: str) -> str:
    """A SELECT list of `_COLUMNS`, null where nothing is named."""
    parts = [f"{kind} AS kind"]
    parts += [f"CAST({named.get(name, 'NULL')} AS BIGINT) AS {name}" for name in _NAMES[1:]]
    return "SELECT " + ", ".join(parts)


def _candidate(kind: str, **named: str) -> str:
    """The same as one value."""
    parts = [f"'kind', {kind}"]
    parts += [f"'{name}', CAST({named.get(name, 'NULL')} AS BIGINT)" for name in _NAMES[1:]]
    return f"named_struct({', '.join(parts)})"


_MESSAGE = {
    "source": "source", "number": "number", "stream": "stream", "key": "key",
    "sent_queue": "sent_queue", "queue": "queue", "host": "coalesce(host, receiver)",
    "at_ms": "coalesce(sent_at, accepted_at)", "sent_at": "sent_at", "sent_block": "sent_block",
    "accepted_at": "accepted_at", "accepted_block": "accepted_block", "place": "place",
    "ack_at": "ack_at",
}  # fmt: skip
_WAS_SENT = "exists(old_sent, r -> key BETWEEN r[0] AND r[1])"
_WAS_ACCEPTED = "exists(old_accepted, r -> key BETWEEN r[0] AND r[1])"
_IS_MISSING = f"sent > 0 AND accepted = 0 AND ended = 0 AND refused = 0 AND NOT {_WAS_ACCEPTED}"
_LATER = "(accepted_block_after IS NOT NULL OR following >= 0 OR old_accepted_last > key)"
_SAME_SEQUENCE = f"(key_before >> {HALF}) = (key >> {HALF})"
_FLOOR = f"""greatest(
  if({_SAME_SEQUENCE}, key_before, (key >> {HALF}) << {HALF}),
  if((old_sent_last >> {HALF}) = (key >> {HALF}) AND old_sent_last < key, old_sent_last, 0))"""

#: Each rule: what it finds, and when.
_RULES = (
    (
        _candidate("'delivered_and_dead'", **_MESSAGE),
        "(accepted > 0 AND ended > 0) OR (received > 0 AND dead_later > 0)",
    ),
    (
        _candidate("'duplicated'", **_MESSAGE),
        "accepted > 1 OR (is_suspect AND accepted = 1 AND exists(old_accepted,"
        " r -> key BETWEEN r[0] AND r[1] AND place NOT BETWEEN r[2] AND r[3]))",
    ),
    (
        _candidate("'reordered'", **_MESSAGE),
        "is_suspect AND accepted > 0 AND (overtaken_by > key"
        " OR exists(old_accepted, r -> r[0] > key AND r[3] < place))"
        f" AND NOT {_WAS_ACCEPTED}",
    ),
    (
        _candidate("'wrong_number'", **_MESSAGE),
        "is_suspect AND sent > 0 AND accepted > 0 AND accepted_key <> sent_key",
    ),
    (
        _candidate("'number_reused'", **_MESSAGE),
        "is_suspect AND sent > 0 AND (sent_before = sent_key OR exists(old_sent,"
        " r -> sent_key BETWEEN r[0] AND r[1] AND sent_block NOT BETWEEN r[2] AND r[3]))",
    ),
    (
        _candidate(
            "'never_sent'",
            **_MESSAGE,
            covering="source",
            block_from="sent_block_before",
            block_to="sent_block_after",
            clock_of="host",
            at_from="accepted_at",
            at_to="accepted_at",
        ),
        f"is_suspect AND accepted > 0 AND sent = 0 AND NOT {_WAS_SENT}",
    ),
    (
        _candidate(
            f"CASE WHEN is_acked THEN 'acked_not_stored' WHEN {_LATER} THEN 'lost'"
            " ELSE 'pending' END",
            **_MESSAGE,
            covering="receiver",
            block_from="accepted_block_before",
            block_to="coalesce(accepted_block_after, if(following >= 0, following, NULL))",
            clock_of="source",
            at_from="sent_at",
            at_to="ack_at",
        ),
        f"is_suspect AND {_IS_MISSING}",
    ),
    (
        _candidate(
            "'gap'",
            **(_MESSAGE | {"key": f"{_FLOOR} + 1", "until_key": "key - 1", "number": "NULL"}),
            covering="source",
            block_from="sent_block_before",
            block_to="sent_block",
        ),
        f"is_suspect AND sent > 0 AND key - {_FLOOR} > 1"
        " AND (key_before IS NULL OR key_before < key)"
        " AND NOT exists(old_sent, r -> key - 1 BETWEEN r[0] AND r[1])",
    ),
)
#: All rules in one pass over the messages.
_CANDIDATES = (
    "SELECT inline(filter(array("
    + ", ".join(f"if({when}, {what}, NULL)" for what, when in _RULES)
    + "), found -> found IS NOT NULL)) FROM ordered"
)

#: Messages without a sequence.
_PLAIN = (
    f"""
WITH plain AS (
  SELECT source, number,
    count_if(role = {Role.SENT}) AS sent,
    min(at_ms) FILTER (WHERE role = {Role.SENT}) AS sent_at,
    min(block) FILTER (WHERE role = {Role.SENT}) AS sent_block,
    min(queue) FILTER (WHERE role = {Role.SENT}) AS sent_queue,
    count_if(role = {Role.ACCEPTED}) AS accepted,
    count(DISTINCT if(role = {Role.ACCEPTED}, struct(host, queue), NULL)) AS places,
    min(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at,
    min(block) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_block,
    min(place) FILTER (WHERE role = {Role.ACCEPTED}) AS place,
    min(host) FILTER (WHERE role = {Role.ACCEPTED}) AS host,
    min(queue) FILTER (WHERE role = {Role.ACCEPTED}) AS queue,
    count_if(role = {Role.SESSION_ACKED}) AS acked,
    min(at_ms) FILTER (WHERE role = {Role.SESSION_ACKED}) AS ack_at,
    count_if(role = {Role.ENDED}) AS ended,
    count_if(role = {Role.REFUSED}) AS refused,
    count_if(role = {Role.RELAYED}) AS relayed,
    max(grade) AS grade, CAST(-1 AS BIGINT) AS stream, CAST(NULL AS BIGINT) AS key,
    CAST(NULL AS BIGINT) AS receiver
  FROM facts
  WHERE stream < 0 AND role IN ({Role.SENT}, {Role.ACCEPTED}, {Role.SESSION_ACKED},
                                {Role.ENDED}, {Role.REFUSED}, {Role.RELAYED})
  GROUP BY source, number
  HAVING sent > 0 OR accepted > 0
)
"""
    + _select("'duplicated'", **(_MESSAGE | {"grade": "grade"}))
    + " FROM plain WHERE accepted > places UNION ALL "
    + _select("'delivered_and_dead'", **(_MESSAGE | {"grade": "grade"}))
    + f" FROM plain WHERE accepted > 0 AND ended > 0 AND grade <> {EXPRESS} UNION ALL "
    + _select(
        "'never_sent'",
        **(_MESSAGE | {"grade": "grade"}),
        covering="source",
        clock_of="host",
        at_from="accepted_at",
        at_to="accepted_at",
    )
    + f" FROM plain WHERE accepted > 0 AND sent = 0 AND grade = {RECOVERABLE} UNION ALL "
    + _select(
        "if(acked > 0 AND relayed = 0, 'acked_not_stored', 'pending')",
        **(_MESSAGE | {"grade": "grade"}),
        covering="0",
        clock_of="source",
        at_from="sent_at",
        at_to="ack_at",
    )
    + f" FROM plain WHERE sent > 0 AND accepted = 0 AND refused = 0 AND ended = 0"
    f" AND grade = {RECOVERABLE}"
)

_LEFT_TWICE = (
    _select(
        "'ended_twice'",
        source="source",
        number="number",
        stream="-1",
        host="host",
        queue="queue",
        at_ms="max(at_ms)",
        place="place",
    )
    + f" FROM facts WHERE role IN ({Role.RECEIVED}, {Role.LEFT})"
    " GROUP BY source, number, host, queue, place HAVING count(*) > 1"
)

#: By how much the receiver's clock is ahead of the sender's: at least, and at most.
_CLOCK_BOUNDS = (
    _select(
        "'clock_bounds'",
        source="source",
        host="host",
        at_from="max(accepted_at - ack_at)",
        at_to="min(accepted_at - sent_at)",
        number="count(*)",
    )
    + " FROM messages WHERE sent = 1 AND accepted = 1 GROUP BY source, host"
)


def _conclude(
    rows: Frame, found: Survey, routes: Frame, state: State, settings: AuditSettings
) -> tuple[AuditResult, Frame]:
    """Which candidates are proved, and which stay open because a log is missing."""
    is_bound = rows.kind == "clock_bounds"
    bounds = rows[is_bound]
    rows = rows[~is_bound].reset_index(drop=True)
    rows["source"] = rows.source.astype(np.int64)
    rows["stream"] = rows.stream.astype(np.int64)
    offsets, wrong = clocks.solve(
        pd.concat(
            [
                state.clock_bounds,
                bounds[["source", "host", "at_from", "at_to"]],
            ]
        ),
        settings.clock_tolerance_ms,
    )
    state.clock_bounds = clocks.narrowed(state.clock_bounds, bounds)
    labels = _Labels(found, routes)
    plain = ((rows.covering == 0) & (rows.stream < 0)).fillna(False).astype(bool)
    if plain.any():
        rows.loc[plain, "covering"] = [
            labels.receiver(int(source), int(queue))
            for source, queue in zip(rows[plain].source, rows[plain].sent_queue, strict=True)
        ]
    why = _undecided(rows, found, offsets)
    # What came again long after it was done is no message that nobody sent.
    again = (rows.kind == "never_sent") & (rows.stream < 0)
    if again.any():
        last = rows.source.map(state.plain_last).fillna(-1)
        again = (again & (rows.number <= last)).fillna(False).astype(bool)
        rows.loc[again, "kind"] = "duplicated"
        why[again.to_numpy()] = ""
    is_pending = rows.kind == "pending"
    why[is_pending.to_numpy() & (why == "")] = "on_its_way"
    is_open = why != ""
    proved = rows[~is_open]
    open_rows = rows[is_open].assign(why=why[is_open])
    findings = [labels.finding(row) for row in proved.head(settings.findings_max).itertuples()]
    about_hosts = _about_hosts(open_rows, found, labels, offsets, wrong)
    counts = proved.kind.value_counts().to_dict()
    for each in about_hosts:
        counts[each["kind"]] = counts.get(each["kind"], 0) + 1
    frame = pd.DataFrame(
        [*about_hosts, *findings], columns=FINDING_SCHEMA.names, dtype=object
    ).astype({"sequence_number": "Int64", "until_number": "Int64", "at_ms": "Int64"})
    opened = (
        open_rows.assign(
            host_name=[labels.host(int(host)) for host in open_rows.covering.fillna(0)]
        )
        .groupby(["why", "host_name"], as_index=False)
        .agg(messages=("kind", "size"), oldest_at_ms=("at_ms", "min"))
        .rename(columns={"why": "reason", "host_name": "host"})
    )
    streams = labels.streams(frame, open_rows)
    result = AuditResult(
        findings=frame,
        open=opened,
        streams=streams,
        offsets_ms={labels.host(host): offset for host, offset in offsets.items()},
        events=found.events,
        messages=int(streams.sent.clip(lower=0).sum()) if len(streams) else 0,
        suspects=0,
        files=0,
        seconds=0.0,
        carried=_carried(open_rows),
        counts=counts,
    )
    return result, proved


def _undecided(rows: Frame, found: Survey, offsets: dict[int, float]) -> Any:
    """Why each candidate cannot be decided: "" where the log that is asked for is there."""
    why = np.full(len(rows), "", dtype=object)
    needs = rows.covering.notna().to_numpy() & (rows.kind != "pending").to_numpy()
    for host, part in rows[needs].groupby("covering"):
        host = int(host)
        at = part.index.to_numpy()
        if host not in found.hosts:
            why[at] = "no_log"
            continue
        # By the clock of that host, with room for what is not known about clocks.
        other = [offsets.get(int(each), 0.0) if pd.notna(each) else 0.0 for each in part.clock_of]
        shift = offsets.get(host, 0.0) - np.array(other)
        begin = _floats(part.at_from, -np.inf) + shift - _CLOCK_UNSURE_MS
        end = _floats(part.at_to, np.inf) + shift + _CLOCK_UNSURE_MS
        first, last = _floats(part.block_from, -1.0), _floats(part.block_to, np.inf)
        has_first, has_last = part.block_from.notna().to_numpy(), part.block_to.notna().to_numpy()
        for hole in found.holes[found.holes.host == host].itertuples():
            inside = (
                (hole.block_last >= first)
                & (hole.block_first <= last)
                & (has_last | (hole.at_first <= end))
                & (has_first | (hole.at_last >= begin))
            )
            reason = (
                "late_log" if hole.block_last == END
                else "log_begins_later" if hole.at_first == -END
                else "log_hole"
            )  # fmt: skip
            why[at[inside]] = reason
    return why


def _floats(column: Any, default: float) -> Any:
    return column.astype("Float64").fillna(default).to_numpy(np.float64)


def _about_hosts(
    open_rows: Frame, found: Survey, labels: _Labels, offsets: dict[int, float], wrong: set[int]
) -> list[dict[str, Any]]:
    rows = []
    for host in sorted(wrong):
        rows.append(
            labels.about("clock", host, f"It is {_span(offsets[host])} the others' clocks.", None)
        )
    for hole in found.holes.itertuples():
        if hole.block_last != END and hole.at_first != -END:
            text = f"Blocks {hole.block_first} to {hole.block_last} of its log are missing."
            rows.append(labels.about("log_hole", hole.host, text, hole.at_first))
    absent: dict[str, int] = {}
    for why in ("late_log", "no_log"):
        some = open_rows[(open_rows.why == why) & open_rows.covering.notna()]
        for host, part in some.groupby("covering"):
            if why == "late_log":
                text = f"{len(part)} messages cannot be decided until the rest of it is there."
                rows.append(labels.about("late_log", int(host), text, part.at_ms.min()))
        if why == "no_log":
            for row in some.itertuples():
                name = labels.absent(row)
                absent[name] = absent.get(name, 0) + 1
    streams = found.streams
    if len(streams):
        unknown = streams[(streams.sent_runs < 0) & ~streams.source.isin(list(found.hosts))]
        for source in unknown.source.unique():
            absent.setdefault(labels.host(int(source)), 0)
    for name, count in sorted(absent.items()):
        text = f"{count} messages cannot be decided without it." if count else "It sends messages."
        rows.append(
            dict.fromkeys(FINDING_SCHEMA.names) | {"kind": "no_log", "host": name, "detail": text}
        )
    return rows


def _span(ms: float) -> str:
    size = abs(ms)
    if size < 1000:
        text = f"{size:.0f} ms"
    else:
        text = f"{size / 1000:.1f} s" if size < 120_000 else f"{size / 60_000:.1f} min"
    return f"{text} {'ahead of' if ms > 0 else 'behind'}"


def _carried(open_rows: Frame) -> Frame:
    """Events, as `Facts`, that the next run has to know of what is open."""
    made: list[dict[str, int]] = []

    def add(row: Any, role: Role, at_ms: Any, block: Any, **more: Any) -> None:
        made.append(
            dict.fromkeys(Facts._fields, 0)
            | {
                "role": int(role),
                "host": int(row.source),
                "block": int(block) if pd.notna(block) else -int(row.number) - 1,
                "index": -int(row.number) * 16 - int(role),  # of no event that is read again
                "at_ms": int(at_ms) if pd.notna(at_ms) else 0,
                "source": int(row.source),
                "number": int(row.number),
                "stream": int(row.stream),
                "key": int(row.key) if pd.notna(row.key) else 0,
                "place": -1,
                "queue": int(row.sent_queue) if pd.notna(row.sent_queue) else 0,
                "grade": int(row.grade) if pd.notna(row.grade) else -1,
            }
            | more
        )

    for row in open_rows[open_rows.kind != "gap"].itertuples():
        if pd.notna(row.sent_at):
            add(row, Role.SENT, row.sent_at, row.sent_block)
        if pd.notna(row.accepted_at):
            add(
                row, Role.ACCEPTED, row.accepted_at, row.accepted_block, host=int(row.host),
                queue=int(row.queue), place=int(row.place),
            )  # fmt: skip
        if pd.notna(row.ack_at):
            role = Role.SESSION_ACKED if row.stream < 0 else Role.ORDER_ACKED
            add(row, role, row.ack_at, None)
    return pd.DataFrame(made, columns=list(Facts._fields)).astype(np.int64)


_STREAM_COLUMNS = [
    *("source", "stream", "from_host", "to_host", "queue", "sent", "accepted", "mean_ms", "open"),
]


class _Labels:
    """Names for people."""

    def __init__(self, found: Survey, routes: Frame) -> None:
        self._names, self._hosts = found.names, found.hosts
        self._streams = found.streams
        by_name = {name.casefold(): host for host, name in found.hosts.items()}
        self._routes: dict[tuple[int, int], int] = {}
        self._guid_names: dict[int, str] = {}
        for host, queue, peer in routes[["host", "queue", "source"]].itertuples(index=False):
            self._add_route(host, queue, peer)
        self._by_name = by_name

    def _add_route(self, host: int, queue: int, peer: int) -> None:
        name = host_in(self._names.get(queue, ""))
        if peer in self._hosts:
            self._routes[host, queue] = peer
        elif name:
            self._guid_names.setdefault(peer, name)

    def host(self, host: int) -> str:
        return self._hosts.get(host) or self._guid_names.get(host) or self._names.get(host, "")

    def receiver(self, source: int, queue: int) -> int:
        known = self._routes.get((source, queue))
        return known or self._by_name.get(host_in(self._names.get(queue, "")), 0)

    def absent(self, row: Any) -> str:
        """Who it is whose log is missing for this candidate."""
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
            ordinal, number = low(int(row.key))
            sequence_id = int(row.stream) << int(HALF) | ordinal
            if pd.notna(row.until_key):
                until = low(int(row.until_key))[1]
        return {
            "kind": row.kind,
            "host": to_host,
            "from_host": self.host(int(row.source)) or source,
            "to_host": to_host or host_in(sent_queue),
            "queue": self._names.get(int(row.queue), "")
            if pd.notna(row.queue)
            else queue_in(sent_queue),
            "message_id": f"{source}\\{int(row.number)}" if pd.notna(row.number) else "",
            "sequence_id": sequence_id,
            "sequence_number": number,
            "until_number": until,
            "at_ms": int(row.at_ms) if pd.notna(row.at_ms) else None,
            "detail": KINDS[row.kind],
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
