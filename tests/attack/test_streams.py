"""Attacks on streams: messages in the name of another queue manager."""

from __future__ import annotations

import os
import uuid

import pytest

from qmd.core.internal_names import HISTORY_QUEUE
from qmd.history.lookup_messages import encoded_request
from tests.attack.stream_scenes import (
    DENIED,
    FAST,
    GENUINE,
    HOSTILE,
    JUNK,
    LAST,
    Keyed,
    Scene,
    eventually,
    genuine,
    incoming,
    rows,
    sequence_from,
)
from tests.process import wire
from tests.process.harness import DEADLETTER, DEADXACT, Hosts
from tests.process.remote import RemoteQueueManager


@pytest.fixture
def scene(hosts: Hosts) -> Scene:
    return Scene(hosts)


@pytest.fixture
def keyed(hosts: Hosts) -> Keyed:
    return Keyed(hosts)


# --- Messages with the next numbers of another queue manager --------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_the_next_message_numbers_of_a_source_do_not_discard_its_messages(
    scene: Scene, restarted: bool
) -> None:
    scene.peer.send(scene.genuine.message("plain", genuine(0), recoverable=True))
    scene.peer.wait_stored()
    numbers = [scene.genuine.next_id() for _ in range(40)]

    attacker = scene.attacker()
    attacker.send_many(
        attacker.owner.message("plain", JUNK, recoverable=True, message_id=number)
        for number in numbers
    )
    attacker.wait_stored()
    if restarted:
        scene.daemon.restart()
        scene.reconnect()
    packets = [
        scene.genuine.message("plain", genuine(at), recoverable=True, message_id=number)
        for at, number in enumerate(numbers, 1)
    ]
    scene.peer.send_many(packets)
    scene.peer.wait_stored()
    scene.peer.send_many(packets)  # each one once
    scene.peer.wait_stored()

    bodies = scene.daemon.bodies("plain")
    assert [each for each in bodies if each != JUNK] == [genuine(at) for at in range(41)]


def test_the_next_message_numbers_of_a_qmd_do_not_discard_its_messages(keyed: Keyed) -> None:
    number = keyed.send("plain", genuine(0), "--recoverable")
    keyed.receiver.wait_for("plain", 1)

    attacker = keyed.attacker()
    attacker.send_many(
        attacker.owner.message("plain", JUNK, recoverable=True, message_id=number + each)
        for each in range(1, 41)
    )
    attacker.wait_stored()
    for each in range(1, 6):
        keyed.send("plain", genuine(each), "--recoverable")
    keyed.receiver.wait_for("plain", 46)

    bodies = [each for each in keyed.receiver.bodies("plain") if each != JUNK]
    assert bodies == [genuine(each) for each in range(6)]


def test_why_does_not_report_the_message_of_a_program_as_that_of_the_source(keyed: Keyed) -> None:
    number = keyed.send("plain", genuine(0), "--recoverable")
    keyed.receiver.wait_for("plain", 1)
    attacker = keyed.attacker()
    attacker.send_many(
        attacker.owner.message("plain", JUNK, recoverable=True, message_id=number + each)
        for each in range(1, 41)
    )
    attacker.wait_stored()

    sent = keyed.sender.send(keyed.to("other"), genuine(0), "--recoverable")
    assert number < int(sent.partition("\\")[2]) <= number + 40
    eventually(
        lambda: keyed.receiver.json("events", "tail", "--kind", "refused"), "its refusal there"
    )

    (reported,) = keyed.sender.json("why", sent)
    (peer,) = reported["peers"]
    assert peer["answered"], peer["explanation"]
    assert peer["state"] not in ("queued", "taken", "received")
    assert not any("private$\\plain" in sentence for sentence in peer["sentences"])


@pytest.mark.parametrize("keyed_victim", [False, True])
def test_the_history_of_a_source_is_not_disclosed_to_a_program_with_its_guid(
    scene: Scene, hosts: Hosts, keyed_victim: bool
) -> None:
    if keyed_victim:
        other = Keyed(hosts)
        other.order()
        daemon, guid = other.receiver, other.guid
        (event,) = daemon.json("events", "tail", "--kind", "accepted")
        number = int(event["message_id"].partition("\\")[2])
        attacker = other.attacker()
    else:
        scene.order(3)
        daemon, guid, number = scene.daemon, scene.genuine.guid, 1
        attacker = scene.attacker()

    attacker.send(
        attacker.owner.message(
            "ignored",
            encoded_request(guid, number),
            destination=wire.private(HISTORY_QUEUE.partition("\\")[2]),
        )
    )
    attacker.wait(lambda: bool(attacker.inbox), what="the answer")

    (answer,) = attacker.inbox
    assert b"accepted" not in answer.body
    assert b"orders" not in answer.body
    assert daemon.alive


# --- Sequences of another queue manager -----------------------------------------------------------


