"""The column `service_bus`: headers of NServiceBus, Rebus and MassTransit in rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from pipeline.source import DefaultSource
from pipeline.source.errors import SourceError
from pipeline.source.options import Options
from pipeline.source.service_bus import ARROW, DDL, bus_column, with_service_bus
from qmd.bodies.bus_headers import write_bus_headers
from qmd.client import Message
from qmd.client.archive import line_of, read_line
from qmd.client.blocking import QueueManager
from qmd.control_protocol.messages import StoredMessage
from qmd.properties.block import with_properties
from qmd.properties.values import CONTENT_TYPE, MessageProperties
from tests.pipeline.live import TIMEOUT, Place, read, rows, rows_of, stream
from tests.process.harness import Hosts

FAILED = {
    "NServiceBus.MessageId": "m1",
    "NServiceBus.EnclosedMessageTypes": "Shop.Order, Shop;Shop.IOrder, Shop",
    "NServiceBus.ReplyToAddress": "web@hosta",
    "NServiceBus.FailedQ": "billing@hostb",
    "NServiceBus.Retries": "3",
    "NServiceBus.TimeSent": "2026-01-02 03:04:05:678901 Z",
}
CONTROL = {"rbs2-msg-type": "Rebus.Messages.Control.SubscribeRequest, Rebus"}
ENVELOPE = {
    "messageId": "m3",
    "messageType": ["urn:message:Shop:Order"],
    "headers": {"tenant": "7"},
}
MASS_TRANSIT = "application/vnd.masstransit+json"


def column(*messages: tuple[bytes, bytes]) -> list[Any]:
    extensions, bodies = ([message[at] for message in messages] for at in (0, 1))
    batch = pa.record_batch(
        {"extension": pa.array(extensions, pa.binary()), "body": pa.array(bodies, pa.binary())}
    )
    found: list[Any] = bus_column(batch).to_pylist()
    return found


def messages() -> list[tuple[bytes, bytes]]:
    return [
        (write_bus_headers("NServiceBus", FAILED), b"<Order/>"),
        (b"", b"plain"),
        (write_bus_headers("Rebus", CONTROL), b"{}"),
        (
            write_bus_headers("MassTransit", {"Content-Type": MASS_TRANSIT}),
            json.dumps(ENVELOPE).encode(),
        ),
    ]


def assert_decoded(found: list[Any]) -> None:
    failed, plain, control, envelope = found
    assert plain is None
    assert (failed["framework"], failed["message_id"]) == ("NServiceBus", "m1")
    assert failed["message_types"] == ["Shop.Order, Shop", "Shop.IOrder, Shop"]
    assert (failed["return_address"], failed["failed_queue"]) == ("web@hosta", "billing@hostb")
    assert (failed["retries"], failed["control"]) == (3, False)
    assert failed["sent_at"].replace(tzinfo=UTC) == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert failed["failed_at"] is None
    assert dict(failed["headers"]) == FAILED
    assert (control["framework"], control["control"]) == ("Rebus", True)
    assert control["retries"] is None
    assert (envelope["message_id"], dict(envelope["headers"])["tenant"]) == ("m3", "7")


def test_headers_of_three_frameworks_become_a_column():
    assert_decoded(column(*messages()))


def test_the_type_of_the_body_may_be_a_property_in_the_extension():
    properties = MessageProperties(standard={CONTENT_TYPE: MASS_TRANSIT})

    (found,) = column((with_properties(properties), json.dumps(ENVELOPE).encode()))

    assert (found["framework"], found["message_id"]) == ("MassTransit", "m3")


def test_odd_texts_and_times_are_values_of_the_column():
    body = b'{"messageId": "a\\ud800", "headers": {"b\\udfff": "c"}, "messageType": ["\\ud801"]}'
    extension = write_bus_headers("MassTransit", {"Content-Type": MASS_TRANSIT})
    times = [
        write_bus_headers("Rebus", {"rbs2-senttime": text})
        for text in ("2026-01-02T03:04:05", "0001-01-01T00:00:00+14:00", "soon")
    ]

    odd, local, before_all, none = column((extension, body), *((each, b"") for each in times))

    assert odd["message_id"] == "a\ufffd"
    assert odd["message_types"] == ["\ufffd"]
    assert dict(odd["headers"])["b\ufffd"] == "c"
    assert local["sent_at"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert before_all["sent_at"] is None
    assert none["sent_at"] is None


@given(
    st.sampled_from(
        [b"", b"{", b'{"rbs2-intent":"', b"<ArrayOfHeaderInfo>", b"qmd-properties 1\n"]
    ),
    st.binary(max_size=60),
    st.binary(max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_headers_or_null(start: bytes, rest: bytes, body: bytes):
    assert len(column((start + rest, body))) == 1


def options(**given: str) -> Options:
    return Options({"endpoint": "/run/qmd.sock", "queue": "orders", **given}, "read").check()


def test_the_option_adds_the_column():
    assert options(serviceBus="true").columns("messages")[-1] == "service_bus"
    assert "service_bus" not in options().columns("messages")
    both = options(serviceBus="true", bodyFormat="text").columns("messages")
    assert both[-3:] == ("content", "content_error", "service_bus")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": "id,service_bus"}, 'exists only with the option "serviceBus"'),
        ({"serviceBus": "yes"}, "\"serviceBus\" is 'yes'; it is true or false"),
        ({"serviceBus": "true", "kind": "events"}, "is for messages"),
        ({"serviceBus": "true", "where": "service_bus IS NULL"}, "service_bus"),
    ],
)
def test_a_wrong_use_is_refused(given: dict[str, str], said: str):
    with pytest.raises(SourceError, match=said):
        options(**given)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    hosts = Hosts()
    found = Place(hosts.daemon())
    with found.qm:
        yield found
    hosts.close()


def filled(place: Place, name: str) -> str:
    queue = place.queue(name)
    for at, (extension, body) in enumerate(messages()):
        place.qm.send(queue, body, extension=extension, label=f"order {at}")
    return queue


@pytest.mark.process
def test_readers_return_the_column_with_and_without_others(place: Place):
    queue = filled(place, "bus")

    alone = rows(place, queue=queue, serviceBus="true", columns="service_bus")
    assert [list(row) for row in alone] == [["service_bus"]] * 4
    assert_decoded([row["service_bus"] for row in alone])

    chosen = rows(place, queue=queue, serviceBus="true", where="label = 'order 2'")
    assert [row["service_bus"]["framework"] for row in chosen] == ["Rebus"]
    assert chosen[0]["body"] == b"{}"

    short = rows(place, queue=queue, serviceBus="true", body="false", columns="service_bus")
    found = [row["service_bus"] for row in short]
    assert found[0]["failed_queue"] == "billing@hostb"
    assert (found[3]["framework"], found[3]["message_id"]) == ("MassTransit", "")


def exported(qm: QueueManager, queue: str, path: Path) -> list[dict[str, Any]]:
    lines = [line_of(message, queue, 0) for message in qm.peek_each(queue)]
    path.write_text("\n".join(lines))
    return [json.loads(line) for line in lines]


@pytest.mark.process
def test_an_export_shows_the_headers_and_its_files_have_the_column(place: Place, tmp_path: Path):
    queue = filled(place, "exported")

    lines = exported(place.qm, queue, tmp_path / "orders.ndjson")

    assert [line.get("bus_headers", {}).get("framework") for line in lines] == [
        "NServiceBus", None, "Rebus", "MassTransit"
    ]  # fmt: skip
    assert lines[0]["bus_headers"]["headers"] == FAILED
    given = {"path": str(tmp_path), "serviceBus": "true"}
    assert_decoded([row["service_bus"] for row in rows_of(given)])
    assert "`service_bus` struct<framework: string" in DefaultSource(given).schema()


@pytest.mark.process
def test_an_export_leaves_long_headers_out_and_can_be_imported(place: Place, tmp_path: Path):
    queue = place.queue("long")
    extension = write_bus_headers("Rebus", {"rbs2-error-details": "\u00e9" * 200_000})
    place.qm.send(queue, "{}", extension=extension)

    (line,) = exported(place.qm, queue, tmp_path / "long.ndjson")

    assert "bus_headers" not in line
    packet = read_line(json.dumps(line).encode()).packet
    assert Message(StoredMessage(0, 0, packet)).extension == extension


@pytest.mark.process
@pytest.mark.slow
@TIMEOUT
def test_spark_reads_the_column_from_tables_streams_and_archives(
    spark: Any, place: Place, tmp_path: Path
):
    queue = filled(place, "spark")
    assert to_arrow_type(DataType.fromDDL(DDL), timezone="UTC") == ARROW

    table = read(spark, place, queue=queue, serviceBus="true")
    failed = table.where("service_bus.retries > 2").select("service_bus.*").collect()
    assert [row.failed_queue for row in failed] == ["billing@hostb"]
    assert failed[0].headers == FAILED
    assert_decoded(
        [
            row.service_bus and row.service_bus.asDict()
            for row in table.orderBy("position").collect()
        ]
    )

    read(spark, place, queue=queue).write.parquet(str(tmp_path / "archive"))
    archive = with_service_bus(spark.read.parquet(str(tmp_path / "archive")))
    assert archive.schema["service_bus"].dataType == table.schema["service_bus"].dataType
    assert sorted(
        row.framework or "" for row in archive.select("service_bus.framework").collect()
    ) == ["", "MassTransit", "NServiceBus", "Rebus"]
    with pytest.raises(SourceError, match="has such a column already"):
        with_service_bus(archive)
    with pytest.raises(SourceError, match="lacks the column extension"):
        with_service_bus(spark.read.parquet(str(tmp_path / "archive")).drop("extension"))

    spark.sql(
        f"CREATE TABLE bus USING qmd OPTIONS (endpoint '{place.socket}', queue '{queue}',"
        " serviceBus 'true', columns 'body,service_bus')"
    )
    try:
        found = spark.sql("SELECT count(*) FROM bus WHERE service_bus.control").collect()
        assert found[0][0] == 1
        spark.sql("INSERT INTO bus (body) VALUES (CAST('new' AS BINARY))")
    finally:
        spark.sql("DROP TABLE bus")
    assert [message.body for message in place.qm.peek_each(queue)][4:] == [b"new"]

    streamed = stream(spark, place, queue=queue, serviceBus="true", readerId="bus", shared="true")
    query = (
        streamed.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "stream"))
    )
    query.awaitTermination()
    kept = spark.read.parquet(str(tmp_path / "stream")).where("service_bus IS NOT NULL")
    assert kept.count() == 3
    with pytest.raises(Exception, match="the schema has service_bus as string"):
        spark.read.format("qmd").schema("id string NOT NULL, service_bus string").options(
            endpoint=place.socket, queue=queue, serviceBus="true", columns="id,service_bus"
        ).load().collect()
