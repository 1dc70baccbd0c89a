"""Handlers of the verbs that doors need besides those of all applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.control import validate as checked
from qmd.control.acting import act_for, proven_principals
from qmd.control.token_login import refuse_token
from qmd.control.token_watch import Holder
from qmd.control_protocol import doors as frames
from qmd.control_protocol import links as link_frames
from qmd.control_protocol.access import ActFor
from qmd.core.principals import ALL_LOCAL, TOKEN, Principal
from qmd.core.url_links import address_of
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind, identity_of
from qmd.operations.receive_selected import THIS
from qmd.peers.announced import Announced
from qmd.transfer.url_answers import RefusedMessage, reject

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection
    from qmd.peers.link import Link
    from qmd.queues.local_queue import LocalQueue


def _act_for(connection: ControlConnection, request: ActFor) -> None:
    connection.done(request.number, act_for(connection, request.principals))


def _stop_waiting(connection: ControlConnection, request: frames.StopWaiting) -> None:
    components = connection.components
    queue = components.destinations.find_queue(request.queue)
    if request.lock:
        count = components.locks.stop_waiting(request.lock, queue)
    else:
        count = components.message_receiver.stop_waiting_at(connection.reader, queue)
    connection.done(request.number, count)


def _send_over_links(connection: ControlConnection, request: link_frames.SendOverLinks) -> None:
    if request.after and request.after != connection.last_turn:
        raise Refusal(
            "earlier_refused", f"the request before it, of turn {request.after}, was refused"
        )
    connection.components.link_records.send(
        request.messages,
        request.links,
        connection.serial,
        lambda _: connection.done(request.number),
        connection.rights.owner,
    )
    connection.last_turn = request.turn


def _resume_link(connection: ControlConnection, request: link_frames.ResumeLink) -> None:
    work = connection.components.link_records.resume(
        request.link, connection.serial, connection.rights.owner
    )
    connection.look(request.number, work)


def _forget_link(connection: ControlConnection, request: link_frames.ForgetLink) -> None:
    work = connection.components.link_records.forget(
        request.link, connection.serial, connection.rights.owner
    )
    connection.change(request.number, work)


def _note(connection: ControlConnection, request: frames.Note) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    if not 0 < len(request.lookup_ids) <= checked.LIMIT_MAX:
        raise Refusal("bad_limit", f"{len(request.lookup_ids)} messages cannot be remarked on")
    text = checked.reason(request.text)
    connection.look(request.number, _noted(connection, queue, request.lookup_ids, text))


async def _noted(
    connection: ControlConnection, queue: LocalQueue, lookup_ids: list[int], text: str
) -> int:
    """Record the text for the messages that are there; return their number."""
    components = connection.components
    principal, place = connection.rights.principal, connection.reader.who
    client = place if principal == ALL_LOCAL else str(principal)
    header = EventHeader(Kind.NOTED, queue=queue.name, reason=f"{text} (noted by {client})")
    count = 0
    for lookup_id in lookup_ids:
        place_id = checked.place(lookup_id)
        message = await components.selective_receiver.look(queue, THIS, place_id)
        if message is not None:
            components.recorder.provoked(header, *identity_of(message.packet), place=place_id)
            count += 1
    return count


def _announce_session(connection: ControlConnection, request: frames.AnnounceSession) -> None:
    proven = proven_principals(connection, request.principals)
    grant = None
    if request.token:
        grant = connection.components.token_logins.find(request.token)
        if grant is None:
            connection.change(request.number, refuse_token(connection))
            return
        proven.append(Principal(TOKEN, grant.name))
    announced = Announced(checked.address(request.host), frozenset(proven), request.is_encrypted)
    if grant is not None:
        holder = Holder(
            grant, announced.host, announced.end, announced.end, lambda: announced.has_ended
        )
        connection.components.token_logins.watch.add(announced, holder)
    now = connection.components.services.loop.time()
    place = (request.address, request.port)
    connection.components.peers.announced.announce(place, announced, now)
    connection.done(request.number)


def _reject_outgoing(connection: ControlConnection, request: frames.RejectOutgoing) -> None:
    reason = checked.reason(request.reason)
    refused = RefusedMessage(request.source, request.message_number, request.message_class, reason)
    components = connection.components
    link = _link(connection, request.link)
    work = reject(refused, link, components.undeliverable, components.services.storage)
    connection.change(request.number, work)


def _end_link_session(connection: ControlConnection, request: frames.EndLinkSession) -> None:
    reason = checked.reason(request.reason)
    link = _link(connection, request.link)
    session = None if link is None else link.connection or link.attempt
    if session is not None:
        session.close(reason)
    connection.done(request.number, session is not None)


def _link(connection: ControlConnection, text: str) -> Link | None:
    try:
        address = address_of(text)
    except ValueError as error:
        raise Refusal("bad_address", str(error), "Use http://HOST:PORT or https://...") from error
    return connection.components.peers.find_link(address)


HANDLERS: dict[type, Handler] = {
    ActFor: _act_for,
    frames.StopWaiting: _stop_waiting,
    link_frames.SendOverLinks: _send_over_links,
    link_frames.ResumeLink: _resume_link,
    link_frames.ForgetLink: _forget_link,
    frames.Note: _note,
    frames.AnnounceSession: _announce_session,
    frames.RejectOutgoing: _reject_outgoing,
    frames.EndLinkSession: _end_link_session,
}
