"""Peers that misbehave: the daemon neither crashes, hangs nor lets them disturb another."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.harness import DEADXACT, Cleaner, Daemon, Hosts, body
from tests.process.peer import Closed, Connection, Peer, RemoteQueueManager

MB = 1024 * 1024


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "side", "victim")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared)


class Bystander:
    """A queue manager that delivers all the time, in a thread of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self.remote = RemoteQueueManager()
        self.peer = self.remote.connect(daemon.port)
        self.delivered = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._deliver)
        self._thread.start()

    def _deliver(self) -> None:
        try:
            while not self._stop.is_set():
                text = b"%d" % self.delivered
                self.peer.send(self.remote.message("side", text, recoverable=True))
                self.peer.wait_stored()
                self.delivered += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> int:
        self._stop.set()
        self._thread.join(END_S)
        self.remote.close()
        if self.error is not None:
            raise self.error
        return self.delivered


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Bystander]:
    """Delivers during the test, and everything of it must be there afterwards, in order."""
    bystander = Bystander(daemon)
    try:
        yield bystander
    finally:
        delivered = bystander.finish()
    assert daemon.alive
    assert delivered > 0
    assert [int(text) for text in daemon.bodies("side")] == list(range(delivered))


def sample(remote: RemoteQueueManager, **properties: object) -> bytes:
    """A message with every part that has a length, to the queue `victim`."""
    defaults: dict[str, object] = {
        "body": b"the body of a message",
        "label": "label",
        "extension": b"extension",
        "recoverable": True,
        "admin": wire.private("admin"),
        "ack_bits": wire.NA,
        "response": wire.private("answers"),
        "security": wire.security_header(b"\1" * 28),
        "transaction": wire.Transaction(0x1C, 5 << 32 | 1, 1, 0),
    }
    return remote.message("victim", **{**defaults, **properties})  # type: ignore[arg-type]


def test_a_connection_lost_at_any_offset_of_a_packet_leaves_nothing(
    daemon: Daemon, bystander: Bystander
):
    with RemoteQueueManager() as remote:
        packet = sample(remote)
        for offset in range(1, len(packet), 7):
            peer = remote.connect(daemon.port)
            peer.send_raw(packet[:offset])
            peer.close()

    assert daemon.bodies("victim") == []


def test_a_packet_that_ends_early_at_any_offset_closes_its_session(
    daemon: Daemon, bystander: Bystander
):
    # PacketSize says what is there, but what is there ends within a header or the body.
    with RemoteQueueManager() as remote:
        packet = sample(remote)
        end = len(packet.rstrip(b"\0"))
        for size in range(20, end, 5):
            peer = remote.connect(daemon.port)
            peer.send_raw(packet[:8] + struct.pack("<I", size) + packet[12:size])
            peer.expect_closed()
            peer.close()

    assert daemon.bodies("victim") == []


def test_a_handshake_that_ends_at_any_offset_leaves_nothing(daemon: Daemon, bystander: Bystander):
    whole = wire.establish(client=b"c" * 16) + wire.parameters()
    for offset in range(0, len(whole), 13):
        with Connection.open(daemon.port) as connection:
            connection.send(whole[:offset])
            connection.half_close()
            said = [wire.parse(data) for data in connection.expect_closed()]
            assert len(said) <= 1 + (offset == len(whole))


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
    """A packet whose MessagePropertiesHeader has other numbers in it than it should."""
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
    """A destination of just these bytes."""

    class Raw(wire.Name):
        def build(self) -> bytes:
            return wire.pad4(struct.pack("<H", len(raw) if count is None else count) + raw)

    return _plain(destination=Raw(7))


def _security(**sizes: int) -> bytes:
    """A SecurityHeader whose sizes are others than its data."""
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

    peer.send_raw(MALFORMED[name])
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
        peer.send_raw(peer.with_session_header(packet, **change))
        peer.expect_closed()

    daemon.wait_for("plain", 3)
    assert daemon.bodies("plain") == [b"taken 0", b"taken 1", b"taken 2"]


@pytest.mark.parametrize("change", [{"sent": 1}, {"recoverable_sent": 1}, {"sent": 0xFFFF}])
def test_a_session_ack_with_wrong_counts_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, change: dict[str, int]
):
    peer = remote.connect(daemon.port)

    peer.session_ack(**change)

    peer.expect_closed()


