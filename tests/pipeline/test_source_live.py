"""The data source against real queue managers: what is read, what is written, and what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, StringContains
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.source import DefaultSource
from pipeline.source.checkpoint import finish
from pipeline.source.connection import Connection
from pipeline.source.errors import SourceError
from pipeline.source.offsets import ends_of
from pipeline.source.options import Endpoint
from pipeline.spark.streams import run_stream
from qmd.client import blocking, new_message
from tests.process.harness import Daemon, Hosts

pytestmark = [pytest.mark.process, pytest.mark.slow]

# A busy machine: a session and its first query alone may take half a minute.
TIMEOUT = pytest.mark.timeout(1800)


class Place:
    """A queue manager, its socket, and its client."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.socket = str(daemon.folder / "qmd.sock")
        self.qm: Any = blocking.connect(self.socket)

    def queue(self, name: str, *, transactional: bool = False, journal: bool = False) -> str:
        self.qm.create_queue(name, transactional=transactional, journal=journal)
        return name

    def send(self, queue: str, count: int, first: int = 0, **properties: Any) -> None:
        self.qm.send_many(
            [
                new_message(queue, f"body {number}", label=f"order {number}", **properties)
                for number in range(first, first + count)
            ]
        )

    def stages(self) -> list[dict[str, Any]]:
        with Connection(Endpoint(self.socket)) as at:
            return at.run(at.qm.pipeline.list_stages())

    def labels(self, queue: str) -> list[str]:
        return [message.label for message in self.qm.peek_each(queue)]


@pytest.fixture(scope="module")
def places() -> Iterator[list[Place]]:
    """Two queue managers for all tests; each test has queues of its own."""
    hosts = Hosts()
    found = [Place(hosts.daemon()) for _ in range(2)]
    with found[0].qm, found[1].qm:
        yield found
    hosts.close()


@pytest.fixture
def place(places: list[Place]) -> Place:
    return places[0]


def read(spark: Any, place: Place, **options: Any) -> Any:
    return spark.read.format("qmd").options(endpoint=place.socket, **options).load()


def stream(spark: Any, place: Place, **options: Any) -> Any:
    return spark.readStream.format("qmd").options(endpoint=place.socket, **options).load()


def rows(place: Place, filters: Any = (), **options: str) -> list[dict[str, Any]]:
    """What executors read, without Spark between: the same readers, called as it calls them."""
    return rows_of({"endpoint": place.socket, **options}, filters)


def rows_of(options: dict[str, str], filters: Any = ()) -> list[dict[str, Any]]:
    given = {**options, "pushdown": "true"} if filters else options
    reader = DefaultSource(given).reader(None)
    if filters:
        list(reader.pushFilters(filters))
    found = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in found for row in batch.to_pylist()]


def orders(count: int, first: int = 0) -> list[str]:
    return [f"order {number}" for number in range(first, first + count)]


@TIMEOUT
def test_a_queue_is_a_table_with_real_types_and_stays_as_it_is(spark, place):
    queue = place.queue("typed", transactional=True)
    sent_before = datetime.now(UTC).replace(tzinfo=None)
    asked = {"acknowledge": 5, "admin_queue": place.queue("admin")}
    place.send(queue, 10, body_type="VT_LPWSTR", application_tag=7, journal=True, **asked)

    rows = read(spark, place, queue=queue, partitions=3).orderBy("position").collect()

    assert [row.label for row in rows] == orders(10)
    row = rows[4]
    assert (row.host, row.queue_manager) == (place.qm.name, place.qm.id)
    assert (row.body, row.body_bytes, row.body_type) == (b"body 4", 6, 31)
    assert (row.delivery, row["class"], row.priority) == ("transactional", "normal", 0)
    assert abs(row.arrived_at - sent_before) < timedelta(minutes=5)
    assert row.acknowledge == ["positive_arrival", "negative_arrival"]
    assert row.application_tag == 7
    assert row.journal is True
    assert row.sequence.number > 0 or row.sequence.id >= 0
    assert place.labels(queue) == orders(10)


