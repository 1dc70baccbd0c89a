"""The Spark program of the demonstration: a queue into Parquet, and Parquet into another queue.

    python -m benchmarks.demo_pipeline_driver SOCKET FOLDER DESTINATION [--once]

It runs until it is killed, or until it reads a line: then it reads the remaining messages, closes
its streams and ends.  With --once it does so at once.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Any

from pipeline.source.checkpoint import finish
from pipeline.spark.session import spark_session

MESSAGES_A_BATCH = 400
COLUMNS = "position, label, body"


def main() -> None:
    socket, folder, destination, *rest = sys.argv[1:]
    once = rest == ["--once"]
    spark = spark_session(
        "demonstration",
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.streaming.schemaInference": "false",
        },
    )
    print(f"Spark {spark.version} is there", flush=True)
    lake, checkpoint = f"{folder}/lake", f"{folder}/lake-checkpoint"
    os.makedirs(lake, exist_ok=True)  # the second stream needs an existing folder
    orders = (
        spark.readStream.format("qmd")
        .options(endpoint=socket, queue="orders", readerId="lake", columns=COLUMNS)
        .option("maxMessagesPerTrigger", MESSAGES_A_BATCH)
        .load()
    )
    into_lake = orders.writeStream.format("parquet").option("path", lake)
    into_lake = into_lake.option("checkpointLocation", checkpoint)
    back = (
        spark.readStream.schema(orders.schema)
        .parquet(lake)
        .writeStream.foreachBatch(partial(send_back, socket, destination))
        .option("checkpointLocation", f"{folder}/back-checkpoint")
    )
    if once:
        into_lake.trigger(availableNow=True).start().awaitTermination()
        finish(checkpoint)
        back.trigger(availableNow=True).start().awaitTermination()
        return
    queries = into_lake.start(), back.start()
    wanted = threading.Thread(target=end_on_request, args=(queries,), daemon=True)
    wanted.start()
    spark.streams.awaitAnyTermination()
    wanted.join()
    finish(checkpoint)


def end_on_request(queries: tuple[Any, ...]) -> None:
    """Wait for a line, then read the rest here: starting Java again would take longer."""
    if not os.read(0, 1):  # not through sys.stdin: a process that fails must not wait for it
        return
    for query in queries:  # the second query reads the output of the first
        query.processAllAvailable()
    for query in queries:
        query.stop()


def send_back(socket: str, destination: str, batch: Any, epoch: int) -> None:
    """Send a batch as one job, in its order; a repeated batch is not sent again."""
    batch.orderBy("position").select("label", "body").write.format("qmd").mode("append").options(
        endpoint=socket, destination=destination, delivery="transactional", jobId=f"back-{epoch}"
    ).save()


if __name__ == "__main__":
    main()
