"""The alignment of a queue with the journal of the queue that it replaces.

Messages that the old host's programs received are moved to the subqueue `aligned`: they stay there
until the administrator is sure.

A message that is sent to both hosts is two copies with ids of their own, the same contents, and the
same time of sending.  The time tells it from other messages with the same contents: a journal also
has those that were sent to the old host alone, before both, and to move a later one in the place of
such a message would lose it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from qmd.control_protocol.messages import MESSAGES_MAX, Choice
from qmd.core.packet_fields import sent_time_s
from qmd.migration.compare import Print, Side, digest_of
from qmd.migration.windows_message import WindowsMessage, local_name

if TYPE_CHECKING:
    from qmd.client import QueueManager

SUBQUEUE = "aligned"
#: Two copies of one message are made within this time; it is stated in whole seconds.
SAME_SEND_S = 5


class Alignment(NamedTuple):
    """Numbers: messages that were moved (or would be), and received ones that are not here.

    `other_time` of the latter have the contents of messages that are here, which were sent at
    another time.
    """

    moved: int
    not_here: int
    other_time: int = 0


class Received:
    """The messages that the old host's programs received, each of which has one copy at most."""

    def __init__(self, sides: Iterable[Side], within_s: float) -> None:
        """A copy was sent at most `within_s` seconds before or after."""
        self._within_s = within_s
        self._times: defaultdict[Print, list[int]] = defaultdict(list)
        for each in sides:
            self._times[each.digest].append(each.sent_s)
        for times in self._times.values():
            times.sort()

    def take(self, side: Side) -> bool:
        """Remove the message of which `side` is a copy; return whether there is one."""
        times = self._times[side.digest]
        at = bisect_left(times, side.sent_s)
        near = [index for index in (at - 1, at) if 0 <= index < len(times)]
        found = min(near, key=lambda index: abs(times[index] - side.sent_s), default=None)
        if found is None or abs(times[found] - side.sent_s) > self._within_s:
            return False
        del times[found]
        return True

    def give_back(self, side: Side) -> None:
        """Undo `take`."""
        insort(self._times[side.digest], side.sent_s)

    def count(self) -> int:
        """Return the number of messages that are left."""
        return sum(map(len, self._times.values()))

    def count_among(self, counts: Counter[Print]) -> int:
        """Return the number of those that have the contents of one of `counts` each."""
        return sum(min(count, len(self._times[digest])) for digest, count in counts.items())


def sides_of(messages: Iterable[WindowsMessage], queue: str) -> list[Side]:
    """Return the messages of one queue; `queue` is a local name, its journal has `;journal`."""
    wanted = queue.casefold()
    return [
        _side(each.id, each.imported.packet)
        for each in messages
        if local_name(each.queue).casefold() == wanted
    ]


async def present(qm: QueueManager, queue: str) -> list[tuple[int, Side]]:
    """Return the messages of a queue here, each with its lookup id."""
    return [
        (each.lookup_id, _side(each.id, each.stored.packet)) async for each in qm.peek_each(queue)
    ]


def _side(message_id: str, packet: bytes) -> Side:
    return Side(message_id, digest_of(packet), sent_time_s(packet))


async def align(
    qm: QueueManager,
    queue: str,
    received: Iterable[Side],
    waiting: Iterable[Side] = (),
    *,
    any_time: bool = False,
    dry_run: bool = False,
) -> Alignment:
    """Move the copy of each received message aside: that with its contents and its time.

    `waiting` are the messages that the old queue still has: as many of their contents stay, the
    last ones. With `any_time` the contents alone decide. A second run with the same lists finds
    the copies aside, and moves nothing.
    """
    left = Received(received, float("inf") if any_time else SAME_SEND_S)
    aside = f"{queue};{SUBQUEUE}"
    if any(each["name"].casefold() == aside.casefold() for each in await _subqueues(qm, queue)):
        for _, side in await present(qm, aside):
            left.take(side)
    here = await present(qm, queue)
    chosen = [(lookup_id, side) for lookup_id, side in here if left.take(side)]
    stay = Counter(side.digest for _, side in here) - Counter(side.digest for _, side in chosen)
    wanted = Counter(each.digest for each in waiting)
    short = wanted - stay
    moved: list[int] = []
    for lookup_id, side in reversed(chosen):
        if short[side.digest] > 0:
            short[side.digest] -= 1
            left.give_back(side)
        else:
            moved.append(lookup_id)
    moved.reverse()
    if not dry_run:
        for at in range(0, len(moved), MESSAGES_MAX):
            await qm.move(queue, aside, Choice(lookup_ids=moved[at : at + MESSAGES_MAX]))
    return Alignment(len(moved), left.count(), left.count_among(stay - wanted))


async def _subqueues(qm: QueueManager, queue: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = (await qm.show_queue(queue))["subqueues"]
    return found
