"""Changes of keys without end: TLS 1.3 lets each end demand new keys of the other at any time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmd.control_protocol import messages as frames
from qmd.runtime.server_tls import WITHOUT_DATA_MAX, server_context
from qmd.tls import record_feed
from tests.attack.key_updates import KeyUpdates
from tests.patience import END_S
from tests.process import wire
from tests.process.harness import Hosts
from tests.process.remote_daemon import Remote
from tests.process.test_remote_control import remote as remote  # the fixture
from tests.process.tls_hosts import own_certificate, tls_daemon, tls_port, wait_log

MANY = 3 * max(record_feed.WITHOUT_DATA_MAX, WITHOUT_DATA_MAX)


@contextlib.contextmanager
def client(port: int, certificate: Path | None = None) -> Iterator[KeyUpdates]:
    with contextlib.closing(KeyUpdates(port, certificate=certificate, timeout_s=END_S)) as made:
        yield made


def has_ended(client: KeyUpdates) -> bool:
    """Return whether the other end closes the connection."""
    try:
        while True:
            client.read(65_536)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def pem(folder: Path, owner: uuid.UUID) -> Path:
    file = folder / f"{owner}.pem"
    file.write_bytes(b"".join(own_certificate(str(owner))))
    return file


def test_a_peer_that_changes_its_keys_without_end_is_ended(hosts: Hosts, tmp_path: Path) -> None:
    daemon = tls_daemon(hosts)
    own = uuid.uuid4()

    with client(tls_port(daemon), pem(tmp_path, own)) as peer:
        peer.write(wire.establish(client=own.bytes_le))
        peer.read(65_536)
        peer.write(wire.parameters())
        peer.read(65_536)
        peer.update(8)
        peer.update(MANY)
        assert has_ended(peer)

    wait_log(daemon, "changes its keys too often")


def test_a_remote_client_that_changes_its_keys_without_end_is_ended(remote: Remote) -> None:
    token = remote.token("read", name="keys").read_text().strip()

    with client(remote.port) as made:
        made.write(frames.frame(frames.Login(1, frames.VERSION, token)))
        made.update(8)
        assert made.read(65_536)
        made.update(MANY)
        assert has_ended(made)

    with remote.connect(remote.token("read", name="other")) as qm:
        assert qm.status()["name"]


def server_end(accepted: socket.socket, context: ssl.SSLContext) -> str:
    """Serve one connection as event loops do; return all data, or the error."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    found, is_ready = b"", False
    while found != b"onetwo" and (data := accepted.recv(1 << 20)):
        incoming.write(data)
        try:
            if not is_ready:
                tls.do_handshake()
                is_ready = True
            while each := tls.read(65_536):
                found += each
        except ssl.SSLWantReadError:
            with contextlib.suppress(ConnectionError):  # the client reads no more
                accepted.sendall(outgoing.read())
        except ssl.SSLError as error:
            return str(error)
    return found.decode()


@pytest.mark.parametrize(
    ("updates", "ending"), [(3, "onetwo"), (MANY, "the client changes its keys too often")]
)
def test_servers_of_doors_accept_few_changes_of_keys(
    tmp_path: Path, updates: int, ending: str
) -> None:
    """The doors for HTTP, AMQP and metrics, the console and the remote port have this context."""
    file = pem(tmp_path, uuid.uuid4())
    context = server_context(file, None, None)
    ends: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with accepted:
                ends.append(server_end(accepted, context))

        thread = threading.Thread(target=serve)
        thread.start()
        with client(listening.getsockname()[1]) as made:
            with contextlib.suppress(OSError):  # the server has closed the connection
                made.write(b"one")
                made.update(updates)
                made.write(b"two")
            thread.join(END_S)

    assert ends == [ending]


def test_no_server_has_another_context() -> None:
    root = Path(__file__).resolve().parents[2] / "qmd"

    others = [
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if "PROTOCOL_TLS_SERVER" in file.read_text()
    ]

    assert others == ["runtime/server_tls.py"]
