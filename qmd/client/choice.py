"""Which messages of a queue are meant, for those who move, purge or send them again."""

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
) -> Choice:
    """Messages for which all of this is true; nothing at all means every message.

    `ids`: message ids as text; `correlation_ids`: ids of the messages that they are about.  Of
    `label`, `reason` and `destination` a part will do, in any case of its letters; `message_class`
    is spelled as `Message.message_class`.  Times need a time zone.  Raises BadName for an id that
    is none.
    """
    from protocol.identifiers import parse_correlation  # pulls in the codec: not at import

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
    )
