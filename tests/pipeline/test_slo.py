"""Service level objectives: known answers, over several nights, and wrong files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from click.testing import CliRunner
from pyarrow import parquet

from pipeline.events import find_files
from pipeline.jobs.incremental.memory import Memory
from pipeline.jobs.objectives import WrongObjective, read_objectives
from pipeline.jobs.slo import slo
from pipeline.report.slo_page import slo_page
from pipeline.results.runs import Results
from qmd.cli import main
from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT

ALPHA, BETA = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
HOSTS = {ALPHA: "alpha", BETA: "beta"}
OBJECTIVES = """
[[objective]]
name = "stored"
within = "5s"
percent = 75.0
queue = "orders"

[[objective]]
name = "received"
stage = "received"
within = "1m"
percent = 90.0
from = "al*"
"""
SCHEMA = pa.schema([field.with_nullable(True) for field in arrow_schema()])


class Logs:
    """The logs of two hosts."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, host: str, kind: str, number: int, at_ms: int, queue: str) -> None:
        self.rows.append(
            dict.fromkeys(SCHEMA.names)
            | {"schema": 1, "host": HOSTS[host], "queue_manager": host, "index": 0,
               "time": at_ms, "at_ms": at_ms, "kind": kind,
               "message_id": f"{ALPHA}\\{number}", "queue": queue, "bytes": 100}
        )  # fmt: skip

    def message(
        self, number: int, at_ms: int, queue: str = "orders", *,
        stored: int | None = None, received: int | None = None, died: int | None = None,
    ) -> None:  # fmt: skip
        """Add a message; the times are milliseconds after its sending."""
        away = f"DIRECT=OS:beta\\private$\\{queue}"
        self.add(ALPHA, "sent", number, at_ms, away)
        if stored is not None:
            self.add(BETA, "accepted", number, at_ms + stored, f"private$\\{queue}")
            self.add(ALPHA, "order_acknowledged", number, at_ms + stored, away)
        if received is not None:
            self.add(BETA, "received", number, at_ms + received, f"private$\\{queue}")
        if died is not None:
            self.add(ALPHA, "expired", number, at_ms + died, away)

    def numbered(self) -> Logs:
        """Number the blocks of each host in the order of time."""
        self.rows.sort(key=lambda row: row["at_ms"])
        blocks = dict.fromkeys(HOSTS, 0)
        for row in self.rows:
            blocks[row["queue_manager"]] += 1
            row["block"] = blocks[row["queue_manager"]]
            row["cursor"] = f"{row['block']}.0"
        return self


@pytest.fixture
def logs() -> Logs:
    """Return 10 messages of which 6 are stored in time, and 4 received in time."""
    made = Logs()
    for number in range(4):
        made.message(number, MIDNIGHT + number * 1000, stored=20, received=30_000)
    made.message(4, MIDNIGHT + 10_000, stored=5_000, received=60_001)  # just in time; late
    made.message(5, MIDNIGHT + 11_000, stored=5_001, received=70_000)
    made.message(6, MIDNIGHT + 12_000, died=4_000)
    made.message(7, MIDNIGHT + 13_000)  # never acknowledged
    made.message(8, MIDNIGHT + DAY, stored=30)  # still in its queue
    made.message(9, MIDNIGHT + DAY, "other", stored=90_000)  # of another queue
    made.add(ALPHA, "started", 0, MIDNIGHT + DAY + 3_600_000, "")
    made.add(ALPHA, "sent", 99, MIDNIGHT + DAY + 3_600_000, "DIRECT=OS:beta\\private$\\audit")
    return made.numbered()


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    (folder / "slo.toml").write_text(OBJECTIVES)
    command = [
        "pipeline",
        "run",
        "slo",
        "--input",
        str(folder / "logs"),
        "--output",
        str(folder / "out"),
        "--objectives",
        str(folder / "slo.toml"),
        "--json",
        *words,
    ]
    done = CliRunner().invoke(main, command)
    assert done.exit_code in (0, 1), done.output
    rows = parquet.read_table(folder / "out" / "objectives.parquet").to_pylist()
    stored, received = rows
    assert (stored["objective"], received["objective"]) == ("stored", "received")
    json.loads(done.stdout)
    return done.exit_code, stored, received


def check(exit_code: int, stored: dict[str, Any], received: dict[str, Any]) -> None:
    assert (stored["in_time"], stored["late"], stored["undecided"]) == (6, 3, 0)
    assert stored["percent"] == pytest.approx(100 * 6 / 9)
    assert stored["budget_used_percent"] == pytest.approx(100 * 3 / (9 * 0.25))
    assert not stored["is_met"]
    assert (received["in_time"], received["late"]) == (4, 6)
    assert received["undecided"] == 1  # sent just before the logs end
    assert exit_code == 1


