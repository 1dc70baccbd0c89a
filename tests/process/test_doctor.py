"""`qmd doctor` names the cause in each of many broken set-ups, with real parts."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.process.harness import Daemon, Hosts, free_port

Found = dict[str, str]


def examined(daemon: Daemon, *arguments: str) -> tuple[int, list[Found]]:
    """Return the exit code of `qmd doctor` and its findings."""
    done = daemon.cli("doctor", "--json", *arguments, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def names(found: list[Found], check: str, text: str, level: str = "fault") -> bool:
    """Return whether a finding of this level names the cause, with a remedy."""
    return any(
        each["check"] == check
        and each["level"] == level
        and text in each["text"]
        and each["remedy"]
        for each in found
    )


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """The data folder of a queue manager that has run."""
    hosts = Hosts()
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.terminate()
    yield daemon.folder / "data"
    hosts.close()


@pytest.fixture
def used(hosts: Hosts, template: Path) -> Daemon:
    """A queue manager that has run, and does not run now."""
    daemon = hosts.daemon(start=False)
    shutil.copytree(template, data(daemon), dirs_exist_ok=True)
    return daemon


def test_a_healthy_host_is_in_order(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    code, found = examined(daemon)
    assert [each for each in found if each["level"] in ("warning", "fault")] == []
    assert code == 0
    assert {each["check"] for each in found} >= {
        *("configuration", "folder", "disk", "database", "identity", "clock", "name", "port"),
        *("socket", "version", "outgoing"),
    }


def test_a_healthy_peer_is_in_order(hosts: Hosts) -> None:
    here, there = hosts.daemon(), hosts.daemon()
    code, found = examined(here, f"127.0.0.1:{there.port}")
    assert [each for each in found if each["level"] in ("warning", "fault")] == []
    assert code == 0
    levels = {each["check"]: each["level"] for each in found}
    assert levels["probe"] == levels["handshake"] == levels["identity"] == "ok"
    assert here.json("queue", "list") == [], "nothing stays here"
    assert there.json("queue", "list", "--system")[0]["messages"] == 0, "nor there"


# Broken hosts without a daemon: each function breaks one, and returns the finding that names it.


def data(daemon: Daemon) -> Path:
    return daemon.folder / "data"


def syntax_error(daemon: Daemon) -> tuple[str, str]:
    daemon.config.write_text(daemon.config.read_text() + "\n[listen\n")
    return "configuration", "qmd.toml:"


def unknown_key(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"listen": {"prot": 1801}})
    return "configuration", "did you mean port?"


def folder_is_a_file(daemon: Daemon) -> tuple[str, str]:
    shutil.rmtree(data(daemon))
    data(daemon).write_text("")
    return "folder", "is not a folder"


def file_of_another_user(daemon: Daemon) -> tuple[str, str]:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(data(daemon) / "queues.db", 12345, 12345)
    return "folder", "number 12345"


def daemon_would_be_root(daemon: Daemon) -> tuple[str, str]:
    if os.geteuid() != 0:
        pytest.skip("only root has a folder of root")
    daemon.configure({"queue_manager": {"run_as_root": False}})
    return "user", "does not run as root"


def port_in_use(daemon: Daemon) -> tuple[str, str]:
    server = socket.create_server(("127.0.0.1", daemon.port))
    OPEN.callback(server.close)
    return "port", "another program listens there"


def address_of_another_host(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"listen": {"address": "192.0.2.1"}})
    return "port", "does not have that address"


def newer_schema(daemon: Daemon) -> tuple[str, str]:
    with contextlib.closing(sqlite3.connect(data(daemon) / "queues.db")) as db:
        db.execute("PRAGMA user_version = 9999")
    return "database", "was downgraded"


def foreign_database(daemon: Daemon) -> tuple[str, str]:
    (data(daemon) / "queues.db").unlink()
    with contextlib.closing(sqlite3.connect(data(daemon) / "queues.db")) as db:
        db.execute("CREATE TABLE other (x)")
    return "database", "another program"


def database_gone(daemon: Daemon) -> tuple[str, str]:
    (data(daemon) / "queues.db").unlink()
    return "database", "queues.db is gone"


def damaged_page(daemon: Daemon) -> tuple[str, str]:
    """Overwrite a page of the database, as a bad sector does."""
    path = data(daemon) / "queues.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    return "database", "is damaged"


def log_removed(daemon: Daemon) -> tuple[str, str]:
    daemon.start()
    daemon.create("more")
    daemon.kill()
    (data(daemon) / "queues.db-wal").unlink()
    return "database", "queues.db-wal is gone"


def no_identity(daemon: Daemon) -> tuple[str, str]:
    (data(daemon) / "identity.key").unlink()
    return "identity", "is missing"


def damaged_identity(daemon: Daemon) -> tuple[str, str]:
    (data(daemon) / "identity.key").write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    return "identity", "is damaged"


def no_storage_key(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"storage": {"key_files": ["storage.key"]}})
    return "storage key", "cannot be read"


def public_storage_key(daemon: Daemon) -> tuple[str, str]:
    key = daemon.folder / "storage.key"
    key.write_text("0" * 64)
    key.chmod(0o644)
    daemon.configure({"storage": {"key_files": ["storage.key"]}})
    return "storage key", "accessible to all users"


def certificate(folder: Path, *, days: int) -> ec.EllipticCurvePrivateKey:
    """Write remote.crt that ends in so many days; return its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "host")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    (folder / "remote.crt").write_bytes(made.public_bytes(Encoding.PEM))
    return key


