"""The option `bodySchema`: what Spark accepts is accepted, all else refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.source.ddl import WrongType, check_ddl, is_type

ACCEPTED = [
    "a int",
    "a: int, b: string NOT NULL COMMENT 'it, said', `c d` map<string, array<double>>",
    "struct<>",
    "struct<a int, b struct<c: decimal(10, 2)>>",
    "array<struct<total: int>>",
    "MAP<STRING, BIGINT>",
    "x Decimal(38,38), y numeric, z dec(5)",
    "a interval day to second, b timestamp_ntz, c varchar(20), d char(3)",
    "s string collate UTF8_LCASE, t int",
    "comment string, not int, array int, struct struct<map: date>",
    "1a int, `größe` string, _ variant, v void",
    "string",
    "decimal(10, 2)",
]
REFUSED = {
    "name string, total itn": "has 'itn' as the type of total;",
    "name string total int": "has 'total' behind its end",
    "name string,": "ends where the name of a column is expected",
    "name": "has 'name' as the type of the content;",
    "a int, b": "ends where b needs a type",
    "array<int": "ends where the content needs '>'",
    "array<>": "has '>' where the content[] needs a type",
    "a array<struct<b: int>": "ends where a needs '>'",
    "a struct<b: array<strin>>": "has 'strin' as the type of a.b[];",
    "map<string>": "has '>' where map needs ','",
    "array<int>>": "has '>' behind its end",
    "a-b int": "has '-' at character 2;",
    "a decimal(39, 2)": "has decimal(39, 2) as the type of a;",
    "a decimal(3, 4)": "has decimal(3, 4) as the type of a;",
    "a decimal(x)": "has 'x' where decimal of a needs a number",
    "a varchar": "has varchar as the type of a; it needs a length",
    "a int not": "ends where a needs NULL after NOT",
    "a int comment b": "has 'b' where a needs a comment in quotes",
    "`a int": "has '`' at character 1;",
    "größe int": "has 'ö' at character 3;",
    "1 int": "has '1' where the name of a column is expected",
    "a int)": "has ')' behind its end",
}


def check(text: str) -> None:
    check_ddl(text, is_type=is_type(text))


def by_spark(spark: Any, text: str) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    try:
        DataType.fromDDL(text if is_type(text) else f"struct<{text}>")
    except PySparkException:
        return False
    return True


def test_schemas_that_spark_accepts_are_accepted(spark: Any) -> None:
    for text in ACCEPTED:
        check(text)
        assert by_spark(spark, text), text


def test_schemas_that_spark_refuses_are_refused_with_the_place(spark: Any) -> None:
    for text, said in REFUSED.items():
        with pytest.raises(WrongType) as refused:
            check(text)
        assert said in str(refused.value), text
        assert not by_spark(spark, text), text
