"""Attacks on streams: order acks and final acks in the name of another queue manager."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import pytest

from tests.attack.stream_scenes import (
    FAST,
    FINAL_CLASSES,
    HOSTILE,
    LAST,
    RECEIVED,
    Keyed,
    eventually,
    guid_of,
    incoming,
)
from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import DEADXACT, Hosts
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager


@pytest.fixture
def keyed(hosts: Hosts) -> Keyed:
    return Keyed(hosts)


@pytest.mark.parametrize("as_destination", [False, True])
def test_forged_order_acks_release_nothing(keyed: Keyed, as_destination: bool) -> None:
    keyed.order()
    receiver_guid = guid_of(keyed.receiver)
    keyed.receiver.kill()
    for _ in range(3):
        keyed.send("orders", b"waiting", "--transactional")
    (outgoing,) = [
        row for row in keyed.sender.json("sequence", "list") if row["direction"] == "outgoing"
    ]
    sequence = outgoing["id"]
    attacker = keyed.attacker(receiver_guid if as_destination else os.urandom(16), of=keyed.sender)
    for guess, number in itertools.product((sequence, sequence - 1, sequence + 1, LAST), (1, 4)):
        attacker.order_ack(guess, number)
    attacker.wait_stored()

    assert keyed.sender.json("outgoing", "show", keyed.to("orders"))[0]["messages"] == 3
    keyed.receiver.start()
    keyed.receiver.wait_for("orders", 4)


@pytest.mark.parametrize("stated", ["another GUID", "the GUID of the destination"])
def test_order_acks_of_others_release_nothing_that_is_in_flight(hosts: Hosts, stated: str) -> None:
    daemon = hosts.daemon(delivery={**FAST["delivery"], "resend": ["1h"]})
    destination_manager = hosts.remote()
    listener = destination_manager.listen()
    destination = listener.destination("q")
    daemon.send_all(destination, [b"1", b"2", b"3"], "--transactional")
    peer = listener.accept()
    transaction = peer.receive_many(3)[0].transaction
    assert transaction is not None

    guid = destination_manager.guid if stated == "the GUID of the destination" else None
    with RemoteQueueManager(guid) as hostile:
        attacker = hostile.connect(daemon.port, source=HOSTILE)
        for number in (1, 2, 3):  # it knows everything
            attacker.order_ack(transaction.sequence_id, number)
            attacker.send(
                wire.order_ack(
                    source=destination_manager.guid,
                    message_id=hostile.next_id(),
                    sequence_id=transaction.sequence_id,
                    number=number,
                )
            )
        attacker.wait_stored()

    assert daemon.json("outgoing", "show", destination)[0]["messages"] == 3
    peer.order_ack(transaction.sequence_id, 3)
    peer.wait_stored()
    assert daemon.json("outgoing", "show", destination)[0]["messages"] == 0


@pytest.mark.parametrize("as_destination", [False, True])
def test_order_acks_of_others_release_nothing_that_is_in_flight_to_a_qmd(
    keyed: Keyed, as_destination: bool
) -> None:
    keyed.order()
    guid = guid_of(keyed.receiver) if as_destination else os.urandom(16)
    attacker = keyed.attacker(guid, of=keyed.sender)
    with held_disk(keyed.receiver.folder):
        for _ in range(3):
            keyed.send("orders", b"waiting", "--transactional")
        (row,) = [
            row for row in keyed.sender.json("sequence", "list") if row["direction"] == "outgoing"
        ]
        for number in (1, 2, 3, 4):
            attacker.order_ack(row["id"], number)
        attacker.wait_stored()

        assert keyed.sender.json("outgoing", "show", keyed.to("orders"))[0]["messages"] == 3
    keyed.receiver.wait_for("orders", 4)


@pytest.mark.parametrize("stated", ["another GUID", "the GUID of the destination"])
@pytest.mark.parametrize("is_awaiting", [False, True])
def test_forged_final_acks_confirm_and_kill_nothing(
    hosts: Hosts, stated: str, is_awaiting: bool
) -> None:
    daemon = hosts.daemon(**FAST)
    daemon.create("here")
    destination_manager = hosts.remote()
    listener = destination_manager.listen()
    destination = listener.destination("q")
    bodies = [b"%d" % each for each in range(len(FINAL_CLASSES))]
    daemon.send_all(destination, bodies, "--transactional", "--dead-letter", "--journal")
    peer = listener.accept()
    messages = peer.receive_many(len(bodies))
    if is_awaiting:
        assert messages[-1].transaction is not None
        peer.order_ack(messages[-1].transaction.sequence_id, len(bodies))
        peer.wait_stored()
    (before,) = daemon.json("outgoing", "show", destination)

    guid = destination_manager.guid if stated == "the GUID of the destination" else None
    for source in (HOSTILE, "127.0.0.4"):
        with RemoteQueueManager(guid) as hostile:
            attacker = hostile.connect(daemon.port, source=source)
            for message, message_class in itertools.product(messages, FINAL_CLASSES):
                attacker.send(
                    wire.final_ack(
                        source=destination_manager.guid,
                        message_id=hostile.next_id(),
                        message_class=message_class,
                        of=message,
                    )
                )
                attacker.final_ack(message, message_class)
            attacker.wait_stored()

    (after,) = daemon.json("outgoing", "show", destination)
    assert (after["messages"], after["awaiting"]) == (before["messages"], before["awaiting"])
    assert daemon.count(DEADXACT) == 0
    for message in messages:  # the genuine ones count
        peer.final_ack(message, RECEIVED)
    peer.wait_stored()
    (end,) = daemon.json("outgoing", "show", destination)
    assert (end["messages"], end["awaiting"]) == (0, 0)


@pytest.mark.parametrize("as_destination", [False, True])
def test_forged_final_acks_about_messages_for_a_qmd_change_nothing(
    keyed: Keyed, as_destination: bool
) -> None:
    keyed.sent = 1
    sent = keyed.sender.send(keyed.to("orders"), b"1", "--transactional", "--dead-letter")
    keyed.receiver.wait_for("orders", 1)

    def awaiting() -> int:
        (facts,) = keyed.sender.json("outgoing", "show", keyed.to("orders"))
        return int(facts["awaiting"])

    eventually(lambda: awaiting() == 1, "the order ack")
    (row,) = incoming(keyed.receiver)
    place = (row["id"], 1, 0)  # it knows everything
    number = int(sent.partition("\\")[2])
    destination = guid_of(keyed.receiver)
    attacker = keyed.attacker(destination if as_destination else os.urandom(16), of=keyed.sender)
    for message_class, source in itertools.product(
        FINAL_CLASSES, (destination, attacker.owner.guid)
    ):
        attacker.send(
            wire.final_ack_of(
                source=source,
                message_id=attacker.owner.next_id(),
                message_class=message_class,
                place=place,
                of_source=keyed.guid,
                of_message_id=number,
            )
        )
    attacker.wait_stored()

    assert awaiting() == 1
    assert keyed.sender.count(DEADXACT) == 0
    assert keyed.receiver.bodies("orders") == [b"1"]
    eventually(lambda: awaiting() == 0, "the genuine final ack")


ROUTED = "DIRECT=OS:b.example\\private$\\q"
OTHER_RELAY = "127.0.0.4"


class Routed:
    """Messages that leave over a relay; the destination behind it has acknowledged the first."""

    def __init__(self, hosts: Hosts) -> None:
        self.relay, self.destination = hosts.remote(), hosts.remote()
        self.relay.relayed = True  # it brings acknowledgments of others
        listener = self.relay.listen()
        self.daemon = hosts.daemon(
            delivery={**FAST["delivery"], "resend": ["1h"]},
            routing={"routes": [f"*.example via 127.0.0.1:{listener.port}"]},
            peers={"relays": [OTHER_RELAY]},
        )
        self.daemon.send_all(ROUTED, [b"1", b"2", b"3"], "--transactional", "--dead-letter")
        self.peer = listener.accept()
        self.messages = self.peer.receive_many(3)
        self.bring(self.peer, self.destination.guid, 1)
        self.peer.wait_stored()
        assert self.counts() == (2, 1)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of messages without an order ack, and without a final ack."""
        (facts,) = self.daemon.json("outgoing", "show", ROUTED)
        return facts["messages"], facts["awaiting"]

    def bring(self, peer: Peer, source: bytes, number: int, final: Iterable[int] = ()) -> None:
        """Send an order ack and final acks in the name of a queue manager, with all knowledge."""
        transaction = self.messages[0].transaction
        assert transaction is not None
        peer.send(
            wire.order_ack(
                source=source,
                message_id=peer.owner.next_id(),
                sequence_id=transaction.sequence_id,
                number=number,
            )
        )
        for message, message_class in itertools.product(self.messages, final):
            peer.send(
                wire.final_ack(
                    source=source,
                    message_id=peer.owner.next_id(),
                    message_class=message_class,
                    of=message,
                )
            )


