"""The page of each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.jobs.findings import ABOUT_HOSTS, KINDS, AuditResult
from pipeline.report import plots
from pipeline.report.page import BAD, GOOD, UNSURE, Page, moment, size_text, table

Frame = Any

_LOST = ("acked_not_stored", "lost")
_SHORT = {
    "acked_not_stored": "acknowledged and not stored",
    "lost": "lost on the way",
    "duplicated": "stored twice",
    "ended_twice": "received or ended twice",
    "delivered_and_dead": "delivered and dead-lettered",
    "reordered": "out of order",
    "wrong_number": "under a wrong number",
    "number_reused": "under a number used twice",
    "never_sent": "stored and never sent",
    "gap": "numbers missing",
    "clock": "wrong clock",
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
}


def audit_page(result: AuditResult, timelines: Sequence[str] = ()) -> str:
    """Verdict, where, what; then what is undecided, and the fleet."""
    page = Page("Was anything lost? Audit of the fleet")
    counts = {kind: int(n) for kind, n in (result.counts or {}).items()}
    wrong = {kind: n for kind, n in counts.items() if kind not in ABOUT_HOSTS and n}
    streams = result.streams
    undecided = int(result.open[result.open.reason != "on_its_way"].messages.sum())
    way = int(result.open[result.open.reason == "on_its_way"].messages.sum())
    mood, sentence, text = _verdict(wrong, undecided)
    clocks = [row.host for row in result.findings.itertuples() if row.kind == "clock"]
    if clocks:
        text += f" Clocks are wrong at {', '.join(clocks[:5])}; no verdict depends on them."
    page.verdict(
        mood,
        sentence,
        text,
        [
            ("messages of streams", f"{result.messages:,}"),
            ("streams", f"{len(streams):,}"),
            ("findings", f"{sum(wrong.values()):,}"),
            ("undecided", f"{undecided:,}"),
            ("on their way", f"{way:,}"),
            ("events read", f"{result.events:,}"),
        ],
    )
    about_messages = result.findings[~result.findings.kind.isin(ABOUT_HOSTS)]
    if len(about_messages):
        places = (
            about_messages.groupby(["from_host", "to_host", "queue"])
            .kind.agg(lambda kinds: ", ".join(
                f"{n} {_SHORT[kind]}" for kind, n in kinds.value_counts().items()))
            .reset_index()
        )  # fmt: skip
        ways = about_messages.groupby(["from_host", "to_host", "queue"])
        lost = ways.kind.agg(lambda kinds: int(kinds.isin(_LOST).sum())).to_numpy()
        places = places.assign(n=ways.size().to_numpy(), lost=lost)
        places = places.sort_values(["lost", "n"], ascending=False)
        page.section(
            "Where",
            "Each line is one way from a sender to a queue; first where the most was lost.",
            table(
                ["from", "to", "queue", "lost", "findings", "what"],
                [
                    (row.from_host, row.to_host, row.queue, int(row.lost), int(row.n), row.kind)
                    for row in places.itertuples()
                ],
            ),
        )
    if timelines:
        page.section(
            "How it looks",
            "Findings of several kinds, each among its neighbours in the stream: red is what is"
            " wrong. From left to right everything in the order of time, with the same step.",
            *timelines,
        )
    if wrong:
        page.section(
            "What",
            "",
            table(
                ["kind", "findings", "that is"],
                [(_SHORT[kind], wrong[kind], KINDS[kind]) for kind in KINDS if kind in wrong],
            ),
        )
    about_hosts = result.findings[result.findings.kind.isin(ABOUT_HOSTS)]
    if len(about_hosts) or undecided:
        page.section(
            "What could not be decided, and why",
            "Missing logs are no losses. When they come, the next audit reads them and decides.",
            table(
                ["host", "what", "detail"],
                [(row.host, _SHORT[row.kind], row.detail) for row in about_hosts.itertuples()],
            ),
            table(
                ["messages", "host", "because"],
                [
                    (int(row.messages), row.host, _UNDECIDED.get(row.reason, row.reason))
                    for row in result.open.itertuples()
                ],
            ),
        )
    if len(streams):
        page.section(
            "The fleet",
            "Red: findings. Amber: messages that are undecided. The wider, the more messages.",
            plots.flow_map(with_findings(streams, about_messages)),
        )
    if len(about_messages):
        page.section(
            "Every finding",
            "`qmd pipeline run trace --message ID` shows the whole history of one.",
            table(
                ["what", "from", "to", "queue", "sequence, number", "message", "sent"],
                [
                    (
                        _SHORT[row.kind], row.from_host, row.to_host, row.queue,
                        _position(row), row.message_id, moment(row.at_ms),
                    )
                    for row in about_messages.itertuples()
                ],
                code=["message"],
            ),
        )  # fmt: skip
    page.section(
        "How this was found",
        "Both ends of every stream were compared by their numbers, not by clocks. Streams that"
        f" agree were proved from their runs of numbers; {result.suspects:,} were looked at message"
        f" by message. {result.files:,} files were read in {result.seconds:.0f} s.",
    )
    return page.html("Made by qmd pipeline run audit,")


def _verdict(wrong: Mapping[str, int], undecided: int) -> tuple[str, str, str]:
    lost = sum(wrong.get(kind, 0) for kind in _LOST)
    twice = wrong.get("duplicated", 0) + wrong.get("ended_twice", 0)
    disorder = wrong.get("reordered", 0)
    other = sum(wrong.values()) - lost - twice - disorder
    rest = (
        f" {undecided:,} messages are undecided, because logs are missing."
        if undecided
        else " Every message is accounted for."
    )
    if not wrong and not undecided:
        return GOOD, "Nothing was lost, doubled or reordered.", "Every message is accounted for."
    if not wrong:
        return (
            UNSURE,
            f"Nothing wrong was found, but {undecided:,} messages are undecided.",
            "Logs are missing or late: see which below. Where logs are there, nothing was lost,"
            " doubled or reordered.",
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
    return BAD, f"{head}{sentence}.", "Where it happened is right below." + rest


def _position(row: Any) -> str:
    import pandas as pd

    if pd.isna(row.sequence_number) or pd.isna(row.sequence_id):
        return ""
    text = f"{int(row.sequence_id):#x}, {int(row.sequence_number)}"
    if pd.isna(row.until_number) or int(row.until_number) == int(row.sequence_number):
        return text
    return f"{text} to {int(row.until_number)}"


def with_findings(streams: Frame, findings: Frame) -> Frame:
    """`streams` with how many findings are on the way of each."""
    counts = findings.groupby(["from_host", "to_host"]).size().to_dict()
    seen: set[tuple[str, str]] = set()
    numbers = []
    for pair in zip(streams.from_host, streams.to_host, strict=True):
        numbers.append(0 if pair in seen else int(counts.get(pair, 0)))
        seen.add(pair)
    return streams.assign(findings=numbers)


def latency_page(tables: Mapping[str, Frame]) -> str:
    page = Page("How long messages take")
    routes, hours, clocks = tables["by_route"], tables["by_hour"], tables["clocks"]
    known = routes.dropna(subset=["accepted_p95_ms"])
    if len(known):
        slow = known.iloc[0]
        middle = float(known.accepted_p50_ms.median())
        page.verdict(
            GOOD if slow.accepted_p95_ms < 60_000 else UNSURE,
            f"Half of the routes deliver within {_ms(middle)};"
            f" the slowest is {slow.from_host} to {slow.to_host}.",
            f"There one message of twenty takes longer than {_ms(slow.accepted_p95_ms)}.",
            [
                ("messages", f"{int(routes.messages.sum()):,}"),
                ("routes", f"{len(routes):,}"),
                ("stored before they were sent", f"{int(routes.before_sent.sum()):,}"),
            ],
        )
    else:
        page.verdict(UNSURE, "No message is known at both ends.", "Are the logs of both there?", [])
    cells = tables.get("route_hours")
    if cells is not None and len(cells):
        cells = cells.assign(
            route=cells.from_host + " → " + cells.to_host,
            at=[each.strftime("%d %b %H:%M") for each in cells.hour],
            order=cells.hour,
        ).sort_values("order")
        page.section(
            "The slowest routes, hour by hour",
            "From sending to storing: what 95 of 100 messages stay below.",
            plots.heat_map(cells, "route", "at", "accepted_p95_ms", "ms"),
        )
    if len(hours):
        page.section(
            "All messages, hour by hour",
            "From sending to storing, in ms: half, 95 and 99 of 100 stay below.",
            plots.lines(
                hours, "hour", ["accepted_p50_ms", "accepted_p95_ms", "accepted_p99_ms"], "ms",
                log=bool((hours.accepted_p50_ms.fillna(1) > 0).all()),
            ),
        )  # fmt: skip
    columns = [f"accepted_p{point}_ms" for point in (50, 95, 99)]
    columns += ["acked_p95_ms", "received_p95_ms"]
    heads = ["stored: half", "95 %", "99 %", "acknowledged: 95 %", "received: 95 %"]
    page.section(
        "Routes, the slowest first",
        "In ms since the message was sent, and so on its sender's disk.",
        table(
            ["from", "to", "messages", *heads],
            [
                (
                    row.from_host,
                    row.to_host,
                    int(row.messages),
                    *(_number(row, name) for name in columns),
                )
                for row in routes.itertuples()
            ],
        ),
    )
    page.section(
        "Clocks",
        "By how many ms each host's clock is ahead of the middle of all. It is taken out above.",
        table(
            ["host", "ms"],
            [(row.host, float(row.offset_ms)) for row in clocks.head(25).itertuples()],
        ),
    )
    return page.html("Made by qmd pipeline run latency,")


def dead_letters_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Dead letters")
    groups, hours = tables["groups"], tables["by_hour"]
    total = int(groups.messages.sum()) if len(groups) else 0
    if not total:
        page.verdict(GOOD, "No message died.", "", [])
        return page.html("Made by qmd pipeline run dead-letters,")
    worst = groups.iloc[0]
    page.verdict(
        UNSURE,
        f"{total:,} messages died; the most, {int(worst.messages):,}, at {worst.host}.",
        f"Those: {worst.message_class or 'no class'}, on their way to {worst.queue}."
        f" {worst.reason}",
        [("groups", f"{len(groups):,}"), ("bytes", size_text(float(groups.bytes.sum())))],
    )
    page.section(
        "When", "Hour by hour, by class.",
        plots.stacked(hours, "hour", "message_class", "messages", "messages"),
    )  # fmt: skip
    page.section(
        "What to do",
        "The largest group first. The command is for the host in the same line; add --dry-run to"
        " look first.",
        table(
            ["host", "class", "destination", "label", "messages", "last", "command", "examples"],
            [
                (
                    row.host, row.message_class, row.queue, row.label, int(row.messages),
                    moment(row.last_ms), row.command or "nobody kept them", row.examples,
                )
                for row in groups.itertuples()
            ],
            code=["command", "examples"],
        ),
    )  # fmt: skip
    return page.html("Made by qmd pipeline run dead-letters,")


def traffic_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Traffic and capacity")
    hours, queues = tables["by_hour"], tables["queues"]
    full = queues[queues.full_on.notna()].sort_values("full_on") if len(queues) else queues
    waiting = int(queues.messages.sum()) if len(queues) else 0
    if len(full):
        first = full.iloc[0]
        sentence = f"{first.queue} at {first.host} is full on {first.full_on}, if it goes on so."
    else:
        sentence = f"No queue fills up; {waiting:,} messages wait."
    page.verdict(
        UNSURE if len(full) else GOOD,
        sentence,
        "Growth is a straight line through the log that was read.",
        [
            ("sent", f"{int(hours.sent.sum()):,}"),
            ("stored elsewhere", f"{int(hours.accepted.sum()):,}"),
            ("received", f"{int(hours.received.sum()):,}"),
            ("bytes sent", size_text(float(hours.sent_bytes.sum()))),
            ("waiting", f"{waiting:,}"),
        ],
    )
    if len(hours):
        together = hours.groupby("hour", as_index=False)[["sent", "accepted", "received"]].sum()
        page.section(
            "Messages an hour", "Of all hosts.",
            plots.lines(together, "hour", ["sent", "accepted", "received"], "messages an hour"),
        )  # fmt: skip
    page.section(
        "Queues", "Those that hold the most first.",
        table(
            [
                *("host", "queue", "waiting", "bytes", "most", "not empty for, h"),
                *("growth a day", "full on"),
            ],
            [
                (
                    row.host, row.queue, int(row.messages), size_text(row.bytes),
                    int(row.most_messages), float(row.backlog_hours),
                    size_text(row.growth_bytes_a_day), row.full_on,
                )
                for row in queues.itertuples()
            ],
        ),
    )  # fmt: skip
    return page.html("Made by qmd pipeline run traffic,")


def trace_page(tables: Mapping[str, Frame], message: str) -> str:
    page = Page(f"The history of {message}")
    events = tables["events"]
    if not len(events):
        page.verdict(
            UNSURE, "Nothing is known of it.", f"No log that was read names {message}.", []
        )
        return page.html("Made by qmd pipeline run trace,")
    last = events.iloc[-1]
    page.verdict(
        GOOD,
        f"Last: {last.kind.replace('_', ' ')} at {last.host}, {moment(last.at_ms)}.",
        f"{message}, and what belongs to it.",
        [
            ("events", f"{len(events):,}"),
            ("messages", f"{events.message_id.nunique():,}"),
            ("hosts", f"{events.host.nunique():,}"),
        ],
    )
    page.section(
        "From the beginning", "Each time is by the clock of the host in the same line.",
        table(
            ["time", "host", "what", "queue", "to", "class", "why", "message"],
            [
                (
                    moment(row.at_ms), row.host, row.kind.replace("_", " "), row.queue,
                    row.to_queue, getattr(row, "message_class", "") or "", row.reason,
                    row.message_id,
                )
                for row in events.rename(columns={"class": "message_class"}).itertuples()
            ],
            code=["message"],
        ),
    )  # fmt: skip
    return page.html("Made by qmd pipeline run trace,")


def _ms(value: float) -> str:
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 120_000 else f"{value / 60_000:.1f} min"


def _number(row: Any, name: str) -> float | None:
    value = getattr(row, name)
    return None if value is None or value != value else float(value)
