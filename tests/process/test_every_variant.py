"""Packets in every legal variant, by the codec of the tests: each is taken, and keeps its content.

The variants of each field are drawn together, so that optional headers meet in many combinations;
each variant occurs often in the drawn messages, which a test checks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.process import wire
from tests.process.harness import Daemon, Hosts, body
from tests.process.remote import RemoteQueueManager
from tests.process.wire.packets import NO_NAME

COUNT = 400
LISTS = (
    (["TCP:127.0.0.1\\private$\\plain"], [], []),
    (["OS:localhost\\private$\\plain", "TCP:10.1.2.3\\private$\\x"], ["OS:a\\private$\\acks"], []),
    (["HTTP://hostb/msmq/private$/x", "TCP:127.0.0.1\\private$\\plain"], [], ["OS:b\\private$\\r"]),
)
#: A field of `wire.message`, and its variants.
VARIANTS: dict[str, list[Any]] = {
    "body": [b"", b"x", b"xy", b"xyz", bytes(range(256)) * 5],
    "label": ["", "a", "ab", "ü" * 249],
    "extension": [b"", b"\0", b"<x/>", bytes(17)],
    "body_type": [0, 8, 30, 31, 0x1011, 0xFFFFFFFF],
    "application_tag": [0, 1, 0xFFFFFFFF],
    "priority": [0, 3, 7],
    "recoverable": [False, True],
    "dead_letter": [False, True],
    "journal": [False, True],
    "time_to_reach_queue": [600, 0xFFFFFFFE, 0xFFFFFFFF],
    "time_to_be_received": [3600, 0xFFFFFFFE, 0xFFFFFFFF],
    "correlation": [bytes(20), bytes(range(20))],
    "ack_bits": [0, 1, 2, 4, 5, 8, 10, 14, 15],
    "admin": [
        NO_NAME,
        wire.direct("OS:elsewhere\\private$\\acks"),
        wire.direct("TCP:10.1.2.3\\private$\\acks"),
        wire.direct("HTTP://elsewhere/msmq/private$/acks"),
        wire.direct("HTTPS://elsewhere/msmq/private$/acks"),
        wire.Name(5, guid=bytes(range(16))),
        wire.Name(6, guid=bytes(range(16)), number=7),
        wire.Name(3, number=9),
    ],
    "response": [
        NO_NAME,
        wire.direct("OS:elsewhere\\orders"),
        wire.direct("HTTP://elsewhere/msmq/private$/answers"),
        wire.Name(3, number=9),
        wire.Name(4, number=9),
        wire.Name(5, guid=bytes(range(16))),
        wire.Name(6, guid=bytes(range(16)), number=7),
    ],
    "security": [
        b"",
        wire.security_header(b"\1\1" + bytes(6) + b"\0\0\0\0"),
        wire.security_header(certificate=b"certificate"),
    ],
    "debug": [b"", wire.debug_header(), wire.debug_header(bytes(range(16)))],
    "soap": [b"", wire.soap_header("<h/>", "<b/>"), wire.soap_header("", "")],
    "multi_queue": [b"", *(wire.multi_queue_header(*each) for each in LISTS)],
    "hops": [0, 1, 15, 29],
    "connector": [b"", bytes(range(16))],
    "destination": [
        wire.direct("TCP:127.0.0.1\\private$\\plain"),
        wire.direct("OS:localhost\\PRIVATE$\\Plain"),
        wire.direct("tcp:127.0.0.1\\private$\\plain"),
    ],
}


def drawn(seed: int) -> Iterator[dict[str, Any]]:
    """Yield the fields of messages; each differs from the plain one in some of them."""
    randomly = random.Random(seed)
    for _ in range(COUNT):
        chosen = {}
        for name in randomly.sample(sorted(VARIANTS), randomly.randint(1, len(VARIANTS))):
            chosen[name] = randomly.choice(VARIANTS[name])
        yield chosen


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


def test_each_variant_occurs_often() -> None:
    seen = Counter(
        (name, VARIANTS[name].index(value)) for each in drawn(1) for name, value in each.items()
    )

    for name, variants in VARIANTS.items():
        for index in range(len(variants)):
            assert seen[name, index] >= 10, (name, index)


def test_every_legal_variant_is_taken_with_its_content(
    daemon: Daemon, remote: RemoteQueueManager
) -> None:
    expected = {}
    with_session = random.Random(2)
    peer = remote.connect(daemon.port)
    for number, fields in enumerate(drawn(1)):
        named = {"destination": wire.private("plain"), **fields}
        packet = wire.message(source=remote.guid, message_id=remote.next_id(), **named)
        peer.send(packet, piggyback=with_session.random() < 0.3)
        expected[number] = named
    peer.wait_acknowledged()
    peer.wait_stored()

    found = daemon.receive("plain")
    assert len(found) == COUNT
    by_id = {int(each["id"].rpartition("\\")[2]): each for each in found}
    first = min(by_id)
    for number, named in expected.items():
        _same(by_id[first + number], named)


def test_a_message_of_a_stream_may_have_every_optional_header(
    daemon: Daemon, remote: RemoteQueueManager
) -> None:
    peer, sequence = remote.connect(daemon.port), remote.new_sequence()
    extras = [
        fields
        for fields in drawn(3)
        if not {"multi_queue", "recoverable", "priority", "destination"} & fields.keys()
    ][:40]
    assert len(extras) >= 20
    bodies = []
    for number, fields in enumerate(extras, 1):
        content = fields.pop("body", b"")
        peer.send(remote.transactional("orders", sequence, number, body=content, **fields))
        bodies.append(content)
    peer.wait_order_ack(sequence, len(extras))

    found = daemon.receive("orders")
    assert [body(each) for each in found] == bodies


_SHOWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "body": body,
    "label": lambda found: found["label"],
    "priority": lambda found: found["priority"],
    "body_type": lambda found: found["body_type"],
    "application_tag": lambda found: found["application_tag"],
    "journal": lambda found: found["journal"],
    "dead_letter": lambda found: found["dead_letter"],
    "hops": lambda found: found["hops"],
}


def _same(found: dict[str, Any], given: dict[str, Any]) -> None:
    for name, shown in _SHOWN.items():
        if name in given:
            assert shown(found) == given[name], (name, given)
    wanted = "recoverable" if given.get("recoverable") else "express"
    assert found["delivery"] == wanted
