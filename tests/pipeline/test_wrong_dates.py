"""One event of a clock that is years ahead moves no window of a job: waits, forecasts, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.event_numbers import LATEST_MS
from pipeline.events import find_files
from pipeline.jobs.dead_letters import dead_letters
from pipeline.jobs.incremental.memory import Memory
from pipeline.jobs.latency import latency
from pipeline.jobs.traffic import traffic
from pipeline.report.dead_letters_page import dead_letters_page
from pipeline.report.shared import recent
from pipeline.report.traffic_page import traffic_page
from pipeline.results.runs import Results
from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT
from tests.pipeline.test_odd_inputs import GUID, OTHER, SCHEMA, row

AWAY = "DIRECT=OS:beta\\private$\\q"
NOW = MIDNIGHT + 5 * DAY


def event(block: int, kind: str, at_ms: int, number: int, **more: Any) -> dict[str, Any]:
    own = {"block": block, "at_ms": at_ms, "message_id": f"{GUID}\\{number}", "bytes": 700}
    return row(kind, **{"queue": AWAY, "delivery": "recoverable"} | own | more)


def at_beta(block: int, kind: str, at_ms: int, number: int) -> dict[str, Any]:
    place = {"queue": "private$\\q", "queue_manager": OTHER, "host": "beta"}
    return event(block, kind, at_ms, number, **place)


#: The clock is years ahead for a moment.
def years_ahead(block: int) -> dict[str, Any]:
    return event(block, "sent", LATEST_MS, 99)


def tables_after(job: Any, folder: Path, *nights: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of the last of several runs, each over the files until then."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    tables: dict[str, Any] = {}
    with LocalEngine(threads=1) as engine:
        for number, rows in enumerate(nights):
            parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), logs / f"{number}.parquet")
            draft = Results(folder / "out").begin("job")
            memory = Memory.load(draft)
            fresh = memory.unseen(find_files([str(logs)]))
            tables = job(engine, fresh, memory, now_ms=NOW)
            memory.save(fresh)
            draft.put_page("report.html", "")
            draft.commit()
    return tables


def test_latency_waits_for_messages_of_real_days(tmp_path: Path) -> None:
    here = [event(1, "sent", MIDNIGHT, 1), years_ahead(2)]
    there = [at_beta(1, "accepted", MIDNIGHT + 30, 1)]

    routes = tables_after(latency, tmp_path, here, there)["by_route"]

    assert routes.accepted_p50_ms.notna().tolist() == [True]


def test_dead_letters_that_left_are_known_until_their_death_is_read(tmp_path: Path) -> None:
    left = [event(5, "requeued", MIDNIGHT + HOUR, 1, queue="system$;deadletter"), years_ahead(6)]
    died = [event(4, "dead_lettered", MIDNIGHT, 1, to_queue="system$;deadletter")]

    groups = tables_after(dead_letters, tmp_path, left, died)["groups"]

    assert (groups.messages.tolist(), groups.waiting.tolist()) == ([1], [0])


def test_a_forecast_uses_the_last_real_days(tmp_path: Path) -> None:
    grows = [event(n, "sent", MIDNIGHT + n * HOUR, n) for n in range(1, 96)]

    alone = tables_after(traffic, tmp_path / "one", grows)["queues"].iloc[0]
    beside = tables_after(traffic, tmp_path / "two", [*grows, years_ahead(96)])["queues"].iloc[0]

    assert beside.messages == alone.messages + 1  # the message is there, whenever it came
    assert alone.growth_bytes_a_day == pytest.approx(24 * 700)
    assert beside.growth_bytes_a_day == pytest.approx(24 * 700, rel=0.05)
    assert beside.backlog_hours == alone.backlog_hours


def test_pictures_show_the_last_real_days() -> None:
    days = [MIDNIGHT, MIDNIGHT + DAY, LATEST_MS]
    hours = pd.DataFrame({"hour": pd.to_datetime(days, unit="ms")})

    shown, note = recent(hours)

    assert (shown.hour.dt.year.tolist(), note) == ([2026] * 2, " Times after tomorrow are omitted.")
    assert recent(hours[:0])[1] == ""


def test_pages_have_no_years_without_events(tmp_path: Path) -> None:
    rows = [event(1, "dead_lettered", MIDNIGHT, 1, to_queue="system$;deadletter"),
            event(2, "dead_lettered", LATEST_MS, 2, to_queue="system$;deadletter"),
            years_ahead(3)]  # fmt: skip

    of_dead = dead_letters_page(tables_after(dead_letters, tmp_path / "dead", rows))
    of_traffic = traffic_page(tables_after(traffic, tmp_path / "traffic", rows))

    assert "Times after tomorrow are omitted." in of_dead
    assert "2262" not in of_traffic
