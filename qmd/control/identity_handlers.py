"""Handlers of the verbs for the identities of other queue managers."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text
from qmd.control.handler import Handler, change, look
from qmd.control_protocol.identities import ForgetPeer, ListPeers, PinPeer
from qmd.errors import Refusal
from qmd.peers.origins import ALL, AUTHORITY, KEY, UNPROVEN, Bound

if TYPE_CHECKING:
    from qmd.control.components import Components
    from storage.tables.peer_origins import PeerOrigin

Value = dict[str, Any]

_PROOF = re.compile(f"({KEY}|{AUTHORITY})[0-9a-f]{{32}}")


async def _list(components: Components, request: ListPeers) -> list[Value]:
    guid = _guid(request.queue_manager) if request.queue_manager else None
    sessions = Counter(
        (connection.session.remote_id, connection.fact)
        for connection in components.peers.connections
        if connection.session is not None
    )
    rows = components.origins.facts(guid)
    rows.sort(key=lambda row: (row.queue_manager, -row.bound, row.fact))
    return [
        _row(components, row) | {"sessions": sessions[row.queue_manager, row.fact]} for row in rows
    ]


async def _pin(components: Components, request: PinPeer) -> Value:
    guid, fact = _guid(request.queue_manager), _fact(request.fact)
    if guid == components.services.id:
        raise Refusal("own_identity", "the GUID is that of this queue manager")
    if request.join:
        row = components.origins.join(guid, fact)
        if row is None:
            raise Refusal(
                "cannot_join",
                f"{fact} cannot be joined to the present origin of {guid_text(guid)}: there is"
                " none, or it has proven a key and an address cannot",
                "Without --join the GUID is bound to it alone; a machine that has lost its key"
                " shows its new key in qmd peer list GUID.",
            )
    else:
        row = components.origins.pin(guid, fact)
    components.identities.resolve(guid)
    await components.services.storage.batch.barrier()
    return _row(components, row)


async def _forget(components: Components, request: ForgetPeer) -> Value:
    guid = _guid(request.queue_manager)
    count = components.origins.forget(guid, _fact(request.fact) if request.fact else ALL)
    # All that is known of it includes the key for TLS, and that it has TLS.
    tls = not request.fact and components.tls.forget(guid_text(guid))
    components.identities.resolve(guid)
    await components.services.storage.batch.barrier()
    return {"queue_manager": guid_text(guid), "forgotten": count, "tls_forgotten": tls}


def _row(components: Components, row: PeerOrigin) -> Value:
    return {
        "queue_manager": guid_text(row.queue_manager),
        "fact": row.fact,
        "origin": row.origin,
        "is_primary": components.origins.is_primary_fact(row),
        "bound": Bound(row.bound).text,
        "is_qmd": bool(row.is_qmd),
        "host": row.host,
        "public_key": row.public_key.hex(),
        "first_seen": _time(row.first_seen_s),
        "last_seen": _time(row.last_seen_s),
    }


def _guid(text: str) -> bytes:
    try:
        return guid_bytes(text)
    except InvalidName as error:
        raise Refusal("no_such_identity", f"{text!r} is not a GUID of a queue manager") from error


def _fact(text: str) -> str:
    """Return a fact in the spelling that is stored.  Raises Refusal."""
    text = text.strip().lower()
    if _PROOF.fullmatch(text):
        return text
    try:
        address = ip_address(text.removeprefix(UNPROVEN).partition("%")[0])
    except ValueError:
        raise Refusal(
            "not_an_origin",
            f"{text!r} is neither an IP address nor a key or an authority with its fingerprint",
            "Copy it from qmd peer list.",
        ) from None
    return str(address) if "%" not in text else text


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


HANDLERS: dict[type, Handler] = {
    ListPeers: look(_list),
    PinPeer: change(_pin),
    ForgetPeer: change(_forget),
}
