"""Attacks on identities: handshakes and sessions that state the GUID of another queue manager."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmd.runtime.identity_key import IdentityKey
from tests.attack.false_sessions import (
    FAST,
    FILL,
    close_all,
    messages_of,
    opened,
    prove,
    shake_hands,
    stated,
)
from tests.attack.stream_scenes import eventually, guid_of
from tests.process import wire
from tests.process.connection import Connection
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager
from tests.process.wire import Establish, Parameters


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    yield
    close_all()


class Pair:
    """A receiver, and a sender that it knows: one message of it has arrived."""

    def __init__(self, hosts: Hosts) -> None:
        self.receiver = hosts.daemon(**FAST)
        self.receiver.create("orders", transactional=True)
        self.sender = hosts.daemon(**FAST)
        self.sender.create("answers")
        self.guid = guid_of(self.sender)
        self.shown = str(uuid.UUID(bytes_le=self.guid))
        self.sent = 0
        self.send()

    def send(self) -> None:
        """Send a message to the receiver, and wait for its arrival."""
        destination = f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\orders"
        self.sender.send(destination, b"order", "--transactional")
        self.sent += 1
        self.receiver.wait_for("orders", self.sent)

    def sessions(self) -> list[dict[str, object]]:
        listed = self.receiver.json("session", "list")
        return [each for each in listed if each["peer"] == self.shown]

    def answer(self) -> None:
        """Send a message from the receiver to a queue of the sender, by its GUID."""
        self.receiver.send(f"PRIVATE={self.shown}\\00000010", b"for the genuine one only")

    def waiting(self) -> int:
        """Return how many messages wait for a GUID at the receiver."""
        return sum(
            each["messages"]
            for each in self.receiver.json("outgoing", "list")
            if each["destination"].startswith("PRIVATE=")
        )

    def conflicts(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.receiver.json("status")[0]["two_of_one_identity"]
        return found


@pytest.fixture
def pair(hosts: Hosts) -> Pair:
    return Pair(hosts)


def test_a_handshake_with_a_large_start_count_does_not_lock_the_genuine_peer_out(
    pair: Pair,
) -> None:
    session = shake_hands(pair.receiver.port, pair.guid, stated(1 << 62))
    pair.send()

    pair.sender.restart()
    pair.send()
    session.close()

    assert pair.sender.json("status")[0]["two_of_one_identity"] == []
    (conflict,) = pair.conflicts()
    assert "without proof" in conflict["reason"]
    assert "qmd peer pin" in conflict["remedy"]


def test_a_handshake_before_the_first_one_of_the_genuine_peer_changes_nothing(
    hosts: Hosts,
) -> None:
    receiver, sender = hosts.daemon(**FAST), hosts.daemon(**FAST)
    receiver.create("orders", transactional=True)
    session = shake_hands(receiver.port, guid_of(sender), stated(1 << 62))

    destination = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\orders"
    sender.send(destination, b"order", "--transactional")
    receiver.wait_for("orders", 1)
    session.close()

    (primary,) = [each for each in receiver.json("peer", "list") if each["is_primary"]]
    assert primary["fact"].startswith("key:")


def test_a_key_of_its_own_with_a_large_start_count_does_not_lock_the_genuine_peer_out(
    pair: Pair,
) -> None:
    (before,) = pair.sessions()
    session = prove(pair.receiver.port, pair.guid, IdentityKey(os.urandom(32)), 1 << 62)
    assert isinstance(wire.parse(session.frame()), Parameters)  # it has a session, as another one

    pair.send()

    assert before["origin"] in [each["origin"] for each in pair.sessions()]
    assert {each["is_primary"] for each in pair.sessions()} == {True, False}
    pair.sender.restart()
    pair.send()
    assert pair.sender.json("status")[0]["two_of_one_identity"] == []


def test_a_handshake_ends_no_session_of_the_genuine_peer(pair: Pair) -> None:
    (before,) = pair.sessions()

    for starts in (0, 1, 1 << 62, (1 << 64) - 1):
        shake_hands(pair.receiver.port, pair.guid, stated(starts)).close()
    pair.send()

    after = [each for each in pair.sessions() if each["is_primary"]]
    assert [each["address"] for each in after] == [before["address"]]


def test_the_messages_for_a_known_queue_manager_are_not_given_to_a_program_with_its_guid(
    hosts: Hosts, pair: Pair
) -> None:
    pair.sender.terminate()
    false = hosts.remote(pair.guid)
    peer = false.connect(pair.receiver.port)
    pair.receiver.create("plain")

    # Also after messages that are accepted, and for messages that are sent during its session.
    peer.send(false.message("plain", b"hello", recoverable=True, message_id=1 << 20))
    peer.wait_stored()
    pair.answer()
    own = prove(pair.receiver.port, pair.guid, IdentityKey(os.urandom(32)), 1 << 62)

    peer.read_for(1.5)
    assert false.ledger.by_id == {}
    assert messages_of(own) == []
    assert pair.waiting() == 1


def test_the_genuine_queue_manager_gets_its_messages_beside_a_false_one(pair: Pair) -> None:
    with RemoteQueueManager(pair.guid) as false:
        peer = false.connect(pair.receiver.port)
        pair.answer()

        pair.sender.wait_for("answers", 1)

        peer.read_for(0.2)
        assert false.ledger.by_id == {}
        eventually(lambda: pair.waiting() == 0, "the acknowledgment")


def test_a_program_gets_no_messages_for_a_queue_manager_that_only_this_one_has_dialled(
    hosts: Hosts,
) -> None:
    here, there = hosts.daemon(**FAST), hosts.daemon(**FAST)
    there.create("plain")
    here.send(f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\plain", b"1")
    there.wait_for("plain", 1)
    guid = guid_of(there)
    there.terminate()

    with RemoteQueueManager(guid) as false:
        peer = false.connect(here.port)
        here.send(f"PRIVATE={uuid.UUID(bytes_le=guid)}\\00000010", b"for the genuine one only")
        peer.read_for(1.5)

        assert false.ledger.by_id == {}


def test_a_program_gets_no_messages_for_a_queue_manager_that_only_the_directory_knows(
    hosts: Hosts, tmp_path: Path
) -> None:
    there = hosts.daemon(start=False, **FAST)
    guid = os.urandom(16)
    file = tmp_path / "directory.toml"
    file.write_text(
        f"[[machine]]\nname = 'there'\nguid = '{uuid.UUID(bytes_le=guid)}'\n"
        f"addresses = ['127.0.0.1:{there.port}']\n"
    )
    here = hosts.daemon(**FAST, directory={"kind": "file", "file": str(file)})
    here.create("plain")
    destination = f"PRIVATE={uuid.UUID(bytes_le=guid)}\\00000010"

    with RemoteQueueManager(guid) as false:
        peer = false.connect(here.port)
        here.send(destination, b"for the genuine one only")
        peer.read_for(1.0)
        # An accepted message makes it the first one with this GUID; the address decides.
        peer.send(false.message("plain", b"hello", recoverable=True, message_id=1 << 20))
        peer.wait_stored()
        here.send(destination, b"for the genuine one only")
        peer.read_for(1.5)

        assert false.ledger.by_id == {}
    assert sum(each["messages"] for each in here.json("outgoing", "list")) == 2


def test_a_program_that_knows_the_run_of_this_queue_manager_cannot_speak_for_it(
    hosts: Hosts,
) -> None:
    """Each host that connects gets the number of the run in the answer."""
    daemon = hosts.daemon()
    own = guid_of(daemon)
    asking = opened(Connection.open(daemon.port))
    asking.send(wire.establish(client=os.urandom(16), padding=stated(1)))
    answer = wire.parse(asking.frame())
    assert isinstance(answer, Establish)
    run = answer.padding[-37:]
    assert run.startswith(b"qmd\x01instance")

    false = opened(Connection.open(daemon.port))
    false.send(wire.establish(client=own, padding=FILL[: -len(run)] + run))
    refusal = wire.parse(false.frame())

    assert isinstance(refusal, Establish)
    assert refusal.refused
    false.expect_closed()


def test_a_known_identity_survives_restarts_of_this_queue_manager(pair: Pair) -> None:
    pair.sender.terminate()
    pair.receiver.restart()

    with RemoteQueueManager(pair.guid) as false:
        peer = false.connect(pair.receiver.port)
        pair.answer()
        peer.read_for(1.5)

        assert false.ledger.by_id == {}


def test_handshakes_store_nothing(hosts: Hosts) -> None:
    daemon = hosts.daemon()

    for _ in range(50):
        shake_hands(daemon.port, os.urandom(16), stated(1)).close()
        prove(daemon.port, os.urandom(16), IdentityKey(os.urandom(32)), 1).close()
    daemon.restart()

    assert daemon.json("peer", "list") == []


def test_a_false_proof_ends_its_own_session_only(pair: Pair) -> None:
    """It states the public key of the genuine peer, without its private key."""
    (row,) = pair.receiver.json("peer", "list")
    public = bytes.fromhex(row["public_key"])

    class Stolen(IdentityKey):
        @property
        def public(self) -> bytes:  # type: ignore[override]
            return public

    false = prove(pair.receiver.port, pair.guid, Stolen(os.urandom(32)), 1 << 62)

    false.expect_closed()
    pair.send()
    assert pair.conflicts() == []


def test_a_host_that_is_dialled_cannot_speak_to_a_third_one_in_the_name_of_its_caller(
    hosts: Hosts,
) -> None:
    """It passes every byte on, and could add packets of its own after the handshake."""
    caller, third = hosts.daemon(**FAST), hosts.daemon(**FAST)
    third.create("plain")
    middle = hosts.proxy(third.port)

    caller.send(f"DIRECT=TCP:127.0.0.1:{middle.port}\\private$\\plain", b"passed on")
    third.wait_for("plain", 1)

    assert [each["origin"] for each in third.json("session", "list")] == ["127.0.0.1"]
    assert [each["origin"] for each in caller.json("session", "list")] == ["127.0.0.1"]
    assert [row["fact"] for row in third.json("peer", "list")] == ["127.0.0.1"]


def test_a_key_of_its_own_gives_no_rights_of_the_stated_queue_manager(pair: Pair) -> None:
    """Any program can make a key, and state any GUID with it."""
    receiver = pair.receiver
    receiver.create("secret")
    receiver.cli("acl", "revoke", "everyone", "send", "private$\\secret")
    receiver.cli("acl", "grant", f"peer:{pair.shown}", "send", "private$\\secret")
    destination = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\secret"
    pair.sender.send(destination, b"genuine")
    receiver.wait_for("secret", 1)

    false = prove(receiver.port, pair.guid, IdentityKey(os.urandom(32)), 7)
    assert isinstance(wire.parse(false.frame()), Parameters)
    with RemoteQueueManager(pair.guid) as forger:
        false.send(forger.message("secret", b"forged", recoverable=True, message_id=1 << 20))
    eventually(lambda: refusals_of(receiver), "the refusal")

    pair.sender.send(destination, b"genuine too")
    receiver.wait_for("secret", 2)
    assert receiver.bodies("secret") == [b"genuine", b"genuine too"]


def refusals_of(daemon: Daemon) -> list[dict[str, object]]:
    """Return the events about messages that a host has no right to send."""
    return [each for each in daemon.json("events", "tail") if "allows it" in str(each)]
