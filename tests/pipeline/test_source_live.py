"""The data source on real queue managers: tables of queues, filters, events, and errors."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.source import DefaultSource
from pipeline.source.errors import SourceError
from qmd.bodies.content import write_content
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
    every = labels(f"{queue},private$\\{queue},{queue[:-1]}*,{queue};journal")
    assert every == ["order 2", "order 1", "order 0"], "each queue is read once"


@TIMEOUT
def test_every_use_of_a_dataframe_has_its_own_filters(spark, place):
    """Spark's own pushdown uses the filters of one query for the others of a DataFrame."""
    queue = place.queue("filtered")
    place.send(queue, 30)
    table = read(spark, place, queue=queue, pushdown="true", columns="label,position")

    one = table.filter(F.col("label") == "order 2")

    assert one.count() == 1
    assert table.count() == 30
    assert one.union(table.filter(F.col("label") == "order 3")).count() == 2
    assert table.alias("a").join(one.alias("b"), "position").count() == 1


def test_conditions_exclude_exactly_the_unselected_rows(place):
    queue = place.queue("sifted")
    place.send(queue, 30)
    place.qm.send(queue, b"", label="Order 1")
    everything = rows(place, queue=queue)
    middle = sorted(everything, key=lambda row: row["position"])[14]
    later = (middle["arrived_at"] + timedelta(hours=1)).isoformat()
    later_ms = (middle["arrived_at"].timestamp() + 3600) * 1000
    cases = [
        (f"position > {middle['position']}", 16),
        (f"arrived_at >= '{later}'", 0),
        (f"arrived_at < '{later}'", 31),
        (f"id = '{middle['id']}'", 1),
        (f"lookup_id IN ({middle['lookup_id']}, 5)", 1),
        ("label = 'order 1'", 1),
        ("label <> 'order 1' AND label LIKE 'order 1%'", 10),
        ("label LIKE '%der 1_'", 10),
        ("label NOT LIKE '%der 1_' AND label NOT IN ('order 1', 'Order 1')", 19),
        ("class = 'nack_deleted'", 0),
        ("class = 'no such class'", 0),
        (f"position > {1 << 40}", 0),
        ("priority IN (99999999999)", 0),
        ("priority NOT IN (99999999999)", 31),
        (f"arrived_at < ' {int(later_ms)} '", 31),
        ("`sequence`.`number` IS NULL", 31),
        ("id LIKE '%\\\\%'", 31),
        ("id LIKE '%\\%'", 0),
        ("destination LIKE '%private$\\sif_ed'", 31),
        ("reason = 'none'", 0),
        ("reason IS NULL AND class IS NOT NULL", 31),
        ("reason <> 'none'", 0),
        ("sequence.number > 3", 0),
        ("queue = 'another'", 0),
        ("priority = 3 AND delivery = 'recoverable'", 31),
        ("priority > 99999999999999999999", 0),
        ("priority < 99999999999999999999", 31),
        ("body = ''", 1),
        ("journal = false", 31),
    ]

    for where, count in cases:
        found = rows(place, queue=queue, where=where)
        assert len(found) == count, where
        assert all(row in everything for row in found), where
    few = rows(place, queue=queue, where="priority = 3 AND label = 'order 5'", columns="body")
    assert few == [{"body": b"body 5"}]


def test_a_read_begins_and_ends_where_the_options_say(place):
    queue = place.queue("bounded")
    place.send(queue, 9)
    everything = sorted(rows(place, queue=queue), key=lambda row: row["position"])
    third, last = everything[3], everything[-1]
    later = last["arrived_at"] + timedelta(milliseconds=1)

    def labels(**options: str) -> list[str]:
        return sorted(row["label"] for row in rows(place, queue=queue, **options))

    begin = {"startingOffsets": f'{{"{queue}": {third["position"]}}}'}
    end = {"endingOffsets": f'{{"{queue}": {third["position"]}}}'}
    assert labels(**begin) == orders(6, 3)
    assert labels(**end) == orders(3)
    assert labels(**begin, **end) == []
    assert labels(startingTimestamp=later.isoformat()) == []
    assert labels(endingTimestamp=later.isoformat()) == orders(9)
    assert labels(startingOffsets="earliest", endingOffsets="latest") == orders(9)
    with pytest.raises(SourceError, match=r"no message of .* has that position yet"):
        labels(startingOffsets=f'{{"{queue}": {last["position"] + 10_000}}}')

    other = place.queue("bounded.other")
    place.send(other, 2, first=20)
    both = sorted([queue, other])
    by_queue = {"startingTimestamp": json.dumps({queue: later.isoformat()})}
    found = rows(place, queue=",".join(both), **by_queue)
    assert sorted(row["label"] for row in found) == orders(2, 20)
    by_queue = {"endingTimestamp": json.dumps({other: 0, queue: later.isoformat()})}
    found = rows(place, queue=",".join(both), **by_queue)
    assert sorted(row["label"] for row in found) == orders(9)


