"""Incremental jobs: in any order of files they give the result of one run."""

from __future__ import annotations

import datetime
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd
import pyarrow as pa
from click.testing import CliRunner, Result
from pyarrow import parquet

from pipeline.events import LogFile, find_files
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.jobs.archive import Archive
from pipeline.jobs.audit.histories import Histories
from pipeline.jobs.audit.state import State
from pipeline.jobs.dead_letters import dead_letters
from pipeline.jobs.incremental.known_events import (
    Chains,
    KnownEvents,
    merged,
    no_stretches,
    parts_of,
    stretches_of,
)
from pipeline.jobs.incremental.memory import Memory
from pipeline.jobs.incremental.new_events import OnceReader, together
from pipeline.jobs.latency import STEP, latency
from pipeline.jobs.traffic import traffic
from pipeline.results.runs import Results
from qmd.cli import main
from qmd.cli.event_files import arrow_schema
from tests.pipeline.test_odd_inputs import SCHEMA, row

JOBS = {"latency": latency, "dead-letters": dead_letters, "traffic": traffic}

A, B = "0f1e2d3c-4b5a-4978-a796-a5b4c3d2e1f0", "1f1e2d3c-4b5a-4978-a796-a5b4c3d2e1f1"
MIDNIGHT = 1_790_035_200_000
HOUR, DAY = 3_600_000, 86_400_000

pytestmark = pytest.mark.timeout(1800)


def work(
    engine: Any, job: str, folder: Path, files: Sequence[LogFile], *, cut_off: bool = False
) -> dict[str, Any]:
    """Run the job over `files`; `cut_off` ends it before its state is valid."""
    draft = Results(folder).begin(job)
    memory = Memory.load(draft)
    fresh = memory.unseen(files)
    tables = JOBS[job](engine, fresh, memory)  # type: ignore[operator]
    if not cut_off:
        memory.save(fresh)
        draft.commit()
    return tables


