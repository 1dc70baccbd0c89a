"""A driver that is killed and restarted: one queue to Parquet, another one to a third queue.

    python -m tests.pipeline.kill_driver SOCKET FOLDER [--once] [--wait] [--master M] [--seed N]

Settings that Spark does not store differ at each start, by the seed: the number of partitions, and
the limit of a batch.  With --once it reads all present messages, closes its last batches and ends.
With --wait it starts Spark, reports that, and touches no queue before it reads a line from standard
input; the slow start is then over.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from pipeline.source.checkpoint import finish
from pipeline.spark.session import spark_session

LIMITS = (50, 200, 1000, 5000)  # of one batch
COLUMNS = "position, queue, label, body"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    chance = random.Random(arguments.seed)
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

    def read(queue: str, reader: str) -> object:
        return (
            spark.readStream.format("qmd")
            .option("endpoint", arguments.socket)
            .option("queue", queue)
            .option("readerId", reader)
            .option("columns", COLUMNS)
            .option("partitions", chance.randint(1, 4))
            .option("maxMessagesPerTrigger", 20_000 if arguments.once else chance.choice(LIMITS))
            .load()
        )

    def start(writer: object, checkpoint: str) -> object:
        writer = writer.option("checkpointLocation", f"{arguments.folder}/{checkpoint}")
        if arguments.once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    lake = read("to_lake", "lake").writeStream.format("parquet")
    copy = read("to_copy", "copy").select("label", "body").writeStream.format("qmd")
    queries = [
        start(lake.option("path", f"{arguments.folder}/lake"), "lake_checkpoint"),
        start(
            copy.option("endpoint", arguments.socket).option("destination", "out"),
            "copy_checkpoint",
        ),
    ]
    print("started", flush=True)
    if not arguments.once:
        # The first query that fails ends the driver; its parent starts another one.
        spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()
    if arguments.once:
        for checkpoint in ("lake_checkpoint", "copy_checkpoint"):
            finish(f"{arguments.folder}/{checkpoint}")


if __name__ == "__main__":
    main()
