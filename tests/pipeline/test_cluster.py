"""The data source on a standalone cluster: a master and two workers, all on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.spark.java import NoJava, require_java
from qmd.client import blocking, new_message
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_job import SETTINGS
from tests.process.command_line import ROOT
from tests.process.harness import Hosts

# Not concurrent with the other tests of Spark: that would be eight Java processes.
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


def run_on(cluster, *words):
    """Run a Python module as the driver."""
    return run(cluster, sys.executable, "-m", *words)


def submit(cluster, *words):
    """Run a job by spark-submit, with its master and its options."""
    command = Path(cluster.environment["SPARK_HOME"]) / "bin" / "spark-submit"
    settings = (f"--conf={name}={value}" for name, value in SETTINGS.items())
    options = ("--master", cluster.master, *settings)
    return run(cluster, str(command), *options, str(ROOT / "pipeline" / "submit.py"), *words)


def run(cluster, *command):
    kept = {key: each for key, each in os.environ.items() if "ASYNCIODEBUG" not in key}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=360,
    )


@pytest.fixture
def daemon():
    try:
        require_java()
    except NoJava as none:
        pytest.skip(str(none))
    hosts = Hosts()
    yield hosts.daemon()
    hosts.close()


def test_source_sink_and_audit_work_on_two_workers(daemon, tmp_path):
    socket = daemon.folder / "qmd.sock"
    daemon.create("orders", "copy", "batch", transactional=True)
    with blocking.connect(socket) as qm:
        messages = [new_message("orders", str(number), label="order") for number in range(1000)]
        qm.send_many(messages)
        with Cluster(tmp_path / "cluster") as cluster:
            job = ("tests.pipeline.cluster_job", cluster.master, str(socket), str(tmp_path))
            done = run_on(cluster, *job)
            logs = tmp_path / "logs"
            logs.mkdir()
            daemon.cli("events", "export", str(logs / "a.parquet"), "--format", "parquet")
            audit = submit(
                cluster, "audit", "--input", str(logs), "--output", str(tmp_path / "report")
            )
        assert done.returncode == 0, done.stderr[-3000:]
        assert audit.returncode == 0, audit.stderr[-3000:]
        assert "nothing was lost, doubled or reordered" in audit.stdout
        assert (tmp_path / "report" / "report.html").exists()
        reported = json.loads(done.stdout.splitlines()[-1])

        assert reported == {"rows": 1000, "executors": 2, "master": cluster.master}
        assert [int(message.body) for message in qm.peek_each("batch")] == list(range(500))
        assert [int(message.body) for message in qm.peek_each("copy")] == list(range(1000))
        assert list(qm.peek_each("orders")) == []
