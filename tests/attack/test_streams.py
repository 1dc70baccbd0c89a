"""Attacks on streams: messages and acknowledgments in the name of another queue manager."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from qmd.core.internal_names import HISTORY_QUEUE
from qmd.history.lookup_messages import encoded_request
from tests.patience import END_S
from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import DEADLETTER, DEADXACT, Daemon, Hosts
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager

FAST = {
    "delivery": {
        "retry_first": "50ms",
        "retry_max": "200ms",
        "resend": ["500ms"],
        "order_ack_timeout": "50ms",
    }
}
GENUINE, HOSTILE = "127.0.0.2", "127.0.0.3"
RECEIVED, DELETED, PURGED, DENIED = 0x4000, 0xC000, 0xC001, 0x8004
FINAL_CLASSES = (RECEIVED, DELETED, PURGED, 0xC002, 0xC004, 0x8001, 0x8004)
LAST = (1 << 64) - 1
#: As long as genuine bodies: the log of each data folder must state one size for each message id.
JUNK = b"made up"


def guid_of(daemon: Daemon) -> bytes:
    return uuid.UUID(daemon.json("status")[0]["queue_manager"]).bytes_le


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, f"no end within the time: {what}"
        time.sleep(0.05)


def genuine(number: int) -> bytes:
    return b"gen %03d" % number


def sequence_from(seconds_ago: int) -> int:
    """Return a sequence id as that of a sender with a clock, which others cannot guess."""
    return (wire.now_s() - seconds_ago) << 32 | int.from_bytes(os.urandom(4), "big")


def rows(daemon: Daemon, table: str) -> int:
    """Return the number of rows of a table on the disk of a daemon."""
    with contextlib.closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db:
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def incoming(daemon: Daemon) -> list[dict[str, Any]]:
    return [row for row in daemon.json("sequence", "list") if row["direction"] == "incoming"]


class Scene:
    """A receiver, a genuine source without a key, and a program that states its GUID."""

    def __init__(self, hosts: Hosts) -> None:
        self.daemon = hosts.daemon(**FAST)
        self.daemon.create("orders", "others", transactional=True)
        self.daemon.create("plain")
        self.genuine, self._hosts = hosts.remote(), hosts
        self.sequence = sequence_from(900)
        self.sent = 0
        self.reconnect()

    def reconnect(self) -> None:
        self.peer = self.genuine.connect(self.daemon.port, source=GENUINE)

    def attacker(self, source: str = HOSTILE, guid: bytes | None = None) -> Peer:
        """Open a session that states a GUID, by default that of the genuine source."""
        remote = self._hosts.remote(guid or self.genuine.guid)
        return remote.connect(self.daemon.port, source=source)

    def order(self, count: int = 1) -> None:
        """Send genuine messages of the sequence, and wait for their order ack."""
        numbers = range(self.sent + 1, self.sent + count + 1)
        self.peer.send_many(
            self.genuine.transactional("orders", self.sequence, number, body=genuine(number))
            for number in numbers
        )
        self.sent += count
        self.peer.wait_order_ack(self.sequence, self.sent)

    def genuine_orders(self) -> list[bytes]:
        """Receive all orders; return the bodies of the genuine ones."""
        return [body for body in self.daemon.bodies("orders") if body.startswith(b"gen")]

    def expected(self) -> list[bytes]:
        return [genuine(number) for number in range(1, self.sent + 1)]


@pytest.fixture
def scene(hosts: Hosts) -> Scene:
    return Scene(hosts)


class Keyed:
    """Two queue managers with keys at one address; an attacker is there too."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.receiver = hosts.daemon(**FAST)
        self.receiver.create("orders", "others", transactional=True)
        self.receiver.create("plain")
        self.sender = hosts.daemon(**FAST)
        self.sender.create("answers")
        self.guid = guid_of(self.sender)
        self.sent = 0

    def attacker(self, guid: bytes | None = None, *, of: Daemon | None = None) -> Peer:
        remote = self.hosts.remote(guid or self.guid)
        return remote.connect((of or self.receiver).port)

    def to(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\{queue}"

    def send(self, queue: str, content: bytes, *options: str) -> int:
        """Send a message; return its number."""
        return int(self.sender.send(self.to(queue), content, *options).partition("\\")[2])

    def order(self) -> None:
        self.sent += 1
        self.send("orders", genuine(self.sent), "--transactional")
        eventually(
            lambda: self.sender.json("outgoing", "show", self.to("orders"))[0]["messages"] == 0,
            "the order ack",
        )


@pytest.fixture
def keyed(hosts: Hosts) -> Keyed:
    return Keyed(hosts)


# --- 1. Messages with the next numbers of another queue manager -----------------------------------


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


# --- 2. Sequences of another queue manager --------------------------------------------------------


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


def test_a_known_sequence_id_of_a_qmd_does_not_open_its_stream(keyed: Keyed) -> None:
    """Even a program that has seen the id of the sequence cannot take its next positions."""
    keyed.order()
    (known,) = incoming(keyed.receiver)
    sequence = known["id"]
    attacker = keyed.attacker()
    attacker.send_many(
        attacker.owner.transactional("orders", sequence, number, body=JUNK)
        for number in range(2, 12)
    )
    attacker.wait_stored()

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


# --- 3. Sequences of the far future ---------------------------------------------------------------


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


# --- 4. Contradictions and names ------------------------------------------------------------------


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


# --- 5. Final acks --------------------------------------------------------------------------------


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


# --- 6. Made-up sources ---------------------------------------------------------------------------


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


# --- 7. Messages of another source than the peer --------------------------------------------------


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
    (refused,) = daemon.json("events", "tail", "--kind", "refused")
    assert refused["class"] == "nack_access_denied"
    assert "[peers] relays" in refused["reason"]
    assert daemon.bodies("plain") == [b"its own"]
    assert incoming(daemon) == []
    assert daemon.count(DEADLETTER) == daemon.count(DEADXACT) == 0
    assert str(uuid.UUID(bytes_le=source.guid)) not in {
        each["queue_manager"] for each in daemon.json("peer", "list")
    }

    over = relay.connect(daemon.port, source="127.0.0.6")
    over.send(packet(genuine(0)))
    over.wait_stored()
    assert daemon.bodies(queue) == [genuine(0)]
