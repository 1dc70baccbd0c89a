"""Streams in parts: the same findings and the same state, whatever the size of the parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.engines import local
from pipeline.events import find_files
from pipeline.jobs.audit import stream_parts
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
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
