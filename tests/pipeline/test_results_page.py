"""docs/results.md, followed literally: DuckDB and pandas read the lake and the results, alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.generator import Fleet, generate
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from pipeline.report.outcome import write_audit
from pipeline.results.runs import Results
from tests.pipeline.test_odd_inputs import SCHEMA
from tests.pipeline.test_small_jobs import WORK, run
from tests.process.command_line import ROOT

MANUAL = ROOT / "docs" / "results.md"
WITHOUT_QMD = "import sys\nsys.modules['qmd'] = sys.modules['pipeline'] = None\n"


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", MANUAL.read_text(), re.DOTALL))


def output_of(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_command_of_the_page_works_without_qmd(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    qmd = tmp_path / "bin" / "qmd"
    qmd.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m qmd "$@"\n')
    qmd.chmod(0o755)
    plan = Fleet(hosts=4, streams=6, messages=600, seed=3, faults={"lost": 2, "duplicated": 1})
    truth = generate(plan, tmp_path / "lake" / "events")["findings"]
    output_of("sh", "-ec", blocks("sh"), folder=tmp_path)

    shown = output_of(sys.executable, "-c", WITHOUT_QMD + blocks("python"), folder=tmp_path)

    not_stored = next(line for line in shown.splitlines() if line.startswith("sent and not stored"))
    for each in truth:
        assert each["kind"] in shown
        if each["kind"] == "lost":
            assert repr(each["message_id"]) in not_stored
    assert "'findings': {'lost': 2, 'duplicated': 1}" in shown


def test_columns_have_the_same_types_without_rows(tmp_path: Path) -> None:
    """A program that appends the tables of each night, or compares them, needs no special case."""
    generate(Fleet(hosts=3, streams=6, messages=300, faults={"lost": 1, "refused": 9}),
             tmp_path / "full")  # fmt: skip
    (tmp_path / "empty").mkdir()
    parquet.write_table(SCHEMA.empty_table(), tmp_path / "empty" / "events.parquet")
    types = {}
    with LocalEngine(threads=1) as engine:
        for logs in ("full", "empty"):
            files, out = find_files([str(tmp_path / logs)]), tmp_path / f"of {logs}"
            for job in WORK:
                run(engine, job, files, out / job)
            draft, state = Results(out / "audit").begin("audit"), State()
            write_audit(draft, audit(engine, files, state, AuditSettings(tasks=1)), state)
            types[logs] = {
                str(path.relative_to(out)): parquet.read_schema(path).remove_metadata()
                for path in sorted(out.glob("*/*.parquet"))
            }

    assert len(types["full"]) > 10
    for name, schema in types["full"].items():
        assert types["empty"][name].equals(schema), name
        assert not [field for field in schema if str(field.type) == "null"], name
