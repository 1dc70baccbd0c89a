"""Bodies as columns: only values of the type of the column become values."""

from __future__ import annotations

import io
import json
from datetime import datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa

from pipeline.source.bodies import BodyDecoder, check_type, content_ddl
from pipeline.source.errors import SourceError

ORDER = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("total", pa.int32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("more", pa.map_(pa.string(), pa.float64())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("raw", pa.binary()),
        pa.field("paid", pa.bool_(), nullable=False),
    ]
)


def decoded(bodies: list[bytes], format: str, type_: object = ORDER, **how: object) -> list[dict]:
    batch = pa.record_batch(
        {
            "id": [f"a{at}" for at in range(len(bodies))],
            "body": pa.array(bodies, pa.binary()),
            "body_type": [0] * len(bodies),
        }
    )
    columns = BodyDecoder(format, **how).columns(batch, type_)
    return pa.table(columns).to_pylist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"total": 2147483648}', "total is 2147483648, and not a whole number of this size"),
        ('{"total": 1.5}', "total is 1.5, and not a whole number"),
        ('{"total": true}', "total is true, and not a whole number"),
        ('{"total": "3"}', 'total is "3", and not a whole number'),
        ('{"price": 1.234}', "price is 1.234, and not a number of this precision"),
        ('{"price": 123456789.5}', "price is 123456789.5, and not a number of this precision"),
        ('{"tags": [1]}', "tags[0] is 1, and not a text"),
        ('{"tags": "x"}', 'tags is "x", and not a list'),
        ('{"more": {"a": "b"}}', 'more.a is "b", and not a number'),
        ('{"at": "soon"}', 'at is "soon", and not a time'),
        ('{"raw": "%"}', 'raw is "%", and not bytes'),
        ('{"paid": 1}', "paid is 1, and not true or false"),
        ("[]", "the body is [], and not an object"),
        ('{"paid": null}', "paid is missing, and the schema has it as NOT NULL"),
        ('{"more": {"a": 1e999}, "paid": true}', "more.a is 1E+999, and not a number"),
        ('{"at": "0001-01-01T00:00:00+14:00"}', "and not a time in ISO 8601"),
        ('{"name": "\\ud800", "paid": true}', "a value does not fit its column"),
        ('{"at": "\\ud800"}', 'at is "?", and not a time'),
        ("{", "not JSON"),
        ('{"total": NaN}', "NaN is no value of JSON"),
        ("[" * 100_000, ""),
    ],
)
def test_a_value_of_another_type_is_named(text, said):
    [row] = decoded([text.encode()], "json")

    assert row["content"] is None
    assert said in row["content_error"]


def test_values_of_all_types_arrive():
    value = {
        "name": "\u00e4",
        "total": -5,
        "price": 1.25,
        "tags": ["a", None],
        "more": {"x": 1},
        "at": "2026-01-31T08:00:00+01:00",
        "raw": "AAE=",
        "paid": False,
        "unknown": 1,
    }

    [row, nothing] = decoded([json.dumps(value).encode(), b"null"], "json")

    content = row["content"]
    assert row["content_error"] is None
    assert (content["total"], str(content["price"]), content["raw"]) == (-5, "1.25", b"\0\1")
    assert content["at"].hour == 7
    assert content["more"] == [("x", 1.0)]
    assert nothing == {"content": None, "content_error": None}


def test_decimals_keep_every_digit_and_numbers_their_size():
    [price] = decoded([b"12345678901234567.89"], "json", pa.decimal128(38, 2))
    assert str(price["content"]) == "12345678901234567.89"
    for type_, text in ((pa.float32(), b"1e39"), (pa.float64(), b"1e999")):
        [row] = decoded([text], "json", type_)
        assert row["content"] is None
        assert row["content_error"]


def test_one_bad_value_leaves_those_of_other_bodies():
    rows = decoded([b'"a"', b'"\\ud800"', b'"b"'], "json", pa.string())
    assert [row["content"] for row in rows] == ["a", None, "b"]
    with pytest.raises(SourceError, match="the body of message a1 is not json"):
        decoded([b'"a"', b'"\\ud800"'], "json", pa.string(), fails=True)


