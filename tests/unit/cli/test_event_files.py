"""Files of events: complete or absent; Parquet where pyarrow is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qmd.cli.event_files import FIELDS, open_writer

EVENT: dict[str, Any] = {
    "schema": 1,
    "host": "hosta",
    "queue_manager": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    "cursor": "17.2",
    "block": 17,
    "index": 2,
    "time": "2026-01-31T12:00:00.250Z",
    "at_ms": 1769860800250,
    "kind": "sent",
    "message_id": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\\5",
    "queue": "orders",
    "peer": "",
    "lookup_id": 105553116266497,
    "sequence_id": (1 << 64) - 1,
    "sequence_number": 7,
    "class": "ack_reach_queue",
    "delivery": "recoverable",
    "bytes": 300,
    "reason": "",
    "to_queue": "",
    "transaction": "",
    "label": "order",
    "correlation_id": "",
}
BARE = EVENT | {"lookup_id": None, "sequence_id": None, "sequence_number": None, "class": None}


def test_the_fields_are_those_of_an_event() -> None:
    assert [name for name, _, _ in FIELDS] == list(EVENT)
    assert {name for name, _, nullable in FIELDS if nullable} == {
        name for name, value in BARE.items() if value is None
    }


def test_a_file_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text("what was there")

    with pytest.raises(KeyError), open_writer(path, "ndjson") as writer:
        writer.write([EVENT, EVENT["the daemon went away"]])
    assert path.read_text() == "what was there"

    with open_writer(path, "ndjson") as writer:
        writer.write([EVENT])
        writer.write([BARE])
    assert list(map(json.loads, path.read_text().splitlines())) == [EVENT, BARE]
    assert list(tmp_path.iterdir()) == [path]


def test_parquet_keeps_every_field(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "events.parquet"

    with open_writer(path, "parquet") as writer:
        writer.write([EVENT])
        writer.write([])
        writer.write([BARE])

    table = parquet.read_table(path)
    assert table.column_names == list(EVENT)
    for row, event in zip(table.to_pylist(), (EVENT, BARE), strict=True):
        assert row["time"].isoformat() == "2026-01-31T12:00:00.250000+00:00"
        assert row["sequence_id"] == event["sequence_id"]
        assert {**row, "time": event["time"]} == event


def test_a_parquet_file_without_events_has_its_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "events.parquet"

    with open_writer(path, "parquet"):
        pass

    assert parquet.read_table(path).column_names == list(EVENT)
