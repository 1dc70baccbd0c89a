"""The look-up of a message for an operator: where it is, what happened to it, and what to do.

It includes the view of the other queue manager that sent or got the message, if that one answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import message_id_text, parse_message_id
from qmd.access.demands import TO_PEEK
from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.access.things import thing_of
from qmd.errors import Refusal
from qmd.history.places import MessageId
from qmd.queues.local_queue import LocalQueue
from storage.tables.keys import LOOKUP_MASK

if TYPE_CHECKING:
    from qmd.access.things import ThingFinder
    from qmd.history.message_description import MessageDescriber
    from qmd.history.message_search import MessageSearch
    from qmd.history.remote_lookup import RemoteLookup
    from qmd.naming.destinations import Destinations
    from qmd.runtime.services import Services

Value = dict[str, Any]


class MessageLookup:
    """The requests of `qmd why` and `qmd trace`."""

    def __init__(
        self,
        services: Services,
        search: MessageSearch,
        describer: MessageDescriber,
        remote_lookup: RemoteLookup,
        destinations: Destinations,
        things: ThingFinder,
    ) -> None:
        self._services = services
        self._search = search
        self._describer = describer
        self._remote_lookup = remote_lookup
        self._destinations = destinations
        self._things = things

    async def why(
        self, text: str, queue_text: str, *, ask: bool, rights: Rights = ALL_RIGHTS
    ) -> Value:
        """Return the description of a message, given by its id or lookup id.  Raises Refusal.

        `queue_text` names the queue of a lookup id, or is "".  With `ask`, the queue manager that
        sent or got the message is queried too.  That is done only for a client with all rights,
        because the tokens of this queue manager cannot grant rights there.
        """
        queue = self._destinations.find_queue(queue_text) if queue_text else None
        if _is_lookup_id(text):
            _require_queue(rights, queue)
        source, number = await self._identify(text, queue)
        record = await self._search.find(source, number)
        names = {place["queue"] for place in record.places}
        for found in record.history:
            names |= {found.event.queue, found.event.to_queue}
        self._things.require_story(rights, message_id_text(source, number), names - {""})
        ask = ask and rights.are_all
        result = self._describer.describe(source, number, record)
        link, guid = self._search.other_side(source, record)
        peers = []
        if ask and (guid is not None or link is not None):
            peers.append(await self._remote_lookup.ask(link, guid, source, number))
        result["peers"] = peers
        result["sides"] = _sides(self._services.name, ask=ask, peers=peers)
        return result

    async def _identify(self, text: str, queue: LocalQueue | None) -> MessageId:
        """Return the message with this id, or with this lookup id.  Raises Refusal."""
        if not _is_lookup_id(text):
            try:
                return parse_message_id(text)
            except InvalidName as error:
                raise Refusal(
                    "not_a_message_id",
                    f"'{text}' is neither the id of a message nor a lookup id: {error}",
                    "`qmd send` prints the id, and `qmd peek` shows the lookup id.",
                ) from error
        lookup_id = int(text) if len(text) < 20 else LOOKUP_MASK + 1
        if lookup_id > LOOKUP_MASK:
            raise Refusal("bad_lookup_id", f"no message can have the lookup id {text}")
        found = await self._search.ids_at(lookup_id, queue)
        if not found:
            where = "any queue" if queue is None else queue.name
            raise Refusal(
                "no_such_message",
                f"no message with the lookup id {lookup_id} is in {where}, and the history has"
                " none",
                "Ask by the message's id instead.",
            )
        if len(found) > 1:
            ids = ", ".join(sorted(message_id_text(*each) for each in found))
            raise Refusal(
                "lookup_id_ambiguous",
                f"several messages have the lookup id {lookup_id}: {ids}",
                "Name the queue (--queue), or ask by the message's id.",
            )
        return found.pop()


def _is_lookup_id(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _require_queue(rights: Rights, queue: LocalQueue | None) -> None:
    """Raise Refusal for a lookup id, unless the client may read its queue.

    Lookup ids can be counted through, and each would disclose the id of a message.
    """
    if queue is not None:
        rights.require(TO_PEEK, (thing_of(queue),), "why")
    elif not rights.are_all:
        raise Refusal(
            "right_missing",
            "a lookup id without its queue stands for messages of all queues",
            "Name the queue (--queue), or ask by the message's id.",
        )


def _sides(own: str, *, ask: bool, peers: list[Value]) -> str:
    """Return a sentence that says which view this is, or "" if the other side has answered."""
    if any(peer["answered"] for peer in peers):
        return ""
    if not ask:
        return f"These are the records of {own}; no other queue manager was asked."
    if not peers:
        return ""
    return f"These are the records of {own}; {peers[0]['explanation']}"
