"""The targets of webhooks: only addresses that the configuration permits are ever connected to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any

import pytest

from qmd.doors.http import webhook
from qmd.doors.http.webhook import DeliveryFailed, deliver, is_permitted, signature, target_of
from qmd.doors.srmp.client import HttpClient, NotAccepted

NETWORK = ipaddress.ip_network("10.1.0.0/16")
LOCAL = ipaddress.ip_network("127.0.0.0/8")


@pytest.mark.parametrize(
    ("address", "host", "allowed", "expected"),
    [
        ("10.1.2.3", "any.example", [NETWORK], True),
        ("10.2.2.3", "any.example", [NETWORK], False),
        ("192.0.2.1", "hooks.example", ["hooks.example"], True),
        ("192.0.2.1", "HOOKS.example", ["hooks.example"], True),
        ("192.0.2.1", "evil.hooks.example", ["hooks.example"], False),
        # A permitted name that resolves to this computer, or to the metadata of a cloud.
        ("127.0.0.1", "hooks.example", ["hooks.example"], False),
        ("169.254.169.254", "hooks.example", ["hooks.example"], False),
        ("0.0.0.0", "hooks.example", ["hooks.example"], False),
        ("::1", "hooks.example", ["hooks.example"], False),
        ("::ffff:127.0.0.1", "hooks.example", ["hooks.example"], False),
        ("fe80::1", "hooks.example", ["hooks.example"], False),
        # IPv6 addresses that gateways take for those IPv4 addresses.
        ("64:ff9b::a9fe:a9fe", "hooks.example", ["hooks.example"], False),
        ("2002:7f00:1::", "hooks.example", ["hooks.example"], False),
        ("2002:c000:201::", "hooks.example", ["hooks.example"], True),
        ("::ffff:127.0.0.1", "x", [LOCAL], True),
        ("127.0.0.1", "localhost", [LOCAL], True),
        ("192.0.2.1", "hooks.example", [], False),
    ],
)
def test_an_address_must_be_permitted(
    address: str, host: str, allowed: list[object], expected: bool
) -> None:
    found = is_permitted(ipaddress.ip_address(address), host, allowed)  # type: ignore[arg-type]
    assert found is expected


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification."""
    import base64

    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def answered_with(answer: bytes, *, stays_open: bool, host: str = "127.0.0.1") -> None:
    """Deliver a message to a server that answers with these bytes.  Raises DeliveryFailed."""

    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\nbody")
            writer.write(answer)
            await writer.drain()
            if stays_open:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended[0].set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://{host}:{port}/hook"
        allowed = [LOCAL, ipaddress.ip_network("::1")]
        try:
            await deliver(url, (), b"body", allowed, 10.0, "targets")
        finally:
            for each in ended:
                await each.wait()


ACCEPTED = (
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly a part",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno chunk",
)
REFUSED = (
    b"",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 200 OK\r\nconte",
    b"HTTP/1.1 103 Early Hints\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Oops\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: " + b"x" * webhook.RESPONSE_BYTES_MAX,
)


@pytest.mark.parametrize("answer", ACCEPTED)
@pytest.mark.parametrize("stays_open", [False, True])
def test_the_head_of_the_final_response_decides(
    answer: bytes, stays_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "BODY_S", 0.05)
    asyncio.run(answered_with(answer, stays_open=stays_open))


@pytest.mark.parametrize("answer", REFUSED)
def test_without_the_head_of_an_accepting_response_a_message_was_not_accepted(
    answer: bytes,
) -> None:
    with pytest.raises(DeliveryFailed):
        asyncio.run(answered_with(answer, stays_open=False))


@pytest.mark.parametrize("host", ["a..example", "x" * 64 + ".example"])
def test_a_name_that_dns_does_not_allow_is_a_failed_delivery(host: str) -> None:
    with pytest.raises(DeliveryFailed, match="has no address"):
        asyncio.run(deliver(f"http://{host}/hook", (), b"", [LOCAL], 10.0, "targets"))
    with pytest.raises(NotAccepted, match="cannot be reached"):
        asyncio.run(HttpClient(None).post(f"http://{host}/msmq/q", b"", "text/xml"))


def test_a_space_and_characters_beyond_ascii_are_escaped_in_a_request() -> None:
    assert target_of("http://hostb/MSMQ/private$/a b").path == "/MSMQ/private$/a%20b"
    assert target_of("http://hostb/MSMQ/private$/100%").path == "/MSMQ/private$/100%"
    target = target_of("http://büro.example:81/MSMQ/private$/Aufträge?x=ä%20")
    assert target.authority == "xn--bro-hoa.example:81"
    assert target.path == "/MSMQ/private$/Auftr%C3%A4ge?x=%C3%A4%20"


def test_the_next_address_of_a_target_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one does not answer, as that of IPv6 on a host that has only IPv4."""

    def addresses(host: str, port: int, **_: Any) -> Any:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *_, **__: addresses(host, port))
    asyncio.run(answered_with(ACCEPTED[0], stays_open=False, host="both.example"))