@pytest.mark.parametrize(
    "change",
    [
        {"acknowledged": 1},
        {"acknowledged": 0x8000},
        {"recoverable_acknowledged": 1, "recoverable_flags": 1},
        {"recoverable_acknowledged": 1, "recoverable_flags": 0xFFFFFFFF},
    ],
)
def test_an_acknowledgment_of_what_was_never_sent_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, change: dict[str, int]
):
    peer = remote.connect(daemon.port)

    peer.session_ack(**change)

    peer.expect_closed()


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
    """A direct name of any characters, half surrogates too."""

    def build(self) -> bytes:
        raw = self.text.encode("utf-16-le", "surrogatepass") + b"\0\0"
        return wire.pad4(struct.pack("<H", len(raw)) + raw)


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("where", ["response", "admin"])
def test_a_message_with_an_odd_reply_name_takes_no_other_with_it(
    daemon: Daemon, remote: RemoteQueueManager, name: str, where: str
):
    # Whether such a message is delivered or its session closed: its neighbours must get through,
    # the queue must stay readable, and nothing may be removed that was not printed.
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
def test_a_message_with_an_odd_label_takes_no_other_with_it(
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


def test_a_packet_of_exactly_4_mb_is_delivered(daemon: Daemon, remote: RemoteQueueManager):
    empty = len(remote.message("plain"))
    content = b"\xa5" * (wire.PACKET_BYTES_MAX - empty)
    peer = remote.connect(daemon.port)
    packet = remote.message("plain", content, recoverable=True)
    assert len(packet) == wire.PACKET_BYTES_MAX

    peer.send(packet)
    peer.wait_stored()

    (message,) = daemon.receive("plain")
    assert body(message) == content


def test_a_transactional_packet_of_4_mb_is_delivered(daemon: Daemon, remote: RemoteQueueManager):
    sequence = remote.new_sequence()
    empty = len(remote.transactional("orders", sequence, 1, body=b""))
    content = bytes(range(256)) * ((wire.PACKET_BYTES_MAX - empty) // 256)
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", sequence, 1, body=content))
    peer.wait_order_ack(sequence, 1)

    (message,) = daemon.receive("orders")
    assert body(message) == content


def test_a_packet_over_4_mb_is_refused_before_it_is_there(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    packet = remote.message("plain", bytes(wire.PACKET_BYTES_MAX), recoverable=True)
    assert len(packet) > wire.PACKET_BYTES_MAX

    # Only the header goes out: nobody may wait for the announced rest.
    peer.send_raw(packet[:16])

    peer.expect_closed()


def test_announced_but_unsent_megabytes_cost_no_memory(daemon: Daemon, bystander: Bystander):
    before = daemon.resident_bytes()
    with RemoteQueueManager() as remote:
        for _ in range(50):
            peer = remote.connect(daemon.port)
            packet = remote.message("plain", recoverable=True)
            peer.send_raw(packet[:8] + struct.pack("<I", wire.PACKET_BYTES_MAX) + packet[12:])
        # A session that is answered proves that the fifty were read.
        probe = remote.connect(daemon.port)
        probe.send(remote.message("plain", recoverable=True))
        probe.wait_stored()
        grown = daemon.resident_bytes() - before
    daemon.receive("plain")

    assert grown < 50 * MB, f"{grown / MB:.0f} MB for 50 announcements of 4 MB"


def test_200_sessions_at_once_each_deliver(daemon: Daemon, bystander: Bystander):
    remotes = [RemoteQueueManager() for _ in range(200)]
    try:
        peers = [remote.connect(daemon.port) for remote in remotes]
        for number, (remote, peer) in enumerate(zip(remotes, peers, strict=True)):
            peer.send(remote.message("plain", b"%d" % number, recoverable=True))
        for peer in peers:
            peer.wait_stored(30)
    finally:
        for remote in remotes:
            remote.close()

    assert sorted(int(text) for text in daemon.bodies("plain")) == list(range(200))


def test_200_sessions_at_once_each_deliver_a_transactional_stream(daemon: Daemon):
    remotes = [RemoteQueueManager() for _ in range(200)]
    try:
        peers = [remote.connect(daemon.port) for remote in remotes]
        sequences = [remote.new_sequence() for remote in remotes]
        for number in (1, 2, 3):
            for remote, peer, sequence in zip(remotes, peers, sequences, strict=True):
                peer.send(remote.transactional("orders", sequence, number))
        for peer, sequence in zip(peers, sequences, strict=True):
            peer.wait_order_ack(sequence, 3, 30)
    finally:
        for remote in remotes:
            remote.close()

    streams: dict[str, list[bytes]] = {}
    for message in daemon.receive("orders"):
        streams.setdefault(str(message["source"]), []).append(body(message))
    assert len(streams) == 200
    assert all(stream == [b"1", b"2", b"3"] for stream in streams.values())


def test_a_flood_of_session_acks_disturbs_nobody(daemon: Daemon, bystander: Bystander):
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        flood = wire.session_ack(wire.Session()) * 1000
        for _ in range(50):
            peer.send_raw(flood)
        peer.send(remote.message("plain", b"after the flood", recoverable=True))
        peer.wait_stored()

    assert daemon.bodies("plain") == [b"after the flood"]


def test_a_flood_of_tiny_messages_beyond_the_window_disturbs_nobody(
    daemon: Daemon, bystander: Bystander
):
    before = daemon.resident_bytes()
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        for _ in range(100):
            batch = [remote.message("nowhere") for _ in range(100)]
            for packet in batch:
                peer.count(packet)
            peer.send_raw(b"".join(batch))
        peer.wait_acknowledged()

    assert daemon.resident_bytes() - before < 50 * MB


def test_a_peer_that_does_not_read_costs_bounded_memory_and_disturbs_nobody(
    daemon: Daemon, bystander: Bystander
):
    before = daemon.resident_bytes()
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        packet = remote.message("plain", b"x" * 1000)
        # Resends of one message: 100 MB in, an ack for each, and nobody reads the acks.
        peer.connection.sock.settimeout(3)
        sent = 0
        try:
            for _ in range(1000):
                peer.connection.sock.sendall(packet * 100)
                sent += 100
        except (TimeoutError, OSError):
            pass
        grown = daemon.resident_bytes() - before
    daemon.receive("plain")

    assert sent > 0
    assert grown < 50 * MB, f"{grown / MB:.0f} MB after {sent} messages"


def test_large_messages_that_wait_for_the_disk_cost_bounded_memory(daemon: Daemon):
    before = daemon.resident_bytes()
    content = bytes(4_000_000)
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        packets = [remote.message("plain", content, recoverable=True) for _ in range(60)]
        waiting = memoryview(b"".join(packets))
        for packet in packets:
            peer.count(packet)
        with daemon.held_disk():
            # Within the window, as fast as the daemon reads; 240 MB are on offer.
            peer.connection.sock.settimeout(1)
            try:
                while waiting:
                    waiting = waiting[peer.connection.sock.send(waiting[:1_000_000]) :]
            except TimeoutError:
                pass
            grown = daemon.resident_bytes() - before
        peer.connection.send(waiting)
        peer.wait_stored(60)

    assert daemon.count("plain") == 60
    daemon.empty()
    assert grown < 100 * MB, f"{grown / MB:.0f} MB for one session"


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack("<I", 0) * 100,
        struct.pack("<I", 1_000_000) + b"\x91" * 1_000_000,
        struct.pack("<I", 60 * MB),
    ],
    ids=["nothing", "one byte", "http", "4 GB", "no msgpack", "empty", "deep", "60 MB announced"],
)
def test_junk_on_the_control_socket_disturbs_nobody(
    daemon: Daemon, bystander: Bystander, junk: bytes
):
    (path,) = (path for path in daemon.folder.rglob("*") if path.is_socket())
    before = daemon.resident_bytes()
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            control.sendall(junk)
        assert daemon.json("status")
    assert daemon.resident_bytes() - before < 30 * MB


def test_an_end_in_the_middle_of_everything_leaks_no_files(daemon: Daemon):
    with RemoteQueueManager() as remote:
        remote.connect(daemon.port).close()
        before = daemon.open_files()
        for number in range(100):
            peer = remote.connect(daemon.port)
            peer.send_raw(sample(remote)[: number * 3])
            if number % 2:
                peer.connection.reset()
            else:
                peer.close()
        # The last in line has been served: the others were seen before it.
        probe = remote.connect(daemon.port)
        probe.send(remote.message("nowhere", recoverable=True))
        probe.wait_stored()
        after = daemon.open_files()

    assert after <= before + 10


def test_half_open_connections_are_bounded_and_a_real_peer_still_gets_in(hosts: Hosts):
    daemon = hosts.daemon(peers={"handshakes_max": 8})
    daemon.create("plain")
    idle = [hosts.remote().adopt(Connection.open(daemon.port)) for _ in range(40)]
    closed = 0
    for connection in idle:
        try:
            connection.frame(0.2)
        except Closed:
            closed += 1
        except TimeoutError:
            continue
    assert closed >= 32, f"{40 - closed} of 40 half-open connections are kept, 8 are allowed"

    for connection in idle:
        connection.close()
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"x", recoverable=True))
    peer.wait_stored()