@TIMEOUT
def test_queues_of_several_queue_managers_are_one_table(spark, places):
    one, other = places
    for place in places:
        place.queue("shop.orders")
        place.queue("shop.returns")
    one.send("shop.orders", 3)
    other.send("shop.returns", 2, first=100)

    table = spark.read.format("qmd").options(
        endpoint=f"{one.socket},{other.socket}", queue="shop.*", columns="queue_manager,queue,label"
    )

    found = sorted(map(tuple, table.load().collect()))
    assert found == sorted(
        [
            *((one.qm.id, "private$\\shop.orders", label) for label in orders(3)),
            *((other.qm.id, "private$\\shop.returns", label) for label in orders(2, 100)),
        ]
    )


@TIMEOUT
def test_an_empty_queue_has_no_rows(spark, place):
    assert read(spark, place, queue=place.queue("empty")).collect() == []


def test_journals_dead_letters_and_subqueues_are_read_like_queues(place):
    queue = place.queue("kept", journal=True)
    place.send(queue, 3)
    place.qm.receive(queue)
    place.qm.move(queue, f"{queue};later", limit=1)
    place.qm.send(queue, label="too late", time_to_be_received_s=1, dead_letter=True)
    assert place.qm.peek("system$;deadletter", timeout_s=60)

    def labels(name: str) -> list[str]:
        return [row["label"] for row in rows(place, queue=name, columns="label")]

    assert labels(f"{queue};journal") == ["order 0"]
    assert labels(f"{queue};later") == ["order 1"]
    assert labels(queue) == ["order 2"]
    assert labels("system$;deadletter") == ["too late"]


@TIMEOUT
def test_filters_are_handed_to_the_queue_manager_where_that_is_asked_for(spark, place, capsys):
    queue = place.queue("filtered")
    place.send(queue, 30)
    # It would be an error to ask for this one: only a filter that was handed on keeps it away.
    table = read(spark, place, queue=f"{queue},missing", pushdown="true")

    filtered = table.filter((F.col("queue") == queue) & (F.col("label") == "order 2"))

    filtered.explain("formatted")
    assert f"PushedFilters: [EqualTo(queue,{queue})]" in capsys.readouterr().out
    assert [row.label for row in filtered.collect()] == ["order 2"]


def test_filters_of_all_kinds_leave_out_much_and_nothing_that_is_wanted(place):
    queue = place.queue("sifted")
    place.send(queue, 30)
    everything = rows(place, queue=queue)
    middle = sorted(everything, key=lambda row: row["position"])[14]
    cases = [
        ([GreaterThan(("position",), middle["position"])], 15),
        ([GreaterThanOrEqual(("arrived_at",), middle["arrived_at"] + timedelta(hours=1))], 0),
        ([EqualTo(("id",), middle["id"])], 1),
        ([In(("lookup_id",), (middle["lookup_id"],))], 1),
        ([StringContains(("label",), "der 1")], 11),
        ([EqualTo(("class",), "nack_deleted")], 0),
        ([EqualTo(("reason",), "none")], 0),
        ([GreaterThan(("sequence", "number"), 3)], 0),
        ([EqualTo(("queue",), "another")], 0),
        ([EqualTo(("priority",), 3)], 30),
    ]

    for filters, count in cases:
        found = rows(place, filters, queue=queue)
        assert len(found) == count, filters
        assert all(row in everything for row in found), filters


@TIMEOUT
def test_events_of_a_queue_manager_and_of_its_files_are_the_same_table(spark, place, tmp_path):
    queue = place.queue("told")
    place.send(queue, 3)
    place.qm.receive(queue)
    for form in ("parquet", "ndjson"):
        file = tmp_path / form / f"events.{form}"
        file.parent.mkdir()
        place.daemon.cli("events", "export", str(file), "--format", form)

    def told(table: Any) -> list[Any]:
        return table.filter(F.col("queue").contains("told")).orderBy("block", "index").collect()

    live = told(read(spark, place, kind="events"))
    assert [row.kind for row in live] == ["sent", "sent", "sent", "received"]
    for form in ("parquet", "ndjson"):
        assert told(spark.read.format("qmd").load(str(tmp_path / form))) == live


