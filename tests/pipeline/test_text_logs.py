"""Event logs as text, as other programs store them: compressed, with a byte order mark."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.events import Unreadable, check, find_files, read_piece
from pipeline.jobs.incremental.new_events import readable_boxes
from tests.pipeline.foreign_fleet import MIDNIGHT

EVENTS = [
    {
        "schema": 1, "host": "alpha", "queue_manager": "a", "block": block, "index": 0,
        "at_ms": MIDNIGHT, "kind": "started", "message_id": "", "queue": "",
    }
    for block in range(1, 500)
]  # fmt: skip
TEXT = "\r\n".join([*map(json.dumps, EVENTS), ""]).encode("utf-8-sig")

Pack = Callable[[bytes], bytes]


def blocks(path: Path) -> list[int]:
    [file] = find_files([str(path.parent)])
    tables = read_piece((file.path, 0, -1), ("block",))
    return [block for table in tables for block in table.column("block").to_pylist()]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.ndjson", bytes),
        ("a.ndjson.gz", gzip.compress),
        ("a.jsonl.bz2", bz2.compress),
        ("a.json.xz", lzma.compress),
    ],
)
def test_a_text_is_read_as_it_is_stored(tmp_path: Path, name: str, pack: Pack) -> None:
    path = tmp_path / name
    path.write_bytes(pack(TEXT))
    assert blocks(path) == [event["block"] for event in EVENTS]


@pytest.mark.parametrize("cut", [lambda all_: all_[:-9], lambda all_: all_[:40] + all_[60:]])
@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.ndjson.gz", gzip.compress), ("a.jsonl.bz2", bz2.compress), ("a.json.xz", lzma.compress)],
)
def test_a_damaged_packed_file_is_set_aside(
    tmp_path: Path, name: str, pack: Pack, cut: Pack
) -> None:
    path = tmp_path / name
    path.write_bytes(cut(pack(TEXT)))
    with pytest.raises(Unreadable):
        blocks(path)
    with pytest.raises(Unreadable):
        check(str(path))
    assert readable_boxes((str(path), 0, -1)) == []
