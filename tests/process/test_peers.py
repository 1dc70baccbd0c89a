"""`qmd peer`: decisions of an operator about the identities of other queue managers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from tests.patience import END_S
from tests.process.harness import Daemon, Hosts

FAST = {"delivery": {"retry_first": "50ms", "retry_max": "200ms", "resend": ["1s"]}}


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, f"no end within the time: {what}"
        time.sleep(0.05)


def guid_of(daemon: Daemon) -> str:
    return str(daemon.json("status")[0]["queue_manager"])


def waiting(daemon: Daemon) -> list[dict[str, object]]:
    return [each for each in daemon.json("outgoing", "list") if each["messages"]]


def test_a_host_with_a_new_address_gets_its_messages_when_the_address_is_joined(
    hosts: Hosts,
) -> None:
    daemon = hosts.daemon(**FAST)
    daemon.create("plain")
    windows = hosts.remote()
    guid = str(uuid.UUID(bytes_le=windows.guid))
    before = windows.connect(daemon.port, source="127.0.0.2")
    before.send(windows.message("plain", b"hello", recoverable=True))
    before.wait_stored()
    before.close()

    moved = windows.connect(daemon.port, source="127.0.0.3")
    daemon.send(f"PRIVATE={guid}\\00000010", b"for the moved host")
    moved.read_for(0.5)
    assert windows.ledger.by_id == {}
    (queue,) = waiting(daemon)
    assert f"qmd peer pin {guid} 127.0.0.3" in str(queue["explanation"])
    daemon.cli("peer", "pin", guid, "127.0.0.3", "--join")

    moved.expect_closed()
    message = windows.connect(daemon.port, source="127.0.0.3").receive()
    assert message.body == b"for the moved host"
    rows = daemon.json("peer", "list", guid)
    assert {(row["fact"], row["origin"]) for row in rows} == {
        ("127.0.0.2", "127.0.0.2"),
        ("127.0.0.3", "127.0.0.2"),
    }
    assert daemon.json("status")[0]["two_of_one_identity"] == []
    assert b"127.0.0.3" in daemon.cli("peer", "show", guid).stdout
    daemon.cli("peer", "forget", guid, "--yes")
    assert daemon.json("peer", "list") == []


def test_a_lost_key_is_reported_replaced_on_request_and_accepted_by_an_operator_elsewhere(
    hosts: Hosts,
) -> None:
    receiver, sender = hosts.daemon(**FAST), hosts.daemon(**FAST)
    receiver.create("orders")
    sender.create("answers")
    guid = guid_of(sender)
    destination = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\orders"
    sender.send(destination, b"1")
    receiver.wait_for("orders", 1)
    (before,) = receiver.json("peer", "list")
    sender.terminate()
    (sender.folder / "data" / "identity.key").unlink()

    process = sender.spawn()
    assert process.wait(END_S) == 78
    assert "identity.key" in sender.tail()
    checked = sender.cli("check", check=False)
    assert checked.returncode == 1
    assert b"identity.key, the key by which other queue managers know this one, is gone" in (
        checked.stdout + checked.stderr
    )
    sender.cli("check", "--accept-loss")
    sender.start()

    sender.send(destination, b"2")
    receiver.wait_for("orders", 2)
    receiver.send(f"PRIVATE={guid}\\00000010", b"answer")
    eventually(lambda: receiver.json("status")[0]["two_of_one_identity"], "the conflict")
    (conflict,) = receiver.json("status")[0]["two_of_one_identity"]
    (new,) = [row for row in receiver.json("peer", "list", guid) if not row["is_primary"]]
    assert f"qmd peer pin {guid} {new['fact']}" in conflict["remedy"]
    assert len(waiting(receiver)) == 1

    receiver.cli("peer", "pin", guid, new["fact"], "--join")
    sender.send(destination, b"3")  # it connects again: the receiver does not know its port

    sender.wait_for("answers", 1)
    assert {row["origin"] for row in receiver.json("peer", "list", guid)} == {before["origin"]}


def test_a_text_that_is_no_fact_is_refused(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    guid = str(uuid.uuid4())

    for arguments, text in (
        (("pin", "abc", "127.0.0.2"), b"QM-1013"),
        (("pin", guid, "hostb"), b"QM-1015"),
        (("pin", guid, "key:12"), b"QM-1015"),
        (("pin", guid, "127.0.0.2", "--join"), b"QM-1016"),
        (("pin", guid_of(daemon), "127.0.0.2"), b"QM-1017"),
    ):
        refused = daemon.cli("peer", *arguments, check=False)
        assert refused.returncode != 0
        assert text in refused.stderr, refused.stderr

    daemon.cli("peer", "pin", guid, "127.0.0.2")
    (row,) = daemon.json("peer", "list", guid)
    assert (row["is_primary"], row["bound"]) == (True, "operator")
