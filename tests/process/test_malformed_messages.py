"""Malformed messages and odd names: each costs at most its own session."""

from __future__ import annotations

import struct

import pytest

from tests.process import wire
from tests.process.connection import Closed
from tests.process.harness import DEADXACT, Daemon, Hosts, body
from tests.process.remote import RemoteQueueManager


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "side", "victim")
    daemon.create("orders", transactional=True)
    return daemon


NAME_AT = 64  # Count of the DestinationQueue
FLAGS_AT = 60


def _patched(packet: bytes, at: int, value: bytes) -> bytes:
    return packet[:at] + value + packet[at + len(value) :]


def _plain(**properties: object) -> bytes:
    defaults: dict[str, object] = {
        "source": b"s" * 16,
        "message_id": 1,
        "destination": wire.private("victim"),
        "body": b"body",
    }
    return wire.message(**{**defaults, **properties})  # type: ignore[arg-type]


def _properties(**changes: int) -> bytes:
    """Return a packet with false numbers in its MessagePropertiesHeader."""
    packet = _plain(label="lbl", extension=b"ext")
    at = len(packet) - len(wire.pad4(bytes(56 + 8 + 3 + 4)))
    for name, value in changes.items():
        offset, layout = {
            "label_length": (1, "<B"),
            "size": (32, "<I"),
            "extension_size": (52, "<I"),
        }[name]
        packet = _patched(packet, at + offset, struct.pack(layout, value))
    return packet


def _with_flags(clear: int = 0, set_: int = 0, **properties: object) -> bytes:
    packet = _plain(**properties)
    (flags,) = struct.unpack_from("<I", packet, FLAGS_AT)
    return _patched(packet, FLAGS_AT, struct.pack("<I", flags & ~clear | set_))


def _label_not_terminated() -> bytes:
    packet = _plain(label="abc")
    return packet.replace("abc\0".encode("utf-16-le"), "abcd".encode("utf-16-le"))


def _name(raw: bytes, count: int | None = None) -> bytes:
    """Return a destination of exactly these bytes."""

    class Raw(wire.Name):
        def build(self) -> bytes:
            return wire.pad4(struct.pack("<H", len(raw) if count is None else count) + raw)

    return _plain(destination=Raw(7))


def _security(**sizes: int) -> bytes:
    """Return a SecurityHeader with sizes that differ from its data."""
    header = bytearray(wire.security_header(b"\1" * 28))
    for name, value in sizes.items():
        offset, layout = {
            "flags": (0, "<H"),
            "sender": (2, "<H"),
            "key": (4, "<H"),
            "signature": (6, "<H"),
            "certificate": (8, "<I"),
            "provider": (12, "<I"),
        }[name]
        struct.pack_into(layout, header, offset, value)
    return _plain(security=bytes(header))


def _multi_queue(at: int, value: bytes) -> bytes:
    return _plain(multi_queue=_patched(wire.multi_queue_header(["TCP:127.0.0.1\\q"]), at, value))


def _soap(at: int, value: bytes) -> bytes:
    return _plain(soap=_patched(wire.soap_header("<h/>", "<b/>"), at, value))


