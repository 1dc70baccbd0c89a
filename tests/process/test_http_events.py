"""Events as a stream, CloudEvents, and delayed messages over the HTTP door."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpClient, HttpDoor, messages, open_door

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("events"), "orders")


@pytest.fixture
def client(door: HttpDoor) -> Iterator[HttpClient]:
    client = door.client()
    yield client
    client.json("POST", "/v1/queues/orders/purge")
    door.close_clients()


class Stream:
    """A connection that reads events as they come."""

    def __init__(self, door: HttpDoor, path: str, last_id: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=END_S)
        headers = {
            "accept": "text/event-stream",
            "authorization": f"Bearer {door.token(name='admin')}",
            **({"last-event-id": last_id} if last_id else {}),
        }
        self._connection.request("GET", path, headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.getheader("content-type") == "text/event-stream"

    def next(self) -> dict[str, Any]:
        """Return the fields of the next event, with the data decoded."""
        fields: dict[str, Any] = {}
        while True:
            line = self._response.readline().decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                return {**fields, "data": json.loads(fields["data"])}
            else:
                fields = {}

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def test_events_are_streamed_and_resumed_without_a_gap(door: HttpDoor, client: HttpClient) -> None:
    start = client.json("GET", "/v1/events?last=1")["cursor"]
    stream = Stream(door, f"/v1/events?cursor={start}&queue=orders")
    first = client.send("orders", "1")

    event = stream.next()
    stream.close()
    second = client.send("orders", "2")  # while no stream is open
    resumed = Stream(door, "/v1/events?queue=orders", last_id=event["id"])

    assert (event["event"], event["data"]["kind"]) == ("sent", "sent")
    assert event["data"]["message_id"] == first
    assert resumed.next()["data"]["message_id"] == second
    third = client.send("orders", "3")
    assert resumed.next()["data"]["message_id"] == third
    resumed.close()


def test_a_stream_is_resumed_after_the_door_and_the_daemon_were_killed(
    door: HttpDoor, client: HttpClient
) -> None:
    start = client.json("GET", "/v1/events?last=1")["cursor"]
    stream = Stream(door, f"/v1/events?cursor={start}&queue=orders")
    client.send("orders", "1")
    event = stream.next()
    stream.close()
    second = client.send("orders", "2")
    door.close_clients()
    door.kill()
    door.daemon.kill()
    door.daemon.start()
    door.start()
    third = door.client().send("orders", "3")

    resumed = Stream(door, "/v1/events?queue=orders", last_id=event["id"])

    assert [resumed.next()["data"]["message_id"] for _ in range(2)] == [second, third]
    resumed.close()


def test_an_error_of_a_stream_has_its_status(client: HttpClient) -> None:
    found = client.problem("GET", "/v1/events?cursor=nonsense", accept="text/event-stream")

    assert found[0] == 400


def test_a_page_of_events_names_the_next(client: HttpClient) -> None:
    start = client.json("GET", "/v1/events?last=1")["cursor"]
    sent = [client.send("orders", str(each)) for each in range(3)]

    found, cursor = [], start
    while len(found) < 3:
        path = f"/v1/events?cursor={cursor}&limit=1&kinds=sent&kinds=received&wait_s=60"
        page = client.json("GET", path)
        found += [each["message_id"] for each in page["events"]]
        cursor = page["cursor"]

    assert found == sent


EVENT = {
    "specversion": "1.0",
    "id": "A-1",
    "source": "/shop/ümlaut",
    "type": "com.example.order",
    "subject": "order 17",
    "time": "2026-01-31T00:00:00Z",
    "datacontenttype": "application/json",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "sequence": 5,
}


def received(client: HttpClient) -> list[dict[str, Any]]:
    answer = client.ask("POST", "/v1/queues/orders/receive", {"limit": 10}, accept=BATCH)
    assert (answer.status, answer.headers["content-type"]) == (200, BATCH)
    return list(json.loads(answer.content))


def test_a_structured_event_returns_as_it_was(client: HttpClient) -> None:
    event = {**EVENT, "data": {"screws": 10, "kind": "½"}}

    unset = {"dataschema": None, "ownext": None}  # as if the members were not there

    data = json.dumps({**event, **unset}).encode()
    sent = client.ask("POST", messages("orders"), data, STRUCTURED)
    (message,) = client.json("GET", messages("orders"))["messages"]
    looked = client.ask("GET", f"{messages('orders')}/{message['lookup_id']}", accept=STRUCTURED)

    assert sent.status == 201, sent
    assert message["label"] == "order 17"
    assert json.loads(message["body"]) == event["data"]
    assert json.loads(looked.content) == event
    assert received(client) == [event]


def test_a_binary_event_returns_as_it_was(client: HttpClient) -> None:
    headers = {
        "ce_specversion": "1.0",
        "ce_id": "A-2",
        "ce_source": "/shop/%C3%BCmlaut",
        "ce_type": "com.example.photo",
    }
    content = bytes(range(256))

    sent = client.ask("POST", messages("orders"), content, "image/png", **headers)
    (message,) = client.json("GET", messages("orders"))["messages"]
    body = client.ask("GET", f"{messages('orders')}/{message['lookup_id']}/body")

    assert sent.status == 201, sent
    assert body.content == content
    assert body.headers["content-type"] == "image/png"
    assert body.headers["ce-source"] == "/shop/%C3%BCmlaut"
    (event,) = received(client)
    assert event["source"] == "/shop/ümlaut"
    assert base64.b64decode(event["data_base64"]) == content


def test_the_data_of_a_binary_event_may_be_json(client: HttpClient) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "A-3", "ce_source": "/shop", "ce_type": "order"}
    content = b'{"article": "screws", "count": 10}'

    sent = client.ask("POST", messages("orders"), content, "application/json", **headers)
    structured = client.ask("POST", messages("orders"), EVENT, STRUCTURED, **headers)

    assert (sent.status, structured.status) == (201, 201), (sent, structured)
    first, second = received(client)
    assert first["data"] == {"article": "screws", "count": 10}
    assert first["datacontenttype"] == "application/json"
    assert second == EVENT


def test_a_body_with_a_coding_is_refused(client: HttpClient) -> None:
    for media in ("text/plain", "application/json"):
        refused = client.ask(
            "POST", messages("orders"), b"\x1f\x8b\x08", media, content_encoding="gzip"
        )
        assert refused.status == 415
        assert refused.headers["accept-encoding"] == "identity"


def test_a_batch_of_events_is_sent_together(client: HttpClient) -> None:
    events = [{**EVENT, "id": str(each), "data": each} for each in range(3)]
    wrong = [*events, {"specversion": "1.0", "id": "3", "source": "/x"}]

    refused = client.ask("POST", messages("orders"), json.dumps(wrong).encode(), BATCH)
    sent = client.ask("POST", messages("orders"), json.dumps(events).encode(), BATCH)

    assert (refused.status, json.loads(refused.content)["code"]) == (400, "http_bad_event")
    assert (sent.status, len(json.loads(sent.content)["messages"])) == (201, 3)
    assert received(client) == events


def test_a_batch_of_no_events_is_valid(client: HttpClient) -> None:
    sent = client.ask("POST", messages("orders"), b"[]", BATCH)
    taken = client.ask("POST", "/v1/queues/orders/receive", {"limit": 5}, accept=BATCH)

    assert (sent.status, json.loads(sent.content)) == (201, {"messages": []})
    assert (taken.status, taken.content) == (200, b"[]")


def test_any_message_is_an_event(client: HttpClient) -> None:
    sent = client.send("orders", "ten screws")

    (event,) = received(client)

    assert (event["id"], event["type"], event["data"]) == (sent, "msmq.message", "ten screws")
    assert event["source"].startswith("urn:msmq:")


@pytest.mark.parametrize(
    "change",
    [
        {"specversion": "0.3"}, {"id": ""}, {"source": None}, {"Bad-Name": "x"},
        {"extra": {"nested": 1}}, {"data": 1, "data_base64": "AA=="}, {"data_base64": "!"},
    ],
)  # fmt: skip
def test_a_wrong_event_is_refused(client: HttpClient, change: dict[str, Any]) -> None:
    event = {name: value for name, value in {**EVENT, **change}.items() if value is not None}

    answer = client.ask("POST", messages("orders"), json.dumps(event).encode(), STRUCTURED)

    assert answer.status == 400, answer
    assert client.receive("orders") == []


def test_a_delayed_message_is_listed_and_cancelled(client: HttpClient) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    by_time = client.json(
        "POST", messages("orders"), {"body": "1", "deliver_at": later}, status=201
    )
    client.json("POST", messages("orders"), {"body": "2", "delay_s": 0.01}, status=201)

    listed = client.json("GET", "/v1/delayed?queue=orders")["messages"]
    assert by_time["id"] in [each["id"] for each in listed]
    assert [each["body"] for each in client.receive("orders", wait_s=60)] == ["2"]
    path = f"/v1/delayed/{quote(by_time['id'], safe='')}"
    client.json("DELETE", path, status=204)
    assert client.problem("DELETE", path) == (404, "no_such_message")
    assert client.json("GET", "/v1/delayed")["messages"] == []


def test_a_selector_chooses_messages(client: HttpClient) -> None:
    for region in ("west", "east"):
        given = {"body": region, "properties": {"region": region}}
        client.json("POST", messages("orders"), given, status=201)

    found = client.receive("orders", limit=10, choice={"where": "region = 'east'"})

    assert [each["body"] for each in found] == ["east"]