def remote(daemon: Daemon, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (daemon.folder / "remote.key").write_bytes(pem)
    daemon.configure({"remote": {"enabled": True, "port": free_port()}})


def no_certificate(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"remote": {"enabled": True, "port": free_port()}})
    return "certificate", "remote.crt cannot be read"


def expired_certificate(daemon: Daemon) -> tuple[str, str]:
    remote(daemon, certificate(daemon.folder, days=-1))
    return "certificate", "has expired"


def key_of_another_certificate(daemon: Daemon) -> tuple[str, str]:
    certificate(daemon.folder, days=100)
    remote(daemon, ec.generate_private_key(ec.SECP256R1()))
    return "certificate", "is not the key of"


def clock_set_back(daemon: Daemon) -> tuple[str, str]:
    later = time.time() + 86_400
    os.utime(data(daemon) / "queues.db", (later, later))
    return "clock", "was set back"


def file_at_the_socket(daemon: Daemon) -> tuple[str, str]:
    (daemon.folder / "qmd.sock").write_text("")
    return "socket", "is not a socket"


def no_folder_for_the_socket(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"control": {"socket": "run/qmd.sock"}})
    return "socket", "does not exist"


def name_of_another_host(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"queue_manager": {"name": "192.0.2.7"}})
    return "name", "no address of this computer"


def disk_is_short(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"quotas": {"disk_reserve": "1TB"}})
    return "disk", "new messages are refused"


def not_started(daemon: Daemon) -> tuple[str, str]:
    return "service", "No daemon runs"


def damaged_tokens(daemon: Daemon) -> tuple[str, str]:
    (daemon.folder / "remote-tokens").write_text("archive read\n")
    return "tokens", "No client can log in"


def broken_directory_file(daemon: Daemon) -> tuple[str, str]:
    (daemon.folder / "directory.toml").write_text("[[queue")
    daemon.configure({"directory": {"kind": "file"}})
    return "directory", "directory.toml:1"


def expired_authority(daemon: Daemon) -> tuple[str, str]:
    certificate(daemon.folder, days=-1)
    (daemon.folder / "remote.crt").rename(daemon.folder / "ca.crt")
    daemon.configure({"tls": {"enabled": True, "port": free_port(), "authorities": "ca.crt"}})
    return "certificate", "authority CN=host"


def immutable_folder(daemon: Daemon) -> tuple[str, str]:
    """Forbid changes of the folder to root, too, as a policy of the kernel does."""
    command = ["chattr", "+i", str(data(daemon))]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("only root can make a folder immutable, on some file systems")
    OPEN.callback(subprocess.run, ["chattr", "-i", str(data(daemon))], check=True)
    return "folder", "cannot be written"


OPEN = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    OPEN.close()


@pytest.mark.parametrize(
    "broken",
    [
        *(syntax_error, unknown_key, folder_is_a_file, file_of_another_user),
        *(daemon_would_be_root, port_in_use, address_of_another_host, newer_schema),
        *(foreign_database, database_gone, log_removed, damaged_page),
        *(no_identity, damaged_identity),
        *(no_storage_key, public_storage_key, no_certificate, expired_certificate),
        *(key_of_another_certificate, clock_set_back, file_at_the_socket),
        *(no_folder_for_the_socket, name_of_another_host, disk_is_short, not_started),
        *(damaged_tokens, broken_directory_file, expired_authority, immutable_folder),
    ],
    ids=lambda broken: broken.__name__,
)
def test_the_cause_is_named(used: Daemon, broken: Callable[[Daemon], tuple[str, str]]) -> None:
    check, text = broken(used)

    code, found = examined(used)

    assert names(found, check, text), found
    assert code == 2


def test_a_folder_that_others_may_read_is_named(used: Daemon) -> None:
    data(used).chmod(0o755)
    _, found = examined(used, "--problems")
    assert names(found, "folder", "Other users may read", "warning"), found


def test_a_key_of_a_certificate_that_others_may_read_is_named(used: Daemon) -> None:
    remote(used, certificate(used.folder, days=100))
    (used.folder / "remote.key").chmod(0o644)
    _, found = examined(used, "--problems")
    assert names(found, "certificate", "Other users may read", "warning"), found


def test_a_door_that_does_not_answer_is_named(used: Daemon) -> None:
    used.configure({"http": {"port": free_port()}})
    _, found = examined(used, "--problems")
    assert names(found, "door", "nothing answers", "warning"), found


