"""A job for the cluster: a batch read, a batch write, a stream from queue to queue; then the audit.

    spark-submit tests/pipeline/cluster_job.py SOCKET FOLDER audit --input ... --output ...

Prints one line of JSON with its observations, then `auditing` when executors are at work for the
audit, and at last the line of the audit.  One driver does both: each starts for half a minute.

"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pipeline.commands.job import submitted_master
from pipeline.spark.session import spark_session
from pipeline.spark.streams import run_stream
from tests.pipeline.cluster import java_options
from tests.process.command_line import ROOT

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
    # Each process would compile the code of each query: for few rows that takes longer than they.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


def settings() -> dict[str, str]:
    """Return the settings of this job, and of others on the cluster of a test."""
    options = java_options()
    return {
        **SETTINGS,
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
    }


def main() -> None:
    socket, folder, *job = sys.argv[1:]
    spark = spark_session("on a cluster", submitted_master(), settings())

    def host(batches):  # type: ignore[no-untyped-def]
        """Return the executor that has read, with the number of rows."""
        import os

        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch({"executor": [os.getcwd()], "rows": [rows]})

    orders = spark.read.format("qmd").options(endpoint=socket, queue="orders", partitions=4)
    seen = orders.load().mapInArrow(host, "executor string, rows bigint").collect()
    spark.range(500, numPartitions=4).selectExpr(
        "cast(id as string) body", "'batch' label"
    ).write.format("qmd").mode("append").options(endpoint=socket, destination="batch").save()
    rows = (
        spark.readStream.format("qmd")
        .options(endpoint=socket, queue="orders", readerId="cluster", partitions=3)
        .option("maxMessagesPerTrigger", 400)
        .load()
        .select("label", "body")
    )
    writer = rows.writeStream.format("qmd").options(endpoint=socket, destination="copy")
    run_stream(writer, str(Path(folder) / "checkpoint"), once=True)
    reported = {
        "rows": sum(row.rows for row in seen),
        # .../app-.../0/... is a folder of one executor
        "executors": len({row.executor for row in seen}),
        "master": spark.sparkContext.master,
    }
    print(json.dumps(reported), flush=True)
    threading.Thread(target=_report_work, args=[spark], daemon=True).start()
    # The audit takes this session, which has the master that spark-submit has given.
    sys.argv[1:] = job
    runpy.run_path(str(ROOT / "pipeline" / "submit.py"), run_name="__main__")


def _report_work(spark: Any) -> None:
    """Print a line as soon as tasks of the next job run."""
    while not spark.sparkContext.statusTracker().getActiveStageIds():
        time.sleep(0.05)
    print("auditing", flush=True)


if __name__ == "__main__":
    main()
