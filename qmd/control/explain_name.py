"""Explanation of a name for `qmd name explain`: its elements, and the route of a message to it.

`name_parts.py` explains the name alone, and needs no daemon.  This module describes the actions of
this queue manager for a message to that name; it sends nothing and creates nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.names.direct_name import DirectName
from protocol.names.format_name import PrivateName, PublicName
from qmd.control.directory_handlers import address_of
from qmd.control.handler import Handler, look
from qmd.control_protocol import directory as frames
from qmd.directory.interface import KIND_NONE
from qmd.directory.name_parts import parts_of
from qmd.directory.spelling import QueuePath, name_of
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.peers.link import Link

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.directory.spelling import Spelled

Value = dict[str, Any]


async def explain(components: Components, request: frames.ExplainName) -> Value:
    """Return the answer that the class of the request describes."""
    text = request.name
    elements = [await _element(components, each) for each in components.resolver.parse(text)]
    refusals = [each["refusal"] for each in elements if each["refusal"]]
    refusals += [
        target["refusal"]
        for each in elements
        for target in each["targets"]
        if target["refusal"] is not None
    ]
    names = [each.pop("name") for each in elements]
    whole = None
    if None not in names:
        try:
            whole = str(name_of(tuple(names)))
        except InvalidName as error:
            refusals.append(
                _refused(
                    Refusal("name_not_understood", f"'{text}' is not the name of a queue: {error}")
                )
            )
    return {
        "text": text,
        "format_name": whole,
        "sendable": not refusals,
        "refusal": refusals[0] if refusals else None,
        "elements": elements,
    }


async def _element(components: Components, spelled: Spelled) -> Value:
    found: Value = {"text": str(spelled), "name": None, "format_name": None, **parts_of(spelled)}
    found |= {"targets": [], "refusal": None}
    try:
        name, _ = await components.resolver.understand_one(spelled)
        found |= {"name": name, "format_name": str(name), **parts_of(name)}
        if isinstance(spelled, QueuePath):
            found["kind"] = "public"
        resolution = await components.resolver.resolve(name)
        found["targets"] = [await _target(components, each) for each in resolution.targets]
    except Refusal as refusal:
        found["refusal"] = _refused(refusal)
    return found


async def _target(components: Components, target: Target) -> Value:
    found: Value = {
        "name": str(target.name),
        "queue": None,
        "transactional": target.transactional,
        "transport": None,
        "address": None,
        "machine": None if target.machine is None else target.machine.name,
        "addresses": [] if target.machine is None else list(target.machine.addresses),
        "outgoing": None,
        "next_hop": None,
        "refusal": None,
    }
    routes = components.destinations
    queue = routes.find_here(target.name)
    if queue is None and isinstance(target.name, PublicName):
        queue = routes.queue_by_guid(target.name.queue)
    if queue is not None:
        found |= {"queue": queue.name, "transactional": queue.transactional, "transport": "none"}
        if queue.is_read_only:
            found["refusal"] = _refused(
                Refusal(
                    "queue_read_only",
                    f"{queue.name} is a journal, dead-letter queue or subqueue",
                    "Such queues can be read, but not sent to.",
                )
            )
        return found
    if isinstance(target.name, DirectName) and routes.is_local(target.name):
        try:
            routes.route_name(target.name)
        except Refusal as refusal:
            found["refusal"] = _refused(refusal)
        return found
    if isinstance(target.name, DirectName) and target.name.read_only:
        found["refusal"] = _refused(
            Refusal(
                "system_queue_elsewhere",
                f"{target.name} is a journal, dead-letter queue or subqueue of another computer",
                "Such queues can be read on their own computer, but not sent to.",
            )
        )
        return found
    found["transport"] = "tcp"
    if target.direct is not None:
        found["address"] = address_of(target.direct)
    outgoing = components.outgoing.find(target.name.key)
    if outgoing is not None:
        found["outgoing"] = outgoing.destination
    try:
        found["next_hop"] = await _next_hops(components, target)
    except Refusal as refusal:
        found["next_hop"] = []
        found["no_way"] = refusal.text  # no refusal: a message waits until there is a route
    return found


async def _next_hops(components: Components, target: Target) -> list[str]:
    """Return the next hops of a message to the target: addresses, or queue managers."""
    name, peers, routing = target.name, components.peers, components.next_hops
    if isinstance(name, DirectName):
        # A temporary link, which is not registered: a question must not create a route.
        link = components.make_link(address=(name.host, name.port), guid=None)
        ways = [way.name for way in routing.carriers(link)]
        routing.link_changed(link)
        return ways
    guid = name.queue_manager if isinstance(name, PrivateName) else None
    guid = target.machine.guid if target.machine is not None else guid
    if guid is None:
        return []
    known = peers.find_link(guid)
    if known is not None and (ways := [_way(way) for way in routing.carriers(known)]):
        return ways
    if components.directory.kind == KIND_NONE:
        return []
    return [
        f"{machine.name} ({', '.join(machine.addresses)})" if machine.addresses else machine.name
        for machine in await routing.next_machines(guid)
    ]


def _way(link: Link) -> str:
    if link.address is None:
        return link.name
    host, port = link.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refused(refusal: Refusal) -> Value:
    return {
        "id": refusal.id,
        "code": refusal.code,
        "text": refusal.text,
        "remedy": refusal.remedy,
    }


HANDLERS: dict[type, Handler] = {frames.ExplainName: look(explain)}
