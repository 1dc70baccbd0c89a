"""Undo: moved messages go back; messages that were sent again leave the queues that they wait in.

Messages that were received meanwhile, or that are on their way to other hosts, stay as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from protocol.identifiers import parse_correlation
from qmd.client import ClientError, NotConnected, QueueManager
from qmd.console.jobs import Progress, Undoable, Work
from qmd.console.plans import PIECE_MESSAGES, in_pieces
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import Choice

PAGE_MESSAGES = 256
REASON = "An operator took back that it was sent again."
#: Refusals of one message, for which the others are tried alone.
GONE = ("no_such_message", "message_taken", "message_reserved")

Each = TypeVar("Each", bytes, int)


def move_back(source: str, target: str, pieces: list[Undoable]) -> Work:
    """Return the work that moves messages from `source` back to `target`."""

    async def work(qm: QueueManager, progress: Progress) -> None:
        async def move(ids: list[bytes]) -> None:
            choice = Choice(message_ids=ids)
            await in_pieces(
                progress,
                PIECE_MESSAGES,
                lambda piece, token: qm.caller.change_once(
                    frames.Move, source, target, choice, piece, False, token=token
                ),
            )

        for piece in pieces:
            if progress.must_stop:
                return
            await _without_gone(progress, piece.ids, move)

    return work


def take_back(pieces: list[Undoable]) -> Work:
    """Return the work that makes dead letters of new messages that no application has received.

    They are rejected from the queues of this host, as an application would reject them.
    """

    async def work(qm: QueueManager, progress: Progress) -> None:
        wanted = {each for piece in pieces for each in piece.ids}
        for name in sorted({name for piece in pieces for name in piece.queues}):
            if await _is_here(qm, name):
                await _take_back_from(qm, name, wanted, progress)
        progress.skipped += len(wanted)

    return work


async def _is_here(qm: QueueManager, name: str) -> bool:
    try:
        await qm.show_queue(name)
    except NotConnected:
        raise
    except ClientError:
        return False  # a queue of another host, or deleted meanwhile
    return True


async def _take_back_from(
    qm: QueueManager, queue: str, wanted: set[bytes], progress: Progress
) -> None:
    """Look through a queue for messages; reject them, and forget their ids."""
    start = 0
    while wanted and not progress.must_stop:
        page = await qm.peek(queue, start, PAGE_MESSAGES)
        if not page:
            return
        ids = {each.lookup_id: parse_correlation(each.id) for each in page}
        found = {place: each for place, each in ids.items() if each in wanted}
        gone = await _reject(qm, queue, list(found), progress)
        wanted.difference_update(each for place, each in found.items() if place not in gone)
        start = page[-1].lookup_id + 1


async def _reject(qm: QueueManager, queue: str, places: list[int], progress: Progress) -> list[int]:
    """Reject messages at places; return those at which there is none any more."""
    if not places:
        return []
    async with await qm.take(queue, len(places), choice=Choice(lookup_ids=places)) as taken:
        if len(taken):
            await taken.reject(REASON)
            progress.add({"messages": len(taken)})
            return []
    if len(places) == 1:
        return places
    # A queue gives all that are named, or none.
    middle = len(places) // 2
    parts = places[:middle], places[middle:]
    return [each for part in parts for each in await _reject(qm, queue, part, progress)]


async def _without_gone(
    progress: Progress, chosen: list[Each], do: Callable[[list[Each]], Awaitable[None]]
) -> None:
    """Do something to messages; if one of them has gone, leave it out and count it."""
    if not chosen:
        return
    try:
        await do(chosen)
    except ClientError as error:
        if error.code not in GONE:
            raise
        if len(chosen) == 1:
            progress.skipped += 1
            return
        middle = len(chosen) // 2
        await _without_gone(progress, chosen[:middle], do)
        await _without_gone(progress, chosen[middle:], do)
