"""Translation of Spark's SQL for the embedded engine."""

from __future__ import annotations

import pytest

from pipeline.engines.duckdb_sql import condition_for_duckdb, for_duckdb
from pipeline.engines.engine import WrongQuery
from pipeline.jobs.audit.rules import places, plain, streams


@pytest.mark.parametrize(
    ("query", "translated"),
    [
        (
            "exists(old, r -> key BETWEEN r[0] AND r[1])",
            "(len(list_filter(old, lambda r: key BETWEEN r[1] AND r[2])) > 0)",
        ),
        ("array_max(transform(filter(a, r -> r[1] < k), r -> r[1]))",
         "list_max(list_transform(list_filter(a, lambda r: r[2] < k), lambda r: r[2]))"),
        ("min_by(x, struct(a, b)) FILTER (WHERE c)", "min_by(x, row(a, b)) FILTER (WHERE c)"),
        ("named_struct('kind', 'a,b(', 'n', f(x, y))", "struct_pack(kind := 'a,b(', n := f(x, y))"),
        (
            "inline(filter(array(a, if(b, c, NULL)), found -> found IS NOT NULL))",
            "unnest(list_filter([a, if(b, c, NULL)], lambda found: found IS NOT NULL),"
            " recursive := true)",
        ),
        ("SELECT 1 -- exists(a, b", "SELECT 1 "),
    ],
)  # fmt: skip
def test_each_construct_is_translated(query: str, translated: str) -> None:
    assert for_duckdb(query) == translated


@pytest.mark.parametrize("query", ["exists(a, r -> b", "exists(a, b)"])
def test_a_construct_that_is_not_understood_is_an_error(query: str) -> None:
    with pytest.raises(ValueError, match="not"):
        for_duckdb(query)


def test_no_lambda_of_spark_is_left_in_any_rule() -> None:
    rules = [each for module in (streams, plain, places) for each in vars(module).values()]
    queries = [each for each in rules if isinstance(each, str) and "SELECT" in each]

    assert len(queries) >= 9
    assert not any("->" in for_duckdb(each) for each in queries)


@pytest.mark.parametrize(
    "condition",
    [
        "exists(acknowledge, a -> a = 'x')",
        "label = 'a' AND exists(acknowledge, a -> a = 'x')",
        "date_format(arrived_at, 'yyyy-MM') = '2038-01'",
    ],
)
def test_a_condition_that_cannot_be_translated_whole_is_refused(condition: str) -> None:
    with pytest.raises(WrongQuery, match="--engine spark"):
        condition_for_duckdb(condition)
