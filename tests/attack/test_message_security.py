"""Attacks on signed and encrypted messages: each changed field is refused with the right class."""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path

from protocol import UserMessage, build_user_message, parse_user_message
from protocol.errors import MalformedPacket
from protocol.message_class import MessageClass
from protocol.signed_fields import SignatureStyle, signed_parts
from qmd.message_security.decryption_failures import FAILURES_MAX
from qmd.message_security.keyring import Keyring, load_private_key, private_pem
from qmd.message_security.signatures import sign, signer_of
from tests.process.harness import DEADLETTER, Daemon, Hosts
from tests.process.remote import RemoteQueueManager
from tests.unit.message_security.secured import SID, certificate, encrypted, key, signed
from tests.unit.message_security.test_checking import ENCRYPTED_FIELDS, SIGNED_FIELDS

BAD_SIGNATURE, BAD_ENCRYPTION = "nack_bad_signature", "nack_bad_encryption"


def start(hosts: Hosts, **settings: object) -> Daemon:
    daemon = hosts.daemon(message_security=settings)
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    daemon.cli("queue", "create", "signed", "--authenticate")
    daemon.cli("queue", "create", "secret", "--privacy", "body")
    daemon.cli("queue", "create", "open", "--privacy", "none")
    ring = keyring(daemon)
    path = ring.folder / "exchange.pem"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(private_pem(key("receiver")))
    path.chmod(0o600)
    ring.add_sender(SID, certificate("sender"))
    return daemon


def keyring(daemon: Daemon) -> Keyring:
    settings = tomllib.loads(daemon.config.read_text())["queue_manager"]
    return Keyring(daemon.config.parent / settings["data"])


def message(remote: RemoteQueueManager, queue: str, body: bytes = b"ABC") -> UserMessage:
    return parse_user_message(remote.message(queue, body, recoverable=True))


def deliver(daemon: Daemon, remote: RemoteQueueManager, *messages: UserMessage) -> None:
    peer = remote.connect(daemon.port)
    peer.send_many([build_user_message(each) for each in messages])
    peer.wait_stored()
    peer.close()


def classes(daemon: Daemon) -> list[str]:
    return [each["class"] for each in daemon.peek(DEADLETTER)]


def test_signed_and_encrypted_messages_arrive_in_order_with_their_sender(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)

    deliver(
        daemon,
        remote,
        message(remote, "plain", b"1"),
        signed(message(remote, "plain", b"2"), sid=SID),
        message(remote, "plain", b"3"),
        encrypted(signed(message(remote, "plain", b"4"))),
        encrypted(message(remote, "plain", b"5")),
        message(remote, "plain", b"6"),
    )

    found = daemon.peek("plain")
    assert daemon.bodies("plain") == [b"%d" % number for number in range(1, 7)]
    signer = f"signer:{signer_of(certificate('sender')).fingerprint}"
    assert [each["authenticated"] for each in found] == [False, True, False, True, False, False]
    assert found[1]["principals"] == [f"sid:{SID}", signer]
    assert found[3]["principals"] == [signer]
    assert found[1]["hash_algorithm"] == "sha512"
    assert [each["encryption_algorithm"] for each in found[3:5]] == ["aes256", "aes256"]
    assert found[0]["encryption_algorithm"] is None


