"""Pushes of the HTTP door: queues that are delivered to a real web server."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.http_door import HttpClient, HttpDoor, messages, open_door
from tests.process.web_receiver import Receiver


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    folder = tmp_path_factory.mktemp("push")
    yield from open_door(folder, "orders", push_targets=["127.0.0.0/8"])


@pytest.fixture
def client(door: HttpDoor) -> Iterator[HttpClient]:
    client = door.client()
    yield client
    for each in client.json("GET", "/v1/pushes")["pushes"]:
        client.json("DELETE", f"/v1/pushes/{each['name']}", status=204)
    client.json("POST", "/v1/queues/orders/purge")
    client.json("POST", "/v1/queues/dead-letter/purge")
    door.close_clients()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def push(client: HttpClient, url: str, **given: Any) -> str:
    """Create a push of the queue; return its secret."""
    new = {"name": "hook", "queue": "orders", "url": url, "first_pause_s": 0.01, **given}
    return str(client.json("POST", "/v1/pushes", new, status=201)["secret"])


def emptied(client: HttpClient, queue: str = "orders") -> None:
    """Wait until a queue is empty: what was delivered has been removed."""
    while client.json("GET", f"/v1/queues/{queue}")["messages"]:
        pass


def test_messages_are_delivered_in_order_and_signed(client: HttpClient, receiver: Receiver) -> None:
    secret = push(client, f"{receiver.url}/hook?shop=1")
    ids = [client.send("orders", str(each)) for each in range(20)]

    calls = receiver.wait_for(20)
    emptied(client)

    assert [call.body for call in calls] == [str(each).encode() for each in range(20)]
    assert [call.headers["webhook-id"] for call in calls] == ids
    key = base64.b64decode(secret.removeprefix("whsec_"))
    for path, headers, body in calls:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        assert (path, headers["qmd-attempt"]) == ("/hook?shop=1", "1")


def test_a_failed_delivery_is_tried_again_before_the_next_message(
    client: HttpClient, receiver: Receiver
) -> None:
    receiver.statuses = [500, 302, 503]
    push(client, receiver.url)
    for each in range(2):
        client.send("orders", str(each))

    calls = receiver.wait_for(5)
    emptied(client)

    assert [call.body for call in calls] == [b"0"] * 4 + [b"1"]
    assert [call.headers["qmd-attempt"] for call in calls] == ["1", "2", "3", "4", "1"]
    assert len({call.headers["webhook-id"] for call in calls}) == 2


def test_after_the_last_attempt_a_message_is_a_dead_letter_with_the_reason(
    client: HttpClient, receiver: Receiver
) -> None:
    receiver.statuses = [500, 500, 404]
    push(client, receiver.url, attempts=3)
    client.send("orders", "bad")
    client.send("orders", "good")

    calls = receiver.wait_for(4)
    emptied(client)

    assert calls[-1].body == b"good"
    (letter,) = client.json("GET", messages("dead-letter"))["messages"]
    assert letter["body"] == "bad"
    reason = "it failed 3 times; the last time: push hook: the answer was 404"
    assert reason in letter["reason"]


def test_the_attempts_and_the_end_are_those_of_the_policy_of_the_queue(
    door: HttpDoor, client: HttpClient, receiver: Receiver
) -> None:
    policy = ("--retry-attempts", "2", "--retry-delay", "1ms", "--retry-end", "poison")
    door.daemon.cli("queue", "set", "orders", *policy)
    receiver.statuses = [500, 500]
    push(client, receiver.url, attempts=100)
    for each in ("bad", "good"):
        client.send("orders", each)

    calls = receiver.wait_for(3)
    emptied(client)
    door.daemon.cli("queue", "set", "orders", "--no-retry")

    assert [call.body for call in calls] == [b"bad", b"bad", b"good"], "it keeps the order"
    (poison,) = client.receive("orders;poison", wait_s=60)
    assert poison["body"] == "bad"


def test_a_restart_of_the_door_or_the_daemon_begins_no_attempt_anew(
    door: HttpDoor, client: HttpClient, receiver: Receiver
) -> None:
    receiver.statuses = [500] * 100
    push(client, receiver.url, attempts=6)
    client.send("orders", "bad")
    receiver.wait_for(2)
    door.kill()
    door.daemon.kill()
    door.daemon.start()
    door.start()

    emptied(client)

    attempts = [int(call.headers["qmd-attempt"]) for call in receiver.calls]
    assert attempts == sorted(attempts)
    assert (attempts[-1], len(attempts) <= 7) == (6, True), "one more that was not counted"
    (letter,) = client.json("GET", messages("dead-letter"))["messages"]
    assert "it failed 6 times" in letter["reason"]


def test_names_of_properties_become_no_headers_of_a_request(
    door: HttpDoor, client: HttpClient, receiver: Receiver
) -> None:
    """Any sender chooses them, also with the ends of lines that HTTP has."""
    smuggled = "x: 1\r\ncontent-length: 0\r\n\r\nPOST /admin HTTP/1.1\r\nx"
    names = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "ok": "1"}
    given = [f"cloudEvents:{name}={value}" for name, value in names.items()]
    given += [f"cloudEvents:{name}=1" for name in (smuggled, "a\n", "Caps", "data")]
    properties = [part for each in given for part in ("--property", each)]
    (sent,) = door.daemon.json("send", "orders", "the body", *properties)
    (stored,) = client.json("GET", messages("orders"))["messages"]
    read = client.ask("GET", f"{messages('orders')}/{stored['lookup_id']}/body")
    push(client, f"{receiver.url}/hook")

    (call,) = receiver.wait_for(1)
    emptied(client)

    assert len(receiver.calls) == 1
    assert (call.path, call.body) == ("/hook", b"the body")
    assert call.headers.get("webhook-id") == sent["id"]
    for headers in (call.headers, {name.lower(): each for name, each in read.headers.items()}):
        attributes = {name for name in headers if name.startswith("ce-")}
        assert attributes == {f"ce-{name}" for name in names}


def test_a_target_that_is_not_permitted_is_never_called(
    client: HttpClient, receiver: Receiver
) -> None:
    """The name of this computer is no network of the list, whatever address it has."""
    port = receiver.url.rpartition(":")[2]
    push(client, f"http://[::1]:{port}/", attempts=1)
    client.send("orders", "1")

    emptied(client)

    (letter,) = client.json("GET", messages("dead-letter"))["messages"]
    assert "not among the push_targets" in letter["reason"]
    assert receiver.calls == []


def test_a_door_that_is_killed_delivers_each_message_at_least_once_in_order(
    door: HttpDoor, client: HttpClient, receiver: Receiver
) -> None:
    push(client, receiver.url)
    for each in range(60):
        client.send("orders", str(each))
    for part in (10, 25, 40):
        receiver.wait_for(part)
        door.kill()
        door.start()

    while not receiver.calls or receiver.calls[-1].body != b"59":
        pass
    emptied(client)

    first = list(dict.fromkeys(call.body for call in receiver.calls))
    assert first == [str(each).encode() for each in range(60)]
    ids = {call.body: set[str]() for call in receiver.calls}
    for call in receiver.calls:
        ids[call.body].add(call.headers["webhook-id"])
    assert all(len(each) == 1 for each in ids.values()), "a repetition has the same id"


def test_pushes_are_created_listed_and_deleted_by_commands(
    door: HttpDoor, client: HttpClient, receiver: Receiver
) -> None:
    cli = door.daemon.cli
    secret = cli("push", "create", "byhand", "--queue", "orders", "--url", receiver.url).stdout
    again = cli("push", "create", "byhand", "--queue", "x", "--url", receiver.url, check=False)
    wrong = cli("push", "create", "b", "--queue", "x", "--url", "file:///etc/passwd", check=False)
    (listed,) = door.daemon.json("push", "list")
    client.send("orders", "1")
    receiver.wait_for(1)
    emptied(client)
    cli("push", "pause", "byhand")
    assert client.json("GET", "/v1/pushes")["pushes"][0]["paused"] is True
    cli("push", "delete", "byhand")

    assert secret.startswith(b"whsec_")
    assert b"QM-9225" in again.stderr
    assert b"QM-9224" in wrong.stderr
    assert listed["url"] == receiver.url
    assert "secret" not in listed
    assert cli("push", "delete", "byhand", check=False).returncode == 3
    file = door.daemon.folder / "pushes"
    assert Path(file).stat().st_mode & 0o077 == 0


def test_only_administrators_define_pushes(door: HttpDoor, client: HttpClient) -> None:
    new = {"name": "mine", "queue": "orders", "url": "http://127.0.0.1:1/"}
    for token in (door.token("read", "write", name="some"), None):
        other = door.client(token)
        assert other.problem("POST", "/v1/pushes", new)[0] == 403
        assert other.problem("GET", "/v1/pushes")[0] == 403
        assert other.problem("DELETE", "/v1/pushes/mine")[0] == 403
    for url in ("ftp://x/", "http://u:p@x/", "http:///x", "http://x:0/", "http://x/ y", "nonsense"):
        found = client.problem("POST", "/v1/pushes", {**new, "url": url})
        assert found == (400, "push_not_valid"), url
