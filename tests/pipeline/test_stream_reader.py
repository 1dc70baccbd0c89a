"""The reader that Spark's driver calls, on real queue managers and without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline.source import open_queues
from pipeline.source.errors import SourceError
from pipeline.source.offsets import ends_of
from qmd.client import blocking
from tests.pipeline.live import Place, orders, rows, stream_reader
from tests.process.harness import Hosts

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    hosts = Hosts()
    found = Place(hosts.daemon())
    with found.qm:
        yield found
    hosts.close()


def taken(reader: Any, start: Any, most: int = 1000) -> tuple[Any, list[str]]:
    """Return the offset of the next batch, and the labels of its rows."""
    end = reader.latestOffset(start, ReadMaxRows(most))
    found = [
        label
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for label in batch.column("label").to_pylist()
    ]
    return end, found


def test_a_stream_begins_and_ends_where_the_options_say(place):
    queue = place.queue("bounds")
    place.send(queue, 9)
    there = sorted(rows(place, queue=queue), key=lambda row: row["position"])
    begin, end = there[2]["position"], there[7]["position"]
    later = (there[-1]["arrived_at"] + timedelta(hours=1)).isoformat()
    reader = stream_reader(
        place,
        queue=queue,
        readerId="bounds",
        startingOffsets=f'{{"{queue}": {begin}}}',
        endingOffsets=f'{{"{queue}": {end}}}',
        columns="label",
    )

    offset, found = taken(reader, reader.initialOffset())

    assert found == orders(5, 2)
    assert taken(reader, offset) == (offset, [])
    reader.stop()
    late = stream_reader(place, queue=queue, readerId="late", startingTimestamp=later)
    start = late.initialOffset()
    assert taken(late, start) == (start, [])
    late.stop()
    strict = stream_reader(
        place, queue=queue, readerId="strict", startingTimestamp=later,
        startingOffsetsByTimestampStrategy="error",
    )  # fmt: skip
    with pytest.raises(SourceError, match="no message that arrived at"):
        strict.initialOffset()
    strict.stop()
    other = place.queue("stream.other")
    place.send(other, 2, first=20)
    times = json.dumps({queue: later})
    both = stream_reader(
        place, queue=f"{queue},{other}", readerId="both", columns="label", startingTimestamp=times
    )
    assert taken(both, both.initialOffset())[1] == orders(2, 20)
    both.stop()
    third = place.queue("stream.third")
    place.send(third, 1, first=30)
    ends = json.dumps({third: later, queue: 0})
    both = stream_reader(
        place, queue=f"{queue},{third}", readerId="ends", columns="label", endingTimestamp=ends
    )
    assert taken(both, both.initialOffset())[1] == orders(1, 30)
    both.stop()
    newest = stream_reader(place, queue=queue, readerId="new", startingOffsets="latest")
    start = newest.initialOffset()
    place.send(queue, 1, first=9)
    assert taken(newest, start)[1] == orders(1, 9)
    newest.stop()


def test_new_queues_of_a_pattern_are_read_while_the_stream_runs(place, capfd):
    place.queue("area.one")
    place.send("area.one", 2)
    reader = stream_reader(
        place, queue="area.*", readerId="area", columns="label", startingOffsets="latest"
    )
    start = reader.initialOffset()
    offset, found = taken(reader, start)
    assert found == [], "the first queue begins with new messages only"
    place.queue("area.two")
    place.send("area.two", 3, first=10)
    reader._opened._looked_at -= reader.options.discover_s  # as if that time had passed

    offset, found = taken(reader, offset)

    assert found == orders(3, 10)
    assert "also reads the new queue private$\\area.two" in capfd.readouterr().err
    reader.commit(offset)
    assert place.labels("area.two") == []
    place.queue("area.three")
    place.send("area.three", 1, first=20)
    reader.stop()
    again = stream_reader(
        place, queue="area.*", readerId="area", columns="label", startingOffsets="latest"
    )
    assert taken(again, offset)[1] == orders(1, 20), "created while the query was down"
    again.stop()


def test_a_deleted_queue_ends_the_stream_or_is_passed_over(place, capfd):
    for name in ("gone.one", "gone.two"):
        place.queue(name)
    strict = stream_reader(place, queue="gone.*", readerId="strict")
    loose = stream_reader(place, queue="gone.*", readerId="loose", failOnDataLoss="false")
    starts = strict.initialOffset(), loose.initialOffset()
    place.qm.delete_queue("gone.two")
    place.send("gone.one", 2)

    with pytest.raises(SourceError, match="was deleted"):
        taken(strict, starts[0])
    strict.stop()
    with blocking.connect(place.socket) as qm:
        qm.pipeline.release_reader("strict")
    offset, found = taken(loose, starts[1])
    assert found == orders(2)
    assert "goes on without it" in capfd.readouterr().err
    place.queue("gone.two")
    place.send("gone.two", 2, first=10)
    loose._opened._looked_at -= loose.options.discover_s  # as if that time had passed
    assert taken(loose, offset)[1] == orders(2, 10), "created again"
    loose.stop()


def test_a_named_queue_that_is_created_again_is_read_again(place):
    name = place.queue("again")
    reader = stream_reader(place, queue=name, readerId="again", onGap="warn", columns="label")
    offset = reader.initialOffset()
    place.qm.delete_queue(name)
    for _ in range(2):  # it is looked for and is not there
        assert taken(reader, offset) == (offset, [])
        reader._opened._looked_at -= reader.options.discover_s
    place.queue(name)
    place.send(name, 2)

    offset, found = taken(reader, offset)

    assert found == orders(2)
    reader.commit(offset)
    assert place.labels(name) == []
    reader.stop()


def test_available_now_ends_with_the_messages_that_were_there(place):
    """Also for shared readers: their queues have the messages that they have read, too."""
    queue = place.queue("bounded")
    place.send(queue, 4)

    def opened() -> Any:
        return stream_reader(place, queue=queue, readerId="sharing", shared="true", columns="label")

    reader = opened()
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
    reader.commit(offset)
    reader.stop()
    reader = opened()
    reader.prepareForTriggerAvailableNow()
    place.send(queue, 5, first=100)

    offset, found = taken(reader, offset)

    assert found == orders(1, 3)
    assert taken(reader, offset) == (offset, [])
    reader.stop()


def test_a_stream_that_ends_at_the_first_position_is_empty(place):
    queue = place.queue("nothing")
    place.send(queue, 1)
    reader = stream_reader(
        place, queue=queue, readerId="nothing", endingOffsets=f'{{"{queue}": 1}}'
    )
    start = reader.initialOffset()
    assert taken(reader, start) == (start, [])
    reader.stop()


def test_one_queue_manager_under_two_addresses_is_refused(place):
    """Each message would come twice, or one run of the reader would shut out the other."""
    other = place.socket.replace("/qmd.sock", "/./qmd.sock")
    queue = place.queue("aliased")
    place.send(queue, 1)
    reader = stream_reader(
        place, endpoint=f"{place.socket},{other}", queue=queue, readerId="aliased"
    )
    with pytest.raises(SourceError, match="which are one queue manager; name it once"):
        reader.initialOffset()
    with pytest.raises(SourceError, match="which are one queue manager; name it once"):
        rows(place, endpoint=f"{place.socket},{other}", queue=queue)


def test_progress_shows_backlog_lag_and_age(place):
    queue = place.queue("progress")
    place.send(queue, 10)
    reader = stream_reader(place, queue=queue, readerId="progress")
    start = reader.initialOffset()

    def shown() -> dict[str, Any]:
        [found] = reader.reportLatestOffset()["queues"].values()
        return found

    first = shown()
    assert (first["end"], first["backlog"], first["lag"]) == (10, 10, 10)
    assert first["age_s"] >= 0
    offset = reader.latestOffset(start, ReadMaxRows(4))
    assert (shown()["end"], shown()["backlog"], shown()["lag"]) == (10, 10, 6)
    reader.commit(offset)
    assert (shown()["end"], shown()["backlog"], shown()["lag"]) == (10, 6, 6)
    assert ends_of(reader.reportLatestOffset()).keys() == ends_of(offset).keys()
    rest = reader.latestOffset(offset, ReadMaxRows(100))
    reader.commit(rest)
    assert (shown()["backlog"], shown()["lag"], shown()["age_s"]) == (0, 0, 0.0)
    reader.stop()


def test_progress_of_a_shared_reader_counts_messages_behind_it(place):
    queue = place.queue("shared-progress", journal=True)
    place.send(queue, 5)
    place.qm.receive_many(queue, 5)
    reader = stream_reader(place, queue=f"{queue};journal", readerId="shared progress")
    start = reader.initialOffset()
    offset = reader.latestOffset(start, ReadMaxRows(2))
    reader.commit(offset)

    [found] = reader.reportLatestOffset()["queues"].values()

    assert (found["end"], found["backlog"], found["lag"]) == (5, 3, 3)
    reader.stop()


def test_a_batch_waits_for_a_number_of_rows_but_not_for_ever(place):
    queue = place.queue("patient")
    reader = stream_reader(
        place, queue=queue, readerId="patient", minRowsPerTrigger=3, maxTriggerDelay="1h"
    )
    start = reader.initialOffset()
    place.send(queue, 2)
    assert taken(reader, start) == (start, [])
    reader._batch_at = time.monotonic() - 3600
    offset, found = taken(reader, start)
    assert found == orders(2)
    place.send(queue, 3, first=2)
    assert taken(reader, offset)[1] == orders(3, 2)
    reader.stop()


def test_a_partition_has_no_more_rows_than_allowed(place):
    queue = place.queue("parted")
    place.send(queue, 10)
    reader = stream_reader(place, queue=queue, readerId="parted", maxRowsPerPartition=4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))

    sizes = [part.until - part.after for part in reader.partitions(start, end)]

    assert max(sizes) <= 4
    assert sum(sizes) == 10
    reader.stop()


def test_a_queue_manager_that_is_away_is_waited_for_and_that_is_said(place, tmp_path, capfd):
    reader = stream_reader(
        place,
        endpoint=str(tmp_path / "qmd.sock"),
        queue="x",
        readerId="away",
        reconnectSeconds=1,
    )

    with pytest.raises(SourceError, match=r"waited for 1 s, as the option \"reconnectSeconds\""):
        reader.initialOffset()

    assert "waiting for up to 1 s (reconnectSeconds)" in capfd.readouterr().err
    reader.stop()


def test_too_many_queues_of_a_pattern_are_refused(place, monkeypatch):
    monkeypatch.setattr(open_queues, "QUEUES_MAX", 1)
    for name in ("many.one", "many.two"):
        place.queue(name)
    reader = stream_reader(place, queue="many.*", readerId="many")

    with pytest.raises(SourceError, match="2 queues match, and one reader has at most 1"):
        reader.initialOffset()
    reader.stop()


def left(place: Place, queue: str) -> list[str]:
    """Return the labels of the messages in a queue, also of those that are reserved."""
    return [row["label"] for row in rows(place, queue=queue)]


def test_a_shared_reader_reserves_the_next_batch_while_one_is_processed(place, monkeypatch):
    monkeypatch.setattr("pipeline.source.stream.BEHIND_MIN", 4)
    queue = place.queue("ahead")
    place.send(queue, 10)

    def opened() -> Any:
        return stream_reader(place, queue=queue, readerId="ahead", shared="true", columns="label")

    def reserved() -> int:
        [row] = [one for one in place.qm.pipeline.list_readers() if one["reader"] == "ahead"]
        return int(row["messages"])

    reader = opened()
    first, found = taken(reader, reader.initialOffset(), most=4)
    [queue_progress] = reader.reportLatestOffset()["queues"].values()
    assert (found, reserved()) == (orders(4), 8)
    assert (queue_progress["end"], queue_progress["lag"]) == (10, 6)
    reader.stop()
    reader = opened()

    second, found = taken(reader, first, most=4)

    assert found == orders(4, 4), "a run that begins again finds the reservation"
    reader.commit(first)
    place.send(queue, 3, first=10)
    third, found = taken(reader, second, most=4)
    assert found == orders(4, 8), "messages that arrived after the reservation are read with it"
    reader.commit(second)
    assert taken(reader, third, most=2)[1] == orders(1, 12), "with other limits"
    reader.stop()


def test_a_large_consumption_goes_on_while_the_next_batch_is_processed(place, monkeypatch):
    monkeypatch.setattr("pipeline.source.stream.BEHIND_MIN", 4)
    queue = place.queue("behind")
    place.send(queue, 8)
    reader = stream_reader(place, queue=queue, readerId="behind", columns="label")
    first, _ = taken(reader, reader.initialOffset(), most=4)
    reader.commit(first)
    second, found = taken(reader, first, most=4)
    assert found == orders(4, 4)
    assert left(place, queue) == orders(4, 4)
    later = stream_reader(place, queue=queue, readerId="behind", columns="label")
    later.initialOffset()  # shuts the first run out

    reader.commit(second)

    with pytest.raises(SourceError, match="another run of reader behind has begun"):
        reader.latestOffset(second, ReadMaxRows(4))
    reader.stop()
    assert left(place, queue) == orders(4, 4)
    assert taken(later, first, most=4)[1] == orders(4, 4)
    later.commit(second)
    later.stop()
    assert left(place, queue) == []


def test_the_end_of_a_stream_waits_for_its_consumptions(place, monkeypatch):
    monkeypatch.setattr("pipeline.source.stream.BEHIND_MIN", 4)
    queue = place.queue("ending")
    place.send(queue, 6)
    reader = stream_reader(place, queue=queue, readerId="ending", columns="label")
    offset, _ = taken(reader, reader.initialOffset(), most=6)
    reader.commit(offset)
    reader.stop()
    assert left(place, queue) == []
