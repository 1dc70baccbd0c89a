"""Relays, with real daemons and an independent peer before, behind and as the relay."""

from __future__ import annotations

import struct
import time

from tests.patience import END_S, LOOK_S
from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager

QUICK = {"retry_first": "20ms", "retry_max": "100ms", "resend": ["500ms"]}
QUEUE = "OS:b.example\\private$\\orders"
DESTINATION = f"DIRECT={QUEUE}"
HOPS = 0x1F
FROM_RELAYS = {"relays": ["127.0.0.0/8"]}


def relay_to(port: int) -> dict[str, object]:
    return {
        "relay_for": ["127.0.0.0/8"],
        "relay_to": ["*.example"],
        "routes": [f"*.example via 127.0.0.1:{port}"],
    }


def until_sent(daemon: Daemon, destination: str) -> None:
    deadline = time.monotonic() + END_S
    while daemon.json("outgoing", "show", destination)[0]["messages"]:
        assert time.monotonic() < deadline, "the order ack did not find back"
        time.sleep(LOOK_S)


def until_confirmed(daemon: Daemon, destination: str) -> None:
    deadline = time.monotonic() + END_S
    while daemon.json("outgoing", "show", destination)[0]["awaiting"]:
        assert time.monotonic() < deadline, "the final ack does not count"
        time.sleep(LOOK_S)


def as_passed_on(message: wire.Message) -> bytes:
    """Return a message as a relay forwards it: without session header, and with one more hop."""
    packet = bytearray(message.raw)
    if packet[2] & 0x10:
        packet[2] &= ~0x10
        del packet[-16:]
    flags = struct.unpack_from("<I", packet, 60)[0]
    assert flags & HOPS < 29
    struct.pack_into("<I", packet, 60, flags + 1)
    return bytes(packet)


def test_a_real_relay_changes_only_the_hops_of_a_message(
    hosts: Hosts,
) -> None:
    with RemoteQueueManager() as source, RemoteQueueManager() as target:
        listener = target.listen()
        relay = hosts.daemon(delivery=QUICK, routing=relay_to(listener.port))
        sequence = source.new_sequence()
        near = source.connect(relay.port)
        sent = [
            source.transactional("orders", sequence, number, destination=wire.direct(QUEUE))
            for number in (1, 2, 3)
        ]
        near.send_many(sent)
        near.wait_stored()

        far = listener.accept()
        came = far.receive_many(3)

        assert [each.flags & HOPS for each in came] == [1, 1, 1]
        assert [each.source for each in came] == [source.guid] * 3
        for packet, message in zip(sent, came, strict=True):
            passed = bytearray(message.raw)
            if passed[2] & 0x10:
                passed[2] &= ~0x10
                del passed[-16:]
            passed[60] &= ~HOPS
            assert bytes(passed) == packet

        # The peer does not implement relays; its answers go to the other end of the session.
        source.relayed = True
        far.order_ack(sequence, 3)
        near.wait_order_ack(sequence, 3)
        assert near.order_acks[-1].source == target.guid
        assert near.order_acks[-1].address == source.guid


def test_a_peer_forwards_messages_between_two_daemons_and_acknowledgments_back(
    hosts: Hosts,
) -> None:
    with RemoteQueueManager() as relay, RemoteQueueManager(relay.guid) as far_side:
        far_side.relayed = True
        listener = relay.listen()
        route = {"routes": [f"*.example via 127.0.0.1:{listener.port}"]}
        a = hosts.daemon(delivery=QUICK, routing=route)
        b = hosts.daemon(delivery=QUICK, peers=FROM_RELAYS)
        b.create("orders", transactional=True)
        for body in (b"1", b"2", b"3"):
            a.send(DESTINATION, body, "--transactional")
        to_a = listener.accept()
        messages = to_a.receive_many(3)

        to_b = far_side.connect(b.port)
        to_b.send_many([as_passed_on(each) for each in messages])
        to_b.wait_stored()
        to_b.wait(lambda: bool(to_b.order_acks) and to_b.order_acks[-1].order_body()[1] == 3)
        back = to_b.order_acks[-1]
        assert back.address == messages[0].source
        to_a.send(as_passed_on(back))

        until_sent(a, DESTINATION)
        assert b.bodies("orders") == [b"1", b"2", b"3"]


