"""A token that may send to one queue, over HTTP: every operation about a queue of others.

The operations come from the description of the door, so a new one is tried as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.attack.mutated import mutated
from tests.attack.spellings import OF_A_QUEUE
from tests.process.http_door import Answer, HttpDoor, messages, open_door

SECRET, ABSENT = "secret", "absent"
PLANTED = ("planted-body", "planted-label", "planted-name", "planted-push", "planted-topic")
#: Operations that any client of the host may use, about itself or about the host.
OPEN = {"/healthz", "/readyz", "/openapi.json"}
SPELLINGS = (*OF_A_QUEUE, "mine\\..\\{}")
SYSTEM = ("dead-letter", "transactional-dead-letter", "journal", "alias:x", "topic:planted-topic")
MUTATIONS, SEED = 150, 16
ODD = (b"\\u0000", b"[[[[", b"{}", b"1e999", b"-1", b'"')


class World:
    """A daemon with a queue of others, and a client that may send to the queue `mine`."""

    def __init__(self, door: HttpDoor) -> None:
        self.door = door
        self.admin = door.client()
        self.narrow = door.client(door.token("write", queues=("mine",), name="narrow"))
        self.admin.json("PATCH", f"/v1/queues/{SECRET}", {"label": "planted-name"})
        sent = {"body": "planted-body", "label": "planted-label"}
        self.message = self.admin.json("POST", messages(SECRET), sent, status=201)["id"]
        self.admin.json("POST", messages(SECRET), sent, status=201)
        late = self.admin.json("POST", messages(SECRET), {**sent, "delay_s": 9000}, status=201)
        self.delayed = late["id"]
        self.admin.json("POST", "/v1/topics", {"name": "planted-topic"}, status=201)
        path = "/v1/topics/planted-topic/subscriptions/planted-name"
        self.admin.ask("PUT", path, {"queue": SECRET})
        self.lookup_id = self._first()["lookup_id"]
        locked = self.admin.json("POST", f"/v1/queues/{SECRET}/locks", {"lock_s": 3000})
        self.lock = locked["messages"][0]["lock_id"]
        self.operations = door.client().json("GET", "/openapi.json")["paths"]

    def _first(self) -> Any:
        return self.admin.json("GET", messages(SECRET))["messages"][0]

    def state(self) -> Any:
        """Return all that the client must not change."""
        paths = ("/v1/queues", f"/v1/queues/{SECRET}", messages(SECRET), "/v1/delayed")
        found = [self.admin.json("GET", path) for path in (*paths, "/v1/topics", "/v1/pushes")]
        for each in found[3]["messages"]:
            del each["due_at_ms"]  # it follows from the clock of each moment
        return found

    def value(self, name: str, queue: str) -> str:
        """Return the value of a parameter of a path."""
        known = {"message": self.message, "lookup_id": str(self.lookup_id), "lock": self.lock}
        return known.get(name) or {"topic": "planted-topic", "queue": queue}.get(
            name, "planted-name"
        )

    def bodies(self, queue: str) -> Iterator[Any]:
        """Yield contents of requests that name the queue in every way."""
        yield None
        message = {"destination": queue, "body": "x"}
        yield {"messages": [message]}
        yield {"messages": [{"destination": "mine", "body": "x"}, message]}
        yield {"body": "x", "destination": queue, "admin_queue": queue, "dead_letter_queue": queue}
        yield {"name": queue, "queue": queue, "target": queue, "to": queue, "lookup_ids": [1]}
        yield {"lookup_ids": [self.lookup_id], "reason": "no", "lock_s": 1, "limit": 10}
        yield {"queue": queue}
        yield {"name": queue}
        yield {"target": "mine"}
        yield {}

    def requests(self, queue: str) -> Iterator[tuple[str, str, Any]]:
        """Yield method, path and content of each request about a queue."""
        query = urlencode({"queue": queue, "message": self.message, "last": 50})
        for path, methods in self.operations.items():
            if path in OPEN:
                continue
            for name in ("queue", "message", "lookup_id", "lock", "topic", "subscription", "push"):
                path = path.replace(f"{{{name}}}", quote(self.value(name, queue), safe=""))
            path = path.replace("{name}", "planted-name")
            for method in methods:
                contents = [None] if method == "get" else list(self.bodies(queue))
                for content, more in product(contents, ("", f"?{query}", f"?queue={quote(queue)}")):
                    if not more or content is None:
                        yield method.upper(), path + more, content


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    doors = open_door(tmp_path_factory.mktemp("rights"), "mine", SECRET, "other")
    for door in doors:
        yield World(door)


def discloses(answer: Answer, asked: str) -> list[str]:
    """Return what an answer contains that only the queue of others, or its objects, have."""
    text = answer.content.decode(errors="replace")
    return [each for each in PLANTED if each in text and each not in asked]


def test_no_operation_reads_or_changes_a_queue_of_others(world: World) -> None:
    before = world.state()
    for spelling in (*SPELLINGS, *SYSTEM):
        queue = spelling.format(SECRET)
        for method, path, content in world.requests(queue):
            answer = world.narrow.ask(method, path, content)
            where = f"{method} {path} {content}: {answer}"
            assert 400 <= answer.status < 500, where
            assert not discloses(answer, f"{path} {content}"), where
    assert world.state() == before
    world.narrow.send("mine", "its own queue takes it")


def test_a_queue_of_others_looks_like_one_that_does_not_exist(world: World) -> None:
    def plain(answer: Answer, queue: str) -> tuple[int, Any]:
        text = answer.content.decode().replace(queue, "QUEUE")
        found = json.loads(text) if text else None
        return answer.status, found

    for spelling in SPELLINGS[:4]:
        there = world.requests(spelling.format(SECRET))
        nowhere = world.requests(spelling.format(ABSENT))
        for asked, other in zip(there, nowhere, strict=True):
            first = plain(world.narrow.ask(*asked), SECRET)
            assert first == plain(world.narrow.ask(*other), ABSENT), (asked, first)


def _mutated(chance: random.Random, world: World) -> tuple[str, str, bytes]:
    method, path, content = chance.choice(
        list(world.requests(chance.choice(SPELLINGS).format(SECRET)))
    )
    data = json.dumps({} if content is None else content).encode()
    return method, path, mutated(chance, data, ODD, faults_max=3) or b"{}"


def test_mutated_contents_have_no_effect_and_hang_nothing(world: World) -> None:
    before, chance = world.state(), random.Random(SEED)
    for _ in range(MUTATIONS):
        method, path, data = _mutated(chance, world)
        answer = world.narrow.ask(method, path, data)  # a hang ends in a TimeoutError
        assert answer.status < 500, (method, path, data, answer)
        assert not discloses(answer, f"{path} {data!r}"), (method, path, data, answer)
    assert world.state() == before
