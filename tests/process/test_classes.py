"""Each class of MS-MQMQ 2.2.18.1.6 that a peer or a local application can cause:
its acknowledgment to every administration queue, and its reason in the dead-letter queues.

QB 3.1.5.8.3, 3.1.5.8.8, 3.1.5.8.10, 3.1.7.2.1, 3.1.7.15.  Reports (0x0001): test_properties.py.

"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.process import wire
from tests.process.harness import (
    DEADLETTER,
    DEADXACT,
    Daemon,
    Hosts,
    body,
    empty_queues,
    free_port,
)
from tests.process.remote import RemoteQueueManager

QUICK = {"retry_first": "50ms", "retry_max": "200ms", "insecure_nacks": True}
ENCRYPTED = wire.security_header(key=b"key!", flags=0x20 | 0x80)
ALL = wire.PA | wire.PR | wire.NA | wire.NR


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon(delivery=QUICK)
    daemon.create("acks", "more")
    return daemon


@dataclass(frozen=True)
class Case:
    """The message of a peer, the following acts, the acknowledgment, and the stored outcome."""

    message_class: int
    name: str
    queue: str = "plain"
    transactional: bool = False  # the message
    ack_bits: int = ALL
    properties: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Daemon], object] = lambda daemon: None
    kept_in: str | None = None
    reason: tuple[str, ...] = ()
    has_body: bool = True  # of the acknowledgment


FROM_A_PEER = [
    Case(0x0002, "ack_reach_queue", ack_bits=wire.PA, has_body=False),
    Case(
        0x4000,
        "ack_receive",
        ack_bits=wire.PR,
        act=lambda daemon: daemon.receive("plain"),
        has_body=False,
    ),
    Case(
        0x8000,
        "nack_bad_destination_queue",
        queue="nowhere",
        kept_in=DEADLETTER,
        reason=("nowhere", "has no queue"),
    ),
    Case(
        0x8002,
        "nack_reach_queue_timeout",
        properties={
            "sent_time": wire.now_s() - 100,
            "time_to_reach_queue": 50,
            "dead_letter": True,
        },
        kept_in=DEADLETTER,
        reason=("plain", "did not reach"),
    ),
    Case(
        0x8003,
        "nack_queue_exceed_quota",
        queue="small",
        properties={"dead_letter": True},
        kept_in=DEADLETTER,
        reason=("small", "full", "0 of 100 bytes are used"),
    ),
    Case(
        0x8005,
        "nack_hop_count_exceeded",
        properties={"address": b"somebody-else---", "hops": 29},
        kept_in=DEADLETTER,
        reason=("plain", "too many queue managers"),
    ),
    Case(
        0x8007,
        "nack_bad_encryption",
        properties={"security": ENCRYPTED},
        kept_in=DEADLETTER,
        reason=("plain", "could not be decrypted"),
        has_body=False,
    ),
    Case(
        0x8009,
        "nack_not_transactional_queue",
        transactional=True,
        kept_in=DEADXACT,
        reason=("plain", "is transactional, and"),
    ),
    Case(
        0x800A,
        "nack_not_transactional_message",
        queue="strict",
        kept_in=DEADLETTER,
        reason=("strict", "the message is not"),
    ),
    Case(
        0xC000,
        "nack_queue_deleted",
        ack_bits=wire.NR,
        act=lambda daemon: daemon.cli("queue", "delete", "plain", "--yes"),
    ),
    Case(
        0xC001,
        "nack_queue_purged",
        ack_bits=wire.NR,
        act=lambda daemon: daemon.cli("queue", "purge", "plain", "--yes"),
    ),
    Case(
        0xC002,
        "nack_receive_timeout",
        ack_bits=wire.NR,
        properties={"time_to_be_received": 1},
    ),
    Case(
        0xC004,
        "nack_receive_rejected",
        ack_bits=wire.NR,
        act=lambda daemon: daemon.cli("reject", "plain", "--yes"),
    ),
]


@pytest.mark.parametrize("case", FROM_A_PEER, ids=lambda case: case.name)
def test_a_peer_is_notified_at_all_its_administration_queues(
    daemon: Daemon, remote: RemoteQueueManager, case: Case
):
    daemon.create("plain")
    daemon.create("strict", transactional=True)
    daemon.cli("queue", "create", "small", "--quota", "100B")
    (status,) = daemon.json("status")
    ours = [f"OS:{status['name']}\\private$\\{queue}" for queue in ("acks", "more")]
    theirs = wire.private("acks")
    properties: dict[str, Any] = {
        "ack_bits": case.ack_bits,
        "admin": theirs,
        "multi_queue": wire.multi_queue_header(["TCP:127.0.0.1\\q"], [theirs.text, *ours]),
        "label": "the label",
        "message_id": 4711,
        **case.properties,
    }
    if case.transactional:
        packet = remote.transactional(case.queue, remote.new_sequence(), 1, body=b"x", **properties)
    else:
        packet = remote.message(case.queue, b"x", recoverable=True, **properties)
    peer = remote.connect(daemon.port)

    peer.send_now(packet)
    if case.message_class & 0x4000:
        daemon.wait_for("plain", 1) if case.message_class != 0xC002 else None
        case.act(daemon)

    reported = peer.receive()
    while reported.destination != theirs:  # a final ack reports the same to the queue manager
        reported = peer.receive()
    assert reported.message_class == case.message_class
    assert reported.correlation == remote.guid + struct.pack("<I", 4711)
    assert reported.body == (b"x" if case.has_body else b"")
    for queue in ("acks", "more"):
        (same,) = daemon.wait_for(queue, 1)
        assert same["class"] == case.name
        assert same["correlation_id"].endswith("\\4711")
    if case.kept_in is not None:
        (kept,) = daemon.wait_for(case.kept_in, 1)
        assert kept["class"] == case.name
        for words in case.reason:
            assert words in kept["reason"]
    _tidy(daemon)


@dataclass(frozen=True)
class Own:
    """An end of a message of a local application; a message for `strict` is transactional."""

    message_class: int
    name: str
    destination: str
    options: list[str] = field(default_factory=list)
    act: Callable[[Daemon, str], object] = lambda daemon, destination: None
    reason: tuple[str, ...] = ()


OUR_OWN = [
    Own(
        0x8001,
        "nack_deleted",
        "elsewhere",
        act=lambda daemon, destination: daemon.cli("outgoing", "purge", destination, "--yes"),
        reason=("was deleted before",),
    ),
    Own(
        0x8002,
        "nack_reach_queue_timeout",
        "elsewhere",
        ["--time-to-reach-queue", "1s"],
        reason=("did not reach", "127.0.0.1"),
    ),
    Own(
        0xC000,
        "nack_queue_deleted",
        "strict",
        act=lambda daemon, destination: daemon.cli("queue", "delete", "strict", "--yes"),
        reason=("strict", "was deleted"),
    ),
    Own(
        0xC001,
        "nack_queue_purged",
        "strict",
        act=lambda daemon, destination: daemon.cli("queue", "purge", "strict", "--yes"),
        reason=("strict", "was purged"),
    ),
    Own(
        0xC002,
        "nack_receive_timeout",
        "plain",
        ["--time-to-be-received", "1s"],
        reason=("plain", "was not received"),
    ),
    Own(
        0xC004,
        "nack_receive_rejected",
        "plain",
        act=lambda daemon, destination: daemon.cli("reject", "plain", "--yes"),
        reason=("plain", "rejected"),
    ),
]


@pytest.mark.parametrize("case", OUR_OWN, ids=lambda case: case.name)
def test_a_local_application_is_notified_and_finds_its_message_with_the_reason(
    daemon: Daemon, case: Own
):
    daemon.create("plain")
    daemon.create("strict", transactional=True)
    is_plain = case.destination != "strict"
    destination = case.destination
    if destination == "elsewhere":
        destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\q"
    sent = daemon.send(
        destination,
        b"x",
        *("--recoverable" if is_plain else "--transactional", "--dead-letter"),
        *("--admin-queue", "acks,more", "--acknowledge", "full-reach-queue,full-receive"),
        *case.options,
    )
    case.act(daemon, destination)

    (dead,) = daemon.wait_for(DEADLETTER if is_plain else DEADXACT, 1)
    assert (dead["id"], dead["class"], body(dead)) == (sent, case.name, b"x")
    assert dead["class_number"] == case.message_class
    for words in case.reason:
        assert words in dead["reason"]
    for queue in ("acks", "more"):
        reported = [row for row in daemon.wait_for(queue, 1) if row["class"] == case.name]
        while not reported:
            reported = [row for row in daemon.peek(queue) if row["class"] == case.name]
        assert [row["correlation_id"] for row in reported] == [sent]
    _tidy(daemon)


def _tidy(daemon: Daemon) -> None:
    for row in daemon.json("queue", "list"):
        if row["name"] not in ("private$\\acks", "private$\\more"):
            daemon.cli("queue", "delete", row["name"], "--yes")
    empty_queues(daemon)