def same(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Compare all but the steps of a histogram; each side of a step may differ by one."""
    for name, table in first.items():
        pd.testing.assert_frame_equal(
            table, second[name], rtol=2 * (STEP - 1), atol=0.5, check_dtype=False, obj=name
        )


def in_any_order(
    engine: Any, logs: Path, out: Path, job: str, seed: int, runs: int, cut_off: float = 0.5
) -> None:
    files = find_files([str(logs)])
    one = work(engine, job, out / "one", files)
    chance = random.Random(seed)
    chance.shuffle(files)
    for n in range(runs):
        some = sorted(files[n::runs])
        if n and chance.random() < cut_off:  # and a second time
            work(engine, job, out / "many", some, cut_off=True)
        many = work(engine, job, out / "many", some)
    same(one, many)
    assert any(len(table) for table in one.values())


@pytest.mark.parametrize("job", JOBS)
def test_the_order_of_files_makes_no_difference(engine: Any, tmp_path: Path, job: str) -> None:
    faults = parse_faults(
        "expired=9,discarded=4,refused=5,received_dead=3,clock=1,twice=1,resent=5"
    )
    fleet = Fleet(hosts=4, streams=8, messages=900, days=2, seed=31, faults=faults)
    generate(fleet, tmp_path / "logs")

    runs, cut_off = (2, 0.0) if job == "latency" else (3, 1.0)  # this is slow
    in_any_order(engine, tmp_path / "logs", tmp_path, job, seed=31, runs=runs, cut_off=cut_off)


@pytest.mark.skipif(not os.environ.get("QMD_SOAK"), reason="takes minutes: make soak-pipeline")
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("seed", range(int(os.environ.get("QMD_SOAK_SEEDS", "6"))))
def test_the_order_of_files_makes_no_difference_to_any_fleet(
    engine: Any, tmp_path: Path, job: str, seed: int
) -> None:
    # A message that is stored twice is a fault, which the audit reports: its latency is that of the
    # copy that is read first.
    faults = "all,duplicated=0,plain_duplicated=0,number_reused=0,ended_twice=0"
    fleet = Fleet(hosts=12, streams=40, messages=4000, days=1 + seed % 5, seed=seed,
                  faults=parse_faults(faults))  # fmt: skip
    generate(fleet, tmp_path / "logs")

    for runs in (2, 3, 5):
        in_any_order(engine, tmp_path / "logs", tmp_path / str(runs), job, seed, runs)


class Log:
    """The events of a host, as rows; each is a block of its own."""

    def __init__(self, name: str, guid: str) -> None:
        self.name, self.guid = name, guid
        self.rows: list[dict[str, Any]] = []

    def record(self, at_ms: int, kind: str, **more: Any) -> None:
        row = dict.fromkeys(arrow_schema().names, "")
        row |= dict.fromkeys(("lookup_id", "sequence_id", "sequence_number", "class"))
        row |= {"schema": 1, "host": self.name, "queue_manager": self.guid, "bytes": 100}
        row |= {"block": len(self.rows) + 1, "index": 0, "at_ms": at_ms, "kind": kind}
        row |= {"time": pd.Timestamp(at_ms, unit="ms", tz="UTC"), "cursor": ""}
        self.rows.append(row | more)

    def write(self, file: Path, first: int = 0, last: int | None = None) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(self.rows[first:last], schema=arrow_schema())
        parquet.write_table(table, file)


def run(job: str, logs: Path, out: Path, *words: str) -> Result:
    asked = ["pipeline", "run", job, "--input", str(logs), "--output", str(out), *words]
    return CliRunner().invoke(main, asked, standalone_mode=True)


def test_a_read_file_is_not_opened_again(engine: Any, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    a = Log("a", A)
    for n in range(6):
        a.record(MIDNIGHT + n * HOUR, "sent", message_id=f"{A}\\{n}", queue="private$\\q")
    a.write(logs / "first.parquet", 0, 3)
    first = run("traffic", logs, out, "--json")
    file = logs / "first.parquet"
    was = file.stat()
    file.write_bytes(b"?" * was.st_size)  # to open this file fails
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    a.write(logs / "second.parquet", 2, 6)

    planned = run("traffic", logs, out, "--dry-run")
    second = run("traffic", logs, out, "--json")
    third = run("traffic", logs, out, "--json")
    again = run("traffic", logs, out, "--again", "--json")

    assert first.exit_code == second.exit_code == third.exit_code == 0
    assert "would read 1 files" in planned.output
    assert "1 were read before" in planned.output
    reported = [json.loads(each.stdout) for each in (first, second, third, again)]
    assert [(each["files"], each["known"]) for each in reported] == [(1, 0), (1, 1), (0, 2), (1, 0)]
    assert reported[3]["broken_files"] == [str(file)]
    # The remains of it after `--again`: the readable file.
    assert parquet.read_table(out / "queues.parquet").column("messages").to_pylist() == [4]


def test_a_message_received_days_later_counts_although_clocks_were_set(
    engine: Any, tmp_path: Path
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    a, b = Log("a", A), Log("b", B)
    queue, place = "DIRECT=OS:b\\private$\\q", "private$\\q"
    ahead = 0
    for n in range(20):
        day = n // 10
        ahead = 0 if day else 90_000  # error of the clock of b, until it is set
        at = MIDNIGHT + day * DAY + (n % 10 + 1) * HOUR
        message = {"message_id": f"{A}\\{n + 1}"}
        a.record(at, "sent", queue=queue, **message)
        b.record(at + ahead + 20, "accepted", queue=place, **message)
        a.record(at + 40, "order_acknowledged", queue=queue, **message)
        if n:
            b.record(at + ahead + 100, "received", queue=place, **message)
    a.record(MIDNIGHT + 2 * DAY, "started")
    b.record(MIDNIGHT + 9 * DAY, "received", queue=place, message_id=f"{A}\\1")
    a.write(logs / "a.parquet", 0, 20)
    b.write(logs / "b.parquet", 0, 19)
    first = work(engine, "latency", out, find_files([str(logs)]))
    kept = Memory.load(Results(out).begin("latency")).read("open", pd.DataFrame())
    a.write(logs / "a2.parquet", 20)
    b.write(logs / "b2.parquet", 19)
    both = work(engine, "latency", out, find_files([str(logs)]))

    assert len(kept) <= 3  # the first message waits; the end of the last one is too recent
    assert first["by_route"].messages.to_list() == [10]
    (route,) = both["by_route"].itertuples()
    assert route.messages == 20
    assert route.before_sent == 0
    assert abs(route.accepted_p50_ms - 20) <= 10  # half of the round trip
    assert route.accepted_p99_ms < 40
    (queue_row,) = both["by_queue"].itertuples()
    assert queue_row.received_p50_ms < 200
    assert queue_row.received_p99_ms > DAY
    (ahead_row,) = both["clocks"][both["clocks"].host == "b"].itertuples()
    assert ahead_row.most_ms - ahead_row.least_ms > 40_000


@pytest.mark.parametrize("events", [0, 4])
def test_latency_reports_hosts_without_a_message_known_at_both_ends(
    engine: Any, tmp_path: Path, events: int
) -> None:
    a = Log("a", A)
    for n in range(2):
        message = {"message_id": f"{A}\\{n + 1}", "queue": "DIRECT=OS:b\\private$\\q"}
        a.record(MIDNIGHT + n * HOUR, "sent", **message)
        a.record(MIDNIGHT + n * HOUR + 40, "order_acknowledged", **message)
    a.write(tmp_path / "logs" / "a.parquet", 0, events)

    done = run("latency", tmp_path / "logs", tmp_path / "out")

    assert done.exit_code == 0, done.output
    assert "No message is known at both ends." in (tmp_path / "out" / "report.html").read_text()
    routes = parquet.read_table(tmp_path / "out" / "by_route.parquet").to_pylist()
    assert [(each["to_host"], each["messages"]) for each in routes] == [("", 2)][: events // 4]


def test_a_resent_dead_letter_waits_no_longer(engine: Any, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    a = Log("a", A)
    dead = {"queue": "DIRECT=OS:b\\private$\\q", "class": "nack_reach_queue_timeout",
            "label": "order", "reason": "Its time was over."}  # fmt: skip
    for n, place in enumerate(["system$;deadxact"] * 4 + ["private$\\mine"] * 2):
        a.record(MIDNIGHT + n, "dead_lettered", message_id=f"{A}\\{n}", to_queue=place, **dead)
    a.write(logs / "1.parquet")
    first = work(engine, "dead-letters", out, find_files([str(logs)]))["groups"]
    before = len(a.rows)
    a.record(MIDNIGHT + HOUR, "requeued", message_id=f"{A}\\0", queue="system$;deadxact")
    a.record(MIDNIGHT + HOUR, "received", message_id=f"{A}\\1", queue="system$;deadxact")
    for n in (4, 5):
        a.record(MIDNIGHT + HOUR, "received", message_id=f"{A}\\{n}", queue="private$\\mine")
    a.record(MIDNIGHT + HOUR, "received", message_id=f"{A}\\77", queue="private$\\others")
    a.write(logs / "2.parquet", before)
    second = work(engine, "dead-letters", out, find_files([str(logs)]))["groups"]

    assert first.waiting.to_list() == [4, 2]
    assert second.waiting.to_list() == [2, 0]
    assert second.messages.to_list() == [4, 2]
    assert second.requeued.to_list() == [1, 0]
    assert second.received.to_list() == [1, 2]
    assert second.examples[0] == f"{A}\\2, {A}\\3"  # of the waiting ones
    assert second.command[1] == ""
    assert len(Memory.load(Results(out).begin("dead-letters")).read("open", pd.DataFrame())) == 2


def test_events_omitted_by_an_export_are_new_in_a_later_one() -> None:
    """`--kind` and `--queue` omit events in the middle of blocks, and their ends."""
    chance = np.random.default_rng(1)
    block = np.repeat(np.arange(1, 400), chance.integers(1, 6, 399))
    index = np.arange(len(block)) - np.searchsorted(block, block)
    host, at = np.full(len(block), 7), MIDNIGHT + 1000 * block
    first = chance.random(len(block)) < 0.7
    second = ~first & (chance.random(len(block)) < 0.5)

    parts = [stretches_of(parts_of(host[x], block[x], index[x], at[x])) for x in (first, second)]
    seen = KnownEvents(merged(parts))

    assert (seen.holds(host, block, index, at) == (first | second)).all()
    assert not seen.holds(host, block, index, at + DAY).any()  # restored from a backup
    assert not seen.holds(host + 1, block, index, at).any()


def test_the_same_blocks_of_two_histories_are_different_events() -> None:
    """A backup from the time of block 3 was restored; the log of the later history is read first.

    Its events of before and after the restoration are one stretch, which also spans the times of
    the other history.
    """

    def log(blocks: Sequence[int], times: Sequence[int], each: int) -> pa.Table:
        block = np.repeat(blocks, each)
        return pa.table({
            "queue_manager": ["a"] * len(block), "block": block,
            "index": [*range(each)] * len(blocks),
            "at_ms": MIDNIGHT + np.repeat(times, each),
        })  # fmt: skip

    reader = OnceReader(no_stretches())
    later, _ = reader.new_ones(log([1, 2, 3, 4, 5, 6], [1, 2, 3, 70, 71, 72], 4))
    earlier, _ = reader.new_ones(log([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 40, 41, 42, 43], 2))

    assert len(later) == 24
    assert earlier.column("block").to_pylist() == [4, 4, 5, 5, 6, 6, 7, 7]


def test_a_block_of_two_days_in_two_files_is_no_other_history(engine: Any, tmp_path: Path) -> None:
    def write(name: str, index: range, at_ms: int) -> None:
        rows = [row("started", block=7, index=n, at_ms=at_ms) for n in index]
        parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / f"{name}.parquet")

    write("monday", range(3), MIDNIGHT - 1)
    write("tuesday", range(3, 6), MIDNIGHT)

    def histories() -> Any:
        histories = Histories(find_files([str(tmp_path)]), [], State().covered, all_there=True)
        return histories.learned(engine, State().epochs, histories.doubtful(State().epochs))

    assert len(histories()) == 0

    write("restored", range(2), MIDNIGHT + DAY)
    found = histories()
    assert found[["epoch", "since"]].to_numpy().tolist() == [[2, MIDNIGHT + DAY]]


def test_adjacent_ranges_are_joined() -> None:
    block, at = np.arange(100), MIDNIGHT + np.arange(100)
    host = index = np.zeros(100, np.int64)
    cuts = [slice(60, 100), slice(0, 30), slice(30, 60)]

    together_ = merged([stretches_of(parts_of(host[x], block[x], index[x], at[x])) for x in cuts])
    chain, until = Chains(together_).of(host, block)

    assert len(together_) == 1
    assert set(chain) == {1}
    assert set(until) == {MIDNIGHT + 99}
    holed = merged([stretches_of(parts_of(host[x], block[x], index[x], at[x])) for x in cuts[:2]])
    chain, _ = Chains(holed).of(host, block)
    assert [*chain[:30]] == [1] * 30
    assert not chain[30:60].any()
    assert [*chain[60:]] == [2] * 40


def test_files_with_possibly_common_events_are_read_by_one_task() -> None:
    boxes = [
        [(1, 0, 10)], [(2, 0, 10)], [(1, 11, 20)], [(1, 20, 30)], [(1, 5, 6), (2, 50, 60)],
        [(2, 55, 70)], [(2, 90, 99)],
    ]  # fmt: skip

    assert sorted(map(sorted, together(boxes))) == [[0, 4, 5], [1], [2, 3], [6]]
    assert together([*boxes, [(None, 0, 99)]]) == [list(range(8))]


def test_messages_that_were_shipped_twice_are_archived_once(engine: Any, tmp_path: Path) -> None:
    day = tmp_path / "lake" / "journal" / "day=2026-01-02" / "host=a"
    day.mkdir(parents=True)
    archive, lake = Archive(str(tmp_path / "archive")), str(tmp_path / "lake")

    def ship(first: int, last: int) -> int:
        positions = list(range(first, last + 1))
        count = len(positions)
        rows = {"queue_manager": [A] * count, "queue": ["orders;journal"] * count,
                "position": positions, "message_id": [f"{A}\\{n}" for n in positions],
                "body": [b"x"] * count}  # fmt: skip
        parquet.write_table(pa.table(rows), day / f"orders-{first}-{last}.parquet")
        (done,) = archive.compact(engine, lake, today=datetime.date(2026, 1, 5))
        return done.rows

    assert [ship(1, 5), ship(6, 8), ship(1, 7)] == [5, 8, 8]


def test_an_unreadable_state_is_reported_with_a_remedy(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    a = Log("a", A)
    a.record(MIDNIGHT, "sent", message_id=f"{A}\\1", queue="private$\\q")
    a.write(logs / "a.parquet")
    draft = Results(out).begin("traffic")
    draft.put_state({"version": 77}, [])
    draft.commit()

    done = run("traffic", logs, out, "--dry-run")

    assert done.exit_code == 2
    assert "--again" in done.stderr
