"""Ids of sent messages, for messages to several queues."""

from __future__ import annotations

from collections.abc import Iterable


class SentId(str):
    """The id of a message to several queues: that of its first copy.

    Each copy is a message of its own with its own id, which its acknowledgments, its dead letter
    and its history refer to; `copies` are all of these ids, in the order of the queues.
    """

    __slots__ = ("copies",)

    copies: tuple[str, ...]

    def __new__(cls, copies: Iterable[str]) -> SentId:
        ids = tuple(copies)
        made = super().__new__(cls, ids[0])
        made.copies = ids
        return made


def copies_of(message_id: str) -> tuple[str, ...]:
    """Return the ids of all copies of a message; its own id when it went to one queue."""
    return message_id.copies if isinstance(message_id, SentId) else (message_id,)


def sent_ids(answer: list[str | list[str]]) -> list[str]:
    """Convert the answer to a Send or a Commit for applications."""
    return [each if isinstance(each, str) else SentId(each) for each in answer]
