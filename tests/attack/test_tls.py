"""Attacks on TLS between queue managers: no, false and copied certificates; silence; downgrades."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.process import wire
from tests.process.connection import Closed, Connection
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.tls_hosts import (
    Authority,
    direct,
    guid_of,
    own_certificate,
    problem,
    status,
    tls_daemon,
    tls_port,
    wait_log,
)
from tests.process.wire import Establish

_connections: list[Connection] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while _connections:
        _connections.pop().close()


def wire_guid(daemon: Daemon) -> bytes:
    return uuid.UUID(guid_of(daemon)).bytes_le


def dial(
    port: int,
    made: tuple[bytes, bytes] | None,
    folder: Path,
    *,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Connection:
    """Connect with a certificate and its key, or without; the daemon's is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if made is not None:
        file = folder / f"{uuid.uuid4()}.pem"
        file.write_bytes(made[0] + made[1])
        context.load_cert_chain(file)
    plain = socket.create_connection(("127.0.0.1", port), 30)
    with contextlib.ExitStack() as stack:
        stack.callback(plain.close)
        connection = Connection(context.wrap_socket(plain))
        stack.pop_all()
    _connections.append(connection)
    return connection


def answer(connection: Connection, guid: bytes) -> Establish | None:
    """State a GUID; return the answer, or None if the daemon closes the connection."""
    try:
        connection.send(wire.establish(client=guid))
        packet = wire.parse(connection.frame())
    except (Closed, ssl.SSLError, OSError):
        return None
    assert isinstance(packet, Establish)
    return packet


def pair(hosts: Hosts, *, port: int = 0) -> tuple[Daemon, Daemon]:
    """Return a sender that requires TLS of a receiver (or of `port`), and the receiver."""
    receiver = tls_daemon(hosts)
    receiver.create("q")
    policy = [f"127.0.0.1 required {port or tls_port(receiver)}"]
    return tls_daemon(hosts, tls={"policy": policy}), receiver


def test_a_peer_without_a_certificate_gets_no_session(hosts: Hosts, tmp_path: Path):
    daemon = tls_daemon(hosts)

    assert answer(dial(tls_port(daemon), None, tmp_path), os.urandom(16)) is None

    wait_log(daemon, "tls_handshake_failed")
    assert status(daemon)["accepted"] == 0


def test_older_versions_of_tls_are_refused(hosts: Hosts, tmp_path: Path):
    daemon = tls_daemon(hosts)

    with pytest.raises((ssl.SSLError, OSError)):
        dial(
            tls_port(daemon),
            own_certificate(str(uuid.uuid4())),
            tmp_path,
            version=ssl.TLSVersion.TLSv1_2,
        )


def test_a_certificate_is_good_for_its_own_guid_only(hosts: Hosts, tmp_path: Path):
    daemon = tls_daemon(hosts)
    own = uuid.uuid4()
    made = own_certificate(str(own))

    genuine = answer(dial(tls_port(daemon), made, tmp_path), own.bytes_le)
    false = answer(dial(tls_port(daemon), made, tmp_path), uuid.uuid4().bytes_le)

    assert genuine is not None
    assert not genuine.refused
    assert false is None or false.refused
    wait_log(daemon, "its certificate names the queue manager")
    assert status(daemon)["refused"] == 1


def test_a_copied_certificate_without_its_key_is_useless(hosts: Hosts, tmp_path: Path):
    sender, receiver = pair(hosts)
    receiver.cli("tls", "init")
    certificate = (receiver.folder / "tls.crt").read_bytes()
    _, another_key = own_certificate(guid_of(receiver))

    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
        dial(tls_port(sender), (certificate, another_key), tmp_path)


