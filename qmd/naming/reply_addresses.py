"""Addresses of administration, response and report queues, as packets name them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.errors import InvalidName
from protocol.names.direct_name import DirectName
from protocol.names.format_name import FormatName, PublicName, SingleName, parse_destination
from qmd.directory.spelling import name_of
from qmd.errors import Refusal
from qmd.message.addresses import NO_ADDRESS, QueueAddress, reply_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.directory.resolver import Resolution, Resolver
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services

ADDRESSES_MAX = 10_000  # spellings of queues for answers that are kept with their addresses


class ReplyAddresses:
    """The queues that receive acknowledgments, answers and reports, by their names."""

    def __init__(
        self,
        services: Services,
        resolver: Resolver,
        resolved: Callable[[str], Resolution],
        find_here: Callable[[FormatName], LocalQueue | None],
    ) -> None:
        """`resolved(text)` returns the targets of a name, or raises Refusal or MustAsk;
        `find_here(name)` returns the queue of this computer that a name stands for."""
        self._services = services
        self._resolver = resolver
        self._resolved = resolved
        self._find_here = find_here
        self._addresses: dict[str, QueueAddress] = {"": NO_ADDRESS}
        self._lists: dict[str, QueueAddress] = {}  # from the directory, until its answer expires

    def address(self, text: str) -> QueueAddress:
        """Return the address of an administration or response queue as a packet names it; queues of
        this computer get its name.

        For distribution lists and aliases, the packet names the queues that they stand for: a
        computer that answers may not have the directory.  Raises Refusal, and MustAsk when a
        request names a list for the first time; within one turn of the event loop, the same name
        always gets the same answer.
        """
        address = self._addresses.get(text) or self._lists.get(text)
        if address is not None:
            return address
        if self._resolver.names_entries(text):
            return self._list_address(text)
        try:
            name = parse_destination(text, local_host=self._services.name)
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        address = reply_address(name, self._services.id)
        if len(self._addresses) >= ADDRESSES_MAX:
            self._addresses = {"": NO_ADDRESS}
        self._addresses[text] = address
        return address

    def _list_address(self, text: str) -> QueueAddress:
        if len(self._lists) >= ADDRESSES_MAX:
            raise Refusal(
                "too_many_reply_queues",
                f"{ADDRESSES_MAX} lists and aliases are known as queues for answers",
                "Name the queues themselves, or wait.",
            )
        found = self._resolved(text)
        names: dict[str, SingleName] = {}
        for target in found.targets:
            name = target.name
            if isinstance(name, DirectName) and name.host == ".":
                name = replace(name, host=self._services.name)
            names.setdefault(name.key, name)
        address = self._lists[text] = reply_address(
            name_of(tuple(names.values())), self._services.id
        )
        if found.expires_at != math.inf:
            self._services.loop.call_at(found.expires_at, self._lists.pop, text, None)
        return address

    def report_queue(self, text: str) -> bytes:
        """Return the GUID by which a traced message names its report queue.  Raises Refusal."""
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        if isinstance(name, PublicName):
            return name.queue
        queue = self._find_here(name)
        if queue is None or queue.is_read_only or queue.transactional:
            raise Refusal(
                "bad_report_queue",
                f"{name} cannot get reports: only a queue of this computer that is not"
                " transactional can, or one that is named PUBLIC=guid",
                "Create one: qmd queue create reports",
            )
        return queue.guid

    def forget(self) -> None:
        """Drop the addresses of lists and aliases: the directory or the queues have changed."""
        self._lists.clear()