@pytest.mark.parametrize("stated", ["another GUID", "that of the destination", "that of the relay"])
def test_only_the_relay_of_messages_brings_acknowledgments_of_another_destination(
    hosts: Hosts, stated: str
) -> None:
    routed = Routed(hosts)
    known, relay, new = routed.destination.guid, routed.relay.guid, os.urandom(16)
    guid = {"another GUID": new, "that of the destination": known, "that of the relay": relay}
    attacker = hosts.remote(guid[stated]).connect(routed.daemon.port, source=HOSTILE)
    attacker.owner.relayed = True
    for source in (known, relay, new):
        routed.bring(attacker, source, 3, FINAL_CLASSES)
    attacker.wait_stored()

    assert routed.counts() == (2, 1)
    assert routed.daemon.count(DEADXACT) == 0


@pytest.mark.parametrize("stated", ["a GUID of its own", "that of the relay of the messages"])
def test_another_relay_brings_acknowledgments_of_the_known_destination_only(
    hosts: Hosts, stated: str
) -> None:
    routed = Routed(hosts)
    other = hosts.remote(None if stated == "a GUID of its own" else routed.relay.guid)
    other.relayed = True
    peer = other.connect(routed.daemon.port, source=OTHER_RELAY)
    for source in (routed.relay.guid, other.guid, os.urandom(16)):
        routed.bring(peer, source, 3, FINAL_CLASSES)
    peer.wait_stored()
    assert routed.counts() == (2, 1)
    assert routed.daemon.count(DEADXACT) == 0

    routed.bring(peer, routed.destination.guid, 3)
    peer.wait_stored()
    assert routed.counts() == (0, 3)


def test_a_relay_does_not_acknowledge_as_a_destination_over_another_session(hosts: Hosts) -> None:
    routed = Routed(hosts)
    second = routed.relay.connect(routed.daemon.port, source="127.0.0.1")
    routed.bring(second, routed.relay.guid, 3, FINAL_CLASSES)
    second.wait_stored()

    assert routed.counts() == (2, 1)
    assert routed.daemon.count(DEADXACT) == 0
