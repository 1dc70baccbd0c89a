"""Jobs over event logs: the audit finds exactly the faults; the other jobs are consistent."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from benchmarks.bench_audit import last_stage, shuffles
from pipeline.events import Choice, find_files, pieces, read_piece
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.jobs.audit.facts import COLUMNS, facts_of
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.passes import PROBE, EventSelection, print_rows
from pipeline.jobs.audit.settled import Stretches
from pipeline.jobs.audit.state import State
from pipeline.jobs.audit.survey import survey
from pipeline.jobs.dead_letters import dead_letters
from pipeline.jobs.incremental.memory import Memory
from pipeline.jobs.latency import latency
from pipeline.jobs.trace import trace
from pipeline.jobs.traffic import traffic
from pipeline.report.outcome import write_audit
from pipeline.results.runs import Draft, Results
from tests.pipeline.foreign_chance import fleet_of_ways
from tests.pipeline.foreign_faults import more_faults
from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, Message, Stream, foreign_fleet
from tests.pipeline.foreign_fleet import Fleet as ForeignFleet
from tests.pipeline.second_opinion import second_opinion

Key = tuple[str, str, int, int]

pytestmark = pytest.mark.timeout(1800)  # other work may slow the machine down

SOAK = os.environ.get("QMD_SOAK")
SEEDS = int(os.environ.get("QMD_SOAK_SEEDS", "6"))


def fleet(folder: Path, faults: str, seed: int, **sizes: int) -> dict[str, Any]:
    """Write a small fleet's logs to `folder`; return the true findings."""
    wanted = {"hosts": 8, "streams": 30, "messages": 6000, "days": 2} | sizes
    return generate(Fleet(seed=seed, faults=parse_faults(faults), **wanted), folder)


def begun(out: Path, job: str = "audit") -> Draft:
    """Return the next run of a job into `out`."""
    return Results(out).begin(job)


def key(finding: dict[str, Any]) -> Key:
    """Return the identity of a finding: a number that was never used has no message."""
    if finding["kind"] != "gap":
        return finding["kind"], finding["message_id"], 0, 0
    return "gap", "", int(finding["sequence_id"]), int(finding["sequence_number"])


def true(truth: dict[str, Any]) -> Counter[Key]:
    return Counter(map(key, truth["findings"]))


def rows(result: AuditResult) -> list[dict[str, Any]]:
    return list(result.findings.astype(object).to_dict("records"))


def found(result: AuditResult) -> Counter[Key]:
    return Counter(key(each) for each in rows(result) if each["kind"] not in ABOUT_HOSTS)


def about_hosts(result: AuditResult) -> set[tuple[str, str]]:
    return {(each["kind"], each["host"]) for each in rows(result) if each["kind"] in ABOUT_HOSTS}


def audited(engine: Any, folder: Path, *, full: bool = False) -> AuditResult:
    return audit(engine, find_files([str(folder)]), State(), AuditSettings(full=full, tasks=2))


def comparable(result: AuditResult) -> list[list[str]]:
    """Return all rows of a result, whichever engine has computed it."""
    tables = (result.findings, result.open, result.streams, result.segments, result.kept)
    return [sorted(map(repr, table.astype(object).values.tolist())) for table in tables]


def test_the_audit_finds_exactly_the_faults_of_a_fleet(engine: Any, tmp_path: Path) -> None:
    truth = fleet(tmp_path / "logs", "all", seed=11, hosts=14, streams=60, messages=12_000)

    result = audited(engine, tmp_path / "logs")

    assert found(result) == true(truth)
    assert about_hosts(result) == {(each["kind"], each["host"]) for each in truth["hosts"]}


