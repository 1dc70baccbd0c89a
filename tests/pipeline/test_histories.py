"""Exported logs of a host that was restored from a backup: each night says what one run says."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.engines.on_spark import engine_of
from pipeline.events import find_files
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.history_events import EVENTS, GONE, begins, create_events
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from qmd.cli.event_files import arrow_schema
from tests.pipeline import begins_in_memory
from tests.pipeline.foreign_faults import receiver_put_back
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.foreign_parts import accused_falsely
from tests.pipeline.nights import about_messages

RESTORED = MIDNIGHT + HOUR + 30 * MINUTE


def exports(folder: Path, *, is_logged: bool = False) -> Counter[Any]:
    """Export the log of each host, of papa once before its restoration and once after it.

    The parts of an export are separate files.  `is_logged`: papa has logged that it was restored.
    Return the findings that an audit must have.
    """
    f = Fleet(random.Random(1))
    alpha, papa = f.host("alpha"), f.host("papa")
    stream, back = Stream(alpha), Stream(papa)
    for n in range(9):
        f.life(Message(alpha, papa, "usual", stream), RESTORED - 8 * HOUR + n * MINUTE)
        f.life(Message(papa, alpha, "usual", back), RESTORED - 7 * HOUR + n * MINUTE)
    receiver_put_back(f, alpha, MIDNIGHT + HOUR)
    if is_logged:
        papa.record(RESTORED + 1, "restored")
        gone = Message(alpha, papa, "usual", stream)
        f.life(gone, RESTORED - 5 * MINUTE)  # only the first history has it
    for n in range(9):
        f.life(Message(alpha, papa, "usual", stream), RESTORED + HOUR + n * MINUTE)
    f.sent(lost := Message(alpha, papa, "usual", stream), RESTORED + 2 * HOUR)
    f.acked(lost, RESTORED + 2 * HOUR + 20)
    f.wrong("acked_not_stored", lost)
    f.life(Message(alpha, papa, "usual", stream), RESTORED + 3 * HOUR)
    rows = papa.rows()
    before = [row for row in rows if row["at_ms"] < RESTORED]
    # The backup lacks the last event before its time; its block has two times in the log then.
    backed_up = MIDNIGHT + HOUR + (2 if is_logged else 3) * MINUTE
    kept = [row for row in rows if row["at_ms"] < backed_up]
    after = kept + [row for row in rows if row["at_ms"] >= RESTORED]
    for name, log in (("alpha", alpha.rows()), ("before", before), ("after", after)):
        middle = log[(len(kept) + len(log)) // 2]["block"] if name != "alpha" else 0
        for part in range(2):
            some = [row for row in log if (row["block"] >= middle) == bool(part)]
            if some:
                path = folder / f"{name}-{part}.parquet"
                parquet.write_table(pa.Table.from_pylist(some, schema=arrow_schema()), path)
    return f.findings


def test_the_later_history_alone_accuses_nobody_if_its_queue_manager_has_logged_the_restoration(
    tmp_path: Path,
) -> None:
    """In each night the audit decides only on what no missing part of a history can explain."""
    (tmp_path / "all").mkdir()
    true = exports(tmp_path / "all", is_logged=True)
    settings = AuditSettings(tasks=1)
    names = ["alpha-1", "after-1", "after-0", "before-1", "before-0"]
    orders = [names, random.Random(3).sample(names, 5), random.Random(4).sample(names, 5)]
    with LocalEngine(threads=1) as engine:
        for order in orders:
            here, state = tmp_path / "here", State()
            here.mkdir()
            for name in order:
                shutil.copy(tmp_path / "all" / f"{name}.parquet", here)
                files = find_files([str(here)])
                fresh = state.unseen(files)
                last = audit(engine, fresh, state, settings, earlier=state.seen(files))
                assert not about_messages(last) - true, (order, name)
            assert about_messages(last) == true, order
            assert about_hosts(last) == ["restored"], order
            shutil.rmtree(here)


def about_hosts(result: AuditResult) -> list[str]:
    return sorted(result.findings[result.findings.kind.isin(ABOUT_HOSTS)].kind)


@pytest.mark.parametrize(
    "order",
    [
        ("after-1", "after-0", "before-1", "before-0", "alpha-1"),
        ("before-1", "after-0", "alpha-1", "after-1", "before-0"),
    ],
)
def test_histories_in_any_nights(tmp_path: Path, order: tuple[str, ...]) -> None:
    (tmp_path / "all").mkdir()
    true = exports(tmp_path / "all")
    here = tmp_path / "here"
    here.mkdir()
    settings, state = AuditSettings(tasks=1), State()
    with LocalEngine(threads=1) as engine:
        whole = audit(engine, find_files([str(tmp_path / "all")]), State(), settings)
        for name in order:
            shutil.copy(tmp_path / "all" / f"{name}.parquet", here)
            files = find_files([str(here)])
            last = audit(engine, state.unseen(files), state, settings, earlier=state.seen(files))
            assert not accused_falsely(about_messages(last), true)

    assert about_messages(whole) == true
    assert about_messages(last) == true
    assert about_hosts(last) == about_hosts(whole) == ["restored"]


def test_files_that_are_gone_leave_what_is_known_of_histories(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    true = exports(tmp_path / "all")
    settings, state = AuditSettings(tasks=1), State()
    with LocalEngine(threads=1) as engine:
        for name in ("alpha-1", "before-0", "before-1", "after-0", "after-1"):
            files = find_files([str(tmp_path / "all" / f"{name}.parquet")])
            last = audit(engine, files, state, settings)

    assert about_messages(last) == true
    assert about_hosts(last) == ["restored"]


Event = tuple[int, int, int]  # block, number in it, time


def begun(
    engine: Any, logs: list[list[Event]], gone: list[list[tuple[int, int, int]]] | None = None
) -> list[list[int]]:
    """Return the begins of the histories of some logs, each of a host of its own."""
    rows = [(host, *event, 0) for host, log in enumerate(logs) for event in log]
    columns = np.array(rows, np.int64).reshape(len(rows), 5).T
    table = pa.Table.from_arrays([pa.array(each) for each in columns], schema=EVENTS)
    missing = [(host, *row) for host, rows in enumerate(gone or ()) for row in rows]
    try:
        create_events(engine, [], None, table)
        frame = None if gone is None else pd.DataFrame(missing, columns=GONE.names)
        found = begins(engine, frame)
    finally:
        engine.release()
    return [found.get(host, []) for host in range(len(logs))]


def test_histories_begin_where_blocks_are_numbered_again(engine: Any) -> None:
    one = [(n, 0, n) for n in range(1, 11)]
    two = [(n, 0, 100 + n) for n in range(6, 20)]
    three = [(n, 0, 200 + n) for n in range(3, 30)]
    logs = {
        "one history": (one, []),
        "one history twice": (one + one, []),
        "two": (one + two, [106]),
        "three": (one + two + three, [106, 203]),
        "the end of the second history is there twice": (
            [*one[:8], *two[:2], *two[5:], (20, 0, 21), (11, 0, 12)], [106]),
        "a clock that was set back": ([*one, *[(n, 0, n - 5) for n in range(11, 20)]], []),
        "some events of one block": ([(7, 0, 1), (7, 1, 1), (7, 2, 50), (7, 3, 50)], []),
    }  # fmt: skip
    found = begun(engine, [log for log, _ in logs.values()])
    assert dict(zip(logs, found, strict=True)) == {name: each for name, (_, each) in logs.items()}
    # The files of the first history, which were read, are gone.
    parts = list(itertools.combinations(two, 3))
    found = begun(engine, [list(part) for part in parts], [[(1, 10, 10)] for _ in parts])
    assert found == [[part[0][2]] if part[0][0] <= 10 else [] for part in parts]


def any_log(chance: random.Random) -> list[Event]:
    """Return a log of a few histories, of which any part is missing, and parts are there twice."""
    events: list[Event] = []
    history: list[Event] = []
    at_ms = 0
    for _ in range(chance.randint(1, 4)):
        history = history[: chance.randint(0, len(history))]  # the backup
        at_ms += chance.randint(1, 30)
        for _ in range(chance.randint(0, 25)):
            block = history[-1][0] + 1 if history else 1
            for index in range(chance.choice([1, 1, 2, 4])):
                history = [*history, (block, index, at_ms)]
            at_ms += chance.choice([0, 0, 1, 1, 5, -3])
        events += history
    missing = {chance.randint(1, 30) for _ in range(chance.randint(0, 6))}
    return [event for event in events if event[0] not in missing]


def test_both_engines_find_the_begins_that_another_implementation_finds(
    engine: Any, spark: Any
) -> None:
    chance = random.Random(7)
    logs = [any_log(chance) for _ in range(400)]
    gone = [[(a, a + chance.randint(0, 9), chance.randint(0, 60))
             for a in chance.sample(range(1, 30), chance.randint(0, 2))] for _ in logs]  # fmt: skip

    def wanted(log: list[Event], rows: list[tuple[int, int, int]]) -> list[int]:
        events = pd.DataFrame(log, columns=["block", "index", "at_ms"]).astype(np.int64)
        covered = pd.DataFrame(rows, columns=["block", "last", "at_last"]).astype(np.int64)
        return begins_in_memory.begins_of(events, covered)

    expected = [wanted(log, []) for log in logs]
    assert sum(len(each) > 1 for each in expected) > 40
    assert begun(engine, logs) == expected
    with_gone = [wanted(log, rows) for log, rows in zip(logs, gone, strict=True)]
    assert begun(engine, logs, gone) == with_gone
    assert begun(engine_of(spark), logs, gone) == with_gone


def a_snapshot(folder: Path) -> Counter[Any]:
    """Put back a snapshot of papa, and log nothing of it; write the log of each history.

    `kept` has what both histories have, `gone` the rest of the first one, `since` of the second.
    Return the findings that an audit must have.
    """
    f = Fleet(random.Random(2))
    alpha, papa, quebec = f.host("alpha"), f.host("papa"), f.host("quebec")
    stream, back, other = Stream(alpha), Stream(papa), Stream(alpha)

    def alive(begin: float) -> None:
        for n in range(4):
            f.life(Message(alpha, papa, "usual", stream), begin + n * MINUTE)
            f.life(Message(papa, alpha, "usual", back), begin + n * MINUTE + 5000)
            f.life(Message(alpha, quebec, "usual", other), begin + n * MINUTE + 9000)

    alive(MIDNIGHT + HOUR)
    copied = MIDNIGHT + HOUR + 10 * MINUTE
    f.sent(lost := Message(alpha, papa, "usual", stream), copied - 4 * MINUTE)
    f.acked(lost, copied - 4 * MINUTE + 20)
    f.wrong("acked_not_stored", lost)
    f.life(Message(alpha, papa, "usual", stream), copied - 3 * MINUTE)
    alive(copied + MINUTE)
    # Another host loses a message meanwhile.
    f.sent(lost := Message(alpha, quebec, "usual", other), copied + 6 * MINUTE)
    f.acked(lost, copied + 6 * MINUTE + 20)
    f.wrong("acked_not_stored", lost)
    papa.record(RESTORED, "started")
    stream, back = Stream(alpha), Stream(papa)
    alive(RESTORED + 5 * MINUTE)
    f.sent(lost := Message(alpha, papa, "usual", stream), RESTORED + HOUR)
    f.acked(lost, RESTORED + HOUR + 20)
    f.wrong("acked_not_stored", lost)
    alive(RESTORED + 2 * HOUR)
    every = papa.events
    papa.events = [event for event in every if not copied < event["at"] < RESTORED]
    later = papa.rows()
    papa.events = [event for event in every if event["at"] < RESTORED]
    logs = {
        "alpha": alpha.rows(),
        "quebec": quebec.rows(),
        "kept": [row for row in later if row["at_ms"] <= copied],
        "since": [row for row in later if row["at_ms"] >= RESTORED],
        "gone": [row for row in papa.rows() if row["at_ms"] > copied],
    }
    for name, log in logs.items():
        table = pa.Table.from_pylist(log, schema=arrow_schema())
        parquet.write_table(table, folder / f"{name}.parquet")
    return f.findings


@pytest.mark.parametrize(
    "nights", [("alpha quebec kept since", "gone"), ("since quebec", "kept alpha", "gone")]
)
def test_the_later_history_alone_of_a_snapshot_accuses_nobody(
    tmp_path: Path, nights: tuple[str, ...]
) -> None:
    (tmp_path / "all").mkdir()
    true = a_snapshot(tmp_path / "all")
    here, state = tmp_path / "here", State()
    here.mkdir()
    runs = []
    with LocalEngine(threads=1) as engine:
        for names in nights:
            for name in names.split():
                shutil.copy(tmp_path / "all" / f"{name}.parquet", here)
            files = find_files([str(here)])
            fresh = state.unseen(files)
            settings = AuditSettings(tasks=1)
            runs.append(audit(engine, fresh, state, settings, earlier=state.seen(files)))
            assert not accused_falsely(about_messages(runs[-1]), true), names

    alone, both = runs[-2:]
    open_messages = dict(zip(alone.open.reason, alone.open.messages, strict=True))
    assert about_messages(alone) == about_messages(both) == true
    assert open_messages == {"other_history": 8}
    assert about_hosts(alone) == about_hosts(both) == ["restored"]
    assert len(both.open) == 0
