"""A driver that is killed and restarted: one queue to Parquet, another one to a third queue.

    python -m tests.pipeline.kill_driver SOCKET FOLDER [--once] [--wait] [--master M] [--seed N]

Settings that Spark does not store differ at each start, by the seed: the number of partitions, and
the limit of a batch.  With --once it reads all present messages, closes its last batches and ends.
With --wait it starts Spark, reports that, and touches no queue before it reads a line from standard
input; the slow start is then over.  With --pause a stream begins a batch only every so many
seconds, which saves processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from pipeline.source.checkpoint import finish
from pipeline.spark.session import spark_session

LIMITS = (50, 200, 1000, 5000)  # of one batch
COLUMNS = "position, queue, label, body"
CHECKPOINTS = ("lake_checkpoint", "copy_checkpoint")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    spark = spark_session(
        "kills",
        arguments.master,
        {
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.streaming.pollingDelay": "100ms",
            "spark.task.maxFailures": "20",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "600m",
            "spark.cores.max": "2",
        },
    )

    print(f"application {spark.sparkContext.applicationId}", flush=True)
    if arguments.wait:
        # The first query compiles and loads more than all that follow.
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        print("ready", flush=True)
        if not sys.stdin.readline():
            return  # the parent process has ended

    queries = start_streams(
        *(spark, arguments.socket, arguments.folder, random.Random(arguments.seed)),
        once=arguments.once,
        pause_s=arguments.pause,
    )
    print("started", flush=True)
    if arguments.once:
        finish_streams(queries, arguments.folder)
        return
    # The first query that fails ends the driver; its parent starts another one.
    spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()


def start_streams(
    spark: Any,
    socket: Path | str,
    folder: Path,
    chance: random.Random,
    *,
    once: bool = False,
    pause_s: float = 0.0,
) -> list[Any]:
    """Start both streams in a session; return their queries."""

    def read(queue: str, reader: str) -> Any:
        return (
            spark.readStream.format("qmd")
            .option("endpoint", str(socket))
            .option("queue", queue)
            .option("readerId", reader)
            .option("columns", COLUMNS)
            .option("partitions", chance.randint(1, 4))
            .option("maxMessagesPerTrigger", 20_000 if once else chance.choice(LIMITS))
            .load()
        )

    def start(writer: Any, checkpoint: str) -> Any:
        writer = writer.option("checkpointLocation", f"{folder}/{checkpoint}")
        if once:
            writer = writer.trigger(availableNow=True)
        elif pause_s:
            writer = writer.trigger(processingTime=f"{pause_s} seconds")
        return writer.start()

    lake = read("to_lake", "lake").writeStream.format("parquet")
    copy = read("to_copy", "copy").select("label", "body").writeStream.format("qmd")
    return [
        start(lake.option("path", f"{folder}/lake"), CHECKPOINTS[0]),
        start(copy.option("endpoint", str(socket)).option("destination", "out"), CHECKPOINTS[1]),
    ]


def finish_streams(queries: list[Any], folder: Path) -> None:
    """Wait for the end of queries that read all present messages, and close their last batches."""
    for query in queries:
        query.awaitTermination()
    for checkpoint in CHECKPOINTS:
        finish(f"{folder}/{checkpoint}")


if __name__ == "__main__":
    main()
