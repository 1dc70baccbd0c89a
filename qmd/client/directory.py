r"""Queries and changes of the directory, which the queue manager carries out.

    await qm.directory.lookup(r"hostb\orders")
    await qm.directory.create_list("all-orders", ["orders@hosta", r"hostb\orders", "list:others"])
    await qm.send("list:all-orders", b"10 screws")
    await qm.directory.explain("list:all-orders,orders@hostc")

A method that changes something returns when the change is in the directory, and can be repeated
without harm.  See docs/directory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qmd.client.caller import Caller
from qmd.control_protocol import directory as frames
from qmd.control_protocol.messages import Request

Facts = dict[str, Any]


class Directory:
    """The directory, as `QueueManager.directory`.

    Methods raise DirectoryFailed when the directory is unavailable or refuses, and NoSuchQueue when
    it has no such entry.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def status(self) -> Facts:
        """Return which directory is configured, whether it answers, and how much it holds."""
        return await self._ask(frames.DirectoryStatus)

    async def reload(self) -> Facts:
        """Drop cached answers, read the directory file again, and return the same as `status`."""
        return await self._change(frames.DirectoryReload)

    async def lookup(self, name: str, *, fresh: bool = False) -> Facts:
        r"""Return one entry of the directory.

        `name`: `host\queue`, `PUBLIC=guid`, `list:NAME`, `alias:NAME` or a computer's name.
        `fresh`: ask the directory and ignore cached answers.
        """
        return await self._ask(frames.DirectoryLookup, name, fresh)

    async def explain(self, name: str) -> Facts:
        """Return how a destination is understood and where a message would go; send nothing."""
        return await self._ask(frames.ExplainName, name)

    async def lists(self) -> list[Facts]:
        """Return the distribution lists."""
        found: list[Facts] = await self._caller.ask(frames.ListLists)
        return found

    async def show_list(self, name: str) -> Facts:
        """Return a distribution list and its direct members."""
        return await self._ask(frames.ShowList, name)

    async def expand_list(self, name: str) -> list[Facts]:
        """Return the queues of a list and of its nested lists, each once."""
        found: list[Facts] = await self._caller.ask(frames.ExpandList, name)
        return found

    async def create_list(self, name: str, members: Sequence[str] = ()) -> Facts:
        return await self._change(frames.CreateList, name, list(members))

    async def delete_list(self, name: str) -> Facts:
        return await self._change(frames.DeleteList, name)

    async def add_members(self, name: str, members: Sequence[str]) -> Facts:
        """Add all members or none; those that are in the list already stay."""
        return await self._change(frames.AddMembers, name, list(members))

    async def remove_members(self, name: str, members: Sequence[str]) -> Facts:
        """Remove all of the members or none."""
        return await self._change(frames.RemoveMembers, name, list(members))

    async def aliases(self) -> list[Facts]:
        """Return the queue aliases."""
        found: list[Facts] = await self._caller.ask(frames.ListAliases)
        return found

    async def create_alias(self, name: str, stands_for: str) -> Facts:
        """Create `alias:NAME`, another name for one queue."""
        return await self._change(frames.CreateAlias, name, stands_for)

    async def publish_keys(self) -> Facts:
        """Publish the public key of this queue manager, for encrypted messages to it."""
        return await self._change(frames.PublishKeys)

    async def register_certificate(self, sender: str, certificate: bytes) -> Facts:
        """Register a certificate (DER) for a sender in the directory: a SID, or a GUID."""
        return await self._change(frames.RegisterCertificate, sender, certificate)

    async def remove_certificate(self, sender: str, fingerprint: str) -> Facts:
        """Remove a certificate of a sender from the directory by its SHA-256."""
        return await self._change(frames.RemoveCertificate, sender, fingerprint)

    async def certificates(self, sender: str) -> list[Facts]:
        """Return the certificates that the directory has for a sender."""
        found: list[Facts] = await self._caller.ask(frames.ListCertificates, sender)
        return found

    async def delete_alias(self, name: str) -> Facts:
        return await self._change(frames.DeleteAlias, name)

    async def _ask(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.ask(verb, *arguments)
        return facts

    async def _change(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.change(verb, *arguments, safe_to_retry=True)
        return facts
