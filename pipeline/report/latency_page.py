"""The page of latency: slow routes, and when they are slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report import plots
from pipeline.report.page import GOOD, UNSURE, Page, table
from pipeline.report.shared import broken, left_out, mood_with, recent

Frame = Any

_SLOW_MS = 60_000.0
_CLOCK_MS = 1000.0


def latency_page(tables: Mapping[str, Frame]) -> str:
    page = Page("How long messages take")
    _add_verdict(page, tables)
    _add_slow_routes(page, tables.get("route_hours"))
    _add_hours(page, tables["by_hour"])
    _add_routes(page, tables["by_route"])
    _add_queues(page, tables.get("by_queue"))
    _add_clocks(page, tables["clocks"])
    broken(page, tables)
    return page.html("Made by qmd pipeline run latency,")


def _add_verdict(page: Page, tables: Mapping[str, Frame]) -> None:
    routes, clocks = tables["by_route"], tables["clocks"]
    known = routes.dropna(subset=["accepted_p95_ms"])
    if len(known):
        slow = known.iloc[0]
        middle = float(known.accepted_p50_ms.median())
        count = int((known.accepted_p95_ms >= _SLOW_MS).sum())
        if count:
            sentence = (
                f"{count:,} of {len(known):,} routes {'is' if count == 1 else 'are'} slow; the"
                f" slowest is {slow.from_host} to {slow.to_host}."
            )
        else:
            sentence = (
                f"No route is slow: 95 of 100 messages of each arrive within {_ms(_SLOW_MS)}."
            )
        page.verdict(
            UNSURE if count else mood_with(GOOD, tables),
            sentence,
            f"On half of the routes half of the messages are stored within {_ms(middle)}. From"
            f" {slow.from_host} to {slow.to_host} one message of twenty takes longer than"
            f" {_ms(slow.accepted_p95_ms)}.",
            [
                ("messages", f"{int(routes.messages.sum()):,}"),
                ("routes", f"{len(routes):,}"),
                ("slow routes", f"{count:,}"),
                ("stored before they were sent", f"{int(routes.before_sent.sum()):,}"),
            ],
            [*_slow_steps(known, count), *_clock_steps(clocks), *left_out(tables)],
        )
    else:
        page.verdict(UNSURE, "No message is known at both ends.", "Check for both logs.", [],
                     left_out(tables))  # fmt: skip


def _add_slow_routes(page: Page, cells: Frame | None) -> None:
    if cells is not None and len(cells):
        cells, note = recent(cells)
        cells = cells.assign(
            route=cells.from_host + " → " + cells.to_host,
            slow=cells.groupby(["from_host", "to_host"]).accepted_p95_ms.transform("max"),
        ).sort_values(["slow", "route"], ascending=[False, True])
        page.section(
            "The slowest routes, hour by hour",
            "From sending to storing: 95 of 100 messages take less. Darker is slower." + note,
            plots.heat_map(cells, "route", "hour", "accepted_p95_ms", "95 of 100 stay below", _ms),
        )


def _add_hours(page: Page, hours: Frame) -> None:
    hours, note = recent(hours)
    if hours.accepted_p50_ms.notna().any():
        page.section(
            "All messages, hour by hour",
            "From sending to storing: half, 95 and 99 of 100 messages take less." + note,
            plots.lines(
                hours, "hour",
                {"accepted_p50_ms": "half", "accepted_p95_ms": "95 of 100",
                 "accepted_p99_ms": "99 of 100"},
                "stored after",
                value_text=_ms if bool((hours.accepted_p50_ms.fillna(1) > 0).all()) else None,
            ),
        )  # fmt: skip


def _add_routes(page: Page, routes: Frame) -> None:
    columns = [f"accepted_p{point}_ms" for point in (50, 95, 99)]
    columns += ["acked_p95_ms", "received_p95_ms"]
    heads = ["stored: half", "95 %", "99 %", "acknowledged: 95 %", "received: 95 %"]
    page.section(
        "Routes, the slowest first",
        "Time since the message was sent and on its sender's disk. If the destination has no log,"
        " only the acknowledgment is known.",
        table(
            ["from", "to", "messages", *heads],
            [
                (
                    row.from_host,
                    row.to_host or "(no log of it)",
                    int(row.messages),
                    *(_took(row, name) for name in columns),
                )
                for row in routes.itertuples()
            ],
            numbers=heads,
            first=40,
        ),
    )


def _add_queues(page: Page, queues: Frame | None) -> None:
    if queues is not None and len(queues):
        page.section(
            "Queues, the slowest first",
            "Time from sending until an application has received the message.",
            table(
                ["at", "queue", "messages", "received: half", "95 %", "99 %"],
                [
                    (
                        row.to_host or "(no log of it)", row.queue, int(row.messages),
                        *(_took(row, f"received_p{point}_ms") for point in (50, 95, 99)),
                    )
                    for row in queues.itertuples()
                ],
                numbers=["received: half", "95 %", "99 %"],
                first=25,
            ),
        )  # fmt: skip


def _add_clocks(page: Page, clocks: Frame) -> None:
    if len(clocks):
        page.section(
            "Clocks",
            "By how much each host's clock is ahead of the median, on the last known day."
            " The times above are corrected by it, for each day separately.",
            table(
                ["host", "ahead by, ms", "least", "most"],
                [
                    (row.host, float(row.offset_ms), float(row.least_ms), float(row.most_ms))
                    for row in clocks.itertuples()
                ],
                first=12,
            ),
        )


def _slow_steps(routes: Frame, count: int) -> list[str]:
    if not count:
        return []
    slow = routes[routes.accepted_p95_ms >= _SLOW_MS]
    ends = slow.groupby("to_host").size().sort_values(ascending=False)
    if len(ends) and ends.iloc[0] > 1:
        return [f"{int(ends.iloc[0]):,} of them end at {ends.index[0]}: check first that it"
                " runs, and that the network reaches it."]  # fmt: skip
    first = slow.iloc[0]
    return [f"First check {first.to_host}, and the network on the way to it (qmd connections)."]


def _clock_steps(clocks: Frame) -> list[str]:
    if not len(clocks):
        return []
    wrong = clocks[clocks.offset_ms.abs() >= _CLOCK_MS]
    if not len(wrong):
        return []
    names = ", ".join(wrong.host.head(5)) + (" and others" if len(wrong) > 5 else "")
    return [f"Set the clocks of {names} (NTP): they differ by more than a second."]


def _ms(value: float) -> str:
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 120_000 else f"{value / 60_000:.1f} min"


def _took(row: Any, name: str) -> str:
    value = getattr(row, name)
    return "" if value is None or value != value else _ms(float(value))