def test_bodies_are_decoded_by_an_option(place):
    queue = place.queue("decoded")
    xml, _ = write_content({"total": 3}, "xml", root="Order")
    binary, body_type = write_content("hello", "binary")
    for body, kind in (
        (b'{"name": "screw", "total": 7, "more": 1}', 0),
        (b'{"name": "nail", "total": "many"}', 0),
        ("{}".encode("utf-16-le"), 31),
        (xml, 0),
        (binary, body_type),
        (b"\xff\x00\x01", 0),
    ):
        place.qm.send(queue, body, body_type=kind)

    def contents(**options: str) -> list[Any]:
        found = rows(place, queue=queue, columns="content,content_error", **options)
        assert all((row["content"] is None) == bool(row["content_error"]) for row in found)
        return [row["content"] for row in found]

    text = contents(bodyFormat="text")
    assert text[0].startswith('{"name": "screw"')
    assert text[2] == "{}"
    assert text[5] is None
    dotnet = contents(bodyFormat="dotnet")
    assert dotnet[:3] == [None, None, json.dumps("{}")]  # a text of COM
    assert json.loads(dotnet[3]) == {"total": "3"}
    assert json.loads(dotnet[4]) == "hello"
    with pytest.raises(SourceError, match=r"the body of message .*\\\d+ is not text"):
        contents(bodyFormat="text", onBadBody="fail")


@TIMEOUT
def test_json_and_avro_are_columns_of_their_schema(spark, place, tmp_path):
    fastavro = pytest.importorskip("fastavro", reason="the extra qmd-msmq[avro] is not installed")
    queue, avro = place.queue("json"), place.queue("avro")
    place.qm.send(queue, '{"name": "screw", "lines": [{"total": 7}], "at": "2026-01-31"}')
    place.qm.send(queue, '{"name": 5}')
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "total", "type": ["null", "long"]},
        ],
    }
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    for frame in (b"", b"\0\0\0\0\7"):
        body = io.BytesIO(frame)
        body.seek(len(frame))
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"name": "a", "total": 3})
        place.qm.send(avro, body.getvalue())
    place.qm.send(avro, b"\2")

    found = read(
        spark,
        place,
        queue=queue,
        bodyFormat="json",
        bodySchema="name string, lines array<struct<total: int>>, at date",
    ).orderBy("position")
    assert [row.name for row in found.select("content.name").collect()] == ["screw", None]
    assert found.selectExpr("sum(content.lines[0].total) AS total").collect()[0].total == 7
    assert "name is 5, and not a text" in found.collect()[1].content_error
    records = read(
        spark, place, queue=avro, bodyFormat="avro", avroSchema=str(tmp_path / "order.avsc")
    )
    assert [(row.name, row.total) for row in records.select("content.*").collect()] == [
        ("a", 3),
        ("a", 3),
        (None, None),
    ]


@TIMEOUT
def test_a_queue_is_a_table_of_sql(spark, place):
    queue = place.queue("sql")
    place.send(queue, 3)
    options = f"endpoint '{place.socket}', queue '{queue}', columns 'label,body,priority'"
    spark.sql(f"CREATE TABLE sql_orders USING qmd OPTIONS ({options})")
    spark.sql(f"CREATE TEMPORARY VIEW sql_view USING qmd OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO sql_orders (label, body) VALUES ('from sql', CAST('b' AS BINARY))")
        spark.sql("INSERT INTO sql_orders SELECT 'again', CAST('c' AS BINARY), 5")
        spark.sql("INSERT INTO sql_view SELECT 'view', CAST('d' AS BINARY), 6")

        found = spark.sql("SELECT label, priority FROM sql_orders ORDER BY label").collect()
    finally:
        spark.sql("DROP TABLE sql_orders")
        spark.sql("DROP VIEW sql_view")

    assert sorted(row.label for row in found) == sorted([*orders(3), "from sql", "again", "view"])
    assert {row.label: row.priority for row in found}["again"] == 5


