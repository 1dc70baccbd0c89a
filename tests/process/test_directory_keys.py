"""Real daemons with a directory file that has keys and certificates of message security."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol import UserMessage, build_user_message, parse_user_message
from qmd.catalogue import id_of
from qmd.message_security.signatures import signer_of
from tests.process.harness import DEADLETTER, Daemon, Hosts
from tests.process.remote import RemoteQueueManager
from tests.process.test_directory import until, write
from tests.unit.message_security.secured import SID, certificate, signed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "directory.toml"
    path.write_text("# Kept by people.\n")
    return path


@pytest.fixture
def start(hosts: Hosts, file: Path) -> Callable[[str], Daemon]:
    def start(name: str) -> Daemon:
        daemon = hosts.daemon(
            queue_manager={"name": name},
            directory={"kind": "file", "file": str(file), "reload": "20ms"},
        )
        (status,) = daemon.json("status")
        machine = f'\n[[machine]]\nname = "{name}"\nguid = "{status["queue_manager"]}"\n'
        text = f'{machine}addresses = ["127.0.0.1:{daemon.port}"]\n'
        write(daemon, file, file.read_text() + text)
        return daemon

    return start


def sender_entry(sid: str, *certificates: bytes) -> str:
    quoted = ", ".join(f'"{base64.b64encode(each).decode()}"' for each in certificates)
    return f'\n[[sender]]\nsid = "{sid}"\ncertificates = [{quoted}]\n'


def message(remote: RemoteQueueManager, queue: str, body: bytes = b"ABC") -> UserMessage:
    return parse_user_message(remote.message(queue, body, recoverable=True))


def test_a_published_key_is_used_for_messages_by_each_kind_of_name(start, file):
    a, b = start("hosta"), start("hostb")
    refused = b.cli("key", "publish", check=False)
    b.cli("key", "init")
    b.cli("queue", "create", "orders", "--public", "--privacy", "body")
    b.cli("queue", "create", "till", "--privacy", "body")
    a.cli("directory", "reload")
    before = a.cli("send", "hostb\\orders", "x", "--encrypt", check=False)
    (published,) = b.json("key", "publish")
    a.cli("directory", "reload")

    a.cli("send", "hostb\\orders", "one", "--encrypt")
    (status,) = b.json("status")
    (till,) = b.json("queue", "show", "till")
    private = f"PRIVATE={status['queue_manager']}\\{till['number']:08x}"
    a.cli("send", private, "two", "--encrypt")

    assert id_of("no_own_key").encode() in refused.stderr
    assert id_of("no_receiver_key").encode() in before.stderr
    b.wait_for(".\\orders", 1)
    b.wait_for("till", 1)
    assert (b.bodies(".\\orders"), b.bodies("till")) == ([b"one"], [b"two"])
    (found,) = a.json("directory", "lookup", "hostb")
    assert found["encryption_key"] == published["fingerprint"]
    assert file.read_text().startswith("# Kept by people.\n")


def test_a_queue_that_wants_protection_is_known_to_senders_from_the_directory(start):
    a, b = start("hosta"), start("hostb")
    b.cli("queue", "create", "orders", "--public", "--authenticate", "--privacy", "body")
    a.cli("directory", "reload")
    (entry,) = a.json("directory", "lookup", "hostb\\orders")
    unsigned = a.cli("send", "hostb\\orders", "x", check=False)
    several = a.cli("send", "hostb\\orders,till@hostb", "x", check=False)
    b.cli("queue", "set", ".\\orders", "--no-authenticate")
    a.cli("directory", "reload")
    plain = a.cli("send", "hostb\\orders", "x", check=False)
    b.cli("queue", "set", ".\\orders", "--privacy", "optional")
    a.cli("directory", "reload")
    a.cli("send", "hostb\\orders", "readable")

    assert (entry["authenticate"], entry["privacy"]) == (True, "body")
    assert id_of("not_signed").encode() in unsigned.stderr
    assert id_of("not_signed").encode() in several.stderr
    assert id_of("privacy_differs").encode() in plain.stderr
    b.wait_for(".\\orders", 1)


def test_a_queue_that_takes_over_an_entry_gives_it_its_own_protection(start, file):
    b = start("hostb")
    entry = "\n[[queue]]\npath = 'hostb\\orders'\nauthenticate = true\nprivacy = \"body\"\n"
    write(b, file, file.read_text() + entry)

    b.cli("queue", "create", "orders", "--public")

    (found,) = b.json("directory", "lookup", "hostb\\orders")
    assert (found["authenticate"], found["privacy"]) == (False, "optional")


def test_a_certificate_in_the_directory_proves_its_sender(start, file, remote):
    b = start("hostb")
    b.create("orders")
    other = "S-1-5-21-1-2-3-1002"
    write(b, file, file.read_text() + sender_entry(SID, certificate("sender")))

    peer = remote.connect(b.port)
    for each in (
        message(remote, "orders", b"1"),
        signed(message(remote, "orders", b"2"), sid=SID),
        signed(message(remote, "orders", b"3"), "another", sid=SID),
        signed(message(remote, "orders", b"4"), sid=other),
        message(remote, "orders", b"5"),
    ):
        peer.send(build_user_message(each))
    peer.wait_stored()

    signer = f"signer:{signer_of(certificate('sender')).fingerprint}"
    found = b.peek("orders")[1]
    assert found["principals"] == [f"sid:{SID}", signer]
    assert b.bodies("orders") == [b"1", b"2", b"5"]
    assert [each["class"] for each in b.peek(DEADLETTER)] == ["nack_bad_signature"] * 2
    # The events name the signer after the message has gone.
    reasons = [each["reason"] for each in b.json("events", "tail") if each["kind"] == "accepted"]
    assert [signer in each for each in reasons] == [False, True, False]
    (account,) = b.json("why", found["id"])
    assert not account["places"]
    assert any(signer in each for each in account["sentences"])


def test_a_certificate_is_registered_in_the_file_by_a_command(start, file, remote, tmp_path):
    a, b = start("hosta"), start("hostb")
    b.cli("queue", "create", "orders", "--authenticate")
    crt = tmp_path / "sender.crt"
    crt.write_bytes(certificate("sender"))
    (status,) = a.json("status")

    a.cli("key", "register", SID, str(crt), "--directory")
    a.cli("key", "register", status["queue_manager"], str(crt), "--directory")
    b.cli("directory", "reload")
    peer = remote.connect(b.port)
    peer.send(build_user_message(signed(message(remote, "orders"), sid=SID)))
    peer.wait_stored()
    (listed,) = b.json("key", "list", "--directory", SID)
    kept = file.read_text()
    a.cli("key", "remove", SID, listed["fingerprint"], "--directory")
    again = a.cli("key", "remove", SID, listed["fingerprint"], "--directory", check=False)

    assert b.peek("orders")[0]["principals"][0] == f"sid:{SID}"
    assert listed["fingerprint"] == signer_of(certificate("sender")).fingerprint
    assert kept.startswith("# Kept by people.\n")
    assert again.returncode
    assert SID not in file.read_text()
    assert "certificates = [" in file.read_text()  # those of the machine stay


def test_while_the_directory_is_away_nothing_is_decided_about_a_sender(
    hosts: Hosts, remote: RemoteQueueManager, tmp_path: Path
) -> None:
    file = tmp_path / "later.toml"
    daemon = hosts.daemon(
        directory={"kind": "file", "file": str(file), "reload": "20ms", "pause": "10ms"}
    )
    daemon.create("orders")
    packet = build_user_message(signed(message(remote, "orders"), sid=SID))
    peer = remote.connect(daemon.port)
    peer.send(packet)
    peer.expect_closed()

    assert daemon.count("orders") == daemon.count(DEADLETTER) == 0
    file.write_text(sender_entry(SID, certificate("sender")))
    # While the directory is away, the command prints so and ends with 1.
    until(lambda: daemon.json("directory", "status", check=False)[0]["state"] == "available")
    again = remote.connect(daemon.port)
    again.send(packet)
    again.wait_stored()

    assert daemon.peek("orders")[0]["authenticated"]
