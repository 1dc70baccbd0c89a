"""The operator for Airflow, where Airflow is installed: the job runs as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("airflow", reason="Apache Airflow is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.generator import Fleet, generate, parse_faults
from pipeline.schedule import airflow as operators

COMMAND = (sys.executable, "-m", "qmd")


def operator(folder: Path, **more):
    return operators.QmdJobOperator(
        task_id="audit",
        inputs=[str(folder / "fleet")],
        results=str(folder / "out"),
        command=COMMAND,
        **more,
    )


def fleet(folder: Path, faults: str) -> None:
    generate(
        Fleet(hosts=2, streams=2, messages=100, days=1, seed=1, faults=parse_faults(faults)),
        folder / "fleet",
    )


def test_a_clean_audit_returns_its_result(tmp_path):
    fleet(tmp_path, "none")

    assert operator(tmp_path).execute({})["findings"] == {}


def test_findings_fail_the_task_without_a_retry(tmp_path):
    fleet(tmp_path, "lost=1")

    with pytest.raises(operators.AirflowFailException, match=r"1 lost; see .*report\.html"):
        operator(tmp_path).execute({})


def test_a_failed_job_may_be_retried(tmp_path):
    with pytest.raises(operators.AirflowException, match="exit code 3"):
        operator(tmp_path).execute({})
    assert operator(tmp_path, job="slo", arguments=["--objectives", "slo.toml"]).job == "slo"
    with pytest.raises(ValueError, match="no job"):
        operator(tmp_path, job="audits")
