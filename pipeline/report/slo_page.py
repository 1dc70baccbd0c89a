"""The page of service level objectives: which are met, and how much of each budget is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report import plots
from pipeline.report.counted import counted
from pipeline.report.page import BAD, GOOD, UNSURE, Page, table
from pipeline.report.shared import broken, left_out, mood_with

Frame = Any

_NEARLY = 80.0  # percent of the budget


def slo_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Service level objectives")
    found, days = tables["objectives"], tables["by_day"]
    _add_verdict(page, found, tables)
    page.section(
        "Objectives",
        "Budget: the share of the permitted late messages that is used. Pace: 1.0 uses it up"
        " exactly within the days of the objective, by the messages of its last day.",
        table(
            ["objective", "state", "in time", "target", "messages", "late", "undecided",
             "budget used", "pace", "slowest"],
            [_row(each) for each in found.sort_values("budget_used_percent", ascending=False,
                                                      na_position="last").itertuples()],
            numbers=["in time", "target", "budget used", "pace", "slowest"],
        ),
    )  # fmt: skip
    if len(days):
        _add_days(page, days)
    broken(page, tables)
    return page.html("Made by qmd pipeline run slo,")


def _add_verdict(page: Page, found: Frame, tables: Mapping[str, Frame]) -> None:
    measured = found[found.messages > 0]
    missed = measured[~measured.is_met.astype(bool)]
    near = measured[measured.is_met.astype(bool) & (measured.budget_used_percent >= _NEARLY)]
    steps = [
        f"{row.objective}: {row.late:,} of {counted(row.messages, 'message was', 'messages were')}"
        " late."
        " `qmd pipeline run latency` shows the stage and the route that take the time."
        for row in missed.itertuples()
    ]
    steps += [
        f"{row.objective}: {row.budget_used_percent:.0f} % of its budget is used."
        for row in near.itertuples()
    ]
    steps += [
        f"{row.objective}: messages that are dated after tomorrow are not counted:"
        f" {row.after_tomorrow:,}. `qmd pipeline run audit` names wrong clocks."
        for row in found[found.after_tomorrow > 0].itertuples()
    ]
    if len(missed):
        mood = BAD
        sentence = f"{len(missed)} of {len(found)} objectives are missed."
        text = "They are listed first."
    elif not len(measured):
        mood, sentence = UNSURE, "No message counts for any objective yet."
        text = "Check the names of hosts and queues in the file of objectives."
    else:
        mood = UNSURE if len(near) else mood_with(GOOD, tables)
        sentence = "Every objective is met." if len(found) > 1 else "The objective is met."
        text = "A message counts on the day on which it was sent."
    page.verdict(
        mood,
        sentence,
        text,
        [
            ("objectives", f"{len(found):,}"),
            ("missed", f"{len(missed):,}"),
            ("messages", f"{int(found.messages.sum()):,}"),
            ("late", f"{int(found.late.sum()):,}"),
            ("undecided", f"{int(found.undecided.sum()):,}"),
        ],
        [*steps, *left_out(tables)],
    )


def _row(row: Any) -> tuple[Any, ...]:
    if not row.messages:
        nothing = ("", f"{row.target_percent:g} %", 0, 0, int(row.undecided), "", "", "")
        return (row.objective, "no message", *nothing)
    return (
        row.objective,
        "met" if row.is_met else "MISSED",
        f"{row.percent:.3f} %",
        f"{row.target_percent:g} %",
        int(row.messages),
        int(row.late),
        int(row.undecided),
        f"{row.budget_used_percent:.0f} %",
        "" if pd.isna(row.burn_rate) else f"{row.burn_rate:.1f}",
        f"{row.slowest_ms / 1000:.1f} s",
    )


def _add_days(page: Page, days: Frame) -> None:
    names = list(dict.fromkeys(days.objective))[: plots.KINDS_MAX]
    wide = days.pivot_table(index="day", columns="objective", values="percent")
    wide = wide[[name for name in names if name in wide]].reset_index()
    wide["day"] = pd.to_datetime(wide.day)
    if len(wide) > 1:
        page.section(
            "Day by day", "The share of messages in time, in percent.",
            plots.lines(wide, "day", {name: name for name in names}, "percent in time"),
        )  # fmt: skip
    worst = days[days.late > 0].sort_values(["day", "objective"], ascending=[False, True])
    if len(worst):
        page.section(
            "Days with late messages", "The newest first.",
            table(
                ["day", "objective", "in time", "late", "percent"],
                [(str(row.day), row.objective, int(row.in_time), int(row.late),
                  f"{row.percent:.3f} %") for row in worst.itertuples()],
                numbers=["percent"],
                first=25,
            ),
        )  # fmt: skip
