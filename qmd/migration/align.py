"""The alignment of a queue with the journal of the queue that it replaces.

Messages that the old host's programs received are moved to the subqueue `aligned`: they stay there
until the administrator is sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from qmd.control_protocol.messages import MESSAGES_MAX, Choice
from qmd.migration.compare import Side, digest_of
from qmd.migration.windows_message import WindowsMessage, local_name

if TYPE_CHECKING:
    from qmd.client import QueueManager

SUBQUEUE = "aligned"


class Alignment(NamedTuple):
    """Numbers: messages that were moved (or would be), and received ones that are not here."""

    moved: int
    not_here: int


def sides_of(messages: Iterable[WindowsMessage], queue: str) -> list[Side]:
    """Return the messages of one queue; `queue` is a local name, its journal has `;journal`."""
    wanted = queue.casefold()
    return [
        Side(each.id, digest_of(each.imported.packet))
        for each in messages
        if local_name(each.queue).casefold() == wanted
    ]


async def present(qm: QueueManager, queue: str) -> list[tuple[int, Side]]:
    """Return the messages of a queue here, each with its lookup id."""
    return [
        (each.lookup_id, Side(each.id, digest_of(each.stored.packet)))
        async for each in qm.peek_each(queue)
    ]


async def align(
    qm: QueueManager, queue: str, received: Iterable[Side], *, dry_run: bool = False
) -> Alignment:
    """Move one message of the queue aside for each received one with the same contents.

    A second run with the same list finds those aside, and moves nothing.
    """
    left = Counter(each.digest for each in received)
    aside = f"{queue};{SUBQUEUE}"
    if any(each["name"].casefold() == aside.casefold() for each in await _subqueues(qm, queue)):
        left -= Counter(side.digest for _, side in await present(qm, aside))
    chosen: list[int] = []
    for lookup_id, side in await present(qm, queue):
        if left[side.digest] > 0:
            left[side.digest] -= 1
            chosen.append(lookup_id)
    if not dry_run:
        for at in range(0, len(chosen), MESSAGES_MAX):
            await qm.move(queue, aside, Choice(lookup_ids=chosen[at : at + MESSAGES_MAX]))
    return Alignment(len(chosen), left.total())


async def _subqueues(qm: QueueManager, queue: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = (await qm.show_queue(queue))["subqueues"]
    return found
