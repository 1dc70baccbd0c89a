"""Parts of large files: a row group of any size is read in parts, and no row is lost or moved."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.events import UNIT_ROWS, read_piece
from qmd.cli.event_files import arrow_schema

ROWS = 2 * UNIT_ROWS + 12_345
COLUMNS = ("host", "block", "kind", "message_id", "queue", "reason")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a log in two row groups, of which the first is larger than a part."""
    number = np.arange(ROWS)
    of = {
        "schema": np.ones(ROWS, np.int64), "block": number + 1, "index": np.zeros(ROWS, np.int64),
        "at_ms": number, "time": number, "lookup_id": number, "bytes": number % 700,
        # More texts than the dictionary of a column in a file holds.
        "reason": pa.array([f"{n * 7919 % ROWS} is a reason" for n in range(ROWS)]),
        "message_id": pa.array([f"{n}" for n in range(ROWS)]),
        "queue": pa.array([f"queue {n // 50_000}" for n in range(ROWS)]),
        "kind": pa.array(["sent", "accepted", "received"] * (ROWS // 3 + 1))[:ROWS],
    }  # fmt: skip
    columns = [
        pa.array(of[field.name]).cast(field.type) if field.name in of
        else pa.nulls(ROWS, field.type) if field.type != pa.string()
        else pa.array([""] * ROWS)
        for field in arrow_schema()
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("pieces") / "events.parquet"
    table = pa.Table.from_arrays(columns, schema=arrow_schema())
    parquet.write_table(table, path, row_group_size=ROWS - 1000, compression="zstd")
    assert parquet.ParquetFile(path).metadata.num_row_groups == 2
    return str(path)


def rows(tables: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for table in tables:
        for name in COLUMNS:
            found[name] += table.column(name).to_pylist()
    return found


@pytest.mark.parametrize("kept", ["all", "some", "all with a probe", "none"])
def test_a_large_row_group_is_read_in_parts(path: str, kept: str) -> None:
    def choose(table: Any) -> Any:
        block = table.column("block").to_numpy()
        if kept == "all with a probe":
            return np.ones(len(block), bool)
        return (block % 7 == 0) & (block > UNIT_ROWS // 2) & (kept != "none")

    probe = ("kind", "block")
    tables = list(
        read_piece((path, 0, -1), COLUMNS) if kept == "all"
        else read_piece((path, 0, -1), COLUMNS, probe, choose)
    )  # fmt: skip

    whole = parquet.read_table(path, columns=list(COLUMNS))
    chosen = np.ones(ROWS, bool) if kept == "all" else choose(whole)
    wanted = whole.filter(pa.array(chosen))
    assert all(len(table) <= UNIT_ROWS for table in tables)
    assert rows(tables) == {name: wanted.column(name).to_pylist() for name in COLUMNS}
