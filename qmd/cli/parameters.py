"""Parameters that several commands share: queue names, durations, `--json`, `--yes`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from qmd.cli.completion import queues
from qmd.cli.program import BadValue, ExitCode, Failure

F = TypeVar("F", bound=Callable[..., Any])

SYSTEM_QUEUES = {
    "dead-letter": r"DIRECT=OS:.\SYSTEM$;DEADLETTER",
    "transactional-dead-letter": r"DIRECT=OS:.\SYSTEM$;DEADXACT",
    "journal": r"DIRECT=OS:.\SYSTEM$;JOURNAL",
}

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line, with stable names."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def queue_argument(name: str = "queue") -> Callable[[F], F]:
    """Return the argument for a queue: any spelling, or a word for a system queue."""
    return click.argument(
        name, callback=lambda _ctx, _param, value: system_queue(value), shell_complete=queues
    )


def system_queue(text: str) -> str:
    """Replace a word for a system queue by its name; return other texts unchanged."""
    return SYSTEM_QUEUES.get(text.lower(), text)


def duration(text: str) -> float:
    """Parse the value of an option, such as `30s`, `5m`, `12h`, `4d`, `500ms`, to seconds."""
    from qmd.config.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadValue("bad_duration", f"{text!r} is not a duration: it must be {error}") from error


def moment(text: str) -> datetime:
    """Parse the value of an option: a time in ISO 8601; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadValue(
            "bad_time", f"{text!r} is not a time such as 2026-12-24T18:00:00Z"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def past(seconds: float) -> datetime:
    """Return the time that is so many seconds ago."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


def whole_seconds(text: str) -> int:
    """Parse a duration for a packet: whole seconds, or `never`."""
    from qmd.control_protocol.messages import INFINITE_S

    if text == "never":
        return INFINITE_S
    seconds = duration(text)
    if not seconds.is_integer():
        raise BadValue("bad_duration", f"{text!r} is not a whole number of seconds")
    return int(seconds)


def size(text: str) -> int:
    """Parse the value of an option, such as `500MB`, `64KiB`, to bytes."""
    from qmd.config.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise BadValue("bad_size", f"{text!r} is not a size: it must be {error}") from error


def quota(text: str) -> int:
    """Parse a size, or `none` for no limit."""
    from qmd.control_protocol.messages import UNLIMITED

    return UNLIMITED if text == "none" else size(text)


def number(text: str) -> int:
    """Parse the value of an option: a whole number of 32 bits, decimal or with 0x."""
    try:
        found = int(text, 0)
    except ValueError:
        found = -1
    if not 0 <= found <= 0xFFFFFFFF:
        raise BadValue("bad_number", f"{text!r} is not a whole number from 0 to 0xFFFFFFFF")
    return found


def lookup_id(text: str) -> int:
    """Parse the value of an option: the lookup id of a message, as `qmd peek` shows it."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise BadValue(
            "bad_number", f"{text!r} is not a lookup id: it is a number that `qmd peek` shows"
        )
    return int(text)


def confirm(act: str) -> None:
    """Ask before an act that cannot be undone.  Raises Failure or Abort without a yes."""
    if not sys.stdin.isatty():
        raise Failure(
            ExitCode.USAGE,
            f"{act}: no terminal to ask for confirmation; add --yes",
            "nobody_to_ask",
        )
    click.confirm(f"{act}?", abort=True, err=True)
