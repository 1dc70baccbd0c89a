"""Rights of senders over HTTP and HTTPS: by their certificate, and by their token."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterator

import pytest

from tests.patience import END_S
from tests.process.harness import Hosts
from tests.process.srmp_pair import HAS_OPENSSL, Pair, arrived, make_pair, request, until, waiting


@pytest.fixture(scope="module")
def doors(shared_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts."""
    pair = make_pair(shared_hosts, tmp_path_factory.mktemp("srmp"))
    yield pair
    pair.kill()


@pytest.fixture
def pair(doors: Pair) -> Pair:
    """Return both hosts with empty queues."""
    return doors.empty()


def post_secretly(pair: Pair, queue: str, token: str = "", *, has_certificate: bool = False) -> int:
    """Send a message over HTTPS; return the status."""
    door = pair.b
    place = f"localhost:{door.tls_port}"
    sent = request(door, queue).replace(f"127.0.0.1:{door.port}".encode(), place.encode())
    sent = re.sub(rb"Content-Length: \d+\r\n\r\n<se", b"\r\n<se", sent)
    context = ssl.create_default_context(cafile=str(pair.folder / "ca.crt"))
    if has_certificate:
        context.load_cert_chain(pair.folder / "remote.crt", pair.folder / "remote.key")
    connection = http.client.HTTPSConnection(
        "localhost", door.tls_port, timeout=END_S, context=context
    )
    media = 'multipart/related; boundary="MSMQ - SOAP boundary, 53287"; type=text/xml'
    headers = {"Content-Type": media} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request("POST", f"/msmq/private$/{queue}", sent, headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.skipif(not HAS_OPENSSL, reason="openssl is needed to make certificates")
def test_a_queue_for_proven_senders_takes_messages_of_no_other(pair: Pair) -> None:
    """A token, and the certificate of a daemon's own door, are principals of `qmd acl`."""
    door, queue = pair.b, "private$\\proven"
    door.daemon.create("proven")
    door.daemon.cli("acl", "revoke", "everyone", "send", queue)
    for each in ("token:shop", "cert:localhost"):
        door.daemon.cli("acl", "grant", each, "send", queue)
    shop, other = (door.token("write", name=name) for name in ("shop", "other"))

    # Without a proof, with a token that has no right, and with one that no file has.
    assert post_secretly(pair, "proven") == 200
    assert post_secretly(pair, "proven", other) == 200
    assert post_secretly(pair, "proven", f"{shop}x") == 401
    assert post_secretly(pair, "proven", shop) == 200
    to = f"DIRECT=HTTPS://localhost:{door.tls_port}/msmq\\{queue}"
    pair.a.daemon.send(to, b"of a door")
    pair.a.daemon.send(pair.b.format_name("proven"), b"over HTTP")
    until(pair, lambda: door.daemon.count("proven") >= 2)
    until(pair, lambda: waiting(pair) == 0)
    assert sorted(door.daemon.bodies("proven")) == [b"First Message", b"of a door"]

    # A token is no longer one from its end on, also in a session that is open.
    door.daemon.cli("remote", "token", "revoke", "shop")
    until(pair, lambda: post_secretly(pair, "proven", shop) == 401)
    door.daemon.bodies("proven")


def test_a_token_is_not_accepted_without_encryption(pair: Pair) -> None:
    headers = {"Content-Type": "text/xml", "Authorization": "Bearer qmd_secret"}
    connection = http.client.HTTPConnection("127.0.0.1", pair.b.port, timeout=END_S)
    connection.request("POST", "/msmq/private$/loose", b"", headers)
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.skipif(not HAS_OPENSSL, reason="openssl is needed to make certificates")
def test_rights_of_a_certificate_apply_to_its_host_alone(pair: Pair) -> None:
    """The same address sends with a certificate, which may not, and without one."""
    door, queue = pair.b, "private$\\certified"
    door.daemon.create("certified")
    door.daemon.cli("acl", "deny", "cert:localhost", "send", queue)
    for has_certificate in (True, False):
        assert post_secretly(pair, "certified", has_certificate=has_certificate) == 200

    assert len(arrived(pair, "certified", 1)) == 1
    refused = door.daemon.json("events", "tail", "--kind", "refused")
    assert any("cert:localhost" in each["reason"] for each in refused)
