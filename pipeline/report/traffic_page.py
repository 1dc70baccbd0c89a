"""The page of traffic and capacity: backlogs, their growth, and when a quota is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report import plots
from pipeline.report.counted import counted
from pipeline.report.page import GOOD, UNSURE, Page, size_text, table
from pipeline.report.shared import broken, left_out, mood_with, recent

Frame = Any

_OLD_HOURS = 24.0


def traffic_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Traffic and capacity")
    hours, queues = tables["by_hour"], tables["queues"]
    _add_verdict(page, tables)
    _add_hours(page, hours)
    if len(queues):
        _add_queues(page, queues)
        _add_hosts(page, hours)
    broken(page, tables)
    return page.html("Made by qmd pipeline run traffic,")


def _add_verdict(page: Page, tables: Mapping[str, Frame]) -> None:
    hours, queues = tables["by_hour"], tables["queues"]
    full = queues[queues.full_on.notna()].sort_values("full_on") if len(queues) else queues
    waiting = int(queues.messages.sum()) if len(queues) else 0
    old = queues[queues.backlog_hours >= _OLD_HOURS] if len(queues) else queues
    steps = []
    if len(full):
        first = full.iloc[0]
        day = str(first.full_on)
        many = f" {len(full) - 1:,} more fill up." if len(full) > 1 else ""
        sentence = f"{first.queue} at {first.host} is full on {day}, if its growth continues."
        text = f"It holds {size_text(first.bytes)} and grows by"
        text += f" {size_text(first.growth_bytes_a_day)} a day.{many}"
        steps.append(
            f"Check the receivers of {first.queue} at {first.host}, or raise its quota (qmd queue)."
        )
    elif waiting:
        sentence = f"{counted(waiting, 'message waits', 'messages wait')}, and no queue fills up."
        text = "The forecast is a straight line through the last two weeks."
    else:
        sentence, text = "Nothing waits.", "Every queue is empty when the logs end."
    if len(old):
        oldest = old.sort_values("backlog_hours", ascending=False).iloc[0]
        steps.append(
            f"{counted(len(old), 'queue has', 'queues have')} not been empty for a day or more; the"
            f" longest, {oldest.queue} at {oldest.host}, for {_hours_text(oldest.backlog_hours)}."
        )
    page.verdict(
        UNSURE if len(full) or len(old) else mood_with(GOOD, tables),
        sentence,
        text,
        [
            ("sent", f"{int(hours.sent.sum()):,}"),
            ("stored elsewhere", f"{int(hours.accepted.sum()):,}"),
            ("received", f"{int(hours.received.sum()):,}"),
            ("bytes sent", size_text(float(hours.sent_bytes.sum()))),
            ("waiting", f"{waiting:,}"),
        ],
        [*steps, *left_out(tables)],
    )


def _add_hours(page: Page, hours: Frame) -> None:
    if len(hours):
        together = hours.groupby("hour", as_index=False)[["sent", "accepted", "received"]].sum()
        together, note = recent(together)
        page.section(
            "Messages an hour", "Of all hosts." + note,
            plots.lines(
                together, "hour",
                {"sent": "sent", "accepted": "stored elsewhere", "received": "received"},
                "messages an hour",
            ),
        )  # fmt: skip


def _add_queues(page: Page, queues: Frame) -> None:
    ordered = queues.sort_values(["full_on", "bytes"], ascending=[True, False], na_position="last")
    busy = ordered[(ordered.messages > 0) | ordered.full_on.notna()]
    if len(busy):
        page.section(
            "Waiting messages", "Queues that fill up first, then those that hold the most.",
            _queue_table(busy, first=40),
        )  # fmt: skip
    empty = ordered.drop(busy.index)
    if len(empty):
        page.section(
            "Empty queues", "They are empty when the log of their host ends.",
            _queue_table(empty.sort_values("came", ascending=False), first=12),
        )  # fmt: skip


def _add_hosts(page: Page, hours: Frame) -> None:
    ways = hours.groupby("host", as_index=False)[
        ["sent", "accepted", "received", "sent_bytes", "accepted_bytes"]
    ].sum()
    ways = ways.sort_values("sent", ascending=False)
    page.section(
        "Hosts", "The host that sends the most first.",
        table(
            ["host", "sent", "bytes sent", "stored from elsewhere", "bytes stored", "received"],
            [
                (row.host, int(row.sent), size_text(float(row.sent_bytes)), int(row.accepted),
                 size_text(float(row.accepted_bytes)), int(row.received))
                for row in ways.itertuples()
            ],
            numbers=["bytes sent", "bytes stored"],
            first=25,
        ),
    )  # fmt: skip


def _hours_text(hours: float) -> str:
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"


def _queue_table(queues: Frame, *, first: int) -> str:
    heads = ["host", "queue", "waiting", "bytes", "not empty for", "most", "came", "left"]
    heads += ["growth a day", "full on"]
    rows = [
        (
            row.host, row.queue, int(row.messages), size_text(row.bytes) if row.bytes else "",
            _hours_text(row.backlog_hours) if row.messages else "", int(row.most_messages),
            int(row.came), int(row.gone),
            size_text(row.growth_bytes_a_day) if abs(row.growth_bytes_a_day) >= 1 else "",
            row.full_on or "",
        )
        for row in queues.itertuples()
    ]  # fmt: skip
    kept = [at for at in range(len(heads)) if any(row[at] not in ("", 0) for row in rows)]
    return table(
        [heads[at] for at in kept],
        [tuple(row[at] for at in kept) for row in rows],
        numbers=["bytes", "not empty for", "growth a day"],
        first=first,
    )
