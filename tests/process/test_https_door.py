"""The HTTP door with real certificates: its own, and those of clients with their rights."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpClient, HttpDoor, messages, open_door
from tests.process.remote_daemon import make_certificates, make_short_client

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)

SHORT_S = 3.0  # of a certificate that expires during a test


def make_client(folder: Path, name: str, subject: str) -> None:
    """Make a certificate of a client, signed by the authority of a folder."""
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    new = ["openssl", "req", *kind, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out",
           f"{name}.csr"]  # fmt: skip
    sign = ["openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-days", "30", "-CAcreateserial", "-out", f"{name}.crt"]  # fmt: skip
    for command in (new, sign):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, a certificate of the door, and those of clients."""
    folder, other = tmp_path_factory.mktemp("https"), tmp_path_factory.mktemp("other")
    for each in (folder, other):
        make_certificates(each)
    make_client(folder, "machine", "machine 7")
    make_client(folder, "second", "second")
    make_client(other, "foreign", "machine 7")
    for name in ("foreign.crt", "foreign.key"):
        shutil.copy(other / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def door(folder: Path) -> Iterator[HttpDoor]:
    yield from open_door(
        folder / "door",
        "orders",
        "bills",
        certificate=str(folder / "remote.crt"),
        key=str(folder / "remote.key"),
        client_ca=str(folder / "ca.crt"),
        head_timeout="2s",
    )


@contextlib.contextmanager
def client_of(
    door: HttpDoor, folder: Path, name: str = "", token: str | None = None
) -> Iterator[HttpClient]:
    """Yield a client with a certificate, with a token, or without any credentials."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    client = HttpClient(door.port, token, context)
    try:
        yield client
    finally:
        client.close()


def test_a_certificate_of_a_client_gives_it_its_own_rights(door: HttpDoor, folder: Path) -> None:
    with client_of(door, folder, "machine") as machine, client_of(door, folder, "second") as other:
        for client in (machine, other):
            assert client.problem("GET", messages("orders"))[0] == 403
        door.daemon.cli("acl", "grant", "cert:machine 7", "send,receive,peek", "orders")
        machine.send("orders", "over TLS")

        (found,) = machine.receive("orders")
        assert found["body"] == "over TLS"
        assert other.problem("GET", messages("orders")) == (403, "right_missing")
        assert machine.problem("GET", "/v1/pushes")[0] == 403
        assert machine.problem("GET", "/v1/events")[0] == 403


def test_a_fingerprint_names_one_certificate(door: HttpDoor, folder: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert((folder / "second.crt").read_text())
    principal = f"cert:sha256:{hashlib.sha256(der).hexdigest()}"
    with client_of(door, folder, "second") as client:
        assert client.problem("GET", "/v1/events")[0] == 403
        door.daemon.cli("acl", "grant", principal, "read-events", "host")
        client.json("GET", "/v1/events")


def test_a_lock_belongs_to_its_certificate(door: HttpDoor, folder: Path) -> None:
    for name in ("machine 7", "second"):
        door.daemon.cli("acl", "grant", f"cert:{name}", "send,receive,peek", "orders")
    with client_of(door, folder, "machine") as machine, client_of(door, folder, "second") as other:
        machine.send("orders", "1")
        (one,) = machine.json("POST", "/v1/queues/orders/locks", {"lock_s": 600})["messages"]
        path = f"/v1/locks/{one['lock_id']}"

        assert other.problem("DELETE", path) == (410, "http_no_such_lock")
        machine.json("DELETE", path, status=204)


def test_a_token_holds_over_tls_and_before_a_certificate(door: HttpDoor, folder: Path) -> None:
    with client_of(door, folder, "machine", door.token(name="admin")) as client:
        client.json("GET", "/v1/pushes")
    with client_of(door, folder, "machine", "wrong") as client:
        assert client.problem("GET", "/v1/queues") == (401, "token_refused")


def test_a_page_in_a_browser_cannot_use_the_certificate_of_its_visitor(
    door: HttpDoor, folder: Path
) -> None:
    """A browser shows it for the requests of every page; a form needs no permission to send."""
    door.daemon.cli("acl", "grant", "cert:machine 7", "send,receive,peek", "bills")
    page = {"origin": "https://evil.example", "media": "text/plain"}
    with client_of(door, folder, "machine") as client:
        client.send("bills", "of the visitor")

        for path in (messages("bills"), "/v1/queues/bills/receive"):
            assert client.problem("POST", path, b"", **page) == (403, "http_from_a_page")

        (found,) = client.receive("bills")
        assert found["body"] == "of the visitor"


class Short:
    """A certificate of a client that is valid for some seconds, and connections with it."""

    def __init__(self, door: HttpDoor, folder: Path) -> None:
        self._port = door.port
        self._until = time.monotonic() + SHORT_S
        make_short_client(folder, "short", SHORT_S)
        self._context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._context.load_cert_chain(folder / "short.crt", folder / "short.key")

    def connect(self, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        """Open a connection, which may resume the session of an earlier one."""
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=END_S)
        return self._context.wrap_socket(plain, server_hostname="localhost", session=session)

    def expire(self) -> None:
        """Wait until it has expired."""
        time.sleep(max(0.0, self._until + 0.5 - time.monotonic()))


def status(connection: ssl.SSLSocket) -> int:
    """Return the status of the answer to a request that needs a certificate; 0: there is none."""
    try:
        connection.sendall(b"GET /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = connection.recv(65536)
    except OSError:
        return 0
    return int(answer.split()[1]) if answer else 0


def ends(connection: ssl.SSLSocket) -> bool:
    """Return whether a connection ends within some seconds, whatever it is sent before."""
    deadline = time.monotonic() + END_S
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(65536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def test_a_certificate_that_has_expired_gives_no_rights_to_an_open_connection(
    door: HttpDoor, folder: Path
) -> None:
    door.daemon.cli("acl", "grant", "cert:short", "peek", "orders")
    door.daemon.cli("acl", "grant", "cert:short", "read-events", "host")
    short = Short(door, folder)
    with short.connect() as connection, short.connect() as stream:
        assert status(connection) == 200
        stream.sendall(
            b"GET /v1/events?last=0 HTTP/1.1\r\nhost: localhost\r\n"
            b"accept: text/event-stream\r\n\r\n"
        )
        assert stream.recv(65536).startswith(b"HTTP/1.1 200")

        short.expire()

        assert status(connection) in (0, 401)
        assert ends(stream), "it would get the events of all that is done from now on"


def test_a_certificate_that_has_expired_is_not_resumed(door: HttpDoor, folder: Path) -> None:
    door.daemon.cli("acl", "grant", "cert:short", "peek", "orders")
    short = Short(door, folder)
    with short.connect() as connection:
        assert status(connection) == 200
        session = connection.session

    short.expire()

    try:
        with short.connect(session) as again:
            assert status(again) in (0, 401)
    except ssl.SSLError:
        pass  # a whole handshake, in which the certificate is refused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_of_another_authority_is_refused(
    door: HttpDoor, folder: Path, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.maximum_version = version
    context.load_cert_chain(folder / "foreign.crt", folder / "foreign.key")
    client = HttpClient(door.port, None, context)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        client.ask("GET", "/healthz")
    client.close()


@pytest.mark.parametrize("data", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03"])
def test_bytes_that_are_no_handshake_end_their_connection_only(
    door: HttpDoor, folder: Path, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as connection:
        connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while found := connection.recv(65536):
                assert b"HTTP/1.1 200" not in found
    with client_of(door, folder) as client:
        client.json("GET", "/healthz")
