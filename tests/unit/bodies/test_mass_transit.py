"""Messages that are written for endpoints of MassTransit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from qmd.bodies.bus_headers import format_name, read_bus_headers
from qmd.bodies.mass_transit import write_mass_transit

ID = "181c0000-6393-3630-36a4-08daf4e7c6da"
REQUEST = "ef375b18-69ee-4a9e-b5ec-44ee1177a27e"
SENT = datetime(2026, 1, 2, 4, 4, 5, 678901, timezone(timedelta(hours=1)))
TYPE = "urn:message:Shop:Order"


def written(**changes: Any) -> tuple[bytes, bytes]:
    given = {"message": {"article": "Schl\u00fcssel"}, "message_types": [TYPE], "id": ID}
    return write_mass_transit(**{**given, "sent_at": SENT, **changes})


def test_a_written_message_is_read_as_one_of_masstransit():
    body, extension = written(
        request_id=REQUEST,
        conversation_id=REQUEST,
        response_address="msmq://hosta/web",
        headers={"tenant": "7"},
    )

    found = read_bus_headers(extension, body)

    assert found is not None
    assert (found.framework, found.message_id) == ("MassTransit", ID)
    assert (found.related_to, found.conversation_id) == (REQUEST, REQUEST)
    assert (found.message_types, found.headers["tenant"]) == ((TYPE,), "7")
    assert found.sent_at == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert format_name(found.return_address) == r"DIRECT=OS:hosta\private$\web"


def test_the_envelope_has_the_published_names_and_no_empty_ones():
    body, extension = written()

    assert json.loads(body) == {
        "messageId": ID,
        "messageType": [TYPE],
        "message": {"article": "Schl\u00fcssel"},
        "sentTime": "2026-01-02T03:04:05.678901Z",
        "headers": {},
    }
    assert json.loads(extension) == {"Content-Type": "application/vnd.masstransit+json"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": ""}, "id is empty"),
        ({"id": "7"}, "id is '7'; MassTransit reads GUIDs only"),
        ({"request_id": "7"}, "request_id is '7'"),
        ({"response_address": "web@hosta"}, "response_address is 'web@hosta'; it is a URI"),
        ({"message_types": []}, "each begins with 'urn:message:'"),
        ({"message_types": [TYPE, "Shop.Order, Shop"]}, "each begins with"),
        ({"message_types": ["urn:message:"]}, "each begins with"),
        ({"sent_at": datetime(2026, 1, 2)}, "has no time zone"),
        ({"message": {"a": float("nan")}}, "JSON"),
        ({"message": {"a": b""}}, "JSON cannot hold"),
        ({"message": {"a": "\ud800"}}, "surrogates"),
    ],
)
def test_a_message_that_masstransit_could_not_read_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        written(**changes)
