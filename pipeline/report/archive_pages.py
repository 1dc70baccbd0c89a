"""The pages of `archive` and `replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.jobs.archive import Archived
from pipeline.jobs.replay import Replayed
from pipeline.report import plots
from pipeline.report.counted import counted
from pipeline.report.page import GOOD, UNSURE, Page, size_text, table

Frame = Any


def archive_page(
    manifests: Mapping[str, Mapping[str, Any]], contents: Frame, done: Sequence[Archived]
) -> str:
    """Return the page: `manifests` of all days, `contents`, and the days `done` by this run."""
    page = Page("The archive of the journals")
    broken = [(*each, day.day) for day in done for each in day.broken]
    steps = (
        [f"Files that could not be read: {len(broken)}. Ship or copy them again; the next run adds"
         " them."] if broken else []
    )  # fmt: skip
    if not manifests:
        page.verdict(
            UNSURE,
            "Nothing is archived.",
            "No closed day (UTC) has journals where `qmd ship` writes them; a day is archived when"
            " it is over.",
            [],
            steps,
        )
        _set_aside(page, broken)
        return page.html("Made by qmd pipeline run archive,")
    missing = _missing_days(sorted(manifests))
    _add_verdict(page, manifests, contents, done, missing, steps)
    _set_aside(page, broken)
    if missing:
        page.section(
            "Days without messages",
            "No message was journaled, or none was shipped: see `qmd ship` on each host.",
            table(["day"], [(day,) for day in missing]),
        )
    _filling(page, contents)
    _add_days(page, manifests, done)
    page.section(
        "To send a part again",
        "Each message is sent once, in the order of arrival; --dry-run only counts.",
        "<p><code>qmd pipeline run replay --input ARCHIVE --output REPORT --to QUEUE --job-id NAME"
        " --since DAY --until DAY --where &quot;label = 'red'&quot; --dry-run</code></p>",
    )
    return page.html("Made by qmd pipeline run archive,")


def _add_verdict(
    page: Page,
    manifests: Mapping[str, Mapping[str, Any]],
    contents: Frame,
    done: Sequence[Archived],
    missing: Sequence[str],
    steps: Sequence[str],
) -> None:
    days = sorted(manifests)
    total = sum(int(each["rows"]) for each in manifests.values())
    fresh = [each for each in done if not each.was_done]
    span = "one day" if len(days) == 1 else f"{len(days):,} days"
    sentence = f"The archive has {counted(total, 'message')} of {span}."
    if missing:
        sentence += (
            f" {len(missing)} days in between have none."
            if len(missing) > 1
            else f" One day in between, {missing[0]}, has none."
        )
    text = (
        f"This run has archived {counted(sum(each.rows for each in fresh), 'message')} of"
        f" {counted(len(fresh), 'day')}." if fresh else "Nothing has arrived since the last run."
    )  # fmt: skip
    page.verdict(
        UNSURE if missing or any(each.broken for each in done) else GOOD,
        sentence,
        text,
        [
            ("messages", f"{total:,}"),
            ("from", days[0]),
            ("until", days[-1]),
            ("queues", f"{contents.groupby(['queue_manager', 'queue']).ngroups:,}"),
            ("bodies", size_text(float(contents.bytes.sum()))),
        ],
        steps,
    )


def _add_days(
    page: Page, manifests: Mapping[str, Mapping[str, Any]], done: Sequence[Archived]
) -> None:
    known = {each.day: each for each in done}
    page.section(
        "Days",
        "A day is archived again when files of it arrive late.",
        table(
            ["day", "messages", "source files", "this run", "folder"],
            [
                (
                    day,
                    int(manifests[day]["rows"]),
                    len(manifests[day]["sources"]),
                    "archived" if day in known and not known[day].was_done else "",
                    manifests[day]["folder"],
                )
                for day in sorted(manifests, reverse=True)
            ],
            code=["folder"],
        ),
    )


def _set_aside(page: Page, broken: Sequence[tuple[str, str, str]]) -> None:
    if broken:
        page.section(
            "Files that could not be read",
            "They are in no day of the archive yet.",
            table(
                ["day", "file", "because"],
                [(day, file, why) for file, why, day in broken],
                code=["file"],
            ),
        )


def replay_page(
    job_id: str, destination: str, asked: Mapping[str, Any], done: Replayed, contents: Frame
) -> str:
    """Return the page: `contents` of the slice `asked` for, and the progress of this run."""
    page = Page(f"Replay {job_id}")
    if done.rows == 0:
        page.verdict(UNSURE, "The slice is empty: nothing was sent.", _slice(asked), [])
        return page.html("Made by qmd pipeline run replay,")
    before = done.rows - done.sent
    text = f"This run sent {done.sent:,} of them" + (
        f"; {counted(before, 'was', 'were')} sent by earlier runs of this job." if before else "."
    )
    page.verdict(
        GOOD,
        f"{destination} has {counted(done.rows, 'message')}: all of the slice, in order and once.",
        text,
        [
            ("messages", f"{done.rows:,}"),
            ("sent by this run", f"{done.sent:,}"),
            ("batches of this run", f"{done.batches:,}"),
            ("bodies", size_text(float(contents.bytes.sum()))),
        ],
    )
    page.section("The slice", _slice(asked))
    _filling(page, contents)
    return page.html("Made by qmd pipeline run replay,")


def _slice(asked: Mapping[str, Any]) -> str:
    since, until = asked["since"] or "the first", asked["until"]
    days = f"Days from {since} to {'the last' if until == '9999' else until}"
    return f"{days}; {asked['where'] or 'all messages'}."


def _filling(page: Page, contents: Frame) -> None:
    # Other programs than qmd write nulls into any column: such rows have no place in the picture.
    contents = contents.dropna(subset=["day", "queue_manager", "queue"])
    if not len(contents):
        return
    by_day = contents.assign(day=pd.to_datetime(contents.day))
    page.section(
        "Messages a day",
        "By queue; the largest ones have colours of their own.",
        plots.stacked(by_day, "day", "queue", "messages", "messages"),
    )
    ways = contents.groupby(["queue_manager", "queue"], as_index=False).agg(
        messages=("messages", "sum"), bytes=("bytes", "sum"),
        first=("first", "min"), last=("last", "max"),
    )  # fmt: skip
    page.section(
        "Queues",
        "The largest first.",
        table(
            ["queue manager", "queue", "messages", "bodies", "first", "last"],
            [
                (
                    row.queue_manager, row.queue, int(row.messages), size_text(float(row.bytes)),
                    f"{row.first:%Y-%m-%d %H:%M:%S}", f"{row.last:%Y-%m-%d %H:%M:%S}",
                )
                for row in ways.sort_values("messages", ascending=False).itertuples()
            ],
            code=["queue manager"],
        ),
    )  # fmt: skip


def _missing_days(days: Sequence[str]) -> list[str]:
    whole = pd.date_range(days[0], days[-1]).strftime("%Y-%m-%d")
    return [day for day in whole if day not in set(days)]
