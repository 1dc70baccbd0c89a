"""The page of each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

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


#: A picture has room for so many days by the hour.
_HOURLY_DAYS = 14


def _recent(hours: Frame) -> tuple[Frame, str]:
    """The last days, and what to say of it."""
    if not len(hours):
        return hours, ""
    since = hours.hour.max().floor("D") - pd.Timedelta(days=_HOURLY_DAYS - 1)
    if hours.hour.min() >= since:
        return hours, ""
    return (
        hours[hours.hour >= since],
        f" The last {_HOURLY_DAYS} days; all are in the tables beside this page.",
    )


def latency_page(tables: Mapping[str, Frame]) -> str:
    page = Page("How long messages take")
    routes, hours, clocks = tables["by_route"], tables["by_hour"], tables["clocks"]
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
            sentence = f"No route is slow: 95 of 100 messages of each are there in {_ms(_SLOW_MS)}."
        page.verdict(
            UNSURE if count else _mood(GOOD, tables),
            sentence,
            f"On half of the routes half of the messages are stored within {_ms(middle)}. From"
            f" {slow.from_host} to {slow.to_host} one of twenty takes longer than"
            f" {_ms(slow.accepted_p95_ms)}.",
            [
                ("messages", f"{int(routes.messages.sum()):,}"),
                ("routes", f"{len(routes):,}"),
                ("slow routes", f"{count:,}"),
                ("stored before they were sent", f"{int(routes.before_sent.sum()):,}"),
            ],
            [*_slow_steps(known, count), *_clock_steps(clocks), *_left_out(tables)],
        )
    else:
        page.verdict(UNSURE, "No message is known at both ends.", "Are the logs of both there?", [],
                     _left_out(tables))  # fmt: skip
    cells = tables.get("route_hours")
    if cells is not None and len(cells):
        cells, note = _recent(cells)
        cells = cells.assign(
            route=cells.from_host + " → " + cells.to_host,
            slow=cells.groupby(["from_host", "to_host"]).accepted_p95_ms.transform("max"),
        ).sort_values(["slow", "route"], ascending=[False, True])
        page.section(
            "The slowest routes, hour by hour",
            "From sending to storing: what 95 of 100 messages stay below. Darker is slower." + note,
            plots.heat_map(cells, "route", "hour", "accepted_p95_ms", "95 of 100 stay below", _ms),
        )
    hours, note = _recent(hours)
    if hours.accepted_p50_ms.notna().any():
        page.section(
            "All messages, hour by hour",
            "From sending to storing: half, 95 and 99 of 100 stay below." + note,
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
        "Since the message was sent, and so on its sender's disk. Where the destination has no log"
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
    queues = tables.get("by_queue")
    if queues is not None and len(queues):
        page.section(
            "Queues, the slowest first",
            "How long messages wait until an application has received them, since they were sent.",
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
    if len(clocks):
        page.section(
            "Clocks",
            "By how much each host's clock is ahead of the middle of all, on the last day that is"
            " known. It is taken out above, for each day on its own.",
            table(
                ["host", "ahead by, ms", "least", "most"],
                [
                    (row.host, float(row.offset_ms), float(row.least_ms), float(row.most_ms))
                    for row in clocks.itertuples()
                ],
                first=12,
            ),
        )
    _broken(page, tables)
    return page.html("Made by qmd pipeline run latency,")


_SLOW_MS = 60_000.0
_CLOCK_MS = 1000.0


def _slow_steps(routes: Frame, count: int) -> list[str]:
    if not count:
        return []
    slow = routes[routes.accepted_p95_ms >= _SLOW_MS]
    ends = slow.groupby("to_host").size().sort_values(ascending=False)
    if len(ends) and ends.iloc[0] > 1:
        return [f"{int(ends.iloc[0]):,} of them end at {ends.index[0]}: look there first (is it up,"
                " and reached by the network?)."]  # fmt: skip
    first = slow.iloc[0]
    return [f"Look first at {first.to_host}, and at the network between (qmd connections)."]


def _clock_steps(clocks: Frame) -> list[str]:
    if not len(clocks):
        return []
    wrong = clocks[clocks.offset_ms.abs() >= _CLOCK_MS]
    if not len(wrong):
        return []
    names = ", ".join(wrong.host.head(5)) + (" and others" if len(wrong) > 5 else "")
    return [f"Set the clocks of {names} (NTP): they differ by more than a second."]


def dead_letters_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Dead letters")
    groups, hours = tables["groups"], tables["by_hour"]
    total = int(groups.messages.sum()) if len(groups) else 0
    if not total:
        page.verdict(_mood(GOOD, tables), "No message died.", "", [], _left_out(tables))
        _broken(page, tables)
        return page.html("Made by qmd pipeline run dead-letters,")
    waiting = int(groups.waiting.sum())
    gone = int(groups[groups.to_queue == ""].messages.sum())
    left = {name: int(groups[name].sum()) for name in ("requeued", "received", "ended")}
    figures = [
        ("died", f"{total:,}"),
        ("wait", f"{waiting:,}"),
        ("sent again", f"{left['requeued']:,}"),
        ("received from there", f"{left['received']:,}"),
        ("ended there", f"{left['ended']:,}"),
        ("nobody kept", f"{gone:,}"),
    ]
    if waiting:
        worst = groups.iloc[0]
        hosts = groups[groups.waiting > 0].host.nunique()
        page.verdict(
            UNSURE,
            f"{waiting:,} dead letters wait, at {hosts:,} hosts; the most, {int(worst.waiting):,},"
            f" at {worst.host}."
            if hosts > 1
            else f"{waiting:,} dead letters wait at {worst.host}.",
            f"The largest group: {worst.message_class or 'no class'}, on their way to"
            f" {worst.queue}. {worst.reason or ''}",
            figures,
            [
                f"When the cause is mended, on {worst.host}: {worst.command} --dry-run",
                *_left_out(tables),
            ],
        )
    else:
        page.verdict(
            _mood(GOOD, tables),
            "No dead letter waits.",
            f"{total:,} messages died; what was kept of them has been dealt with."
            if gone < total
            else f"{total:,} messages died, and nobody asked for a dead letter.",
            figures,
            _left_out(tables),
        )
    many = len(_recent(hours)[0]) < len(hours)
    page.section(
        "When they died", f"{'Day by day' if many else 'Hour by hour'}, by class.",
        plots.stacked(
            hours.assign(hour=hours.hour.dt.floor("D")) if many else hours,
            "hour", "message_class", "messages", "messages",
        ),
    )  # fmt: skip
    still = groups[groups.waiting > 0]
    if len(still):
        page.section(
            "What to do",
            "The largest group first. The command is for the host in the same line; add --dry-run"
            " to look first.",
            _group_table(still, with_command=True),
        )
    rest = groups[groups.waiting == 0]
    if len(rest):
        page.section(
            "Nothing left to do",
            "Sent again, received from the dead-letter queue, or ended there; or nobody wanted a"
            " dead letter, and nothing was kept.",
            _group_table(rest, with_command=False),
        )
    _broken(page, tables)
    return page.html("Made by qmd pipeline run dead-letters,")


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


def traffic_page(tables: Mapping[str, Frame]) -> str:
    page = Page("Traffic and capacity")
    hours, queues = tables["by_hour"], tables["queues"]
    full = queues[queues.full_on.notna()].sort_values("full_on") if len(queues) else queues
    waiting = int(queues.messages.sum()) if len(queues) else 0
    old = queues[queues.backlog_hours >= _OLD_HOURS] if len(queues) else queues
    steps = []
    if len(full):
        first = full.iloc[0]
        day = str(first.full_on)
        many = f" {len(full) - 1:,} more fill up." if len(full) > 1 else ""
        sentence = f"{first.queue} at {first.host} is full on {day}, if it goes on so."
        text = f"It holds {size_text(first.bytes)} and grows by"
        text += f" {size_text(first.growth_bytes_a_day)} a day.{many}"
        steps.append(
            f"Ask who receives from {first.queue} at {first.host}, or raise its quota (qmd queue)."
        )
    elif waiting:
        sentence = f"{waiting:,} messages wait, and no queue fills up."
        text = "Growth is a straight line through the last two weeks."
    else:
        sentence, text = "Nothing waits.", "Every queue is empty when the logs end."
    if len(old):
        oldest = old.sort_values("backlog_hours", ascending=False).iloc[0]
        steps.append(
            f"{len(old):,} queues have not been empty for a day or more; the longest,"
            f" {oldest.queue} at {oldest.host}, for {_hours_text(oldest.backlog_hours)}."
        )
    page.verdict(
        UNSURE if len(full) or len(old) else _mood(GOOD, tables),
        sentence,
        text,
        [
            ("sent", f"{int(hours.sent.sum()):,}"),
            ("stored elsewhere", f"{int(hours.accepted.sum()):,}"),
            ("received", f"{int(hours.received.sum()):,}"),
            ("bytes sent", size_text(float(hours.sent_bytes.sum()))),
            ("waiting", f"{waiting:,}"),
        ],
        [*steps, *_left_out(tables)],
    )
    if len(hours):
        together = hours.groupby("hour", as_index=False)[["sent", "accepted", "received"]].sum()
        together, note = _recent(together)
        page.section(
            "Messages an hour", "Of all hosts." + note,
            plots.lines(
                together, "hour",
                {"sent": "sent", "accepted": "stored elsewhere", "received": "received"},
                "messages an hour",
            ),
        )  # fmt: skip
    if len(queues):
        ordered = queues.sort_values(
            ["full_on", "bytes"], ascending=[True, False], na_position="last"
        )
        busy = ordered[(ordered.messages > 0) | ordered.full_on.notna()]
        if len(busy):
            page.section(
                "What waits", "Queues that fill up first, then those that hold the most.",
                _queue_table(busy, first=40),
            )  # fmt: skip
        empty = ordered.drop(busy.index)
        if len(empty):
            page.section(
                "Empty queues", "Nothing waits in them when the log of their host ends.",
                _queue_table(empty.sort_values("came", ascending=False), first=12),
            )  # fmt: skip
        ways = hours.groupby("host", as_index=False)[
            ["sent", "accepted", "received", "sent_bytes", "accepted_bytes"]
        ].sum()
        ways = ways.sort_values("sent", ascending=False)
        page.section(
            "Hosts", "Who sends the most first.",
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
    _broken(page, tables)
    return page.html("Made by qmd pipeline run traffic,")


_OLD_HOURS = 24.0


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


_DRAWN_MAX = 40


def _fate(events: Frame) -> tuple[str, str, str, list[str]]:
    """Of one message: mood, sentence, text, and what to do."""
    last = events.iloc[-1]
    kinds = set(events.kind)

    def latest(*names: str) -> Any:
        return events[events.kind.isin(names)].iloc[-1]

    sent = events[events.kind == "sent"]
    begun = moment(sent.iloc[0].at_ms) if len(sent) else ""
    since = f" It was sent at {sent.iloc[0].host}, {begun}." if begun else " Nobody tells of its"
    since += "" if begun else " sending: the log of its sender is not there."
    ended = [name for name in _BAD_ENDS if name in kinds]
    arrived = kinds & {"received", "confirmed"}
    if arrived and "received" in kinds:
        row = latest("received")
        sentence = f"It was received from {row.queue} at {row.host}, {moment(row.at_ms)}."
    elif arrived:
        row = latest("confirmed")
        sentence = f"An application has received it: {row.host} was told so, {moment(row.at_ms)}."
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
        text = (f"Because: {reasons[-1]}" if reasons else "Why is in the lines below.") + since
        if arrived:
            text = f"It was also {row.kind.replace('_', ' ')} at {row.host}. {text}"
        elif "dead_lettered" in kinds and not kinds & {"requeued"}:
            row = latest("dead_lettered")
            steps.append(
                f"It is in {row.to_queue} at {row.host}: qmd pipeline run dead-letters tells how it"
                " is sent again."
            )
        return UNSURE, sentence, text, steps
    if arrived:
        return GOOD, sentence, since.strip(), []
    if "accepted" in kinds:
        row = latest("accepted")
        steps.append(f"Nobody has received it yet: who receives from {row.queue} at {row.host}?")
    elif kinds & {"order_acknowledged", "session_acknowledged"}:
        steps.append("The other computer has it, and its log is not among these files.")
    else:
        steps.append(f"It has not arrived: see `qmd outgoing` at {last.host}.")
    return UNSURE, sentence, "No log that was read tells its end." + since, steps


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
    mood, sentence, text, steps = _fate(mine if len(mine) else events)
    page.verdict(
        _mood(mood, tables),
        sentence,
        f"{message}. {text}",
        [
            ("events", f"{len(events):,}"),
            ("messages", f"{events.message_id.nunique():,}"),
            ("hosts", f"{events.host.nunique():,}"),
        ],
        [*steps, *_left_out(tables)],
    )
    shown = events.head(_DRAWN_MAX)
    page.section(
        "Its way",
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


def _took(row: Any, name: str) -> str:
    value = getattr(row, name)
    return "" if value is None or value != value else _ms(float(value))
