"""The HTTP door: a real process that serves REST beside a real daemon."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpClient, HttpDoor, messages, open_door


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("http"), "orders", "other")


@pytest.fixture(autouse=True)
def _closed_clients(door: HttpDoor) -> Iterator[None]:
    yield
    door.close_clients()


@pytest.fixture
def client(door: HttpDoor) -> Iterator[HttpClient]:
    client = door.client()
    yield client
    for queue in ("orders", "other"):
        client.json("POST", f"/v1/queues/{queue}/purge")


def test_a_message_arrives_with_all_of_its_properties(client: HttpClient) -> None:
    given = {
        "body": "zehn Schrauben: ½",
        "label": "order 17",
        "priority": 5,
        "application_tag": 7,
        "correlation_id": "11111111-2222-3333-4444-555555555555\\9",
        "response_queue": "DIRECT=OS:other\\private$\\replies",
        "time_to_be_received_s": 600,
        "extension_base64": base64.b64encode(b"\0more").decode(),
        "content_type": "text/plain",
        "group": "customer 9",
        "properties": {"region": "east", "weight": 3.5, "urgent": True},
        "acknowledge": ["positive_arrival", "negative_receive"],
        "admin_queue": "other",
        "delivery": "express",
    }

    sent = client.json("POST", messages("orders"), given, status=201)
    (found,) = client.receive("orders")

    assert found["id"] == sent["id"]
    for name in given.keys() - {"acknowledge", "admin_queue", "response_queue"}:
        assert found[name] == given[name], name
    assert found["acknowledge"] == given["acknowledge"]
    assert found["response_queue"] == given["response_queue"]


def test_headers_of_a_service_bus_are_sent_and_shown(client: HttpClient) -> None:
    headers = {"rbs2-msg-type": "Shop.PlaceOrder, Shop", "rbs2-return-address": "answers@web1"}
    given = {"body": "{}", "service_bus": {"framework": "Rebus", "headers": headers}}

    client.json("POST", messages("orders"), given, status=201)
    (found,) = client.receive("orders")

    assert json.loads(base64.b64decode(found["extension_base64"])) == headers
    bus = found["service_bus"]
    assert (bus["framework"], bus["headers"]) == ("Rebus", headers)
    assert bus["return_address"] == "answers@web1"
    client.json("POST", messages("orders"), {**given, "properties": {"a": 1}}, status=400)
    other = {"service_bus": {"framework": "Other", "headers": {}}}
    client.json("POST", messages("orders"), other, status=400)


def test_any_bytes_are_a_body(client: HttpClient) -> None:
    content = bytes(range(256))

    answer = client.ask("POST", messages("orders") + "?label=raw&priority=1", content, "image/png")
    assert answer.status == 201
    page = client.json("GET", messages("orders"))
    body = client.ask("GET", f"{messages('orders')}/{page['messages'][0]['lookup_id']}/body")

    assert body.content == content
    assert body.headers["content-type"] == "image/png"
    assert (page["messages"][0]["label"], page["messages"][0]["priority"]) == ("raw", 1)
    assert base64.b64decode(page["messages"][0]["body_base64"]) == content
    assert "body" not in page["messages"][0]


def test_messages_are_sent_together_or_not_at_all(client: HttpClient) -> None:
    two = [{"destination": "orders", "body": "1"}, {"destination": "other", "body_json": [2]}]
    wrong = [*two, {"destination": "missing", "body": "3"}]

    assert client.problem("POST", "/v1/messages", {"messages": wrong}) == (404, "no_such_queue")
    assert client.receive("orders", limit=10) == []
    sent = client.json("POST", "/v1/messages", {"messages": two}, status=201)

    assert client.receive("orders")[0]["id"] == sent["messages"][0]["id"]
    assert client.receive("other")[0]["body"] == "[2]"


def test_pages_follow_each_other(client: HttpClient) -> None:
    many = [{"destination": "orders", "body": str(each)} for each in range(25)]
    client.json("POST", "/v1/messages", {"messages": many}, status=201)

    found, start = [], 0
    while start is not None:
        page = client.json("GET", f"{messages('orders')}?start={start}&limit=10")
        found += [each["body"] for each in page["messages"]]
        start = page["next"]

    assert found == [str(each) for each in range(25)]
    assert len(client.receive("orders", limit=100)) == 25


def test_a_receive_waits_for_a_message(door: HttpDoor, client: HttpClient) -> None:
    found: list[dict[str, object]] = []
    other = door.client()
    waiting = threading.Thread(target=lambda: found.extend(other.receive("orders", wait_s=60)))
    waiting.start()

    sent = client.send("orders", "late")
    waiting.join(END_S)

    assert [each["id"] for each in found] == [sent]
    assert client.receive("orders") == []


def test_a_client_that_leaves_while_it_waits_takes_no_message(
    door: HttpDoor, client: HttpClient
) -> None:
    impatient = door.client()
    impatient._connection.request(
        "POST",
        "/v1/queues/orders/receive",
        json.dumps({"wait_s": 60}).encode(),
        {"authorization": f"Bearer {impatient.token}", "content-type": "application/json"},
    )
    queue = "/v1/queues/orders"
    while client.json("GET", queue)["readers_waiting"] == 0:
        pass  # the request is on its way
    impatient.close()

    sent = client.send("orders", "1")

    # The daemon may have given it to the request that has no client any more: it comes back.
    (found,) = client.receive("orders", wait_s=60)
    assert found["id"] == sent


def test_locked_messages_are_settled_in_every_way(client: HttpClient) -> None:
    for each in ("removed", "given back", "rejected"):
        client.send("orders", each)

    locked = client.json("POST", "/v1/queues/orders/locks", {"limit": 3, "lock_s": 600})
    one, two, three = (each["lock_id"] for each in locked["messages"])
    assert client.receive("orders") == []
    assert client.json("POST", f"/v1/locks/{one}/renew", {"lock_s": 900})["lock_id"] == one
    client.json("DELETE", f"/v1/locks/{one}", status=204)
    client.json("POST", f"/v1/locks/{two}/give-back", status=204)
    client.json("POST", f"/v1/locks/{three}/reject", {"reason": "no such part"}, status=204)

    assert client.problem("POST", f"/v1/locks/{one}/renew") == (410, "http_no_such_lock")
    assert [each["body"] for each in client.receive("orders", limit=10)] == ["given back"]
    dead = "/v1/queues/dead-letter"
    (letter,) = client.json("GET", f"{dead}/messages")["messages"]
    assert (letter["body"], "no such part" in letter["reason"]) == ("rejected", True)
    (group,) = client.json("GET", f"{dead}/dead-letters")["groups"]
    assert group["messages"] == 1
    moved = client.json("POST", f"{dead}/resend", {"choice": {"ids": [letter["id"]]}})
    assert moved["messages"] == 1
    assert [each["body"] for each in client.receive("orders", wait_s=60)] == ["rejected"]


def test_a_lock_that_ends_returns_its_message(client: HttpClient) -> None:
    client.send("orders", "1")
    (locked,) = client.json("POST", "/v1/queues/orders/locks", {"lock_s": 1})["messages"]

    (again,) = client.receive("orders", wait_s=60)

    assert again["id"] == locked["id"]
    assert client.problem("DELETE", f"/v1/locks/{locked['lock_id']}") == (410, "http_no_such_lock")


def test_locks_of_a_client_are_not_those_of_another(door: HttpDoor, client: HttpClient) -> None:
    client.send("orders", "1")
    (locked,) = client.json("POST", "/v1/queues/orders/locks", {"lock_s": 600})["messages"]
    path = f"/v1/locks/{locked['lock_id']}"
    other = door.client(door.token("read", name="reader"))

    assert other.problem("DELETE", path) == (410, "http_no_such_lock")
    assert other.problem("POST", f"{path}/renew") == (410, "http_no_such_lock")
    assert door.client(door.token("write", name="writer")).problem("DELETE", path)[0] == 403
    client.json("DELETE", path, status=204)


def test_a_door_that_is_killed_loses_no_lock(door: HttpDoor, client: HttpClient) -> None:
    for each in ("removed", "given back"):
        client.send("orders", each)
    asked = {"lock_s": 600, "limit": 2}
    one, two = client.json("POST", "/v1/queues/orders/locks", asked)["messages"]

    door.kill()
    door.start()

    assert client.receive("orders") == []
    client.json("DELETE", f"/v1/locks/{one['lock_id']}", status=204)
    client.json("POST", f"/v1/locks/{two['lock_id']}/give-back", status=204)
    assert [each["id"] for each in client.receive("orders", limit=10)] == [two["id"]]


def test_a_settlement_that_is_repeated_has_the_same_answer(
    door: HttpDoor, client: HttpClient
) -> None:
    for each in ("removed", "rejected"):
        client.send("orders", each)
    asked = {"lock_s": 600, "limit": 2}
    one, two = client.json("POST", "/v1/queues/orders/locks", asked)["messages"]
    removal, rejection = f"/v1/locks/{one['lock_id']}", f"/v1/locks/{two['lock_id']}/reject"
    client.json("DELETE", removal, status=204)
    client.json("POST", rejection, status=204)
    door.kill()
    door.start()

    client.json("DELETE", removal, status=204)
    client.json("POST", rejection, status=204)

    assert client.problem("POST", f"{removal}/reject") == (410, "http_no_such_lock")
    assert client.problem("DELETE", f"/v1/locks/{two['lock_id']}") == (410, "http_no_such_lock")
    assert client.problem("POST", f"{removal}/renew") == (410, "http_no_such_lock")


def test_a_failed_message_counts_an_attempt(client: HttpClient) -> None:
    client.send("orders", "1")
    (one,) = client.json("POST", "/v1/queues/orders/locks", {"lock_s": 600})["messages"]
    failed = {"failed": True, "reason": "out of paper"}
    client.json("POST", f"/v1/locks/{one['lock_id']}/give-back", failed, status=204)

    (two,) = client.json("POST", "/v1/queues/orders/locks", {"lock_s": 600})["messages"]
    client.json("POST", f"/v1/locks/{two['lock_id']}/give-back", status=204)

    assert (one.get("abort_count", 0), two["abort_count"]) == (0, 1)
    (three,) = client.receive("orders")
    assert three["abort_count"] == 1


@pytest.mark.parametrize("text", ["x", "%00", "A" * 32, "A" * 5000, "%C3%A9", "AAAA=AAA", "A" * 40])
def test_an_odd_id_of_a_lock_has_ended(client: HttpClient, text: str) -> None:
    assert client.problem("DELETE", f"/v1/locks/{text}")[0] in (400, 410)


def test_queues_are_created_changed_listed_and_deleted(client: HttpClient) -> None:
    made = client.json("POST", "/v1/queues", {"name": "new", "transactional": True}, status=201)
    path = f"/v1/queues/{quote(made['name'], safe='')}"
    assert made["transactional"] is True
    again = client.problem("POST", "/v1/queues", {"name": "new"})
    changed = client.json("PATCH", path, {"label": "fresh", "quota_bytes": 100_000})
    assert (changed["label"], changed["quota_bytes"]) == ("fresh", 100_000)
    client.json("POST", messages("new"), {"body": "1"}, status=201)
    names = [each["name"] for each in client.json("GET", "/v1/queues")["queues"]]
    assert made["name"] in names
    moved = client.json("POST", f"{path}/move", {"target": "new;aside"})
    assert moved["messages"] == 1
    assert client.json("DELETE", f"{path}?dry_run=true") == {"messages": 1}
    assert client.json("DELETE", path) == {"messages": 1}

    assert again == (409, "queue_exists")
    assert client.problem("GET", path) == (404, "no_such_queue")


def test_the_fate_of_a_message_is_explained(client: HttpClient) -> None:
    sent = client.send("orders", "1")
    client.receive("orders")
    path = f"/v1/messages/{quote(sent, safe='')}"

    fate = client.json("GET", f"{path}/why")
    trace = client.json("GET", f"{path}/trace?ask=false")

    assert fate["message_id"] == sent
    assert [each["kind"] for each in trace["events"]] == ["sent", "received"]


def test_the_daemon_and_the_door_report_their_health(door: HttpDoor, client: HttpClient) -> None:
    status = client.json("GET", "/v1/status")
    anonymous = door.client(None)
    assert anonymous.json("GET", "/healthz")["status"] == "ok"
    assert anonymous.json("GET", "/readyz")["queue_manager"] == status["queue_manager"]

    door.daemon.kill()
    try:
        assert anonymous.json("GET", "/healthz")["status"] == "ok"
        assert anonymous.problem("GET", "/readyz")[0] == 503
    finally:
        door.daemon.start()
    assert anonymous.json("GET", "/readyz")["status"] == "ok"


def test_errors_are_problems_with_our_ids(client: HttpClient) -> None:
    for method, path, content, expected in (
        ("GET", "/v1/nothing", None, (404, "http_no_such_path")),
        ("GET", "/v1/queues/missing", None, (404, "no_such_queue")),
        ("PUT", "/v1/queues/orders", None, (405, "http_method")),
        ("GET", "/v1/queues?sytem=true", None, (400, "http_bad_parameter")),
        ("GET", f"{messages('orders')}?limit=0", None, (400, "http_bad_parameter")),
        ("GET", f"{messages('orders')}?limit=1&limit=2", None, (400, "http_bad_parameter")),
        ("POST", messages("orders"), {"bdy": "1"}, (400, "http_bad_body")),
        ("POST", messages("orders"), {"body": "1", "body_json": 1}, (400, "http_bad_body")),
        ("POST", messages("orders"), b"{", (400, "http_bad_body")),
        ("POST", messages("missing"), {"body": "1"}, (404, "no_such_queue")),
        ("POST", "/v1/messages", b"x", (400, "http_bad_body")),
        ("GET", f"{messages('orders')}/x", None, (400, "http_bad_parameter")),
        ("GET", f"{messages('orders')}/1", None, (404, "no_such_message")),
    ):
        assert client.problem(method, path, content) == expected, (method, path)
    answer = client.ask("POST", "/v1/queues", b"name=x", "application/x-www-form-urlencoded")
    assert (answer.status, answer.headers["accept"]) == (415, "application/json")
    assert client.ask("DELETE", messages("orders")).headers["allow"] == "GET, HEAD, POST"


def test_a_client_has_the_rights_of_its_token(door: HttpDoor, client: HttpClient) -> None:
    sender = door.client(door.token("write", queues=("orders",), name="sender"))
    sender.send("orders", "1")

    assert sender.problem("POST", messages("other"), {"body": "1"}) == (403, "queue_not_granted")
    assert sender.problem("POST", "/v1/queues/orders/receive") == (403, "scope_missing")
    assert sender.problem("GET", "/v1/status") == (403, "scope_missing")
    assert sender.problem("POST", "/v1/queues", {"name": "x"})[0] == 403
    assert [each["body"] for each in client.receive("orders")] == ["1"]


def test_a_revoked_token_is_refused(door: HttpDoor) -> None:
    client = door.client(door.token("write", name="short"))
    client.send("orders", "1")

    door.daemon.cli("remote", "token", "revoke", "short")

    while (answer := client.ask("POST", messages("orders"), {"body": "2"})).status != 401:
        # The daemon looks at the file twice a second, and ends the connection.
        assert answer.status in (201, 504), answer
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    door.client().json("POST", "/v1/queues/orders/purge")


def test_clients_without_a_token_are_anonymous(door: HttpDoor, client: HttpClient) -> None:
    anonymous = door.client(None)
    anonymous.send("orders", "1")
    assert anonymous.problem("POST", "/v1/queues/orders/receive") == (403, "right_missing")

    door.daemon.cli("acl", "grant", "anonymous", "receive,peek", "orders")
    assert [each["body"] for each in anonymous.receive("orders")] == ["1"]
    door.daemon.cli("acl", "revoke", "anonymous", "receive,peek", "orders")


def test_a_page_in_a_browser_cannot_use_the_door(door: HttpDoor) -> None:
    anonymous = door.client(None)

    foreign = anonymous.problem("POST", messages("orders"), {"body": "1"}, origin="http://evil")
    rebound = anonymous.problem("POST", messages("orders"), {"body": "1"}, host="evil:1808")

    assert foreign == rebound == (403, "http_from_a_page")


def test_fields_behind_a_body_are_not_headers(door: HttpDoor, client: HttpClient) -> None:
    """A proxy in front of the door checks and removes headers; it need not do so with these."""
    request = (
        b"POST /v1/queues/other/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\nauthorization: Bearer wrong\r\nce-specversion: 1.0\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as raw:
        raw.sendall(request)
        answer = raw.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert [each["body"] for each in client.receive("other")] == ["x"]


def test_names_of_queues_never_reach_a_path_of_files(client: HttpClient) -> None:
    for name in ("..", "../../etc/passwd", "..%2f", "a/b", "\0", "\n", "%00", ".", "~", "$(id)"):
        path = f"/v1/queues/{quote(name, safe='')}"
        for method, tail in (("GET", ""), ("POST", "/receive"), ("GET", "/messages")):
            answer = client.ask(method, path + tail)
            assert answer.status in (400, 404), (name, answer)
        assert client.ask("POST", "/v1/queues", {"name": name}).status in (400, 201, 403), name
        client.ask("DELETE", path)
    assert client.problem("GET", "/v1/queues/../../etc/passwd")[0] == 404


def test_the_description_names_every_path(client: HttpClient) -> None:
    description = client.json("GET", "/openapi.json")

    assert description["openapi"].startswith("3.1")
    send = description["paths"]["/v1/queues/{queue}/messages"]["post"]
    assert send["operationId"] == "sendMessage"
    text = json.dumps(description)
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.partition('"')[0] in description["components"]["schemas"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users")
def test_the_unix_socket_gives_the_user_of_the_door_its_own_rights(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("unix")
    path = folder / "http.sock"
    for door in open_door(folder, "orders", socket=str(path)):
        client = HttpClient(0, None)
        client._connection.sock = connected(str(path))
        client.send("orders", "1")
        assert [each["body"] for each in client.receive("orders")] == ["1"]
        client.close()
        assert door.terminate() == 0
        assert not path.exists()


def connected(path: str) -> object:
    import socket

    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(END_S)
    connection.connect(path)
    return connection
