"""The output of a job: tables as Parquet files, and report.html, each written atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipeline.jobs.audit.findings import FINDING_SCHEMA, AuditResult
from pipeline.jobs.audit.state import State
from pipeline.report import plots
from pipeline.report.audit_page import audit_page

Frame = Any


def write_tables(folder: Path, tables: Mapping[str, Frame], page: str) -> None:
    """Write `folder`/NAME.parquet for each table, and then report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    _put(
        {
            folder / f"{name}.parquet": _table(pa.Table.from_pandas(frame, preserve_index=False))
            for name, frame in tables.items()
        }
        | {folder / "report.html": _text(page)}
    )


def write_audit(folder: Path, result: AuditResult, state: State) -> dict[str, int]:
    """Write the findings, which are complete, and the streams, added to those of earlier audits.

    The state is written last: an interrupted audit is repeated, and then replaces the files that it
    had written.  Return how many findings of each kind there are altogether.
    """
    folder.mkdir(parents=True, exist_ok=True)
    findings = result.findings
    counts = dict(result.counts or {})  # includes findings beyond the listed ones
    result.streams = state.streams = streams = _all_streams(state.streams, result.streams)
    result.messages = int(streams.sent.sum()) if len(streams) else 0
    rows = [
        {name: _plain(value) for name, value in row.items()}
        for row in findings.astype(object).to_dict("records")
    ]
    drawn = [draw(picture) for picture in result.timelines]
    tables = {
        folder / "findings.parquet": pa.Table.from_pylist(rows, schema=FINDING_SCHEMA),
        folder / "open.parquet": pa.Table.from_pandas(result.open, preserve_index=False),
        folder / "streams.parquet": pa.Table.from_pandas(streams, preserve_index=False),
    }
    _put(
        {name: _table(table) for name, table in tables.items()}
        | {folder / "report.html": _text(audit_page(result, drawn))}
    )
    state.save(folder / "state")
    return counts


def _all_streams(old: Frame | None, new: Frame) -> Frame:
    """Add the counts of earlier audits."""
    if old is None:
        return new
    both = pd.concat([new, old], ignore_index=True)
    return both.groupby(["source", "stream"], as_index=False, sort=False).agg(
        from_host=("from_host", "first"),
        to_host=("to_host", "first"),
        queue=("queue", "first"),
        sent=("sent", "sum"),
        accepted=("accepted", "sum"),
        mean_ms=("mean_ms", "first"),
        open=("open", "first"),
    )


def draw(picture: Any) -> str:
    """Return the timeline of a finding, as SVG."""
    messages = picture.messages
    times = [
        sorted({int(each) for each in (row.accepted_at, row.accepted_at_last) if pd.notna(each)})
        for row in messages.itertuples()
    ]
    frame = pd.DataFrame(
        {
            "key": messages.key.astype("int64").to_list(),
            "sent_at": [None if pd.isna(each) else float(each) for each in messages.sent_at],
            "accepted_at": times,
            "ended_at": [None if pd.isna(each) else float(each) for each in messages.ended_at],
            "is_bad": [bool(each) for each in messages.is_bad],
        }
    )
    titles = {
        "acked_not_stored": "Acknowledged, and never stored",
        "lost": "Lost: later messages were stored, this one was not",
        "duplicated": "Stored twice",
        "reordered": "Stored after a later one",
        "delivered_and_dead": "Stored, and a dead letter of its sender (the square)",
        "wrong_number": "Stored under another number",
        "number_reused": "One number, two messages",
        "never_sent": "Stored, and never sent",
        "gap": "A number is missing after these",
    }
    title = f"{titles.get(picture.kind, picture.kind)}: number {picture.key & 0xFFFF_FFFF}"
    return plots.timeline(frame, title, picture.from_host, picture.to_host)


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, Decimal | str):
        return value
    return int(value)


def _table(table: Any) -> Callable[[Path], Any]:
    return lambda path: parquet.write_table(table, path, compression="zstd")


def _text(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _put(files: Mapping[Path, Callable[[Path], Any]]) -> None:
    """Write all files under other names first: on a full disk the old files stay."""
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in files}
    try:
        for path, write in files.items():
            write(parts[path])
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
