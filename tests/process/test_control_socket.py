"""The control socket: no request of a permitted client stops the daemon."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts
from tests.process.processes import resident_bytes

MB = 1024 * 1024
PLAIN, EMPTY, ORDERS = "private$\\plain", "private$\\empty", "private$\\orders"
AWAY = "DIRECT=OS:elsewhere.invalid\\private$\\q"

# Values of fields that no client of qmd writes.
NUMBERS = [0, -1, 1, 2**31, 2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
FRACTIONS = [-1.0, 0.5, 1e12, 1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "x", "\0", "é" * 300, "a" * 70_000, PLAIN, EMPTY, ORDERS, AWAY, "SYSTEM$;DEADXACT"]
BYTES = [b"", b"x", b"x" * 20, b"t" * 100_000]
LISTS: list[Any] = [[], [0], [1, 1], [-1], [2**63 - 1], [2**64 - 1], [[]], {}]
ODD = [None, True, *NUMBERS, *FRACTIONS, *TEXTS, *BYTES, *LISTS]

REQUESTS: dict[str, list[Any]] = {
    "hello": [1],
    "send": [[], b""],
    "take": [EMPTY, 1, 0.0],
    "remove": [PLAIN, [], b""],
    "give_back": [PLAIN, []],
    "peek": [EMPTY, 0, 1, 0.0],
    "move": [PLAIN, EMPTY, [], [1], False, b""],
    "resend": [PLAIN, [], [1], "", None, None, False, True, b""],
    "dead_letters": ["DIRECT=OS:.\\SYSTEM$;DEADLETTER"],
    "import": [PLAIN, [], False, b""],
    "outcome": [b"t"],
    "create_queue": ["private$\\new", False, "", False, None],
    "delete_queue": ["private$\\none"],
    "purge_queue": [PLAIN],
    "list_queues": [False],
    "show_queue": [PLAIN],
    "list_outgoing": [],
    "show_outgoing": [AWAY],
    "pause_outgoing": [AWAY],
    "resume_outgoing": [AWAY],
    "kick_outgoing": [AWAY],
    "restart_outgoing": [AWAY],
    "list_sequences": [],
    "list_sessions": [],
    "status": [],
    "login": [1, ""],
    "open_reader": ["r", [PLAIN], False, "oldest"],
    "reserve": ["r", 1, PLAIN, 0, 1, 0],
    "read_range": [PLAIN, 0, 0, 1, 1, "", [], True],
    "split_range": [PLAIN, 1, 0, 0],
    "consume": ["r", 1, {}],
    "list_readers": [],
    "release_reader": ["r", "", True, False],
    "stage": ["q", 0, 0, "a", 0, []],
    "publish": ["q", 0, []],
    "discard_stages": ["q", None, None, "", 0],
    "list_stages": [],
    "mark_shipped": [0],
}


# Inside of requests that choose and import messages.
CHOICES = [[], [], "", "", "", "", None, None]
PIECE = [1, 0, 0]
IMPORTED = [b"packet", 1, None, 0, 0, None, None]


def new_message(destination: str = PLAIN) -> list[Any]:
    """Return the fields of a NewMessage."""
    head = [destination, b"body", "label", 3, 3, None, None, True, False, 0, b"", 0, b"", "", "", 0]
    return list(head)


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "empty")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[ControlClient]:
    with ControlClient(daemon.folder / "qmd.sock") as client:
        yield client
    assert daemon.alive


@pytest.mark.parametrize("verb", REQUESTS)
def test_no_value_of_a_request_stops_the_daemon(daemon: Daemon, client: ControlClient, verb: str):
    fields = REQUESTS[verb]
    client.send(verb, *fields[:-1])
    client.send(verb, *fields, None, 0)
    for at in range(len(fields)):
        for odd in ODD:
            client.send(verb, *fields[:at], odd, *fields[at + 1 :])
        client.settle()

    # Some requests created or deleted queues.
    there = {queue["name"] for queue in client.done("list_queues")}
    for name in there - {PLAIN, EMPTY, ORDERS}:
        client.done("delete_queue", name)
    for name in {PLAIN, EMPTY, ORDERS} - there:
        client.done("create_queue", name, name == ORDERS)

    client.done("peek", PLAIN, 0, 1, 0.0)  # earlier ones have read from the disk as well
    assert "stopped_by_a_bug" not in daemon.log.read_text()


@pytest.mark.parametrize(
    ("verb", "usual"), [("choice", CHOICES), ("piece", PIECE), ("imported", IMPORTED)]
)
def test_no_value_of_housekeeping_stops_the_daemon(
    daemon: Daemon, client: ControlClient, verb: str, usual: list[Any]
):
    client.done("send", [new_message() for _ in range(3)])
    for at in range(len(usual)):
        for odd in ODD:
            value = [*usual[:at], odd, *usual[at + 1 :]]
            if verb == "imported":
                client.send("import", PLAIN, [value], False, b"")
            elif verb == "choice":
                client.send("move", PLAIN, EMPTY, value, [1], False, b"")
                client.send("purge_queue", EMPTY, value)
            else:
                client.send("resend", PLAIN, [], value, "", None, None, False, False, b"")
        client.settle()

    for queue in (PLAIN, EMPTY):
        client.done("purge_queue", queue)


@pytest.mark.parametrize("destination", [PLAIN, ORDERS, AWAY])
def test_no_value_of_a_message_stops_the_daemon(
    daemon: Daemon, client: ControlClient, destination: str
):
    usual = new_message(destination)
    for at in range(len(usual)):
        for odd in ODD:
            client.send("send", [[*usual[:at], odd, *usual[at + 1 :]]], b"")
        client.settle()

    for queue in (PLAIN, ORDERS):
        client.done("purge_queue", queue)


def test_a_message_goes_back_only_from_the_connection_that_took_it(
    daemon: Daemon, client: ControlClient
):
    client.done("send", [new_message()])
    ((lookup_id, *_),) = client.done("take", PLAIN)

    with ControlClient(daemon.folder / "qmd.sock") as other:
        assert other.done("give_back", PLAIN, [lookup_id]) == 0
        assert other.done("take", PLAIN) == []
        assert other.ask("remove", PLAIN, [lookup_id])[2] == "not_taken"

    assert client.done("remove", PLAIN, [lookup_id]) == 1
    assert client.done("show_queue", PLAIN)["messages"] == 0


@pytest.mark.parametrize(("verb", "rest"), [("remove", []), ("reject", ["damaged"])])
def test_a_request_that_was_reported_as_not_done_is_not_done_later(
    daemon: Daemon, client: ControlClient, verb: str, rest: list[str]
):
    """A request can still wait in a connection that its client has seen end."""
    token = bytes(range(16))
    client.done("send", [new_message()])
    ((lookup_id, *_),) = client.done("take", PLAIN)

    with ControlClient(daemon.folder / "qmd.sock") as later:
        assert later.done("outcome", token + verb.encode()) is None
        late = client.ask(verb, PLAIN, [lookup_id], *rest, token + verb.encode())

    assert late[2] == "transaction_aborted"
    client.done("remove", PLAIN, [lookup_id])


def test_a_message_that_is_named_twice_is_removed_once(daemon: Daemon, client: ControlClient):
    client.done("send", [new_message(), new_message()])
    first, second = (message[0] for message in client.done("take", PLAIN, 2))

    assert client.done("remove", PLAIN, [first, first]) == 1
    assert client.done("give_back", PLAIN, [second, second, first]) == 1
    ((again, *_),) = client.done("take", PLAIN, 2)
    assert again == second
    assert client.done("remove", PLAIN, [second]) == 1


def test_a_message_that_is_being_removed_does_not_come_back(daemon: Daemon, client: ControlClient):
    client.done("send", [new_message()])
    ((lookup_id, *_),) = client.done("take", PLAIN)

    removed = client.send("remove", PLAIN, [lookup_id])
    given_back = client.send("give_back", PLAIN, [lookup_id])
    removed_again = client.send("remove", PLAIN, [lookup_id])

    assert client.reply(removed)[2] == 1
    assert client.reply(given_back)[2] == 0
    assert client.reply(removed_again)[2] == "not_taken"
    assert client.done("take", PLAIN) == []


def test_concurrent_deletions_of_a_queue_delete_it_once(daemon: Daemon, client: ControlClient):
    client.done("create_queue", "private$\\brief")
    client.done("send", [new_message("private$\\brief") for _ in range(100)])

    waits = [client.send("take", "private$\\brief", 1000, -1.0) for _ in range(2)]
    deletions = [client.send("delete_queue", "private$\\brief") for _ in range(3)]
    client.send("purge_queue", "private$\\brief")
    client.send("send", [new_message("private$\\brief")])
    kinds = [client.reply(number)[0] for number in deletions]
    for number in waits:
        client.reply(number)
    client.settle()

    assert kinds.count("done") >= 1
    assert client.ask("show_queue", "private$\\brief")[2] == "no_such_queue"


@pytest.mark.parametrize(
    "inside",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x90",
        b"\x91" * 2000,
        b"\x91" * 1_000_000,
        b"\x81" * 100_000,
        b"\x99\xa6status\x01" + b"\x91" * 100_000,
        b"\x93\xa6status\x01" + b"\x81\x90" * 50_000,
        b"\x92\xa6statu\xff\x01",
        b"\x93\xa4peek\x01\xa2\xff\xfe",
        b"\x92\xa6status\xca\x7f\xc0\0\0",
        b"\xdd\xff\xff\xff\xff",
        b"\x92\xc6\xff\xff\xff\xff",
        b"\x93\xa4send\x01\xdd\xff\xff\xff\xff",
        b"\x92\xa6status\xc7\x0c\xff" + b"\xff" * 12,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=lambda inside: inside[:12].hex(),
)
def test_a_frame_that_is_no_request_is_answered_and_the_connection_goes_on(
    daemon: Daemon, client: ControlClient, inside: bytes
):
    client.send_frame(inside)

    kind, _, code, *_ = client.read()
    assert (kind, code) == ("refused", "request_not_understood")
    assert client.done("status")


def test_an_unknown_request_is_answered_by_its_number(daemon: Daemon, client: ControlClient):
    numbers = [client.send("no such verb", 1, [2]), client.send("take"), client.send("peek", 5)]

    assert [client.reply(number)[2] for number in numbers] == ["request_not_understood"] * 3


def test_the_memory_of_a_frame_depends_on_its_size_and_not_its_content(
    daemon: Daemon, client: ControlClient
):
    client.settle()
    before = resident_bytes(daemon.pid)
    elements = 4 * MB
    count = struct.pack(">I", elements)
    for inside in (
        b"\xdd" + count + b"\x90" * elements,
        b"\x92\xa4send\x01\xdd" + count + b"\x90" * elements,
        b"\x93\xa6remove\x01\xdd" + count + b"\x01" * elements,
        b"\x93\xa4send\x01\xdd"
        + struct.pack(">I", elements // 4)
        + b"\x92\xa0\xc4\0" * (elements // 4),
    ):
        client.send_frame(inside)
        assert client.read()[0] == "refused"

    assert resident_bytes(daemon.pid) - before < 64 * MB


def test_a_frame_over_the_limit_ends_its_connection_before_its_content_arrives(
    daemon: Daemon, client: ControlClient
):
    for size in (64 * MB + 1, 0x7FFFFFFF, 0xFFFFFFFF):
        with ControlClient(daemon.folder / "qmd.sock") as other:
            other.send_raw(struct.pack("<I", size))
            other.expect_end()
    assert client.done("status")
