"""Logs that another program has written again, with other types for texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from pipeline.cli import pipeline
from pipeline.events import read_piece
from tests.pipeline.test_odd_inputs import GUID, OTHER, SCHEMA, row

TYPES: dict[str, Callable[[Any], Any]] = {
    "categories": lambda column: column.combine_chunks().dictionary_encode(),
    "long strings": lambda column: column.cast(pa.large_string()),
    "views of strings": lambda column: column.cast(pa.string_view()),
    "categories of long strings": lambda column: (
        column.cast(pa.large_string()).combine_chunks().dictionary_encode()
    ),
}
ROWS = [
    row("sent", queue="DIRECT=OS:beta\\private$\\q", message_id=f"{GUID}\\1", label="order"),
    row("dead_lettered", block=2, message_id=f"{GUID}\\1", to_queue="system$;deadxact"),
    row("accepted", block=3, message_id=f"{OTHER}\\7", queue=None),
]


@pytest.mark.parametrize("changed", TYPES.values(), ids=TYPES)
def test_texts_of_other_types_are_the_same_texts(
    tmp_path: Path, changed: Callable[[Any], Any]
) -> None:
    table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    columns = [
        changed(table[field.name]) if field.type == pa.string() else table[field.name]
        for field in SCHEMA
    ]
    (tmp_path / "in").mkdir()
    parquet.write_table(table, tmp_path / "plain.parquet")
    parquet.write_table(pa.Table.from_arrays(columns, SCHEMA.names), tmp_path / "in/x.parquet")

    def read(path: Path) -> Any:
        return pa.concat_tables(read_piece((str(path), 0, -1), SCHEMA.names))

    plain, other = read(tmp_path / "plain.parquet"), read(tmp_path / "in/x.parquet")
    assert other.to_pylist() == plain.to_pylist()
    assert [field.type for field in other.schema] == [field.type for field in plain.schema]

    for job in ("dead-letters", "trace"):
        given = ["run", job, "--input", str(tmp_path / "in"), "--output", str(tmp_path / job),
                 "--engine", "embedded"]  # fmt: skip
        done = CliRunner().invoke(
            pipeline, [*given, "--message", f"{GUID}\\1"] if job == "trace" else given
        )
        assert done.exit_code == 0, done.output