def test_known_answers(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write(logs.rows, tmp_path / "logs" / "all.parquet")

    check(*run(tmp_path))

    page = (tmp_path / "out" / "report.html").read_text()
    assert "2 of 2 objectives are missed." in page
    assert "could not be drawn" not in page
    days = parquet.read_table(tmp_path / "out" / "by_day.parquet").to_pylist()
    of_stored = [(row["in_time"], row["late"]) for row in days if row["objective"] == "stored"]
    assert of_stored == [(5, 3), (1, 0)]


def write(rows: list[dict[str, Any]], path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), path)


@pytest.mark.parametrize("seed", range(3))
def test_several_nights_say_what_one_run_says(logs: Logs, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "logs").mkdir()
    parts: list[list[dict[str, Any]]] = [[], [], []]
    for row in logs.rows:
        parts[chance.randrange(3)].append(row)
    for n, part in enumerate(parts):
        write(part, tmp_path / "logs" / f"{n}.parquet")
        result = run(tmp_path)
    check(*result)
    check(*run(tmp_path))  # nothing new
    check(*run(tmp_path, "--again"))


def tables_at(engine: Any, logs: Logs, folder: Path, now_ms: int) -> dict[str, Any]:
    """Return the tables of a run at `now_ms`."""
    (folder / "logs").mkdir()
    write(logs.numbered().rows, folder / "logs" / "all.parquet")
    (folder / "slo.toml").write_text(OBJECTIVES)
    memory = Memory.load(Results(folder / "out").begin("slo"))
    wanted = read_objectives(folder / "slo.toml")
    return slo(engine, find_files([str(folder / "logs")]), memory, wanted, now_ms=now_ms)


def test_a_date_years_ahead_hides_no_real_days(engine: Any, logs: Logs, tmp_path: Path) -> None:
    logs.add(ALPHA, "sent", 98, MIDNIGHT + DAY + HOUR, "DIRECT=OS:beta\\private$\\orders")
    logs.message(100, 292 * 365 * DAY, stored=30)  # by clocks of the year 2261

    found = tables_at(engine, logs, tmp_path, MIDNIGHT + DAY + HOUR)

    stored = found["objectives"].iloc[0]
    assert (stored.in_time, stored.late, stored.after_tomorrow) == (6, 3, 1)
    assert stored.undecided == 1  # no log of this time goes beyond its limit
    assert found["by_day"].day.max().year == 2026
    assert "dated after tomorrow are not counted: 1." in slo_page(found)


def test_a_run_whose_own_clock_is_behind_counts_all(
    engine: Any, logs: Logs, tmp_path: Path
) -> None:
    found = tables_at(engine, logs, tmp_path, MIDNIGHT - 900 * DAY)

    stored = found["objectives"].iloc[0]
    assert (stored.in_time, stored.late, stored.after_tomorrow) == (6, 3, 0)


def test_logs_of_nothing_have_a_page(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write([], tmp_path / "logs" / "none.parquet")

    code, stored, _ = run(tmp_path)

    assert (code, stored["messages"], stored["percent"]) == (0, 0, None)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No message counts for any objective yet." in page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has to consist of sections"),
        ("[[objective]]\nname = 'a'\nwithin = '5s'", "'percent' is missing"),
        ("[[objective]]\nname = 'a'\nwithin = 5\npercent = 100", "'percent' has to be between"),
        ("[[objective]]\nname = 'a'\nwithin = 'soon'\npercent = 9", "'within'"),
        ("[[objective]]\nname = 'a'\nwithin = '5s'\npercent = 9\nstage = 'x'", "'stage' is 'x'"),
        ("[[objective]]\nname = 'a'\nwithin = '5s'\npercent = 9\nquery = 'x'", "no 'query'"),
        ("[[objective]]\nname = 'a'\nwithin = '5s'\npercent = 9\ndays = 0", "'days'"),
        ("[[objective]]\nname = 'a'\nwithin = '5s'\npercent = 9\n" * 2, "two objectives"),
        ("objective", "is no TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "slo.toml").write_text(text)
    with pytest.raises(WrongObjective, match=words):
        read_objectives(tmp_path / "slo.toml")


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(WrongObjective, match="it has more than 1048576 bytes"):
        read_objectives(Path("/dev/zero"))
