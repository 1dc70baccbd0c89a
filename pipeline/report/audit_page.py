"""The page of the audit: was anything lost, where, and how to react."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from pipeline.jobs.audit.findings import ABOUT_HOSTS, INCOMPLETE, KINDS, AuditResult
from pipeline.report import plots
from pipeline.report.counted import counted
from pipeline.report.page import BAD, GOOD, UNSURE, Page, link, moment, table
from pipeline.report.page_filters import Filter, filtered_table

Frame = Any

_LOST = ("acked_not_stored", "lost", "vanished", "rolled_back")
_PARTS_MISSING = (
    "The parts that are missing, or cannot be read, are listed below: they may hold more."
)
_TWICE = ("duplicated", "ended_twice")
#: The name of each kind, on every page and picture.
SHORT = {
    "acked_not_stored": "acknowledged and not stored",
    "lost": "lost on the way",
    "vanished": "vanished from a queue",
    "rolled_back": "lost with a restored backup",
    "duplicated": "stored twice",
    "ended_twice": "received or ended twice",
    "delivered_and_dead": "delivered and dead-lettered",
    "received_unstored": "received and never stored",
    "imported_twice": "imported twice",
    "other_size": "with another size",
    "other_queue": "in another queue",
    "reordered": "out of order",
    "wrong_number": "under a wrong number",
    "number_reused": "under a number used twice",
    "never_sent": "stored and never sent",
    "gap": "numbers missing",
    "clock": "wrong clock",
    "restored": "restored from a backup",
    "log_hole": "a hole in the log",
    "late_log": "log ends too early",
    "no_log": "no log",
    "broken_file": "a broken file",
}
_UNDECIDED = {
    "on_its_way": "still on their way when the logs end",
    "late_log": "the rest of the log of this host is not there yet",
    "no_log": "there is no log of this host",
    "log_hole": "a stretch of the log of this host is missing",
    "log_begins_later": "the log of this host begins after them",
    "other_history": "a copy of the data of this host was put back, and its log from before is not"
    " there",
    "other_copy": "another copy of this host has them, and its log is not there",
}
#: The remedy for each kind.
_REMEDIES = {
    "acked_not_stored": "Ask the owner of the receiving host about its disk, a restored backup,"
    " or deleted files. Send it again from the sender's journal (qmd pipeline run replay, or"
    " qmd resend).",
    "lost": "Send it again from the sender's journal (qmd pipeline run replay, or qmd resend).",
    "vanished": "Ask the owner of the host about its disk, and programs that change its database."
    " Send it again from the sender's journal (qmd pipeline run replay, or qmd resend).",
    "rolled_back": "Send it again from the sender's journal (qmd pipeline run replay, or qmd"
    " resend).",
    "duplicated": "Notify the owners of the queue; look for a restored backup at the receiver.",
    "ended_twice": "Notify the owners of the queue; look for a restored backup there.",
    "delivered_and_dead": "Do not requeue its dead letter: it has arrived.",
    "received_unstored": "Look for a restored backup there, or a log that was tampered with.",
    "imported_twice": "Notify the owners of the queue; qmd import --position continues without"
    " duplicates.",
    "other_size": "Trace it: something between both ends has changed packets, or a disk has.",
    "other_queue": "Trace it: a redirection, or something that has changed packets.",
    "reordered": "Notify the owners of the queue; look for a restored backup at the receiver.",
    "wrong_number": "Trace it: something between both ends has changed packets.",
    "number_reused": "Look for a restored backup, or a cloned machine, at the sender.",
    "never_sent": "Look for a forged sender, or a log that was tampered with.",
    "gap": "Trace its neighbours; look for a restored backup at the sender.",
    "clock": "Set the clock (NTP).",
    "restored": "Look at the messages that were lost with it; make sure that no copy of it runs.",
    "log_hole": "Ship the missing stretch (qmd ship), or keep more of the log ([events] size).",
    "late_log": "Ship its newer events (qmd ship), then run the audit again.",
    "no_log": "Ship its log (qmd ship), then run the audit again.",
    "broken_file": "Export or copy the file again.",
}


def audit_page(
    result: AuditResult, timelines: Sequence[str] = (), earlier: Sequence[EarlierRun] = ()
) -> str:
    """Return the page: verdict, places, kinds, then undecided messages, and the fleet."""
    page = Page("Was anything lost? Audit of the fleet")
    counts = {kind: int(n) for kind, n in (result.counts or {}).items()}
    wrong = {kind: n for kind, n in counts.items() if kind not in ABOUT_HOSTS and n}
    undecided = int(result.open[result.open.reason != "on_its_way"].messages.sum())
    about_messages = result.findings[~result.findings.kind.isin(ABOUT_HOSTS)]
    about_hosts = result.findings[result.findings.kind.isin(ABOUT_HOSTS)]
    places = _places(about_messages)
    _add_verdict(page, result, wrong, undecided, _steps(places, wrong, about_hosts))
    _add_places(page, places)
    _add_fleet(page, result.streams, about_messages)
    _add_kinds(page, wrong)
    if timelines:
        page.section(
            "How it looks",
            "One finding of each kind among its neighbours in the stream; the wrong message is"
            " red. Above: when each message was sent; below: when it was stored; a cross: never."
            " The numbers are those of the message ids. Time runs from left to right, not to"
            " scale.",
            *timelines,
        )
    if len(about_hosts) or undecided:
        _add_undecided(page, about_hosts, result.open)
    _add_findings(page, about_messages)
    _add_trend(page, result, earlier)
    page.section(
        "How this was found",
        "Both ends of every stream were compared by their numbers, not by clocks. Streams that"
        f" agree were proved from their runs of numbers;"
        f" {counted(result.suspects, 'was', 'were')} examined message by message."
        f" {counted(result.files, 'file was', 'files were')} read in {result.seconds:.0f} s.",
    )
    return page.html("Made by qmd pipeline run audit,")


def _add_verdict(
    page: Page,
    result: AuditResult,
    wrong: Mapping[str, int],
    undecided: int,
    steps: Sequence[str],
) -> None:
    is_whole = not result.findings.kind.isin(INCOMPLETE).any()
    mood, sentence, text = _verdict(wrong, undecided, is_whole=is_whole)
    clocks = [row.host for row in result.findings.itertuples() if row.kind == "clock"]
    if clocks:
        text += f" Clocks are wrong at {', '.join(clocks[:5])}; no verdict depends on them."
    way = int(result.open[result.open.reason == "on_its_way"].messages.sum())
    page.verdict(
        mood,
        sentence,
        text,
        [
            ("messages of streams", f"{result.messages:,}"),
            ("streams", f"{len(result.streams):,}"),
            ("findings", f"{sum(wrong.values()):,}"),
            ("undecided", f"{undecided:,}"),
            ("on their way", f"{way:,}"),
            ("events read", f"{result.events:,}"),
        ],
        steps,
    )


class EarlierRun(NamedTuple):
    """A run whose tables and page are kept."""

    at: str  # ISO 8601
    page: str  # its address, relative to that of the newest page
    findings: Mapping[str, int]
    undecided: int
    messages: int


def _add_trend(page: Page, result: AuditResult, earlier: Sequence[EarlierRun]) -> None:
    """Add the numbers of the last runs, and links to the tables and to earlier pages."""
    names = ("findings", "streams", "open")
    tables = " · ".join(link(f"{name}.parquet", f"{name}.parquet") for name in names)
    parts = [f"<p>The rows of this page: {tables}</p>"]
    if earlier:
        parts.append("<p>Earlier pages: " + " · ".join(
            link(each.page, each.at[:16].replace("T", " ")) for each in reversed(earlier)
        ) + "</p>")  # fmt: skip
        rows = [
            (each.at[:16].replace("T", " "), _wrong(each.findings), each.undecided, each.messages)
            for each in earlier
        ]
        now = (
            "this one", _wrong(result.counts or {}), int(result.open.messages.sum()),
            int(result.messages),
        )  # fmt: skip
        parts.insert(0, table(
            ["run", "findings", "undecided or on the way", "messages"], [now, *reversed(rows)],
            marked=["findings"], first=10,
        ))  # fmt: skip
    if earlier:
        page.section("The last runs", "The newest first.", *parts)
    else:
        page.section("Tables", "", *parts)


def _wrong(counts: Mapping[str, int]) -> int:
    return sum(int(n) for kind, n in counts.items() if kind not in ABOUT_HOSTS)


def _add_places(page: Page, places: Frame) -> None:
    if not len(places):
        return
    page.section(
        "Where",
        "Each line is a route from a sender to a queue; those with the most losses first.",
        table(
            ["from", "to", "queue", "lost", "doubled", "out of order", "otherwise"],
            [
                (
                    row.from_host, row.to_host, row.queue, int(row.lost), int(row.doubled),
                    int(row.disorder), int(row.n - row.lost - row.doubled - row.disorder),
                )
                for row in places.itertuples()
            ],
            marked=["lost", "doubled", "out of order", "otherwise"],
            first=12,
        ),
    )  # fmt: skip


def _add_fleet(page: Page, streams: Frame, findings: Frame) -> None:
    if not len(streams):
        return
    page.section(
        "The fleet",
        "Each dot is a host, each line a route between two. Red, with an arrow: findings."
        " Amber, broken: undecided messages. The wider, the more messages." + _named(streams),
        plots.flow_map(with_findings(streams, findings)),
    )


def _add_kinds(page: Page, wrong: Mapping[str, int]) -> None:
    if not wrong:
        return
    page.section(
        "Findings and remedies",
        "The worst first.",
        table(
            ["kind", "findings", "that is", "remedy"],
            [
                (SHORT[kind], wrong[kind], KINDS[kind], _REMEDIES[kind])
                for kind in KINDS
                if kind in wrong
            ],
        ),
    )


def _add_undecided(page: Page, about_hosts: Frame, open_messages: Frame) -> None:
    page.section(
        "Undecided messages, and the reasons",
        "A missing log is not a loss. When it arrives, the next audit reads it and decides.",
        table(
            ["host", "kind", "detail", "remedy"],
            [
                (row.host, SHORT[row.kind], row.detail, _REMEDIES[row.kind])
                for row in about_hosts.itertuples()
            ],
        )
        if len(about_hosts)
        else "",
        table(
            ["messages", "host", "because"],
            [
                (int(row.messages), row.host, _UNDECIDED.get(row.reason, row.reason))
                for row in open_messages.itertuples()
            ],
        ),
    )


def _add_findings(page: Page, findings: Frame) -> None:
    if not len(findings):
        return
    page.section(
        "Every finding",
        "The command explains a message, at the sending or the receiving host; `qmd pipeline run"
        " trace --message ID` shows its whole history. All rows are in findings.parquet, beside"
        " this page.",
        filtered_table(
            ["kind", "from", "to", "queue", "sequence, number", "sent", "command"],
            [
                (
                    SHORT[row.kind], row.from_host, row.to_host, row.queue,
                    _position(row), moment(row.at_ms),
                    f"qmd why '{row.message_id}'" if row.message_id else "",
                )
                for row in findings.itertuples()
            ],
            [
                Filter("Host", [(row.from_host, row.to_host) for row in findings.itertuples()]),
                Filter("Day", [(moment(row.at_ms)[:10],) for row in findings.itertuples()]),
                Filter("Kind", [(SHORT[row.kind],) for row in findings.itertuples()]),
            ],
            code=["command"],
            first=25,
        ),
    )  # fmt: skip


def _places(findings: Frame) -> Frame:
    """Count the findings of each route by sort; the routes with the most losses first."""
    if not len(findings):
        return findings
    sorts = findings.assign(
        n=1,
        lost=findings.kind.isin(_LOST).astype(int),
        doubled=findings.kind.isin(_TWICE).astype(int),
        disorder=(findings.kind == "reordered").astype(int),
    )
    ways = sorts.groupby(["from_host", "to_host", "queue"], as_index=False, dropna=False)
    counted = ways[["n", "lost", "doubled", "disorder"]].sum()
    return counted.sort_values(["lost", "doubled", "n"], ascending=False)


def _steps(places: Frame, wrong: Mapping[str, int], about_hosts: Frame) -> list[str]:
    """Return the next steps for the operator: the first one for each cause."""
    steps = []
    if len(places):
        worst = places.iloc[0]
        count = (
            f"{int(worst.lost):,} of the lost" if worst.lost else counted(int(worst.n), "finding")
        )
        steps.append(
            f"Where to look first: {worst.from_host} to {worst.to_host}, queue {worst.queue}"
            f" ({count}); {counted(len(places), 'route has', 'routes have')} findings."
        )
        kind = next(kind for kind in KINDS if wrong.get(kind))
        steps.append(f"First remedy, {SHORT[kind]}: {_REMEDIES[kind]}")
    for kind in INCOMPLETE:
        hosts = about_hosts.host[about_hosts.kind == kind]
        if len(hosts):
            named = sorted({str(host) for host in hosts if host}) or ["of an unknown host"]
            rest = f" and {len(named) - 5} more" if len(named) > 5 else ""
            steps.append(
                f"{SHORT[kind].capitalize()}: {', '.join(named[:5])}{rest}. {_REMEDIES[kind]}"
            )
    return steps


def _named(streams: Frame) -> str:
    count = len({*streams.from_host, *streams.to_host})
    if count <= plots.NAMED_MAX:
        return ""
    return f" Of {count:,} hosts, those with findings or the most messages are named."


def _verdict(wrong: Mapping[str, int], undecided: int, *, is_whole: bool) -> tuple[str, str, str]:
    lost = sum(wrong.get(kind, 0) for kind in _LOST)
    twice = sum(wrong.get(kind, 0) for kind in _TWICE)
    disorder = wrong.get("reordered", 0)
    other = sum(wrong.values()) - lost - twice - disorder
    unclear = counted(undecided, "message is", "messages are")
    rest = (
        f" {unclear} undecided, because logs are missing."
        if undecided
        else " No message is undecided."
        if is_whole
        else f" {_PARTS_MISSING}"
    )
    if not wrong and not undecided and not is_whole:
        return UNSURE, "Nothing wrong was found, but parts of the logs are missing.", _PARTS_MISSING
    if not wrong and not undecided:
        return GOOD, "Nothing was lost, doubled or reordered.", "Every message is accounted for."
    if not wrong:
        return (
            UNSURE,
            f"Nothing wrong was found, but {unclear} undecided.",
            "Logs are missing or late, as listed below. The messages with complete logs were not"
            " lost, doubled or reordered.",
        )
    parts = [
        f"{n:,} {text}"
        for n, text in (
            (lost, "lost"),
            (twice, "doubled"),
            (disorder, "out of order"),
            (other, "wrong otherwise"),
        )
        if n
    ]
    sentence = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    head = "Messages were lost: " if lost else "Nothing was lost, but: "
    return BAD, f"{head}{sentence}.", "The places and the remedies are below." + rest


def _position(row: Any) -> str:
    if pd.isna(row.sequence_number) or pd.isna(row.sequence_id):
        return ""
    text = f"{int(row.sequence_id):#x}, {int(row.sequence_number)}"
    if pd.isna(row.until_number) or int(row.until_number) == int(row.sequence_number):
        return text
    return f"{text} to {int(row.until_number)}"


def with_findings(streams: Frame, findings: Frame) -> Frame:
    """Return `streams` with the number of findings on the route of each."""
    counts = findings.groupby(["from_host", "to_host"]).size().to_dict()
    seen: set[tuple[str, str]] = set()
    numbers = []
    for pair in zip(streams.from_host, streams.to_host, strict=True):
        numbers.append(0 if pair in seen else int(counts.get(pair, 0)))
        seen.add(pair)
    return streams.assign(findings=numbers)
