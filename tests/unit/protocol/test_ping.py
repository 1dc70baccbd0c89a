"""The ping: a datagram of 24 bytes with a signature; all others are rejected."""

from __future__ import annotations

import pytest

from protocol import MalformedPacket, parse_ping, ping_request, ping_response
from tests.unit.protocol.samples import OTHER, SOURCE, put

REQUEST = ping_request(cookie=7, queue_manager=SOURCE, server=True)


def test_a_request_has_its_cookie_and_its_sender() -> None:
    ping = parse_ping(REQUEST)

    assert (ping.cookie, ping.queue_manager) == (7, SOURCE)
    assert not ping.flags.not_server
    assert parse_ping(ping_request(cookie=7, queue_manager=SOURCE, server=False)).flags.not_server


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("server", [True, False])
def test_a_response_repeats_the_request(refused: bool, server: bool) -> None:
    request = parse_ping(ping_request(cookie=0xFFFFFFFF, queue_manager=SOURCE, server=server))

    response = parse_ping(ping_response(request, queue_manager=OTHER, refused=refused))

    assert response.cookie == 0xFFFFFFFF
    assert response.queue_manager == OTHER
    assert response.flags.not_server == request.flags.not_server
    assert response.flags.refused == refused


def test_unknown_flags_are_not_repeated() -> None:
    request = parse_ping(put(REQUEST, 0, 0xFFFF, 2))

    assert ping_response(request, queue_manager=OTHER, refused=False)[:2] == b"\x01\x00"


@pytest.mark.parametrize("length", [*range(24), 25, 100])
def test_a_datagram_of_another_size_is_not_a_ping(length: int) -> None:
    with pytest.raises(MalformedPacket):
        parse_ping(REQUEST.ljust(length, b"\0")[:length])


def test_a_datagram_with_another_signature_is_not_a_ping() -> None:
    with pytest.raises(MalformedPacket) as refused:
        parse_ping(put(REQUEST, 2, 0x5549, 2))

    assert (refused.value.field, refused.value.offset) == ("signature", 2)