def test_a_relay_that_connects_first_after_a_restart_brings_acknowledgments(hosts: Hosts) -> None:
    with RemoteQueueManager() as relay, RemoteQueueManager(relay.guid) as far_side:
        far_side.relayed = True
        listener = relay.listen()
        route = {"routes": [f"*.example via 127.0.0.1:{listener.port}"]}
        a = hosts.daemon(delivery=QUICK, routing=route, peers=FROM_RELAYS)
        b = hosts.daemon(delivery=QUICK, peers=FROM_RELAYS)
        b.create("orders", transactional=True)
        a.send(DESTINATION, b"1", "--transactional", "--dead-letter")
        (message,) = listener.accept().receive_many(1)
        to_b = far_side.connect(b.port)
        to_b.send(as_passed_on(message))
        to_b.wait(lambda: bool(to_b.order_acks))
        back = to_b.order_acks[-1]
        b.json("receive", "orders")
        to_b.wait(lambda: bool(to_b.final_acks))

        listener.close()  # the daemon cannot connect to its relay
        a.restart()
        to_a = relay.connect(a.port)
        to_a.send(as_passed_on(back))
        until_sent(a, DESTINATION)
        to_a.send(as_passed_on(to_b.final_acks[-1]))

        until_confirmed(a, DESTINATION)


def test_a_destination_that_lost_its_disk_acknowledges_over_any_session_of_the_relay(
    hosts: Hosts,
) -> None:
    """It has another GUID, and the session of the relay does not carry the messages."""
    with RemoteQueueManager() as relay:
        listener = relay.listen()
        route = {"routes": [f"*.example via 127.0.0.1:{listener.port}"]}
        a = hosts.daemon(delivery=QUICK, routing=route)
        to_a, second = None, None
        for body in (b"before", b"after"):
            b = hosts.daemon(delivery=QUICK, peers=FROM_RELAYS)  # each has a GUID of its own
            b.create("orders", transactional=True)
            a.send(DESTINATION, body, "--transactional", "--dead-letter")
            to_a = to_a or listener.accept()
            message = to_a.receive()
            far_side = hosts.remote(relay.guid)
            far_side.relayed = True
            to_b = far_side.connect(b.port)
            to_b.send(as_passed_on(message))
            to_b.wait(lambda peer=to_b: bool(peer.order_acks))
            (second or to_a).send(as_passed_on(to_b.order_acks[-1]))
            until_sent(a, DESTINATION)
            assert b.bodies("orders") == [body]
            to_b.wait(lambda peer=to_b: bool(peer.final_acks))
            (second or to_a).send(as_passed_on(to_b.final_acks[-1]))
            until_confirmed(a, DESTINATION)
            second = relay.connect(a.port)


def test_a_relay_that_is_killed_repeatedly_forwards_every_message_once(hosts: Hosts) -> None:
    b = hosts.daemon(delivery=QUICK, peers=FROM_RELAYS)
    relay = hosts.daemon(delivery=QUICK, routing=relay_to(b.port))
    route = {"routes": [f"*.example via 127.0.0.1:{relay.port}"]}
    a = hosts.daemon(delivery=QUICK, routing=route)
    b.create("orders", transactional=True)
    expected = [b"%d" % number for number in range(300)]
    for first in range(0, 300, 100):
        a.send_all(DESTINATION, expected[first : first + 100], "--transactional")
        relay.kill()
        relay.start()

    until_sent(a, DESTINATION)

    assert b.bodies("orders") == expected
