"""The page of each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.jobs.findings import ABOUT_HOSTS, KINDS, AuditResult
from pipeline.report import plots
from pipeline.report.page import BAD, GOOD, UNSURE, Page, moment, size_text, table

Frame = Any

_LOST = ("acked_not_stored", "lost")
_TWICE = ("duplicated", "ended_twice")
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
#: What becomes of a message that no application receives.
_BAD_ENDS = ("dead_lettered", "discarded", "expired", "refused", "lost", "damaged", "purged",
             "queue_deleted", "rejected", "unroutable", "unconfirmed")  # fmt: skip
_UNDECIDED = {
    "on_its_way": "still on their way when the logs end",
    "late_log": "the rest of the log of this host is not there yet",
    "no_log": "there is no log of this host",
    "log_hole": "a stretch of the log of this host is missing",
    "log_begins_later": "the log of this host begins after them",
}


#: What an operator does about each kind.
_REMEDIES = {
    "acked_not_stored": "Ask who owns the host it was sent to: disk, restored backup, deleted"
    " files? Send it again from the sender's journal (qmd pipeline run replay, or qmd resend).",
    "lost": "Send it again from the sender's journal (qmd pipeline run replay, or qmd resend).",
    "duplicated": "Tell those who process the queue; look for a restored backup at the receiver.",
    "ended_twice": "Tell those who process the queue; look for a restored backup there.",
    "delivered_and_dead": "Do not requeue its dead letter: it has arrived.",
    "reordered": "Tell those who process the queue; look for a restored backup at the receiver.",
    "wrong_number": "Trace it: something between both ends has changed packets.",
    "number_reused": "Look for a restored backup, or a cloned machine, at the sender.",
    "never_sent": "Look for a forged sender, or a log that was tampered with.",
    "gap": "Trace its neighbours; look for a restored backup at the sender.",
    "clock": "Set the clock (NTP).",
    "log_hole": "Ship the missing stretch (qmd ship), or keep more of the log ([events] size).",
    "late_log": "Ship its newer events (qmd ship), then run the audit again.",
    "no_log": "Ship its log (qmd ship), then run the audit again.",
    "broken_file": "Export or copy the file again.",
}
_BROKEN_REMEDY = "Export or copy them again, and run the job again."


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
    about_messages = result.findings[~result.findings.kind.isin(ABOUT_HOSTS)]
    about_hosts = result.findings[result.findings.kind.isin(ABOUT_HOSTS)]
    places = _places(about_messages)
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
        _steps(places, wrong, about_hosts, undecided),
    )
    if len(places):
        page.section(
            "Where",
            "Each line is one way from a sender to a queue; first where the most was lost.",
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
    if len(streams):
        page.section(
            "The fleet",
            "Each dot is a host, each line a way between two. Red, with an arrow: findings. Amber,"
            " broken: messages that are undecided. The wider, the more messages." + _named(streams),
            plots.flow_map(with_findings(streams, about_messages)),
        )
    if wrong:
        page.section(
            "What, and what to do",
            "The worst first.",
            table(
                ["kind", "findings", "that is", "what to do"],
                [
                    (_SHORT[kind], wrong[kind], KINDS[kind], _REMEDIES[kind])
                    for kind in KINDS
                    if kind in wrong
                ],
            ),
        )
    if timelines:
        page.section(
            "How it looks",
            "One finding of each kind among its neighbours in the stream: red is what is"
            " wrong. Above when each message was sent, below when it was stored; a cross: never."
            " From left to right in the order of time, but not to scale.",
            *timelines,
        )
    if len(about_hosts) or undecided:
        page.section(
            "What could not be decided, and why",
            "Missing logs are no losses. When they come, the next audit reads them and decides.",
            table(
                ["host", "what", "detail", "what to do"],
                [
                    (row.host, _SHORT[row.kind], row.detail, _REMEDIES[row.kind])
                    for row in about_hosts.itertuples()
                ],
            )
            if len(about_hosts)
            else "",
            table(
                ["messages", "host", "because"],
                [
                    (int(row.messages), row.host, _UNDECIDED.get(row.reason, row.reason))
                    for row in result.open.itertuples()
                ],
            ),
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
                first=25,
            ),
        )  # fmt: skip
    page.section(
        "How this was found",
        "Both ends of every stream were compared by their numbers, not by clocks. Streams that"
        f" agree were proved from their runs of numbers; {result.suspects:,} were looked at message"
        f" by message. {result.files:,} files were read in {result.seconds:.0f} s.",
    )
    return page.html("Made by qmd pipeline run audit,")


def _places(findings: Frame) -> Frame:
    """How many findings of what sort each way has; first where the most was lost."""
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


def _steps(
    places: Frame, wrong: Mapping[str, int], about_hosts: Frame, undecided: int
) -> list[str]:
    """What to do now: of each cause the first thing."""
    steps = []
    if len(places):
        worst = places.iloc[0]
        count = f"{int(worst.lost):,} of the lost" if worst.lost else f"{int(worst.n):,} findings"
        steps.append(
            f"Where to look first: {worst.from_host} to {worst.to_host}, queue {worst.queue}"
            f" ({count}); {len(places):,} ways have findings."
        )
        kind = next(kind for kind in KINDS if wrong.get(kind))
        steps.append(f"What to do first, {_SHORT[kind]}: {_REMEDIES[kind]}")
    if undecided:
        for kind in ("no_log", "late_log", "log_hole", "broken_file"):
            hosts = sorted({str(host) for host in about_hosts.host[about_hosts.kind == kind]})
            if hosts:
                rest = f" and {len(hosts) - 5} more" if len(hosts) > 5 else ""
                steps.append(
                    f"{_SHORT[kind].capitalize()}: {', '.join(hosts[:5])}{rest}. {_REMEDIES[kind]}"
                )
    return steps


def _named(streams: Frame) -> str:
    count = len({*streams.from_host, *streams.to_host})
    if count <= plots.NAMED_MAX:
        return ""
    return f" Of {count:,} hosts those bear names that have findings, or the most messages."


def _verdict(wrong: Mapping[str, int], undecided: int) -> tuple[str, str, str]:
    lost = sum(wrong.get(kind, 0) for kind in _LOST)
    twice = sum(wrong.get(kind, 0) for kind in _TWICE)
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
    return BAD, f"{head}{sentence}.", "Where it happened, and what to do, is right below." + rest


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


def _mood(mood: str, tables: Mapping[str, Frame]) -> str:
    """Nothing is all well that leaves out what could not be read."""
    return UNSURE if mood == GOOD and len(tables.get("broken_files", ())) else mood


def _left_out(tables: Mapping[str, Frame]) -> list[str]:
    broken = tables.get("broken_files", ())
    if not len(broken):
        return []
    hosts = sorted({row.host for row in broken.itertuples() if row.host})
    some = (
        f" of {', '.join(hosts[:5])}" + (" and others" if len(hosts) > 5 else "") if hosts else ""
    )
    files = f"{len(broken)} files" if len(broken) > 1 else "One file"
    return [f"{files}{some} could not be read: what they tell is not in here. {_BROKEN_REMEDY}"]


def _broken(page: Page, tables: Mapping[str, Frame]) -> None:
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


def latency_page(tables: Mapping[str, Frame]) -> str:
    page = Page("How long messages take")
    routes, hours, clocks = tables["by_route"], tables["by_hour"], tables["clocks"]
    known = routes.dropna(subset=["accepted_p95_ms"])
    if len(known):
        slow = known.iloc[0]
        middle = float(known.accepted_p50_ms.median())
        page.verdict(
            _mood(GOOD if slow.accepted_p95_ms < 60_000 else UNSURE, tables),
            f"Half of the routes deliver within {_ms(middle)};"
            f" the slowest is {slow.from_host} to {slow.to_host}.",
            f"There one message of twenty takes longer than {_ms(slow.accepted_p95_ms)}.",
            [
                ("messages", f"{int(routes.messages.sum()):,}"),
                ("routes", f"{len(routes):,}"),
                ("stored before they were sent", f"{int(routes.before_sent.sum()):,}"),
            ],
            _left_out(tables),
        )
    else:
        page.verdict(UNSURE, "No message is known at both ends.", "Are the logs of both there?", [],
                     _left_out(tables))  # fmt: skip
    cells = tables.get("route_hours")
    if cells is not None and len(cells):
        cells = cells.assign(
            route=cells.from_host + " → " + cells.to_host,
            slow=cells.groupby(["from_host", "to_host"]).accepted_p95_ms.transform("max"),
        ).sort_values(["slow", "route"], ascending=[False, True])
        page.section(
            "The slowest routes, hour by hour",
            "From sending to storing: what 95 of 100 messages stay below.",
            plots.heat_map(cells, "route", "hour", "accepted_p95_ms", "95 of 100 stay below", _ms),
        )
    if len(hours):
        page.section(
            "All messages, hour by hour",
            "From sending to storing: half, 95 and 99 of 100 stay below.",
            plots.lines(
                hours, "hour",
                {"accepted_p50_ms": "half", "accepted_p95_ms": "95 of 100",
                 "accepted_p99_ms": "99 of 100"},
                "stored after",
                value_text=_ms if bool((hours.accepted_p50_ms.fillna(1) > 0).all()) else None,
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
    _broken(page, tables)
    return page.html("Made by qmd pipeline run latency,")


def dead_letters_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Dead letters")
    groups, hours = tables["groups"], tables["by_hour"]
    total = int(groups.messages.sum()) if len(groups) else 0
    if not total:
        page.verdict(_mood(GOOD, tables), "No message died.", "", [], _left_out(tables))
        _broken(page, tables)
        return page.html("Made by qmd pipeline run dead-letters,")
    worst = groups.iloc[0]
    page.verdict(
        UNSURE,
        f"{total:,} messages died; the most, {int(worst.messages):,}, at {worst.host}.",
        f"Those: {worst.message_class or 'no class'}, on their way to {worst.queue}."
        f" {worst.reason}",
        [("groups", f"{len(groups):,}"), ("bytes", size_text(float(groups.bytes.sum())))],
        _left_out(tables),
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
            [
                *("host", "class", "destination", "label", "messages", "last"),
                *("why", "command", "examples"),
            ],
            [
                (
                    row.host, row.message_class, row.queue, row.label, int(row.messages),
                    moment(row.last_ms), row.reason, row.command or "(nobody kept them)",
                    row.examples,
                )
                for row in groups.itertuples()
            ],
            code=["command", "examples"],
            below=["why", "command", "examples"],
            first=40,
        ),
    )  # fmt: skip
    _broken(page, tables)
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
        UNSURE if len(full) else _mood(GOOD, tables),
        sentence,
        "Growth is a straight line through the log that was read.",
        [
            ("sent", f"{int(hours.sent.sum()):,}"),
            ("stored elsewhere", f"{int(hours.accepted.sum()):,}"),
            ("received", f"{int(hours.received.sum()):,}"),
            ("bytes sent", size_text(float(hours.sent_bytes.sum()))),
            ("waiting", f"{waiting:,}"),
        ],
        _left_out(tables),
    )
    if len(hours):
        together = hours.groupby("hour", as_index=False)[["sent", "accepted", "received"]].sum()
        page.section(
            "Messages an hour", "Of all hosts.",
            plots.lines(
                together, "hour",
                {"sent": "sent", "accepted": "stored elsewhere", "received": "received"},
                "messages an hour",
            ),
        )  # fmt: skip
    page.section(
        "Queues", "Those that fill up first, then those that hold the most.",
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
                for row in queues.sort_values(
                    ["full_on", "bytes"], ascending=[True, False], na_position="last"
                ).itertuples()
            ] if len(queues) else [],
            first=40,
        ),
    )  # fmt: skip
    _broken(page, tables)
    return page.html("Made by qmd pipeline run traffic,")


def trace_page(tables: Mapping[str, Frame], message: str) -> str:
    page = Page(f"The history of {message}")
    events = tables["events"]
    if not len(events):
        page.verdict(
            UNSURE, "Nothing is known of it.", f"No log that was read names {message}.", [],
            _left_out(tables),
        )  # fmt: skip
        _broken(page, tables)
        return page.html("Made by qmd pipeline run trace,")
    mine = events[events.message_id == message.strip().lower()]
    last = (mine if len(mine) else events).iloc[-1]
    kinds = set((mine if len(mine) else events).kind)
    ended = sorted(kinds & set(_BAD_ENDS))
    if ended:
        mood, text = UNSURE, f"It was {', '.join(each.replace('_', ' ') for each in ended)}: why is"
        text += " in the lines below."
    elif kinds & {"received", "confirmed"}:
        mood, text = GOOD, "It was received by an application."
    else:
        mood, text = UNSURE, "No log that was read tells its end: it waits, or a log is missing."
    page.verdict(
        _mood(mood, tables),
        f"Last: {last.kind.replace('_', ' ')} at {last.host}, {moment(last.at_ms)}.",
        f"{message}. {text}",
        [
            ("events", f"{len(events):,}"),
            ("messages", f"{events.message_id.nunique():,}"),
            ("hosts", f"{events.host.nunique():,}"),
        ],
        _left_out(tables),
    )
    rows = [
        (
            moment(row.at_ms, ms=True), row.host, row.kind.replace("_", " "), row.queue,
            row.to_queue, getattr(row, "message_class", "") or "", row.reason, row.message_id,
        )
        for row in events.rename(columns={"class": "message_class"}).itertuples()
    ]  # fmt: skip
    heads = ["time", "host", "what", "queue", "to", "class", "why", "message"]
    # Columns that say nothing are left out, and so is the message where there is but one.
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
    _broken(page, tables)
    return page.html("Made by qmd pipeline run trace,")


def _ms(value: float) -> str:
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 120_000 else f"{value / 60_000:.1f} min"


def _number(row: Any, name: str) -> float | None:
    value = getattr(row, name)
    return None if value is None or value != value else float(value)
