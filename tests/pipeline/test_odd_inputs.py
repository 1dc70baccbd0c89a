"""Audits of logs that contain nearly nothing: no row, one row of any kind, only nulls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from pipeline.cli import pipeline
from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from pipeline.report.outcome import write_audit
from pipeline.results.runs import Results
from qmd.cli.event_files import arrow_schema
from qmd.events.header import Kind
from tests.pipeline.foreign_fleet import MIDNIGHT

SOAK = os.environ.get("QMD_SOAK")  # `make soak-pipeline` tries every kind of event
KINDS = list(Kind) if SOAK else [Kind.ACCEPTED, Kind.RECEIVED]
#: Other programs than qmd write nulls into any column.
SCHEMA = pa.schema([field.with_nullable(True) for field in arrow_schema()])
GUID, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"


def row(kind: str, **more: Any) -> dict[str, Any]:
    """Return an event in which everything that may be null is null."""
    known = {
        "schema": 1, "host": "alpha", "queue_manager": GUID, "cursor": "1.0", "block": 1,
        "index": 0, "time": MIDNIGHT, "at_ms": MIDNIGHT, "kind": kind, "message_id": f"{OTHER}\\7",
        "queue": "private$\\q",
    }  # fmt: skip
    return dict.fromkeys(arrow_schema().names) | known | more


def absurd() -> list[dict[str, Any]]:
    """Return messages with sizes that no packet has, at times that no clock should show."""
    rows = []
    blocks = {GUID: 0, OTHER: 0}
    for number, (size, at_ms) in enumerate(zip(ABSURD_SIZES, ABSURD_TIMES, strict=True), 1):
        away = "DIRECT=OS:beta\\private$\\q"
        for host, guid, kind, queue in (
            ("alpha", GUID, "sent", away), ("beta", OTHER, "accepted", "private$\\q"),
            ("alpha", GUID, "session_acknowledged", away),
            ("beta", OTHER, "received", "private$\\q"),
        ):  # fmt: skip
            blocks[guid] += 1
            rows.append(
                row(kind, host=host, queue_manager=guid, block=blocks[guid], queue=queue,
                    message_id=f"{GUID}\\{number}", bytes=size, at_ms=at_ms, label="\0" * 1000,
                    delivery="recoverable", time=MIDNIGHT)
            )  # fmt: skip
    return rows


ABSURD_SIZES = (700, 1 << 62, (1 << 63) - 1, -(1 << 63), -1, 1 << 32, 300, 0, 1 << 62)
#: 1601, 30828, and the limits of 64 bits, besides real ones.
ABSURD_TIMES = (MIDNIGHT, -11_644_473_600_000, 910_692_730_085_477, (1 << 63) - 1, -(1 << 63), 0,
                MIDNIGHT + 1, -1, MIDNIGHT + 2)  # fmt: skip

INPUTS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "nulls": [row("accepted", message_id=None, queue=None, host=None)],
    "an unknown kind": [row("something new")],
    **{kind.value: [row(kind.value)] for kind in KINDS},
    "all kinds": [row(kind.value, block=n, message_id=f"{GUID}\\{n}", queue="DIRECT=OS:b\\q")
                  for n, kind in enumerate(Kind, 1)],
    "texts that are no ids": [
        row("accepted", block=n, message_id=text)
        for n, text in enumerate(("x", "", "\\", f"{GUID}\\9999999999999999999999", "é" * 37,
                                  f"{GUID}\\x", f"{GUID}\\-1"), 1)
    ],
    "absurd numbers": absurd(),
    "long texts": [row("accepted", block=n, message_id=f"{OTHER}\\{n}") | {name: "\0x" * 500_000}
                   for n, name in enumerate(("host", "queue", "label", "reason", "kind"), 1)],
}  # fmt: skip


def test_audits_of_nearly_nothing_have_a_result_and_a_page(tmp_path: Path) -> None:
    with LocalEngine(threads=1) as engine:
        for number, (name, rows) in enumerate(INPUTS.items()):
            logs, out = tmp_path / f"{number}", tmp_path / f"{number} out"
            logs.mkdir()
            parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), logs / "events.parquet")
            found = []
            for is_drawn in (False, True):  # the second run has nothing new
                draft = Results(out).begin("audit")
                state = State.load(draft)
                files = state.unseen(find_files([str(logs)]))
                settings = AuditSettings(tasks=1, timelines=3, full=number % 2 == 0)
                result = audit(engine, files, state, settings)
                if is_drawn:
                    write_audit(draft, result, state)
                else:
                    state.save(draft)
                    draft.commit()
                kinds = [kind for kind in result.findings.kind if kind not in ABOUT_HOSTS]
                found.append(sorted(kinds))
            assert found[0] == found[1], name
            page = (out / "report.html").read_text()
            assert "could not be drawn" not in page, name


def test_the_generator_says_which_faults_had_no_place(tmp_path: Path) -> None:
    """Streams of two messages have no place for a loss, and two hosts none for two clocks."""
    words = ["generate", str(tmp_path / "logs"), "--hosts", "2", "--messages", "200"]

    done = CliRunner().invoke(pipeline, [*words, "--faults", "lost=1,clock=2"])

    assert done.exit_code == 0, done.output
    assert "an audit has to find: 1 clock; no place for 1 clock, 1 lost" in done.output
