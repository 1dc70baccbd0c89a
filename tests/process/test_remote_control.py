"""The remote control protocol: TLS, tokens, and malicious clients."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmd.access.tokens import create, format_time, parse_time, revoke
from qmd.client import (
    LoginRefused,
    NotConnected,
    OutcomeUnknown,
    QueueManagerError,
    TransactionAborted,
    blocking,
    new_message,
)
from qmd.client.address import RemoteAddress
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol.bulk import Attempt
from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, free_port
from tests.process.remote_daemon import Remote, make_certificates

PATIENCE_S = END_S

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    remote = Remote(tmp_path_factory.mktemp("remote"))
    with blocking.connect(remote.folder / "qmd" / "qmd.sock") as qm:
        qm.create_queue("orders")
        qm.create_queue("secret")
    yield remote
    remote.daemon.terminate()


def peek_for_ever(qm: blocking.Blocking) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        qm.peek("orders")
        time.sleep(0.1)


def closed_by_peer(connection: ssl.SSLSocket) -> bool:
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(65536):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def test_a_remote_client_has_the_rights_of_its_token(remote: Remote) -> None:
    token = remote.token("read", "write", name="both")
    with remote.connect(token) as qm:
        qm.send("orders", b"one")
        qm.pipeline.stage(
            "etl", 0, partition=0, attempt="a", messages=[new_message("orders", b"two")]
        )
        assert qm.pipeline.publish("etl", 0, [Attempt(0, "a", 1)]).published
        run = qm.pipeline.open_reader("archive", ["orders"])
        [queue] = run.queues
        assert qm.pipeline.reserve(run, queue.queue, queue.position).end == 2
        rows = list(qm.pipeline.read(queue.queue, reader="archive"))
        assert sum(each.count for each in rows) == 2
        assert qm.pipeline.consume(run, {queue.queue: 2}).messages == 2
        with pytest.raises(QueueManagerError) as refused:
            qm.create_queue("more")
        assert refused.value.code == "scope_missing"


def test_the_directory_is_for_tokens_of_all_queues_and_its_lists_for_administrators(
    remote: Remote,
) -> None:
    looks = (
        lambda qm: qm.directory.lists(),
        lambda qm: qm.directory.aliases(),
        lambda qm: qm.directory.show_list("all"),
        lambda qm: qm.directory.expand_list("list:all"),
        lambda qm: qm.directory.lookup("list:all"),
        lambda qm: qm.directory.explain("list:all"),
        lambda qm: qm.directory.status(),
    )
    changes = (
        lambda qm: qm.directory.reload(),
        lambda qm: qm.directory.add_members("all", ["secret"]),
        lambda qm: qm.directory.remove_members("all", ["orders"]),
        lambda qm: qm.directory.create_list("more", ["secret"]),
        lambda qm: qm.directory.create_alias("boss", "secret"),
        lambda qm: qm.directory.delete_alias("boss"),
        lambda qm: qm.directory.delete_list("all"),
    )

    def refused(scopes: tuple[str, ...], queues: tuple[str, ...], name: str) -> list[set[str]]:
        """Return the codes with which reads and changes are refused; "" for an accepted one."""
        found: list[set[str]] = [set(), set()]
        with remote.connect(remote.token(*scopes, queues=queues, name=name)) as qm:
            for codes, acts in zip(found, (looks, changes), strict=True):
                for act in acts:
                    try:
                        act(qm)
                        codes.add("")
                    except QueueManagerError as error:
                        codes.add(error.code)
        return found

    with remote.connect(remote.token("admin", name="dir-admin")) as qm:
        qm.directory.create_list("all", ["orders"])

    assert refused(("write",), (), "dir-write") == [{"scope_missing"}, {"scope_missing"}]
    assert refused(("read",), (), "dir-read") == [{""}, {"scope_missing"}]
    narrow = ("orders", "all", "list:all")
    assert refused(("read",), narrow, "dir-narrow") == [{"queue_not_granted"}, {"scope_missing"}]
    assert refused(("admin",), narrow, "dir-own") == [{"queue_not_granted"}] * 2
    assert refused(("admin",), (), "dir-all") == [{""}, {""}]


def test_a_token_grants_its_queues_under_all_their_names_only(remote: Remote) -> None:
    token = remote.token("read", "write", queues=("orders",), name="narrow")
    spellings = (
        "secret",
        "private$\\secret",
        "DIRECT=OS:.\\private$\\SECRET",
        "DIRECT=OS:localhost\\private$\\secret",
        "DIRECT=OS:.\\private$\\orders,DIRECT=OS:.\\private$\\secret",
        "orders;journal",
        "DIRECT=TCP:10.9.8.7\\private$\\orders",
    )
    with remote.connect(token) as qm:
        qm.send("private$\\ORDERS", b"mine")
        qm.receive("orders")
        for spelling in spellings:
            for ask in (
                lambda name=spelling: qm.send(name, b"x"),
                lambda name=spelling: qm.peek(name),
                lambda name=spelling: qm.pipeline.read_range(name),
                lambda name=spelling: qm.pipeline.stage(
                    "q", 0, partition=0, attempt="a", messages=[new_message(name, b"")]
                ),
            ):
                with pytest.raises(QueueManagerError) as refused:
                    ask()
                assert refused.value.code == "queue_not_granted", spelling
        with pytest.raises(QueueManagerError) as refused:
            qm.list_queues()
        assert refused.value.code == "queue_not_granted"


def test_a_token_for_reading_cannot_send(remote: Remote) -> None:
    with remote.connect(remote.token("read", name="reader")) as qm:
        qm.peek("orders")
        with pytest.raises(QueueManagerError) as refused:
            qm.send("orders", b"x")
        assert refused.value.code == "scope_missing"
    with remote.connect(remote.token("write", name="writer")) as qm:
        qm.send("orders", b"x")
        with pytest.raises(QueueManagerError) as refused:
            qm.receive("orders")
        assert refused.value.code == "scope_missing"


def test_a_wrong_token_and_a_revoked_one_are_rejected(remote: Remote, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("qmd_" + "A" * 43)
    with pytest.raises(LoginRefused) as refused, remote.connect(wrong):
        pass
    assert refused.value.code == "token_refused"
    token = remote.token("read", name="passing")
    with remote.connect(token) as qm:
        qm.peek("orders")
        assert revoke(remote.tokens, "passing")
        with pytest.raises((QueueManagerError, NotConnected)):
            peek_for_ever(qm)
    with pytest.raises(LoginRefused) as refused, remote.connect(token):
        pass
    assert refused.value.code == "token_refused"


def test_a_revoked_token_ends_a_connection_that_only_waits(remote: Remote) -> None:
    """It sends no further request, as a client that asks again would: that is refused anyway."""
    token = remote.token("read", name="waiting").read_text().strip()
    with (
        remote.raw() as waiting,
        blocking.connect(remote.folder / "qmd" / "qmd.sock") as local,
    ):
        local.create_queue("later")
        waiting.sendall(frames.frame(frames.Login(1, frames.VERSION, token)))
        waiting.sendall(frames.frame(frames.Take(2, "later", wait_s=3600.0)))
        waiting.sendall(frames.frame(frames.Hello(3)))
        assert [reply_of(waiting).number, reply_of(waiting).number] == [1, 3], "the second waits"
        assert revoke(remote.tokens, "waiting")
        assert closed_by_peer(waiting)
        # Its end of TLS stays open, and the daemon does not wait for it.
        local.send("later", b"not for the revoked token")
        message = local.receive("later", timeout_s=PATIENCE_S)
        assert message is not None
        assert message.body == b"not for the revoked token"


def reply_of(connection: ssl.SSLSocket) -> frames.Done | frames.Refused:
    """Return the next reply on a connection."""
    size = received(connection, 4)
    return frames.decode_reply(received(connection, *struct.unpack("<I", size)))


def received(connection: ssl.SSLSocket, size: int) -> bytes:
    """Return so many bytes of a connection."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the connection was closed"
        data += more
    return data


