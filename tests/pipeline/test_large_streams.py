"""Streams in parts: the same findings and the same state, whatever the size of the parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pandas as pd

from pipeline.engines import local
from pipeline.events import find_files
from pipeline.jobs.audit import stream_parts, verdicts
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
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
