"""Names of queues with spaces and beyond ASCII, through every door, and back from a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.amqp.door import door_of
from tests.process.harness import Hosts, body
from tests.process.http_door import HttpDoor, messages, open_door
from tests.process.srmp_pair import Pair, make_pair, until, waiting

QUEUE, OTHER_CASE = "Aufträge 注文", "AUFTRÄGE 注文"
SPACED = "new orders"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path, QUEUE)


def test_a_queue_is_found_in_any_case_before_and_after_a_restart(door: HttpDoor) -> None:
    daemon = door.daemon
    daemon.send(OTHER_CASE, b"1")
    door.client().json("POST", messages(QUEUE), {"body": "2"}, status=201)
    daemon.cli("queue", "set", OTHER_CASE, "--label", "alle")
    daemon.kill()
    daemon.start()

    daemon.send(f"DIRECT=OS:.\\private$\\{OTHER_CASE}", b"3")

    (row,) = [each for each in daemon.json("queue", "list") if each["messages"]]
    assert QUEUE in row["name"]
    assert [body(each) for each in daemon.receive(OTHER_CASE)] == [b"1", b"2", b"3"]


def test_a_message_over_http_reaches_such_a_queue(
    hosts: Hosts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = make_pair(hosts, tmp_path_factory.mktemp("srmp"))
    try:
        check_srmp(pair)
    finally:
        pair.kill()


def check_srmp(pair: Pair) -> None:
    pair.b.daemon.create(QUEUE, SPACED)
    for name, queue in ((OTHER_CASE, QUEUE), (SPACED, SPACED)):
        pair.a.daemon.send(pair.b.format_name(name), b"1")
        until(pair, lambda: pair.b.daemon.count(queue) == 1)  # noqa: B023
        assert [body(each) for each in pair.b.daemon.receive(queue)] == [b"1"]
    until(pair, lambda: waiting(pair) == 0)


def test_an_amqp_client_uses_such_a_queue(hosts: Hosts) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    with door_of(hosts, QUEUE) as door:
        connection = utils.BlockingConnection(door.url, timeout=60)
        connection.create_sender(OTHER_CASE).send(proton.Message(body="1"))
        receiver = connection.create_receiver(QUEUE)
        assert receiver.receive(timeout=60).body == "1"
        receiver.accept()
        connection.close()