def test_an_expired_token_is_refused_and_ends_its_connections(remote: Remote) -> None:
    path = remote.folder / "brief.token"
    ends_s = time.time() + 3
    made = create(remote.tokens, "brief", frozenset({"read"}), (), expires=format_time(ends_s))
    path.write_text(made)
    with remote.connect(path) as qm:
        qm.peek("orders")
        with pytest.raises((QueueManagerError, NotConnected)):
            peek_for_ever(qm)
        assert time.time() >= ends_s - 1  # the file has whole seconds
    with pytest.raises(LoginRefused) as refused, remote.connect(path):
        pass
    assert refused.value.code == "token_refused"
    revoke(remote.tokens, "brief")


def test_the_last_use_of_a_token_is_shown(tmp_path: Path) -> None:
    remote = Remote(tmp_path)
    with remote.connect(remote.token("read", name="used")) as qm:
        qm.status()
    remote.token("read", name="unused")
    remote.daemon.terminate()

    lines = remote.daemon.cli("remote", "token", "list", "--json").stdout.splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines)}

    assert rows["used"]["last_host"] == "127.0.0.1"
    assert parse_time(rows["used"]["last_use"]) > time.time() - PATIENCE_S
    assert rows["unused"]["last_use"] == ""


def guess(connection: ssl.SSLSocket) -> None:
    connection.sendall(frames.frame(frames.Login(1, frames.VERSION, "guess")))


