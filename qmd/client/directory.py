r"""What applications and operators ask the directory through the queue manager, and change in it.

    await qm.directory.lookup(r"hostb\orders")
    await qm.directory.create_list("all-orders", ["orders@hosta", r"hostb\orders", "list:others"])
    await qm.send("list:all-orders", b"10 screws")
    await qm.directory.explain("list:all-orders,orders@hostc")

What changes something returns when it is in the directory, and does no harm when repeated.
See docs/directory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qmd.client.caller import Caller
from qmd.control_protocol import directory as frames
from qmd.control_protocol.messages import Request

Facts = dict[str, Any]


class Directory:
    """`QueueManager.directory`.  DirectoryFailed, where it is away or refuses; NoSuchQueue, where
    it has no such entry."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def status(self) -> Facts:
        """Which directory it is, whether it answers, and how much it holds."""
        return await self._ask(frames.DirectoryStatus)

    async def reload(self) -> Facts:
        """Forget what it said, and read its file anew; then as `status`."""
        return await self._change(frames.DirectoryReload)

    async def lookup(self, name: str, *, fresh: bool = False) -> Facts:
        r"""One entry: `host\queue`, `PUBLIC=guid`, `list:NAME`, `alias:NAME`, a computer's name.

        `fresh`: asked anew, whatever was kept.
        """
        return await self._ask(frames.DirectoryLookup, name, fresh)

    async def explain(self, name: str) -> Facts:
        """How a destination is understood and where a message would go; nothing is sent."""
        return await self._ask(frames.ExplainName, name)

    async def lists(self) -> list[Facts]:
        """The distribution lists."""
        found: list[Facts] = await self._caller.ask(frames.ListLists)
        return found

    async def show_list(self, name: str) -> Facts:
        """A distribution list and its direct members."""
        return await self._ask(frames.ShowList, name)

    async def expand_list(self, name: str) -> list[Facts]:
        """The queues of a list and of the lists within it, each once."""
        found: list[Facts] = await self._caller.ask(frames.ExpandList, name)
        return found

    async def create_list(self, name: str, members: Sequence[str] = ()) -> Facts:
        return await self._change(frames.CreateList, name, list(members))

    async def delete_list(self, name: str) -> Facts:
        return await self._change(frames.DeleteList, name)

    async def add_members(self, name: str, members: Sequence[str]) -> Facts:
        """All or none; those that are in it already stay."""
        return await self._change(frames.AddMembers, name, list(members))

    async def remove_members(self, name: str, members: Sequence[str]) -> Facts:
        """All or none."""
        return await self._change(frames.RemoveMembers, name, list(members))

    async def aliases(self) -> list[Facts]:
        """The queue aliases."""
        found: list[Facts] = await self._caller.ask(frames.ListAliases)
        return found

    async def create_alias(self, name: str, stands_for: str) -> Facts:
        """`alias:NAME`, another name for one queue."""
        return await self._change(frames.CreateAlias, name, stands_for)

    async def delete_alias(self, name: str) -> Facts:
        return await self._change(frames.DeleteAlias, name)

    async def _ask(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.ask(verb, *arguments)
        return facts

    async def _change(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.change(verb, *arguments, safe_to_retry=True)
        return facts
