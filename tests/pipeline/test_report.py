"""Pages of reports: the verdict first, names as text, and no external content."""

from __future__ import annotations

import itertools
import math
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import pandas as pd

from pipeline.jobs.audit.findings import FINDING_SCHEMA, AuditResult, FindingTimeline
from pipeline.jobs.traffic import _backlog
from pipeline.report import plots
from pipeline.report.audit_page import SHORT, audit_page
from pipeline.report.dead_letters_page import dead_letters_page
from pipeline.report.outcome import draw
from pipeline.report.page import STYLE
from pipeline.report.trace_page import trace_page
from tests.optional import needs
from tests.patience import END_S

pytestmark = needs("matplotlib", reason="the extra qmd-msmq[spark] is not installed")
SOURCE = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def finding(kind: str, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(FINDING_SCHEMA.names) | {"kind": kind} | more


def result(*findings: dict[str, Any], undecided: int = 0) -> AuditResult:
    frame = pd.DataFrame(findings, columns=FINDING_SCHEMA.names, dtype=object)
    opened = [("late_log", "hostb", undecided, 1_790_000_000_000)] if undecided else []
    ways = [(1, 1, "hosta", "hostb", "private$\\orders", 1000, 1000, 12.0, undecided)]
    return AuditResult(
        findings=frame,
        open=pd.DataFrame(opened, columns=["reason", "host", "messages", "oldest_at_ms"]),
        streams=pd.DataFrame(
            ways,
            columns=[
                *("source", "stream", "from_host", "to_host", "queue"),
                *("sent", "accepted", "mean_ms", "open"),
            ],
        ),
        offsets_ms={},
        events=5000,
        messages=1000,
        suspects=1,
        files=2,
        seconds=1.0,
        counts=frame.kind.value_counts().to_dict(),
    )


def lost(queue: str = "private$\\orders") -> dict[str, Any]:
    return finding(
        "lost",
        from_host="hosta",
        to_host="hostb",
        queue=queue,
        message_id=f"{SOURCE}\\7",
        sequence_id=(1_790_000_000 << 32) | 1,
        sequence_number=7,
        at_ms=1_790_000_000_000,
    )


def picture() -> FindingTimeline:
    messages = pd.DataFrame(
        {
            "key": [6, 7, 8],
            "number": [6, 7, 8],
            "sent_at": [0, 1000, 2000],
            "accepted_at": [500, None, 2500],
            "accepted_at_last": [500, None, 2500],
            "accepted": [1, 0, 1],
            "ended_at": [None, None, None],
            "is_bad": [False, True, False],
        }
    ).astype({"accepted_at": "Int64", "accepted_at_last": "Int64", "ended_at": "Int64"})
    return FindingTimeline("lost", 1, 2, 7, messages, "hosta", "hostb")


def headline(page: str) -> str:
    found = re.search(r'<div class="verdict (\w+)"><span.*?</span><h1>(.*?)</h1>', page)
    assert found is not None
    return f"{found[1]}: {found[2]}"


def test_the_verdict_begins_with_the_losses() -> None:
    assert headline(audit_page(result())) == "good: Nothing was lost, doubled or reordered."
    assert headline(audit_page(result(undecided=3))).startswith("unsure: Nothing wrong was found")
    assert headline(audit_page(result(lost()))) == "bad: Messages were lost: 1 lost."
    doubled = finding("duplicated", from_host="a", to_host="b", queue="q", message_id="x")
    assert headline(audit_page(result(doubled))) == "bad: Nothing was lost, but: 1 doubled."


@pytest.mark.parametrize("kind", ["broken_file", "no_log", "late_log", "log_hole"])
def test_missing_parts_of_logs_leave_the_verdict_open(kind: str) -> None:
    page = audit_page(result(finding(kind, host="hostb")))

    assert headline(page) == "unsure: Nothing wrong was found, but parts of the logs are missing."
    assert "ALL WELL" not in page
    assert "accounted for" not in page
    assert f"{SHORT[kind].capitalize()}: hostb." in page
    page = audit_page(result(lost(), finding(kind, host="hostb")))
    assert headline(page) == "bad: Messages were lost: 1 lost."
    assert "accounted for" not in page


def test_remedies_come_first_and_no_word_needs_a_colour() -> None:
    page = audit_page(result(lost(), undecided=5))

    assert "NOT WELL" in page
    assert "ALL WELL" in audit_page(result())
    first = page.index("Where to look first: hosta to hostb, queue private$\\orders")
    assert first < page.index("First remedy, lost on the way") < page.index("<section")


@pytest.mark.parametrize("ground", ["--paper", "--ground"])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_colour_contrasts_with_its_background(mode: str, ground: str) -> None:
    light, dark = re.findall(r":root \{(?: color-scheme: light dark;)?( --ink.*?)\}", STYLE, re.S)
    colors = dict(re.findall(r"(--\w+): (#\w+)", light if mode == "light" else dark))

    def luminance(color: str) -> float:
        digits = color[1:] if len(color) == 7 else "".join(2 * each for each in color[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name in set(colors) - {"--paper", "--ground", "--line"}:
        both = sorted((luminance(colors[name]), luminance(colors[ground])))
        assert (both[1] + 0.05) / (both[0] + 0.05) >= 4.5, name


def test_the_names_of_two_hundred_hosts_do_not_overlap() -> None:
    chance = random.Random(1)
    hosts = [f"a-host-{n:03d}" for n in range(200)]
    ways = pd.DataFrame(
        [(*chance.sample(hosts, 2), 10, 0, chance.random() < 0.02) for _ in range(2000)],
        columns=["from_host", "to_host", "sent", "open", "findings"],
    )

    svg = plots.flow_map(ways)

    # Text points outwards: names overlap when their dots are nearer than the height of a line.
    named = re.findall(r"rotate\([-\d.]+ ([\d.]+) ([\d.]+)\)", svg)
    points = [(float(x), float(y)) for x, y in named]
    assert len(points) == plots.NAMED_MAX
    nearest = min(math.dist(a, b) for a, b in itertools.combinations(points, 2))
    assert nearest > 9  # of 72 to an inch, at a size of 8


@pytest.mark.parametrize("seed", range(8))
def test_the_numbers_of_a_timeline_do_not_overlap(seed: int) -> None:
    chance = random.Random(seed)
    first, moments = chance.choice((1, 400_000)), chance.choice((2, 4, 11))
    messages = pd.DataFrame(
        {
            "number": [first + at for at in range(11)],
            "sent_at": [float(chance.randrange(moments)) for _ in range(11)],
            "accepted_at": [[100.0 + chance.randrange(moments)] for _ in range(11)],
            "ended_at": None,
            "is_bad": [at == 5 for at in range(11)],
        }
    )

    svg = plots.timeline(messages, "Lost", "hosta", "hostb")

    texts = re.findall(
        r'font-size: 8px[^>]*?rotate\([-\d.]+ ([\d.]+) ([\d.]+)\)"[^>]*>([^<]+)<', svg
    )
    assert len(texts) >= 4
    boxes = [(float(x), float(y), 0.5 * 8 * len(text)) for x, y, text in texts]
    for (x, y, width), (to_x, to_y, to_width) in itertools.combinations(boxes, 2):
        assert abs(y - to_y) >= 8 or abs(x - to_x) >= (width + to_width) / 2, texts


def drawn(rows: list[tuple[int, float, list[float], bool]]) -> tuple[list[float], list[float]]:
    """Draw messages; return where each was sent, and where each was stored, from left to right.

    A row has a number, when it was sent, when it was stored, and whether it is wrong.
    """
    columns = pd.DataFrame(rows, columns=["number", "sent_at", "accepted_at", "is_bad"])
    svg = plots.timeline(columns.assign(ended_at=None), "Wrong", "hosta", "hostb")
    dots = [
        (float(x), float(y))
        for x, y in re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)"', svg)
    ]
    # The marks of the axis are dots too, at a height of their own.
    heights = sorted({y for _, y in dots})[:2]
    above, below = ([x for x, y in dots if y == height] for height in heights)
    return above, below


def test_both_copies_of_one_millisecond_are_visible() -> None:
    _, stored = drawn([(1, 0.0, [5.0], False), (2, 1.0, [6.0, 6.0], True)])

    assert len(set(stored)) == 3


def test_a_message_that_was_stored_late_crosses_the_one_before_it() -> None:
    sent, stored = drawn([(1, 0.0, [5.0], True), (2, 1.0, [5.0], False)])

    assert sent[0] < sent[1]
    assert stored[0] > stored[1]


def test_messages_are_named_by_the_numbers_of_their_ids() -> None:
    first_of_sequence = picture()
    first_of_sequence.messages["number"] = [3481, 3482, 3483]

    svg = draw(first_of_sequence)

    assert "Lost on the way: message 3482" in svg
    assert ">3481<" in svg
    assert ">6<" not in svg


def test_findings_are_listed_below_with_their_places() -> None:
    page = audit_page(result(lost()), [draw(picture())])

    assert page.index("Where") < page.index("hosta") < page.index(f"{SOURCE}\\7")
    assert "Lost on the way: message 7" in page


def test_names_are_always_text() -> None:
    page = audit_page(result(lost(queue="<script>alert(1)</script>")))

    assert "<script" not in page
    assert "&lt;script&gt;" in page


def dead(waiting: int) -> dict[str, pd.DataFrame]:
    """Return the job's result for three messages that became dead letters at one host."""
    groups = pd.DataFrame(
        {
            "host": ["hosta"],
            "message_class": ["nack_reach_queue_timeout"],
            "queue": ["DIRECT=OS:hostb\\private$\\orders"],
            "label": ["order"],
            "to_queue": ["system$;deadxact"],
            "messages": [3],
            "waiting": [waiting],
            "bytes": [900],
            "requeued": [3 - waiting],
            "received": [0],
            "ended": [0],
            "first_ms": [1_790_000_000_000],
            "last_ms": [1_790_000_000_000],
            "examples": [f"{SOURCE}\\7"],
            "reason": ["Its time was over."],
            "command": ["qmd dead-letter requeue --queue transactional-dead-letter"],
        }
    )
    hours = pd.DataFrame(
        {
            "hour": [pd.Timestamp("2026-09-21T10:00")],
            "message_class": ["nack_reach_queue_timeout"],
            "messages": [3],
        }
    )
    return {"groups": groups, "by_hour": hours}


def test_resent_dead_letters_need_no_attention() -> None:
    assert headline(dead_letters_page(dead(2))) == "unsure: 2 dead letters wait at hosta."
    assert headline(dead_letters_page(dead(0))) == "good: No dead letter waits."
    assert "On hosta" not in dead_letters_page(dead(0))
    nothing = {name: table[:0] for name, table in dead(0).items()}
    assert headline(dead_letters_page(nothing)) == "good: No message died."


def history(*kinds: str) -> pd.DataFrame:
    hosts = {"accepted": "hostb", "received": "hostb", "refused": "hostb"}
    return pd.DataFrame(
        [
            {
                "host": hosts.get(kind, "hosta"), "at_ms": 1_790_000_000_000 + n, "kind": kind,
                "message_id": f"{SOURCE}\\7", "queue": "q", "to_queue": "", "reason": "",
                "class": None,
            }
            for n, kind in enumerate(kinds)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("sent", "accepted", "received"), "good: It was received from q at hostb"),
        (("sent", "accepted"), "unsure: It waits, as far as is known: accepted at hostb"),
        (("sent", "refused", "dead_lettered"), "unsure: It was dead lettered at hosta"),
        (("sent", "accepted", "received", "unconfirmed"), "unsure: It was received from q"),
        (("sent", "order_acknowledged", "confirmed"), "good: An application has received it"),
    ],
)
def test_a_trace_begins_with_the_fate_of_the_message(kinds: tuple[str, ...], said: str) -> None:
    page = trace_page({"events": history(*kinds)}, message=f"{SOURCE}\\7")

    assert headline(page).startswith(said)
    assert "<svg" in page


def test_a_browser_shows_a_page_and_loads_nothing(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    pages = {
        "audit": audit_page(result(lost(), undecided=5), [draw(picture())]),
        "dead-letters": dead_letters_page(dead(2)),
        "trace": trace_page({"events": history("sent", "dead_lettered")}, message=SOURCE),
    }
    for name, page in pages.items():
        # The page has no address except the name spaces of SVG, which browsers do not load.
        # A reader may follow links to the tables and the earlier pages beside it.
        loaded = re.sub(r"<a href=[^>]*>", "", page)
        addresses = re.findall(r"""(?:src=|href=|url\()["']?([^"'\s)>]+)""", loaded)
        links = re.findall(r'<a href="([^"]*)"', page)
        assert all(re.fullmatch(r"[\w./-]+\.(parquet|html)", each) for each in links), links
        assert all(each.startswith(("#", "data:")) for each in addresses), addresses
        assert "<script" not in page
        file = tmp_path / f"{name}.html"
        file.write_text(page)
        shown = subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync"),
                *("--enable-logging=stderr", "--disable-background-networking", "--dump-dom"),
                *(f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=END_S,
            check=True,
        )
        assert ":CONSOLE" not in shown.stderr
        assert "<svg" in shown.stdout
        assert headline(page).partition(": ")[2] in shown.stdout


def test_a_map_of_no_streams_is_drawn() -> None:
    columns = ["from_host", "to_host", "sent", "open", "findings"]

    assert plots.flow_map(pd.DataFrame(columns=columns)).startswith("<svg")


@pytest.mark.parametrize(("left", "is_forecast"), [(0, False), (7, True)])
def test_an_empty_queue_has_no_forecast(left: int, is_forecast: bool) -> None:
    hour = 3_600_000
    hours = pd.DataFrame(
        {
            "hour_ms": [hour * at for at in range(6)],
            "messages": [1, 2, 3, 4, 5, left - 15],
            "bytes": [1000, 2000, 3000, 40_000, 50_000, -50_000 * (left == 0) - 46_000 + 50_000],
            "came": [1] * 6,
            "gone": [0] * 6,
        }
    )

    found = _backlog(hours, 5 * hour, quota_bytes=10_000_000)

    assert found["growth_bytes_a_day"] > 1
    assert (found["full_on"] is not None) is is_forecast