def test_a_copied_endorsement_is_refused(hosts: Hosts, tmp_path: Path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from qmd.tls import certificate, making

    daemon = tls_daemon(hosts)
    daemon.cli("tls", "init")
    genuine = x509.load_pem_x509_certificate((daemon.folder / "tls.crt").read_bytes())
    endorsement = genuine.extensions.get_extension_for_oid(certificate.ENDORSEMENT)
    key = making.new_key()
    false = (
        x509.CertificateBuilder()
        .subject_name(genuine.subject)
        .issuer_name(genuine.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(genuine.not_valid_before_utc)
        .not_valid_after(genuine.not_valid_after_utc)
        .add_extension(
            genuine.extensions.get_extension_for_class(x509.SubjectAlternativeName).value, False
        )
        .add_extension(endorsement.value, critical=False)
        .sign(key, None)
    )
    made = (false.public_bytes(Encoding.PEM), making.key_pem(key))

    assert answer(dial(tls_port(daemon), made, tmp_path), wire_guid(daemon)) is None

    wait_log(daemon, "the endorsement of its key is not valid")


def test_the_guid_of_a_bound_peer_is_refused_with_another_key_and_without_tls(
    hosts: Hosts, tmp_path: Path
):
    receiver, sender = tls_daemon(hosts), tls_daemon(hosts)  # by default TLS is preferred
    receiver.create("q")
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    victim = wire_guid(receiver)

    made = own_certificate(guid_of(receiver))
    over_tls = answer(dial(tls_port(sender), made, tmp_path), victim)
    plain = Connection.open(sender.port)
    _connections.append(plain)
    without = answer(plain, victim)

    assert over_tls is None
    wait_log(sender, "another key than the queue manager")
    wait_log(sender, "has been met over TLS, and is not believed without it")
    assert without is not None
    assert without.refused


def test_a_false_certificate_that_comes_first_does_not_lock_the_genuine_peer_out(
    hosts: Hosts, tmp_path: Path
):
    sender, receiver = pair(hosts)
    victim = wire_guid(sender)
    made = own_certificate(guid_of(sender))
    attacker = dial(tls_port(receiver), made, tmp_path)
    first = answer(attacker, victim)
    assert first is not None
    attacker.send(wire.parameters(recoverable_ack_timeout_ms=500, ack_timeout_ms=500, window=64))
    attacker.frame()  # the session is open
    assert status(receiver)["accepted"] == 1

    sender.send(direct(receiver.port, "q"), b"genuine")

    receiver.wait_for("q", 1)


def test_no_downgrade_after_a_session_over_tls(hosts: Hosts):
    """The path lets the plain port through and cuts TLS; a false plain host is no way out."""
    receiver = tls_daemon(hosts)
    receiver.create("q")
    proxy = hosts.proxy(tls_port(receiver))
    sender = tls_daemon(hosts, tls={"policy": [f"127.0.0.1 preferred {proxy.port}"]})
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    assert status(receiver)["accepted"] == 1

    proxy.retarget(free_port())
    sender.send(direct(receiver.port, "q"), b"secret")

    problem(sender, "TLS at port")
    sender.restart()
    problem(sender, "TLS at port")
    assert receiver.count("q") == 1
    proxy.retarget(tls_port(receiver))
    receiver.wait_for("q", 2)


def test_a_false_host_at_a_known_address_gets_nothing(hosts: Hosts):
    sender, receiver = pair(hosts)
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    receiver.kill()
    false = hosts.remote(uuid.UUID(int=1).bytes_le).listen(receiver.port)

    sender.send(direct(receiver.port, "q"), b"secret")

    problem(sender, "no program listens there")
    with pytest.raises(TimeoutError):
        false.accept_raw(0.5)


def test_silent_connections_keep_no_genuine_peer_out(hosts: Hosts):
    receiver = tls_daemon(hosts, tls={"handshakes_max": 8, "handshake_timeout": "10m"})
    receiver.create("q")
    sender = tls_daemon(hosts, tls={"policy": [f"127.0.0.1 required {tls_port(receiver)}"]})
    silent = [
        socket.create_connection(("127.0.0.1", tls_port(receiver)), 30, ("127.0.0.2", 0))
        for _ in range(64)
    ]

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    assert sum(_is_open(each) for each in silent) <= 8
    for each in silent:
        each.close()


def test_many_handshakes_of_one_address_end_none_of_another(hosts: Hosts):
    receiver = tls_daemon(hosts, tls={"handshakes_max": 8, "handshake_timeout": "10m"})
    port = tls_port(receiver)
    other = socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.3", 0))
    flood = [socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0)) for _ in range(64)]
    wait_log(receiver, "too_many_handshakes")

    assert sum(_is_open(each) for each in flood) <= 8
    assert _is_open(other)
    for each in (other, *flood):
        each.close()


def test_a_handshake_has_a_time_limit(hosts: Hosts):
    daemon = tls_daemon(hosts, tls={"handshake_timeout": "300ms"})
    with socket.create_connection(("127.0.0.1", tls_port(daemon)), 30) as silent:
        silent.sendall(b"\x16\x03\x01")

        assert silent.recv(1) == b""

    wait_log(daemon, "took more than 0.3 s")


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(os.urandom(4096), id="noise"),
        pytest.param(wire.establish(client=bytes(range(16))), id="no TLS"),
        pytest.param(struct.pack(">BHH", 22, 0x0301, 0x4000) + bytes(0x4000), id="empty record"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
    ],
)
def test_bytes_that_are_no_tls_end_their_connection_only(hosts: Hosts, junk: bytes):
    sender, receiver = pair(hosts)
    with socket.create_connection(("127.0.0.1", tls_port(receiver)), 30) as connection:
        connection.sendall(junk)
        while connection.recv(4096):
            pass

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)


