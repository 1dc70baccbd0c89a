"""Messages of two places, compared: while senders send to the old host and to the new one.

A copy of a message for another queue has an id of its own, so that messages are compared by their
contents: label, body, body type, application tag, correlation id and extension.  The same message
sent twice counts twice.  Their order counts for each sending computer, as it does for delivery.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol import UserMessage, parse_user_message

Print = bytes


class Side(NamedTuple):
    """A message of one side: its id, the digest of its contents, and when it was sent."""

    id: str
    digest: Print
    sent_s: int = 0  # since 1970 UTC


class Comparison(NamedTuple):
    """The result; ids are examples, at most `EXAMPLES_MAX` of each."""

    first: int
    second: int
    only_first: list[str]
    only_second: list[str]
    missing: int  # in the second
    extra: int  # in the second
    #: The messages that both have are in the same order, for each computer that sent them.
    same_order: bool

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.extra and self.same_order


EXAMPLES_MAX = 10


def digest_of(packet: bytes) -> Print:
    """Return the digest of a message's contents."""
    message: UserMessage = parse_user_message(packet)
    properties = message.properties
    found = hashlib.sha256()
    for part in (
        properties.label.rstrip(b"\0"),
        properties.body,
        properties.extension,
        properties.correlation_id,
        properties.body_type.to_bytes(4, "little"),
        properties.application_tag.to_bytes(4, "little"),
    ):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def compare(first: Sequence[Side], second: Sequence[Side]) -> Comparison:
    """Compare two sequences of messages."""
    have, want = Counter(each.digest for each in second), Counter(each.digest for each in first)
    missing, extra = want - have, have - want
    common = want & have
    return Comparison(
        len(first),
        len(second),
        _examples(first, missing),
        _examples(second, extra),
        missing.total(),
        extra.total(),
        _orders(first, common) == _orders(second, common),
    )


def _examples(sides: Iterable[Side], counts: Counter[Print]) -> list[str]:
    left = counts.copy()
    found: list[str] = []
    for each in sides:
        if left[each.digest] > 0 and len(found) < EXAMPLES_MAX:
            left[each.digest] -= 1
            found.append(each.id)
    return found


def _orders(sides: Iterable[Side], counts: Counter[Print]) -> dict[str, list[Print]]:
    """Return the digests of the first messages of each kind that both sides have, by source."""
    left = counts.copy()
    found: dict[str, list[Print]] = {}
    for each in sides:
        if left[each.digest] > 0:
            left[each.digest] -= 1
            source = each.id.partition("\\")[0].casefold()
            found.setdefault(source, []).append(each.digest)
    return found
