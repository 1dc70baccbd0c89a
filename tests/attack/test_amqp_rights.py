"""A user of the door for AMQP that may send to one queue: every kind of link, and every operation.

The operations, the annotations and the kinds of links come from the code, so that a new one is
tried as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message, symbol  # noqa: E402

from qmd.doors.amqp import arriving, management  # noqa: E402
from qmd.doors.amqp import opening as served  # noqa: E402
from qmd.doors.amqp.served import RequestLink, ServedLink  # noqa: E402
from tests.amqp.frames import RECEIVER, SENDER  # noqa: E402
from tests.attack.amqp_attacker import (  # noqa: E402
    ACCEPTED,
    COORDINATOR,
    DISCHARGE,
    REJECTED,
    Attacker,
    described,
    request,
)

MINE, SECRET, REPLIES = "mine", "secret", "amqp-reply-"
PLANTED = (b"planted-body", b"planted-label", b"planted-name", REPLIES.encode())
PLANTED_LABEL = ("--label", "planted-label", "--transactional")
PASSWORD = "a password"
USERS = ("narrow", "")  # "": without a login
SPELLINGS = (
    "secret",
    "private$\\secret",
    ".\\PRIVATE$\\secret",
    "DIRECT=OS:.\\private$\\SECRET",
    "DIRECT=OS:localhost\\PRIVATE$\\secret",
    "DIRECT=TCP:127.0.0.1:{port}\\private$\\secret",
    "secret;journal",
    "secret;part",
    "mine,secret",
    "alias:secret",
    "list:secret",
    "topic:secret",
    "secret@localhost",
    *("dead-letter", "transactional-dead-letter", "journal", "DIRECT=OS:.\\order_queue$"),
    *("DIRECT=OS:.\\SYSTEM$;DEADLETTER", "DIRECT=OS:.\\SYSTEM$;DEADXACT"),
    "DIRECT=OS:.\\SYSTEM$;JOURNAL",
)
UNAUTHORIZED, UNKNOWN = "amqp:unauthorized-access", "amqp:transaction:unknown-id"
#: The classes of links that the tests below attach.
TRIED = {
    *("Producer", "Consumer", "Browser"),
    *("ManagementRequests", "ManagementAnswers", "Coordinator"),
}
READERS: tuple[dict[str, Any], ...] = (
    {},
    {"settled": True},
    {"selector": "JMSPriority >= 0"},
    {"unsettled": {b"%d" % number: described(ACCEPTED) for number in range(1, 5)}},
    {"unsettled": {b"%d" % number: described(REJECTED) for number in range(1, 5)}},
    {"copy": True},
    {"copy": True, "selector": "Label LIKE '%'"},
)


class World:
    """A daemon with a queue of another user, and a door."""

    def __init__(self, door: AmqpDoor) -> None:
        self.door, self.daemon = door, door.daemon
        self.spellings = [each.format(port=self.daemon.port) for each in SPELLINGS]
        self.daemon.create(MINE)
        self.daemon.create(SECRET, transactional=True)
        acl = self.daemon.cli
        acl("queue", "set", SECRET, "--label", "planted-name")
        for queue, rights in ((SECRET, "send,"), (MINE, "")):
            acl("acl", "revoke", "everyone", f"{rights}get-properties,get-permissions", queue)
        for name in ("narrow", "other"):
            acl("door", "user", "add", name, "--password-file", "-", input=PASSWORD.encode())
        acl("acl", "grant", "sasl:narrow", "send", MINE)
        acl("acl", "grant", "sasl:other", "full", SECRET)
        acl("acl", "grant", "sasl:other", "create-queue", "host")
        for options in ((), (), ("--delay", "9000s")):
            self.daemon.send(SECRET, b"planted-body", *PLANTED_LABEL, *options)

    def user(self, name: str, container: str = "c") -> Attacker:
        return Attacker(self.door.port, name, PASSWORD, container)

    def state(self) -> Any:
        """Return everything that the client must not change."""
        queues = self.daemon.json("queue", "list", "--system")
        return (
            sorted(
                (each["format_name"], each["messages"])
                for each in queues
                if each["name"] != f"private$\\{MINE}"
            ),
            [(each["id"], each["lookup_id"]) for each in self.daemon.peek(SECRET)],
            [each["id"] for each in self.daemon.json("delayed", "list")],
            [each["destination"] for each in self.daemon.json("outgoing", "list")],
            self.daemon.cli("acl", "export").stdout,
        )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    hosts = Hosts()
    try:
        with door_of(hosts, amqp={"passwords_on_loopback": True}) as door:
            yield World(door)
    finally:
        hosts.close()


def message(body: Any = "x", **fields: Any) -> bytes:
    return bytes(Message(body=body, durable=True, **fields).encode())


def is_refused(state: Any) -> bool:
    return state.descriptor not in (ACCEPTED, None)


def nothing_learned(client: Attacker) -> None:
    assert not [each for each in PLANTED if each in client.seen], client.seen
    client.socket.close()


def test_each_class_of_links_is_tried() -> None:
    classes = {
        each.__name__
        for each in vars(served).values()
        if isinstance(each, type) and issubclass(each, ServedLink)
    }
    assert classes - {ServedLink.__name__, RequestLink.__name__} == TRIED


@pytest.mark.parametrize("user", USERS)
def test_no_link_reads_a_queue_of_others(world: World, user: str) -> None:
    before = world.state()
    for address in (*world.spellings, None, MINE):
        client = world.user(user)
        for options in READERS:
            _, error, _ = client.attach(RECEIVER, address, **options)
            assert error, (address, options)
        _, error, _ = client.attach(RECEIVER, address, dynamic=True)
        assert error == UNAUTHORIZED, address
        _, error, _ = client.attach(SENDER, address, dynamic=True)
        assert error == UNAUTHORIZED, address
        nothing_learned(client)
    assert world.state() == before


@pytest.mark.parametrize("user", USERS)
def test_no_message_reaches_a_queue_of_others(world: World, user: str) -> None:
    """By a link or by `to`, in a transaction, and by each annotation that names a queue."""
    before = world.state()
    for address in world.spellings:
        client = world.user(user)
        link, error, _ = client.attach(SENDER, address)
        assert error or is_refused(client.send(link, message(address=SECRET))), address
        link, error, _ = client.attach(SENDER, None)
        assert not error
        assert is_refused(client.send(link, message(address=address))), address
        coordinator, error, _ = client.attach(SENDER, COORDINATOR)
        assert not error
        transaction = client.declare(coordinator)
        client.send(link, message(address=address), transaction=transaction)
        state = client.send(coordinator, request(described(DISCHARGE, transaction, False)))
        assert is_refused(state), address
        nothing_learned(client)

        client = world.user(user)
        link, error, _ = client.attach(SENDER, MINE)
        assert not error
        for name in arriving._OWN:
            # It expires at once, so that it would become a dead letter and be acknowledged.
            more = {symbol(name): address, symbol("x-opt-msmq-acknowledge"): 15}
            state = client.send(link, message(ttl=0.001, annotations=more, reply_to=address))
            if name.endswith(("admin-queue", "dead-letter-queue", "report-queue")):
                assert is_refused(state), (address, name)
        nothing_learned(client)
    assert world.state() == before


@pytest.mark.parametrize("user", USERS)
def test_no_management_of_a_queue_of_others(world: World, user: str) -> None:
    other = world.user("other")
    _, error, dynamic = other.attach(RECEIVER, None, dynamic=True)
    assert not error
    assert dynamic.startswith(REPLIES)
    before = world.state()
    for address in (*world.spellings, MINE):
        for reply_to in ("", MINE, address):
            client = world.user(user)
            answers, error, _ = client.attach(RECEIVER, management.ADDRESS)
            assert not error
            client.take(answers, 100)
            link, error, _ = client.attach(SENDER, management.ADDRESS)
            assert not error
            for operation in (*management.OPERATIONS, "NONE"):
                named = {"operation": operation, "type": management.QUEUE, "name": address}
                asked = message({}, properties=named, reply_to=reply_to or management.ADDRESS)
                client.send(link, asked)
            for operation in management.OPERATIONS if not reply_to else ():
                status = client.next_message().properties["statusCode"]
                if operation in ("CREATE", "READ", "DELETE", "PURGE"):
                    assert status in (400, 403, 404), (operation, address)
            nothing_learned(client)
    assert world.state() == before
    # The program that answers may be another user: it knows the name from the request.
    world_link, error, _ = other.attach(SENDER, dynamic)
    assert not error
    assert world_link
    other.socket.close()


@pytest.mark.parametrize("user", USERS)
def test_links_and_transactions_of_another_user_are_its_own(world: World, user: str) -> None:
    other, client = world.user("other", "same"), world.user(user, "same")
    reader, error, _ = other.attach(RECEIVER, SECRET, name="link")
    assert not error
    sender, error, _ = other.attach(SENDER, SECRET, name="sender", unsettled={})
    assert not error
    coordinator, _, _ = other.attach(SENDER, COORDINATOR)
    transaction = other.declare(coordinator)
    once = {symbol("x-opt-msmq-once"): "the same"}
    assert other.send(sender, message("one", annotations=once), tag=b"tag").descriptor == ACCEPTED

    # The same container and names: the links of the other user go on, and are not resumed.
    _, error, _ = client.attach(RECEIVER, SECRET, name="link", unsettled={b"1": None})
    assert error
    mine, error, _ = client.attach(SENDER, MINE, name="sender", unsettled={b"tag": None})
    assert not error
    assert b"tag" not in repr(client.answer.fields[7:8]).encode()
    count = world.daemon.count(MINE)
    assert client.send(mine, message("one", annotations=once), tag=b"tag").descriptor == ACCEPTED
    assert world.daemon.count(MINE) == count + 1
    # Its transaction is unknown here, and goes on.
    own, _, _ = client.attach(SENDER, COORDINATOR)
    state = client.send(mine, message("two"), transaction=transaction)
    assert UNKNOWN in repr(state)
    for fails in (True, False):
        state = client.send(own, request(described(DISCHARGE, transaction, fails)))
        assert UNKNOWN in repr(state)
    nothing_learned(client)
    other.send(sender, message("two"), transaction=transaction)
    state = other.send(coordinator, request(described(DISCHARGE, transaction, False)))
    assert state.descriptor == ACCEPTED
    other.take(reader, 1)
    assert other.next_message().subject == "planted-label"
    other.socket.close()
