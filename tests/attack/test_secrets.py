"""Planted secrets appear in no log, error, answer, file of the folder or list of processes.

The secrets: a token, the key of the remote port's certificate, a storage key, the password of a
directory, and the queue manager's own key.  Real programs use them in every way that works, and in
ways that fail, because errors tend to quote their input.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmd.client import LoginRefused, QueueManagerError, blocking
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.remote_daemon import make_certificates

STORAGE_KEY = "5ec4e7" * 10 + "5ec4"
PASSWORD = "Hunter2-planted"
COMMANDS = (
    ("status",), ("status", "--json"), ("queue", "list"), ("events", "--json"),
    ("directory", "status"), ("directory", "status", "--json"), ("session", "list"),
    ("transaction", "list"), ("remote", "token", "list", "--json"),
)  # fmt: skip
WRONG_TOKEN = "qmd_" + "planted-wrong-token-" + "x" * 20


class LdapServer:
    """A server that reads a bind request and answers with nonsense."""

    def __init__(self) -> None:
        self.received = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                with connected:
                    received = connected.recv(4096)
                    self.received += received
                    connected.sendall(b"0\x84" + received)  # an error that could quote it

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def ldap() -> Iterator[LdapServer]:
    server = LdapServer()
    yield server
    server.close()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def forms(secret: bytes) -> set[bytes]:
    """Return the ways to write a secret that a log or an answer might use."""
    return {
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        secret.decode("latin-1").encode("utf-16-le"),
    }


def lists_of_processes() -> bytes:
    """Return the arguments of all processes, as any user can read them."""
    found = b""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += each.read_bytes() + b"\n"
    return found


class Planted:
    """A daemon with secrets of all kinds, and the collected outputs of it and of its commands."""

    def __init__(self, folder: Path, ldap: LdapServer) -> None:
        self.folder = folder
        self.key = private(folder / "storage.key", STORAGE_KEY)
        self.password = private(folder / "password", PASSWORD)
        self.port = free_port()
        directory = {
            "kind": "active-directory",
            "servers": [f"ldap://127.0.0.1:{ldap.port}"],
            "bind": "simple",
            "user": "CN=qmd",
            "password_file": str(self.password),
            "plain_password": True,
            "base": "DC=example",
        }
        self.daemon = Daemon(
            folder / "qmd",
            settings={
                "remote": {"enabled": True, "port": self.port},
                "storage": {"key_files": [str(self.key)]},
                "directory": directory,
            },
            warm=False,
        )
        make_certificates(self.daemon.folder)
        self.ca_file = self.daemon.folder / "ca.crt"
        self.outputs: list[bytes] = []
        self.token_file = folder / "token"
        made = ("--scope", "admin", "--output", str(self.token_file))
        self.cli("remote", "token", "create", "one", *made)
        self.token = self.token_file.read_text().strip()
        self.remote = ("--host", f"localhost:{self.port}", "--token-file", str(self.token_file))
        self.remote += ("--ca-file", str(self.ca_file))

    def cli(self, *words: str) -> None:
        done = self.daemon.cli(*words, check=False)
        self.outputs.extend((done.stdout, done.stderr))

    def connect(self, token_file: Path) -> blocking.Blocking:
        where = f"tls://localhost:{self.port}"
        return blocking.connect(where, token_file=token_file, ca_file=self.ca_file)

    def use(self) -> None:
        """Use the secrets in every way that works."""
        with self.connect(self.token_file) as qm:
            qm.create_queue("orders")
            qm.send("orders", b"a body")
            self.outputs.append(repr(qm.status()).encode())
            self.outputs.append(lists_of_processes())
            with contextlib.suppress(QueueManagerError):
                qm.directory.lookup("list:all")
        for words in COMMANDS:
            self.cli(*words)
            self.cli(*self.remote, *words)

    def use_wrongly(self) -> None:
        """Use the secrets of a running daemon in ways that fail."""
        wrong = private(self.folder / "wrong", WRONG_TOKEN)
        with pytest.raises(LoginRefused) as refused, self.connect(wrong):
            pass
        self.outputs.append(str(refused.value).encode() + repr(refused.value).encode())
        self.cli(*self.remote[:4], "status")  # without the authority
        tokens = self.daemon.folder / "remote-tokens"
        good = tokens.read_text()
        tokens.write_text(good + f"{self.token}\tread\n")  # a token in a line of the wrong form
        self.cli("remote", "token", "list")
        self.cli(*self.remote, "status")
        tokens.write_text(good)

    def start_wrongly(self) -> None:
        """Start the daemon and commands with keys that are missing or wrong."""
        self.daemon.configure({"storage": {"key_files": []}})
        assert self.daemon.spawn().wait(END_S) == 78
        private(self.key, STORAGE_KEY + "zz")
        self.daemon.configure({"storage": {"key_files": [str(self.key)]}})
        assert self.daemon.spawn().wait(END_S) == 78
        for text in (STORAGE_KEY + "zz", STORAGE_KEY):
            private(self.key, text)
            self.cli("storage", "status")
            self.cli("check")
        self.password.chmod(0o644)
        self.cli("status")

    def secrets(self) -> dict[str, bytes]:
        remote_key = (self.daemon.folder / "remote.key").read_text().splitlines()[1:-1]
        own_key = (self.daemon.folder / "data" / "identity.key").read_text().splitlines()[1:-1]
        return {
            "the token": self.token.encode(),
            "the wrong token": WRONG_TOKEN.encode(),
            "the storage key": bytes.fromhex(STORAGE_KEY),
            "the storage key as text": STORAGE_KEY.encode(),
            "the password": PASSWORD.encode(),
            "the key of the certificate": remote_key[0].encode(),
            "the queue manager's key": own_key[0].encode(),
        }


def test_planted_secrets_appear_nowhere(tmp_path: Path, ldap: LdapServer) -> None:
    planted = Planted(tmp_path, ldap)
    daemon = planted.daemon
    daemon.start()
    daemon.warm = True  # the commands may be forks
    try:
        planted.use()
        planted.use_wrongly()
    finally:
        daemon.terminate()
    assert PASSWORD.encode() in ldap.received  # the daemon has used it
    planted.start_wrongly()

    secrets = planted.secrets()
    searched = b"\n".join([*planted.outputs, daemon.log.read_bytes()])
    assert b"orders" in searched  # the outputs have been collected
    for name, secret in secrets.items():
        assert not any(form in searched for form in forms(secret)), name
    for file in (daemon.folder / "data").iterdir():
        if file.name != "identity.key":
            content = file.read_bytes()
            for name, secret in secrets.items():
                assert not any(form in content for form in forms(secret)), (file.name, name)


def test_no_core_of_the_daemon_can_be_made(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    assert daemon.process is not None
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()

    [row] = [line for line in limits.splitlines() if line.startswith("Max core file size")]

    assert set(row.split()[4:6]) <= {"0", "1"}
