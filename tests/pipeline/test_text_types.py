"""Logs that another program has written again, with other types for texts and numbers."""

from __future__ import annotations

import json
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
from pipeline.events import Unreadable, check, read_piece
from qmd.cli.program import ExitCode
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


@pytest.mark.parametrize("name", ["sequence_id", "lookup_id"])
@pytest.mark.parametrize("suffix", ["parquet", "ndjson"])
def test_numbers_that_have_lost_digits_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    """pandas makes floating-point numbers of a column of whole numbers with nulls."""
    path = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
        at = SCHEMA.get_field_index(name)
        parquet.write_table(table.set_column(at, name, table[name].cast(pa.float64())), path)
    else:
        path.write_text(json.dumps(ROWS[0] | {name: 1.8446744073709552e19}) + "\n")

    with pytest.raises(Unreadable, match=f"{name}.*, which lose digits; write whole numbers"):
        check(str(path))


def test_an_empty_message_id_is_wrong_usage(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(ROWS, schema=SCHEMA), tmp_path / "x.parquet")
    done = CliRunner().invoke(
        pipeline,
        ["run", "trace", "--input", str(tmp_path), "--output", str(tmp_path / "out"),
         "--engine", "embedded", "--message", ""],
    )  # fmt: skip
    assert done.exit_code == ExitCode.USAGE
    assert not (tmp_path / "out").exists()
