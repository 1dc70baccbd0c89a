"""A job for the cluster: a batch read, a batch write, a stream from queue to queue.

    python -m tests.pipeline.cluster_job MASTER SOCKET FOLDER

Prints one line of JSON with its observations.

"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.spark.session import spark_session
from pipeline.spark.streams import run_stream
from tests.pipeline.cluster import java_options

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
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
    master, socket, folder = sys.argv[1:]
    spark = spark_session("on a cluster", master, settings())

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


if __name__ == "__main__":
    main()
