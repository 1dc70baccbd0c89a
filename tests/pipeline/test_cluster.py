"""The data source and jobs on a standalone cluster: a master and workers, all on loopback."""

import json
import os
import subprocess
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


def submitted(cluster, *words):
    """Start the job by spark-submit, with the master of the cluster and the options of the job."""
    command = Path(cluster.environment["SPARK_HOME"]) / "bin" / "spark-submit"
    options = ("--master", cluster.master)
    options += tuple(f"--conf={name}={value}" for name, value in settings().items())
    kept = {key: each for key, each in os.environ.items() if "ASYNCIODEBUG" not in key}
    return subprocess.Popen(
        [str(command), *options, str(ROOT / "tests/pipeline/cluster_job.py"), *words], cwd=ROOT,
        env={**kept, **cluster.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
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


def test_source_sink_and_an_audit_work_on_workers_that_share_only_a_bucket(
    cluster, bucket, daemon, tmp_path
):
    """One driver does all; a worker dies during the audit of one large stream."""
    socket = daemon.folder / "qmd.sock"
    daemon.create("orders", "copy", "batch", transactional=True)
    faults = parse_faults("lost=3,duplicated=2,reordered=2")
    # Nine of ten messages are of one stream: it must not fall to one task.
    fleet = Fleet(
        hosts=3, streams=6, messages=6_000, days=2, seed=11, faults=faults, largest_share=0.9
    )
    generate(fleet, tmp_path / "logs")
    for each in sorted((tmp_path / "logs").rglob("*.parquet")):
        bucket.put(str(each), f"lake/qmd/{each.relative_to(tmp_path / 'logs')}")
    before, workers = cluster.executors(), cluster.workers
    audit = ("audit", "--input", "s3://lake/qmd", "--output", "s3://lake/audit")

    with blocking.connect(socket) as qm:
        messages = [new_message("orders", str(number), label="order") for number in range(1000)]
        qm.send_many(messages)
        words = (str(socket), str(tmp_path), *audit, "--json", "--full")
        with submitted(cluster, *words) as job:
            first = [line for line in (job.stdout.readline(), job.stdout.readline()) if line]
            if first[-1:] == ["auditing\n"]:
                cluster.wait_until_busy(0)
                assert job.poll() is None
                cluster.kill_worker(0)
            out, errors = job.communicate(timeout=600)

        assert job.returncode == 1, errors[-3000:]
        reported = json.loads(first[0])
        assert (reported["rows"], reported["master"]) == (1000, cluster.master)
        assert reported["executors"] > 1
        assert [int(message.body) for message in qm.peek_each("batch")] == list(range(500))
        assert [int(message.body) for message in qm.peek_each("copy")] == list(range(1000))
        assert list(qm.peek_each("orders")) == []

    found = json.loads(out.splitlines()[-1])["findings"]
    assert found == {"lost": 3, "duplicated": 2, "reordered": 2}
    assert b"<html" in bucket.cat_file("lake/audit/report.html")
    assert cluster.executors() - before >= workers
    assert "lost" in errors.lower()  # Spark reports the executor
