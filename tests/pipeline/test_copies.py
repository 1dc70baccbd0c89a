"""Two copies of a queue manager at one time: no message is accused falsely, whatever logs exist."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.on_spark import engine_of
from pipeline.events import find_files
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.history_events import EVENTS, begins, create_events, side_by_side
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from pipeline.report.outcome import write_audit
from pipeline.results.runs import Results
from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_copies import BEGIN, Copies, run_of
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Host, Message, Stream
from tests.pipeline.foreign_parts import accused_falsely, keep_a_part
from tests.pipeline.nights import about_messages, shown

SOAK = bool(os.environ.get("QMD_SOAK"))  # `make soak-pipeline`
OTHERS = ("alpha", "quebec", "romeo")
SETTINGS = AuditSettings(tasks=1)


def night(engine: Any, here: Path, out: Path) -> AuditResult:
    draft = Results(out).begin("audit")
    state, files = State.load(draft), find_files([str(here)])
    result = audit(engine, state.unseen(files), state, SETTINGS, earlier=state.seen(files))
    write_audit(draft, result, state)
    return result


def whole(engine: Any, here: Path, out: Path) -> AuditResult:
    draft, state = Results(out).begin("audit"), State()
    result = audit(engine, find_files([str(here)]), state, SETTINGS)
    write_audit(draft, result, state)
    return result


@pytest.mark.parametrize("seed", range(4 if SOAK else 2))
def test_no_night_accuses_anybody_and_the_last_one_says_what_one_run_says(
    engine: Any, tmp_path: Path, seed: int
) -> None:
    fleet, files, here = Copies(seed), tmp_path / "all", tmp_path / "here"
    files.mkdir()
    here.mkdir()
    fleet.write(files)
    names = [*OTHERS, "original", "copy"]
    random.Random(seed).shuffle(names)
    for name in names:
        shutil.copy(files / f"{name}.parquet", here)
        last = night(engine, here, tmp_path / "out")
        assert not about_messages(last) - fleet.findings, (names, name)

    assert shown(last) == shown(whole(engine, files, tmp_path / "whole"))
    assert ("restored", "papa") in about_hosts(last)


def about_hosts(result: AuditResult) -> set[tuple[str, str]]:
    found = result.findings[result.findings.kind.isin(ABOUT_HOSTS)]
    return set(zip(found.kind, found.host, strict=True))


@pytest.mark.parametrize("logged", ["original", "copy"])
def test_the_log_of_one_copy_decides_the_messages_of_its_own_runs(
    engine: Any, tmp_path: Path, logged: str
) -> None:
    fleet = Copies(2)
    fleet.write(tmp_path)
    other = "copy" if logged == "original" else "original"
    (tmp_path / f"{other}.parquet").unlink()

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    host = fleet.quebec if logged == "original" else fleet.alpha
    assert set(about_messages(result)) == {
        each for each in fleet.findings if each[1].startswith(host.guid)
    }
    opened = result.open[result.open.reason == "other_copy"]
    assert opened.host.to_list() == ["papa"]


# The log of one copy is missing, and so are parts of the others, which may name its run.
@pytest.mark.parametrize("seed", range(60) if SOAK else [0, 3, 11, 23])
def test_an_unread_part_of_a_log_may_name_the_run_of_another_copy(
    engine: Any, tmp_path: Path, seed: int
) -> None:
    fleet, chance = Copies(seed), random.Random(seed + 7)
    fleet.write(tmp_path)
    gone = chance.choice(["copy", "original"])
    (tmp_path / f"{gone}.parquet").unlink()
    for name in (*OTHERS, "original" if gone == "copy" else "copy"):
        keep_a_part(chance, tmp_path / f"{name}.parquet")

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert accused_falsely(about_messages(result), fleet.findings) == []


@pytest.mark.parametrize("has_hole", [False, True])
def test_a_later_message_of_its_sequence_proves_a_loss_whichever_run_was_met(
    engine: Any, tmp_path: Path, has_hole: bool
) -> None:
    """No host is taken for a copy, and a message that nothing follows stays open."""
    fleet = Copies(2)
    last = Message(
        fleet.quebec, fleet.original, "usual", fleet.streams[fleet.quebec, fleet.original]
    )
    fleet.f.sent(last, fleet.ended)
    fleet.f.acked(last, fleet.ended + 20)
    fleet.f.life(Message(fleet.romeo, fleet.original, "last", Stream(fleet.romeo)),
                 fleet.ended + HOUR)  # fmt: skip
    fleet.write(tmp_path)
    for name in ("copy", "alpha", "romeo"):
        (tmp_path / f"{name}.parquet").unlink()
    if has_hole:
        path = tmp_path / "quebec.parquet"
        log = parquet.read_table(path)
        blocks = log["block"].to_numpy()
        begin = blocks[log["at_ms"].to_numpy() > MIDNIGHT + 20 * MINUTE].min()
        parquet.write_table(log.filter(pa.array((blocks < begin) | (blocks > begin + 2))), path)

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    lost = {each for each in fleet.findings if each[1].startswith(fleet.quebec.guid)}
    alone = set() if has_hole else {("acked_not_stored", last.id, 0, 0)}
    assert len(lost) == 1
    assert set(about_messages(result)) == lost | alone
    assert ("restored", "papa") not in about_hosts(result)


def ship_each(folder: Path) -> None:
    """Name each log as `qmd ship` does that has a target of its own."""
    for path in folder.glob("*.parquet"):
        rows = parquet.read_table(path, columns=["queue_manager", "block"])
        guid, blocks = rows["queue_manager"][0], rows["block"].to_numpy()
        to = folder / f"target of {path.stem}" / "events/day=2026-11-21" / f"host={path.stem}"
        to.mkdir(parents=True)
        path.rename(to / f"{guid}-{blocks.min():016d}-{blocks.max():016d}.parquet")


@pytest.mark.parametrize("is_shipped", [False, True], ids=["exported", "shipped"])
@pytest.mark.parametrize("seed", [1, 3])
def test_the_logs_of_both_copies_decide_what_neither_has(
    engine: Any, tmp_path: Path, seed: int, is_shipped: bool
) -> None:
    """A message is lost if neither log has it, as far as both of them go."""
    fleet, ends = Copies(seed), {}
    fleet.write(tmp_path)
    for name in ("original", "copy"):
        rows = parquet.read_table(tmp_path / f"{name}.parquet").select(["block", "at_ms"])
        ends[name] = rows.to_pylist()
    last = min(max(row["block"] for row in rows) for rows in ends.values())
    until = min(row["at_ms"] for rows in ends.values() for row in rows if row["block"] == last)
    known = {each for each in fleet.findings if fleet.lost_at[each] < until - 1000}
    if is_shipped:
        ship_each(tmp_path)

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert len(known) > 0
    assert set(about_messages(result)) == known
    assert sum(result.open.messages) == len(fleet.findings) - len(known)


def test_a_number_that_may_have_come_to_the_copy_without_a_log_is_no_gap(
    engine: Any, tmp_path: Path
) -> None:
    fleet = Copies(2)
    stream = fleet.streams[fleet.alpha, fleet.copy]
    stream.number += 1
    for n in range(2):
        later = Message(fleet.alpha, fleet.copy, "usual", stream)
        fleet.f.life(later, fleet.ended + (n + 1) * MINUTE)
    fleet.write(tmp_path)
    (tmp_path / "copy.parquet").unlink()

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert "gap" not in result.findings.kind.to_list()


def test_a_missing_part_of_the_log_of_one_copy_leaves_its_messages_open(
    engine: Any, tmp_path: Path
) -> None:
    fleet = Copies(1)
    fleet.write(tmp_path)
    path = tmp_path / "copy.parquet"
    log = parquet.read_table(path)
    blocks = log["block"].to_numpy()
    begin = blocks[log["at_ms"].to_numpy() > BEGIN].min()
    parquet.write_table(log.filter(pa.array((blocks < begin) | (blocks > begin + 2))), path)

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert not about_messages(result)


def test_without_any_log_of_both_their_numbers_are_no_duplicates(
    engine: Any, tmp_path: Path
) -> None:
    """A message that one run brought twice to a host is one nevertheless."""
    fleet = Copies(3)
    twice = Message(fleet.original, fleet.quebec, "twice", Stream(fleet.original))
    twice.id = f"{fleet.original.guid}\\9999"
    for n in range(2):
        fleet.f.accepted(twice, fleet.ended + n * MINUTE)
    fleet.write(tmp_path)
    for name in ("original", "copy"):
        (tmp_path / f"{name}.parquet").unlink()

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert set(about_messages(result)) == {("duplicated", twice.id, 0, 0)}


def test_both_engines_open_the_same_messages(engine: Any, spark: Any, tmp_path: Path) -> None:
    for name, without in (("one", "copy"), ("both", "")) if SOAK else (("both", ""),):
        (tmp_path / name).mkdir()
        Copies(5).write(tmp_path / name)
        (tmp_path / name / f"{without}.parquet").unlink(missing_ok=True)
        here, there = (
            whole(one, tmp_path / name, tmp_path / f"out-{name}-{number}")
            for number, one in enumerate((engine, engine_of(spark)))
        )
        assert shown(here) == shown(there)


@pytest.mark.parametrize("shown_by", ["a run that others met", "a start with its run", "nothing"])
def test_one_message_in_a_silent_stretch_is_open_unless_its_host_knew_it(
    engine: Any, tmp_path: Path, shown_by: str
) -> None:
    """A snapshot was put back: its log has nothing between it and the start with it.

    With nothing that shows that, its sequence goes on: the host knew the message.
    """
    f = Fleet(random.Random(4))
    alpha, papa = Host("alpha", f.chance), Host("papa", f.chance)
    first, gone, last = (run_of(papa, starts, n) for n, starts in enumerate((7, 8, 8)))
    alpha.record(MIDNIGHT, "started", peer=run_of(alpha, 3, 9))
    papa.record(MIDNIGHT, "started", peer=first)
    alpha.record(MIDNIGHT + 10, "met", peer=first)
    streams = {host: Stream(host) for host in (alpha, papa)}
    for n in range(20):
        for source, to in ((alpha, papa), (papa, alpha)):
            message = Message(source, to, "usual", streams[source])
            f.life(message, MIDNIGHT + (n + 1) * MINUTE + (source is papa) * 5000)
    copied, restored = MIDNIGHT + 30 * MINUTE, MIDNIGHT + 2 * HOUR
    f.sent(alone := Message(alpha, papa, "usual", streams[alpha]), copied + 10 * MINUTE)
    f.acked(alone, copied + 10 * MINUTE + 20)
    if shown_by == "a run that others met":
        alpha.record(copied + 40 * MINUTE, "met", peer=gone)
    papa.record(restored, "started", peer=last)
    alpha.record(restored + 1000, "met", peer=last)
    if shown_by != "nothing":
        streams[alpha] = Stream(alpha)
    for n in range(3):
        f.life(Message(alpha, papa, "usual", streams[alpha]), restored + (n + 1) * MINUTE)
    for host in (alpha, papa):
        table = pa.Table.from_pylist(host.rows(), schema=arrow_schema())
        parquet.write_table(table, tmp_path / f"{host.name}.parquet")

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    found = {("acked_not_stored", alone.id, 0, 0)}
    assert set(about_messages(result)) == (found if shown_by == "nothing" else set())
    assert ("other_history" in result.open.reason.to_list()) == (shown_by != "nothing")


def test_a_message_in_the_block_in_which_the_run_of_its_source_was_met_is_of_that_run(
    engine: Any, tmp_path: Path
) -> None:
    """The run before has ended, so the message would be that of another copy."""
    f = Fleet(random.Random(5))
    alpha, papa = Host("alpha", f.chance), Host("papa", f.chance)
    first, second = (run_of(papa, starts, starts) for starts in (7, 8))
    alpha.record(MIDNIGHT, "started", peer=run_of(alpha, 3, 9))
    papa.record(MIDNIGHT, "started", peer=first)
    alpha.record(MIDNIGHT + 10, "met", peer=first)
    stream = Stream(papa)
    for n in range(5):
        f.life(Message(papa, alpha, "usual", stream), MIDNIGHT + (n + 1) * MINUTE)
    papa.record(MIDNIGHT + HOUR, "started", peer=second)
    later = MIDNIGHT + 2 * HOUR
    alpha.record(later, "met", peer=second)
    f.accepted(forged := Message(papa, alpha, "usual", Stream(papa)), later)
    for n in range(3):
        f.life(Message(papa, alpha, "usual", stream), later + (n + 1) * MINUTE)
    for host in (alpha, papa):
        table = pa.Table.from_pylist(host.rows(), schema=arrow_schema())
        parquet.write_table(table, tmp_path / f"{host.name}.parquet")

    result = audit(engine, find_files([str(tmp_path)]), State(), SETTINGS)

    assert set(about_messages(result)) == {("never_sent", forged.id, 0, 0)}
    assert len(result.open) == 0


Event = tuple[int, int, int]  # block, time, and 2 for a start that names its run


def are_side_by_side(engine: Any, *logs: list[Event]) -> list[bool]:
    rows = [(host, block, 0, at_ms, start)
            for host, log in enumerate(logs) for block, at_ms, start in log]  # fmt: skip
    columns = np.array(rows, np.int64).reshape(len(rows), 5).T
    table = pa.Table.from_arrays([pa.array(each) for each in columns], schema=EVENTS)
    try:
        create_events(engine, [], None, table)
        found = side_by_side(engine, begins(engine))
    finally:
        engine.release()
    return [host in found for host in range(len(logs))]


def test_histories_that_alternate_are_those_of_two_copies(engine: Any) -> None:
    second = 1000
    before = [(1, 0, 2), *((n, n * second, 0) for n in range(2, 10))]
    gone = [(n, n * second, 0) for n in range(10, 20)]
    later = [(10, 30 * second, 2), *((n, (n + 30) * second, 0) for n in range(11, 15))]
    beside = [(10, 10_500, 2), *((n, n * second + 500, 0) for n in range(11, 15))]
    further = [(n, (n + 20) * second, 0) for n in range(20, 25)]  # where `later` has others
    steps = [(20, 60 * second, 0), (21, 59_500, 0), (22, 61 * second, 0)]
    unnamed = [(block, at_ms, 0) for block, at_ms, _ in [*before, *gone, *beside]]
    logs = {
        "one history": ([*before, *gone], False),
        "a snapshot": ([*before, *gone, *later], False),
        "a snapshot, and a clock that is set back a little": (
            [*before, *gone, *later, *steps], False),
        "two copies": ([*before, *gone, *beside], True),
        "two copies, of which one was first idle": ([*before, *gone, *later, *further], True),
        "logs of an earlier release": (unnamed, False),
    }  # fmt: skip

    found = are_side_by_side(engine, *(log for log, _ in logs.values()))

    assert dict(zip(logs, found, strict=True)) == {name: each for name, (_, each) in logs.items()}
