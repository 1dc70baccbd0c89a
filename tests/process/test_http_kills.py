"""A door, and at times its daemon, killed under load: sends, locks and pushes at once.

Clients repeat a request that was not answered, sends with their key.  `make soak` kills oftener.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import END_S
from tests.process.http_door import Answer, HttpClient, HttpDoor, messages, open_door
from tests.process.web_receiver import Receiver

KILLS = int(os.environ.get("DOOR_KILLS", "4"))
DAEMON_EVERY = 4  # of the kills, one is that of the daemon too
SENDERS, TAKERS = 3, 3
QUEUES = ("orders", "pushed")
LOCK = {"limit": 3, "lock_s": 2, "wait_s": 1}
UNANSWERED = (503, 504)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path, *QUEUES, push_targets=["127.0.0.0/8"])


class Load:
    """Clients that send and process messages; each request is repeated until it is answered."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self.sent: dict[str, dict[str, str]] = {queue: {} for queue in QUEUES}
        self.processed: Counter[str] = Counter()  # ids of messages with an answered removal
        self.acts = 0
        self.errors: list[BaseException] = []
        self.is_sending = True
        self.is_taking = True
        # Made before the threads, which only read it.
        self._token = door.token(name="admin")
        works = [*(self._sender(number) for number in range(SENDERS)), *[self._take] * TAKERS]
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[HttpClient], None]) -> None:
        client = HttpClient(self._door.port, self._token)
        try:
            work(client)
        except BaseException as error:
            self.errors.append(error)
        finally:
            client.close()

    def _sender(self, number: int) -> Callable[[HttpClient], None]:
        def send(client: HttpClient) -> None:
            index = 0
            while self.is_sending:
                queue, body = QUEUES[index % len(QUEUES)], f"{number}-{index}"
                answer = self._answered(
                    client, "POST", messages(queue), {"body": body}, idempotency_key=body
                )
                assert answer.status == 201, answer
                self.sent[queue][body] = json.loads(answer.content)["id"]
                index += 1

        return send

    def _take(self, client: HttpClient) -> None:
        while self.is_taking:
            answer = self._answered(client, "POST", "/v1/queues/orders/locks", LOCK)
            assert answer.status == 200, answer
            for each in json.loads(answer.content)["messages"]:
                settled = self._answered(client, "DELETE", f"/v1/locks/{each['lock_id']}")
                if settled.status == 204:
                    self.processed[each["id"]] += 1
                else:
                    assert settled.status == 410, settled

    def _answered(self, client: HttpClient, *arguments: Any, **headers: str) -> Answer:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = client.ask(*arguments, **headers)
                if answer.status not in UNANSWERED:
                    self.acts += 1
                    return answer

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for an effect; fail as soon as a client has failed."""
        deadline = time.monotonic() + END_S
        while not is_so():
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, self.facts
            time.sleep(0.01)

    def wait_for_acts(self, count: int) -> None:
        """Wait until so many further requests were answered."""
        before = self.acts
        self.wait_until(lambda: self.acts >= before + count)

    @property
    def facts(self) -> str:
        """Describe the progress of the load."""
        counts = {queue: len(found) for queue, found in self.sent.items()}
        return f"sent {counts}, processed {len(self.processed)}, {self.acts} answers"

    def end(self) -> None:
        self.is_sending = self.is_taking = False
        for thread in self._threads:
            thread.join(END_S)


@pytest.mark.skipif(KILLS < 1, reason="no kills are wanted")
def test_nothing_is_lost_or_doubled_when_the_door_is_killed_under_load(door: HttpDoor) -> None:
    receiver = Receiver()
    pushed = {"name": "hook", "queue": "pushed", "url": receiver.url, "first_pause_s": 0.01}
    door.client().json("POST", "/v1/pushes", pushed, status=201)
    load = Load(door)
    try:
        for number in range(1, KILLS + 1):
            load.wait_for_acts(40)
            receiver.wait_for(len(receiver.calls) + 3)
            door.kill()
            if number % DAEMON_EVERY == 0:
                door.daemon.restart()
            door.start()
        load.is_sending = False
        load.wait_until(lambda: len(load.processed) >= len(load.sent["orders"]))
        load.wait_until(lambda: len({*ids(receiver)}) >= len(load.sent["pushed"]))
    finally:
        load.end()
        receiver.close()

    assert not load.errors
    assert set(load.processed) == set(load.sent["orders"].values())
    assert set(load.processed.values()) == {1}, "a message was processed twice"
    assert {*ids(receiver)} == set(load.sent["pushed"].values())
    bodies = list(dict.fromkeys(call.body.decode() for call in receiver.calls))
    for number in range(SENDERS):
        indices = [int(each.partition("-")[2]) for each in bodies if each.startswith(f"{number}-")]
        assert indices == sorted(indices), "the order of a push was lost"
    assert door.client().json("GET", "/v1/queues/orders")["messages"] == 0


def ids(receiver: Receiver) -> list[str]:
    return [call.headers["webhook-id"] for call in list(receiver.calls)]
