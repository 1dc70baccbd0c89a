"""The page of dead letters: which wait, why, and the command that requeues them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report import plots
from pipeline.report.counted import counted
from pipeline.report.page import GOOD, UNSURE, Page, moment, table
from pipeline.report.shared import broken, left_out, mood_with, real, recent

Frame = Any


def dead_letters_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Dead letters")
    groups, hours = tables["groups"], tables["by_hour"]
    total = int(groups.messages.sum()) if len(groups) else 0
    if not total:
        page.verdict(mood_with(GOOD, tables), "No message died.", "", [], left_out(tables))
        broken(page, tables)
        return page.html("Made by qmd pipeline run dead-letters,")
    _add_verdict(page, tables, total)
    hours, note = real(hours)
    many = len(recent(hours)[0]) < len(hours)
    page.section(
        "When they died", f"{'Day by day' if many else 'Hour by hour'}, by class.{note}",
        plots.stacked(
            hours.assign(hour=hours.hour.dt.floor("D")) if many else hours,
            "hour", "message_class", "messages", "messages",
        ),
    )  # fmt: skip
    still = groups[groups.waiting > 0]
    if len(still):
        page.section(
            "Remedies",
            "The largest group first. Run the command on the host in the same line; add --dry-run"
            " to preview it.",
            _group_table(still, with_command=True),
        )
    rest = groups[groups.waiting == 0]
    if len(rest):
        page.section(
            "Nothing left to do",
            "Sent again, received from the dead-letter queue, or ended there; or the sender asked"
            " for no dead letter, and none was kept.",
            _group_table(rest, with_command=False),
        )
    broken(page, tables)
    return page.html("Made by qmd pipeline run dead-letters,")


def _add_verdict(page: Page, tables: Mapping[str, Frame], total: int) -> None:
    groups = tables["groups"]
    waiting = int(groups.waiting.sum())
    gone = int(groups[groups.to_queue == ""].messages.sum())
    left = {name: int(groups[name].sum()) for name in ("requeued", "received", "ended")}
    figures = [
        ("died", f"{total:,}"),
        ("wait", f"{waiting:,}"),
        ("sent again", f"{left['requeued']:,}"),
        ("received from there", f"{left['received']:,}"),
        ("ended there", f"{left['ended']:,}"),
        ("not kept", f"{gone:,}"),
    ]
    died = counted(total, "message") + " died"
    if waiting:
        worst = groups.iloc[0]
        hosts = groups[groups.waiting > 0].host.nunique()
        page.verdict(
            UNSURE,
            f"{waiting:,} dead letters wait at {hosts:,} hosts; the most, {int(worst.waiting):,},"
            f" at {worst.host}."
            if hosts > 1
            else f"{counted(waiting, 'dead letter waits', 'dead letters wait')} at {worst.host}.",
            f"The largest group: {worst.message_class or 'no class'}, on their way to"
            f" {worst.queue}. {worst.reason or ''}",
            figures,
            [
                f"When the cause is repaired, on {worst.host}: {worst.command} --dry-run",
                *left_out(tables),
            ],
        )
    else:
        page.verdict(
            mood_with(GOOD, tables),
            "No dead letter waits.",
            f"{died}; all dead letters have left their queues."
            if gone < total
            else f"{died}, and no dead letter was asked for.",
            figures,
            left_out(tables),
        )


def _group_table(groups: Frame, *, with_command: bool) -> str:
    counts = ["wait"] if with_command else []
    counts += ["died", "sent again", "received"]
    under = ["why", *(["command"] if with_command else []), "examples"]
    rows = []
    for row in groups.itertuples():
        cells: list[Any] = [row.host, row.message_class or "", row.queue, row.label or ""]
        cells += [int(row.waiting)] if with_command else []
        cells += [int(row.messages), int(row.requeued), int(row.received), moment(row.last_ms)]
        cells += [row.reason, *([row.command] if with_command else []), row.examples]
        rows.append(tuple(cells))
    return table(
        ["host", "class", "destination", "label", *counts, "last", *under],
        rows,
        code=["command", "examples"],
        below=under,
        first=40 if with_command else 12,
    )
