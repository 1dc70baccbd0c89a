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

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.histories import begins_of
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_faults import receiver_put_back
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.foreign_parts import accused_falsely
from tests.pipeline.nights import about_messages

RESTORED = MIDNIGHT + HOUR + 30 * MINUTE


def exports(folder: Path) -> Counter[Any]:
    """Export the log of each host, of papa once before its restoration and once after it.

    The parts of an export are separate files.  Return the findings that an audit must have.
    """
    f = Fleet(random.Random(1))
    alpha, papa = f.host("alpha"), f.host("papa")
    stream, back = Stream(alpha), Stream(papa)
    for n in range(9):
        f.life(Message(alpha, papa, "usual", stream), RESTORED - 8 * HOUR + n * MINUTE)
        f.life(Message(papa, alpha, "usual", back), RESTORED - 7 * HOUR + n * MINUTE)
    receiver_put_back(f, alpha, MIDNIGHT + HOUR)
    for n in range(9):
        f.life(Message(alpha, papa, "usual", stream), RESTORED + HOUR + n * MINUTE)
    f.sent(lost := Message(alpha, papa, "usual", stream), RESTORED + 2 * HOUR)
    f.acked(lost, RESTORED + 2 * HOUR + 20)
    f.wrong("acked_not_stored", lost)
    f.life(Message(alpha, papa, "usual", stream), RESTORED + 3 * HOUR)
    rows = papa.rows()
    before = [row for row in rows if row["at_ms"] < RESTORED]
    kept = [row for row in rows if row["at_ms"] < MIDNIGHT + HOUR + 3 * MINUTE]
    after = kept + [row for row in rows if row["at_ms"] >= RESTORED]
    for name, log in (("alpha", alpha.rows()), ("before", before), ("after", after)):
        middle = log[(len(kept) + len(log)) // 2]["block"] if name != "alpha" else 0
        for part in range(2):
            some = [row for row in log if (row["block"] >= middle) == bool(part)]
            if some:
                path = folder / f"{name}-{part}.parquet"
                parquet.write_table(pa.Table.from_pylist(some, schema=arrow_schema()), path)
    return f.findings


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


def test_histories_begin_where_blocks_are_numbered_again() -> None:
    def log(*events: tuple[int, int, int]) -> pd.DataFrame:
        return pd.DataFrame(events, columns=["block", "index", "at_ms"])

    one = [(n, 0, n) for n in range(1, 11)]
    two = [(n, 0, 100 + n) for n in range(6, 20)]
    three = [(n, 0, 200 + n) for n in range(3, 30)]
    assert begins_of(log(*one)) == []
    assert begins_of(log(*one, *one)) == []
    assert begins_of(log(*one, *two)) == [106]
    assert begins_of(log(*one, *two, *three)) == [106, 203]
    # Only the end of the second history is there twice.
    assert begins_of(log(*one[:8], *two[:2], *two[5:], *[(20, 0, 21), (11, 0, 12)])) == [106]
    # A clock that was set back numbers no block again.
    assert begins_of(log(*one, *[(n, 0, n - 5) for n in range(11, 20)])) == []
    # Two files have some events of one block each.
    assert begins_of(log((7, 0, 1), (7, 1, 1), (7, 2, 50), (7, 3, 50))) == []
    # The files of the first history, which were read, are gone.
    covered = pd.DataFrame([(1, 10, 10)], columns=["block", "last", "at_last"])
    for part in itertools.combinations(two, 3):
        if part[0][0] <= 10:
            assert begins_of(log(*part), covered) == [part[0][2]]