@TIMEOUT
def test_a_table_of_sql_has_options_for_its_rows_and_properties_of_its_own(spark, place):
    queue, target = place.queue("sql.read"), place.queue("sql.written")
    options = f"endpoint '{place.socket}', queue '{queue}', columns 'label'"

    def refused(text: str) -> str:
        with pytest.raises(PySparkException) as error:
            spark.sql(text).collect()
        return str(error.value)

    spark.sql(
        f"CREATE TABLE sql_to USING qmd OPTIONS ({options}, destination '{target}',"
        " delivery 'recoverable') COMMENT 'both' TBLPROPERTIES ('team' = 'orders')"
    )
    spark.sql("CREATE TABLE sql_listed (label string) USING qmd OPTIONS (endpoint 'x', queue 'y')")
    try:
        spark.sql("INSERT INTO sql_to VALUES ('written')")
        assert spark.sql("SELECT * FROM sql_to").collect() == []
        assert "no options were given" in refused("SELECT * FROM sql_listed")
    finally:
        for name in ("sql_to", "sql_listed"):
            spark.sql(f"DROP TABLE {name}")

    assert place.labels(target) == ["written"]
    text = refused(f"CREATE TABLE sql_as USING qmd OPTIONS ({options}) AS SELECT 'x' AS label")
    assert "without AS SELECT" in text
    text = refused(f"CREATE TABLE sql_bad USING qmd OPTIONS ({options}, colums 'label')")
    assert "did you mean columns?" in text
    text = refused(f"CREATE TABLE sql_bad USING qmd OPTIONS ({options}, delivery 'slow')")
    assert "is 'slow'; it is one of" in text


def test_a_table_of_several_queues_does_not_choose_one_for_its_rows():
    given = {"endpoint": "/run/qmd.sock", "queue": "orders,returns", "columns": "label"}
    comment = {"comment": f"qmd options {json.dumps(given)}"}
    schema = StructType([StructField("label", StringType(), metadata=comment)])

    assert DefaultSource({}).reader(schema).options.sources()[0].queues == ("orders", "returns")
    with pytest.raises(SourceError, match="name the one that gets its rows"):
        DefaultSource({}).writer(schema, overwrite=False)


@TIMEOUT
def test_events_of_a_queue_manager_and_of_its_files_are_the_same_table(spark, place, tmp_path):
    queue = place.queue("told")
    place.send(queue, 3)
    place.qm.receive(queue)
    for form in ("parquet", "ndjson"):
        file = tmp_path / form / f"events.{form}"
        file.parent.mkdir()
        place.daemon.cli("events", "export", str(file))

    def reported(table: Any) -> list[Any]:
        return table.filter(F.col("queue").contains("told")).orderBy("block", "index").collect()

    live = reported(read(spark, place, kind="events"))
    assert [row.kind for row in live] == ["sent", "sent", "sent", "received"]
    for form in ("parquet", "ndjson"):
        assert reported(spark.read.format("qmd").load(str(tmp_path / form))) == live


def test_an_event_of_several_queues_is_one_row(place):
    for name in ("events.one", "events.two"):
        place.queue(name)
    place.send("events.one", 3)
    place.qm.move("events.one", "events.two", limit=2)

    def kinds(queue: str, **options: str) -> list[str]:
        return [row["kind"] for row in rows(place, kind="events", queue=queue, **options)]

    every = ["sent"] * 3 + ["moved"] * 2
    assert kinds("events.one") == every
    assert kinds("events.one,events.two,private$\\events.one") == every
    assert kinds("events.*") == every
    assert kinds("nosuch.*") == []
    assert kinds("events.*", where="kind = 'no such kind'") == []
    assert kinds("events.*", where="kind IN ('moved', 'no such kind')") == ["moved"] * 2


def test_only_the_star_is_a_pattern(place):
    queue = place.queue("list[1]?")
    place.queue("list11")
    place.send("list11", 1)
    place.send(queue, 1, first=5)

    assert [row["label"] for row in rows(place, queue=queue)] == orders(1, 5)
    assert len(rows(place, queue="list*1*")) == 2


def test_an_exported_queue_is_the_same_table(place, tmp_path):
    queue = place.queue("exported")
    place.send(queue, 5)
    place.daemon.cli("export", queue, str(tmp_path / "orders.ndjson"))
    columns = "id,lookup_id,label,body,sent_at,arrived_at,delivery,destination"

    from_file = rows_of({"path": str(tmp_path), "columns": columns})

    assert from_file == rows(place, queue=queue, columns=columns)
    packed = tmp_path / "packed" / "orders.ndjson.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((tmp_path / "orders.ndjson").read_bytes()))
    assert rows_of({"path": str(packed), "columns": columns}) == from_file
    for name in ("queue", "endpoint", "partitions"):
        with pytest.raises(SourceError, match=f'option "{name}" is for queue managers'):
            rows_of({"path": str(packed), name: "1"})


def test_parquet_without_events_is_refused(tmp_path):
    """The folder of `qmd ship` has journals and inventories, too."""
    parquet.write_table(pa.table({"host": ["a"], "label": ["x"]}), tmp_path / "a.parquet")

    with pytest.raises(SourceError, match="is Parquet without the columns of events"):
        rows_of({"path": str(tmp_path)})


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
