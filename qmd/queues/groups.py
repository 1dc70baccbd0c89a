"""Groups of a queue: the messages with one group id go to one reader at a time, in their order.

A reader owns a group from its first message on, as long as it has messages of the group: until they
are removed durably, or back in the queue. Meanwhile no other reader gets a message of the group;
other groups, and messages without a group, are not affected. A reader is a connection, a lock or a
transaction. Owners are in memory: after a start no group has one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set

from protocol import properties_offset
from qmd.properties.block import MARK, read_extension
from qmd.queues.scout import Scout

_EXTENSION_SIZE, _LABEL = 52, 56  # in MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3


def group_of(packet: bytes) -> str:
    """Return the group id of a packet, "" for none."""
    at = properties_offset(packet)
    start = at + _LABEL + 2 * packet[at + 1]
    if not packet.startswith(MARK, start):
        return ""
    size = int.from_bytes(packet[at + _EXTENSION_SIZE : at + _LABEL], "little")
    return read_extension(packet[start : start + size])[0].group


class Groups:
    """The groups of one queue that have owners; `scouts` are the searches that wait there."""

    def __init__(self, scouts: Set[Scout]) -> None:
        self._scouts = scouts
        self._owners: dict[str, Hashable] = {}
        self._members: dict[str, set[int]] = {}  # lookup ids of taken messages
        self._group_of: dict[int, str] = {}

    @property
    def owned(self) -> int:
        """The number of groups with an owner."""
        return len(self._owners)

    def may_take(self, group: str, reader: Hashable) -> bool:
        """Return whether a reader may take messages of a group."""
        return not group or self._owners.get(group, reader) is reader

    def claim(self, lookup_id: int, group: str, reader: Hashable) -> None:
        """Note that a reader, the owner of the group or its new owner, has taken a message."""
        if group:
            self._owners[group] = reader
            self._members.setdefault(group, set()).add(lookup_id)
            self._group_of[lookup_id] = group

    def hand_over(self, lookup_ids: Iterable[int], reader: Hashable) -> None:
        """Give the groups of messages to another reader, if it now has all that were taken."""
        ids = set(lookup_ids)
        for group in {self._group_of[each] for each in ids if each in self._group_of}:
            if ids >= self._members[group]:
                self._owners[group] = reader

    def release(self, lookup_id: int) -> bool:
        """Note that a message is not taken any more; return whether its group has no owner now."""
        group = self._group_of.pop(lookup_id, None)
        if group is None:
            return False
        members = self._members[group]
        members.discard(lookup_id)
        if members:
            return False
        del self._members[group], self._owners[group]
        for scout in self._scouts:
            scout.freed(group)
        return True


class GroupPass:
    """One pass of a search through a queue with groups.

    A group that another reader owns at its first message is left out for the whole pass, so that a
    later message of it does not overtake.
    """

    def __init__(self, groups: Groups, reader: Hashable, scout: Scout) -> None:
        self._groups = groups
        self._reader = reader
        self._scout = scout
        self._left_out: set[str] = set()

    def admits(self, lookup_id: int, packet: bytes) -> bool:
        """Return whether the reader may take a message."""
        group = group_of(packet)
        if group not in self._left_out and self._groups.may_take(group, self._reader):
            return True
        self._left_out.add(group)
        self._scout.skip(group, lookup_id)
        return False
