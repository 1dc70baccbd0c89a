"""The page of a trace: the fate of a message, on which hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report import plots
from pipeline.report.page import GOOD, UNSURE, Page, moment, table
from pipeline.report.shared import broken, left_out, mood_with

Frame = Any

#: Ends of a message that no application receives.
_BAD_ENDS = ("dead_lettered", "discarded", "expired", "refused", "lost", "damaged", "purged",
             "queue_deleted", "rejected", "unroutable", "unconfirmed")  # fmt: skip
_DRAWN_MAX = 40


def trace_page(tables: Mapping[str, Frame], message: str) -> str:
    page = Page(f"The history of {message}")
    events = tables["events"]
    if not len(events):
        page.verdict(
            UNSURE, "No event of it is known.", f"No log that was read names {message}.", [],
            left_out(tables),
        )  # fmt: skip
        broken(page, tables)
        return page.html("Made by qmd pipeline run trace,")
    mine = events[events.message_id == message.strip().lower()]
    mood, sentence, text, steps = _fate(mine if len(mine) else events)
    page.verdict(
        mood_with(mood, tables),
        sentence,
        f"{message}. {text}",
        [
            ("events", f"{len(events):,}"),
            ("messages", f"{events.message_id.nunique():,}"),
            ("hosts", f"{events.host.nunique():,}"),
        ],
        [*steps, *left_out(tables)],
    )
    shown = events.head(_DRAWN_MAX)
    page.section(
        "Route",
        "Steps from left to right, each at its host; a line for each message."
        + (f" The first {_DRAWN_MAX} events." if len(events) > _DRAWN_MAX else ""),
        plots.lanes(shown, set(_BAD_ENDS)),
    )
    rows = [
        (
            moment(row.at_ms, ms=True), row.host, row.kind.replace("_", " "), row.queue,
            row.to_queue, getattr(row, "message_class", "") or "", row.reason, row.message_id,
        )
        for row in events.rename(columns={"class": "message_class"}).itertuples()
    ]  # fmt: skip
    heads = ["time", "host", "what", "queue", "to", "class", "why", "message"]
    # Leave out empty columns, and the message id if there is only one.
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    if events.message_id.nunique() == 1:
        kept.remove(len(heads) - 1)
    page.section(
        "From the beginning", "Each time is by the clock of the host in the same line.",
        table(
            [heads[at] for at in kept],
            [tuple(row[at] for at in kept) for row in rows],
            code=["message"],
        ),
    )  # fmt: skip
    broken(page, tables)
    return page.html("Made by qmd pipeline run trace,")


def _fate(events: Frame) -> tuple[str, str, str, list[str]]:
    """Return mood, sentence, text and next steps for one message."""
    last = events.iloc[-1]
    kinds = set(events.kind)

    def latest(*names: str) -> Any:
        return events[events.kind.isin(names)].iloc[-1]

    sent = events[events.kind == "sent"]
    begun = moment(sent.iloc[0].at_ms) if len(sent) else ""
    since = f" It was sent at {sent.iloc[0].host}, {begun}." if begun else " No log records its"
    since += "" if begun else " sending: the log of its sender is missing."
    ended = [name for name in _BAD_ENDS if name in kinds]
    arrived = kinds & {"received", "confirmed"}
    if arrived and "received" in kinds:
        row = latest("received")
        sentence = f"It was received from {row.queue} at {row.host}, {moment(row.at_ms)}."
    elif arrived:
        row = latest("confirmed")
        sentence = f"An application has received it: {row.host} was notified, {moment(row.at_ms)}."
    elif ended:
        row = latest(*ended)
        sentence = f"It was {row.kind.replace('_', ' ')} at {row.host}, {moment(row.at_ms)}."
    else:
        sentence = (
            f"It waits, as far as is known: {last.kind.replace('_', ' ')} at {last.host},"
            f" {moment(last.at_ms)}."
        )
    steps = []
    if ended:
        row = latest(*ended)
        reasons = [reason for reason in events.reason if reason]
        text = (f"Because: {reasons[-1]}" if reasons else "The reason is below.") + since
        if arrived:
            text = f"It was also {row.kind.replace('_', ' ')} at {row.host}. {text}"
        elif "dead_lettered" in kinds and not kinds & {"requeued"}:
            row = latest("dead_lettered")
            steps.append(
                f"It is in {row.to_queue} at {row.host}: qmd pipeline run dead-letters gives the"
                " command that sends it again."
            )
        return UNSURE, sentence, text, steps
    if arrived:
        return GOOD, sentence, since.strip(), []
    if "accepted" in kinds:
        row = latest("accepted")
        steps.append(f"It was not received yet: which application reads {row.queue} at {row.host}?")
    elif kinds & {"order_acknowledged", "session_acknowledged"}:
        steps.append("The other computer has it, and its log is not among these files.")
    else:
        steps.append(f"It has not arrived: see `qmd outgoing` at {last.host}.")
    return UNSURE, sentence, "No log that was read contains its end." + since, steps
