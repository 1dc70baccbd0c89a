"""Rights: the entries of queues and of the host, owners, and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qmd.client.caller import Caller
from qmd.control_protocol import access as frames
from qmd.control_protocol.messages import Request

Facts = dict[str, Any]


class AccessControl:
    """Rights, as `QueueManager.access`.

    An object is "host", "*" (all queues), or a queue.  A principal is "user:ann", "group:staff",
    "token:archive", "everyone" and so on; rights are a text such as "send,peek" or "full".
    docs/access.md describes them.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def show(self, object: str) -> Facts:
        """Return the entries of an object: {object, kind, owner, entries, default}."""
        return await self._ask(frames.ShowAccess, object)

    async def grant(self, principal: str, rights: str, object: str) -> Facts:
        """Allow rights to a principal; return the same as `show`."""
        return await self._change(frames.ChangeAccess, frames.GRANT, principal, rights, object)

    async def deny(self, principal: str, rights: str, object: str) -> Facts:
        """Deny rights to a principal, whatever else allows them; return the same as `show`."""
        return await self._change(frames.ChangeAccess, frames.DENY, principal, rights, object)

    async def revoke(self, principal: str, rights: str, object: str) -> Facts:
        """Remove rights from the entries of a principal; return the same as `show`."""
        return await self._change(frames.ChangeAccess, frames.REVOKE, principal, rights, object)

    async def set_owner(self, queue: str, principal: str = "") -> Facts:
        """Give a queue to an owner, or to the caller itself; return the same as `show`."""
        return await self._change(frames.SetOwner, queue, principal)

    async def test(self, principal: str, right: str, object: str) -> Facts:
        """Return whether a principal ("": the caller itself) has a right, and what decides."""
        return await self._ask(frames.TestAccess, principal, right, object)

    async def export(self) -> Facts:
        """Return all {entries, owners}."""
        return await self._ask(frames.ExportAccess)

    async def import_(
        self,
        entries: Sequence[Mapping[str, Any]],
        owners: Sequence[Mapping[str, Any]] = (),
        *,
        replace: bool = False,
    ) -> Facts:
        """Add exported entries and owners, all of them or none; return how many.

        `replace`: all other entries are removed.
        """
        return await self._change(
            frames.ImportAccess,
            [
                frames.ImportedEntry(
                    str(each["object"]),
                    str(each["principal"]),
                    each.get("number"),
                    str(each["effect"]),
                    str(each["rights"]),
                )
                for each in entries
            ],
            [
                frames.ImportedOwner(str(each["queue"]), str(each["principal"]), each.get("number"))
                for each in owners
            ],
            replace,
        )

    async def _ask(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.ask(verb, *arguments)
        return facts

    async def _change(self, verb: type[Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.change(verb, *arguments, safe_to_retry=True)
        return facts