def test_the_audit_finds_exactly_the_faults_of_foreign_hosts(
    spark: Any, engine: Any, tmp_path: Path
) -> None:
    fleet = foreign_fleet(tmp_path / "logs", more=more_faults)
    before = last_stage(spark)
    broken = tmp_path / "logs" / "day=1" / "host=november" / "events.parquet"
    whole = broken.read_bytes()
    state = State()

    result = audited(spark, tmp_path / "logs")
    embedded = audited(engine, tmp_path / "logs")

    assert found(result) == fleet.findings
    assert about_hosts(result) == fleet.about_hosts
    assert comparable(embedded) == comparable(result)
    # Of all rules together, also for a DISTINCT, and of the search for other histories.
    records = shuffles(spark, since=before)
    assert 0 < sum(records) < result.events / 2, records  # the suspects alone

    broken.write_bytes(whole[: len(whole) // 2])
    result = audit(engine, find_files([str(tmp_path / "logs")]), state, AuditSettings(tasks=2))

    assert found(result) <= fleet.findings  # less can be decided, and there are no other findings
    about = fleet.about_hosts | {("broken_file", "november"), ("late_log", "november")}
    assert about_hosts(result) == about

    broken.write_bytes(whole)
    fresh = state.unseen(find_files([str(tmp_path / "logs")]))
    assert [Path(file.path) for file in fresh] == [broken]  # the next audit reads it


def test_the_audit_finds_exactly_the_random_faults(engine: Any, tmp_path: Path) -> None:
    fleet = fleet_of_ways(tmp_path, seed=1)

    result = audited(engine, tmp_path)

    assert found(result) == fleet.findings
    assert about_hosts(result) == fleet.about_hosts


def test_the_quick_filter_of_the_second_pass_omits_nothing(tmp_path: Path) -> None:
    foreign_fleet(tmp_path)
    parts = [part for each in pieces(find_files([str(tmp_path)]), 1) for part in each]
    state = State()
    read = Stretches(state.covered)
    prints = pa.Table.from_batches(print_rows(iter(parts), 1, read)).to_pandas()
    found, _ = survey(prints, state, full=False)
    wanted = EventSelection.of(found, state.carried, full=False)

    def chosen(probe: Sequence[str] = (), choose: Choice | None = None) -> int:
        tables = (table for part in parts for table in read_piece(part, COLUMNS, probe, choose))
        return sum(int(wanted.choose(facts_of(table)).sum()) for table in tables)

    assert chosen(PROBE, wanted.probe) == chosen() > 1000


def test_a_full_check_and_a_second_implementation_give_the_same(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    kinds = "lost,acked_not_stored,duplicated,reordered,delayed,gap,delivered_dead,expired,refused"
    truth = fleet(tmp_path / "logs", kinds, seed=12)

    before = last_stage(spark)
    result = audited(spark, tmp_path / "logs", full=True)

    assert found(result) == true(truth)
    (records,) = shuffles(spark, since=before)
    assert records <= truth["events"]  # each event at most once
    assert second_opinion(tmp_path / "logs") == true(truth)


def test_days_are_read_once_and_late_events_are_decided_later(engine: Any, tmp_path: Path) -> None:
    logs, here = tmp_path / "logs", tmp_path / "here"
    truth = fleet(logs, "lost,acked_not_stored,duplicated=3,gap=4,expired", seed=14, hosts=5)
    days = sorted(logs.glob("day=*"))
    late = days[0] / "host=host003"
    out = tmp_path / "out"
    sizes = []
    for arriving in (
        [each for each in days[0].iterdir() if each != late],
        [late, *days[1].iterdir()],
    ):
        for each in arriving:
            shutil.copytree(each, here / each.relative_to(logs))
        state = State.load(begun(out))
        fresh = state.unseen(find_files([str(here)]))
        sizes.append(len(fresh))
        result = audit(engine, fresh, state, AuditSettings(tasks=2))
        before = tmp_path / f"state {len(sizes)}"
        if out.exists():
            shutil.copytree(out, before, symlinks=True)
        write_audit(begun(out), result, state)
        assert found(result) <= true(
            truth
        )  # no message is reported as lost only because a log is missing

    again = audit(engine, [], State.load(begun(out)), AuditSettings(tasks=2))
    assert found(again) == true(truth)  # known messages stay known
    assert sizes == [4, 6]
    assert found(result) == true(truth)
    assert parquet.read_table(out / "findings.parquet").num_rows == len(rows(result))

    # A run that is killed before it has published is repeated: no event is counted twice.
    counted = parquet.read_table(out / "streams.parquet").to_pandas()
    shutil.rmtree(out)
    before.rename(out)
    state = State.load(begun(out))
    assert len(state.unseen(find_files([str(here)]))) == 6
    write_audit(begun(out), audit(engine, fresh, state, AuditSettings(tasks=2)), state)
    recounted = parquet.read_table(out / "streams.parquet").to_pandas()
    assert sum(counted.sent) == sum(recounted.sent) > 0
    assert sum(counted.accepted) == sum(recounted.accepted)


def test_an_open_message_is_kept_when_its_stream_ends(engine: Any, tmp_path: Path) -> None:
    """A message is lost, on its way, and stored a day later, in runs over otherwise empty files."""
    f = ForeignFleet(random.Random(1))
    alpha, bravo = f.host("alpha"), f.host("bravo of two days")
    f.life(Message(alpha, bravo, "stored", Stream(alpha)), MIDNIGHT + HOUR)  # the clocks agree
    lost, waiting, late = (Message(alpha, bravo, queue, Stream(alpha)) for queue in "abc")
    for m in (lost, waiting, late):
        f.sent(m, MIDNIGHT + HOUR)
    f.acked(lost, MIDNIGHT + HOUR + 30)
    f.left(f.accepted(late, MIDNIGHT + DAY + HOUR), MIDNIGHT + DAY + 2 * HOUR)
    bravo.record(MIDNIGHT + 2 * HOUR, "started")
    f.write(tmp_path, without=set(), hole=(alpha, 0, 0))
    files = find_files([str(tmp_path)])
    state = State()

    def verdicts(words: str) -> tuple[Counter[Key], Counter[str]]:
        result = audit(
            engine, [each for each in files if words in each.path], state, AuditSettings(tasks=2)
        )
        return found(result), Counter(
            dict(zip(result.open.reason, result.open.messages, strict=True))
        )

    everything = {"no_log": 2, "on_its_way": 2}
    assert verdicts("host=alpha") == (Counter(), everything)
    assert verdicts("empty") == (Counter(), everything)
    is_lost = Counter({("acked_not_stored", lost.id, 0, 0): 1})
    assert verdicts("day=0/host=bravo") == (is_lost, {"on_its_way": 2})
    assert verdicts("day=1/host=bravo") == (is_lost, {"on_its_way": 1})
    assert set(state.carried.number) == {2, 3}


def test_days_of_plain_messages_in_reverse_order_are_no_faults(engine: Any, tmp_path: Path) -> None:
    """A later number of a sender does not prove that its earlier sends were read."""
    f = ForeignFleet(random.Random(1))
    alpha, bravo = f.host("alpha"), f.host("bravo of two days")
    for n in range(20):
        f.life(Message(alpha, bravo, "plain", None), MIDNIGHT + HOUR + n * 2 * HOUR)
    f.write(tmp_path, without=set(), hole=(alpha, 0, 0))
    files = find_files([str(tmp_path)])
    state = State()

    for words in ("day=1/host=alpha", "host=bravo", "day=0/host=alpha"):
        some = [each for each in files if words in each.path]
        assert found(audit(engine, some, state, AuditSettings(tasks=2))) == Counter()

    assert len(state.carried) == 0


def any_fleet(folder: Path, seed: int) -> Counter[Key]:
    """Return a fleet, from the generator or the foreign hosts in turn, with the true findings."""
    if seed % 3 == 1:
        return true(fleet(folder, "all", seed=seed, hosts=6, streams=20, messages=2000))
    if seed % 3 == 2:
        return fleet_of_ways(folder, seed).findings
    return foreign_fleet(folder, seed, more=more_faults).findings


def in_any_order(engine: Any, folder: Path, seed: int, runs: int) -> tuple[AuditResult, State]:
    """Return the last of several audits, which get the files of a fleet in any order."""
    files = find_files([str(folder)])
    random.Random(seed).shuffle(files)
    state = State()
    for n in range(runs):
        result = audit(engine, sorted(files[n::runs]), state, AuditSettings(tasks=2))
    return result, state


def test_the_order_of_files_makes_no_difference(engine: Any, tmp_path: Path) -> None:
    """Faults at the ends of sequences and of files, and hosts with a missing part."""
    kinds = "lost,acked_not_stored=5,duplicated=3,reordered=3,delayed=3,gap=4,expired,refused"
    kinds += ",number_reused=2,restart=2,plain_duplicated=2,plain_not_stored=2,delivered_dead=2"
    truth = fleet(tmp_path, kinds, seed=31, hosts=4, streams=10, messages=800)

    result, state = in_any_order(engine, tmp_path, seed=31, runs=3)

    assert found(result) == true(truth)
    assert len(state.segments) < 60  # and not one per message
    assert len(state.carried) < 500


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak-pipeline")
@pytest.mark.parametrize("seed", range(SEEDS if SOAK else 1))
def test_the_order_of_files_makes_no_difference_to_any_fleet(
    engine: Any, tmp_path: Path, seed: int
) -> None:
    wanted = any_fleet(tmp_path, seed)
    whole = audited(engine, tmp_path)

    for runs in (2, 3, 5):
        result, _ = in_any_order(engine, tmp_path, seed=seed * 10 + runs, runs=runs)
        assert found(result) == wanted == found(whole)
        assert about_hosts(result) == about_hosts(whole)
        assert result.open.messages.sum() == whole.open.messages.sum()


def test_the_other_jobs_are_consistent(engine: Any, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    faults = "expired=9,discarded=4,refused=5,clock=1"
    truth = fleet(logs, faults, seed=16, hosts=6, streams=20, messages=3000)
    files = find_files([str(logs)])

    kinds = Counter(
        kind
        for file in files
        for kind in parquet.read_table(file.path, columns=["kind"])["kind"].to_pylist()
    )

    dead = dead_letters(engine, files, Memory(begun(tmp_path / "1", "job")))["groups"]
    assert dead[dead.to_queue != ""].messages.sum() == kinds["dead_lettered"] > 5
    assert dead[dead.to_queue == ""].messages.sum() == kinds["discarded"] > 0
    (example,) = (
        dead[(dead.to_queue != "") & (dead.message_class == "nack_reach_queue_timeout")]
        .head(1)
        .itertuples()
    )
    assert example.command.startswith("qmd dead-letter requeue --queue transactional-dead-letter")

    tables = latency(engine, files, Memory(begun(tmp_path / "2", "job")))
    (wrong,) = truth["hosts"]
    assert tables["clocks"].iloc[0].host == wrong["host"]
    assert abs(tables["clocks"].iloc[0].offset_ms) > 4000
    assert tables["by_route"].before_sent.sum() <= 30  # the error of the clocks, of 3000
    assert tables["by_route"].messages.sum() == tables["by_hour"].messages.sum()

    moved = traffic(engine, files, Memory(begun(tmp_path / "3", "job")), quota_bytes=1 << 40)
    assert moved["by_hour"].sent.sum() == kinds["sent"]
    shutil.copy(files[0].path, Path(files[0].path).with_name("again.parquet"))
    twice = traffic(engine, find_files([str(logs)]), Memory(begun(tmp_path / "4", "job")))
    assert twice["by_hour"].equals(moved["by_hour"])
    assert twice["queues"].messages.sum() == moved["queues"].messages.sum()

    message = dead[dead.to_queue != ""].iloc[0].examples.split(", ")[0]
    history = trace(engine, files, message)["events"]
    assert history.iloc[0].kind == "sent"
    assert "dead_lettered" in set(history.kind)


def test_a_fleet_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first = fleet(tmp_path / "a", "all", seed=5, messages=1000)
    again = fleet(tmp_path / "b", "all", seed=5, messages=1000)
    other = fleet(tmp_path / "c", "all", seed=6, messages=1000)

    assert first == again != other
    files = sorted(each.relative_to(tmp_path / "a") for each in (tmp_path / "a").rglob("*.parquet"))
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_fleet_has_the_columns_of_an_export(tmp_path: Path) -> None:
    from qmd.cli.event_files import arrow_schema

    fleet(tmp_path / "logs", "all", seed=5, messages=1000)

    file = next((tmp_path / "logs").rglob("*.parquet"))
    made = parquet.ParquetFile(file).schema_arrow
    assert made.names == arrow_schema().names
    assert [str(each) for each in made.types] == [str(each) for each in arrow_schema().types]
    assert json.loads((tmp_path / "logs" / "_truth.json").read_text())["seed"] == 5
    assert pa.types.is_decimal(made.field("sequence_id").type)
