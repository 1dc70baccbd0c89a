"""The options of `qmd queue create` and `set` for the retry policy of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.parameters import duration
from qmd.cli.program import Misuse

if TYPE_CHECKING:
    from qmd.client import RetryProperties

_OPTIONS = (
    click.option(
        "--retry-attempts",
        type=click.IntRange(min=0),
        metavar="N",
        help="How often a message that fails is delivered before it ends; 0: no limit.  "
        "[default with another of these options: 10]",
    ),
    click.option(
        "--retry-immediate",
        type=click.IntRange(min=0),
        metavar="N",
        help="Attempts that follow at once, before each wait.",
    ),
    click.option(
        "--retry-delay",
        type=duration,
        metavar="DURATION",
        help="How long a failed message waits in the subqueue ;retry the first time.",
    ),
    click.option(
        "--retry-factor",
        type=click.FloatRange(min=1),
        metavar="FACTOR",
        help="By how much each wait is longer than the one before.",
    ),
    click.option("--retry-delay-max", type=duration, metavar="DURATION", help="The longest wait."),
    click.option(
        "--retry-jitter",
        type=click.FloatRange(0, 1),
        metavar="PART",
        help="By which part waits differ at random, such as 0.2.",
    ),
    click.option(
        "--retry-end",
        type=click.Choice(("poison", "dead-letter", "stay")),
        help="Where a message goes that failed too often: the subqueue ;poison, a dead-letter queue"
        " with the reason, or nowhere.",
    ),
)
_FIELDS = {
    "attempts": "retry_attempts",
    "immediate": "retry_immediate",
    "delay_s": "retry_delay",
    "factor": "retry_factor",
    "delay_max_s": "retry_delay_max",
    "jitter": "retry_jitter",
    "end": "retry_end",
}


def retry_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command; `take_retry` converts them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_retry(given: dict[str, Any]) -> RetryProperties | None:
    """Remove the values of the options from `given`; return the policy, None if none was given."""
    from qmd.client import RetryProperties

    off = bool(given.pop("no_retry", False))
    values = {field: given.pop(option) for field, option in _FIELDS.items()}
    values = {field: value for field, value in values.items() if value is not None}
    if off and values:
        raise Misuse("options_exclude", "--no-retry excludes the options --retry-...")
    return RetryProperties(off=off, **values) if off or values else None
