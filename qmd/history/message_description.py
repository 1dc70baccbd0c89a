"""The description of a message: its places, events and an explanation, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protocol.identifiers import guid_text, message_id_text
from qmd.events.header import Kind
from qmd.history.event_query import flat, time_text
from qmd.history.explanation import explain

if TYPE_CHECKING:
    from qmd.history.message_search import MessageRecord
    from qmd.peers.sessions import Peers
    from qmd.runtime.services import Services

Value = dict[str, Any]


class MessageDescriber:
    """The part that makes descriptions of messages."""

    def __init__(self, services: Services, peers: Peers) -> None:
        self._services = services
        self._peers = peers

    def describe(self, source: bytes, number: int, record: MessageRecord) -> Value:
        """Return the description of a message from its record."""
        now_ms = int(self._services.environment.time() * 1000)
        events = [flat(self._services, found) for found in record.history]
        explanation = explain(
            record.places,
            events,
            now_ms=now_ms,
            known_host=self._services.name,
            names=self._peer_names(),
            searched_all=record.searched_all,
        )
        sentences = list(explanation.sentences)
        sentences += _signed(record.places, events)
        if not record.is_up_to_date:
            sentences.append(
                "The disk does not keep up: the latest events are not listed here, because they"
                " are not durable yet."
            )
        return {
            "message_id": message_id_text(source, number),
            "host": self._services.name,
            "queue_manager": guid_text(self._services.id),
            "state": explanation.state,
            "sentences": sentences,
            "remedies": explanation.remedies,
            "places": [_shown(place) for place in record.places],
            "events": events,
            "events_left_out": record.has_gap,
        }

    def _peer_names(self) -> dict[str, str]:
        """Return the names by which operators know other queue managers, by their GUIDs."""
        names = {
            guid_text(connection.session.remote_id): connection.host
            for connection in self._peers.connections
            if connection.session is not None and connection.session.remote_id is not None
        }
        for link in self._peers.links:
            if link.remote_id is not None and link.guid is None:
                names[guid_text(link.remote_id)] = link.name
        return names


def _signed(places: Sequence[Value], events: Sequence[Value]) -> list[str]:
    """Return sentences about the verified signer of a message, also when it has left this host."""
    if not any(place.get("signer") for place in places):
        recorded = [event["reason"] for event in events if event["kind"] == Kind.ACCEPTED]
        return list(dict.fromkeys(filter(None, recorded)))
    from qmd.message_security.signer_facts import signer_sentence

    return [signer_sentence(place["signer"]) for place in places if place.get("signer")]


def _shown(place: Value) -> Value:
    """Return a place with its times as text, as in all JSON output."""
    shown: Value = {}
    for name, value in place.items():
        if name.endswith("_ms"):
            shown[name.removesuffix("_ms")] = None if value is None else time_text(value)
        elif isinstance(value, dict):
            shown[name] = _shown(value)
        else:
            shown[name] = value
    return shown