def test_an_exported_queue_is_the_same_table(place, tmp_path):
    queue = place.queue("exported")
    place.send(queue, 5)
    place.daemon.cli("export", queue, str(tmp_path / "orders.ndjson"))
    columns = "id,lookup_id,label,body,sent_at,arrived_at,delivery,destination"

    from_file = rows_of({"path": str(tmp_path), "columns": columns})

    assert from_file == rows(place, queue=queue, columns=columns)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "nosuch"}, r"nosuch.*QM-\d+"),
        ({"queue": "x", "endpoint": "/nowhere/qmd.sock"}, r"qmd at /nowhere/qmd.sock: there is no"),
        ({"queue": "x", "partitons": "2"}, r"did you mean partitions\?"),
        ({}, r'option "queue" is missing'),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place_and_what_to_do(place, options, said):
    with pytest.raises(SourceError, match=said):
        rows(place, **options)


@TIMEOUT
def test_spark_shows_what_the_source_says(spark, place):
    with pytest.raises(PySparkException, match=r"nosuch.*QM-\d+"):
        read(spark, place, queue="nosuch").collect()


def stream_reader(place: Place, **options: Any) -> Any:
    """What Spark's driver asks, asked without Spark."""
    given = {"endpoint": place.socket, **{name: str(value) for name, value in options.items()}}
    return DefaultSource(given).streamReader(None)


def test_a_batch_has_no_more_bytes_than_allowed_but_for_one_message_that_alone_has_more(place):
    queue = place.queue("weighed", transactional=True)
    sizes = [100, 100, 100, 50_000, 100]
    place.qm.send_many([new_message(queue, bytes(size), label="x") for size in sizes])
    reader = stream_reader(place, queue=queue, readerId="weigher", maxBytesPerTrigger=2_000)

    offset, counts = reader.initialOffset(), []
    while (offset := reader.latestOffset(before := offset, reader.getDefaultReadLimit())) != before:
        [(_, end)], [(_, start)] = ends_of(offset).values(), ends_of(before).values()
        counts.append(end - start)
    reader.stop()

    assert counts == [3, 1, 1]


def test_a_checkpoint_of_another_reader_is_refused_before_anything_is_read_or_consumed(place):
    """Its positions mean other messages, or none: some would leave the queue unread."""
    queue = place.queue("mixed")
    place.send(queue, 10)
    one = stream_reader(place, queue=queue, readerId="one")
    offset = one.latestOffset(one.initialOffset(), ReadMaxRows(4))
    one.stop()
    other = stream_reader(place, queue=queue, readerId="other")
    reserved = other.latestOffset(other.initialOffset(), ReadMaxRows(6))

    for wrong in (
        lambda: other.latestOffset(offset, ReadMaxRows(10)),
        lambda: other.partitions(offset, reserved),
        lambda: other.commit(offset),
    ):
        with pytest.raises(SourceError, match=r"of the reader one.*readerId.*other"):
            wrong()

    assert [row["label"] for row in rows(place, queue=queue)] == orders(10)
    other.stop()


@TIMEOUT
def test_rows_become_messages_with_all_that_their_columns_say(spark, place):
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


def test_a_job_that_fails_because_nobody_answers_keeps_its_own_error():
    given = {"endpoint": "/nowhere/qmd.sock", "destination": "orders"}
    schema = StructType([StructField("body", StringType())])

    DefaultSource(given).writer(schema, False).abort([None])


@pytest.mark.parametrize(("job_id", "left"), [("", 0), ("nightly", 1)])
def test_a_job_that_fails_takes_back_what_tasks_have_staged_that_spark_has_not_seen_end(
    place, job_id, left
):
    """Unless it has a name: another run of it may be at work."""
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
        ("body string, colour string", "append", '"colour" is no property of a message'),
        ("body int", "append", '"body" is int, and has to be binary or string'),
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
def test_a_stream_moves_every_message_once_and_in_order_and_closes_its_last_batch(
    spark, place, tmp_path
):
    source = place.queue("streamed", transactional=True)
    target = place.queue("arrived", transactional=True)
    place.send(source, 250)

    def move() -> list[Any]:
        rows = stream(
            spark, place, queue=source, readerId="mover", maxMessagesPerTrigger=100, partitions=2
        ).select("label", "body")
        writer = rows.writeStream.format("qmd").options(endpoint=place.socket, destination=target)
        return run_stream(writer, str(tmp_path / "checkpoint"), once=True)

    (closed,) = move()

    assert (closed.reader, closed.batch, closed.messages) == ("mover", 2, 50)
    assert place.labels(target) == orders(250)
    assert place.labels(source) == []
    place.send(source, 30, first=250)
    with ThreadPoolExecutor() as threads:  # another one than that of the session
        threads.submit(move).result()
    assert place.labels(target) == orders(280)
    assert place.labels(source) == []
    assert finish(str(tmp_path / "checkpoint"))[0].messages == 0