def test_each_changed_field_of_a_signed_message_is_refused(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    changed = []
    for field, change in SIGNED_FIELDS.items():
        if field not in ("destination", "source", "class", "delivery", "acknowledgments"):
            changed.append(change(signed(message(remote, "plain"))))
    moved = signed(message(remote, "plain"))
    other = message(remote, "secret").user.destination_queue
    changed.append(moved._replace(user=moved.user._replace(destination_queue=other)))

    deliver(daemon, remote, *changed)

    assert daemon.count("plain") == daemon.count("secret") == 0
    assert classes(daemon) == [BAD_SIGNATURE] * len(changed)


def test_each_changed_field_of_an_encrypted_message_is_refused(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    changed = [
        change(encrypted(message(remote, "plain")))
        for field, change in ENCRYPTED_FIELDS.items()
        if field != "no_key"
    ]

    deliver(daemon, remote, *changed)

    assert daemon.count("plain") == 0
    assert classes(daemon) == [BAD_ENCRYPTION] * len(changed)


def test_changed_copies_of_an_encrypted_message_disclose_nothing_of_its_body(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    body = bytes(range(32))
    genuine = encrypted(message(remote, "plain", body))
    ciphertext = genuine.properties.body

    def copy(number: int, guess: int) -> UserMessage:
        """Return a copy of which the padding is right for one of 256 guesses."""
        changed = bytearray(ciphertext)
        changed[-17] ^= guess
        properties = genuine.properties._replace(body=bytes(changed))
        user = genuine.user._replace(message_number=(1 << 20) + number)
        return genuine._replace(user=user, properties=properties)

    false = hosts.remote(remote.guid)
    peer = false.connect(daemon.port, source="127.0.0.3")
    # The wrong guesses come first, as many as are tried; the right one is refused after them.
    wrong = [each for each in range(1, 256) if 0x10 ^ each != 1][:FAILURES_MAX]
    for at, guess in enumerate([*wrong, 0, 0x10 ^ 1]):
        peer.send(build_user_message(copy(at, guess)))
    peer.wait_stored()
    deliver(daemon, remote, genuine)

    assert daemon.bodies("plain") == [body]
    assert set(classes(daemon)) == {BAD_ENCRYPTION}
    assert daemon.count(DEADLETTER) == FAILURES_MAX + 2


def test_queues_refuse_messages_that_are_less_protected_than_they_require(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    forged = signed(message(remote, "signed"), sid=SID)
    assert forged.security is not None
    stated = forged.security.flags.replace(signature_type=3, authenticated=1)
    claim = forged._replace(security=forged.security._replace(flags=stated, signature=b""))
    marked = forged.security._replace(signature=b"", encryption_key=b"key", sender_id=b"")
    plain = message(remote, "secret")
    unencrypted = plain._replace(
        user=plain.user._replace(flags=plain.user.flags.replace(security_header=1)),
        security=marked._replace(flags=marked.flags.replace(sender_type=0)),
        properties=plain.properties._replace(privacy_level=5),
    )

    deliver(
        daemon,
        remote,
        message(remote, "signed"),
        claim,
        message(remote, "secret"),
        unencrypted,
        signed(message(remote, "secret")),
        encrypted(message(remote, "open")),
        signed(message(remote, "signed")),
        encrypted(message(remote, "secret")),
        message(remote, "open"),
    )

    assert [daemon.count(queue) for queue in ("signed", "secret", "open")] == [1, 1, 1]
    assert classes(daemon) == [BAD_SIGNATURE] * 2 + [BAD_ENCRYPTION] * 4
    assert daemon.cli("send", "signed", "unsigned", check=False).returncode != 0


def test_weak_algorithms_are_unsupported_unless_a_setting_allows_them(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    deliver(daemon, remote, signed(message(remote, "plain"), algorithm=0x8004))
    assert classes(daemon) == ["nack_unsupported_crypto_provider"]

    with RemoteQueueManager() as other:
        lenient = start(hosts, hash_algorithms=["sha1", "sha512"])
        deliver(lenient, other, signed(message(other, "plain"), algorithm=0x8004))
        assert lenient.peek("plain")[0]["hash_algorithm"] == "sha1"


def test_a_refused_transactional_message_is_final_and_the_sequence_goes_on(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = start(hosts)
    peer = remote.connect(daemon.port)
    sequence = 77 << 32
    first = parse_user_message(remote.transactional("orders", sequence, 1))
    bad = signed(parse_user_message(remote.transactional("orders", sequence, 2)))
    bad = SIGNED_FIELDS["body"](bad)

    peer.send(build_user_message(signed(first)))
    peer.wait_order_ack(sequence, 1)
    peer.send(build_user_message(bad))
    peer.wait(lambda: bool(peer.final_acks), what="a final ack")

    assert peer.final_acks[0].message_class == MessageClass.NACK_BAD_SIGNATURE
    peer.send(build_user_message(bad))  # a repetition is refused as well, and not taken for stored
    peer.wait(lambda: len(peer.final_acks) > 1, what="a second final ack")
    assert peer.final_acks[1].message_class == MessageClass.NACK_BAD_SIGNATURE
    # The duplicate of an accepted message stays one, also when its signature no longer counts.
    keyring(daemon).remove(SID, signer_of(certificate("sender")).fingerprint)
    peer.send(remote.transactional("orders", sequence, 3, 1))
    peer.wait_order_ack(sequence, 3)
    assert daemon.bodies("orders") == [b"1", b"3"]


def test_a_message_goes_from_host_to_host_signed_and_encrypted(
    hosts: Hosts, tmp_path: Path
) -> None:
    sender, receiver = hosts.daemon(), hosts.daemon()
    receiver.cli("queue", "create", "signed", "--authenticate", "--privacy", "body")
    receiver.cli("queue", "create", "ordered", "--authenticate", "--transactional")
    files = {name: str(tmp_path / name) for name in ("key", "certificate", "public")}
    name = f"127.0.0.1:{receiver.port}"
    options = ("--sign", "--key", files["key"], "--certificate", files["certificate"])

    receiver.cli("key", "init")
    receiver.cli("key", "export", files["public"])
    fingerprint = (
        sender.cli(
            *("key", "new-signer", "alice", "--key", files["key"]),
            *("--certificate", files["certificate"]),
        )
        .stdout.decode()
        .strip()
    )
    target = f"DIRECT=TCP:{name}\\private$\\signed"
    refused = sender.cli("send", target, "x", *options, "--encrypt", check=False)
    assert b"qmd key import" in refused.stderr
    sender.cli("key", "import", name.partition(":")[0], files["public"])
    sender.cli("send", target, "secret words", *options, "--encrypt")
    sender.cli("send", target, "readable", *options)
    ordered = target.replace("signed", "ordered")
    for number in range(3):
        sender.cli("send", ordered, str(number), *options, "--transactional", "--encrypt")

    (found,) = receiver.wait_for("signed", 1)
    assert found["authenticated"]
    assert found["principals"] == [f"signer:{fingerprint}"]
    assert found["encryption_algorithm"] == "aes256"
    assert receiver.bodies("signed") == [b"secret words"]
    receiver.wait_for("ordered", 3)
    assert receiver.bodies("ordered") == [b"0", b"1", b"2"]
    assert classes(receiver) == [BAD_ENCRYPTION]  # the readable one
    assert (Path(files["key"]).stat().st_mode & 0o777) == 0o600


def test_one_signature_covers_a_message_to_several_queues(hosts: Hosts, tmp_path: Path) -> None:
    sender, receiver = hosts.daemon(), hosts.daemon()
    sender.cli("queue", "create", "here", "--authenticate")
    receiver.cli("queue", "create", "there", "--authenticate")
    receiver.cli("queue", "create", "also", "--authenticate")
    receiver.cli("queue", "create", "ordered", "--authenticate", "--transactional")
    files = {name: str(tmp_path / name) for name in ("key", "certificate")}
    options = ("--key", files["key"], "--certificate", files["certificate"])
    made = sender.cli("key", "new-signer", "alice", *options)
    fingerprint = made.stdout.decode().strip()
    at = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\"
    names = f"{at}there,here,{at}also"

    sender.cli("send", names, "to all", "--sign", *options)
    sender.cli(
        "send", f"{at}ordered,{at}ordered", "in order", "--transactional", "--sign", *options
    )
    mixed = sender.cli("send", f"here,{at}ordered", "x", "--transactional", check=False)
    unsigned = sender.cli("send", names, "x", check=False)
    encrypted_too = sender.cli("send", names, "x", "--encrypt", check=False)

    (here,) = sender.peek("here")
    (there,), (also,) = receiver.wait_for("there", 1), receiver.wait_for("also", 1)
    ordered = receiver.wait_for("ordered", 2)
    for found in (here, there, also, *ordered):
        assert found["authenticated"]
        assert found["principals"] == [f"signer:{fingerprint}"]
    assert b"QM-1328" in encrypted_too.stderr
    assert unsigned.returncode != 0
    assert mixed.returncode != 0
    assert receiver.peek(DEADLETTER) == []


def sent_to_several(hosts: Hosts, tmp_path: Path) -> tuple[Daemon, Daemon, UserMessage, Path]:
    """Send a signed message to two queues, of which one is on the receiver; return the packet of
    that copy, and the file of the signer's key."""
    sender, receiver = hosts.daemon(), hosts.daemon()
    sender.create("one")
    receiver.cli("queue", "create", "two", "--authenticate")
    receiver.cli("queue", "create", "three", "--authenticate")
    files = {name: tmp_path / name for name in ("key", "certificate")}
    options = ("--key", str(files["key"]), "--certificate", str(files["certificate"]))
    sender.cli("key", "new-signer", "alice", *options)
    at = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\"
    sender.cli("send", f"one,{at}two", "text", "--recoverable", "--sign", *options)
    receiver.wait_for("two", 1)
    lines = receiver.cli("export", "two").stdout.splitlines()
    packets = [_packet(value) for line in lines for value in json.loads(line).values()]
    (packet,) = filter(None, packets)
    return sender, receiver, parse_user_message(packet), files["key"]


def test_a_signature_over_a_list_is_good_for_the_queues_of_that_list_only(
    hosts: Hosts, remote: RemoteQueueManager, tmp_path: Path
) -> None:
    _, receiver, genuine, key_file = sent_to_several(hosts, tmp_path)
    assert genuine.multi_queue is not None
    assert genuine.security is not None
    private = load_private_key(key_file.read_bytes())
    header = genuine.security
    flags = header.flags.replace(signature_type=0)
    own = genuine._replace(
        user=genuine.user._replace(source_queue_manager=remote.guid),
        security=header._replace(flags=flags),
    )
    made = sign(private, signed_parts(own, SignatureStyle.MSMQ_3), own.properties.hash_algorithm)
    lists = genuine.multi_queue._replace(
        signature=genuine.multi_queue.signature._replace(signature=made)
    )
    own = own._replace(multi_queue=lists)
    shorter = lists.destination._replace(elements=lists.destination.elements[:1])

    def copy(number: int, queue: str) -> UserMessage:
        destination = message(remote, queue).user.destination_queue
        user = own.user._replace(message_number=number, destination_queue=destination)
        return own._replace(user=user)

    deliver(
        receiver,
        remote,
        copy(1 << 20, "two"),
        copy((1 << 20) + 1, "three"),
        copy((1 << 20) + 2, "two")._replace(multi_queue=lists._replace(destination=shorter)),
    )

    assert (receiver.count("two"), receiver.count("three")) == (2, 0)
    assert classes(receiver) == [BAD_SIGNATURE] * 2


def test_a_copied_signature_does_not_speak_for_a_source_with_a_key(
    hosts: Hosts, tmp_path: Path
) -> None:
    _, receiver, genuine, _ = sent_to_several(hosts, tmp_path)
    assert genuine.security is not None
    flags = genuine.security.flags.replace(signature_type=0)
    copied = genuine._replace(
        user=genuine.user._replace(message_number=1 << 20),
        security=genuine.security._replace(flags=flags),
    )
    false = hosts.remote(genuine.user.source_queue_manager)

    deliver(receiver, false, copied)

    assert receiver.count("two") == 1
    assert classes(receiver) == [BAD_SIGNATURE]


def _packet(value: object) -> bytes | None:
    """Return the packet in a value of an exported line, or None."""
    try:
        found = base64.b64decode(value, validate=True)  # type: ignore[arg-type]
        parse_user_message(found)
    except (TypeError, ValueError, MalformedPacket):
        return None
    return found


def test_a_file_cannot_state_that_a_signature_was_verified(hosts: Hosts, tmp_path: Path) -> None:
    daemon = start(hosts)
    key_file, certificate_file = tmp_path / "key", tmp_path / "certificate"
    key_file.write_bytes(private_pem(key("sender")))
    certificate_file.write_bytes(certificate("sender"))
    options = ("--sign", "--key", str(key_file), "--certificate", str(certificate_file))
    for text in ("one", "two"):
        daemon.cli("send", "signed", text, *options)
    assert [each["authenticated"] for each in daemon.peek("signed")] == [True, True]

    exported = tmp_path / "exported"
    exported.write_bytes(daemon.cli("export", "signed").stdout)
    daemon.cli("import", "plain", str(exported))

    found = daemon.peek("plain")
    assert [each["authenticated"] for each in found] == [False, False]
    assert [each["principals"] for each in found] == [[], []]
    wrong = tmp_path / "wrong"
    wrong.write_bytes(private_pem(key("another")))
    other = ("--sign", "--key", str(wrong), "--certificate", str(certificate_file))
    assert b"not the certificate" in daemon.cli("send", "signed", "x", *other, check=False).stderr