def test_the_program_at_the_port_is_named(used: Daemon) -> None:
    port_in_use(used)
    _, found = examined(used)
    assert names(found, "port", f"process {os.getpid()}:"), found


# Broken hosts with a daemon.


def test_settings_that_are_not_in_use_are_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.configure({"quotas": {"computer": "5GB"}})
    _, found = examined(daemon)
    assert names(found, "configuration", "quotas.computer", "warning"), found


def test_a_limit_of_file_sizes_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (1 << 30, resource.RLIM_INFINITY))
    _, found = examined(daemon)
    assert names(found, "disk", "at most", "warning"), found


def test_a_removed_control_socket_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    (daemon.folder / "qmd.sock").unlink()
    _, found = examined(daemon)
    assert names(found, "socket", "does not exist"), found


def test_a_changed_port_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.configure({"listen": {"port": free_port()}})
    _, found = examined(daemon)
    assert names(found, "port", "does not answer"), found


def test_a_socket_of_another_daemon_is_named(hosts: Hosts) -> None:
    other, daemon = hosts.daemon(), hosts.daemon()
    daemon.terminate()
    daemon.configure({"control": {"socket": str(other.folder / "qmd.sock")}})
    _, found = examined(daemon)
    assert names(found, "socket", "Another daemon answers"), found


def test_a_paused_destination_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\orders"
    daemon.send(destination, b"1")
    daemon.cli("outgoing", "pause", destination)
    code, found = examined(daemon)
    assert names(found, "outgoing", "is paused", "warning"), found
    assert code == 1


def test_a_full_queue_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.cli("queue", "create", "orders", "--quota", "10kB")
    daemon.send("private$\\orders", bytes(9500))
    _, found = examined(daemon)
    assert names(found, "quota", "orders", "warning"), found


# Broken ways to a peer.


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A program that accepts connections, and answers the first bytes; None: it says nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                kept.append(connection)
                if answer is not None and connection.recv(4096):
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()
        for each in kept:
            each.close()


def test_an_unknown_name_is_named(used: Daemon) -> None:
    code, found = examined(used, "no-such-host.invalid")
    assert names(found, "name", "cannot be resolved"), found
    assert code == 2


def test_a_peer_that_does_not_listen_is_named(used: Daemon) -> None:
    _, found = examined(used, f"127.0.0.1:{free_port()}")
    assert names(found, "port", "no program listens"), found


def test_a_silent_program_is_named(used: Daemon) -> None:
    with server(None) as port:
        _, found = examined(used, f"127.0.0.1:{port}", "--timeout", "1")
    assert names(found, "handshake", "does not answer the request"), found


def test_another_kind_of_server_is_named(used: Daemon) -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 20) as port:
        _, found = examined(used, f"127.0.0.1:{port}")
    assert names(found, "handshake", "is no queue manager"), found


def test_a_peer_that_does_not_allow_this_host_is_named(hosts: Hosts, used: Daemon) -> None:
    there = hosts.daemon(peers={"allow": ["192.0.2.0/24"]})
    _, found = examined(used, f"127.0.0.1:{there.port}")
    assert names(found, "handshake", "closes the connection"), found
    assert any("allow in [peers] there" in each["remedy"] for each in found)


def test_a_peer_that_is_not_allowed_here_is_named(hosts: Hosts, used: Daemon) -> None:
    there = hosts.daemon()
    used.configure({"peers": {"allow": ["192.0.2.0/24"]}})
    _, found = examined(used, f"127.0.0.1:{there.port}")
    assert names(found, "allow", "are not accepted here", "warning"), found


def test_a_peer_that_needs_tls_is_named(hosts: Hosts, used: Daemon) -> None:
    there = hosts.daemon(tls={"enabled": True, "port": free_port(), "policy": ["* required"]})
    _, found = examined(used, f"127.0.0.1:{there.port}")
    assert names(found, "tls", "over TLS only"), found


def test_the_own_identity_at_another_address_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    _, found = examined(daemon, f"127.0.0.1:{daemon.port}", "--no-probe")
    assert names(found, "identity", "is this one"), found


def test_a_wrong_address_for_the_way_back_is_named(hosts: Hosts) -> None:
    here, there = hosts.daemon(listen={"reached_at": ["192.0.2.1:1801"]}), hosts.daemon()
    there.create("orders")
    arguments = (f"127.0.0.1:{there.port}", "--queue", "orders", "--timeout", "2")
    _, found = examined(here, *arguments)
    assert names(found, "probe", "did not come back"), found


def test_the_way_back_and_the_clock_are_checked_with_a_queue(hosts: Hosts) -> None:
    here, there = hosts.daemon(), hosts.daemon()
    there.create("orders")
    code, found = examined(here, f"127.0.0.1:{there.port}", "--queue", "orders")
    assert code == 0, found
    levels = {each["check"]: each["level"] for each in found}
    assert levels["probe"] == levels["clock"] == "ok"
    _, found = examined(here, f"127.0.0.1:{there.port}", "--queue", "absent", "--timeout", "2")
    assert names(found, "probe", "did not come back"), found