@TIMEOUT
def test_a_task_that_fails_and_is_repeated_leaves_nothing_behind(spark, place, tmp_path):
    queue = place.queue("repeated", transactional=True)
    marks = str(tmp_path)
    before = {one["query"] for one in place.stages()}

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        """All rows, and then an error, at the first attempt of each task."""
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
    # Of the attempts that failed nothing will be sent, ever: publishing threw them away.
    assert {one["query"] for one in place.stages()} <= before


@TIMEOUT
def test_several_queues_are_one_stream_and_readers_of_a_journal_each_see_all(
    spark, place, tmp_path
):
    queue = place.queue("journaled", journal=True)
    place.queue("extra")
    place.send(queue, 5)
    place.qm.receive_many(queue, 5)
    place.send("extra", 5, first=5)

    def moved(reader: str, queues: str) -> list[str]:
        rows = stream(spark, place, queue=queues, readerId=reader, columns="queue,label")
        path = str(tmp_path / reader)
        run_stream(
            rows.writeStream.format("parquet").option("path", path),
            f"{path}-checkpoint",
            once=True,
        )
        return sorted(row.label for row in spark.read.parquet(path).collect())

    assert moved("one", f"{queue};journal") == orders(5)
    assert moved("two", f"{queue};journal") == orders(5)
    assert moved("both", f"{queue},extra") == orders(5, 5)
    assert place.labels(f"{queue};journal") == orders(5)
    assert place.labels("extra") == []


@TIMEOUT
def test_an_older_query_with_the_same_reader_is_shut_out(spark, place, tmp_path):
    queue = place.queue("fenced")
    place.send(queue, 10)

    def start(checkpoint: str) -> Any:
        rows = stream(spark, place, queue=queue, readerId="only one", columns="label")
        return (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    older = start("older")
    try:
        older.processAllAvailable()
        newer = start("newer")
        try:
            with pytest.raises(PySparkException) as refused:
                older.awaitTermination(120)
        finally:
            newer.stop()
    finally:
        older.stop()

    assert "only one" in str(refused.value)


@TIMEOUT
def test_a_new_checkpoint_counts_anew_and_loses_nothing(spark, place, tmp_path):
    """Epochs begin at 0 again: known by the user's name alone they would pass for repeated."""
    source, target = place.queue("again"), place.queue("again.copied")

    for checkpoint in ("first", "second"):
        place.send(source, 10)
        rows = stream(spark, place, queue=source, readerId="again").select("label")
        run_stream(
            rows.writeStream.format("qmd").options(endpoint=place.socket, destination=target),
            str(tmp_path / checkpoint),
            once=True,
        )

    assert place.labels(target) == orders(10) * 2


@TIMEOUT
def test_the_checkpoint_and_the_plan_hold_no_secret(spark, place, tmp_path):
    (tmp_path / "token").write_text("very-secret")
    queue = place.queue("secret")
    place.send(queue, 1)
    rows = stream(spark, place, queue=queue, readerId="secret", tokenFile=str(tmp_path / "token"))

    run_stream(rows.writeStream.format("noop"), str(tmp_path / "checkpoint"), once=True)

    text = "".join(
        file.read_text(errors="replace")
        for file in (tmp_path / "checkpoint").rglob("*")
        if file.is_file()
    )
    assert json.dumps(place.socket) in text
    assert "very-secret" not in text
    plan = rows._jdf.queryExecution().toString()
    assert "very-secret" not in plan
