"""Choices of messages in a queue, for verbs that move, purge, receive or resend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from qmd.client.understood import understood
from qmd.control_protocol.messages import Choice


def chosen(
    *,
    lookup_ids: Sequence[int] = (),
    ids: Sequence[str] = (),
    label: str = "",
    reason: str = "",
    message_class: str = "",
    destination: str = "",
    arrived_before: datetime | None = None,
    arrived_after: datetime | None = None,
    correlation_ids: Sequence[str] = (),
    where: str = "",
) -> Choice:
    """Return the choice of messages that match all of the given conditions (none: every message).

    `ids`: message ids as text; `correlation_ids`: ids of the messages to which the chosen ones
    correlate.  `label`, `reason` and `destination` match a part of the text, regardless of case;
    `message_class` is spelled as in `Message.message_class`.  `where`: a selector, such as
    "region = 'east' AND weight > 3"; the queue manager checks it.  Times need a time zone.  Raises
    BadName for an invalid id.
    """
    from protocol.identifiers import parse_correlation  # imports the codec: not at import

    return Choice(
        list(lookup_ids),
        [understood(parse_correlation, each, "message id") for each in ids],
        label,
        reason,
        message_class,
        destination,
        None if arrived_before is None else int(arrived_before.timestamp() * 1000),
        None if arrived_after is None else int(arrived_after.timestamp() * 1000),
        [understood(parse_correlation, each, "message id") for each in correlation_ids],
        where,
    )