def test_an_old_sequence_discloses_nothing_of_the_genuine_one(scene: Scene) -> None:
    scene.order(3)
    attacker = scene.attacker()
    old = sequence_from(5000)

    for sequence, number in [(old, 7), (old, 1), (1, 5), (sequence_from(0), 9)]:
        attacker.send(
            attacker.owner.transactional("orders", sequence, number, body=JUNK, dead_letter=True)
        )
    attacker.wait_stored()
    attacker.read_for(1.0)

    disclosed = {each.order_body()[0] for each in attacker.order_acks}
    assert scene.sequence not in disclosed
    assert disclosed <= {old}, "only its own one is acknowledged"
    assert attacker.final_acks == []
    scene.order(3)
    assert scene.genuine_orders() == scene.expected()


def test_an_old_sequence_in_the_name_of_a_qmd_discloses_nothing(keyed: Keyed) -> None:
    keyed.order()
    (known,) = incoming(keyed.receiver)
    attacker = keyed.attacker()
    attacker.send(attacker.owner.transactional("orders", 1, 7, body=JUNK))
    attacker.wait_stored()
    attacker.read_for(1.0)

    assert attacker.order_acks == attacker.final_acks == []
    assert [row["id"] for row in incoming(keyed.receiver)] == [known["id"]], "it has left no row"
    keyed.order()
    assert keyed.receiver.bodies("orders") == [genuine(1), genuine(2)]


@pytest.mark.parametrize("sender_is_there", [True, False])
def test_a_known_sequence_id_of_a_qmd_does_not_open_its_stream(
    keyed: Keyed, sender_is_there: bool
) -> None:
    """Even a program that has seen the id of the sequence cannot take its next positions.

    While the sender has a session, that alone holds them back (stream_claims.py); without one, its
    key does.
    """
    keyed.order()
    (known,) = incoming(keyed.receiver)
    sequence = known["id"]
    if not sender_is_there:
        keyed.sender.terminate()
        eventually(lambda: not keyed.receiver.json("session", "list"), "the end of its session")
    attacker = keyed.attacker()
    attacker.send_many(
        attacker.owner.transactional("orders", sequence, number, body=JUNK)
        for number in range(2, 12)
    )
    attacker.wait_stored()
    if not sender_is_there:
        keyed.sender.start()

    keyed.order()
    assert attacker.order_acks == []
    assert keyed.receiver.bodies("orders") == [genuine(1), genuine(2)]


def test_guessed_positions_of_a_sequence_do_not_displace_its_messages(scene: Scene) -> None:
    scene.order(3)
    attacker = scene.attacker()
    for seconds_ago in range(880, 920):
        for number in (scene.sent + 1, 1):
            attacker.send(
                attacker.owner.transactional(
                    "orders", sequence_from(seconds_ago), number, body=JUNK
                )
            )
    attacker.wait_stored()

    scene.order(3)
    scene.sequence, scene.sent = sequence_from(800), 0
    assert scene.genuine_orders() == [genuine(number) for number in range(1, 7)]
    scene.order(3)
    assert scene.genuine_orders() == scene.expected()


# --- Sequences of the far future ------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("from_one_address", [False, True])
def test_sequences_of_the_far_future_do_not_end_the_genuine_one(
    scene: Scene, restarted: bool, from_one_address: bool
) -> None:
    scene.order(2)
    attacker = scene.attacker(GENUINE if from_one_address else HOSTILE)
    ahead = [1 << 63, LAST - 1, LAST, (wire.now_s() + 20 * 366 * 86_400) << 32]
    if not from_one_address:
        ahead += [(wire.now_s() + 86_400) << 32, (wire.now_s() + 5 * 366 * 86_400) << 32]
    attacker.send_many(
        attacker.owner.transactional("orders", sequence, 1, body=JUNK) for sequence in ahead
    )
    attacker.wait_stored()
    if restarted:
        scene.daemon.restart()
        scene.reconnect()

    scene.order(2)
    sent = scene.expected()
    scene.sequence, scene.sent = sequence_from(800), 0
    scene.order(2)
    assert scene.genuine_orders() == sent + scene.expected()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sequence_of_the_far_future_does_not_end_that_of_a_qmd(
    keyed: Keyed, restarted: bool
) -> None:
    keyed.order()
    attacker = keyed.attacker()
    for sequence in (LAST, (wire.now_s() + 86_400) << 32):
        attacker.send(attacker.owner.transactional("orders", sequence, 1, body=JUNK))
    attacker.wait_stored()
    if restarted:
        keyed.receiver.restart()

    keyed.order()
    keyed.order()
    bodies = [each for each in keyed.receiver.bodies("orders") if each != JUNK]
    assert bodies == [genuine(1), genuine(2), genuine(3)]


# --- Contradictions and names ---------------------------------------------------------------------