NAME = "TCP:127.0.0.1\\private$\\victim".encode("utf-16-le")
MALFORMED = {
    "DM 2": _with_flags(set_=0x40),
    "DM 3": _with_flags(set_=0x60),
    "TransactionHeader with DM express": _with_flags(
        clear=wire.DM, transaction=wire.Transaction(0x1C, 5 << 32 | 1, 1, 0)
    ),
    "MP clear": _with_flags(clear=wire.PROPERTIES),
    "DQ 1": _with_flags(clear=0x1C00, set_=1 << 10),
    "DQ 2": _with_flags(clear=0x1C00, set_=2 << 10),
    "DQ 4": _with_flags(clear=0x1C00, set_=4 << 10),
    "DQ 6": _with_flags(clear=0x1C00, set_=6 << 10),
    "AQ 1": _with_flags(set_=1 << 13),
    "AQ 4": _with_flags(set_=4 << 13),
    "AQ 7 without a name": _with_flags(set_=7 << 13),
    "TH without the header": _with_flags(set_=wire.TRANSACTION | wire.DM),
    "CQ without the connector": _with_flags(set_=wire.CONNECTOR),
    "Count odd": _name(NAME + b"\0"),
    "Count 0": _name(b""),
    "name without terminator": _name(NAME),
    "Count over the packet": _name(NAME + b"\0\0", count=0xFFFE),
    "LabelLength 0xFB": _properties(label_length=0xFB),
    "LabelLength 0xFF": _properties(label_length=0xFF),
    "label not terminated": _label_not_terminated(),
    "MessageSize 1 too long": _properties(size=64),
    "MessageSize 4 GB": _properties(size=0xFFFFFFFF),
    "ExtensionSize 4 GB": _properties(extension_size=0xFFFFFFFF),
    "sizes that overflow 32 bits": _properties(size=0x80000000, extension_size=0x80000007),
    "SenderIdSize over the packet": _security(sender=0xFFFF),
    "EncryptionKeySize over the packet": _security(key=0xFFFF),
    "SignatureSize over the packet": _security(signature=0xFFFF),
    "SenderCertSize 4 GB": _security(certificate=0xFFFFFFFF),
    "ProviderInfoSize 4 GB": _security(provider=0xFFFFFFFC),
    "sender type 3": _security(flags=0x83),
    "DH without the header": _plain(extra_base_flags=wire.DH),
    "HH without the header": _with_flags(set_=wire.SOAP),
    "MQ without the header": _with_flags(set_=wire.MULTI_QUEUE),
    "MQF HeaderSize 0": _multi_queue(0, bytes(4)),
    "MQF HeaderSize 11": _multi_queue(0, struct.pack("<I", 11)),
    "MQF HeaderSize 4 GB": _multi_queue(0, b"\xff\xff\xff\xff"),
    "MQF with another id": _multi_queue(4, b"\x65\0"),
    "MQF ElementCount 4 G": _multi_queue(8, b"\xff\xff\xff\xff"),
    "Soap with another id": _soap(0, b"\x21\x03"),
    "Soap length that overflows": _soap(4, struct.pack("<I", 0x80000005)),
    "Soap length over the packet": _soap(4, struct.pack("<I", 0x1000)),
    "no UserHeader": wire.base(3, 20) + bytes(4),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_closes_its_session_and_no_other(
    daemon: Daemon, remote: RemoteQueueManager, name: str
):
    other = remote.connect(daemon.port)
    peer = remote.connect(daemon.port)

    peer.connection.send(MALFORMED[name])
    peer.expect_closed()

    other.send(remote.message("plain", b"still here", recoverable=True))
    other.wait_stored()
    assert daemon.alive


def test_none_of_the_malformed_messages_was_delivered(daemon: Daemon):
    assert daemon.bodies("victim") == []
    assert set(daemon.bodies("plain")) <= {b"still here"}


def test_session_counts_that_are_wrong_close_the_session_after_the_message_was_taken(
    daemon: Daemon, remote: RemoteQueueManager
):
    # QB 3.1.5.5.5 and MQ 2.2.20.4, UserMsgSequenceNumber.
    for number, change in enumerate(({"sent": 5}, {"sent": 0}, {"recoverable_sent": 2})):
        peer = remote.connect(daemon.port)
        packet = remote.message("plain", b"taken %d" % number, recoverable=True)
        peer.count(packet)
        peer.connection.send(peer.with_session_header(packet, **change))
        peer.expect_closed()

    daemon.wait_for("plain", 3)
    assert daemon.bodies("plain") == [b"taken 0", b"taken 1", b"taken 2"]


ODD_NAMES = {
    "blank": "OS:host\\private$\\a queue",
    "no backslash": "nonsense",
    "no queue": "TCP:127.0.0.1\\",
    "only private$": "TCP:127.0.0.1\\private$\\",
    "unknown protocol": "CARRIER-PIGEON:coop\\q",
    "umlaut": "OS:höst\\private$\\wüste",
    "control characters": "OS:host\\private$\\\x1b[2J\x07",
    "half a surrogate pair": "OS:host\\private$\\\ud800",
    "1,000 characters": "OS:host\\private$\\" + "q" * 1000,
    "30,000 characters": "OS:host\\private$\\" + "q" * 30_000,
    "http": "HTTP://host:99999/msmq/q",
    "subqueue": "OS:host\\private$\\q;sub;sub;sub",
    "comma": "OS:a\\q,DIRECT=OS:b\\q",
}


class Unchecked(wire.Name):
    """A direct name of arbitrary characters, lone surrogates too."""

    def build(self) -> bytes:
        raw = self.text.encode("utf-16-le", "surrogatepass") + b"\0\0"
        return wire.pad4(struct.pack("<H", len(raw)) + raw)


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("where", ["response", "admin"])
def test_a_message_with_an_odd_reply_name_affects_no_other(
    daemon: Daemon, remote: RemoteQueueManager, name: str, where: str
):
    # Such a message may be delivered, or its session closed.  Other messages must be delivered,
    # the queue must stay readable, and only printed messages may be removed.
    odd: dict[str, object] = {where: Unchecked(7, text=ODD_NAMES[name])}
    if where == "admin":
        odd["ack_bits"] = wire.PA | wire.NA
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"before", recoverable=True))
    peer.wait_stored()
    try:
        peer.send(remote.message("plain", b"odd", recoverable=True, **odd))
        peer.wait_stored()
    except Closed:
        peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"after", recoverable=True))
    peer.wait_stored()

    peeked = [body(message) for message in daemon.peek("plain")]
    received = daemon.bodies("plain")

    assert peeked == received
    assert received in ([b"before", b"odd", b"after"], [b"before", b"after"])


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_refused_message_with_an_odd_destination_leaves_the_dead_letters_readable(
    daemon: Daemon, remote: RemoteQueueManager, name: str
):
    peer = remote.connect(daemon.port)
    sequence = remote.new_sequence()
    peer.send(remote.transactional("plain", sequence, 1, body=b"before"))
    peer.wait_stored()
    odd = Unchecked(7, text=ODD_NAMES[name])
    other = remote.new_sequence()
    try:
        peer.send(remote.transactional("x", other, 1, destination=odd, body=b"odd"))
        peer.wait_stored()
    except Closed:
        peer = remote.connect(daemon.port)
    peer.send(remote.transactional("plain", sequence, 2, 0, body=b"after"))
    peer.wait_stored()

    received = daemon.bodies(DEADXACT)

    assert received[:1] + received[-1:] == [b"before", b"after"]
    assert set(received) <= {b"before", b"odd", b"after"}


ODD_LABELS = {
    "half a surrogate pair": b"\x00\xd8a\0\0\0",
    "control characters": "\x1b]0;x\x07\r\n".encode("utf-16-le") + b"\0\0",
    "a null inside": b"a\0\0\0b\0\0\0",
    "only the terminator": b"\0\0",
}


@pytest.mark.parametrize("name", ODD_LABELS)
def test_a_message_with_an_odd_label_affects_no_other(
    daemon: Daemon, remote: RemoteQueueManager, name: str
):
    raw = ODD_LABELS[name]
    stand_in = "x" * (len(raw) // 2 - 1)
    packet = remote.message("plain", b"odd", label=stand_in or "", recoverable=True)
    if stand_in:
        packet = packet.replace(stand_in.encode("utf-16-le") + b"\0\0", raw)
    peer = remote.connect(daemon.port)
    try:
        peer.send(packet)
        peer.wait_stored()
    except Closed:
        peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"after", recoverable=True))
    peer.wait_stored()

    assert daemon.bodies("plain") in ([b"odd", b"after"], [b"after"])