def test_a_handshake_that_is_not_finished_in_time_is_ended(hosts: Hosts):
    daemon = hosts.daemon(peers={"handshake_timeout": "1s"})
    remote = hosts.remote()
    silent = remote.adopt(Connection.open(daemon.port))
    halfway = remote.adopt(Connection.open(daemon.port))
    halfway.send(wire.establish(client=remote.guid))

    assert silent.expect_closed(10) == []
    assert len(halfway.expect_closed(10)) == 1


def test_more_sessions_than_allowed_are_refused(hosts: Hosts):
    daemon = hosts.daemon(peers={"sessions_max": 4, "sessions_per_peer_max": 4})
    daemon.create("plain")
    kept: list[Peer] = []
    remotes = [hosts.remote() for _ in range(8)]
    refused = 0
    for remote in remotes:
        connection = remote.adopt(Connection.open(daemon.port))
        try:
            connection.send(wire.establish(client=remote.guid))
            answer = wire.parse(connection.frame())
        except Closed:
            refused += 1
            continue
        assert isinstance(answer, wire.Establish)
        if answer.refused:
            refused += 1
            continue
        connection.send(wire.parameters())
        wire.parse(connection.frame())
        kept.append(Peer(remote, connection, own_window=64, remote_window=64))

    assert (len(kept), refused) == (4, 4)
    for peer in kept:
        peer.send(peer.owner.message("plain", b"x", recoverable=True))
        peer.wait_stored()
