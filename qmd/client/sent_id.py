"""The id of a message that was sent, where it went to several queues."""

from __future__ import annotations

from collections.abc import Iterable


class SentId(str):
    """The id of a message to several queues: that of its first copy.

    Each copy is a message of its own, with an id of its own, by which its acknowledgments, its
    dead letter and its history are known; `copies` are all of them, in the order of the queues.
    """

    __slots__ = ("copies",)

    copies: tuple[str, ...]

    def __new__(cls, copies: Iterable[str]) -> SentId:
        ids = tuple(copies)
        made = super().__new__(cls, ids[0])
        made.copies = ids
        return made


def copies_of(message_id: str) -> tuple[str, ...]:
    """The ids of all copies of a message, or its own, where it went to one queue."""
    return message_id.copies if isinstance(message_id, SentId) else (message_id,)


def sent_ids(answer: list[str | list[str]]) -> list[str]:
    """What a Send or Commit is answered with, for applications."""
    return [each if isinstance(each, str) else SentId(each) for each in answer]