def test_a_contradiction_ends_no_session_and_no_stream(scene: Scene) -> None:
    scene.order(3)
    attacker = scene.attacker()
    # Another message at a position of the genuine sequence, whose id it has guessed.
    attacker.send(attacker.owner.transactional("orders", scene.sequence, 3, body=JUNK))
    attacker.wait_stored()

    scene.order(3)
    scene.peer.send(scene.genuine.transactional("others", scene.sequence + 1, 1))
    scene.peer.wait_order_ack(scene.sequence + 1, 1)
    assert scene.genuine_orders() == scene.expected()
    assert scene.daemon.bodies("others") == [b"1"]
    assert any(
        each["peer"] == str(uuid.UUID(bytes_le=scene.genuine.guid))
        for each in scene.daemon.json("session", "list")
    )


def test_many_names_of_a_queue_lock_no_source_out(scene: Scene) -> None:
    scene.order(1)
    attacker = scene.attacker()
    names = [
        "".join(c.upper() if bits >> at & 1 else c for at, c in enumerate("privateorders"))
        for bits in range(160)
    ]
    for number, name in enumerate(names):
        attacker.send(
            attacker.owner.transactional(
                "orders",
                sequence_from(950),
                1,
                body=JUNK,
                destination=wire.direct(f"TCP:127.0.0.1\\{name[:7]}$\\{name[7:]}"),
                message_id=5000 + number,
            )
        )
    attacker.wait_stored()

    scene.order(2)  # over the session that was open all the time
    scene.peer.send(scene.genuine.transactional("others", scene.sequence + 1, 1))
    scene.peer.wait_order_ack(scene.sequence + 1, 1)
    scene.peer.send(
        scene.genuine.transactional(
            "orders", scene.sequence + 2, 1, destination=wire.direct("OS:here\\PRIVATE$\\ORDERS")
        )
    )
    scene.peer.wait_order_ack(scene.sequence + 2, 1)
    attacker.send(attacker.owner.message("plain", b"still open", recoverable=True))
    attacker.wait_stored()
    assert len(incoming(scene.daemon)) <= 100 + 3
    assert scene.genuine_orders() == scene.expected()


# --- Made-up sources ------------------------------------------------------------------------------


def test_thousands_of_made_up_sources_lock_no_sender_out(scene: Scene, hosts: Hosts) -> None:
    scene.order(1)
    for _ in range(20):
        with RemoteQueueManager() as made_up:
            made_up.relayed = True  # the refusals are addressed by GUIDs
            attacker = made_up.connect(scene.daemon.port, source=HOSTILE)
            packets = []
            for _ in range(100):  # the source is not the peer of the session
                header = wire.Transaction(0xC, made_up.new_sequence(), 1, 0)
                packets.append(
                    wire.message(
                        source=os.urandom(16),
                        message_id=1,
                        destination=wire.private("orders"),
                        body=JUNK,
                        transaction=header,
                    )
                )
            attacker.send_many(packets)
            attacker.wait_stored()
    assert rows(scene.daemon, "incoming_sequence") == 1
    assert rows(scene.daemon, "message_id_history") == 0

    newcomer = hosts.remote()
    peer = newcomer.connect(scene.daemon.port, source="127.0.0.5")
    peer.send(newcomer.transactional("orders", newcomer.new_sequence(), 1, body=b"newcomer"))
    eventually(lambda: newcomer.order_acked or peer.read_for(0.1), "the order ack")
    scene.order(1)
    assert b"newcomer" in scene.daemon.bodies("orders")


# --- Messages of another source than the peer -----------------------------------------------------


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_message_of_another_source_is_refused_unless_a_relay_brings_it(
    hosts: Hosts, is_transactional: bool
) -> None:
    daemon = hosts.daemon(**FAST, peers={"relays": ["127.0.0.6"]})
    daemon.create("orders", transactional=True)
    daemon.create("plain")
    source, hostile, relay = hosts.remote(), hosts.remote(), hosts.remote()
    hostile.relayed = relay.relayed = True
    attacker = hostile.connect(daemon.port, source=HOSTILE)

    def packet(body: bytes) -> bytes:
        if is_transactional:
            return source.transactional("orders", 1000 << 32 | 1, 1, body=body)
        return source.message("plain", body, recoverable=True, message_id=1)

    queue = "orders" if is_transactional else "plain"
    attacker.send(packet(JUNK))
    attacker.wait_stored()
    attacker.send(hostile.message("plain", b"its own", recoverable=True))  # the session goes on
    attacker.wait_stored()
    attacker.read_for(0.5)

    if is_transactional:
        assert [each.message_class for each in attacker.final_acks] == [DENIED]
    assert daemon.bodies("plain") == [b"its own"]
    refused = daemon.json("events", "tail", "--kind", "refused")
    assert [each["class"] for each in refused] == ["nack_access_denied"]
    assert "[peers] relays" in refused[0]["reason"]
    assert incoming(daemon) == []
    assert daemon.count(DEADLETTER) == daemon.count(DEADXACT) == 0
    assert str(uuid.UUID(bytes_le=source.guid)) not in {
        each["queue_manager"] for each in daemon.json("peer", "list")
    }

    over = relay.connect(daemon.port, source="127.0.0.6")
    over.send(packet(genuine(0)))
    over.wait_stored()
    assert daemon.bodies(queue) == [genuine(0)]
