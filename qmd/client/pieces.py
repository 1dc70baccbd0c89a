"""Operations on many messages, in pieces of which each is one commit."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from qmd.control_protocol.messages import MESSAGES_MAX, Piece

#: Called after each piece with the number of its messages.
OnPiece = Callable[[int], None]


class Moved(NamedTuple):
    """The result of a move, or in a dry run its forecast."""

    messages: int
    bytes: int  # of their packets
    taken: int  # skipped, because an application has them


async def in_pieces(
    limit: int | None, do: Callable[[Piece, bytes], Awaitable[Any]], on_piece: OnPiece | None = None
) -> Moved:
    """Repeat `do` for consecutive pieces, each done once, and return the sums.

    A cancellation takes effect between two pieces, or during one of them, which is then complete
    or has not happened.
    """
    messages = taken = size = until = 0
    start: int | None = 0
    while start is not None and (limit is None or messages < limit):
        left = MESSAGES_MAX if limit is None else min(limit - messages, MESSAGES_MAX)
        done = await do(Piece(left, start, until), os.urandom(16))
        messages, size, taken = (
            messages + done["messages"], size + done["bytes"], taken + done["taken"],
        )  # fmt: skip
        start, until = done["next"], done["until"]
        if on_piece is not None:
            on_piece(done["messages"])
    return Moved(messages, size, taken)
