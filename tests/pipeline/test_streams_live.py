"""Streams on real queue managers: batches, checkpoints, readers, and failed tasks."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline.source.checkpoint import finish
from pipeline.source.errors import SourceError
from pipeline.source.offsets import ends_of
from pipeline.spark.metrics import export_metrics
from pipeline.spark.streams import run_stream
from qmd.client import new_message
from tests.pipeline.live import TIMEOUT, Place, orders, rows, stream, stream_reader
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


def test_a_batch_has_no_more_bytes_than_allowed_except_for_one_larger_message(place):
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
    """Its positions mean other messages, or none: some would stay in the queue unread."""
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
        return run_stream(writer.queryName("mover"), str(tmp_path / "checkpoint"), once=True)

    (closed,) = move()

    assert (closed.reader, closed.batch, closed.messages) == ("mover", 2, 50)
    assert place.labels(target) == orders(250)
    assert place.labels(source) == []
    place.send(source, 30, first=250)
    with ThreadPoolExecutor() as threads:  # another time zone than that of the session
        threads.submit(move).result()
    assert place.labels(target) == orders(280)
    assert place.labels(source) == []
    assert finish(str(tmp_path / "checkpoint"))[0].messages == 0


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
def test_an_older_query_with_the_same_reader_is_fenced(spark, place, tmp_path):
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
def test_a_new_checkpoint_restarts_its_epochs_and_loses_nothing(spark, place, tmp_path):
    """Epochs start at 0 again: under the user's name alone they would count as repeated."""
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


@TIMEOUT
def test_progress_and_prometheus_show_backlog_and_lag(spark, place, tmp_path):
    queue = place.queue("watched")
    place.send(queue, 10)
    rows = stream(spark, place, queue=queue, readerId="watched", maxRowsPerTrigger=4)
    with export_metrics(spark, port=0) as metrics:
        query = (
            rows.writeStream.format("noop")
            .queryName("watched-query")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
            latest = json.loads(query.recentProgress[0].sources[0].latestOffset)
            [facts] = latest["queues"].values()
            assert (facts["name"], facts["end"]) == ("private$\\watched", 10)
            assert facts["backlog"] == 10
            assert facts["lag"] <= 6
            deadline = time.monotonic() + 120
            while 'qmd_stream_rows_total{query="watched-query"} 10' not in metrics.metrics.text():
                assert time.monotonic() < deadline, metrics.metrics.text()
                time.sleep(0.05)
            address = f"http://127.0.0.1:{metrics.port}/metrics"
            with urllib.request.urlopen(address) as answer:
                text = answer.read().decode()
        finally:
            query.stop()
        metrics.write(tmp_path / "qmd.prom")

    labels = (
        f'query="watched-query",reader="watched",queue="private$\\\\watched",'
        f'endpoint="{place.socket}"'
    )
    assert f"qmd_stream_lag_messages{{{labels}}} 0" in text
    stamp = r'^qmd_stream_progress_timestamp_seconds\{query="watched-query"\} (\d{10})'
    assert re.search(stamp, text, re.MULTILINE), "a time has more than six digits"
    assert "# TYPE qmd_stream_backlog_messages gauge" in (tmp_path / "qmd.prom").read_text()


@TIMEOUT
def test_a_wrong_option_ends_the_query_with_its_sentence_before_the_first_batch(
    spark, place, tmp_path
):
    queue = place.queue("unread")
    place.send(queue, 3)

    def run(options: dict[str, str]) -> None:
        rows = stream(spark, place, queue=queue, **options)
        writer = rows.writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path / "unread")).start().awaitTermination(120)

    for options, said in (
        ({}, 'qmd: option "readerId" is missing'),
        ({"readerId": "unread", "onGap": "ignore"}, "is 'ignore'; it is one of fail, warn"),
    ):
        with pytest.raises(PySparkException) as refused:
            run(options)
        assert said in str(refused.value)
        assert "UnboundLocalError" not in str(refused.value)
    assert place.labels(queue) == orders(3)
    assert [one["reader"] for one in place.qm.pipeline.list_readers()].count("unread") == 0