@pytest.mark.parametrize(
    "type_",
    [
        pa.duration("us"),
        pa.null(),
        pa.struct([pa.field("a", pa.list_(pa.time64("ns")))]),
        pa.map_(pa.int32(), pa.string()),
    ],
)
def test_a_type_of_which_no_body_has_a_value_is_refused(type_):
    check_type(ORDER, "bodySchema")
    with pytest.raises(SourceError, match='option "bodySchema" has '):
        check_type(type_, "bodySchema")


def test_xml_has_texts_that_become_numbers_of_the_schema():
    body = b'<?xml version="1.0"?><Order><total>3</total><paid>true</paid></Order>'

    [row, other] = decoded([body, body.replace(b"3", b"1_0")], "dotnet")

    assert 'total is "1_0", and not a whole number' in other["content_error"]

    assert (row["content"]["total"], row["content"]["paid"]) == (3, True)


def test_a_bad_body_ends_the_query_if_that_is_wanted():
    with pytest.raises(SourceError, match="the body of message a1 is not json: not JSON"):
        decoded([b'{"paid": true}', b"{"], "json", fails=True)


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from(["json", "text", "dotnet"]))
def test_any_bytes_give_a_value_or_a_reason(bodies, format):
    type_ = ORDER if format == "json" else pa.string()
    for body, row in zip(bodies, decoded(bodies, format, type_), strict=True):
        assert (row["content"] is None) == (row["content_error"] is not None) or body == b"null"


@pytest.mark.parametrize(
    ("given", "ddl"),
    [
        ("name string, total int", "struct<name string, total int>"),
        ("struct<name: string>", "struct<name: string>"),
        ("array<struct<a: int>>", "array<struct<a: int>>"),
        ("map<string, int>", "map<string, int>"),
        ("string", "string"),
        ("decimal(10, 2)", "decimal(10, 2)"),
        ("a:int,b:string", "struct<a:int,b:string>"),
        ("array int", "struct<array int>"),
    ],
)
def test_a_schema_is_a_type_or_a_list_of_columns(given, ddl):
    assert content_ddl("json", given, "") == ddl


def test_a_schema_of_avro_becomes_a_type_of_spark():
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": ["null", "string"]},
            {"name": "b", "type": {"type": "array", "items": "int"}},
            {"name": "c", "type": {"type": "map", "values": "double"}},
            {"name": "d", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "e",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
    pytest.importorskip("fastavro", reason="the extra qmd-msmq[avro] is not installed")

    assert content_ddl("avro", "", json.dumps(schema)) == (
        "struct<`a`: string, `b`: array<int>, `c`: map<string, double>, `d`: timestamp,"
        " `e`: decimal(9,2)>"
    )
    for wrong in (
        '{"type": "nosuch"}',
        "/nowhere/schema.avsc",
        '["int", "string"]',
        '{"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}',
        '{"type": "bytes", "logicalType": "decimal", "precision": 39}',
    ):
        with pytest.raises(SourceError, match='qmd: option "avroSchema"'):
            content_ddl("avro", "", wrong)


def test_times_and_repeated_types_of_avro_become_values():
    fastavro = pytest.importorskip("fastavro", reason="the extra qmd-msmq[avro] is not installed")
    place = {"type": "record", "name": "place", "fields": [{"name": "city", "type": "string"}]}
    schema = {
        "type": "record",
        "name": "r",
        "namespace": "shop",
        "fields": [
            {"name": "a", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "b", "type": {"type": "long", "logicalType": "time-micros"}},
            {"name": "c", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
            {"name": "d", "type": place},
            {"name": "e", "type": ["null", "place"]},
        ],
    }
    assert content_ddl("avro", "", json.dumps(schema)) == (
        "struct<`a`: int, `b`: bigint, `c`: timestamp_ntz, `d`: struct<`city`: string>,"
        " `e`: struct<`city`: string>>"
    )
    city = pa.struct([pa.field("city", pa.string())])
    fields = zip("abcde", [pa.int32(), pa.int64(), pa.timestamp("us"), city, city], strict=True)
    moment = datetime(2026, 1, 31, 8, 0)
    value = {
        "a": time(0, 0, 1), "b": time(0, 0, 1), "c": moment, "d": {"city": "x"}, "e": {"city": "y"}
    }  # fmt: skip
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)

    [row] = decoded([body.getvalue()], "avro", pa.struct(fields), avro_schema=json.dumps(schema))

    assert row["content"] == {**value, "a": 1000, "b": 1_000_000}
