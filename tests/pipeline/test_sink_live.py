"""Jobs that write to real queue managers: properties, repetition, failures, and invalid rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.source import DefaultSource
from pipeline.source.connection import Connection
from pipeline.source.errors import SourceError
from pipeline.source.options import Endpoint
from pipeline.source.sink import messages_of
from qmd.client import new_message
from tests.pipeline.live import TIMEOUT, Place
from tests.process.harness import Hosts

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def places() -> Iterator[list[Place]]:
    """Yield two queue managers for all tests; each test has queues of its own."""
    hosts = Hosts()
    found = [Place(hosts.daemon()) for _ in range(2)]
    with found[0].qm, found[1].qm:
        yield found
    hosts.close()


@pytest.fixture
def place(places: list[Place]) -> Place:
    return places[0]


@TIMEOUT
def test_rows_become_messages_with_all_properties_of_their_columns(spark, place):
    place.queue("written")
    place.queue("other")
    rows = [
        ("written", b"\x00\xff", "first", 5, 60, 7, ["positive_arrival"], "other", "VT_UI1", None),
        ("other", b"", "second", None, None, None, None, None, None, "written"),
    ]
    table = spark.createDataFrame(
        rows,
        "destination string, body binary, label string, priority int, time_to_be_received int,"
        " application_tag bigint, acknowledge array<string>, admin_queue string, body_type string,"
        " response_queue string",
    )

    table.write.format("qmd").mode("append").option("endpoint", place.socket).save()

    (first,) = place.qm.peek("written")
    second = next(each for each in place.qm.peek_each("other") if each.label == "second")
    assert (first.body, first.label, first.priority) == (b"\x00\xff", "first", 5)
    assert (first.time_to_be_received, first.application_tag) == (60, 7)
    assert (first.acknowledge, first.body_type) == (["positive_arrival"], 17)
    assert second.label == "second"
    assert second.response_queue.endswith("written")


@TIMEOUT
def test_a_job_that_is_repeated_writes_nothing_and_its_order_is_that_of_its_rows(spark, place):
    queue = place.queue("jobs", transactional=True)
    table = spark.range(1000, numPartitions=4).select(
        F.col("id").cast("string").alias("body"), F.lit("job").alias("label")
    )

    for _ in range(2):
        table.write.format("qmd").mode("append").options(
            endpoint=place.socket, destination=queue, jobId="nightly"
        ).save()

    bodies = [int(message.body) for message in place.qm.peek_each(queue)]
    assert bodies == list(range(1000))
    with pytest.raises(PySparkException, match="this run has 3 rows, and none of them was sent"):
        table.limit(3).write.format("qmd").mode("append").options(
            endpoint=place.socket, destination=queue, jobId="nightly"
        ).save()


def test_a_row_with_an_impossible_value_is_reported_in_one_line():
    rows = pa.RecordBatch.from_pydict({"label": ["x"], "correlation_id": ["nonsense"]})

    with pytest.raises(SourceError, match="a row for orders cannot be a message: 'nonsense'"):
        messages_of(rows, rows.schema.names, "orders", "")


def test_a_job_without_a_daemon_keeps_its_own_error():
    given = {"endpoint": "/nowhere/qmd.sock", "destination": "orders"}
    schema = StructType([StructField("body", StringType())])

    DefaultSource(given).writer(schema, False).abort([None])


@pytest.mark.parametrize(("job_id", "left"), [("", 0), ("nightly", 1)])
def test_a_failed_job_discards_the_rows_of_unfinished_tasks(place, job_id, left):
    """An exception is a job with a name: another run of it may be active."""
    place.queue(f"aborted{left}")
    given = {"endpoint": place.socket, "destination": f"aborted{left}"}
    schema = StructType([StructField("body", StringType())])
    writer = DefaultSource(given | ({"jobId": job_id} if job_id else {})).writer(schema, False)
    message = [new_message(f"aborted{left}", "a row")]
    with Connection(Endpoint(place.socket)) as at:
        at.run(at.qm.pipeline.stage(writer._query, 0, partition=3, attempt="a", messages=message))

    writer.abort([None])

    assert len([one for one in place.stages() if one["query"] == writer._query]) == left


@TIMEOUT
@pytest.mark.parametrize(
    ("ddl", "mode", "said"),
    [
        ("body string, colour string", "append", '"colour" is not a property of a message'),
        ("body int", "append", '"body" is int, and has to be binary or string'),
        ("value string", "append", "of Kafka's sink; its counterpart here is body"),
        ("body string", "overwrite", "a queue cannot be overwritten"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused_before_any_is_written(
    spark, place, ddl, mode, said
):
    table = spark.createDataFrame([], ddl)

    with pytest.raises(PySparkException) as refused:
        table.write.format("qmd").mode(mode).options(
            endpoint=place.socket, destination="written"
        ).save()

    assert said in str(refused.value)


@TIMEOUT
def test_a_failed_attempt_of_a_task_leaves_no_rows(spark, place, tmp_path):
    queue = place.queue("repeated", transactional=True)
    marks = str(tmp_path)
    before = {one["query"] for one in place.stages()}

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        """Yield all rows, and then fail, at the first attempt of each task."""
        from pathlib import Path

        from pyspark import TaskContext

        yield from batches
        mark = Path(marks, f"failed-{TaskContext.get().partitionId()}")
        if not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt fails")

    table = (
        spark.range(200, numPartitions=2)
        .select(F.col("id").cast("string").alias("body"))
        .mapInArrow(fail_once, "body string")
    )

    table.write.format("qmd").mode("append").options(
        endpoint=place.socket, destination=queue
    ).save()

    assert [int(message.body) for message in place.qm.peek_each(queue)] == list(range(200))
    # The rows of failed attempts will never be sent: the publication discarded them.
    assert {one["query"] for one in place.stages()} <= before
