"""The common part of the jobs' pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.jobs.incremental.believed import last_day
from pipeline.jobs.incremental.known_events import DAY_MS
from pipeline.report.page import GOOD, UNSURE, Page, table

Frame = Any

_BROKEN_REMEDY = "Export or copy them again, and run the job again."


def mood_with(mood: str, tables: Mapping[str, Frame]) -> str:
    """Return the mood, but never GOOD if files could not be read."""
    return UNSURE if mood == GOOD and len(tables.get("broken_files", ())) else mood


def left_out(tables: Mapping[str, Frame]) -> list[str]:
    broken = tables.get("broken_files", ())
    if not len(broken):
        return []
    hosts = sorted({row.host for row in broken.itertuples() if row.host})
    some = (
        f" of {', '.join(hosts[:5])}" + (" and others" if len(hosts) > 5 else "") if hosts else ""
    )
    files = f"{len(broken)} files" if len(broken) > 1 else "One file"
    return [f"{files}{some} could not be read and are not included. {_BROKEN_REMEDY}"]


def broken(page: Page, tables: Mapping[str, Frame]) -> None:
    broken = tables.get("broken_files")
    if broken is None or not len(broken):
        return
    page.section(
        "Files that could not be read",
        f"They are left out. {_BROKEN_REMEDY}",
        table(
            ["host", "file", "because"],
            [(row.host, row.file, row.reason) for row in broken.itertuples()],
            code=["file"],
            first=25,
        ),
    )


#: The largest number of days that a picture shows by the hour.
_HOURLY_DAYS = 14


def real(hours: Frame) -> tuple[Frame, str]:
    """Return the hours until tomorrow, and a note about later ones: a wrong clock gives these."""
    times_ms = hours.hour.to_numpy("datetime64[ms]").astype("int64")
    is_real = times_ms // DAY_MS <= last_day(times_ms)
    return hours[is_real], "" if is_real.all() else " Times after tomorrow are omitted."


def recent(hours: Frame) -> tuple[Frame, str]:
    """Return the last days, and a note about the omitted ones."""
    hours, note = real(hours)
    if not len(hours):
        return hours, note
    since = hours.hour.max().floor("D") - pd.Timedelta(days=_HOURLY_DAYS - 1)
    if hours.hour.min() >= since:
        return hours, note
    return (
        hours[hours.hour >= since],
        f" The last {_HOURLY_DAYS} days; all are in the tables beside this page.{note}",
    )
