"""Sessions that the daemon opens: handshake, reuse, retries, and peers that break the protocol.

The peer is the acceptor; the daemon connects to it because of `qmd send`.  QB 3.1.5.2.3.
"""

from __future__ import annotations

import time

import pytest

from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.outgoing import QUICK, SLOW, place, send, sequence_of
from tests.process.processes import resident_bytes
from tests.process.remote import Listener, RemoteQueueManager


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    """Start a daemon without timed retransmission: a duplicate must have another cause."""
    daemon = shared_hosts.daemon(delivery=SLOW)
    daemon.create("here")
    return daemon


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


# --- the session --------------------------------------------------------------------------


def test_the_queues_of_one_address_share_one_session(daemon: Daemon, listener: Listener):
    for queue in ("one", "two", "three"):
        send(daemon, listener.destination(queue), b"1", b"2")
    peer = listener.accept()

    messages = peer.receive_many(6)

    sequences: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    for message in messages:
        queue = message.destination.text.split("\\")[-1]
        sequences.setdefault(queue, []).append((sequence_of(message), place(message)))
    assert set(sequences) == {"one", "two", "three"}
    for stream in sequences.values():
        assert [numbers for _, numbers in stream] == [(1, 0), (2, 1)]
        assert len({sequence for sequence, _ in stream}) == 1
    assert len({stream[0][0] for stream in sequences.values()}) == 3, "one sequence each"
    with pytest.raises(TimeoutError):
        listener.accept_raw(0.3)


def test_the_recoverable_ack_timeout_is_eight_round_trips(daemon: Daemon, listener: Listener):
    started = time.monotonic()
    daemon.send(listener.destination("q"), b"x", "--express")
    connection = listener.accept_raw()
    request = listener.read_request(connection)
    # The delay to measure; the peer sends nothing before the answer.
    connection.expect_silence(0.3)
    connection.send(
        wire.establish(
            client=request.client,
            server=listener.owner.guid,
            timestamp=request.timestamp,
            padding=b"\x5a" * 512,
        )
    )
    proposal = listener.read_proposal(connection)
    longest_ms = (time.monotonic() - started) * 1000 * 8

    assert 8 * 300 <= proposal.recoverable_ack_timeout_ms <= longest_ms + 100


def test_the_peer_of_an_outgoing_session_may_send_over_it_too(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--express")
    peer = listener.accept()
    peer.receive()

    peer.send(listener.owner.message("here", b"back", recoverable=True))
    peer.wait_stored()

    assert daemon.bodies("here") == [b"back"]


def test_a_connection_to_an_absent_peer_is_retried(daemon: Daemon, remote: RemoteQueueManager):
    listener = remote.listen()
    destination = listener.destination("q")
    listener.sock.close()
    daemon.send(destination, b"patience", "--recoverable")
    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["state"] != "connected"

    again = remote.listen(listener.port)

    assert again.accept().receive().body == b"patience"


def test_a_refused_session_is_retried(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    request = listener.read_request(first)
    first.send(
        wire.establish(
            client=request.client,
            server=listener.owner.guid,
            timestamp=request.timestamp,
            refused=True,
        )
    )
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"
    (shown,) = daemon.json("outgoing", "show", listener.destination("q"))
    statuses = [each["status"] for each in shown["connection_history"]]
    assert statuses[-1] == "ConnectionRefused"
    assert statuses[0] == "Established"


def test_an_answer_with_another_client_guid_closes_the_session(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    request = listener.read_request(first)
    first.send(
        wire.establish(
            client=b"not your GUID...", server=listener.owner.guid, timestamp=request.timestamp
        )
    )
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"


@pytest.mark.parametrize(
    "packet",
    [
        wire.parameters(),
        wire.session_ack(wire.Session()),
        wire.message(source=b"s" * 16, message_id=1, destination=wire.private("here")),
    ],
    ids=["CP", "SessionAck", "user message"],
)
def test_anything_but_the_ec_response_closes_the_session(
    daemon: Daemon, listener: Listener, packet: bytes
):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    listener.read_request(first)
    first.send(packet)
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"


def test_an_unfinished_handshake_is_abandoned(hosts: Hosts):
    daemon = hosts.daemon(delivery=QUICK, peers={"handshake_timeout": "500ms"})
    listener = hosts.remote().listen()
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    listener.read_request(first)

    assert first.expect_closed(10) == []
    assert listener.accept().receive().body == b"x"


NONSENSE = {
    "no packet at all": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another handshake": wire.establish(client=b"c" * 16),
    "an unknown packet type": wire.internal(9, bytes(16)),
    "a count that is wrong": wire.session_ack(wire.Session(sent=7)),
    "an acknowledgment of too much": wire.session_ack(wire.Session(acknowledged=9)),
    "bits of what was never sent": wire.session_ack(
        wire.Session(acknowledged=1, recoverable_acknowledged=1, recoverable_flags=0xFF)
    ),
    "a message that ends too early": wire.message(
        source=b"s" * 16, message_id=1, destination=wire.private("here"), label="label"
    )[:-40].ljust(200, b"\xff"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_after_a_nonsensical_answer_the_session_is_closed_and_retried(
    daemon: Daemon, listener: Listener, name: str
):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept(auto_ack=False)
    first.receive()

    first.connection.send(NONSENSE[name])
    first.expect_closed()

    assert listener.accept().receive().body == b"x"


def test_a_peer_that_reads_nothing_costs_bounded_memory(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    content = bytes(4_000_000)
    for _ in range(30):
        daemon.cli("send", listener.destination("q"), "--recoverable", "--file", "-", input=content)
    before = resident_bytes(daemon.pid)
    peer = listener.accept(auto_ack=False)
    peer.receive(30)  # the daemon has begun to send, and the peer stops reading
    daemon.json("status")
    daemon.json("status")

    grown = resident_bytes(daemon.pid) - before
    assert grown < 64 * 1024 * 1024, f"{grown // 2**20} MB for one peer that does not read"
    peer.auto_ack = True
    peer.session_ack()
    peer.receive_many(29, 60)
