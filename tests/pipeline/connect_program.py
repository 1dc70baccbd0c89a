"""A program on Spark Connect: a table, a write, and a stream that moves a queue.

The test runs it as a process of its own, because a process has one kind of session.

"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pipeline.spark.session import spark_places
from tests.pipeline.cluster import java_options


def main(socket: str, folder: str) -> None:
    spark_places()  # of Spark and of Java, in the environment
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_TESTING"] = "1"  # the server takes any free port
    os.chdir(folder)
    from pyspark.sql import SparkSession

    from pipeline.spark.streams import run_stream

    spark = (
        SparkSession.builder.remote("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.extraJavaOptions", java_options())
        .getOrCreate()
    )
    options = {"endpoint": socket, "queue": "orders"}
    found: dict[str, object] = {}
    table = spark.read.format("qmd").options(**options, columns="label").load()
    found["labels"] = sorted(row.label for row in table.collect())
    found["filtered"] = table.filter("label = 'order 1'").count()
    found["again"] = table.count()
    spark.createDataFrame([("written",)], "label string").write.format("qmd").mode(
        "append"
    ).options(**options).save()
    stream = spark.readStream.format("qmd").options(**options, readerId="connect").load()
    writer = stream.select("label", "body").writeStream.format("qmd")
    done = run_stream(
        writer.options(endpoint=socket, destination="moved"),
        str(Path(folder) / "checkpoint"),
        once=True,
    )
    found["received"] = sum(each.messages for each in done)
    try:
        wrong = spark.readStream.format("qmd").options(**options, readerId="x", onGap="ignore")
        wrong.load().printSchema()  # over Connect, loading does nothing yet
    except Exception as error:
        found["refused"] = str(error)
    spark.stop()
    (Path(folder) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
