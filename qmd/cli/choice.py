"""Which messages of a queue a command is about: options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.parameters import duration, lookup_id, past

if TYPE_CHECKING:
    from qmd.client import Choice


@dataclass(frozen=True, slots=True)
class Which:
    """The messages that are meant, and at most how many of them."""

    choice: Choice
    limit: int | None
    is_all: bool  # nothing but the queue was named


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options about what messages say, which end up in `filters`."""

    @click.option("--label", default="", metavar="TEXT", help="Whose label contains TEXT.")
    @click.option("--reason", default="", metavar="TEXT", help="Whose reason contains TEXT.")
    @click.option(
        "--class", "message_class", default="", help="Of this class, as nack_reach_queue_timeout."
    )
    @click.option(
        "--destination", default="", metavar="TEXT", help="Whose destination contains TEXT."
    )
    @click.option("--older-than", type=duration, help="That came there longer ago, as 2d.")
    @click.option("--newer-than", type=duration, help="That came there since then, as 1h.")
    @functools.wraps(command)
    def with_filters(
        *arguments: Any,
        label: str,
        reason: str,
        message_class: str,
        destination: str,
        older_than: float | None,
        newer_than: float | None,
        **named: Any,
    ) -> None:
        filters = {
            "label": label,
            "reason": reason,
            "message_class": message_class,
            "destination": destination,
            "arrived_before": None if older_than is None else past(older_than),
            "arrived_after": None if newer_than is None else past(newer_than),
        }
        command(*arguments, filters=filters, **named)

    return with_filters


def choice_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that end up in one `which`; one of those that say how many must be given."""

    @click.option(
        "--lookup-id",
        "lookup_ids",
        type=lookup_id,
        multiple=True,
        metavar="N",
        help="The message with this lookup id, as `qmd peek` shows it.",
    )
    @click.option("--id", "ids", multiple=True, metavar="ID", help="The message with this id.")
    @click.option("--all", "all_", is_flag=True, help="All that are there now.")
    @click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N.")
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
            raise click.UsageError("say which messages: one of --lookup-id, --id, --all, --limit")
        choice = chosen(lookup_ids=lookup_ids, ids=ids, **filters)
        is_all = not any((lookup_ids, ids, limit, *filters.values()))
        command(*arguments, which=Which(choice, limit, is_all), **named)

    return with_which


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only say what would happen; nothing is changed."
)
