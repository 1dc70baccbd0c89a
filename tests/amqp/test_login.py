"""Logins at the door: mechanisms, passwords, certificates, and the rights of each user."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qmd.doors.amqp.door import ARRIVALS_MIN
from tests.amqp.door import AmqpDoor, door_of, program_missing
from tests.patience import END_S
from tests.process.harness import Hosts
from tests.process.remote_daemon import make_certificates, make_short_client
from tests.users import connect_to_port_as, needs_root

proton = pytest.importorskip("proton")
from proton import Message, SSLDomain  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached  # noqa: E402

pytestmark = pytest.mark.skipif(
    program_missing("openssl"), reason="openssl is needed to make certificates"
)
SASL = b"AMQP\x03\x01\x00\x00"
OTHER = 64_001  # a user without rights
SHORT_S = 6.0  # for which a certificate is valid that expires during a test


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Return a folder with an authority, a certificate of a server and one of a client."""
    make_certificates(tmp_path)
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=machine 7", "-keyout",
           "client.key", "-out", "client.csr"]  # fmt: skip
    sign = ["openssl", "x509", "-req", "-in", "client.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-days", "30", "-CAcreateserial", "-out", "client.crt"]  # fmt: skip
    for command in (new, sign):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def settings(folder: Path) -> dict[str, Any]:
    return {
        "certificate": str(folder / "remote.crt"),
        "key": str(folder / "remote.key"),
        "client_ca": str(folder / "ca.crt"),
    }


def add_user(door: AmqpDoor, name: str, password: str) -> None:
    door.daemon.cli("door", "user", "add", name, "--password-file", "-", input=password.encode())


def connect(door: AmqpDoor, folder: Path, **options: Any) -> Any:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(folder / "ca.crt"))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, str(folder / "ca.crt"))
    if options.pop("with_certificate", False):
        domain.set_credentials(str(folder / "client.crt"), str(folder / "client.key"), None)
    url = f"amqps://localhost:{door.tls_port}"
    return BlockingConnection(url, timeout=END_S, ssl_domain=domain, **options)


def test_a_user_has_its_own_rights_over_tls(hosts: Hosts, certificates: Path) -> None:
    with door_of(hosts, "orders", amqp=settings(certificates)) as door:
        for queue in ("mine", "hers"):
            door.daemon.create(queue)
        add_user(door, "ann", "se cret\u00e9")
        door.daemon.cli("acl", "grant", "sasl:ann", "full", "mine")
        assert [each["name"] for each in door.daemon.json("door", "user", "list")] == ["ann"]
        connection = connect(door, certificates, user="ann", password="se cret\u00e9",
                             allowed_mechs="PLAIN")  # fmt: skip
        connection.create_sender("mine").send(Message(body="x", durable=True))
        assert connection.create_receiver("mine").receive(timeout=END_S).body == "x"
        with pytest.raises(LinkDetached, match="qmd acl grant sasl:ann receive"):
            connection.create_receiver("hers")
        connection.close()
        for name, password in (("ann", "wrong"), ("bob", "se cret\u00e9"), ("ann", "")):
            with pytest.raises(Exception, match=r"(?i)auth"):
                connect(door, certificates, user=name, password=password, allowed_mechs="PLAIN")
        door.daemon.cli("door", "user", "remove", "ann")
        with pytest.raises(Exception, match=r"(?i)auth"):
            connect(door, certificates, user="ann", password="se cret\u00e9",
                    allowed_mechs="PLAIN")  # fmt: skip
        assert "se cret" not in door.tail()


def test_a_certificate_is_a_user(hosts: Hosts, certificates: Path) -> None:
    with door_of(hosts, "orders", amqp=settings(certificates)) as door:
        door.daemon.create("mine")
        door.daemon.cli("acl", "grant", "cert:machine 7", "full", "mine")
        connection = connect(door, certificates, with_certificate=True, allowed_mechs="EXTERNAL")
        connection.create_sender("mine").send(Message(body="x", durable=True))
        assert connection.create_receiver("mine").receive(timeout=END_S).body == "x"
        connection.close()


