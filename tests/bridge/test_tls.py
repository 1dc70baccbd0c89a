"""Bridges over TLS to real servers: certificates of both ends, logins, and their faults."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import NatsServer, RabbitServer, Tls
from tests.directory.certificates import Authority
from tests.process.harness import Daemon, body

MESSAGES = [b"%d" % number for number in range(1, 31)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server_files(authority: Authority, tmp_path: Path) -> Tls:
    (tmp_path / "server").mkdir()
    files = authority.sign(tmp_path / "server", "broker", hosts=("127.0.0.1", "localhost"))
    return Tls(authority.file, *files)


@pytest.fixture
def client_files(authority: Authority, tmp_path: Path) -> dict[str, str]:
    """Return the keys of a definition for a client with the name `bridge`."""
    (tmp_path / "client").mkdir()
    certificate, key = authority.sign(tmp_path / "client", "bridge", hosts=("bridge",))
    return {"ca_file": str(authority.file), "certificate": str(certificate), "key": str(key)}


def round_trip(daemon: Daemon, made: Bridges) -> None:
    """Send messages out by one bridge; another one brings them back."""
    daemon.create("outbox", "inbox", transactional=True)
    daemon.send_all("outbox", MESSAGES, "--transactional")
    rows = made.cli("check", check=False)
    assert [row["ok"] for row in rows] == [True, True], [row["text"] for row in rows]
    made.start()
    assert [body(each) for each in daemon.wait_for("inbox", len(MESSAGES))] == MESSAGES
    assert daemon.count("outbox") == 0


# NATS.


@pytest.fixture
def nats_tls(tmp_path: Path, server_files: Tls) -> Iterator[NatsServer]:
    pytest.importorskip("nats")
    server = NatsServer(tmp_path / "nats", server_files)
    (server.folder / "nats.conf").write_text('authorization { user: "qmd", password: "secret" }\n')
    try:
        server.start()
        yield server
    finally:
        server.kill()


def nats_definitions(server: NatsServer, **keys: Any) -> dict[str, dict[str, Any]]:
    common = {"kind": "nats", "url": server.url, "stream": "shop", "subject": "shop.all", **keys}
    return {
        "out": {**common, "direction": "out", "queue": "outbox"},
        "in": {**common, "direction": "in", "queue": "inbox"},
    }


def create_stream(**options: Any) -> None:
    import nats

    async def run() -> None:
        connection = await nats.connect(**options)
        await connection.jetstream().add_stream(name="shop", subjects=["shop.*"])
        await connection.close()

    asyncio.run(run())


def nats_context(client_files: dict[str, str]) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=client_files["ca_file"])
    context.load_cert_chain(client_files["certificate"], client_files["key"])
    return context


def test_nats_with_certificates_of_both_ends_and_a_password(
    daemon: Daemon,
    nats_tls: NatsServer,
    client_files: dict[str, str],
    bridges: Callable[..., Bridges],
):
    create_stream(
        servers=[nats_tls.url], user="qmd", password="secret", tls=nats_context(client_files)
    )
    password = nats_tls.folder / "password"
    password.write_text("secret\n")
    keys = {"user": "qmd", "password_file": str(password), **client_files}

    round_trip(daemon, bridges(**nats_definitions(nats_tls, **keys)))


@pytest.mark.parametrize("fault", ["authority", "no certificate", "password"])
def test_faults_of_a_login_at_nats_are_named(
    daemon: Daemon,
    nats_tls: NatsServer,
    client_files: dict[str, str],
    bridges: Callable[..., Bridges],
    fault: str,
):
    password = nats_tls.folder / "password"
    password.write_text("wrong\n")
    keys = {"user": "qmd", "password_file": str(password), **client_files}
    if fault == "authority":
        keys["ca_file"] = str(Authority(nats_tls.folder, "other").file)
    elif fault == "no certificate":
        del keys["certificate"], keys["key"]
    daemon.create("outbox", "inbox", transactional=True)
    made = bridges(out=nats_definitions(nats_tls, **keys)["out"])

    (row,) = made.cli("check", check=False)
    assert not row["ok"]
    reasons = {"authority": "certificate verify failed", "password": "Authorization Violation"}
    assert reasons.get(fault, "") in row["text"]


@pytest.mark.parametrize("keys", [{"url": "tls"}, {"ca_file": True}])
def test_a_password_is_not_sent_to_a_server_without_tls(
    daemon: Daemon, bridges: Callable[..., Bridges], authority: Authority, keys: dict[str, Any]
):
    """Whatever is between both ends can remove the announcement of TLS from the first line."""
    pytest.importorskip("nats")
    daemon.create("outbox", transactional=True)
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                info = {"server_id": "x", "version": "2.9.0", "max_payload": 1000, "headers": True}
                connection.sendall(
                    b"INFO %s\r\n" % json.dumps(info | {"auth_required": True}).encode()
                )
                while data := connection.recv(4096):
                    received.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        password = authority.file.with_name("password")
        password.write_text("secret\n")
        made = bridges(
            out={
                **{"kind": "nats", "direction": "out", "queue": "outbox", "stream": "shop"},
                **{"subject": "shop.all", "user": "qmd", "password_file": str(password)},
                "url": f"{keys.get('url', 'nats')}://127.0.0.1:{port}",
                **({"ca_file": str(authority.file)} if "ca_file" in keys else {}),
            }
        )
        (row,) = made.cli("check", check=False)
        thread.join(30)

    assert not row["ok"]
    assert "offers no TLS" in row["text"]
    assert b"".join(received) == b""


# Credentials: tokens of an operator, an account and a user, signed one by the other.

_KINDS = {"O": 14, "A": 0, "U": 20}


class Nkey:
    """A key of NATS, with its texts."""

    def __init__(self, kind: str) -> None:
        self.kind = _KINDS[kind]
        self._key = Ed25519PrivateKey.generate()
        self.public = self._text(
            bytes([self.kind << 3]) + self._key.public_key().public_bytes_raw()
        )
        head = bytes([18 << 3 | self.kind >> 2, (self.kind & 3) << 6])
        self.seed = self._text(head + self._key.private_bytes_raw())

    @staticmethod
    def _text(raw: bytes) -> str:
        whole = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
        return base64.b32encode(whole).decode().rstrip("=")

    def token(self, subject: Nkey, name: str, claims: dict[str, Any]) -> str:
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        content = {
            **{"jti": name, "iat": int(time.time()), "iss": self.public, "sub": subject.public},
            **{"name": name, "nats": {**claims, "version": 2}},
        }
        text = ".".join(_base64(json.dumps(each).encode()) for each in (head, content))
        return f"{text}.{_base64(self._key.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    """Write the configuration of a server with an operator, and the credentials of a user."""
    operator, system, account, user = Nkey("O"), Nkey("A"), Nkey("A"), Nkey("U")
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1}
    tokens = {
        system.public: operator.token(system, "SYS", {"type": "account", "limits": limits}),
        account.public: operator.token(
            account, "SHOP", {"type": "account", "limits": {**limits, **storage}}
        ),
    }
    preload = "\n".join(f"  {name}: {token}" for name, token in tokens.items())
    own = operator.token(operator, "OP", {"type": "operator", "system_account": system.public})
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "nats.conf").write_text(
        f"operator: {own}\nsystem_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{\n{preload}\n}}\n"
    )
    token = account.token(user, "bridge", {"type": "user", "subs": -1, "data": -1, "payload": -1})
    file = folder / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return str(file)


def test_nats_with_credentials_of_an_account(
    daemon: Daemon, credentials: str, tmp_path: Path, bridges: Callable[..., Bridges]
):
    pytest.importorskip("nats")
    from qmd.bridge.kinds.nats_credentials import read_credentials

    server = NatsServer(tmp_path / "nats")
    (server.folder / "nats.conf").write_text(Path(credentials).with_name("nats.conf").read_text())
    found = read_credentials(Path(credentials))
    try:
        server.start()
        create_stream(
            servers=[server.url], user_jwt_cb=lambda: found.token, signature_cb=found.signed
        )
        round_trip(daemon, bridges(**nats_definitions(server, credentials_file=credentials)))

        # A key that is not that of the token is refused.
        text = Path(credentials).read_text()
        old = text.split("SEED-----\n")[1].split("\n")[0]
        Path(credentials).write_text(text.replace(old, Nkey("U").seed))
        (row, _) = bridges(**nats_definitions(server, credentials_file=credentials)).cli(
            "check", check=False
        )
        assert not row["ok"]
        assert "Authorization Violation" in row["text"]
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "has no parts"),
        ("-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
         "-----BEGIN USER NKEY SEED-----\nSUA1\n------END USER NKEY SEED------\n", "base32"),
        ("-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
         "-----BEGIN USER NKEY SEED-----\nSUAA\n------END USER NKEY SEED------\n", "complete"),
        ("-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
         f"-----BEGIN USER NKEY SEED-----\n{Nkey('A').seed}\n------END USER NKEY SEED------\n",
         "not that of a user"),
    ],
)  # fmt: skip
def test_files_without_credentials_are_named(tmp_path: Path, content: str, reason: str):
    from qmd.bridge.kinds.nats_credentials import BadCredentials, read_credentials

    file = tmp_path / "user.creds"
    file.write_text(content)

    with pytest.raises(BadCredentials, match=reason):
        read_credentials(file)


# RabbitMQ.


@pytest.fixture
def rabbit_tls(tmp_path: Path, server_files: Tls) -> Iterator[RabbitServer]:
    pytest.importorskip("proton")
    server = RabbitServer(tmp_path / "rabbit", server_files)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def amqp_definitions(server: RabbitServer, **keys: Any) -> dict[str, dict[str, Any]]:
    # Proton compares names of certificates only, not addresses.
    url = server.url.replace("127.0.0.1", "localhost")
    common = {"kind": "amqp", "url": url, "address": "/amq/queue/shop-out", **keys}
    return {
        "out": {**common, "direction": "out", "queue": "outbox"},
        "in": {**common, "direction": "in", "queue": "inbox"},
    }


def test_rabbitmq_with_certificates_of_both_ends(
    daemon: Daemon,
    rabbit_tls: RabbitServer,
    client_files: dict[str, str],
    bridges: Callable[..., Bridges],
):
    """The certificate is the login (EXTERNAL), or a password is one within TLS (PLAIN)."""
    round_trip(daemon, bridges(**amqp_definitions(rabbit_tls, **client_files)))

    password = rabbit_tls.folder / "password"
    password.write_text("guest\n")
    keys = {"user": "guest", "password_file": str(password), **client_files}
    rows = bridges(**amqp_definitions(rabbit_tls, **keys)).cli("check", check=False)
    assert [row["ok"] for row in rows] == [True, True], [row["text"] for row in rows]


def test_faults_of_a_login_at_rabbitmq_are_named(
    daemon: Daemon,
    rabbit_tls: RabbitServer,
    client_files: dict[str, str],
    bridges: Callable[..., Bridges],
    tmp_path: Path,
):
    daemon.create("outbox", "inbox", transactional=True)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    certificate, key = other.sign(tmp_path / "other", "bridge", hosts=("bridge",))
    without = {"ca_file": client_files["ca_file"]}
    faults: list[tuple[dict[str, str], str]] = [
        (client_files | {"ca_file": str(other.file)}, "certificate verify failed"),
        (client_files | {"url": rabbit_tls.url}, "certificate verify failed"),  # not its name
        (client_files | {"certificate": str(certificate), "key": str(key)}, ""),
        (without, ""),
        ({}, "certificate verify failed"),  # the authorities of the system
    ]
    for keys, reason in faults:
        made = bridges(out=amqp_definitions(rabbit_tls, **keys)["out"])
        (row,) = made.cli("check", check=False)
        assert not row["ok"], keys
        assert reason in row["text"], row
        assert row["text"].strip()
