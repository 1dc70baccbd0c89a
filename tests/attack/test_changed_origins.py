"""Sessions that are open while the facts about their queue manager change.

A host without a key is known by its address. When it proves a key, or an operator decides about it,
programs whose sessions have begun before must not go on as that host.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

import pytest

from qmd.runtime.identity_key import IdentityKey, fingerprint
from tests.attack.false_sessions import (
    FAST,
    close_all,
    messages_of,
    opened,
    prove,
    shake_hands,
    stated,
)
from tests.attack.stream_scenes import eventually
from tests.process import wire
from tests.process.connection import Closed, Connection
from tests.process.harness import Hosts
from tests.process.remote import RemoteQueueManager
from tests.process.wire import Establish, Parameters


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    yield
    close_all()


class Upgraded:
    """A receiver that knows a host by its address, as a qmd without a proof."""

    def __init__(self, hosts: Hosts) -> None:
        self.receiver = hosts.daemon(**FAST)
        self.receiver.create("plain")
        self.guid = os.urandom(16)
        self.shown = str(uuid.UUID(bytes_le=self.guid))
        self.key = IdentityKey(os.urandom(32))
        self.number = 0
        first = shake_hands(self.receiver.port, self.guid, stated(1))
        self.accepted(first)
        first.close()
        assert [(each["fact"], each["is_primary"]) for each in self.rows()] == [("127.0.0.1", True)]

    def send(self, session: Connection) -> None:
        """Send a message over a session."""
        self.number += 1
        with RemoteQueueManager(self.guid) as sender:
            session.send(
                sender.message("plain", b"hello", recoverable=True, message_id=self.number)
            )

    def accepted(self, session: Connection) -> None:
        """Let a session bring a message, which is accepted."""
        self.send(session)
        self.receiver.wait_for("plain", self.number)

    def proven(self, key: IdentityKey) -> Connection:
        """Open a session with a proof of a key."""
        session = prove(self.receiver.port, self.guid, key, 7)
        assert isinstance(wire.parse(session.frame()), Parameters)
        return session

    def rows(self) -> list[dict[str, object]]:
        """Return the known facts."""
        found: list[dict[str, object]] = self.receiver.json("peer", "list", self.shown)
        return found

    def answer(self) -> None:
        self.receiver.send(f"PRIVATE={self.shown}\\00000010", b"for the genuine one only")


@pytest.fixture
def upgraded(hosts: Hosts) -> Upgraded:
    return Upgraded(hosts)


def test_a_session_without_proof_ends_when_a_key_is_proven_at_its_address(
    upgraded: Upgraded,
) -> None:
    """It began in time, and would get the messages of the host from then on."""
    genuine = upgraded.proven(upgraded.key)
    false = shake_hands(upgraded.receiver.port, upgraded.guid, stated(1))
    upgraded.accepted(genuine)
    genuine.close()

    upgraded.answer()

    assert messages_of(false) == []
    false.expect_closed()


def test_of_two_keys_at_the_address_of_a_host_one_alone_takes_its_place(
    upgraded: Upgraded,
) -> None:
    """Both are new when their sessions begin."""
    other = IdentityKey(os.urandom(32))
    false = upgraded.proven(other)
    upgraded.accepted(upgraded.proven(upgraded.key))

    with contextlib.suppress(Closed):
        upgraded.send(false)
    messages_of(false)

    keys = [row["public_key"] for row in upgraded.rows() if row["is_primary"]]
    assert keys == [upgraded.key.public.hex()]


def test_a_handshake_that_waits_gives_no_place_that_a_key_has_taken_meanwhile(
    upgraded: Upgraded,
) -> None:
    waiting = opened(Connection.open(upgraded.receiver.port))
    waiting.send(wire.establish(client=upgraded.guid, padding=stated(1)))
    assert isinstance(wire.parse(waiting.frame()), Establish)
    genuine = upgraded.proven(upgraded.key)
    upgraded.accepted(genuine)
    genuine.close()

    waiting.send(wire.parameters())
    assert isinstance(wire.parse(waiting.frame()), Parameters)
    upgraded.answer()

    assert messages_of(waiting) == []


def test_a_session_ends_when_its_address_belongs_to_the_queue_manager_no_more(
    upgraded: Upgraded,
) -> None:
    """An operator has joined the address of a host, and takes that back."""
    joined = "127.0.0.9"
    upgraded.receiver.cli("peer", "pin", upgraded.shown, joined, "--join")
    session = shake_hands(upgraded.receiver.port, upgraded.guid, stated(1), source=joined)
    upgraded.accepted(session)

    upgraded.receiver.cli("peer", "forget", upgraded.shown, joined, "--yes")

    upgraded.answer()
    assert messages_of(session) == []
    session.expect_closed()


def test_an_address_has_no_rights_of_a_key_that_is_joined_to_it(upgraded: Upgraded) -> None:
    """Another program at the address of the host states its GUID, and proves nothing."""
    receiver, secret = upgraded.receiver, "private$\\secret"
    receiver.create("secret")
    receiver.cli("acl", "revoke", "everyone", "send", secret)
    receiver.cli("acl", "grant", f"peer:{upgraded.shown}", "send", secret)
    joined = f"key:{fingerprint(upgraded.key.public)}"
    receiver.cli("peer", "pin", upgraded.shown, joined, "--join")
    with RemoteQueueManager(upgraded.guid) as sender:
        messages = [
            sender.message("secret", each, recoverable=True, message_id=100 + number)
            for number, each in enumerate((b"forged", b"genuine"))
        ]

    shake_hands(receiver.port, upgraded.guid, stated(1)).send(messages[0])
    eventually(lambda: "allows it" in str(receiver.json("events", "tail")), "the refusal")
    upgraded.proven(upgraded.key).send(messages[1])

    receiver.wait_for("secret", 1)
    assert receiver.bodies("secret") == [b"genuine"]
