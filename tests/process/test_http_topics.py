"""Topics, groups and retry policies over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.http_door import HttpClient, HttpDoor, open_door

QUEUES = ("east", "all", "rest")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("topics"), *QUEUES)


@pytest.fixture
def client(door: HttpDoor) -> Iterator[HttpClient]:
    client = door.client()
    yield client
    for queue in QUEUES:
        client.json("POST", f"/v1/queues/{queue}/purge")
    for topic in client.json("GET", "/v1/topics")["topics"]:
        client.json("DELETE", f"/v1/topics/{topic['name']}", status=204)
    door.close_clients()


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [each["body"] for each in found]


def test_a_topic_is_created_and_publishes_to_all_matching_subscriptions(client: HttpClient) -> None:
    client.json("POST", "/v1/topics", {"name": "news"}, status=201)
    path = "/v1/topics/news/subscriptions"
    east = {"destination": "east", "where": "region = 'east'"}
    client.json("PUT", f"{path}/east", east)
    topic = client.json("PUT", f"{path}/all", {"destination": "all"})
    assert [each["name"] for each in topic["subscriptions"]] == ["all", "east"]
    assert client.json("GET", "/v1/topics")["topics"] == [topic]

    publish = "/v1/topics/news/messages"
    sun = {"body": "sun", "properties": {"region": "east"}}
    sent = client.json("POST", publish, sun, status=201, idempotency_key="a")
    assert len(sent["copies"]) == 2
    assert client.json("POST", publish, sun, status=201, idempotency_key="a") == sent
    client.json("POST", publish, {"body": "rain"}, status=201)
    raw = client.ask("POST", f"{publish}?label=x", b"<w/>", media="application/xml")
    assert raw.status == 201

    assert bodies(client.receive("east", limit=9)) == ["sun"]
    assert bodies(client.receive("all", limit=9)) == ["sun", "rain", "<w/>"]
    client.json("DELETE", f"{path}/all")
    assert client.problem("POST", publish, {"body": "x"}) == (404, "no_subscription")
    client.json("POST", "/v1/topics", {"name": "news", "unmatched": "rest"}, status=201)
    client.json("POST", publish, {"body": "nowhere"}, status=201)
    assert bodies(client.receive("rest")) == ["nowhere"]


def test_errors_of_topics_have_their_status(door: HttpDoor, client: HttpClient) -> None:
    assert client.problem("GET", "/v1/topics/none") == (404, "no_such_topic")
    assert client.problem("DELETE", "/v1/topics/none") == (404, "no_such_topic")
    assert client.problem("POST", "/v1/topics/none/messages", {"body": "x"})[0] == 404
    client.json("POST", "/v1/topics", {"name": "news"}, status=201)
    path = "/v1/topics/news/subscriptions/one"
    assert client.problem("DELETE", path)[0] == 404
    assert client.problem("PUT", path, {"destination": "missing"}) == (404, "no_such_queue")
    assert client.problem("PUT", path, {"destination": "all", "where": "a ="})[0] == 400
    reader = door.client(door.token("read", name="reader"))
    assert reader.problem("POST", "/v1/topics", {"name": "mine"})[0] == 403
    assert reader.problem("POST", "/v1/topics/news/messages", {"body": "x"})[0] == 403


def test_a_group_goes_to_one_lock_at_a_time(client: HttpClient) -> None:
    new = {"name": "steps", "groups": True, "retry": {"attempts": 3, "delay_s": 0}}
    made = client.json("POST", "/v1/queues", new, status=201)
    assert (made["groups"], made["retry"]["attempts"]) == (True, 3)
    for group, body in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("a", "a3")):
        sent = {"body": body, "group": group}
        client.json("POST", "/v1/queues/steps/messages", sent, status=201)
    locks = "/v1/queues/steps/locks"

    def locked(**given: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.json("POST", locks, {"lock_s": 600, **given})[
            "messages"
        ]
        return found

    (first,) = locked()
    assert first["body"] == "a1"
    others = locked(limit=9)
    assert bodies(others) == ["b1", "b2"]
    more = locked(limit=1, lock_id=first["lock_id"], choice={"group": "a"})
    assert bodies(more) == ["a2"]
    assert client.json("GET", "/v1/queues/steps")["groups_owned"] == 2
    for each in (first, *more):
        client.json("DELETE", f"/v1/locks/{each['lock_id']}", status=204)
    assert bodies(locked(limit=9)) == ["a3"]
    assert client.problem("POST", "/v1/queues/all/locks", {"lock_id": first["lock_id"]}) == (
        410,
        "http_no_such_lock",
    )

    changed = client.json("PATCH", "/v1/queues/steps", {"groups": False, "retry": {"off": True}})
    assert (changed["groups"], changed["retry"]) == (False, None)
    client.json("DELETE", "/v1/queues/steps")


def test_the_messages_of_a_group_are_received_by_its_id(client: HttpClient) -> None:
    for number, group in enumerate(("it's", "b", "it's")):
        sent = {"body": str(number), "group": group, "properties": {"n": number}}
        client.json("POST", "/v1/queues/all/messages", sent, status=201)

    both = {"group": "it's", "where": "n > 0 OR n < 0"}
    assert bodies(client.receive("all", limit=9, choice=both)) == ["2"]
    assert bodies(client.receive("all", limit=9, choice={"group": "it's"})) == ["0"]
    assert bodies(client.receive("all", limit=9, choice={"group": "c"})) == []
