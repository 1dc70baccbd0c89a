"""The data source on real queue managers: tables of queues, filters, events, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, StringContains

from pipeline.source.errors import SourceError
from tests.pipeline.live import TIMEOUT, Place, orders, read, rows, rows_of
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
def test_a_queue_is_a_table_with_real_types_and_is_not_changed(spark, place):
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
def test_filters_are_pushed_down_to_the_queue_manager_on_request(spark, place, capsys):
    queue = place.queue("filtered")
    place.send(queue, 30)
    # A read of this message would fail: only a pushed-down filter excludes it.
    table = read(spark, place, queue=f"{queue},missing", pushdown="true")

    filtered = table.filter((F.col("queue") == queue) & (F.col("label") == "order 2"))

    filtered.explain("formatted")
    assert f"PushedFilters: [EqualTo(queue,{queue})]" in capsys.readouterr().out
    assert [row.label for row in filtered.collect()] == ["order 2"]


def test_filters_of_all_kinds_exclude_only_unselected_rows(place):
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

    def reported(table: Any) -> list[Any]:
        return table.filter(F.col("queue").contains("told")).orderBy("block", "index").collect()

    live = reported(read(spark, place, kind="events"))
    assert [row.kind for row in live] == ["sent", "sent", "sent", "received"]
    for form in ("parquet", "ndjson"):
        assert reported(spark.read.format("qmd").load(str(tmp_path / form))) == live


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
def test_an_unreadable_queue_is_reported_with_its_place_and_the_remedy(place, options, said):
    with pytest.raises(SourceError, match=said):
        rows(place, **options)


@TIMEOUT
def test_spark_shows_the_errors_of_the_source(spark, place):
    with pytest.raises(PySparkException, match=r"nosuch.*QM-\d+"):
        read(spark, place, queue="nosuch").collect()
