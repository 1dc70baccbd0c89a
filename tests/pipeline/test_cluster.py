"""The data source and jobs on a standalone cluster: a master and workers, all on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.generator import Fleet, generate, parse_faults
from pipeline.spark.java import NoJava, require_java
from qmd.client import blocking, new_message
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_job import settings
from tests.pipeline.s3 import S3
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
    """Return the command that runs a job by spark-submit, with its master and its options."""
    command = Path(cluster.environment["SPARK_HOME"]) / "bin" / "spark-submit"
    options = ("--master", cluster.master)
    options += tuple(f"--conf={name}={value}" for name, value in settings().items())
    return [str(command), *options, str(ROOT / "pipeline" / "submit.py"), *words]


def run(cluster, *command):
    with started(cluster, *command) as process:
        out, errors = process.communicate(timeout=360)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def started(cluster, *command):
    kept = {key: each for key, each in os.environ.items() if "ASYNCIODEBUG" not in key}
    return subprocess.Popen(
        command, cwd=ROOT, env={**kept, **cluster.environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Yield a cluster whose processes know the server of the bucket; it may not run."""
    try:
        require_java()
    except NoJava as none:
        pytest.skip(str(none))
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder / "cluster", more=S3(folder / "s3").environment) as cluster:
        yield cluster


@pytest.fixture
def bucket(cluster, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason="the extra qmd-msmq[spark] is not installed")
    pytest.importorskip("s3fs", reason="the extra qmd-msmq[s3] is not installed")
    pytest.importorskip("moto", reason="moto, the server of the bucket, is not installed")
    with S3(tmp_path / "s3", address=cluster.environment["AWS_ENDPOINT_URL"]) as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("lake")
        yield system


@pytest.fixture
def daemon():
    hosts = Hosts()
    yield hosts.daemon()
    hosts.close()


def test_source_and_sink_work_on_several_workers(cluster, daemon, tmp_path):
    socket = daemon.folder / "qmd.sock"
    daemon.create("orders", "copy", "batch", transactional=True)
    with blocking.connect(socket) as qm:
        messages = [new_message("orders", str(number), label="order") for number in range(1000)]
        qm.send_many(messages)
        job = ("tests.pipeline.cluster_job", cluster.master, str(socket), str(tmp_path))
        done = run_on(cluster, *job)
        assert done.returncode == 0, done.stderr[-3000:]
        reported = json.loads(done.stdout.splitlines()[-1])

        assert (reported["rows"], reported["master"]) == (1000, cluster.master)
        assert reported["executors"] > 1
        assert [int(message.body) for message in qm.peek_each("batch")] == list(range(500))
        assert [int(message.body) for message in qm.peek_each("copy")] == list(range(1000))
        assert list(qm.peek_each("orders")) == []


def test_workers_that_share_only_a_bucket_audit_one_large_stream_although_one_dies(
    cluster, bucket, tmp_path
):
    """The last test of the cluster, which has one worker less afterwards."""
    faults = parse_faults("lost=3,duplicated=2,reordered=2")
    # Nine of ten messages are of one stream: it must not fall to one task.
    fleet = Fleet(
        hosts=3, streams=6, messages=6_000, days=2, seed=11, faults=faults, largest_share=0.9
    )
    generate(fleet, tmp_path / "logs")
    for each in sorted((tmp_path / "logs").rglob("*.parquet")):
        bucket.put(str(each), f"lake/qmd/{each.relative_to(tmp_path / 'logs')}")
    before, workers = cluster.executors(), cluster.workers
    words = ("audit", "--input", "s3://lake/qmd", "--output", "s3://lake/audit")

    with started(cluster, *submit(cluster, *words, "--json", "--full")) as job:
        cluster.wait_until_busy(0)
        assert job.poll() is None
        cluster.kill_worker(0)
        out, errors = job.communicate(timeout=600)

    assert job.returncode == 1, errors[-3000:]
    found = json.loads(out.splitlines()[-1])["findings"]
    assert found == {"lost": 3, "duplicated": 2, "reordered": 2}
    assert b"<html" in bucket.cat_file("lake/audit/report.html")
    assert cluster.executors() - before >= workers
    assert "lost" in errors.lower()  # Spark reports the executor
