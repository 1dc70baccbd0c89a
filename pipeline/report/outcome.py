"""The output of a job: tables, then pages, then its state, published together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.jobs.audit.findings import FINDING_SCHEMA, KINDS, AuditResult
from pipeline.jobs.audit.state import State
from pipeline.report import plots
from pipeline.report.audit_page import SHORT, EarlierRun, audit_page
from pipeline.report.page import Page
from pipeline.results.runs import Draft

Frame = Any
PAGE = "report.html"
EARLIER_MAX = 14  # runs on the page


def write_tables(draft: Draft, tables: Mapping[str, Frame], page: Callable[[], str]) -> None:
    """Write a table for each of `tables`, and then the page; the caller publishes them."""
    for name, frame in tables.items():
        draft.put_table(name, pa.Table.from_pandas(frame, preserve_index=False))
    draft.put_page(PAGE, _drawn(page))


def write_audit(draft: Draft, result: AuditResult, state: State) -> dict[str, int]:
    """Publish findings, streams (added to those of earlier audits), the page and the state.

    A page that cannot be drawn does not stop an audit.  Return how many findings of each kind there
    are altogether.  Raises OSError and RunSuperseded; then nothing was published.
    """
    counts = _by_severity(result.counts or {})  # includes findings beyond the listed ones
    result.counts = counts
    result.streams = state.streams = streams = _all_streams(state.streams, result.streams)
    result.messages = int(streams.sent.sum()) if len(streams) else 0
    draft.put_table("findings", findings_table(result))
    draft.put_table("open", pa.Table.from_pandas(result.open, preserve_index=False))
    draft.put_table("streams", pa.Table.from_pandas(streams, preserve_index=False))
    earlier = [
        EarlierRun(
            each.at, each.files[PAGE], each.summary["findings"], int(each.summary.get("open", 0)),
            int(each.summary.get("messages", 0)),
        )
        for each in draft.earlier(EARLIER_MAX)
        if PAGE in each.files and "findings" in each.summary
    ]  # fmt: skip
    page = partial(audit_page, result, list(map(_drawn_timeline, result.timelines)), earlier)
    draft.put_page(PAGE, _drawn(page))
    state.save(draft)
    draft.summary |= {
        "findings": counts, "messages": result.messages, "events": result.events,
        "open": int(result.open.messages.sum()), "files": result.files,
    }  # fmt: skip
    draft.commit()
    return counts


def findings_table(result: AuditResult) -> Any:
    """Return the findings of an audit as an Arrow table."""
    rows = [
        {name: _plain(value) for name, value in row.items()}
        for row in result.findings.astype(object).to_dict("records")
    ]
    return pa.Table.from_pylist(rows, schema=FINDING_SCHEMA)


def _drawn(page: Callable[[], str]) -> str:
    """Return the page; a page with the error if it cannot be drawn: the tables are right."""
    try:
        return page()
    except Exception as error:  # of any type: the libraries that draw have their own
        print(f"the page could not be drawn: {error!r}; the tables are complete", file=sys.stderr)
        failed = Page("The page could not be drawn")
        failed.section("The tables are complete", f"The error was: {error!r}")
        return failed.html("Made by qmd pipeline run,")


def _drawn_timeline(picture: Any) -> str:
    """Return the timeline; an error in one must not remove the others, or the page."""
    try:
        return draw(picture)
    except Exception as error:  # as above
        print(f"a timeline could not be drawn: {error!r}", file=sys.stderr)
        return "<p>This timeline could not be drawn.</p>"


def _by_severity(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: int(counts[kind]) for kind in KINDS if counts.get(kind)}


def _all_streams(old: Frame | None, new: Frame) -> Frame:
    """Add the counts of earlier audits."""
    parts = [part for part in (new, old) if part is not None and len(part)]
    if not parts:
        return new
    # An empty table has no types, and would change those of the other.
    both = pd.concat(parts, ignore_index=True)
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
    frame = pd.DataFrame(
        {
            "number": [_number(row) for row in messages.itertuples()],
            "sent_at": [None if pd.isna(each) else float(each) for each in messages.sent_at],
            "accepted_at": [_times_of_storage(row) for row in messages.itertuples()],
            "ended_at": [None if pd.isna(each) else float(each) for each in messages.ended_at],
            "is_bad": [bool(each) for each in messages.is_bad],
        }
    )
    name = SHORT.get(picture.kind, picture.kind).capitalize()
    note = " (the square: its dead letter)" if picture.kind == "delivered_and_dead" else ""
    wrong = set(frame.number[frame.is_bad])
    message = f"message {wrong.pop()}" if len(wrong) == 1 else f"number {_low(picture.key)}"
    return plots.timeline(frame, f"{name}{note}: {message}", picture.from_host, picture.to_host)


def _number(row: Any) -> int:
    """Return the number of the message's id, by which `qmd why` finds it."""
    return _low(row.key) if pd.isna(row.number) else int(row.number)


def _low(key: int) -> int:
    return int(key) & 0xFFFF_FFFF


def _times_of_storage(row: Any) -> list[int]:
    """Return the first and the last time, ms; the same twice if copies came within one."""
    times = [int(each) for each in (row.accepted_at, row.accepted_at_last) if pd.notna(each)]
    return times if pd.notna(row.accepted) and row.accepted > 1 else times[:1]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, Decimal | str):
        return value
    return int(value)