def test_a_certificate_that_has_expired_ends_its_connection(
    hosts: Hosts, certificates: Path
) -> None:
    """The other end of a session that TLS resumes shows no certificate again."""
    with door_of(hosts, "orders", amqp=settings(certificates)) as door:
        make_short_client(certificates, "short", SHORT_S)
        context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        context.load_cert_chain(certificates / "short.crt", certificates / "short.key")
        began = time.monotonic()

        def connected(session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", door.tls_port), END_S)
            return context.wrap_socket(plain, server_hostname="localhost", session=session)

        with connected() as first:
            first.sendall(SASL + external() + b"AMQP\x00\x01\x00\x00")
            answers = b""
            while not answers.endswith(b"AMQP\x00\x01\x00\x00"):
                answer = first.recv(65536)
                assert answer, "it has not logged in"
                answers += answer
            session = first.session

            while first.recv(65536):  # the reason of the end
                pass
            assert time.monotonic() > began + SHORT_S - 2

        with contextlib.suppress(ssl.SSLError), connected(session) as again:
            again.sendall(SASL)
            answers = b""
            with contextlib.suppress(OSError):
                while (answer := again.recv(65536)) and len(answers := answers + answer) <= len(
                    SASL
                ):
                    pass
            assert b"EXTERNAL" not in answers


def external() -> bytes:
    """Return the frame of a login by the certificate."""
    mechanism = b"\xa3\x08EXTERNAL"
    content = b"\x00\x53\x41\xc0" + bytes((len(mechanism) + 1, 1)) + mechanism
    return struct.pack(">IBBH", 8 + len(content), 2, 1, 0) + content


def test_silent_handshakes_of_tls_keep_nobody_out(hosts: Hosts, certificates: Path) -> None:
    amqp = settings(certificates) | {"login_timeout": "5m", "connections_max": 256}
    most = ARRIVALS_MIN // 2  # of one address
    with door_of(hosts, "orders", amqp=amqp) as door, contextlib.ExitStack() as silent:
        crowd = [
            silent.enter_context(socket.create_connection(("127.0.0.1", door.tls_port), END_S))
            for _ in range(most + 30)
        ]
        for each in crowd[:30]:  # the oldest ones have made room
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b""
        connection = connect(door, certificates, with_certificate=True, allowed_mechs="EXTERNAL")
        connection.close()


def test_passwords_are_not_offered_without_tls_nor_anonymous_when_it_is_off(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp={"anonymous": False}) as door:
        with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as client:
            client.sendall(SASL)
            received = client.recv(8, socket.MSG_WAITALL)
            assert received == SASL
            mechanisms = frame(client)
            for word in (b"PLAIN", b"SCRAM", b"ANONYMOUS", b"EXTERNAL"):
                assert word not in mechanisms
        with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as client:
            client.sendall(b"AMQP\x00\x01\x00\x00")
            assert client.recv(8, socket.MSG_WAITALL) == SASL
            assert client.recv(100) == b""


def frame(client: socket.socket) -> bytes:
    """Return the body of the next frame."""
    head = client.recv(8, socket.MSG_WAITALL)
    (size,) = struct.unpack(">I", head[:4])
    return client.recv(size - 8, socket.MSG_WAITALL)


def sasl(code: int, *fields: bytes) -> bytes:
    """Return a frame of the login."""
    body = b"\x00\x53" + bytes((code,)) + b"\xd0"
    inner = struct.pack(">I", len(fields)) + b"".join(fields)
    body += struct.pack(">I", len(inner)) + inner
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


def binary(data: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(data)) + data


def scram(client: socket.socket, name: str, password: str) -> bytes:
    """Log in by SCRAM-SHA-256 as RFC 5802 says; return the outcome."""
    return begun_scram(client, name)(password)


def begun_scram(client: socket.socket, name: str) -> Callable[[str], bytes]:
    """Begin a login; return the function that ends it, with a password, and returns the outcome."""
    client.sendall(SASL)
    assert client.recv(8, socket.MSG_WAITALL) == SASL
    assert b"SCRAM-SHA-256" in frame(client)
    bare = f"n={name},r=clientnonce"
    client.sendall(sasl(0x41, b"\xa3\x0dSCRAM-SHA-256", binary(f"n,,{bare}".encode())))
    challenge = frame(client)
    text = challenge[challenge.index(b"r=") :].decode()
    fields = dict(part.split("=", 1) for part in text.split(","))

    def end(password: str) -> bytes:
        salted = hashlib.pbkdf2_hmac(
            "sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        signed = f"{bare},{text},{without}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        client.sendall(sasl(0x43, binary(f"{without},p=".encode() + proof)))
        outcome = frame(client)
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        if b"v=" in outcome:
            assert base64.b64encode(server) in outcome
        return outcome

    return end


def test_scram_proves_the_password_to_both_ends(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp={"passwords_on_loopback": True}) as door:
        add_user(door, "ann", "secret")
        outcomes = {}
        for name, password in (("ann", "secret"), ("ann", "wrong"), ("bob", "secret")):
            with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as client:
                outcomes[name, password] = scram(client, name, password)
        assert b"v=" in outcomes["ann", "secret"]
        assert b"v=" not in outcomes["ann", "wrong"]
        assert outcomes["ann", "wrong"] == outcomes["bob", "secret"]


def test_without_tls_a_client_of_the_tls_port_gets_nothing(
    hosts: Hosts, certificates: Path
) -> None:
    with door_of(hosts, "orders", amqp=settings(certificates)) as door:
        with socket.create_connection(("127.0.0.1", door.tls_port), timeout=END_S) as client:
            client.sendall(SASL)
            assert not client.recv(100).startswith(b"AMQP")
        context = ssl.create_default_context(cafile=certificates / "ca.crt")
        with (
            socket.create_connection(("127.0.0.1", door.tls_port), timeout=END_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(SASL)
            assert client.recv(8) == SASL


def test_a_user_with_many_wrong_passwords_must_wait(hosts: Hosts) -> None:
    settings = {"passwords_on_loopback": True, "login_failures_max": 3}
    with door_of(hosts, "orders", amqp=settings) as door:
        add_user(door, "ann", "secret")
        add_user(door, "ben", "secret")
        assert [plain(door, "ann", f"wrong {each}") for each in range(3)] == [1, 1, 1]
        assert plain(door, "ann", "secret") == 4  # try again later
        assert plain(door, "ben", "secret") == 0
        assert plain(door, "ben", "wrong") == 1
        assert "too many wrong passwords of ann" in door.tail()


@needs_root
def test_wrong_passwords_of_another_local_user_keep_no_user_out(hosts: Hosts) -> None:
    """All users of this computer have the same address."""
    settings = {"passwords_on_loopback": True, "login_failures_max": 3}
    with door_of(hosts, "orders", amqp=settings) as door:
        add_user(door, "ann", "secret")
        outcomes = [
            plain(door, "ann", "wrong", lambda: connect_to_port_as(OTHER, door.port))
            for _ in range(4)
        ]

        assert outcomes == [1, 1, 1, 4]
        assert plain(door, "ann", "secret") == 0


def test_logins_side_by_side_gain_no_attempts(hosts: Hosts) -> None:
    """Also the right password gets the answer of all that come after too many wrong ones."""
    settings = {"passwords_on_loopback": True, "login_failures_max": 3}
    with door_of(hosts, "orders", amqp=settings) as door, contextlib.ExitStack() as clients:
        add_user(door, "ann", "secret")
        ends = [
            begun_scram(
                clients.enter_context(
                    socket.create_connection(("127.0.0.1", door.port), timeout=END_S)
                ),
                "ann",
            )
            for _ in range(5)
        ]
        outcomes = [end(f"wrong {number}") for number, end in enumerate(ends[:4])]
        outcomes.append(ends[4]("secret"))

    assert list(map(outcome_code, outcomes)) == [1, 1, 1, 4, 4]


def plain(
    door: AmqpDoor,
    name: str,
    password: str,
    connected: Callable[[], socket.socket] | None = None,
) -> int:
    """Log in by PLAIN, over a connection that `connected` opens; return the code of the outcome."""
    response = f"\0{name}\0{password}".encode()
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(0x41), [proton.symbol("PLAIN"), response]))
    frame = bytes(data.encode())
    place = "127.0.0.1", door.port
    with socket.create_connection(place, END_S) if connected is None else connected() as client:
        client.sendall(SASL + struct.pack(">IBBH", 8 + len(frame), 2, 1, 0) + frame)
        got = b""
        while (at := got.find(b"\x00\x53\x44")) < 0 or len(got) < at + 8:
            data_read = client.recv(4096)
            assert data_read, got
            got += data_read
    return outcome_code(got)


def outcome_code(got: bytes) -> int:
    """Return the code of the outcome in bytes of the door."""
    outcome = proton.Data()
    outcome.decode(got[got.index(b"\x00\x53\x44") :])
    outcome.next()
    return int(outcome.get_object().value[0])
