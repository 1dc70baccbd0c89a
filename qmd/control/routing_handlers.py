"""Handlers of the verbs for routes: redirect, restart a sequence, forget an identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text
from qmd.control import peer_status
from qmd.control.handler import Handler, change
from qmd.control_protocol.routing import ForgetIdentity, RedirectOutgoing, RestartOutgoing
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.components import Components

Value = dict[str, Any]


async def _redirect(components: Components, request: RedirectOutgoing) -> list[Value]:
    queues = await components.redirection.redirect(
        request.destination, request.address, to_another=request.to_another
    )
    return [peer_status.outgoing_queue(components, queue) for queue in queues]


async def _forget(components: Components, request: ForgetIdentity) -> Value:
    try:
        guid = guid_bytes(request.queue_manager)
    except InvalidName as error:
        raise Refusal(
            "no_such_identity", f"{request.queue_manager!r} is not a GUID of a queue manager"
        ) from error
    blocked = components.incoming_streams.forget_source(guid)
    return {
        "queue_manager": guid_text(guid),
        "forgotten": components.identities.forget(guid) or blocked > 0,
    }


async def _restart(components: Components, request: RestartOutgoing) -> dict[str, Any]:
    queue = components.destinations.find_outgoing(request.destination)
    count = await components.sequence_renewal.restart(queue, send_again=request.send_again)
    return {
        "destination": queue.destination,
        "queue_manager": None if queue.link.remote_id is None else guid_text(queue.link.remote_id),
        "in_doubt": count,
        "sent_again": request.send_again,
        "messages": queue.messages,
    }


HANDLERS: dict[type, Handler] = {
    RedirectOutgoing: change(_redirect),
    ForgetIdentity: change(_forget),
    RestartOutgoing: change(_restart),
}
