"""Choices of messages in a queue: options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.parameters import duration, lookup_id, moment, past

if TYPE_CHECKING:
    from qmd.client import Choice

MOMENT = timedelta(milliseconds=1)  # the resolution of the times of arrival


@dataclass(frozen=True, slots=True)
class Which:
    """The chosen messages, and the limit for their number."""

    choice: Choice
    limit: int | None
    is_all: bool  # no condition was given


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for conditions on messages, which are passed as `filters`."""

    @click.option(
        "--label", default="", metavar="TEXT", help="Only messages with a label that contains TEXT."
    )
    @click.option(
        "--reason",
        default="",
        metavar="TEXT",
        help="Only messages with a reason that contains TEXT.",
    )
    @click.option(
        "--class",
        "message_class",
        default="",
        help="Only messages of this class, such as nack_reach_queue_timeout.",
    )
    @click.option(
        "--destination",
        default="",
        metavar="TEXT",
        help="Only messages with a destination that contains TEXT.",
    )
    @_time_options
    @click.option(
        "--where",
        default="",
        metavar="SELECTOR",
        help="Only messages that match, such as \"region = 'east' AND weight > 3\".",
    )
    @functools.wraps(command)
    def with_filters(
        *arguments: Any,
        label: str,
        reason: str,
        message_class: str,
        destination: str,
        times: dict[str, datetime | None],
        where: str,
        **named: Any,
    ) -> None:
        filters = {
            "label": label,
            "reason": reason,
            "message_class": message_class,
            "destination": destination,
            **times,
            "where": where,
        }
        command(*arguments, filters=filters, **named)

    return with_filters


def _time_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for times of arrival, which are passed as `times`."""

    @click.option(
        "--older-than", type=duration, help="Only messages that arrived longer ago, such as 2d."
    )
    @click.option(
        "--newer-than", type=duration, help="Only messages that arrived since then, such as 1h."
    )
    @click.option(
        "--since", type=moment, metavar="TIME", help="Only messages that arrived then or later."
    )
    @click.option(
        "--until",
        type=moment,
        metavar="TIME",
        help="Only messages that arrived before, such as 2026-12-24 or 2026-12-24T18:00:00Z.",
    )
    @functools.wraps(command)
    def with_times(
        *arguments: Any,
        older_than: float | None,
        newer_than: float | None,
        since: datetime | None,
        until: datetime | None,
        **named: Any,
    ) -> None:
        times = {
            "arrived_before": _strictest(min, older_than, until),
            "arrived_after": _strictest(max, newer_than, since and since - MOMENT),
        }
        command(*arguments, times=times, **named)

    return with_times


def _strictest(
    of_two: Callable[[Iterable[datetime]], datetime], ago_s: float | None, at: datetime | None
) -> datetime | None:
    """Return the time that leaves fewer messages, of a duration and a time that may be given."""
    given = [] if at is None else [at]
    if ago_s is not None:
        given.append(past(ago_s))
    return of_two(given) if given else None


def choice_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options that are passed as one `which`; one option for the extent must be given."""

    @click.option(
        "--lookup-id",
        "lookup_ids",
        type=lookup_id,
        multiple=True,
        metavar="N",
        help="The message with this lookup id, as `qmd peek` shows it.",
    )
    @click.option("--id", "ids", multiple=True, metavar="ID", help="The message with this id.")
    @click.option("--all", "all_", is_flag=True, help="All messages that are there now.")
    @click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N messages.")
    @filter_options
    @functools.wraps(command)
    def with_which(
        *arguments: Any,
        lookup_ids: tuple[int, ...],
        ids: tuple[str, ...],
        all_: bool,
        limit: int | None,
        filters: dict[str, Any],
        **named: Any,
    ) -> None:
        from qmd.client import chosen

        ways = (bool(lookup_ids), bool(ids), all_, limit is not None)
        if sum(ways) != 1:
            raise click.UsageError("choose messages with one of --lookup-id, --id, --all, --limit")
        choice = chosen(lookup_ids=lookup_ids, ids=ids, **filters)
        is_all = not any((lookup_ids, ids, limit, *filters.values()))
        command(*arguments, which=Which(choice, limit, is_all), **named)

    return with_which


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only print what would be done; change nothing."
)
