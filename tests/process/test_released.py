"""Acknowledged messages: they stay on disk for a moment, in which no other event may end them."""

from __future__ import annotations

from tests.process.harness import Daemon, Hosts
from tests.process.test_two_daemons import wait_sent

QUICK = {"retry_first": "1ms", "retry_max": "5ms"}


def outgoing(daemon: Daemon) -> dict[str, object]:
    (row,) = daemon.json("outgoing", "list")
    return row


def test_a_message_acknowledged_just_before_the_end_of_the_session_is_not_sent_again(hosts: Hosts):
    daemon = hosts.daemon(delivery=QUICK)
    remote = hosts.remote()
    listener = remote.listen()
    daemon.send(listener.destination("q"), b"0", "--recoverable")
    for number in range(20):
        peer = listener.accept(auto_ack=False)
        assert peer.receive().body == b"%d" % number
        daemon.send(listener.destination("q"), b"%d" % (number + 1), "--recoverable")
        assert peer.receive().body == b"%d" % (number + 1)
        peer.session_ack(stored=1)
        peer.close()
    assert listener.accept().receive().body == b"20"

    wait_sent(daemon)

    assert outgoing(daemon)["messages"] == 0
    assert outgoing(daemon)["bytes"] == 0
    assert len(remote.ledger.by_id) == 21


def test_a_message_that_expires_just_after_its_acknowledgment_is_counted_once(hosts: Hosts):
    daemon = hosts.daemon()
    remote = hosts.remote()
    listener = remote.listen()
    bodies = [b"%d" % number for number in range(400)]
    daemon.send_all(
        listener.destination("q"), bodies, "--recoverable", "--time-to-reach-queue", "1s"
    )
    peer = listener.accept(auto_ack=False)

    for _ in bodies:  # the expiry runs at any time: a message may be acknowledged at that moment
        if not peer.inbox and not peer.read_for(0.5):
            break
        peer.inbox.pop()
        peer.session_ack(stored=1)
        peer.read_for(0.005)
    wait_sent(daemon)

    assert outgoing(daemon)["messages"] == 0
    assert outgoing(daemon)["bytes"] == 0
