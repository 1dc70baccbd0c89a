"""User messages in every legal form, sent by the strict host: each is taken, with its content."""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.process.harness import Daemon, Hosts, body
from tests.strict_host.encoding import JN, JP, Name, direct
from tests.strict_host.manner import POLITE
from tests.strict_host.sockets import SocketHost
from tests.strict_host.variety import FIELDS, drawn_fields

COUNT = 300
WHOLE_BODY = 4 * 1024 * 1024 - 300


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def strict(daemon: Daemon) -> Iterator[SocketHost]:
    """Yield a strict host that finds the daemon without fault."""
    host = SocketHost(manner=replace(POLITE, piggyback=0.3), seed=7)
    host.target = daemon.port
    try:
        yield host
    finally:
        host.close()
    host.host.verdict.assert_clean()


def names_of(daemon: Daemon, queue: str) -> list[tuple[Name, bytes]]:
    """Return each form of the name of a queue, with its QueueManagerAddress."""
    (shown,) = daemon.json("queue", "show", f"private$\\{queue}")
    (manager,) = daemon.json("status")
    own = uuid.UUID(manager["queue_manager"]).bytes_le
    null = bytes(16)
    public = uuid.UUID(shown["public_name"].partition("=")[2]).bytes_le
    return [
        (direct(f"TCP:127.0.0.1\\private$\\{queue}"), null),
        (direct(f"tcp:127.0.0.1\\PRIVATE$\\{queue.upper()}"), null),
        (direct(f"OS:localhost\\private$\\{queue}"), null),
        (Name(3, number=shown["number"]), own),
        (Name(5, guid=public), own),
    ]


def assert_same(found: dict[str, Any], fields: dict[str, Any]) -> None:
    given = {name: fields.get(name, values[0]) for name, values in FIELDS.items()}
    assert body(found) == given["body"]
    assert found["label"] == given["label"]
    assert base64.b64decode(found["extension_base64"]) == given["extension"]
    assert found["body_type"] == given["body_type"]
    assert found["application_tag"] == given["tag"]
    assert found["hops"] == given["hops"]
    assert found["dead_letter"] == bool(given["journal"] & JN)
    assert found["journal"] == bool(given["journal"] & JP)
    if not found["transactional"]:
        assert found["priority"] == given["priority"]
        assert found["delivery"] == ("recoverable" if given["recoverable"] else "express")


@pytest.mark.parametrize("seed", [1, 2])
def test_each_form_of_a_message_is_taken_with_its_content(
    daemon: Daemon, strict: SocketHost, seed: int
) -> None:
    source = random.Random(seed)
    names = names_of(daemon, "plain")
    sent = {}
    with strict as host:
        for _ in range(COUNT):
            fields = drawn_fields(source)
            to, address = source.choice(names)
            item = host.send(to, address=address, **fields)
            sent[item.draft.message_id] = fields
    strict.wait(lambda host: not host.sending.table, "session acks of all messages")

    found = {int(each["id"].rpartition("\\")[2]): each for each in daemon.receive("plain")}
    assert found.keys() == sent.keys()
    for number, fields in sent.items():
        assert_same(found[number], fields)


def test_each_form_of_a_message_has_its_place_in_a_sequence(
    daemon: Daemon, strict: SocketHost
) -> None:
    source = random.Random(3)
    sent = []
    with strict as host:
        for number in range(COUNT // 3):
            fields = drawn_fields(source)
            fields.pop("recoverable", None)
            flags = source.choice([0, 4, 8, 12]) | source.choice([0, 2])
            host.send_in_order("orders", flags=flags, **{**fields, "tag": number})
            sent.append({**fields, "tag": number})
    strict.wait(lambda host: not host.sending.table, "order acks of all messages")

    found = daemon.receive("orders")
    assert [each["application_tag"] for each in found] == list(range(COUNT // 3))
    for each, fields in zip(found, sent, strict=True):
        assert_same(each, fields)


def test_bodies_of_four_mebibytes_arrive(daemon: Daemon, strict: SocketHost) -> None:
    bodies = [bytes([number]) * WHOLE_BODY for number in range(3)]
    with strict as host:
        for each in bodies:
            host.send_in_order("orders", each)
    strict.wait(lambda host: not host.sending.table, "order acks of all messages")
    content = daemon.folder / "content"
    content.write_bytes(bodies[1])
    daemon.cli("send", strict.destination("q"), "--transactional", "--file", str(content))
    strict.wait(lambda host: host.bodies("q"), "the message of the daemon")

    assert daemon.bodies("orders") == bodies
    assert strict.host.bodies("q") == [bodies[1]]
