"""Choices of messages in forms: which ones an action is for, and the options that say the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from qmd.config.units import parse_duration
from qmd.control_protocol.messages import Choice

Form = Mapping[str, Sequence[str]]

IDS_MAX = 10_000
#: Fields of forms, each with the option of the command line of the same meaning.
FILTERS = {
    "class": "--class",
    "reason": "--reason",
    "destination": "--destination",
    "label": "--label",
    "where": "--where",
}


MINUTES = "%Y-%m-%dT%H:%M"  # as the fields for times of a browser


class BadForm(ValueError):
    """A form has a field that cannot be used; the text is for its user."""


class Chosen(NamedTuple):
    """A choice, its options of the command line, and the fields that state it again."""

    choice: Choice
    options: list[str]
    fields: list[tuple[str, str]]

    @property
    def is_everything(self) -> bool:
        """Whether all messages of the queue are chosen."""
        return not self.options or self.options == ["--all"]


def one(form: Form, name: str, default: str = "") -> str:
    """Return the first value of a field."""
    values = form.get(name)
    return values[0] if values else default


def needed(form: Form, name: str) -> str:
    """Return a field that must not be empty.  Raises BadForm."""
    value = one(form, name).strip()
    if not value:
        raise BadForm(f"The field {name} is empty.")
    return value


def lookup_ids(form: Form) -> list[int]:
    """Return the lookup ids of messages that were ticked.  Raises BadForm."""
    texts = form.get("id", ())
    if len(texts) > IDS_MAX:
        raise BadForm(f"{len(texts):,} messages are chosen, and at most {IDS_MAX:,} can be.")
    if not all(each.isascii() and each.isdigit() and len(each) < 20 for each in texts):
        raise BadForm("A lookup id is not a number.")
    return [int(each) for each in texts if int(each) < 1 << 63]


def chosen_by(form: Form, now: float | None = None) -> Chosen:
    """Return the choice of a form.  Raises BadForm if it names no message at all."""
    ids = lookup_ids(form)
    filters = {name: one(form, name) for name in FILTERS}
    now_s = time.time() if now is None else now
    after_ms, before_ms = _bounds(form, now_s)
    fields = [("id", str(each)) for each in ids]
    fields += [(name, value) for name, value in filters.items() if value]
    options = [word for each in ids for word in ("--lookup-id", str(each))]
    is_all = one(form, "all") == "1"
    if is_all:
        fields.append(("all", "1"))
        options.append("--all")
    options += [word for name, value in filters.items() if value for word in (FILTERS[name], value)]
    for name, option, value in (
        ("newer", "--newer-than", after_ms),
        ("older", "--older-than", before_ms),
    ):
        if value is not None:
            fields += [(f"{name}_ms", str(value)), (name, one(form, name))]
            options += [option, one(form, name)]
    since, until = _days(form, now_s)
    for name, moment in (("since", since), ("until", until)):
        if moment is not None:
            text = moment.strftime(MINUTES)
            fields.append((name, text))
            options += [f"--{name}", text + "Z"]
    if since is not None:
        # A message that arrived in that millisecond is included.
        after_ms = max(int(since.timestamp() * 1000) - 1, after_ms or 0)
    if until is not None:
        before_ms = min(int(until.timestamp() * 1000), before_ms or 1 << 62)
    if not options:
        raise BadForm("No message is chosen: tick messages, or choose all.")
    if not ids and not is_all:
        options.insert(0, "--all")
    choice = Choice(
        lookup_ids=ids,
        label=filters["label"],
        reason=filters["reason"],
        message_class=filters["class"],
        destination=filters["destination"],
        arrived_after_ms=after_ms,
        arrived_before_ms=before_ms,
        where=filters["where"],
    )
    return Chosen(choice, options, fields)


def _days(form: Form, now_s: float) -> tuple[datetime | None, datetime | None]:
    """Return the first moment, and the one after the last, of the calendar fields: in UTC.

    `day` is today or yesterday, and comes before `since` and `until`.
    """
    today = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match one(form, "day"):
        case "today":
            return today, None
        case "yesterday":
            return today - timedelta(days=1), today
        case "any":
            return None, None
    return _moment(form, "since"), _moment(form, "until")


def _moment(form: Form, name: str) -> datetime | None:
    text = one(form, name).strip()
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadForm(f"{text!r} is not a time such as 2026-12-24T18:00.") from error


def _bounds(form: Form, now: float) -> tuple[int | None, int | None]:
    """Return the times after and before which messages arrived.

    A form that was shown before has them as times: they do not move until it is confirmed.
    """
    return _bound(form, "newer", now), _bound(form, "older", now)


def _bound(form: Form, name: str, now: float) -> int | None:
    fixed, text = one(form, f"{name}_ms"), one(form, name).strip()
    if not text:
        return None
    if fixed.isascii() and fixed.isdigit() and len(fixed) < 16:
        return int(fixed)
    try:
        return int((now - parse_duration(text)) * 1000)
    except ValueError as error:
        raise BadForm(f"{text!r} is not a duration such as 30m, 12h or 2d.") from error
