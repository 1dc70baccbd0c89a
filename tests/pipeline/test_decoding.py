"""Columns of packets: they agree with `Message` and with the parser, for each packet."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pyarrow as pa

from pipeline.source import schema
from pipeline.source.decode import fallback
from pipeline.source.decode import packets as decoding
from pipeline.source.decode.packets import batch_of
from pipeline.source.decode.rows import Place, Rows
from protocol import (
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    MalformedPacket,
    MessagePropertiesHeader,
    PropertyFlags,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_user_message,
    wide_text,
)
from qmd.client import Message
from qmd.control_protocol.messages import StoredMessage
from qmd.properties.block import with_properties
from qmd.properties.values import MessageProperties
from tests.properties.packet_strategies import spoilt, user_messages

ALL = schema.column_names("messages")
HEADERS = schema.default_columns("messages", bodies=False)
PLACE = Place("hosta", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "orders")


def rows_of(packets, *, reasons=None, headers_only=False):
    """Return rows as a queue manager gives them; the numbers beside the packets are positions."""
    count = len(packets)
    numbers = np.arange(count, dtype=np.int64)
    return Rows(
        positions=numbers + 1,
        lookup_ids=numbers + 1000,
        arrived_at_ms=numbers + 1_700_000_000_123,
        abort_counts=np.full(count, 2, np.int32),
        move_counts=np.full(count, 3, np.int32),
        offsets=np.cumsum([0, *map(len, packets)], dtype=np.int64),
        packets=b"".join(packets),
        reasons=reasons,
        headers_only=headers_only,
    )


def stored_packet(message):
    """Return the packet as it is stored: without a session header."""
    base = message.base._replace(flags=message.base.flags.replace(session_header=0))
    return build_user_message(message._replace(base=base, session=None))


packets = user_messages().map(stored_packet)


def cut_at_body(packet):
    message = Message(StoredMessage(0, 0, packet))
    properties = message.packet.properties
    from protocol.packets import properties_offset

    return packet[
        : properties_offset(packet) + 56 + len(properties.label) + len(properties.extension)
    ]


@given(st.lists(packets, min_size=1, max_size=8))
def test_columns_agree_with_the_message(packets):
    batch = batch_of(rows_of(packets), PLACE, ALL)

    for index, packet in enumerate(packets):
        message = Message(StoredMessage(index + 1000, 1_700_000_000_123 + index, packet))
        row = {name: batch.column(name)[index].as_py() for name in ALL}
        expected = {
            **{name: value(message) for name, value in fallback.VALUES.items()},
            **{"host": "hosta", "queue_manager": PLACE.queue_manager, "queue": "orders"},
            **{"position": index + 1, "lookup_id": index + 1000, "arrived_at": message.arrived_at},
            **{"reason": None, "abort_count": 2, "move_count": 3, "traced": message.traced},
        }
        assert row == expected


@given(st.lists(user_messages(), min_size=1, max_size=8))
def test_an_extension_keeps_its_block_of_properties_on_both_paths(messages):
    extension = with_properties(MessageProperties(application={"a": 1}), b"own")
    packets = [
        stored_packet(message._replace(properties=message.properties._replace(extension=extension)))
        for message in messages
    ]

    rows = rows_of(packets)
    ways = decoding.arrays_of(rows, ["extension"]), fallback.parsed_columns(rows, ["extension"])

    for found in ways:
        assert found["extension"].to_pylist() == [extension] * len(packets)


@given(st.lists(packets, min_size=1, max_size=8))
def test_headers_alone_give_the_same_columns_without_bodies(packets):
    whole = batch_of(rows_of(packets), PLACE, HEADERS)
    short = [cut_at_body(packet) for packet in packets]

    batch = batch_of(rows_of(short, headers_only=True), PLACE, HEADERS)

    assert batch.equals(whole)


@given(packets, st.data())
def test_a_damaged_packet_is_refused_or_read_and_its_neighbours_are_unaffected(packet, data):
    bad = data.draw(spoilt(packet))

    try:
        batch = batch_of(rows_of([packet, bad, packet]), PLACE, ALL)
    except MalformedPacket:
        return

    alone = batch_of(rows_of([packet]), PLACE, ALL)
    for row in (0, 2):
        for name in set(ALL) - {"position", "lookup_id", "arrived_at"}:
            assert batch.column(name)[row].equals(alone.column(name)[0]), name


def test_ordinary_packets_are_decoded_together(monkeypatch):
    def parse(*arguments):
        raise AssertionError("the parser was asked")

    monkeypatch.setattr(decoding, "parsed_columns", parse)

    batch = batch_of(rows_of(ordinary(100)), PLACE, ALL)

    assert batch.column("label")[7].as_py() == "order 7"
    assert batch.column("body")[99].as_py() == b"body 99"


@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_packet_that_differs_from_its_neighbours_keeps_its_own_values(at):
    """Common fields are decoded once; names and GUIDs in these packets have equal lengths."""
    alike, other = ordinary(2)[0], ordinary(11)[6]

    batch = batch_of(rows_of([other if row == at else alike for row in range(7)]), PLACE, ALL)

    alone = {packet: batch_of(rows_of([packet]), PLACE, ALL) for packet in (alike, other)}
    for row in range(7):
        of = alone[other if row == at else alike]
        for name in set(ALL) - {"position", "lookup_id", "arrived_at"}:
            assert batch.column(name)[row].equals(of.column(name)[0]), (row, name)


def test_a_null_in_a_column_without_nulls_is_refused():
    """Spark would read arbitrary bytes in its place."""
    with pytest.raises(AssertionError, match="label has nulls"):
        schema.record_batch("messages", ["label"], [pa.nulls(3, pa.string())])


def test_reasons_are_given_for_the_messages_that_have_one():
    batch = batch_of(rows_of(ordinary(3), reasons=[None, "full", None]), PLACE, ["reason"])

    assert batch.column(0).to_pylist() == [None, "full", None]


def test_no_messages_are_no_rows():
    assert batch_of(rows_of([]), PLACE, ALL).num_rows == 0


def test_the_types_are_those_that_spark_derives_from_the_schema(spark):
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for kind in ("messages", "events"):
        names = schema.column_names(kind)
        spark = StructType.fromDDL(schema.ddl(kind, names))
        assert to_arrow_schema(spark, timezone="UTC").equals(schema.arrow_schema(kind, names))


def ordinary(count, body_bytes=0):
    """Return packets as applications send them: half transactional, to few destinations."""
    chance = random.Random(7)
    return [
        build_user_message(ordinary_message(number, chance.randrange(16), body_bytes))
        for number in range(count)
    ]


def ordinary_message(number, property_flags, body_bytes):
    def name(text):
        wide = wide_text(text)
        return DirectQueueName(len(wide), wide)

    is_transactional, has_admin = number % 2 == 1, number % 3 == 0
    user = UserHeader(
        bytes([number % 5]) * 16,
        bytes(16),
        0xFFFFFFFF,
        1_700_000_000,
        number,
        UserFlags.of(
            delivery=1,
            properties_header=1,
            transaction_header=int(is_transactional),
            destination_type=7,
            admin_type=7 if has_admin else 0,
        ),
        name(f"OS:hosta\\private$\\orders{number % 4}"),
        name("OS:hosta\\private$\\admin") if has_admin else None,
        None,
        None,
    )
    transaction = TransactionHeader(TransactionFlags(0), 1 << 40, number, number - 1, None)
    label, body = wide_text(f"order {number}"), f"body {number}".encode().ljust(body_bytes, b".")
    properties = MessagePropertiesHeader(
        PropertyFlags(property_flags),
        *(0, 0, bytes(20), 8, number),
        *(0, 0, 0, 0, 0, 0),
        *(label, b"", body),
    )
    base = BaseHeader(VERSION, 0, BaseFlags.of(priority=3), SIGNATURE, 0, 345600)
    sequence = transaction if is_transactional else None
    return UserMessage(base, user, sequence, None, properties, None, None, None, None)


def test_all_of_a_large_batch_is_one_arrow_batch():
    batch = batch_of(rows_of(ordinary(5000, 200)), PLACE, ALL)

    assert batch.num_rows == 5000
    assert batch.schema.field("sequence").type == schema.POSITION
    assert pa.compute.sum(batch.column("body_bytes")).as_py() == 5000 * 200
