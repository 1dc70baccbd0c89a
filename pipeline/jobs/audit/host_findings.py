"""Findings about hosts: clocks, and logs that are missing or incomplete."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pipeline.events import host_of_path
from pipeline.jobs.audit.coverage import END
from pipeline.jobs.audit.facts import RAW_BLOCK, epoch_of_block
from pipeline.jobs.audit.findings import FINDING_SCHEMA
from pipeline.jobs.audit.labels import Labels
from pipeline.jobs.audit.other_histories import OTHER_HISTORY
from pipeline.jobs.audit.other_runs import OTHER_COPY
from pipeline.jobs.audit.survey import Survey

Frame = Any

#: The details of hosts of which another history explains messages, by the reason.
_OTHERS = {
    OTHER_HISTORY: "Other logs show it at work when its own has nothing: a copy of its data was put"
    " back, or it lost its last commits. {count} messages cannot be decided without its log from"
    " then.",
    OTHER_COPY: "Other logs name a run of it that its own log does not have: it was cloned, or a"
    " copy of its data was put back. {count} messages cannot be decided without the log of that"
    " copy.",
}


def about_hosts(
    open_rows: Frame,
    found: Survey,
    labels: Labels,
    offsets: dict[int, float],
    wrong: dict[int, int],
) -> list[dict[str, Any]]:
    rows = []
    for host in sorted(wrong):
        text = f"It is {_span(offsets[host])} the clocks of the other hosts."
        if wrong[host]:
            text = f"It is {_span(offsets[host])} the clock of {labels.host(wrong[host])}; "
            text += "or that clock is wrong: there is no third host to compare."
        rows.append(labels.about("clock", host, text, None))
    for hole in found.holes.itertuples():
        between_epochs = epoch_of_block(hole.block_first) != epoch_of_block(hole.block_last)
        if hole.block_last != END and hole.at_first != -END and not between_epochs:
            first, last = hole.block_first & RAW_BLOCK, hole.block_last & RAW_BLOCK
            text = f"Blocks {first} to {last} of its log are missing."
            rows.append(labels.about("log_hole", hole.host, text, hole.at_first))
    rows += _with_other_histories(open_rows, labels)
    absent: dict[str, int] = {}
    for why in ("late_log", "no_log"):
        some = open_rows[(open_rows.why == why) & open_rows.covering.notna()]
        for host, part in some.groupby("covering"):
            if why == "late_log":
                text = f"{len(part)} messages cannot be decided until the rest of it is there."
                rows.append(labels.about("late_log", int(host), text, part.at_ms.min()))
        if why == "no_log":
            for row in some.itertuples():
                name = labels.absent(row)
                absent[name] = absent.get(name, 0) + 1
    streams = found.streams
    if len(streams):
        unknown = streams[(streams.sent_runs < 0) & ~streams.source.isin(list(found.hosts))]
        for source in unknown.source.unique():
            absent.setdefault(labels.host(int(source)), 0)
    for path, reason in sorted(found.unreadable.items()):
        rows.append(
            dict.fromkeys(FINDING_SCHEMA.names)
            | {"kind": "broken_file", "host": host_of_path(path), "detail": f"{path}: {reason}"}
        )
    for name, count in sorted(absent.items()):
        text = f"{count} messages cannot be decided without it." if count else "It sends messages."
        rows.append(
            dict.fromkeys(FINDING_SCHEMA.names) | {"kind": "no_log", "host": name, "detail": text}
        )
    return rows


def _with_other_histories(open_rows: Frame, labels: Labels) -> list[dict[str, Any]]:
    """Return a finding for each host of which another history may explain messages."""
    some = open_rows[open_rows.why.isin(list(_OTHERS))]
    return [
        labels.about("restored", int(host), _OTHERS[why].format(count=len(part)), part.at_ms.min())
        for (host, why), part in some.groupby(["covering", "why"])
    ]


def copies(hosts: Collection[int], open_rows: Frame, labels: Labels) -> list[dict[str, Any]]:
    """Return a finding for each host with the logs of two copies that no open message names."""
    named = open_rows.covering[open_rows.why == OTHER_COPY].tolist()
    text = "Two copies of it ran at one time, by its logs."
    return [labels.about("restored", host, text, None) for host in sorted({*hosts} - {*named})]


def _span(ms: float) -> str:
    size = abs(ms)
    if size < 1000:
        text = f"{size:.0f} ms"
    else:
        text = f"{size / 1000:.1f} s" if size < 120_000 else f"{size / 60_000:.1f} min"
    return f"{text} {'ahead of' if ms > 0 else 'behind'}"