def test_a_handshake_that_is_too_long_is_not_kept(hosts: Hosts):
    """It announces fewer bytes than OpenSSL accepts, and never ends."""
    receiver = tls_daemon(hosts)
    hello = b"\x01" + (120_000).to_bytes(3, "big") + b"\x03\x03" + bytes(80_000)
    parts = [hello[at : at + 16_000] for at in range(0, len(hello), 16_000)]

    with socket.create_connection(("127.0.0.1", tls_port(receiver)), 30) as connection:
        with contextlib.suppress(ConnectionError):
            for each in parts:
                connection.sendall(struct.pack(">BHH", 22, 0x0301, len(each)) + each)
        wait_log(receiver, "its handshake is too long")


def test_false_and_expired_certificates_are_refused_where_an_authority_counts(
    hosts: Hosts, tmp_path: Path
):
    authority = Authority(hosts.folder)
    daemon = tls_daemon(hosts, tls={"authorities": str(authority.file)})
    guid = str(uuid.uuid4())
    middle = Authority(tmp_path, "test authority")  # the same name, another key
    false = middle.issue(guid)
    expired = authority.issue(guid, starts=timedelta(days=-20))

    for made in (false, expired, own_certificate(guid)):
        connection = dial(tls_port(daemon), made, tmp_path)
        assert answer(connection, uuid.UUID(guid).bytes_le) is None
    genuine = dial(tls_port(daemon), authority.issue(guid), tmp_path)
    accepted = answer(genuine, uuid.UUID(guid).bytes_le)

    assert accepted is not None
    assert status(daemon)["refused"] == 3


def _is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def _odd(kind: str) -> tuple[bytes, bytes]:
    """Return a self-signed certificate that OpenSSL accepts and that no queue manager has."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    from qmd.tls import certificate

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    uris = {
        "no GUID": [],
        "bad GUID": ["urn:uuid:not-a-guid"],
        "two GUIDs": [f"urn:uuid:{uuid.uuid4()}", f"urn:uuid:{uuid.uuid4()}"],
    }.get(kind, [f"urn:uuid:{uuid.uuid4()}"])
    if uris:
        names = x509.SubjectAlternativeName(map(x509.UniformResourceIdentifier, uris))
        builder = builder.add_extension(names, critical=False)
    if kind == "names that are no names":
        bad = x509.UnrecognizedExtension(x509.OID_SUBJECT_ALTERNATIVE_NAME, b"\x30\x03\x87\x01\x00")
        builder = builder._extensions and x509.CertificateBuilder(
            name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1), []
        ).add_extension(bad, critical=False)
    if kind == "short endorsement":
        bad = x509.UnrecognizedExtension(certificate.ENDORSEMENT, b"\x04\x01\x00")
        builder = builder.add_extension(bad, critical=False)
    if kind == "endorsement with no key":
        bad = x509.UnrecognizedExtension(certificate.ENDORSEMENT, b"\x04\x68" + bytes(range(104)))
        builder = builder.add_extension(bad, critical=False)
    made = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM), private


@pytest.mark.parametrize(
    "kind",
    [
        "no GUID",
        "bad GUID",
        "two GUIDs",
        "names that are no names",
        "short endorsement",
        "endorsement with no key",
    ],
)
def test_an_odd_certificate_is_refused_and_ends_nothing_else(
    hosts: Hosts, tmp_path: Path, kind: str
):
    sender, receiver = pair(hosts)

    assert answer(dial(tls_port(receiver), _odd(kind), tmp_path), os.urandom(16)) is None

    wait_log(receiver, "its certificate is wrong")
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)


def test_an_open_session_without_tls_ends_when_its_guid_is_bound_to_tls(hosts: Hosts):
    sender, receiver = pair(hosts)
    sender.configure({"tls": {"policy": [f"127.0.0.1 preferred {tls_port(receiver)}"]}})
    sender.restart()
    false = hosts.remote(wire_guid(receiver)).connect(sender.port, source="127.0.0.2")

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    false.connection.expect_closed()
    assert status(sender)["accepted"] == 1


def test_a_handshake_without_tls_that_waits_is_refused_when_its_guid_is_bound_to_tls(hosts: Hosts):
    """It was permitted when it began."""
    sender, receiver = pair(hosts)
    sender.configure({"tls": {"policy": [f"127.0.0.1 preferred {tls_port(receiver)}"]}})
    sender.restart()
    with Connection.open(sender.port, source="127.0.0.2") as false:
        false.send(wire.establish(client=wire_guid(receiver)))
        assert isinstance(wire.parse(false.frame()), Establish)
        sender.send(direct(receiver.port, "q"), b"1")
        receiver.wait_for("q", 1)

        false.send(wire.parameters())

        false.expect_closed()
