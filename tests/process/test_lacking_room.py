"""A peer without room for messages: its senders state why it takes nothing, and send it little."""

from __future__ import annotations

import time

import pytest

from qmd.core.peer_instance import Instance, Lack, to_padding
from tests.process.harness import Daemon, Hosts

BODY = "x" * 50_000
WAITING = 40
QUOTA = "1MB"
REASON = "it has no room for messages, as its computer quota is reached"


def filled(hosts: Hosts) -> Daemon:
    """Start a queue manager that has no room for another message of the test."""
    there = hosts.daemon(quotas={"computer": QUOTA})
    there.create("orders")
    for part in (BODY, BODY[:5000]):
        while there.cli("send", "orders", part, check=False).returncode == 0:
            pass
    return there


def explanation(here: Daemon, destination: str) -> str:
    (shown,) = here.json("outgoing", "show", destination)
    return str(shown["explanation"])


def until_stated(here: Daemon, destination: str) -> None:
    end = time.monotonic() + 60
    while REASON not in explanation(here, destination):
        assert time.monotonic() < end, explanation(here, destination)
        time.sleep(0.1)


@pytest.mark.parametrize("delivery", ["--recoverable", "--transactional"])
def test_the_sender_states_the_reason_and_offers_one_message_at_a_time(
    hosts: Hosts, delivery: str
) -> None:
    here, there = hosts.daemon(), filled(hosts)
    if delivery == "--transactional":
        there.create("booked", transactional=True)
    queue = "booked" if delivery == "--transactional" else "orders"
    destination = f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\{queue}"
    for _ in range(WAITING):
        here.cli("send", destination, BODY, delivery)
    until_stated(here, destination)

    (before,) = here.json("status")
    time.sleep(5)  # ten sessions, if each began at once
    (after,) = here.json("status")
    assert after["transmitted"] - before["transmitted"] < WAITING, "fewer than for one session"

    there.cli("queue", "purge", "orders", "--yes")
    end = time.monotonic() + 60
    while there.json("queue", "show", queue)[0]["messages"] < 19:  # what the quota allows
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_others_follow_when_the_offered_message_is_stored(hosts: Hosts) -> None:
    """The peer acknowledges that it has arrived, and later that it is stored."""
    here = hosts.daemon(delivery={"resend": ["1h"]})
    remote = hosts.remote()
    listener = remote.listen()
    here.send_all(listener.destination("booked"), [b"1", b"2", b"3"], "--transactional")
    lacking = Instance(1, bytes(range(16)), lack=Lack.RELAY)
    peer = listener.accept(auto_ack=False, padding=to_padding(lacking))

    (first,) = peer.receive_many(1)
    peer.session_ack(stored=0)
    here.json("status")  # by now it has read the first acknowledgment
    peer.session_ack()

    assert [each.body for each in (first, *peer.receive_many(2))] == [b"1", b"2", b"3"]


def test_doctor_names_the_quota_of_the_peer(hosts: Hosts) -> None:
    here, there = hosts.daemon(), filled(hosts)
    done = here.cli("doctor", f"127.0.0.1:{there.port}", "--timeout", "4", check=False)
    text = done.stdout.decode()
    assert done.returncode == 2
    assert REASON in text
    assert "drops large packets" not in text
