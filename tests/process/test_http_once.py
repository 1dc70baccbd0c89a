"""Idempotency keys of the HTTP door: a request is executed once, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpClient, HttpDoor, messages, open_door


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("once"), "orders")


@pytest.fixture
def client(door: HttpDoor) -> Iterator[HttpClient]:
    client = door.client()
    yield client
    client.json("POST", "/v1/queues/orders/purge")
    door.close_clients()


def key(text: str) -> dict[str, str]:
    return {"idempotency_key": text}


def test_a_repetition_gets_the_first_answer(client: HttpClient) -> None:
    first = client.ask("POST", messages("orders"), {"body": "1"}, **key("a"))
    again = client.ask("POST", messages("orders"), {"body": "1"}, **key("a"))
    many = {"messages": [{"destination": "orders", "body": str(each)} for each in range(3)]}
    first_many = client.json("POST", "/v1/messages", many, status=201, **key("b"))

    assert (first.status, first.content) == (again.status, again.content)
    assert client.json("POST", "/v1/messages", many, status=201, **key("b")) == first_many
    assert len(client.receive("orders", limit=10)) == 4


def test_another_request_under_the_same_key_is_refused(client: HttpClient) -> None:
    client.send("orders", "1", **key("c"))
    path = messages("orders")

    for method, target, content in (
        ("POST", path, {"body": "2"}),
        ("POST", "/v1/messages", {"messages": [{"destination": "orders", "body": "1"}]}),
        ("POST", path, b'{ "body": "1"}'),
    ):
        found = client.problem(method, target, content, **key("c"))
        assert found == (422, "idempotency_key_reused")
    assert [each["body"] for each in client.receive("orders", limit=10)] == ["1"]


def test_a_refused_request_does_not_use_its_key(client: HttpClient) -> None:
    refused = client.problem("POST", messages("missing"), {"body": "1"}, **key("d"))

    assert refused == (404, "no_such_queue")
    client.send("orders", "1", **key("d"))
    assert len(client.receive("orders", limit=10)) == 1


def test_keys_of_two_clients_are_independent(door: HttpDoor, client: HttpClient) -> None:
    for name in ("one", "two"):
        sender = door.client(door.token("write", name=name))
        assert sender.send("orders", "1", **key("e")) == sender.send("orders", "1", **key("e"))
    door.client(None).send("orders", "1", **key("e"))
    client.send("orders", "1", **key("e"))

    assert len(client.receive("orders", limit=10)) == 4


def test_tries_at_the_same_time_are_one(door: HttpDoor, client: HttpClient) -> None:
    clients = [door.client() for _ in range(8)]
    with ThreadPoolExecutor(len(clients)) as pool:
        ids = list(pool.map(lambda each: each.send("orders", "1", **key("f")), clients))

    assert len(set(ids)) == 1
    assert len(client.receive("orders", limit=10)) == 1


@pytest.mark.parametrize("bad", ["", "a b", "ä", "x" * 256])
def test_a_key_is_one_word_of_ascii(client: HttpClient, bad: str) -> None:
    found = client.problem(
        "POST", messages("orders"), {"body": "1"}, **key(bad.encode().decode("latin-1"))
    )
    assert found == (400, "http_bad_parameter")


def test_a_key_is_remembered_across_restarts(door: HttpDoor, client: HttpClient) -> None:
    sent = client.send("orders", "1", **key("g"))

    door.kill()
    door.daemon.restart()
    door.start()

    assert client.send("orders", "1", **key("g")) == sent
    changed = client.problem("POST", messages("orders"), {"body": "2"}, **key("g"))
    assert changed == (422, "idempotency_key_reused")
    assert len(client.receive("orders", limit=10)) == 1


@pytest.mark.parametrize("victim", ["door", "daemon"])
def test_nothing_is_lost_or_doubled_when_a_process_is_killed_under_load(
    door: HttpDoor, client: HttpClient, victim: str
) -> None:
    """Senders repeat each request with its key until it is answered; kills come at any moment."""
    senders, each_sends, kills = 6, 40, 4
    stop, sent = threading.Event(), itertools.count()
    answers: dict[str, str] = {}

    def send(number: int) -> None:
        sender = HttpClient(door.port, door.token(name="admin"))
        for index in range(each_sends):
            body = f"{victim}-{number}-{index}"
            while not stop.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    answer = sender.ask("POST", messages("orders"), {"body": body}, **key(body))
                    if answer.status == 201:
                        answers[body] = json.loads(answer.content)["id"]
                        next(sent)
                        break
                    assert answer.status in (503, 504), answer
        sender.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(kills):
            while len(answers) < (round_ + 1) * senders * each_sends // (kills + 2):
                assert any(thread.is_alive() for thread in threads)
            if victim == "door":
                door.kill()
                door.start()
            else:
                door.daemon.restart()
        for thread in threads:
            thread.join(END_S)
    finally:
        stop.set()

    found = client.receive("orders", limit=1000)
    assert len(answers) == senders * each_sends
    assert {each["body"]: each["id"] for each in found} == answers
    assert len(found) == len(answers)
    for number in range(senders):  # and the order of each sender is kept
        mine = [each["body"] for each in found if each["body"].startswith(f"{victim}-{number}-")]
        assert mine == [f"{victim}-{number}-{index}" for index in range(each_sends)]
