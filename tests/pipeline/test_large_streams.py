"""Streams in parts: the same findings and the same state, whatever the size of the parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pandas as pd
import pyarrow as pa

from pipeline import generator
from pipeline.engines import local
from pipeline.engines.on_spark import SparkEngine
from pipeline.events import find_files
from pipeline.generator import generate, parse_faults
from pipeline.jobs.audit import stream_parts, verdicts
from pipeline.jobs.audit.facts import Role
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
from pipeline.jobs.audit.given import without_given
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.settled import COVERED, OTHERS, SEGMENT, Stretches, joined
from pipeline.jobs.audit.state import State
from tests.pipeline.foreign_faults import HAPPENINGS
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, Fleet, several_in_one_stream
from tests.pipeline.nights import about_messages, shown


def rows(frame: Any) -> list[str]:
    return sorted(map(str, frame.astype(object).values.tolist()))


def audited(engine: Any, folder: Path) -> tuple[AuditResult, State]:
    state = State()
    return audit(engine, find_files([str(folder)]), state, AuditSettings(tasks=1, full=True)), state


def faulty(folder: Path) -> Fleet:
    """Write the logs of some streams, each of which has several faults."""
    f = Fleet(random.Random(3))
    hosts = [f.host(name) for name in ("quebec", "romeo", "sierra")]
    several_in_one_stream(f, hosts[0], hosts[1], MIDNIGHT + HOUR)
    for n, happens in enumerate(HAPPENINGS):
        happens(f, hosts[n % 3], hosts[(n + 1) % 3], MIDNIGHT + (3 + n) * HOUR)
    f.write(folder, without=set(), hole=(hosts[0], 0, 0))
    return f


def test_parts_of_streams_show_what_all_of_them_show(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = faulty(tmp_path)
    whole, known = audited(engine, tmp_path)
    monkeypatch.setattr(stream_parts, "MESSAGES_MAX", 2)
    monkeypatch.setattr(stream_parts, "FACTS_MAX", 50)
    monkeypatch.setattr(stream_parts, "_SLICE", 8)
    monkeypatch.setattr(stream_parts, "_RANGE", 0)

    parts, state = audited(engine, tmp_path)

    assert about_messages(whole) == fleet.findings
    assert shown(parts) == shown(whole)
    assert rows(parts.findings) == rows(whole.findings)
    assert rows(state.segments) == rows(known.segments)
    assert rows(state.carried) == rows(known.carried)


def generated(folder: Path) -> None:
    """Write the logs of a fleet, of which one stream has nine tenths of all messages and faults."""
    kinds = ("lost", "acked_not_stored", "duplicated", "reordered", "delayed", "gap",
             "delivered_dead", "expired")  # fmt: skip
    generate(
        generator.Fleet(
            hosts=4, streams=4, messages=600, days=2, seed=5, largest_share=0.9,
            faults=parse_faults(",".join(f"{kind}=3" for kind in kinds)),
        ),
        folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "most", "bits", "parts"),
    [
        (faulty, 4, 0, 7),
        (generated, 50, 2, 11),
        (faulty, 40, 0, 0),  # a source has more messages, and none of its streams
    ],
)
def test_spark_orders_all_parts_at_once_and_shows_what_the_whole_shows(
    engine: Any,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    most: int,
    bits: int,
    parts: int,
) -> None:
    make(tmp_path)
    whole, known = audited(engine, tmp_path)
    monkeypatch.setattr(stream_parts, "TASK_MAX", most)
    monkeypatch.setattr(stream_parts, "_RANGE", bits)

    found, state = audited(spark, tmp_path)

    assert ("part" in spark.table("ordered").columns) == (parts > 0)
    if parts:
        cut = spark.table("stream_part").toPandas()
        assert cut.groupby(["source", "stream"]).size().max() == parts
    assert len(whole.findings) > 12
    assert shown(found) == shown(whole)
    assert rows(found.findings) == rows(whole.findings)
    assert rows(state.segments) == rows(known.segments)
    assert rows(state.carried) == rows(known.carried)


def messages(chance: random.Random) -> pa.Table:
    """Return random messages of two streams: of keys that come twice, and of no key."""
    found = []
    for number in range(240):
        times = {name: chance.randrange(1000) for name in ("sent_at", "accepted_at", "ack_at")}
        row = {"source": 1, "stream": chance.choice((1, 1, 2)), "number": number, "receiver": 5}
        is_sent, is_accepted, is_acked = (chance.random() < share for share in (0.8, 0.7, 0.5))
        key = 5 * number // 6 + chance.randrange(9)  # some are out of order
        row |= {"key": key if is_sent or is_accepted else None}
        row |= {"sent": int(is_sent), "accepted": int(is_accepted)}
        if is_sent:
            row |= {"sent_key": key, "sent_at": times["sent_at"]}
            row |= {"sent_block": chance.randrange(500)}
        if is_accepted:
            row |= {"accepted_key": key, "accepted_at": times["accepted_at"]}
            row |= {"host": chance.choice((5, 5, 6)), "accepted_block": chance.randrange(500)}
            row |= {"place": 10 * key + chance.randrange(200)}
        if is_acked:
            row |= {"ack_at": times["ack_at"], "ack_block": chance.randrange(500)}
        found.append(row)
    names = [*stream_parts._SUMMED, "accepted_key"]
    return pa.Table.from_pylist(found, pa.schema([(name, pa.int64()) for name in names]))


def ordered(engine: Any, table: pa.Table) -> tuple[list[str], int]:
    """Return what the rules ask of the ordered messages, and in how many tables they were."""
    engine.put("messages", table)
    found = []
    for _ in stream_parts.ordered(engine, parts=20):
        found.append(engine.query("SELECT * FROM ordered WHERE key IS NOT NULL").to_pandas())
    rows_ = pd.concat(found, ignore_index=True).astype(float)
    for name in ("overtaken_by", "overtaken_by_sent"):
        rows_[name] = rows_[name] > rows_.key
    shown_ = rows_.drop(columns=["part", "is_beside"], errors="ignore").fillna(-1.0)
    return rows(shown_.astype(int)), len(found)


def test_the_rows_beside_a_part_stand_for_all_others(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [messages(random.Random(seed)) for seed in range(2)]
    whole = [ordered(engine, table) for table in tables]
    monkeypatch.setattr(stream_parts, "MESSAGES_MAX", 9)
    monkeypatch.setattr(stream_parts, "_RANGE", 2)

    parts = [ordered(engine, table) for table in tables]

    assert [count for _, count in whole] == [1, 1]
    assert min(count for _, count in parts) > 15
    assert [shown for shown, _ in parts] == [shown for shown, _ in whole]


def test_the_rows_beside_a_part_stand_for_all_others_on_spark(
    engine: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = messages(random.Random(4))
    whole, _ = ordered(engine, table)
    monkeypatch.setattr(stream_parts, "TASK_MAX", 9)
    monkeypatch.setattr(stream_parts, "_RANGE", 2)
    on_spark = SparkEngine(spark)
    try:
        parts, _ = ordered(on_spark, table)
    finally:
        on_spark.release()

    assert spark.table("stream_part").count() > 15
    assert parts == whole


def test_a_number_under_which_two_tasks_know_a_message_is_one_number(spark: Any) -> None:
    """Of a gap of two numbers, messages were accepted under one of them alone."""
    names = ("source", "number", "stream", "role", "key")
    accepted = [(1, number, 2, int(Role.ACCEPTED), 8) for number in range(12)]
    facts = pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in accepted],
        pa.schema([(name, pa.int64()) for name in names]),
    )
    gap = pd.DataFrame(
        {"kind": ["gap"], "source": [1], "stream": [2], "key": [7], "until_key": [8]}
    )
    spark_engine = SparkEngine(spark)
    try:
        spark_engine.create("facts", [], iter, facts, by=("source", "number"), partitions=8)
        tasks = spark.sql("SELECT DISTINCT spark_partition_id() FROM facts").toPandas()

        left = without_given(gap, spark_engine, are_apart=True)
        gone = without_given(gap.assign(key=8), spark_engine, are_apart=True)
    finally:
        spark_engine.release()

    assert len(tasks) > 1
    assert (len(left), len(gone)) == (1, 0)


def test_segments_that_are_joined_some_at_a_time_are_the_same(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(tmp_path)
    whole, known = audited(engine, tmp_path)
    monkeypatch.setattr(verdicts, "_ROWS_JOINED", 3)

    parts, state = audited(engine, tmp_path)

    assert len(known.segments) > 10
    assert rows(parts.findings) == rows(whole.findings)
    assert rows(state.segments) == rows(known.segments)
    assert rows(state.carried) == rows(known.carried)


def test_a_message_with_a_number_of_another_part_keeps_segments_apart() -> None:
    """It was sent, under a number of the first part, between two messages of the second one."""
    one = dict.fromkeys(SEGMENT, 1)
    part = pd.DataFrame(
        [
            one | {name: n for name in SEGMENT if name.endswith(("_first", "_last"))}
            for n in (21, 23)
        ]
    )
    part["key_last"] += 1  # 21, 22; 23, 24
    covered = pd.DataFrame([[1, 1, 99, 0, 99, 99, 0]], columns=COVERED)
    others = pd.DataFrame([[1, 1, 7, 22, -1, -1]], columns=OTHERS)  # key 7, block 22
    stretches = Stretches(covered)

    assert len(joined(part, stretches, others.iloc[:0], each_apart=True)) == 1
    assert len(joined(part, stretches, others, each_apart=True)) == 2
    # Of the whole stream, a segment shows whether it has that number.
    assert len(joined(part, stretches, others)) == 1
    first = part.iloc[:1].assign(key_first=1, key_last=9)
    assert len(joined(pd.concat([first, part]), stretches, others)) == 3


def test_a_query_that_needs_more_than_the_spared_memory_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limit() -> str:
        found = engine.query("SELECT current_setting('memory_limit') AS n").column("n")
        return str(found[0].as_py())

    monkeypatch.setattr(local, "SPARED_MB", 16)
    with local.LocalEngine(threads=1) as engine:
        full = limit()
        engine.spare_memory()
        spared = limit()

        rows = engine.query("SELECT len(list(range)) AS n FROM range(4000000)")

        assert rows.column("n").to_pylist() == [4_000_000]
        assert spared != full == limit()
        engine.spare_memory()
        engine.release()
        assert limit() == full