def is_answered(connection: ssl.SSLSocket) -> bool:
    """Return whether an answer has arrived."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(4))
    except ssl.SSLWantReadError:
        return False


def test_after_many_wrong_tokens_a_host_gets_no_answer_and_a_right_token_is_accepted(
    tmp_path: Path,
) -> None:
    remote = Remote(tmp_path, login_timeout=f"{int(PATIENCE_S)}s")
    right = remote.token("read", name="right")
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(remote.raw()) for _ in range(32)]
        began = time.monotonic()
        for connection in connections:
            guess(connection)
        with remote.connect(right) as qm:
            assert qm.status()["name"]
        took_s = time.monotonic() - began
        # Each answer is late by the same time: those to earlier attempts have arrived.
        last = stack.enter_context(remote.raw("127.0.0.2"))
        guess(last)
        last.settimeout(PATIENCE_S)
        assert last.recv(4), "another host gets an answer"
        answers = sum(map(is_answered, connections))
    remote.daemon.terminate()

    assert 10 <= answers <= 11 + took_s / 6, "ten at once, and one in six seconds"


def test_a_certificate_of_another_authority_is_not_trusted(remote: Remote, tmp_path: Path) -> None:
    token = remote.token("read", name="careful")
    make_certificates(tmp_path)
    where = f"tls://localhost:{remote.port}"
    with (
        pytest.raises(NotConnected) as refused,
        blocking.connect(where, token_file=token, ca_file=tmp_path / "ca.crt"),
    ):
        pass
    assert refused.value.code == "remote_certificate_refused"
    with (
        pytest.raises(NotConnected) as refused,
        blocking.connect(f"tls://127.0.0.2:{free_port()}", token_file=token),
    ):
        pass
    assert refused.value.code == "remote_unreachable"
    with pytest.raises(NotConnected) as refused:
        blocking.connect(f"tcp://example.com:{remote.port}", token_file=token)
    assert refused.value.code == "bad_remote_address"
    with pytest.raises(NotConnected) as refused:
        blocking.connect(where, token_file=tmp_path / "nothing")
    assert refused.value.code == "remote_token_unreadable"


def test_a_token_is_in_no_output(remote: Remote) -> None:
    address = RemoteAddress("localhost", remote.port, "qmd_very-secret")
    assert "secret" not in f"{address} {address!r}"
    token = remote.token("read", name="quiet").read_text().strip()
    assert token not in remote.tokens.read_text()
    assert token not in remote.daemon.log.read_text()


def test_the_command_line_works_remotely(remote: Remote) -> None:
    token = remote.token("admin", name="operator")
    words = ("--host", f"localhost:{remote.port}", "--token-file", str(token))
    words += ("--ca-file", str(remote.ca_file))
    assert b"orders" in remote.daemon.cli(*words, "queue", "list").stdout
    assert b"operator" in remote.daemon.cli("remote", "token", "list").stdout
    explained = remote.daemon.cli(*words, "name", "explain", "orders", "--json").stdout
    facts = json.loads(explained)
    assert (facts["daemon"], facts["host"]) == ("asked", "localhost")
    for command in (
        ("remote", "token", "list"),
        ("tls", "init"),
        ("config", "show"),
        ("doctor",),
        ("trigger", "list"),
    ):
        refused = remote.daemon.cli(*words, *command, check=False)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert f"names localhost:{remote.port}: run it on that computer" in refused.stderr.decode()
    assert not (remote.daemon.folder / "tls").exists()


# Malicious clients.


def test_nothing_is_answered_before_the_login(remote: Remote) -> None:
    for request in (operator_frames.Status(1), frames.Peek(1, "orders"), frames.Hello(1)):
        with remote.raw() as connection:
            connection.sendall(frames.frame(request))
            (length,) = struct.unpack("<I", connection.recv(4))
            reply = frames.decode_reply(connection.recv(length))
            assert isinstance(reply, frames.Refused)
            assert reply.code == "login_first"
            assert closed_by_peer(connection)  # the login took too long


def test_silent_and_nonsensical_connections_are_closed(remote: Remote) -> None:
    for nonsense in (
        b"",
        b"\0",
        struct.pack("<I", 1 << 31) + b"x" * 100,
        struct.pack("<I", 5000) + b"x" * 5000,
        frames.frame(frames.Login(1, 99, "x")),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with remote.raw() as connection:
            connection.sendall(nonsense)
            assert closed_by_peer(connection)
    with socket.create_connection(("localhost", remote.port), PATIENCE_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        plain.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            while plain.recv(4096):
                pass
    with remote.connect(remote.token("read", name="after")) as qm:
        qm.peek("orders")


def test_a_connection_has_one_attempt_to_log_in(remote: Remote) -> None:
    # Before the flood of the next test, after which wrong tokens are answered late.
    token = Path(remote.token("read", name="right")).read_text().strip()
    with remote.raw() as connection:
        for number, each in ((1, "guess"), (2, token)):
            connection.sendall(frames.frame(frames.Login(number, frames.VERSION, each)))
        answers = b""
        while data := connection.recv(65536):
            answers += data

    assert b"token_refused" in answers
    assert b"scopes" not in answers


def test_a_flood_of_guessed_tokens_does_not_disturb_the_daemon(remote: Remote) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(80):  # more than the limit of connections
            with contextlib.suppress(OSError):
                connection = stack.enter_context(remote.raw())
                connection.sendall(frames.frame(frames.Login(1, frames.VERSION, "guess")) * 10)
        with blocking.connect(remote.folder / "qmd" / "qmd.sock") as qm:
            assert qm.status()["name"]
    with remote.connect(remote.token("read", name="later")) as qm:
        qm.peek("orders")


def test_without_tls_only_loopback_is_accepted_and_only_if_configured(tmp_path: Path) -> None:
    port = free_port()
    settings = {"remote": {"enabled": True, "port": port, "plain_on_loopback": True}}
    daemon = Daemon(tmp_path / "plain", settings=settings)
    token = tmp_path / "token"
    token.write_text(create(tmp_path / "plain" / "remote-tokens", "t", frozenset({"read"}), ()))
    daemon.start()
    with blocking.connect(f"tcp://127.0.0.1:{port}", token_file=token) as qm:
        assert qm.status()["name"]
    daemon.terminate()
    daemon.configure({"remote": {"address": "0.0.0.0"}})
    process = daemon.spawn()
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            break
        time.sleep(LOOK_S)
    assert process.poll(), "it listens to other computers without TLS"
    assert "remote_not_secret" in daemon.log.read_text()


def test_a_revoked_token_ends_its_transactions_and_gives_their_messages_back(
    remote: Remote,
) -> None:
    token = remote.token("read", "write", name="spending")
    with (
        remote.connect(token) as qm,
        blocking.connect(remote.folder / "qmd" / "qmd.sock") as local,
    ):
        local.create_queue("ledger", transactional=True)
        local.send("ledger", b"first")
        transaction = qm.transaction()
        transaction.begin()
        taken = transaction.receive("ledger")
        transaction.send("ledger", b"never committed")
        assert taken is not None
        assert local.receive("ledger") is None

        assert revoke(remote.tokens, "spending")
        # Before any request of the client, which would be refused, and end its connection.
        message = local.receive("ledger", timeout_s=PATIENCE_S)
        with pytest.raises((QueueManagerError, NotConnected, OutcomeUnknown, TransactionAborted)):
            transaction.commit()

        assert message is not None
        assert message.body == b"first"
        assert local.receive("ledger") is None
