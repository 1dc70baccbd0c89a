"""An operator of Apache Airflow for the jobs over event logs.

    from pipeline.schedule.airflow import QmdJobOperator

    with DAG("qmd-audit", schedule="30 2 * * *", start_date=datetime(2026, 1, 1), catchup=False):
        QmdJobOperator(
            task_id="audit",
            job="audit",
            inputs=["s3://lake/qmd"],
            results="s3://lake/audit",
            retries=3,
        )

The operator runs `qmd pipeline run JOB` as a process of its own, so Airflow's environment needs
none of the libraries of qmd.  The result of `--json` is the value of the task (XCom).  Findings
fail the task without a retry, which would find the same; every other failure may be retried.
"""

from __future__ import annotations

import json
import os
import subprocess  # nosec B404: a list of words, no shell
from collections.abc import Mapping, Sequence
from typing import Any

try:  # Airflow 3
    from airflow.sdk import BaseOperator
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 2, and early releases of 3
    from airflow.exceptions import AirflowException, AirflowFailException
    from airflow.models import BaseOperator

JOBS = ("audit", "latency", "dead-letters", "traffic", "slo")
FOUND = 1  # exit code of an audit that has findings, and of slo with a missed objective
JUDGING = ("audit", "slo")
ERROR_CHARACTERS = 2000


class QmdJobOperator(BaseOperator):
    """Run a job over event logs; its findings fail the task.

    `command` is the command of an environment with `qmd-msmq[spark]`; `arguments` are further ones,
    such as `["--fail-on", "lost,duplicated"]`, or `["--objectives", "slo.toml"]` for slo;
    `env` is added to the environment of the process.
    """

    template_fields: Sequence[str] = ("inputs", "results", "arguments", "env")
    ui_color = "#dfe8f5"

    def __init__(
        self,
        *,
        job: str = "audit",
        inputs: Sequence[str],
        results: str,
        command: Sequence[str] = ("qmd",),
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Raise ValueError for a job that does not exist."""
        super().__init__(**kwargs)
        if job not in JOBS:
            raise ValueError(f"{job!r} is no job; there are {', '.join(JOBS)}")
        self.job = job
        self.inputs = list(inputs)
        self.results = results
        self.command = list(command)
        self.arguments = list(arguments)
        self.env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the job; return its result.

        Raises AirflowFailException for findings and missed objectives, and AirflowException if the
        job failed.
        """
        named = [part for each in self.inputs for part in ("--input", each)]
        self._process = subprocess.Popen(  # nosec B603: the words of the task
            [
                *(*self.command, "pipeline", "run", self.job),
                *(*named, "--output", self.results, "--json", *self.arguments),
            ],
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = self._process.communicate()
        status = self._process.returncode
        for line in err.splitlines():
            self.log.info("%s", line)
        if status not in (0, FOUND) or (status == FOUND and self.job not in JUDGING):
            raise AirflowException(
                f"qmd pipeline run {self.job} ended with exit code {status}:"
                f" {(err or out)[-ERROR_CHARACTERS:].strip()}"
            )
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        if status == FOUND and self.job == "slo":
            raise AirflowFailException(f"an objective is missed; see {result['report']}")
        if status == FOUND:
            found = {kind: count for kind, count in result["findings"].items() if count}
            listed = ", ".join(f"{count} {kind}" for kind, count in found.items())
            raise AirflowFailException(f"the audit has findings: {listed}; see {result['report']}")
        return result

    def on_kill(self) -> None:
        """End the process; a job that is ended changes nothing."""
        if self._process is not None:
            self._process.terminate()
